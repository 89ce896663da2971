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
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.deferred_cleanup import WAITED, CleanupThread
from vfsd.mount.fs.dentry_cache import DentryCache, ForgottenFile, TreeTransaction
from vfsd.mount.fs.open_inodes import OpenInodes
from vfsd.mount.fs.syscalls import failure
from vfsd.storage.context import StoreContext

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
_GATHER_SECONDS = 0.01
"""Of many names that are hidden one after the other, those of so long are seen to at once."""


class _Stage(Enum):
    """Why a hidden name keeps its file, though nobody may have that open."""

    COMING = "a rename may follow"
    FOLLOWED = "one is under way"
    OWED = "it has failed, and the name is to be given back"


@dataclass(eq=False, slots=True)
class HiddenName:
    """A name that was taken from an open file, and that a rename may give to another."""

    ino: int  #: of the file
    parent: int  #: inode number of the directory that the name stood in
    name: str
    is_orphan: bool  #: it was the last name
    since: float  #: when it was taken, by `time.monotonic`
    is_unsettled: bool  #: a crash gives it back
    stage: _Stage = _Stage.COMING

    def due(self) -> float:
        """When there is something to write down of it while it is coming."""
        until = _COMING_SECONDS
        if self.is_unsettled:
            until = min(until, _SETTLING_SECONDS)
        return self.since + until


class _DueActions(NamedTuple):
    """What it is time for."""

    settled: list[HiddenName]  #: no crash gives these back from now on: they were unlinked
    owed: list[HiddenName]  #: these are given back
    over: set[HiddenName]  #: these keep their files no longer
    files: set[int]  #: that nobody keeps, and nobody has open; some may have names

    @property
    def is_for_catalog(self) -> bool:
        return bool(self.settled or self.owed or self.files)


