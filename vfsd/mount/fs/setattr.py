"""What is known of a file besides its bytes and names: mode, owner, times."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from vfsd.core.model import Node
from vfsd.mount.fs.attributes import is_private
from vfsd.mount.fs.dentry_cache import Change, Names
from vfsd.mount.fs.handles import without_setid
from vfsd.mount.fs.open_inodes import CAPABILITIES, Contents
from vfsd.mount.fs.syscalls import failure
from vfsd.storage.context import Parts

_LATEST_NS = (1 << 63) - 1


class Metadata:
    """Changes of attributes.  Who may make them is the kernel's business."""

    def __init__(
        self, parts: Parts, names: Names, contents: Contents, now: Callable[[], int]
    ) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._now = now

    def chmod(self, ino: int, mode: int) -> None:
        with self._names.changing() as change:
            node = self._node(change, ino)
            mode = stat.S_IFMT(node.mode) | mode & 0o7777
            change.tree.alter(ino, mode=mode, ctime_ns=self._now())
        content = self._contents.peek(ino)
        if content is not None:
            content.setid = bool(mode & 0o6000)

    def chown(self, ino: int, uid: int | None, gid: int | None) -> None:
        """None leaves the owner or the group as it is."""
        with self._names.changing() as change:
            node = self._node(change, ino)
            change.tree.alter(
                ino,
                uid=node.uid if uid is None else uid,
                gid=node.gid if gid is None else gid,
                mode=node.mode if node.is_dir else without_setid(node.mode),
                ctime_ns=self._now(),
            )
            if node.is_file:
                change.remove_xattr(ino, CAPABILITIES)

    def utimens(self, ino: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Unix time in nanoseconds; None leaves a time as it is.

        Between 1678 and 2262, as there are 64 bits: others become the first or the last of these,
        as on disks with narrower limits.
        """
        atime_ns, mtime_ns = _within_limits(atime_ns), _within_limits(mtime_ns)
        with self._names.changing() as change:
            node = self._node(change, ino)
            new_atime = node.atime_ns if atime_ns is None else atime_ns
            changes = {"atime_ns": new_atime, "ctime_ns": self._now()}
            if mtime_ns is not None:
                changes["mtime_ns"] = mtime_ns
                if is_private(node):
                    path = self._parts.directory.spool_file(ino)
                    os.utime(path, ns=(new_atime, mtime_ns))
            change.tree.alter(ino, **changes)

    def _node(self, change: Change, ino: int) -> Node:
        change.touch(ino)
        node = change.tree.nodes([ino]).get(ino)
        if node is None:
            raise failure(errno.ENOENT)
        return node


def _within_limits(time_ns: int | None) -> int | None:
    return None if time_ns is None else min(max(time_ns, -_LATEST_NS), _LATEST_NS)
