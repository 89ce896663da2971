"""`Attributes` (the result of `stat`) and `Caller`. Also converts catalog rows to attributes."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from vfsd.core.model import FileState, Node

BLOCK = 512
"""Unit of `Attributes.blocks` in bytes, independent of the block size of the disk."""


FIRST_VIEW_INO = 1 << 63
"""The smallest inode number of a view. Those of real files are far below."""


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
