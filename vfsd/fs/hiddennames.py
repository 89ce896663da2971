"""Names that were taken from open files, while a rename onto them may still follow.

Who knows files by path only, as libfuse does, gives an open file a secret name before its own is
taken away.  So a rename over an open file comes in two steps: the name is hidden, and at once the
other file gets it.  Here the two become one: a file that loses its last name in this way gets it
back where the rename fails.  Where the catalog does not take that, as on a full disk, it is tried
again until it does, if need be by the next mount.  And for a moment the catalog remembers the name,
and gives it back where the process dies in between.

However late the rename fails: the file is kept as long as somebody has it open, and for a second in
any case.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from vfsd.fs.contents import Contents
from vfsd.fs.janitor import Janitor
from vfsd.fs.judging import Judging
from vfsd.fs.names import Change, Gone, Names
from vfsd.fs.posix import failure
from vfsd.parts import Parts

_SETTLING_SECONDS = 0.05
"""How long a crash gives a hidden name back.

The second half of a rename follows in the same call of libfuse, and waits for nothing but its turn.
Longer is worse: a daemon that is killed in this time has its successor give a file that was
unlinked its name back.
"""
_SYNCED_SECONDS = 0.005
"""The same, where somebody waits until that is over."""
_COMING_SECONDS = 1.0
"""How long a rename that fails gives its name back to a file that nobody has open any more.

So long an unlinked file takes up its room, unless somebody needs that.
"""
_AGAIN_SECONDS, _DOUBLINGS = 1.0, 5
"""What could not be written down is tried again so much later, and then after twice as long, up to
half a minute."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HiddenName:
    """A name that was taken from an open file, and that a rename may give to another."""

    ino: int  #: of the file
    parent: int  #: inode number of the directory that the name stood in
    name: str
    is_orphan: bool  #: it was the last name
    since: float  #: when it was taken, by `time.monotonic`


