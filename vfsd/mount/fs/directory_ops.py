"""Creates, removes and renames directory entries with the rules of POSIX."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from vfsd.core.model import FileState, Node
from vfsd.disk.disk_reserve import require_reserve
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import ExistsError
from vfsd.mount.fs.dentry_cache import DentryCache, ForgottenFile, NamePosition, TreeTransaction
from vfsd.mount.fs.open_inodes import OpenInodes
from vfsd.mount.fs.posix import Caller, Place, is_private, os_error
from vfsd.mount.fs.unlinked_files import CleanupThread, HiddenName, HiddenNames

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_TARGET_BYTES = 4095


class DirectoryOperations:
    """Operations on directories and their entries.

    Places are resolved inside the transaction that changes the tree: there the `DentryCache` is
    known to match the catalog.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        names: DentryCache,
        open_inodes: OpenInodes,
        cleanup: CleanupThread,
        hidden_names: HiddenNames,
    ) -> None:
        self._directory = directory
        self._names = names
        self._open_inodes = open_inodes
        self._cleanup = cleanup
        self._hidden_names = hidden_names

    # -- creating

    def mkdir(self, path: Place, mode: int, caller: Caller) -> Node:
        """Create a directory. It inherits set-group-ID from its parent."""
        with self._names.changing() as change:
            position = self._names.position(path)
            inherited = position.parent.mode & stat.S_ISGID
            return self._create(change, position, stat.S_IFDIR | mode & 0o7777 | inherited, caller)

    def mknod(self, path: Place, mode: int, rdev: int, caller: Caller) -> Node:
        """Create a file of any type but a directory. A regular file also gets a private file."""
        if stat.S_IFMT(mode) == stat.S_IFDIR:
            raise os_error(errno.EINVAL)
        if stat.S_IFMT(mode) in (0, stat.S_IFREG):
            node, fd = self.create(path, mode, caller)
            os.close(fd)
            return node
        with self._names.changing() as change:
            return self._create(change, self._names.position(path), mode, caller, rdev=rdev)

    def create(self, path: Place, mode: int, caller: Caller) -> tuple[Node, int]:
        """Create a regular file; return its node and a descriptor of its private file.

        Raises `FileExistsError`.
        """
        node: Node | None = None
        fd = -1
        try:
            with self._names.changing() as change:
                position = self._names.position(path)
                mode = stat.S_IFREG | mode & 0o7777
                node = self._create(change, position, mode, caller, state=FileState.SPOOLED)
                # Before the commit: a committed row always has its private file.
                fd = self._open_inodes.create_private(node.ino)
        except BaseException:
            if node is not None and fd >= 0:
                os.close(fd)
                self._cleanup.discard_inode(node.ino)
            raise
        return node, fd

    def symlink(self, path: Place, target: str, caller: Caller) -> Node:
        """Create a symbolic link. `target` has at most 4095 bytes."""
        if not target:
            raise os_error(errno.ENOENT)
        if len(os.fsencode(target)) > _TARGET_BYTES:
            raise os_error(errno.ENAMETOOLONG)
        with self._names.changing() as change:
            position = self._names.position(path)
            return self._create(change, position, stat.S_IFLNK | 0o777, caller, target=target)

    def link(self, path: Place, new_path: Place) -> Node:
        """Add a name to a file."""
        with self._names.changing() as change:
            node = self._names.resolve(path)
            position = self._names.position(new_path)
            if change.tree.lookup(position.parent.ino, position.name) is not None:
                raise os_error(errno.EEXIST)
            if node.is_dir:
                raise os_error(errno.EPERM)
            if node.nlink == 0:
                raise os_error(errno.ENOENT)
            node = change.tree.link(
                node.ino, position.parent.ino, position.name, now_ns=time.time_ns()
            )
            change.set_name(position.parent.ino, position.name, node.ino)
        return node

    # -- removing

    def rmdir(self, path: Place) -> None:
        """Remove an empty directory."""
        with self._names.changing() as change:
            position = self._names.position(path)
            node = change.node_at(position)
            if not node.is_dir:
                raise os_error(errno.ENOTDIR)
            if not change.tree.is_empty(node.ino):
                raise os_error(errno.ENOTEMPTY)
            change.tree.unlink(position.parent.ino, position.name, now_ns=time.time_ns())
            change.remove_name(position.parent.ino, position.name)
            change.tree.delete(node.ino)
            change.touch(node.ino)

    def unlink(self, path: Place) -> None:
        """Remove a name. A file without names stays while it is open."""
        hidden = self._names.alias(path)
        if hidden is not None:
            self._open_inodes.drop_aliases(hidden)
            return
        with self._names.changing() as change:
            position = self._names.position(path)
            if change.node_at(position).is_dir:
                raise os_error(errno.EISDIR)
            left = change.tree.unlink(position.parent.ino, position.name, now_ns=time.time_ns())
            change.remove_name(position.parent.ino, position.name)
            gone = self._after_unlink(change, left)
        if gone is not None:
            self._cleanup.discard_bytes(gone)

    # -- renaming

    def rename(self, old: Place, new: Place, flags: int) -> None:
        """Rename as in renameat2(2). `flags` may be RENAME_NOREPLACE or RENAME_EXCHANGE."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise os_error(errno.EINVAL)
        if flags == RENAME_EXCHANGE:
            self._exchange(old, new)
        else:
            self._sync_then(lambda synced: self._move(old, new, flags, synced))

    def rename_over_hidden(self, old: Place, new: Place, flags: int, hidden: HiddenName) -> None:
        """Rename onto a name that `hide` has just removed.

        Must be called inside `HiddenNames.replacing`.
        """
        if flags:
            raise os_error(errno.EEXIST)
        self._sync_then(lambda synced: self._move_over_hidden(old, new, hidden, synced))

    def _sync_then(self, move: Callable[[int | None], int | None]) -> None:
        """Call `move`, and sync a private file first where a power failure could lose data.

        `move` receives the inode that has been synced so far. It returns an inode that must be
        synced first, having changed nothing, or None when it has finished. The sync holds no lock.
        """
        synced: int | None = None
        while (ino := move(synced)) is not None:
            with suppress(FileNotFoundError):  # it has just become a video, or was deleted
                self._directory.sync_spooled(ino)
            synced = ino

    def _move(self, old_path: Place, new_path: Place, flags: int, synced: int | None) -> int | None:
        gone: ForgottenFile | None = None
        with self._names.changing() as change:
            old, new = self._names.position(old_path), self._names.position(new_path)
            node = change.node_at(old)
            target = change.tree.lookup(new.parent.ino, new.name)
            if target is not None and flags == RENAME_NOREPLACE:
                raise os_error(errno.EEXIST)
            _require_outside(change, node, new)
            if target is not None:
                if target.ino == node.ino:
                    return None
                _require_replaceable(change, node, target)
                change.require_replaceable(target)
                if node.ino != synced and target.nlink == 1 and _needs_sync(node, target):
                    return node.ino
            replaced = self._rename(change, old, new, node)
            if replaced is not None:
                gone = self._after_unlink(change, replaced)
        if gone is not None:
            self._cleanup.discard_bytes(gone)
        return None

    def _move_over_hidden(
        self, old_path: Place, new_path: Place, hidden: HiddenName, synced: int | None
    ) -> int | None:
        gone: ForgottenFile | None = None
        with self._names.changing() as change:
            old, new = self._names.position(old_path), self._names.position(new_path)
            node = change.node_at(old)
            _require_outside(change, node, new)
            # Another process may have created this name since `hide`.
            target = change.tree.lookup(new.parent.ino, new.name)
            if target is not None:
                _require_replaceable(change, node, target)
                change.require_replaceable(target)
            elif node.is_dir:
                raise os_error(errno.ENOTDIR)
            is_same = target is not None and target.ino == node.ino
            is_back = target is None and node.ino == hidden.ino
            if not is_back and not is_same:
                orphan = change.tree.nodes([hidden.ino]).values() if hidden.is_orphan else ()
                lost = [*orphan, *([target] if target is not None and target.nlink == 1 else [])]
                if node.ino != synced and any(_needs_sync(node, each) for each in lost):
                    return node.ino
                replaced = self._rename(change, old, new, node)
                if replaced is not None:
                    gone = self._after_unlink(change, replaced)
            if is_back:
                # POSIX: a rename between two names of one file leaves both.
                self._hidden_names.restore(change, hidden)
            else:
                self._hidden_names.make_permanent(change, hidden)
        if gone is not None:
            self._cleanup.discard_bytes(gone)
        return None

    def _exchange(self, old_path: Place, new_path: Place) -> None:
        with self._names.changing() as change:
            old, new = self._names.position(old_path), self._names.position(new_path)
            one, other = change.node_at(old), change.node_at(new)
            _require_outside(change, one, new)
            _require_outside(change, other, old)
            if one.ino == other.ino:
                return
            at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
            change.tree.exchange(*at, *to, now_ns=time.time_ns())
            change.set_name(*at, other.ino)
            change.set_name(*to, one.ino)

    def _rename(
        self, change: TreeTransaction, old: NamePosition, new: NamePosition, node: Node
    ) -> Node | None:
        at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
        replaced = change.tree.rename(*at, *to, now_ns=time.time_ns())
        change.remove_name(*at)
        change.set_name(*to, node.ino)
        return replaced

    # -- internals

    def _create(
        self,
        change: TreeTransaction,
        position: NamePosition,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        target: str | None = None,
        state: FileState | None = None,
    ) -> Node:
        require_reserve(self._directory)
        try:
            node = change.tree.create(
                position.parent.ino,
                position.name,
                mode,
                uid=caller.uid,
                gid=position.parent.gid if position.parent.mode & stat.S_ISGID else caller.gid,
                now_ns=time.time_ns(),
                rdev=rdev,
                target=target,
                state=state,
            )
        except ExistsError:
            raise os_error(errno.EEXIST) from None
        change.set_name(position.parent.ino, position.name, node.ino)
        change.new.append(node.ino)
        return node

    def _after_unlink(self, change: TreeTransaction, left: Node) -> ForgottenFile | None:
        """Orphan or delete a file that lost a name. Return it if its bytes can be deleted."""
        change.touch(left.ino)
        if left.nlink > 0:
            return None
        if self._open_inodes.is_open(left.ino) or self._hidden_names.may_be_restored(left.ino):
            change.tree.orphan(left.ino, now_ns=time.time_ns())
            return None
        return change.delete(left)


def _needs_sync(node: Node, target: Node) -> bool:
    """Return whether a power failure could lose both the video `target` and its replacement.

    The catalog row may reach the disk before the private bytes do.
    """
    return is_private(node) and target.state in (FileState.VIDEO, FileState.STORED)


def _require_outside(change: TreeTransaction, node: Node, position: NamePosition) -> None:
    """Raise EINVAL for a move of a directory into itself."""
    if node.is_dir and node.ino in change.tree.ancestors(position.parent.ino):
        raise os_error(errno.EINVAL)


def _require_replaceable(change: TreeTransaction, node: Node, target: Node) -> None:
    if target.is_dir:
        if not node.is_dir:
            raise os_error(errno.EISDIR)
        if not change.tree.is_empty(target.ino):
            raise os_error(errno.ENOTEMPTY)
    elif node.is_dir:
        raise os_error(errno.ENOTDIR)
