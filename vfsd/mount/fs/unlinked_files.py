"""Files without a name: hidden names of open files, and the deletion of bytes after the reply.

libfuse knows files only by path. Before an open file loses its name, libfuse renames it to a hidden
one ("silly rename"). So a rename over an open file arrives in two steps: the old name is hidden,
then the other file gets it. `HiddenNames` makes both steps one. If the rename fails, the file gets
its name back. If the catalog cannot record that, for instance on a full disk, it is retried, if
necessary by the next mount. The catalog also keeps the name for a moment, and restores it if the
process dies in between.

`CleanupThread` deletes in batches; `recover` removes at mount time what a crash left.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from vfsd.core.model import FileState
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import BusyError, UnreachableError
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache, ForgottenFile, TreeTransaction
from vfsd.mount.fs.open_inodes import OpenInodes
from vfsd.mount.fs.posix import is_private, os_error
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim
from vfsd.write.unfinished_files import (
    delete_leftovers,
    delete_orphans,
    find_leftovers,
    unfinished_recordings,
)

_log = logging.getLogger(__name__)

# How long a crash restores a hidden name.
#
# The second step follows in the same call of libfuse and waits only for locks. A longer time is
# worse: the mount after a killed daemon would restore names of files that were deleted.
_SETTLING_SECONDS = 0.05
# The same where a caller waits for the end of that time.
_FOLLOW_SECONDS = 0.005
# How long a failed rename can restore the name of a file that is no longer open.
#
# For so long a deleted file uses space, unless the space is needed.
_PENDING_SECONDS = 1.0
# Names that are hidden within this time are processed in one transaction.
_GATHER_SECONDS = 0.01
CATALOG_BUSY = (BusyError, UnreachableError)
"""Errors that are raised after a long wait for the catalog, usually a minute."""
_DELETE_BATCH_SECONDS = 0.2
# A failed task is retried after `_RETRY_SECONDS`, then after twice as long each time, up to half a
# minute.
_RETRY_SECONDS, _DOUBLINGS = 1.0, 5


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
    ) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes
        self._classifier = classifier
        self._cleanup = cleanup
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
                node = change.node_at(position)
                if node.is_dir:
                    raise os_error(errno.EISDIR)
                change.require_replaceable(node)  # a rename over it would replace it
                now = time.time_ns()
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
        nodes = change.tree.nodes([hidden.ino, hidden.parent])
        is_free = change.tree.lookup(hidden.parent, hidden.name) is None
        if len(nodes) == 2 and is_free:
            # It may have lost its other names since `hide`.
            is_orphan = nodes[hidden.ino].nlink == 0
            give_back = change.tree.adopt_orphan if is_orphan else change.tree.link
            give_back(hidden.ino, hidden.parent, hidden.name, now_ns=time.time_ns())
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
            # A program that closes many files must wait for the catalog only once.
            self._task.schedule(_PENDING_SECONDS)
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
        # Before the names are dropped: a writer on a full disk looks for pending deletes next.
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
            # Again under the lock: a rename may have followed, or the file was opened.
            due = self._due_actions(closed, needed)
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


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Counts and inodes of `recover`."""

    orphans: int  #: open files without a name, deleted
    stray: int  #: unreferenced private and temporary files, deleted
    emptied: int  #: new files that are empty since their bytes had not reached the disk
    unclassified: list[int]  #: inodes that wait for classification

    def __str__(self) -> str:
        counts = (
            (len(self.unclassified), "new to be classified"),
            (self.emptied, "empty because their bytes had not reached the disk"),
            (self.orphans, "removed that were open and had no name"),
            (self.stray, "removed that nothing referenced"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def recover(context: StoreContext) -> RecoveryReport:
    """Remove what a crash left. Call it before the store is used, while no other process has it
    mounted."""
    with context.catalog.writing() as change:
        orphans = change.tree.own_orphans()
        delete_orphans(change, orphans)
    with context.catalog.reading() as seen:
        spooled = {node.ino for node in seen.tree.own_files_in_state(FileState.SPOOLED)}
        private = seen.tree.private_inodes()
    for recording in unfinished_recordings(context):
        _log.warning("%s", recording)
    stray = _remove_stray(context, private)
    emptied = 0
    for ino in spooled:
        path = context.directory.spool_file(ino)
        if not os.path.lexists(path):
            # As on any file system without fsync: the name survived, the bytes did not.
            with context.catalog.reading() as seen:
                name = " or ".join(map(repr, seen.tree.paths_of(ino)))
            _log.warning("%s is empty: a crash happened before its bytes were on the disk", name)
            path.touch(mode=0o600)
            emptied += 1
    reclaim(context)
    found = RecoveryReport(len(orphans), stray, emptied, sorted(spooled))
    if found.orphans or stray or emptied or spooled:
        _log.info("files that the last mount left: %s", found)
    return found


def _remove_stray(context: StoreContext, private: set[int]) -> int:
    listed = context.directory.spooled() if context.directory.has_own_spool else ()
    stray = [(ino, path) for ino, path in listed if ino not in private]
    left = find_leftovers(context)
    if stray or left:
        context.catalog.sync()
    gone = 0
    for ino, path in stray:
        try:
            if context.catalog.home is not None:
                from vfsd.write.shared_files import remove_stray  # SQLite stores have one home

                gone += remove_stray(context, ino, path)
            else:
                remove(path)
                gone += 1
        except STAYS as error:
            _log.warning("%s", error)
    return gone + len(delete_leftovers(context, left))


class DeferredTask:
    """A task that serves all requests made so far at once. Thread-safe.

    The cleanup thread runs it, or a caller that cannot wait; one at a time. After a failure the
    cleanup thread retries it until it succeeds, and once more at the end of the mount.
    """

    def __init__(self, wake: threading.Condition, action: Callable[[], None], message: str) -> None:
        """`message` is logged at the first failure until the next success."""
        self._wake = wake
        self._action = action
        self._message = message
        self._lock = threading.Lock()
        self._times_failed = 0
        self._error: Exception | None = None
        self.at: float | None = None  #: monotonic time of the next run; guarded by `wake`

    @property
    def is_failing(self) -> bool:
        """Whether the last run failed and a retry is scheduled."""
        return self._error is not None

    def schedule(self, seconds: float) -> None:
        """Have the cleanup thread run it in `seconds`, or at the end if that is earlier."""
        at = time.monotonic() + seconds
        with self._wake:
            if self.at is None or at < self.at:
                self.at = at
                self._wake.notify()

    def run(self, action: Callable[[], None] | None = None) -> Exception | None:
        """Run it now, or `action`, which does more. Return the error, or None.

        A caller that waited for a failed run of another thread does not repeat it.
        """
        before = self._times_failed
        with self._lock:
            if self._error is not None and self._times_failed != before:
                return self._error
            try:
                (action or self._action)()
            except Exception as error:
                self._failed(error)
                return error
            self._times_failed, self._error = 0, None
        return None

    def _failed(self, error: Exception) -> None:
        level = logging.DEBUG if self.is_failing else logging.ERROR
        _log.log(level, self._message, exc_info=True)
        self.schedule(_RETRY_SECONDS * 2 ** min(self._times_failed, _DOUBLINGS))
        self._times_failed += 1
        self._error = error


class CleanupThread:
    """A thread that runs deferred tasks. Mostly it deletes bytes in batches."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._wake = threading.Condition()
        self._inodes: list[int] = []
        self._keys: list[str] = []
        self._cleaned = 0
        self._is_cleaning = False  #: a batch is being deleted
        self._tasks: list[DeferredTask] = []
        self._closed = False
        self._cleaning = self.add_task(
            self._clean,
            "cleanup failed; it is retried, or done by the next mount or `vfsd gc`",
        )
        self._thread = threading.Thread(target=self._run, name="vfsd-cleanup", daemon=True)
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether the mount is ending, so that nothing waits any more."""
        return self._closed

    @property
    def cleanups(self) -> int:
        """How many batches have been deleted."""
        return self._cleaned

    def add_task(self, action: Callable[[], None], message: str) -> DeferredTask:
        """Return a new task for this thread; see `DeferredTask`."""
        task = DeferredTask(self._wake, action, message)
        with self._wake:
            self._tasks.append(task)
        return task

    def discard_inode(self, ino: int) -> None:
        """Delete the private file of an inode later. Its row is gone."""
        with self._wake:
            self._inodes.append(ino)
        self._cleaning.schedule(_DELETE_BATCH_SECONDS)

    def discard_objects(self, keys: Collection[str]) -> None:
        """Delete objects later, unless another reference remains."""
        if not keys:
            return
        with self._wake:
            self._keys.extend(keys)
        self._cleaning.schedule(_DELETE_BATCH_SECONDS)

    def discard_bytes(self, gone: ForgottenFile) -> None:
        """Delete the bytes of a file later, unless they are a linked file. Its row is gone."""
        self.discard_objects(gone.keys)
        if is_private(gone.node):
            self.discard_inode(gone.node.ino)

    def wait_until_clean(self, seconds: float) -> None:
        """Delete what is pending at once, and wait for that up to `seconds`.

        Return early if cleanup fails, for instance while the catalog is locked.
        """
        end = time.monotonic() + seconds
        with self._wake:
            if not (self._inodes or self._keys or self._is_cleaning):
                return
        self._cleaning.schedule(0)
        with self._wake:
            self._wake.wait_for(self._is_clean_or_failing, max(0.0, end - time.monotonic()))

    def _is_clean_or_failing(self) -> bool:
        pending = self._inodes or self._keys or self._is_cleaning
        return not pending or self._cleaning.is_failing or self._closed

    def clean_now(self) -> None:
        """Delete what is pending in this thread. A failure is retried later."""
        self._cleaning.run()

    def close(self) -> None:
        """Run what is pending and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _clean(self) -> None:
        with self._wake:
            inodes, self._inodes = self._inodes, []
            keys, self._keys = self._keys, []
            self._is_cleaning = bool(inodes or keys)
        if not inodes and not keys:
            return
        try:
            reclaim(self._context, keys=keys, inodes=inodes)
        except BaseException:
            with self._wake:
                self._inodes += inodes
                self._keys += keys
            raise
        else:
            self._cleaned += 1
        finally:
            with self._wake:
                self._is_cleaning = False
                self._wake.notify_all()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            # A run that began before the close is not the last one: its reason to fail may
            # have gone.
            is_last = self._closed
            error = task.run()
            if error is None or not is_last:
                continue
            if isinstance(error, CATALOG_BUSY):
                return  # other tasks would wait as long; the next mount does their work
            with self._wake:
                self._tasks.remove(task)

    def _next(self) -> DeferredTask | None:
        """Wait for the next task that is due; None when the thread must end."""
        with self._wake:
            while True:
                now = time.monotonic()
                due = [(task.at, task) for task in self._tasks if task.at is not None]
                at, first = min(due, key=lambda each: each[0], default=(None, None))
                if first is not None and at is not None and (self._closed or at <= now):
                    first.at = None
                    return first
                if self._closed:
                    return None
                self._wake.wait(None if at is None else at - now)
