"""Hidden names of open files ("silly renames" of libfuse), which a rename may be about to replace.

libfuse knows files only by path. Before an open file loses its name, libfuse renames it to a hidden
one. So a rename over an open file arrives in two steps: the old name is hidden, then the other file
gets it. `HiddenNames` makes both steps one. If the rename fails, the file gets its name back. If
the catalog cannot record that, for instance on a full disk, it is retried, if necessary by the next
mount. The catalog also keeps the name for a moment, and restores it if the process dies in between.

The file is kept while it is open, and at least for `_PENDING_SECONDS`.
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
from vfsd.mount.fs.deferred_cleanup import CATALOG_BUSY, CleanupThread
from vfsd.mount.fs.dentry_cache import DentryCache, ForgottenFile, TreeTransaction
from vfsd.mount.fs.open_inodes import OpenInodes
from vfsd.mount.fs.syscalls import os_error
from vfsd.storage.context import StoreContext

_SETTLING_SECONDS = 0.05
"""How long a crash restores a hidden name.

The second step follows in the same call of libfuse and waits only for locks. A longer time is
worse: the mount after a killed daemon would restore names of files that were deleted.
"""
_FOLLOW_SECONDS = 0.005
"""The same where a caller waits for the end of that time."""
_PENDING_SECONDS = 1.0
"""How long a failed rename can restore the name of a file that is no longer open.

