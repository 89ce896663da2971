"""How requests refer to files, attributes as `stat` returns them, and system calls that Python's
`os` lacks.

Adapters that know only paths use text. Adapters that know inodes use the other forms of a `Place`,
which stay valid when a directory above is renamed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vfsd.core.model import FileState, Node

BLOCK = 512
"""Unit of `Attributes.blocks` in bytes, independent of the block size of the disk."""
FIRST_VIEW_INO = 1 << 63
"""The smallest inode number of a view. Those of real files are far below."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_FICLONE = 0x40049409
_CHUNK = 1 << 20
_UNSUPPORTED = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENOTTY,
    errno.EBADF,
)


class Caller(NamedTuple):
    """User and group of the process that made a request."""

    uid: int
    gid: int

    @property
    def is_privileged(self) -> bool:
        return self.uid == 0


class Attributes(NamedTuple):
    """The fields of `os.stat_result`. Times are Unix time in nanoseconds, `size` is in bytes."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int

    @property
    def is_view(self) -> bool:
        """Whether these describe a path below ``NAME@/``."""
        return self.ino >= FIRST_VIEW_INO


@dataclass(frozen=True)
class ViewPath:
    """A path in ``NAME@/``, whether or not a view exists there."""

    video: Node  #: or the directory of a timeline
    path: str

    @cached_property
    def ino(self) -> int:
        """A stable inode number, different from those of real files."""
        text = os.fsencode(f"{self.video.ino}/{self.path}")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest) | FIRST_VIEW_INO

    def child(self, name: str) -> ViewPath:
        """Return the path of an entry of this view directory."""
        return ViewPath(self.video, f"{self.path}/{name}" if self.path else name)


class EntryName(NamedTuple):
    """A name in a directory, whether or not it exists."""

    parent: int | ViewPath  #: the directory, by inode number or as a view directory
    name: str


Place = str | int | ViewPath | EntryName
"""A path, the number of an inode, a view, or a name in a directory."""


def last_name(place: Place) -> str:
    """Return the last name of a place; empty for an inode."""
    if isinstance(place, str):
        return place.rpartition("/")[2]
    if isinstance(place, ViewPath):
        return place.path.rpartition("/")[2]
    return place.name if isinstance(place, EntryName) else ""


def block_count(size: int) -> int:
    """Return the number of blocks for `size` bytes without holes."""
    return -(-size // BLOCK)


def is_private(node: Node) -> bool:
    """Return whether the bytes are in the node's own spool file, which has the valid size and
    mtime."""
    return node.state is FileState.SPOOLED or node.state is FileState.PLAIN


def from_row(node: Node) -> Attributes:
    """Return the attributes of a node without private file: a video, directory, link or device."""
    return Attributes(
        node.ino,
        node.mode,
        node.nlink,
        node.uid,
        node.gid,
        node.rdev,
        node.size,
        0 if stat.S_ISDIR(node.mode) else block_count(node.size),
        node.atime_ns,
        node.mtime_ns,
        node.ctime_ns,
    )


def from_private(node: Node, found: os.stat_result, ctime_ns: int | None = None) -> Attributes:
    """Return the attributes of a node with a private file; `found` is the `stat` of that file.

    `ctime_ns` replaces the ctime of the private file, if given.
    """
    return Attributes(
        node.ino,
        node.mode,
        node.nlink,
        node.uid,
        node.gid,
        node.rdev,
        found.st_size,
        found.st_blocks,
        node.atime_ns,
        found.st_mtime_ns,
        max(node.ctime_ns, found.st_ctime_ns if ctime_ns is None else ctime_ns),
    )


_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def os_error(code: int) -> OSError:
    """Return the `OSError` for an errno."""
    return OSError(code, os.strerror(code))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2). Raises `OSError`."""
    if _LIBC.fallocate(fd, mode, offset, length) != 0:
        raise os_error(ctypes.get_errno())


def copy_start(source: int, target: int, length: int) -> None:
    """Copy the first `length` bytes of `source` into the empty file `target`.

    Both are descriptors. Blocks are shared where the disk supports it. A shorter source is copied
    completely.
    """
    if length == os.fstat(source).st_size:
        try:
            fcntl.ioctl(target, _FICLONE, source)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    at = _copy_in_kernel(source, target, length)
    while at < length:
        chunk = os.pread(source, min(_CHUNK, length - at), at)
        if not chunk:
            return
        view = memoryview(chunk)
        while view:
            written = os.pwrite(target, view, at)
            view, at = view[written:], at + written


def _copy_in_kernel(source: int, target: int, length: int) -> int:
    """Copy with copy_file_range(2); return how many bytes it copied, possibly 0."""
    at = 0
    try:
        while at < length:
            copied = os.copy_file_range(source, target, min(1 << 30, length - at), at, at)
            if copied == 0:
                break
            at += copied
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return at
