"""Between the kernel and `vfsd.fs`: mounting, and translating what libfuse asks.

libfuse and its Python binding are looked for only when something is mounted.
"""

from vfsd.fuse.binding import load, require_fuse
from vfsd.fuse.options import MountOptions, parse_options
from vfsd.fuse.serving import serve

__all__ = ["MountOptions", "load", "parse_options", "require_fuse", "serve"]