For so long a deleted file uses space, unless the space is needed.
"""
_GATHER_SECONDS = 0.01
"""Names that are hidden within this time are processed in one transaction."""


class _Stage(Enum):
    """Why a hidden name keeps its file, although the file may be closed."""

    PENDING = "a rename may follow"
    RENAMING = "a rename is in progress"
    RESTORING = "the rename failed and the name must be restored"


@dataclass(eq=False, slots=True)
class HiddenName:
    """A name that was removed from an open file, and that a rename may give to another file."""

    ino: int  #: of the file
    parent: int  #: inode number of the directory of the name
    name: str
    is_orphan: bool  #: whether it was the last name
    since: float  #: monotonic time of `hide`
    is_unsettled: bool  #: a crash restores the name
    stage: _Stage = _Stage.PENDING

    def due(self) -> float:
        """Return the monotonic time of the next step while it is pending."""
        until = _PENDING_SECONDS
        if self.is_unsettled:
            until = min(until, _SETTLING_SECONDS)
        return self.since + until


class _DueActions(NamedTuple):
    """The actions that are due."""

    settled: list[HiddenName]  #: the unlink becomes permanent
    to_restore: list[HiddenName]  #: names to restore
    expired: set[HiddenName]  #: names that keep their files no longer
    files: set[int]  #: neither kept nor open; some may have names

    @property
    def is_for_catalog(self) -> bool:
        return bool(self.settled or self.to_restore or self.files)


class HiddenNames:
    """Recently hidden names, and the deletion of files without names. Thread-safe.

    A file that may be restored is not deleted when it is closed. So when a name ceases to keep its
    file, this class checks whether the file is still open, and deletes it if not.

    All due names are recorded in one transaction, so a busy catalog is waited for only once.
    """

    def __init__(
        self,
        context: StoreContext,
        names: DentryCache,
        open_inodes: OpenInodes,
        classifier: Classifier,
        cleanup: CleanupThread,
        now: Callable[[], int],
    ) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes
        self._classifier = classifier
        self._cleanup = cleanup
        self._now = now
        self._hidden: set[HiddenName] = set()  # names that keep their files
        self._closed: set[int] = set()  # closed inodes without names, still to be checked
        self._task = cleanup.add_task(
            self._process,
            "the deletion of open files could not be recorded; it is retried, and once more when "
            "the mount ends",
        )

    def hide(self, path: str, alias: str) -> HiddenName:
        """Remove the name of an open file, as `unlink` does, and make `alias` lead to the file.

        `alias` is a name in the same directory that no listing shows. It expires with the last
        handle, or soon if there is none. Pass the result to `replacing` to make a rename onto the
        name atomic.
        """
        with ExitStack() as undoing:
            with self._names.changing() as change:
                position = self._names.position(path)
                if change.node_at(position).is_dir:
                    raise os_error(errno.EISDIR)
                now = self._now()
                at = (position.parent.ino, position.name)
                left = change.tree.unlink(*at, now_ns=now)
                is_orphan = left.nlink == 0
                hidden = HiddenName(left.ino, *at, is_orphan, time.monotonic(), is_orphan)
                # Before any other thread can see that it has lost its name.
                self._hidden.add(hidden)
                undoing.callback(self._hidden.discard, hidden)
                if is_orphan:
                    change.tree.orphan(left.ino, now_ns=now, former=at)
                change.remove_name(*at)
                change.touch(left.ino)
            undoing.pop_all()
        self._names.set_alias(position.parent.ino, alias, left.ino)
        self._task.schedule(_SETTLING_SECONDS)
        return hidden

    @contextmanager
    def replacing(self, hidden: HiddenName) -> Iterator[None]:
        """Wrap the rename that gives the name to another file. A failure restores the name."""
        hidden.stage = _Stage.RENAMING
        self._hidden.add(hidden)
        try:
            yield
        except BaseException as error:
            hidden.stage = _Stage.RESTORING
            self._hidden.add(hidden)  # the rename may have come after `_PENDING_SECONDS`
            if isinstance(error, CATALOG_BUSY):
                self._task.schedule(0.0)  # the caller has waited for the catalog already
            else:
                self._task.run()
            raise
        hidden.is_unsettled = False
        self._hidden.discard(hidden)
        self._closed.add(hidden.ino)  # checked by the task
        self._task.schedule(0.0)

    def may_be_restored(self, ino: int) -> bool:
        """Return whether a file may still get back a name."""
        return any(hidden.ino == ino for hidden in tuple(self._hidden))

    def restore(self, change: TreeTransaction, hidden: HiddenName) -> None:
        """Give the file its name back: the rename failed or was to change nothing.

        Not if another process has used the name, or if the file or the directory is gone.
        """
        there = change.tree.nodes([hidden.ino, hidden.parent])
        is_free = change.tree.lookup(hidden.parent, hidden.name) is None
        if len(there) == 2 and is_free:
            is_orphan = (
                there[hidden.ino].nlink == 0
            )  # it may have lost its other names in the meantime
            give_back = change.tree.adopt_orphan if is_orphan else change.tree.link
            give_back(hidden.ino, hidden.parent, hidden.name, now_ns=self._now())
            change.set_name(hidden.parent, hidden.name, hidden.ino)
        else:
            self.make_permanent(change, hidden)

    def make_permanent(self, change: TreeTransaction, hidden: HiddenName) -> None:
        """Record that a crash must not restore the name."""
        if hidden.is_orphan:
            change.tree.confirm_orphan(hidden.ino, hidden.parent, hidden.name)

    def settle(self) -> None:
        """Return when a crash would restore none of the names hidden so far."""
        unsettled = _to_settle(tuple(self._hidden))
        _wait_for_rename(unsettled)
        if unsettled := _to_settle(unsettled):
            self._context.with_reserve(lambda: self._settle_all(unsettled))

    def delete_unless_open(self, ino: int) -> None:
        """Delete a closed file without names, unless it was opened again or may be restored.

        If that is impossible now, it is retried a little later.
        """
        if self._context.read_only:
            return
        self._closed.add(ino)
        if self.may_be_restored(ino):
            return  # the end of `_PENDING_SECONDS` checks the closed files again
        if self._task.is_failing:
            self._task.schedule(
                _PENDING_SECONDS
            )  # a program that closes many files waits only once
        else:
            self._task.run()

    def delete_closed(self) -> bool:
        """Delete closed files that are only kept for a rename that may fail: their space is needed.

        Return False if the catalog is busy.
        """
        hidden = [each for each in tuple(self._hidden) if each.stage is _Stage.PENDING]
        needed = {each for each in hidden if not self._open_inodes.is_open(each.ino)}
        _wait_for_rename(needed)
        return not isinstance(self._task.run(lambda: self._process(needed)), CATALOG_BUSY)

    # -- internals

    def _process(self, needed: Collection[HiddenName] = ()) -> None:
        """Record all due actions in one transaction.

        Names in `needed` are due at once, since their space is needed.
        """
        closed: set[int] = set()
        while self._closed:
            closed.add(self._closed.pop())
        try:
            due = self._due_actions(closed, needed)
            gone: list[ForgottenFile] = []
            if due.is_for_catalog:
                for ino in due.files:
                    self._open_inodes.drop_aliases(ino)
                due, gone = self._context.with_reserve(lambda: self._record(closed, needed))
        except BaseException:
            self._closed |= closed
            raise
        # Before the names go: who needs room, and finds none of them, looks for bytes.
        for each in gone:
            self._cleanup.discard_bytes(each)
        for hidden in due.to_restore:
            self._classifier.submit(hidden.ino)  # skipped when it was closed without a name
        for hidden in (*due.settled, *due.to_restore):
            hidden.is_unsettled = False
        self._hidden.difference_update(due.to_restore)
        self._hidden -= {hidden for hidden in due.expired if hidden.stage is _Stage.PENDING}
        if self._closed:
            self._task.schedule(0.0)
        left = [each.due() for each in tuple(self._hidden) if each.stage is _Stage.PENDING]
        if left:
            self._task.schedule(max(_GATHER_SECONDS, min(left) - time.monotonic()))

    def _due_actions(self, closed: set[int], needed: Collection[HiddenName]) -> _DueActions:
        """Return the actions that are due for all names and for the inodes in `closed`."""
        now = math.inf if self._cleanup.is_closing else time.monotonic()
        names = tuple(self._hidden)
        to_restore = [each for each in names if each.stage is _Stage.RESTORING]
        coming = [each for each in names if each.stage is _Stage.PENDING]
        expired = {
            each for each in coming if each in needed or now >= each.since + _PENDING_SECONDS
        }
        settled = [
            each for each in coming if each.is_unsettled and (each in expired or now >= each.due())
        ]
        done = expired.union(to_restore)
        kept = {each.ino for each in names if each not in done}
        files = closed.union(each.ino for each in done) - kept
        closed_still = {ino for ino in files if not self._open_inodes.is_open(ino)}
        return _DueActions(settled, to_restore, expired, closed_still)

    def _record(
        self, closed: set[int], needed: Collection[HiddenName]
    ) -> tuple[_DueActions, list[ForgottenFile]]:
        with self._names.changing() as change:
            due = self._due_actions(
                closed, needed
            )  # a rename may have followed, or the file was opened
            for hidden in due.to_restore:
                self.restore(change, hidden)
            for hidden in due.settled:
                self.make_permanent(change, hidden)
            ended = (self._delete(change, ino) for ino in due.files)
            return due, [gone for gone in ended if gone is not None]

    def _delete(self, change: TreeTransaction, ino: int) -> ForgottenFile | None:
        """Delete a file from the catalog and return it; None if it has a name or is gone.

        A file with a hold stays: the next mount gives it a name.
        """
        change.touch(ino)
        node = change.tree.nodes([ino]).get(ino)
        if node is None or node.nlink > 0 or change.transaction.retention.is_held(ino):
            return None
        return change.delete(node)

    def _settle_all(self, unsettled: list[HiddenName]) -> None:
        with self._names.changing() as change:
            settled = _to_settle(unsettled)
            for hidden in settled:
                self.make_permanent(change, hidden)
        for hidden in settled:
            hidden.is_unsettled = False


def _to_settle(names: Iterable[HiddenName]) -> list[HiddenName]:
    """Return unsettled names, except those with a rename in progress, which may fail."""
    return [each for each in names if each.is_unsettled and each.stage is _Stage.PENDING]


def _wait_for_rename(names: Collection[HiddenName]) -> None:
    """Wait as long as the second step may take; a later rename finds an unlinked file."""
    latest = max((each.since for each in names), default=0.0)
    time.sleep(max(0.0, latest + _FOLLOW_SECONDS - time.monotonic()))
