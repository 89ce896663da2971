"""What `stat` says of a file."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from vfsd.core.model import FileState, Node

BLOCK = 512
"""Unit of `Attributes.blocks`, whatever the disk's is."""


OF_VIEWS = 1 << 63
"""The least inode number of a view; those of real files are far below."""


class Caller(NamedTuple):
    """On whose behalf something happens."""

    uid: int
    gid: int

    @property
    def is_privileged(self) -> bool:
        return self.uid == 0


class Attributes(NamedTuple):
    """As in `os.stat_result`; times are Unix time in nanoseconds."""

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
        """Whether it is of something below ``NAME@/``."""
        return self.ino >= OF_VIEWS


def blocks_of(size: int) -> int:
    """How many blocks that many bytes take where there are no holes."""
    return -(-size // BLOCK)


def is_private(node: Node) -> bool:
    """Whether the bytes lie in a file of the node's own, whose size and mtime are the truth."""
    return node.state is FileState.SPOOLED or node.state is FileState.PLAIN


def of_row(node: Node) -> Attributes:
    """Of everything whose row tells all: videos, directories, links, devices."""
    return Attributes(
        node.ino,
        node.mode,
        node.nlink,
        node.uid,
        node.gid,
        node.rdev,
        node.size,
        0 if stat.S_ISDIR(node.mode) else blocks_of(node.size),
        node.atime_ns,
        node.mtime_ns,
        node.ctime_ns,
    )


def of_private(node: Node, found: os.stat_result, ctime_ns: int | None = None) -> Attributes:
    """Of a file that is no video (yet), of which `found` describes the bytes.

    `ctime_ns` is to be shown instead of when the bytes' own file was last changed.
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
