"""Names come, go and change places: everything that POSIX says of directories."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from vfsd.errors import ExistsError
from vfsd.fs.attributes import Caller, is_private
from vfsd.fs.contents import Contents
from vfsd.fs.janitor import Janitor
from vfsd.fs.names import Change, Names, Place
from vfsd.fs.posix import failure
from vfsd.model import FileState, Node
from vfsd.reserve import require_reserve
from vfsd.storedir import StoreDirectory

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_HIDING_SECONDS = 0.005
"""How long a hidden name may still turn out to be the first half of a rename over it.

The second half follows in the same call of libfuse.  Longer is worse: a daemon that is killed in
this time has its successor give a file that was unlinked its name back.
"""
_SETTLING_SECONDS = 2 * _HIDING_SECONDS
_TARGET_BYTES = 4095


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A name that was taken from an open file; a rename onto it may follow at once."""

    ino: int
    parent: int
    name: str
    is_orphan: bool  #: it was the last name
    since: float


class Namespace:
    """Directories and what stands in them.

    Paths are looked up inside the transaction that changes something, where the memory of names
    is known to agree with the catalog.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        names: Names,
        contents: Contents,
        janitor: Janitor,
        now: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._names = names
        self._contents = contents
        self._janitor = janitor
        self._now = now
        self._hidden: dict[int, _Hidden] = {}  # by the thread that hid it
        self._unsettled: set[_Hidden] = set()
        self._followed: set[_Hidden] = set()  # by a rename that is under way

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
            node = _require(change, place)
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
        if self._names.drop_alias(path):
            return
        with self._names.changing() as change:
            place = self._names.place(path)
            if _require(change, place).is_dir:
                raise failure(errno.EISDIR)
            left = change.tree.unlink(place.parent.ino, place.name, now_ns=self._now())
            change.leave(place.parent.ino, place.name)
            gone = self._after_unlink(change, left)
        if gone is not None:
            discard_bytes(self._janitor, gone)

    def hide(self, path: str, alias: str) -> None:
        """Take the name of an open file away, as `unlink` does, and let a secret one lead to it.

        `alias` is a name in the same directory, which no listing shows; it goes with the last
        handle, or soon, when there is none.  When the same thread renames another file to the
        name that was taken, at once, both happened as one: see `rename`.
        """
        with self._names.changing() as change:
            place = self._names.place(path)
            if _require(change, place).is_dir:
                raise failure(errno.EISDIR)
            now = self._now()
            at = (place.parent.ino, place.name)
            left = change.tree.unlink(*at, now_ns=now)
            if left.nlink == 0:
                change.tree.orphan(left.ino, now_ns=now, former=at)
            change.leave(*at)
            change.touch(left.ino)
        self._names.set_alias(place.parent.ino, alias, left.ino)
        hidden = _Hidden(left.ino, *at, left.nlink == 0, time.monotonic())
        self._hidden[threading.get_ident()] = hidden
        self._unsettled.add(hidden)
        self._janitor.later(_SETTLING_SECONDS, lambda: self._let_go(hidden))

    # -- changing places

    def rename(self, old: str, new: str, flags: int) -> None:
        """See renameat2(2); `flags` may be RENAME_NOREPLACE or RENAME_EXCHANGE."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise failure(errno.EINVAL)
        hidden = self._hidden.pop(threading.get_ident(), None)
        if hidden is not None and not self._goes_with(hidden, new):
            hidden = None
        if hidden is not None:
            self._followed.add(hidden)
        try:
            if flags == RENAME_EXCHANGE:
                self._exchange(old, new)
            elif hidden is None:
                self._with_synced(lambda synced: self._move(old, new, flags, synced))
            elif flags == RENAME_NOREPLACE:
                raise failure(errno.EEXIST)
            else:
                self._with_synced(lambda synced: self._move_over_hidden(old, new, hidden, synced))
        except BaseException:
            if hidden is not None:
                self._unhide(hidden)
            raise
        finally:
            if hidden is not None:
                self._followed.discard(hidden)

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
        gone: Node | None = None
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            node = _require(change, old)
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
            discard_bytes(self._janitor, gone)
        return None

    def _move_over_hidden(
        self, old_path: str, new_path: str, hidden: _Hidden, synced: int | None
    ) -> int | None:
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            node = _require(change, old)
            if node.is_dir:
                raise failure(errno.ENOTDIR)
            is_same = node.ino == hidden.ino
            if not is_same:
                target = change.tree.nodes([hidden.ino]).get(hidden.ino)
                if node.ino != synced and hidden.is_orphan and _is_risked(node, target):
                    return node.ino
                self._rename(change, old, new, node)
                if hidden.is_orphan:
                    change.tree.settle_orphan(hidden.ino)
        if is_same:
            self._unhide(hidden)  # of two names of one file, a rename leaves both
        return None

    def _exchange(self, old_path: str, new_path: str) -> None:
        with self._names.changing() as change:
            old, new = self._names.place(old_path), self._names.place(new_path)
            one, other = _require(change, old), _require(change, new)
            _require_outside(one, new)
            _require_outside(other, old)
            if one.ino == other.ino:
                return
            at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
            change.tree.exchange(*at, *to, now_ns=self._now())
            change.enter(*at, other.ino)
            change.enter(*to, one.ino)

    def _rename(self, change: Change, old: Place, new: Place, node: Node) -> Node | None:
        at, to = (old.parent.ino, old.name), (new.parent.ino, new.name)
        replaced = change.tree.rename(*at, *to, now_ns=self._now())
        change.leave(*at)
        change.enter(*to, node.ino)
        return replaced

    # -- hidden names

    def settle(self) -> None:
        """Return when no name that was taken until now would come back after a crash."""
        for hidden in tuple(self._unsettled):
            time.sleep(max(0.0, hidden.since + _HIDING_SECONDS - time.monotonic()))
            self._let_go(hidden)

    def _goes_with(self, hidden: _Hidden, new_path: str) -> bool:
        if time.monotonic() - hidden.since > _HIDING_SECONDS:
            return False
        new = self._names.place(new_path)
        return (hidden.parent, hidden.name) == (new.parent.ino, new.name)

    def _let_go(self, hidden: _Hidden) -> None:
        """It was an unlink, or the rename has followed.

        The last handle may have gone before the name did; then this is the file's end.  May be
        called twice.
        """
        if hidden in self._followed:  # the rename may take its time, and may fail
            self._janitor.later(_SETTLING_SECONDS, lambda: self._let_go(hidden))
            return
        if not self._contents.is_open(hidden.ino):
            self._names.drop_aliases(hidden.ino)
        if hidden.is_orphan:
            self._end_orphan(hidden)
        self._unsettled.discard(hidden)

    def _end_orphan(self, hidden: _Hidden) -> None:
        gone: Node | None = None
        with self._names.changing() as change:
            node = change.tree.nodes([hidden.ino]).get(hidden.ino)
            if node is None or node.nlink > 0:
                return
            if self._contents.is_open(node.ino):
                change.tree.settle_orphan(node.ino)
            else:
                gone = node
                change.tree.delete(node.ino)
                change.touch(node.ino)
        if gone is not None:
            discard_bytes(self._janitor, gone)

    def _unhide(self, hidden: _Hidden) -> None:
        """The rename that followed has failed; everything shall be as before."""
        with self._names.changing() as change:
            if hidden.ino not in change.tree.nodes([hidden.ino]):
                return  # nobody had it open any more
            give_back = change.tree.adopt_orphan if hidden.is_orphan else change.tree.link
            give_back(hidden.ino, hidden.parent, hidden.name, now_ns=self._now())
            change.enter(hidden.parent, hidden.name, hidden.ino)

    # -- inside

    def _create(
        self,
        change: Change,
        place: Place,
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

    def _after_unlink(self, change: Change, left: Node) -> Node | None:
        """Returns the node when it is gone for good, and its bytes may go."""
        change.touch(left.ino)
        if left.nlink > 0:
            return None
        if self._contents.is_open(left.ino):
            change.tree.orphan(left.ino, now_ns=self._now())
            return None
        change.tree.delete(left.ino)
        return left


def discard_bytes(janitor: Janitor, node: Node) -> None:
    """Let the bytes of a node go whose row is gone."""
    if not node.is_file:
        return
    if node.object_key is not None:
        janitor.discard_object(node.object_key)
    elif node.link_path is None:
        janitor.discard_inode(node.ino)


def _is_risked(node: Node, target: Node | None) -> bool:
    """Whether a power cut could leave nothing of a video, `target`, nor of what took its place.

    The row may be on the disk before the private bytes are, and nothing holds those of the video.
    """
    return is_private(node) and target is not None and target.state is FileState.VIDEO


def _require(change: Change, place: Place) -> Node:
    node = change.tree.lookup(place.parent.ino, place.name)
    if node is None:
        raise failure(errno.ENOENT)
    return node


def _require_outside(node: Node, place: Place) -> None:
    """A directory cannot be moved into itself."""
    if node.ino in place.above:
        raise failure(errno.EINVAL)


def _require_replaceable(change: Change, node: Node, target: Node) -> None:
    if target.is_dir:
        if not node.is_dir:
            raise failure(errno.EISDIR)
        if not change.tree.is_empty(target.ino):
            raise failure(errno.ENOTEMPTY)
    elif node.is_dir:
        raise failure(errno.ENOTDIR)
