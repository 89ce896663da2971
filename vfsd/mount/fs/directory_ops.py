"""Names come, go and change places: everything that POSIX says of directories."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from vfsd.core.model import FileState, Node
from vfsd.disk.disk_reserve import require_reserve
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import ExistsError
from vfsd.mount.fs.attributes import Caller, is_private
from vfsd.mount.fs.deferred_cleanup import CleanupThread
from vfsd.mount.fs.dentry_cache import DentryCache, ForgottenFile, NamePosition, TreeTransaction
from vfsd.mount.fs.open_inodes import OpenInodes
from vfsd.mount.fs.silly_rename import HiddenName, HiddenNames
from vfsd.mount.fs.syscalls import failure

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_TARGET_BYTES = 4095


class DirectoryOperations:
    """Directories and what stands in them.

    Paths are looked up inside the transaction that changes something, where the memory of names
    is known to agree with the catalog.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        names: DentryCache,
        contents: OpenInodes,
        janitor: CleanupThread,
        hidden_names: HiddenNames,
        now: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._names = names
        self._contents = contents
        self._janitor = janitor
        self._now = now
        self._hidden_names = hidden_names

    # -- coming

    def mkdir(self, path: str, mode: int, caller: Caller) -> Node:
        with self._names.changing() as change:
            place = self._names.place(path)
            inherited = place.parent.mode & stat.S_ISGID
            return self._create(change, place, stat.S_IFDIR | mode & 0o7777 | inherited, caller)

    def mknod(self, path: str, mode: int, rdev: int, caller: Caller) -> Node:
        """A file of any kind but a directory; of a regular one the bytes are made, too."""
        if stat.S_IFMT(mode) == stat.S_IFDIR:
            raise failure(errno.EINVAL)
        if stat.S_IFMT(mode) in (0, stat.S_IFREG):
            node, fd = self.create(path, mode, caller)
            os.close(fd)
            return node
        with self._names.changing() as change:
            return self._create(change, self._names.place(path), mode, caller, rdev=rdev)

    def create(self, path: str, mode: int, caller: Caller) -> tuple[Node, int]:
        """A new regular file, and a descriptor of its private bytes.

        Raises `FileExistsError`.
        """
        node: Node | None = None
        fd = -1
        try:
            with self._names.changing() as change:
                place = self._names.place(path)
                mode = stat.S_IFREG | mode & 0o7777
                node = self._create(change, place, mode, caller, state=FileState.SPOOLED)
                fd = self._contents.create_private(node.ino)
        except BaseException:
            if node is not None and fd >= 0:
                os.close(fd)
                self._janitor.discard_inode(node.ino)
            raise
        return node, fd

    def symlink(self, path: str, target: str, caller: Caller) -> Node:
        if not target:
            raise failure(errno.ENOENT)
        if len(os.fsencode(target)) > _TARGET_BYTES:
            raise failure(errno.ENAMETOOLONG)
        with self._names.changing() as change:
            place = self._names.place(path)
            return self._create(change, place, stat.S_IFLNK | 0o777, caller, target=target)

    def link(self, path: str, new_path: str) -> Node:
        """One more name for a file."""
        with self._names.changing() as change:
            node = self._names.resolve(path)
            place = self._names.place(new_path)
            if change.tree.lookup(place.parent.ino, place.name) is not None:
                raise failure(errno.EEXIST)
            if node.is_dir:
                raise failure(errno.EPERM)
            if node.nlink == 0:
                raise failure(errno.ENOENT)
            node = change.tree.link(node.ino, place.parent.ino, place.name, now_ns=self._now())
            change.enter(place.parent.ino, place.name, node.ino)
        return node

    # -- going

    def rmdir(self, path: str) -> None:
        with self._names.changing() as change:
            place = self._names.place(path)
            node = change.node_at(place)
            if not node.is_dir:
                raise failure(errno.ENOTDIR)
            if not change.tree.is_empty(node.ino):
                raise failure(errno.ENOTEMPTY)
            change.tree.unlink(place.parent.ino, place.name, now_ns=self._now())
            change.leave(place.parent.ino, place.name)
            change.tree.delete(node.ino)
            change.touch(node.ino)

    def unlink(self, path: str) -> None:
        """Take a file's name away; a file without names stays while somebody has it open."""
        hidden = self._names.alias(path)
        if hidden is not None:
            self._contents.drop_aliases(hidden)
            return
        with self._names.changing() as change:
            place = self._names.place(path)
            if change.node_at(place).is_dir:
                raise failure(errno.EISDIR)
            left = change.tree.unlink(place.parent.ino, place.name, now_ns=self._now())
            change.leave(place.parent.ino, place.name)
            gone = self._after_unlink(change, left)
        if gone is not None:
            self._janitor.discard_bytes(gone)

    # -- changing places

    def rename(self, old: str, new: str, flags: int) -> None:
        """See renameat2(2); `flags` may be RENAME_NOREPLACE or RENAME_EXCHANGE."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise failure(errno.EINVAL)
        if flags == RENAME_EXCHANGE:
            self._exchange(old, new)
        else:
            self._with_synced(lambda synced: self._move(old, new, flags, synced))

    def rename_over_hidden(self, old: str, new: str, flags: int, hidden: HiddenName) -> None:
        """The same, where what was at `new` has just been `hidden`; for use in a block of
        `HiddenNames.followed_by`."""
        if flags:
            raise failure(errno.EEXIST)
        self._with_synced(lambda synced: self._move_over_hidden(old, new, hidden, synced))

    def _with_synced(self, move: Callable[[int | None], int | None]) -> None:
        """Move a file, which may have to be on the disk before it takes the place of another.

        `move` is told which inode is there; it returns another one, and has done nothing, where
        that has to be there first.  Nobody else waits meanwhile.
        """
        synced: int | None = None
        while (ino := move(synced)) is not None:
            with suppress(FileNotFoundError):  # it has just become a video, and is there, or went
                self._directory.sync_spooled(ino)
            synced = ino

    def _move(self, old_path: str, new_path: str, flags: int, synced: int | None) -> int | None:
        gone: ForgottenFile | None = None
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            node = change.node_at(old)
            target = change.tree.lookup(new.parent.ino, new.name)
            if target is not None and flags == RENAME_NOREPLACE:
                raise failure(errno.EEXIST)
            _require_outside(node, new)
            if target is not None:
                if target.ino == node.ino:
                    return None
                _require_replaceable(change, node, target)
                if node.ino != synced and target.nlink == 1 and _is_risked(node, target):
                    return node.ino
            replaced = self._rename(change, old, new, node)
            if replaced is not None:
                gone = self._after_unlink(change, replaced)
        if gone is not None:
            self._janitor.discard_bytes(gone)
        return None

    def _move_over_hidden(
        self, old_path: str, new_path: str, hidden: HiddenName, synced: int | None
    ) -> int | None:
        gone: ForgottenFile | None = None
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            node = change.node_at(old)
            _require_outside(node, new)
            # Another process may have put something there since.
            there = change.tree.lookup(new.parent.ino, new.name)
            if there is not None:
                _require_replaceable(change, node, there)
            elif node.is_dir:
                raise failure(errno.ENOTDIR)
            is_same = there is not None and there.ino == node.ino
            is_back = there is None and node.ino == hidden.ino
            if not is_back and not is_same:
                hit = change.tree.nodes([hidden.ino]).values() if hidden.is_orphan else ()
                lost = [*hit, *([there] if there is not None and there.nlink == 1 else [])]
                if node.ino != synced and any(_is_risked(node, each) for each in lost):
                    return node.ino
                replaced = self._rename(change, old, new, node)
                if replaced is not None:
                    gone = self._after_unlink(change, replaced)
            if is_back:
                # Of two names of one file, a rename leaves both.
                self._hidden_names.restore(change, hidden)
            else:
                self._hidden_names.forgo(change, hidden)
        if gone is not None:
            self._janitor.discard_bytes(gone)
        return None

    def _exchange(self, old_path: str, new_path: str) -> None:
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            one, other = change.node_at(old), change.node_at(new)
            _require_outside(one, new)
            _require_outside(other, old)
            if one.ino == other.ino:
                return
            at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
            change.tree.exchange(*at, *to, now_ns=self._now())
            change.enter(*at, other.ino)
            change.enter(*to, one.ino)

    def _rename(
        self, change: TreeTransaction, old: NamePosition, new: NamePosition, node: Node
    ) -> Node | None:
        at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
        replaced = change.tree.rename(*at, *to, now_ns=self._now())
        change.leave(*at)
        change.enter(*to, node.ino)
        return replaced

    # -- inside

    def _create(
        self,
        change: TreeTransaction,
        place: NamePosition,
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
                place.parent.ino,
                place.name,
                mode,
                uid=caller.uid,
                gid=place.parent.gid if place.parent.mode & stat.S_ISGID else caller.gid,
                now_ns=self._now(),
                rdev=rdev,
                target=target,
                state=state,
            )
        except ExistsError:
            raise failure(errno.EEXIST) from None
        change.enter(place.parent.ino, place.name, node.ino)
        change.new.append(node.ino)
        return node

    def _after_unlink(self, change: TreeTransaction, left: Node) -> ForgottenFile | None:
        """Returns the file when it is gone for good, and its bytes may go."""
        change.touch(left.ino)
        if left.nlink > 0:
            return None
        if self._contents.is_open(left.ino) or self._hidden_names.may_come_back(left.ino):
            change.tree.orphan(left.ino, now_ns=self._now())
            return None
        return change.delete(left)


def _is_risked(node: Node, target: Node) -> bool:
    """Whether a power cut could leave nothing of a video, `target`, nor of what took its place.

    The row may be on the disk before the private bytes are, and nothing holds those of the video.
    """
    return is_private(node) and target.state is FileState.VIDEO


def _require_outside(node: Node, place: NamePosition) -> None:
    """A directory cannot be moved into itself."""
    if node.ino in place.above:
        raise failure(errno.EINVAL)


def _require_replaceable(change: TreeTransaction, node: Node, target: Node) -> None:
    if target.is_dir:
        if not node.is_dir:
            raise failure(errno.EISDIR)
        if not change.tree.is_empty(target.ino):
            raise failure(errno.ENOTEMPTY)
    elif node.is_dir:
        raise failure(errno.ENOTDIR)
