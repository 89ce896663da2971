"""The semantics of the mount: what POSIX, and people, expect of a directory full of files.

Nothing in here knows FUSE; an adapter translates.
"""

from vfsd.mount.fs.attributes import Attributes, Caller, blocks_of
from vfsd.mount.fs.directory_ops import RENAME_EXCHANGE, RENAME_NOREPLACE
from vfsd.mount.fs.filesystem import ContentVersion, Entry, Filesystem
from vfsd.mount.fs.handles import Reading
from vfsd.mount.fs.op_stats import ByOperation, Counters
from vfsd.mount.fs.passthrough_file import WholeFile
from vfsd.mount.fs.recovery import Recovered
from vfsd.mount.fs.silly_rename import HiddenName
from vfsd.mount.fs.view_dirs import ViewOffer, ViewSource

__all__ = [
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "Attributes",
    "ByOperation",
    "Caller",
    "ContentVersion",
    "Counters",
    "Entry",
    "Filesystem",
    "HiddenName",
    "Reading",
    "Recovered",
    "ViewOffer",
    "ViewSource",
    "WholeFile",
    "blocks_of",
]
