"""Classifies closed files in the background and publishes those that are videos.

In a store that several hosts share, all closed files are published, by the close itself.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from vfsd.core.model import WAITS_FOR_UPLOAD, FileState, Node
from vfsd.disk.store_layout import fsync_path
from vfsd.errors import NotFoundError, VfsdError
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction
from vfsd.mount.fs.open_inodes import BackingKind, OpenInode, OpenInodes
from vfsd.mount.fs.posix import os_error
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import (
    AcceptedVideo,
    PendingObject,
    RejectedFile,
    Verdict,
    classify_file,
    pending_own_file,
    publish_verdict,
    reject_by_header,
)

if TYPE_CHECKING:
    from vfsd.mount.fs.publisher import Publisher

_RELEASE_SECONDS = 1.0
# How long a file waits for others to be classified with it, unless a caller waits for the result.
_BATCH_SECONDS = 0.05
# One transaction each would make the threads that classify compete for the interpreter lock with
# the threads that answer the kernel.
_BATCH_SIZE = 64
_MAX_YIELD_SECONDS = 0.01
_RETRY_SECONDS = 5.0
# A file that could not be classified, for instance on a full disk, is retried after
# `_RETRY_SECONDS`, then after twice as long each time, up to this.
_MAX_RETRY_SECONDS = 300.0
# The same for a file that could not be uploaded.
_MAX_UPLOAD_RETRY_SECONDS = 30.0
# How long recording that error waits for the catalog.
_REASON_SECONDS = 1.0

_log = logging.getLogger(__name__)


class _Classification(NamedTuple):
    """A file and the verdict from its header."""

    inode: OpenInode
    node: Node
    verdict: RejectedFile | None  #: None: it may be a video


class _Postponed(NamedTuple):
    """When to retry a file that could not be classified."""

    until: float  #: monotonic time
    pause: float  #: seconds


class Classifier:
    """Threads that classify spooled files and publish the verdicts.

    Small files that are not videos arrive by the thousand. Their headers are enough to reject them,
    and the rejections of a batch share one transaction.
    """

    def __init__(self, context: StoreContext, names: DentryCache, open_inodes: OpenInodes) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes
        guard = threading.RLock()
        self._work = threading.Condition(guard)  # a file waits and no thread collects a batch
        self._urgent = threading.Condition(guard)  # a caller waits for a verdict, or `close`
        self._changed = threading.Condition(guard)  # a file was classified
        # Monotonic time of arrival by inode number, oldest first.
        self._waiting: OrderedDict[int, float] = OrderedDict()
        self._running: set[int] = set()
        self._postponed: dict[int, _Postponed] = {}
        self._publisher: Publisher | None = None  #: of a store that several hosts share
        if context.is_shared:
            from vfsd.mount.fs.publisher import Publisher  # most stores need none

            self._publisher = Publisher(context, names, open_inodes)
        self._gathering = False
        self._closed = False
        self._waiters = 0  # callers that wait for a verdict
        self._threads = [
            threading.Thread(target=self._run, name=f"vfsd-classify-{number}", daemon=True)
            for number in range(context.settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ino: int) -> None:
        """Queue a file for classification. It is skipped if it has writers by then."""
        if self._context.read_only:
            return
        with self._work:
            self._waiting.setdefault(ino, time.monotonic())
            if not self._gathering:
                self._work.notify()

    def publish(self, inode: OpenInode) -> None:
        """Publish a pinned file whose writers are all closing, in a shared store.

        Raises `OSError` (EIO) if another host has taken it over, or if it cannot be uploaded: then
        it is tried again later.
        """
        assert self._publisher is not None
        try:
            self._publisher.send(inode)
        except (VfsdError, OSError) as error:
            if inode.is_lost:
                self._clear_retry(inode.ino)
            else:
                self._note_failure(inode.ino, error)
            if isinstance(error, OSError) and error.errno == errno.EIO:
                raise
            raise os_error(errno.EIO) from error
        self._clear_retry(inode.ino)

    def waits_for_upload(self, ino: int) -> bool:
        """Return whether a closed file could not be uploaded yet."""
        return self._publisher is not None and ino in self._postponed

    def is_pending(self, ino: int | None) -> bool:
        """Return whether the file, or any file (None), waits for classification."""
        if ino is None:
            return bool(self._waiting or self._running)
        return ino in self._waiting or ino in self._running

    def wait(self, ino: int | None, timeout: float) -> bool:
        """Wait until the file, or every file (None), is classified; return whether that is so."""
        with self._changed:
            self._waiters += 1
            self._urgent.notify_all()
            try:
                self._changed.wait_for(lambda: self._closed or not self.is_pending(ino), timeout)
            finally:
                self._waiters -= 1
            return not self.is_pending(ino)

    def settle(self, ino: int, timeout: float) -> Node | None:
        """Wait until the file is known to be a video or not; return its current node.

        A file with all writes flushed counts as closing, since the kernel sends RELEASE only after
        close(2) has returned.
        """
        end = time.monotonic() + timeout
        release_end = time.monotonic() + min(timeout, _RELEASE_SECONDS)
        asked = False
        while True:
            if self.waits_for_upload(ino):
                return self._names.node_if_any(ino)
            self.wait(ino, max(0.0, end - time.monotonic()))
            node = self._names.node_if_any(ino)
            if node is None or not self._needs_classification(node) or time.monotonic() > end:
                return node
            inode = self._open_inodes.peek(ino)
            if inode is None or not inode.writers:
                if asked:
                    return node
                asked = True
                self.submit(ino)  # as the last writer is about to do, or failed to do
            elif not inode.is_about_to_be_released or time.monotonic() > release_end:
                return node
            else:
                time.sleep(0.001)

    def close(self, timeout: float) -> None:
        """Classify for up to `timeout` seconds, then leave the rest to the next mount."""
        end = time.monotonic() + timeout
        self.wait(None, timeout)
        with self._changed:
            left, self._closed = len(self._waiting), True
            self._waiting.clear()
            for condition in (self._work, self._urgent, self._changed):
                condition.notify_all()
        if left:
            _log.warning("%d new files are left for the next mount to classify", left)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while self._gather():
            began = time.monotonic()
            taken: list[int] = []
            try:
                self._classify_batch(taken)
            finally:
                with self._changed:
                    self._running.difference_update(taken)
                    self._changed.notify_all()
                    if self._waiting or self._postponed:
                        self._work.notify()
                    self._yield_cpu(time.monotonic() - began)

    def _gather(self) -> bool:
        """Wait for files and a moment more for a batch. Return False after `close`."""
        with self._work:
            while not self._closed:
                is_ready = self._work.wait_for(
                    lambda: self._closed or (not self._gathering and self._next() is not None),
                    self._seconds_until_retry(),
                )
                if not is_ready:
                    self._requeue_due()
                    continue
                self._gathering = True
                try:
                    while not self._batch_is_due():
                        self._urgent.wait(_BATCH_SECONDS)
                finally:
                    self._gathering = False
                if self._next() is not None:
                    self._work.notify()  # another thread may start as well
                    return not self._closed
            return False

    def _seconds_until_retry(self) -> float | None:
        """Return the seconds until the next retry is due; None: there is none."""
        times = [
            each.until
            for ino, each in self._postponed.items()
            if ino not in self._waiting and ino not in self._running
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _requeue_due(self) -> None:
        now = time.monotonic()
        for ino, (until, _) in self._postponed.items():
            if until <= now and ino not in self._running:
                self._waiting.setdefault(ino, now)

    def _batch_is_due(self) -> bool:
        """Return whether the batch should not wait for more files."""
        oldest = next(iter(self._waiting.values()), None)
        return (
            self._closed
            or self._waiters > 0
            or oldest is None
            or len(self._waiting) >= _BATCH_SIZE
            or time.monotonic() - oldest >= _BATCH_SECONDS
        )

    def _yield_cpu(self, worked: float) -> None:
        """Rest as long as the batch took. Programs that write many small files need the CPU."""
        self._urgent.wait_for(
            lambda: self._closed or self._waiters > 0, min(worked, _MAX_YIELD_SECONDS)
        )

    def _next(self) -> int | None:
        """Return the first waiting file that no thread is classifying."""
        return next((ino for ino in self._waiting if ino not in self._running), None)

    def _take(self) -> int | None:
        with self._work:
            ino = self._next()
            if ino is not None:
                del self._waiting[ino]
                self._running.add(ino)
            return ino

    def _requeue_first(self, ino: int) -> None:
        """Put a file back to the head of the queue."""
        with self._work:
            self._running.discard(ino)
            self._waiting[ino] = 0.0
            self._waiting.move_to_end(ino, last=False)

    def _classify_batch(self, taken: list[int]) -> None:
        """Classify one possible video, or reject all waiting files up to the first possible video.

        Every file taken from the queue is appended to `taken`.
        """
        rejected: list[_Classification] = []
        with ExitStack() as pins:
            while len(rejected) < _BATCH_SIZE and (ino := self._take()) is not None:
                taken.append(ino)
                inode = pins.enter_context(self._open_inodes.pinned(ino))
                with self._postponing_errors(ino):
                    if self._publisher is not None:
                        self._publisher.send(inode)
                        self._clear_retry(ino)
                        return
                    classified = self._check_header(inode)
                    if classified is None:
                        self._clear_retry(ino)
                        continue
                    if classified.verdict is not None:
                        rejected.append(classified)
                    elif rejected:
                        self._requeue_first(taken.pop())
                        break
                    else:
                        self._classify_node(inode, classified.node)
                        self._clear_retry(ino)
                        return
            self._reject_batch(rejected)

    @contextmanager
    def _postponing_errors(self, ino: int) -> Iterator[None]:
        """Postpone the file on an error, and log the first one."""
        try:
            yield
        except Exception as error:
            now = self._names.reread(ino) if isinstance(error, FileNotFoundError) else None
            if isinstance(error, FileNotFoundError) and (
                now is None or not self._needs_classification(now)
            ):
                return  # it was deleted in the meantime
            self._note_failure(ino, error)

    def _note_failure(self, ino: int, error: Exception) -> None:
        """Postpone the file, and log the first error."""
        is_first = self._postpone(ino) <= _RETRY_SECONDS
        name = self._names.log_name(ino)
        what = "uploaded" if self._publisher else "classified"
        if is_first:
            _log.error("%s could not be %s; retrying every few minutes", name, what, exc_info=error)
        else:
            _log.debug("%s still could not be %s: %s", name, what, error)
        self._record_reason(ino, error)

    def _record_reason(self, ino: int, error: Exception) -> None:
        """Record in the row why the file waits, for `vfsd info` and ``user.vfsd.reason``.

        If the catalog is busy, only the log says why.
        """
        hint = getattr(error, "hint", None)
        begin = WAITS_FOR_UPLOAD if self._publisher else "not examined yet"
        text = f"{begin}: {error}" + (f"; {hint}" if hint else "")
        changes: dict[str, object] = {"reason": text}
        if self._publisher:  # others see the size
            with suppress(OSError):
                changes["size"] = self._context.directory.spool_file(ino).stat().st_size
        with suppress(VfsdError, OSError):
            before = self._names.node(ino)
            if before.reason == text or not self._needs_classification(before):
                return
            with self._names.changing(_REASON_SECONDS) as change:
                node = change.tree.nodes([ino]).get(ino)
                if node is not None and self._needs_classification(node):
                    change.touch(ino)
                    change.tree.alter(ino, **changes)

    def _postpone(self, ino: int) -> float:
        """Schedule a retry; return its delay in seconds."""
        with self._work:
            before = self._postponed.get(ino)
            longest = _MAX_UPLOAD_RETRY_SECONDS if self._publisher else _MAX_RETRY_SECONDS
            pause = min(longest, before.pause * 2) if before else _RETRY_SECONDS
            self._postponed[ino] = _Postponed(time.monotonic() + pause, pause)
            return pause

    def _clear_retry(self, ino: int) -> None:
        """Forget the retry: the file was classified, or its next writer will submit it."""
        with self._work:
            self._postponed.pop(ino, None)

    def _check_header(self, inode: OpenInode) -> _Classification | None:
        """Return the verdict from the header of a file; None if it must not be classified now."""
        node = self._names.node_if_any(inode.ino)
        if node is None or not self._needs_classification(node) or inode.writers:
            return None
        path = self._context.directory.spool_file(node.ino)
        return _Classification(inode, node, reject_by_header(path))

    def _reject_batch(self, rejected: list[_Classification]) -> None:
        """Record rejections in one transaction, or one by one if that fails."""
        alone: list[_Classification] = []
        try:
            with ExitStack() as locks:
                together: list[_Classification] = []
                for one in rejected:
                    # Never block on a lock while holding others: it may take long.
                    if one.inode.lock.acquire(blocking=False):
                        locks.callback(one.inode.lock.release)
                        together.append(one)
                    else:
                        alone.append(one)
                self._record_rejections([one for one in together if not one.inode.writers])
        except Exception:
            alone = rejected
        for one in alone:
            with self._postponing_errors(one.node.ino), one.inode.lock:
                if not one.inode.writers:
                    self._record_rejections([one])

    def _record_rejections(self, rejected: list[_Classification]) -> None:
        if not rejected:
            return
        with self._names.changing() as change:
            for one in rejected:
                assert one.verdict is not None
                self._record(change, one.node, one.verdict)
        for one in rejected:
            self._clear_retry(one.node.ino)

    def _classify_node(self, inode: OpenInode, node: Node) -> None:
        path = self._context.directory.spool_file(node.ino)
        self._open_inodes.open(inode)  # readers must not wait for the lock below
        stamp = inode.stamp
        verdict = classify_file(self._context, path)
        with ExitStack() as arriving:
            arrival = None
            if isinstance(verdict, AcceptedVideo):
                # Both are slow, so before the lock is taken.
                fsync_path(path)
                arrival = arriving.enter_context(
                    pending_own_file(self._context, path, verdict.digest, verdict.size)
                )
                arrival.upload()
            with inode.lock:
                # A writer needs this lock before its first write, to update the row. A write and
                # close since the hash left other bytes. They must never get the name of the hash,
                # since a crash would make that permanent.
                is_current = not inode.writers and inode.stamp == stamp
                is_published = is_current and self._publish(inode, node, verdict, arrival)
            if not is_published:
                if arrival is not None and (is_current or not self._context.objects.is_local):
                    arrival.withdraw()
                return
        if isinstance(verdict, AcceptedVideo):
            # Sync first: the private name may go only when the new row would survive a crash.
            self._context.catalog.sync()
            with inode.lock:
                now = self._names.node_if_any(node.ino)
                if now is None or now.state is FileState.VIDEO:
                    path.unlink(missing_ok=True)

    def _publish(
        self,
        inode: OpenInode,
        classified: Node,
        verdict: Verdict,
        arrival: PendingObject | None,
    ) -> bool:
        """Record the verdict; return False if it no longer holds."""
        if arrival is None:
            with self._names.changing() as change:
                return self._record(change, classified, verdict)
        path = self._context.directory.spool_file(classified.ino)
        inode.shown_ctime = os.stat(
            path
        ).st_ctime_ns  # linking into the store must not change the visible ctime
        arrival.ensure_stored()
        with self._names.changing() as change:
            published = self._record(change, classified, verdict, inode.shown_ctime, arrival)
        inode.backing = BackingKind.OBJECT if published else BackingKind.PRIVATE
        return published

    def _record(
        self,
        change: TreeTransaction,
        classified: Node,
        verdict: Verdict,
        ctime_ns: int = 0,
        arrival: PendingObject | None = None,
    ) -> bool:
        """Write the verdict to the row in a transaction; return False if it no longer holds."""
        path = self._context.directory.spool_file(classified.ino)
        change.touch(classified.ino)
        try:
            node = change.tree.node(classified.ino)
        except NotFoundError:
            return False
        if not self._needs_classification(node) or node.generation != classified.generation:
            return False
        found = os.stat(path)
        change.tree.alter(
            node.ino,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            ctime_ns=max(node.ctime_ns, ctime_ns),
        )
        publish_verdict(change.transaction, node, verdict, arrival)
        if _log.isEnabledFor(logging.DEBUG):
            what = (
                "not a video: " + verdict.reason if isinstance(verdict, RejectedFile) else "a video"
            )
            _log.debug("%s is %s", self._names.log_name(classified.ino), what)
        return True

    def _needs_classification(self, node: Node) -> bool:
        is_new = node.state is FileState.SPOOLED and node.nlink > 0
        return is_new and not self._context.is_elsewhere(node)
