"""Deletion of bytes after the reply to the kernel.

`CleanupThread` deletes in batches; `recover` removes at mount time what a crash left.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from vfsd.core.model import FileState
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import BusyError, UnreachableError
from vfsd.mount.fs.attributes import is_private
from vfsd.mount.fs.dentry_cache import ForgottenFile
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim
from vfsd.write.crash_recovery import delete_leftovers, delete_orphans, find_leftovers
from vfsd.write.partial_files import unfinished_recordings

_log = logging.getLogger(__name__)


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
        orphans = delete_orphans(change)
    with context.catalog.reading() as seen:
        spooled = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
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
    found = RecoveryReport(orphans, stray, emptied, sorted(spooled))
    if orphans or stray or emptied or spooled:
        _log.info("files that the last mount left: %s", found)
    return found


def _remove_stray(context: StoreContext, private: set[int]) -> int:
    listed = context.directory.spooled() if context.directory.has_own_spool else ()
    stray = [path for ino, path in listed if ino not in private]
    left = find_leftovers(context)
    if stray or left:
        context.catalog.sync()
    gone = 0
    for path in stray:
        try:
            remove(path)
            gone += 1
        except STAYS as error:
            _log.warning("%s", error)
    return gone + len(delete_leftovers(context, left))


CATALOG_BUSY = (BusyError, UnreachableError)
"""Errors that are raised after a long wait for the catalog, usually a minute."""

_GATHER_SECONDS = 0.2
_RETRY_SECONDS, _DOUBLINGS = 1.0, 5
"""A failed task is retried after `_RETRY_SECONDS`, then after twice as long each time, up to half a
minute."""


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
        self._cleaning.schedule(_GATHER_SECONDS)

    def discard_objects(self, keys: Collection[str]) -> None:
        """Delete objects later, unless another reference remains."""
        if not keys:
            return
        with self._wake:
            self._keys.extend(keys)
        self._cleaning.schedule(_GATHER_SECONDS)

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
