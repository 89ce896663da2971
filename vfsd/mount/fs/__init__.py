"""POSIX file system semantics of the mount, independent of FUSE.

`Filesystem` is the entry point. The adapters of `vfsd.mount.fuse` translate libfuse callbacks into
its methods.
"""

from vfsd.mount.fs.directory_ops import RENAME_EXCHANGE, RENAME_NOREPLACE
from vfsd.mount.fs.filesystem import ContentVersion, Filesystem, ListingEntry
from vfsd.mount.fs.handles import ReadInto
from vfsd.mount.fs.mount_stats import OperationCounters, ThreadCounters
from vfsd.mount.fs.open_inodes import PassthroughFile
from vfsd.mount.fs.posix import (
    FIRST_VIEW_INO,
    Attributes,
    Caller,
    EntryName,
    Place,
    ViewPath,
    block_count,
    os_error,
)
from vfsd.mount.fs.unlinked_files import HiddenName, RecoveryReport
from vfsd.mount.fs.view_dirs import ViewSource, WritableView

__all__ = [
    "FIRST_VIEW_INO",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "Attributes",
    "Caller",
    "ContentVersion",
    "EntryName",
    "Filesystem",
    "HiddenName",
    "ListingEntry",
    "OperationCounters",
    "PassthroughFile",
    "Place",
    "ReadInto",
    "RecoveryReport",
    "ThreadCounters",
    "ViewPath",
    "ViewSource",
    "WritableView",
    "block_count",
    "os_error",
]
