"""The semantics of the mount: what POSIX, and people, expect of a directory full of files.

Nothing in here knows FUSE; an adapter translates.
"""

from vfsd.fs.attributes import Attributes, Caller, blocks_of
from vfsd.fs.counters import ByOperation, Counters
from vfsd.fs.files import Reading
from vfsd.fs.filesystem import ContentVersion, Entry, Filesystem
from vfsd.fs.hiddennames import HiddenName
from vfsd.fs.namespace import RENAME_EXCHANGE, RENAME_NOREPLACE
from vfsd.fs.recovery import Recovered
from vfsd.fs.viewfolders import ViewOffer, ViewSource
from vfsd.fs.wholefile import WholeFile

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
