"""Names that were taken from open files, while a rename onto them may still follow.

Who knows files by path only, as libfuse does, gives an open file a secret name before its own is
taken away.  So a rename over an open file comes in two steps: the name is hidden, and at once the
other file gets it.  Here the two become one: a file that loses its last name in this way gets it
back where the rename fails, however late that comes.  And for a moment the catalog remembers the
name, and gives it back where the process dies in between.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from vfsd.fs.contents import Contents
from vfsd.fs.janitor import Janitor
from vfsd.fs.names import Gone, Names
from vfsd.fs.posix import failure

_SETTLING_SECONDS = 0.05
"""How long a crash gives a hidden name back.

The second half of a rename follows in the same call of libfuse, and waits for nothing but its turn.
Longer is worse: a daemon that is killed in this time has its successor give a file that was
unlinked its name back.
"""
_SYNCED_SECONDS = 0.005
"""The same, where somebody waits until that is over."""


@dataclass(frozen=True, slots=True)
class HiddenName:
    """A name that was taken from an open file, and that a rename may give to another."""

    ino: int  #: of the file
    parent: int  #: inode number of the directory that the name stood in
    name: str
    is_orphan: bool  #: it was the last name
    since: float  #: when it was taken, by `time.monotonic`


class HiddenNames:
    """The names that were hidden a moment ago.  Thread-safe."""

    def __init__(
        self, names: Names, contents: Contents, janitor: Janitor, now: Callable[[], int]
    ) -> None:
        self._names = names
        self._contents = contents
        self._janitor = janitor
        self._now = now
        self._unsettled: set[HiddenName] = set()
        self._ending: set[HiddenName] = set()  # of these, what will not come back
        self._followed: set[HiddenName] = set()  # by a rename that is under way

    def hide(self, path: str, alias: str) -> HiddenName:
        """Take the name of an open file away, as `unlink` does, and let a secret one lead to it.

        `alias` is a name in the same directory, which no listing shows; it goes with the last
        handle, or soon, when there is none.  With what is returned a rename of another file to
        the name that was taken makes the two one: see `followed_by`.
        """
        with ExitStack() as undoing:
            with self._names.changing() as change:
                place = self._names.place(path)
                if change.node_at(place).is_dir:
                    raise failure(errno.EISDIR)
                now = self._now()
                at = (place.parent.ino, place.name)
                left = change.tree.unlink(*at, now_ns=now)
                if left.nlink == 0:
                    change.tree.orphan(left.ino, now_ns=now, former=at)
                change.leave(*at)
                change.touch(left.ino)
                hidden = HiddenName(left.ino, *at, left.nlink == 0, time.monotonic())
                self._unsettled.add(hidden)  # before anybody sees that it has lost its name
                undoing.callback(self._unsettled.discard, hidden)
            undoing.pop_all()
        self._names.set_alias(place.parent.ino, alias, left.ino)
        self._janitor.later(_SETTLING_SECONDS, lambda: self._let_go(hidden))
        return hidden

    def may_come_back(self, ino: int) -> bool:
        """Whether a file may still get back the last name that it has lost.

        Whoever closes it leaves its end to us.
        """
        return any(hidden.ino == ino for hidden in self._unsettled - self._ending)

    @contextmanager
    def followed_by(self, hidden: HiddenName) -> Iterator[None]:
        """For a block that gives the name to another file: it is given back where that fails."""
        self._followed.add(hidden)
        try:
            yield
        except BaseException:
            self.give_back(hidden)
            raise
        finally:
            self._followed.discard(hidden)

    def give_back(self, hidden: HiddenName) -> None:
        """Let the file have its name again: the rename has failed, or was to change nothing.

        Not where another process has given that to something else, which has replaced the file
        then, or where there is no file any more, or no directory.
        """
        with self._names.changing() as change:
            there = change.tree.nodes([hidden.ino, hidden.parent])
            is_free = change.tree.lookup(hidden.parent, hidden.name) is None
            if len(there) < 2 or not is_free:
                return
            is_orphan = there[hidden.ino].nlink == 0  # it may have lost its other names since
            give_back = change.tree.adopt_orphan if is_orphan else change.tree.link
            give_back(hidden.ino, hidden.parent, hidden.name, now_ns=self._now())
            change.enter(hidden.parent, hidden.name, hidden.ino)
        self._forget(hidden)

    def settle(self) -> None:
        """Return when no name that was taken until now would come back after a crash."""
        for hidden in tuple(self._unsettled):
            time.sleep(max(0.0, hidden.since + _SYNCED_SECONDS - time.monotonic()))
            self._let_go(hidden)

    def _let_go(self, hidden: HiddenName) -> None:
        """It was an unlink, or the rename has followed.

        The last handle may have gone before the name did; then this is the file's end.  May be
        called twice, and also for a name that was given back: it may be hidden once more by now.
        """
        if hidden not in self._unsettled:
            return
        if hidden in self._followed:  # the rename may take its time, and may fail
            self._janitor.later(_SETTLING_SECONDS, lambda: self._let_go(hidden))
            return
        self._end_orphan(hidden)
        self._forget(hidden)

    def _forget(self, hidden: HiddenName) -> None:
        if not self._contents.is_open(hidden.ino):
            self._names.drop_aliases(hidden.ino)
        self._unsettled.discard(hidden)
        self._ending.discard(hidden)

    def _end_orphan(self, hidden: HiddenName) -> None:
        """Unless it has a name: it may also have lost its others since."""
        gone: Gone | None = None
        with self._names.changing() as change:
            self._ending.add(hidden)  # whoever closes the file after this ends it
            node = change.tree.nodes([hidden.ino]).get(hidden.ino)
            if node is None or node.nlink > 0:
                return
            if self._contents.is_open(node.ino):
                change.tree.settle_orphan(node.ino)
            else:
                gone = change.delete(node)
        if gone is not None:
            self._janitor.discard_bytes(gone)
