"""A store as a file system of fsspec: `VfsdFileSystem`, registered for URLs with ``vfsd://``."""

from vfsd.fsspec.filesystem import VfsdFileSystem

__all__ = ["VfsdFileSystem"]