class HiddenNames:
    """The names that were hidden a moment ago, and the end of files without any.  Thread-safe.

    Who closes a file that may come back leaves its end to us.  So whenever a name ceases to keep
    its file, it is seen after that whether the file is still open; if not, it ends here.

    What is to be written down is for all names at once, so that where others have the catalog one
    waits for it, and once.
    """

    def __init__(
        self,
        parts: StoreContext,
        names: DentryCache,
        contents: OpenInodes,
        judging: Classifier,
        janitor: CleanupThread,
        now: Callable[[], int],
    ) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._judging = judging
        self._janitor = janitor
        self._now = now
        self._hidden: set[HiddenName] = set()  # those that keep their files
        self._closed: set[int] = set()  # files that have lost their names, for us to see to
        self._tending = janitor.chore(
            self._tend,
            "what has become of files that were open, and have lost their names, could not be "
            "written down; it is tried again, and once more when the mount ends",
        )

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
                is_orphan = left.nlink == 0
                hidden = HiddenName(left.ino, *at, is_orphan, time.monotonic(), is_orphan)
                # Before anybody sees that it has lost its name.
                self._hidden.add(hidden)
                undoing.callback(self._hidden.discard, hidden)
                if is_orphan:
                    change.tree.orphan(left.ino, now_ns=now, former=at)
                change.leave(*at)
                change.touch(left.ino)
            undoing.pop_all()
        self._names.set_alias(place.parent.ino, alias, left.ino)
        self._tending.due(_SETTLING_SECONDS)
        return hidden

    @contextmanager
    def followed_by(self, hidden: HiddenName) -> Iterator[None]:
        """For a block that gives the name to another file: it is given back where that fails."""
        hidden.stage = _Stage.FOLLOWED
        self._hidden.add(hidden)
        try:
            yield
        except BaseException as error:
            hidden.stage = _Stage.OWED
            self._hidden.add(hidden)  # it may have been late
            if isinstance(error, WAITED):
                self._tending.due(0.0)  # who has waited for the catalog does not do so twice
            else:
                self._tending.attempt()
            raise
        hidden.is_unsettled = False
        self._hidden.discard(hidden)
        self._closed.add(hidden.ino)  # if it is
        self._tending.due(0.0)

    def may_come_back(self, ino: int) -> bool:
        """Whether a file may still get back a name that it has lost."""
        return any(hidden.ino == ino for hidden in tuple(self._hidden))

    def restore(self, change: TreeTransaction, hidden: HiddenName) -> None:
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
        else:
            self.forgo(change, hidden)

    def forgo(self, change: TreeTransaction, hidden: HiddenName) -> None:
        """No crash gives the name back any more."""
        if hidden.is_orphan:
            change.tree.settle_orphan(hidden.ino, hidden.parent, hidden.name)

    def settle(self) -> None:
        """Return when no name that was taken until now would come back after a crash."""
        unsettled = _to_settle(tuple(self._hidden))
        _wait_for_rename(unsettled)
        if unsettled := _to_settle(unsettled):
            self._parts.with_reserve(lambda: self._settle(unsettled))

    def end(self, ino: int) -> None:
        """Delete a file that has lost its names, unless somebody has it open or it may come back.

        To be called for a file that is not open.  Where it cannot be done now, it is a little
        later.
        """
        if self._parts.read_only:
            return
        self._closed.add(ino)
        if self.may_come_back(ino):
            return  # whoever has the name cease to keep it looks at what was closed after that
        if self._tending.is_failing:
            self._tending.due(_COMING_SECONDS)  # who closes many files waits once
        else:
            self._tending.attempt()

    def end_closed(self) -> bool:
        """End what nobody has open, and only waits for a rename that fails: its room is needed.

        False where others have the catalog.
        """
        hidden = [each for each in tuple(self._hidden) if each.stage is _Stage.COMING]
        needed = {each for each in hidden if not self._contents.is_open(each.ino)}
        _wait_for_rename(needed)
        return not isinstance(self._tending.attempt(lambda: self._tend(needed)), WAITED)

    # -- inside

    def _tend(self, needed: Collection[HiddenName] = ()) -> None:
        """Write down all that it is time for, in one transaction.

        For names that take up room which is `needed` it is.
        """
        closed: set[int] = set()
        while self._closed:
            closed.add(self._closed.pop())
        try:
            due = self._due(closed, needed)
            gone: list[ForgottenFile] = []
            if due.is_for_catalog:
                for ino in due.files:
                    self._contents.drop_aliases(ino)
                due, gone = self._parts.with_reserve(lambda: self._write_down(closed, needed))
        except BaseException:
            self._closed |= closed
            raise
        # Before the names go: who needs room, and finds none of them, looks for bytes.
        for each in gone:
            self._janitor.discard_bytes(each)
        for hidden in due.owed:
            self._judging.submit(hidden.ino)  # nobody did who closed it without a name
        for hidden in (*due.settled, *due.owed):
            hidden.is_unsettled = False
        self._hidden.difference_update(due.owed)
        self._hidden -= {hidden for hidden in due.over if hidden.stage is _Stage.COMING}
        if self._closed:
            self._tending.due(0.0)
        left = [each.due() for each in tuple(self._hidden) if each.stage is _Stage.COMING]
        if left:
            self._tending.due(max(_GATHER_SECONDS, min(left) - time.monotonic()))

    def _due(self, closed: set[int], needed: Collection[HiddenName]) -> _DueActions:
        """Of names, and of files that were `closed`."""
        now = math.inf if self._janitor.is_closing else time.monotonic()
        names = tuple(self._hidden)
        owed = [each for each in names if each.stage is _Stage.OWED]
        coming = [each for each in names if each.stage is _Stage.COMING]
        over = {each for each in coming if each in needed or now >= each.since + _COMING_SECONDS}
        settled = [
            each for each in coming if each.is_unsettled and (each in over or now >= each.due())
        ]
        done = over.union(owed)
        kept = {each.ino for each in names if each not in done}
        files = closed.union(each.ino for each in done) - kept
        closed_still = {ino for ino in files if not self._contents.is_open(ino)}
        return _DueActions(settled, owed, over, closed_still)

    def _write_down(
        self, closed: set[int], needed: Collection[HiddenName]
    ) -> tuple[_DueActions, list[ForgottenFile]]:
        with self._names.changing() as change:
            due = self._due(closed, needed)  # a rename may have followed, or somebody opened it
            for hidden in due.owed:
                self.restore(change, hidden)
            for hidden in due.settled:
                self.forgo(change, hidden)
            ended = (self._delete(change, ino) for ino in due.files)
            return due, [gone for gone in ended if gone is not None]

    def _delete(self, change: TreeTransaction, ino: int) -> ForgottenFile | None:
        """The file as it was last; None where it has a name, or is gone already.

        One that is held stays: the next mount gives it a name.
        """
        change.touch(ino)
        node = change.tree.nodes([ino]).get(ino)
        if node is None or node.nlink > 0 or change.transaction.originals.is_held(ino):
            return None
        return change.delete(node)

    def _settle(self, unsettled: list[HiddenName]) -> None:
        with self._names.changing() as change:
            settled = _to_settle(unsettled)
            for hidden in settled:
                self.forgo(change, hidden)
        for hidden in settled:
            hidden.is_unsettled = False


def _to_settle(names: Iterable[HiddenName]) -> list[HiddenName]:
    """Not while a rename follows, which may take its time, and may fail."""
    return [each for each in names if each.is_unsettled and each.stage is _Stage.COMING]


def _wait_for_rename(names: Collection[HiddenName]) -> None:
    """As long as the second step may take to follow; what comes later finds an unlink."""
    latest = max((each.since for each in names), default=0.0)
    time.sleep(max(0.0, latest + _SYNCED_SECONDS - time.monotonic()))
