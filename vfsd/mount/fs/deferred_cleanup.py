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
    """What was found, and put right."""

    orphans: int  #: files without a name that were open
    stray: int  #: private files that belong to nobody, and temporary ones
    emptied: int  #: new files whose bytes had not reached the disk
    unjudged: list[int]  #: inodes that wait to be judged

    def __str__(self) -> str:
        counts = (
            (len(self.unjudged), "new to be looked at"),
            (self.emptied, "empty, as their bytes had not reached the disk"),
            (self.orphans, "removed that had lost their names while they were open"),
            (self.stray, "removed that belonged to nobody"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def recover(parts: StoreContext) -> RecoveryReport:
    """To be called before the store is used; nobody else may have it mounted."""
    with parts.catalog.writing() as change:
        orphans = delete_orphans(change)
    with parts.catalog.reading() as seen:
        spooled = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
        private = seen.tree.private_inodes()
    for recording in unfinished_recordings(parts):
        _log.warning("%s", recording)
    stray = _remove_stray(parts, private)
    emptied = 0
    for ino in spooled:
        path = parts.directory.spool_file(ino)
        if not os.path.lexists(path):
            # As with any file that was never synced: the name survived, the bytes did not.
            with parts.catalog.reading() as seen:
                name = " or ".join(map(repr, seen.tree.paths_of(ino)))
            _log.warning("%s is empty: a crash came before its bytes were on the disk", name)
            path.touch(mode=0o600)
            emptied += 1
    reclaim(parts)
    found = RecoveryReport(orphans, stray, emptied, sorted(spooled))
    if orphans or stray or emptied or spooled:
        _log.info("files that the last mount left: %s", found)
    return found


def _remove_stray(parts: StoreContext, private: set[int]) -> int:
    listed = parts.directory.spooled() if parts.directory.has_own_spool else ()
    stray = [path for ino, path in listed if ino not in private]
    left = find_leftovers(parts)
    if stray or left:
        parts.catalog.sync()
    gone = 0
    for path in stray:
        try:
            remove(path)
            gone += 1
        except STAYS as error:
            _log.warning("%s", error)
    return gone + len(delete_leftovers(parts, left))


WAITED = (BusyError, UnreachableError)
"""What is raised after somebody has waited for the catalog, for a minute as a rule."""

_GATHER_SECONDS = 0.2
_AGAIN_SECONDS, _DOUBLINGS = 1.0, 5
"""What has failed is tried again so much later, and then after twice as long, up to half a
minute."""


class DeferredTask:
    """Something that is done now and then, at once for all who have wanted it by then.

    One at a time does it: the janitor, or who cannot wait.  Where it fails the janitor tries again
    until it succeeds, and once more when it ends.  Thread-safe.
    """

    def __init__(
        self, wake: threading.Condition, action: Callable[[], None], complaint: str
    ) -> None:
        """`complaint` is what the log says where it fails, once until it succeeds."""
        self._wake = wake
        self._action = action
        self._complaint = complaint
        self._doing = threading.Lock()
        self._times_failed = 0
        self._error: Exception | None = None
        self.at: float | None = None  #: when the janitor does it; for who has `wake`

    @property
    def is_failing(self) -> bool:
        """Whether it has failed, and is to be tried again."""
        return self._error is not None

    def due(self, seconds: float) -> None:
        """Have the janitor do it then, or when it ends, whichever comes first."""
        at = time.monotonic() + seconds
        with self._wake:
            if self.at is None or at < self.at:
                self.at = at
                self._wake.notify()

    def attempt(self, action: Callable[[], None] | None = None) -> Exception | None:
        """Do it now, or `action`, which does more; returns what it fails with.

        Who waits for another one does not try again what that one fails to do.
        """
        before = self._times_failed
        with self._doing:
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
        _log.log(level, self._complaint, exc_info=True)
        self.due(_AGAIN_SECONDS * 2 ** min(self._times_failed, _DOUBLINGS))
        self._times_failed += 1
        self._error = error


class CleanupThread:
    """One thread that does things later; mostly it deletes bytes, a batch at a time."""

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts
        self._wake = threading.Condition()
        self._inodes: list[int] = []
        self._keys: list[str] = []
        self._cleaned = 0
        self._is_cleaning = False  #: what was to be deleted is being deleted
        self._chores: list[DeferredTask] = []
        self._closed = False
        self._cleaning = self.chore(
            self._clean,
            "cleaning up failed; it is tried again, or the next mount does it, or `vfsd gc`",
        )
        self._thread = threading.Thread(target=self._run, name="vfsd-janitor", daemon=True)
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return self._closed

    @property
    def cleaned(self) -> int:
        """How often something was deleted."""
        return self._cleaned

    def chore(self, action: Callable[[], None], complaint: str) -> DeferredTask:
        """Something to do now and then; see there."""
        chore = DeferredTask(self._wake, action, complaint)
        with self._wake:
            self._chores.append(chore)
        return chore

    def discard_inode(self, ino: int) -> None:
        """The inode's row is gone; so may its private file be."""
        with self._wake:
            self._inodes.append(ino)
        self._cleaning.due(_GATHER_SECONDS)

    def discard_objects(self, keys: Collection[str]) -> None:
        """These objects have lost a reference; those for which that was the last one may go."""
        if not keys:
            return
        with self._wake:
            self._keys.extend(keys)
        self._cleaning.due(_GATHER_SECONDS)

    def discard_bytes(self, gone: ForgottenFile) -> None:
        """The row of a file is gone; so may its bytes be, unless they are a linked file."""
        self.discard_objects(gone.keys)
        if is_private(gone.node):
            self.discard_inode(gone.node.ino)

    def wait_until_clean(self, seconds: float) -> None:
        """Have what is to be deleted deleted at once, and wait up to so many seconds for that.

        Returns early where cleaning fails, for instance while the catalog is locked.
        """
        end = time.monotonic() + seconds
        with self._wake:
            if not (self._inodes or self._keys or self._is_cleaning):
                return
        self._cleaning.due(0)
        with self._wake:
            self._wake.wait_for(self._is_clean_or_failing, max(0.0, end - time.monotonic()))

    def _is_clean_or_failing(self) -> bool:
        pending = self._inodes or self._keys or self._is_cleaning
        return not pending or self._cleaning.is_failing or self._closed

    def clean_now(self) -> None:
        """Delete what there is to delete; where that fails, it is tried again later."""
        self._cleaning.attempt()

    def close(self) -> None:
        """Do what is left to do, and end."""
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
            reclaim(self._parts, keys=keys, inodes=inodes)
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
        while (chore := self._next()) is not None:
            # An attempt that began before the close is not the last one: it fails for a reason
            # that may be over by now.
            is_last = self._closed
            error = chore.attempt()
            if error is None or not is_last:
                continue
            if isinstance(error, WAITED):
                return  # the other chores would wait as long; the next mount does them all
            with self._wake:
                self._chores.remove(chore)

    def _next(self) -> DeferredTask | None:
        """Wait for what is to be done; None when all is done and there will be no more."""
        with self._wake:
            while True:
                now = time.monotonic()
                due = [(chore.at, chore) for chore in self._chores if chore.at is not None]
                at, first = min(due, key=lambda each: each[0], default=(None, None))
                if first is not None and at is not None and (self._closed or at <= now):
                    first.at = None
                    return first
                if self._closed:
                    return None
                self._wake.wait(None if at is None else at - now)