class HiddenNames:
    """The names that were hidden a moment ago, and the end of files without any.  Thread-safe.

    Who closes a file that may come back leaves its end to us.  So whenever a name ceases to keep
    its file, it is seen after that whether the file is still open; if not, it ends here.
    """

    def __init__(
        self,
        parts: Parts,
        names: Names,
        contents: Contents,
        judging: Judging,
        janitor: Janitor,
        now: Callable[[], int],
    ) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._judging = judging
        self._janitor = janitor
        self._now = now
        self._unsettled: set[HiddenName] = set()  # which a crash gives back
        # Which keep their files:
        self._coming: set[HiddenName] = set()  # a rename may come
        self._followed: set[HiddenName] = set()  # by a rename that is under way
        self._owed: set[HiddenName] = set()  # it has failed, and they are to be given back

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
                hidden = HiddenName(left.ino, *at, left.nlink == 0, time.monotonic())
                # Before anybody sees that it has lost its name.
                if hidden.is_orphan:
                    self._unsettled.add(hidden)
                    undoing.callback(self._unsettled.discard, hidden)
                self._coming.add(hidden)
                undoing.callback(self._coming.discard, hidden)
                if hidden.is_orphan:
                    change.tree.orphan(left.ino, now_ns=now, former=at)
                change.leave(*at)
                change.touch(left.ino)
            undoing.pop_all()
        self._names.set_alias(place.parent.ino, alias, left.ino)
        self._janitor.later(_SETTLING_SECONDS, lambda: self._try(self._settle, hidden))
        self._janitor.later(_COMING_SECONDS, lambda: self._try(self._let_go, hidden))
        return hidden

    @contextmanager
    def followed_by(self, hidden: HiddenName) -> Iterator[None]:
        """For a block that gives the name to another file: it is given back where that fails."""
        self._followed.add(hidden)
        try:
            yield
        except BaseException:
            self._owed.add(hidden)
            self._followed.discard(hidden)
            self._try(self._let_go, hidden)
            raise
        self._coming.add(hidden)
        self._unsettled.discard(hidden)
        self._followed.discard(hidden)
        self._janitor.later(0.0, lambda: self._try(self._let_go, hidden))

    def may_come_back(self, ino: int) -> bool:
        """Whether a file may still get back a name that it has lost."""
        kept = self._coming | self._followed | self._owed
        return any(hidden.ino == ino for hidden in kept)

    def restore(self, change: Change, hidden: HiddenName) -> None:
        """Let the file have its name again: the rename has failed, or was to change nothing.

        Not where another process has given that to something else, which has replaced the file
        then, or where there is no file any more, or no directory.
        """
        there = change.tree.nodes([hidden.ino, hidden.parent])
        is_free = change.tree.lookup(hidden.parent, hidden.name) is None
        if len(there) == 2 and is_free:
            is_orphan = there[hidden.ino].nlink == 0  # it may have lost its other names since
            give_back = change.tree.adopt_orphan if is_orphan else change.tree.link
            give_back(hidden.ino, hidden.parent, hidden.name, now_ns=self._now())
            change.enter(hidden.parent, hidden.name, hidden.ino)
        elif hidden.is_orphan:
            change.tree.settle_orphan(hidden.ino)

    def settle(self) -> None:
        """Return when no name that was taken until now would come back after a crash."""
        for hidden in tuple(self._unsettled):
            _wait_for_rename(hidden)
            self._settle(hidden)

    def end(self, ino: int) -> None:
        """Delete a file that has lost its names, unless somebody has it open or it may come back.

        To be called for a file that is not open.
        """
        self._names.drop_aliases(ino)
        if self.may_come_back(ino):
            return
        gone = self._parts.with_reserve(lambda: self._delete_row(ino))
        if gone is not None:
            self._janitor.discard_bytes(gone)

    def end_closed(self) -> None:
        """End what nobody has open, and only waits for a rename that fails: its room is needed."""
        for hidden in self._coming.copy():
            if self._contents.is_open(hidden.ino):
                continue
            if hidden in self._unsettled:
                _wait_for_rename(hidden)
                self._try(self._settle, hidden)
            if hidden not in self._unsettled:
                self._try(self._let_go, hidden)

    # -- inside

    def _try(
        self, action: Callable[[HiddenName], None], hidden: HiddenName, times_failed: int = 0
    ) -> None:
        """Do something with a hidden name; where it cannot be done now, later."""
        try:
            action(hidden)
        except Exception:
            _log.log(
                logging.DEBUG if times_failed else logging.ERROR,
                "what has become of %r, which was open, could not be written down; it is tried "
                "again, and once more when the mount ends",
                hidden.name,
                exc_info=True,
            )
            pause = _AGAIN_SECONDS * 2 ** min(times_failed, _DOUBLINGS)
            self._janitor.again(pause, lambda: self._try(action, hidden, times_failed + 1))

    def _settle(self, hidden: HiddenName) -> None:
        """No crash gives the name back from now on: it was an unlink."""
        if self._is_to_settle(hidden):
            self._parts.with_reserve(lambda: self._settle_row(hidden))

    def _is_to_settle(self, hidden: HiddenName) -> bool:
        """Not while a rename follows, which may take its time, and may fail."""
        return hidden in self._unsettled and hidden not in self._followed | self._owed

    def _settle_row(self, hidden: HiddenName) -> None:
        with self._names.changing() as change:
            if not self._is_to_settle(hidden):
                return
            change.tree.settle_orphan(hidden.ino)
        self._unsettled.discard(hidden)

    def _let_go(self, hidden: HiddenName) -> None:
        """The name keeps its file no longer: it is back, or another's, or was to go.

        May be called several times, and also when the file was given another name, and has lost
        that as well.
        """
        if hidden in self._followed:
            return  # whoever renames calls this when that is done
        if hidden in self._owed:
            self._parts.with_reserve(lambda: self._give_back(hidden))
            self._judging.submit(hidden.ino)  # nobody did who closed it without a name
        if hidden not in self._coming:
            return
        self._coming.discard(hidden)
        try:
            if not self._contents.is_open(hidden.ino):
                self.end(hidden.ino)
        except BaseException:
            self._coming.add(hidden)
            raise

    def _give_back(self, hidden: HiddenName) -> None:
        with self._names.changing() as change:
            if hidden not in self._owed:
                return  # somebody else has just done so
            self.restore(change, hidden)
        self._coming.add(hidden)
        self._unsettled.discard(hidden)
        self._owed.discard(hidden)

    def _delete_row(self, ino: int) -> Gone | None:
        """The file as it was last; None where somebody needs it again, or it is gone already."""
        with self._names.changing() as change:
            change.touch(ino)
            node = change.tree.nodes([ino]).get(ino)
            if node is None or node.nlink > 0 or self._contents.is_open(ino):
                return None
            if self.may_come_back(ino):
                return None
            return change.delete(node)


def _wait_for_rename(hidden: HiddenName) -> None:
    """As long as the second step may take to follow; what comes later finds an unlink."""
    time.sleep(max(0.0, hidden.since + _SYNCED_SECONDS - time.monotonic()))
