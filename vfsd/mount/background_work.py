"""Background work of a mount, and how it stays out of the way of foreground reads.

`BackgroundVerifier` decodes every new video once, in idle time, to confirm its frame table.
`BucketCollector` deletes files of the bucket that nothing needs any more.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from vfsd.api.store import Store
from vfsd.core.model import ByteLocation, LogicalVideo
from vfsd.core.process_control import (
    LOWEST_PRIORITY,
    available_cores,
    cpu_seconds,
    set_autogroup_niceness,
)
from vfsd.core.view_request import CancelCheck, ViewFile, ViewStat
from vfsd.errors import NotFoundError, VfsdError
from vfsd.storage.quarantine import QuarantineEntry
from vfsd.views import TimelineFiles, Views, ViewUpload

if TYPE_CHECKING:
    from vfsd.storage.remote_objects import RemoteObjects

_log = logging.getLogger(__name__)

ORDINARY, LOWEST = 0, LOWEST_PRIORITY
# The render process has low priority until no plain file was read for this long.
_QUIET_SECONDS = 1.0
_WINDOW_SECONDS = 2.0
# After a gap like this between requests the process may have been idle.
_GAP_SECONDS = 0.5
# Share of all cores that it must get at low priority; otherwise it gets ordinary priority.
# With 36 busy processes on two cores, views took a hundred times longer with the smallest share
# than with an equal one.
_MIN_SHARE = 0.04
# How long it then keeps ordinary priority.
_RECOVERY_SECONDS = 30.0
_PAUSE_SECONDS = 2.0
# How often a mount deletes garbage from the bucket, on average: all hosts share the work.
_COLLECT_SECONDS = 600.0
_LOWEST_PRIORITY = 19


class ForegroundReads:
    """Counts reads of views in progress. Thread-safe."""

    def __init__(self) -> None:
        #: Called by the first of several concurrent readers, before it waits.
        self.on_first: Callable[[], None] = lambda: None
        self._guard = threading.Lock()
        self._waiting = 0
        self._last = -float("inf")  # monotonic end of the last read

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one reader during the block."""
        with self._guard:
            is_first = self._waiting == 0
            self._waiting += 1
        try:
            if is_first:
                self.on_first()
            yield
        finally:
            with self._guard:
                self._waiting -= 1
                self._last = time.monotonic()

    @property
    def calm(self) -> float:
        """Seconds since the last read of a view; 0 during one."""
        with self._guard:
            return 0.0 if self._waiting else time.monotonic() - self._last


class ObservedViews:
    """Views whose readers are counted in `ForegroundReads`."""

    def __init__(self, views: Views | TimelineFiles, foreground: ForegroundReads) -> None:
        self._views = views
        self._foreground = foreground

    def stat(self, ino: int, path: str) -> ViewStat:
        with self._foreground.waiting():  # the size of a JPEG is known only after encoding
            return self._views.stat(ino, path)

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        return self._views.list(ino, path)

    def open(self, ino: int, path: str) -> ViewFile:
        with self._foreground.waiting():
            return _ObservedFile(self._views.open(ino, path), self._foreground)

    def open_upload(self, ino: int, path: str) -> ViewUpload:
        return self._views.open_upload(ino, path)


class _ObservedFile:
    def __init__(self, file: ViewFile, foreground: ForegroundReads) -> None:
        self._file = file
        self._foreground = foreground

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def version(self) -> str:
        return self._file.version

    @property
    def whole(self) -> int | None:
        return self._file.whole

    @property
    def is_work(self) -> bool:
        return self._file.is_work

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        with self._foreground.waiting():
            return self._file.readinto(buffer, offset, cancel_check)

    def close(self) -> None:
        self._file.close()


class PriorityControl:
    """Sets the CPU priority of the render process over time. Thread-safe."""

    def __init__(self, files_are_read: Callable[[], bool], least: float = _MIN_SHARE) -> None:
        """`files_are_read` returns whether plain files are being read.

        `least` is the share of all cores below which low priority counts as starving.
        """
        self._files_are_read = files_are_read
        self._minimum = least
        self._guard = threading.Lock()
        self._applied = (0, ORDINARY)  # (pid, priority)
        self._read = self._seen = -float("inf")
        self._window = (0.0, 0.0)  # start of the measurement, CPU seconds at that time
        self._ordinary_until = -float("inf")

    def update(self, pid: int) -> None:
        """Adjust the priority of process `pid`. Call it often while the process is working.

        The process starts with `ORDINARY`.
        """
        if not self._guard.acquire(blocking=False):
            return  # another thread does
        try:
            now = time.monotonic()
            if self._files_are_read():
                self._read = now
            is_wanted = self._read + _QUIET_SECONDS > now
            if self._is_starving(pid, now):
                self._ordinary_until = now + _RECOVERY_SECONDS
            is_last = is_wanted and now >= self._ordinary_until
            wanted = (pid, LOWEST if is_last else ORDINARY)
            if wanted != self._applied and set_autogroup_niceness(*wanted):
                self._applied = wanted
                self._window = (now, cpu_seconds(pid))
        finally:
            self._guard.release()

    def _is_starving(self, pid: int, now: float) -> bool:
        """Return whether the process got too little CPU time at low priority."""
        began, computed = self._window
        last, self._seen = self._seen, now
        if now < began + _WINDOW_SECONDS and now < last + _GAP_SECONDS:
            return False
        self._window = (now, cpu_seconds(pid))
        if now >= last + _GAP_SECONDS or self._applied != (pid, LOWEST):
            return False
        return (self._window[1] - computed) / (now - began) / available_cores() < self._minimum


class _VerifierStopError(Exception):
    """The verifier must stop in the middle of a video."""


class BackgroundVerifier:
    """A thread that decodes videos with a frame table made from packets only.

    It has the lowest priority. Closing it interrupts the current video; the next mount starts that
    again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._failed: set[int] = set()
        self._passed = 0  #: all originals up to this id have been tried
        self._barred: dict[ByteLocation, QuarantineEntry] = {}
        self._thread = threading.Thread(target=self._run, name="vfsd-verify", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        is_due = True
        with closing(self._store.catalog.watch()) as watch:
            while not self._stop.wait(_PAUSE_SECONDS):
                try:
                    is_due |= watch.changed()
                    is_due |= self._barred != self._store.parts.quarantine.barred()
                    if is_due:
                        self._verify_next()
                        is_due = False
                except _VerifierStopError:
                    return
                except Exception:
                    _log.exception("could not look for videos to verify; trying again")

    def _verify_next(self) -> None:
        """Verify quarantined videos, then the newest unverified one that does not fail.

        A verified video changes the catalog, which triggers the next call.
        """
        self._barred = self._store.parts.quarantine.barred()
        for info in self._quarantined():
            self._verify(info)
        newest, before = self._passed, None
        while some := self._store.catalog.unverified(before_id=before):
            newest = max(newest, some[0].original.id)
            new = [info for info in some if info.original.id > self._passed]
            verified = [self._verify(info) for info in new]
            if any(verified):
                return
            if len(new) < len(some):
                break
            before = some[-1].original.id
        self._passed = newest

    def _verify(self, info: LogicalVideo) -> bool:
        """Decode a video; return False if it failed, now or before."""
        if info.original.id in self._failed:
            return False
        try:
            if self._store.open_video(info).verify(on_progress=self._progress):
                _log.info("the frame table of %r was corrected", info.name)
        except NotFoundError:
            return False  # deleted in the meantime
        except (VfsdError, OSError) as error:
            # Remember it: retrying every two seconds would not help. `vfsd fsck` reports it.
            self._failed.add(info.original.id)
            _log.warning("%r could not be verified: %s", info.name, error)
            return False
        return True

    def _quarantined(self) -> list[LogicalVideo]:
        """Return quarantined videos with one crash: most of them did not cause it.

        After a second crash the user must verify them.
        """
        places = [place for place, one in self._barred.items() if one.crashes == 1]
        with self._store.catalog.reading() as seen:
            numbers = [number for place in places for number in seen.integrity.videos_of(place)]
            return [seen.videos.get(number) for number in numbers]

    def _progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _VerifierStopError


class BucketCollector:
    """A thread that deletes garbage from the bucket of a store. Closing it waits for a request."""

    def __init__(self, objects: RemoteObjects, grace: float) -> None:
        """`grace` is how long removed objects stay, in seconds."""
        self._objects = objects
        self._grace = grace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-collect", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_COLLECT_SECONDS * random.uniform(0.5, 1.5)):
            try:
                files, size = self._objects.collect(self._grace, self._stop.is_set)
                if files:
                    _log.info("%d files, %d bytes, were deleted from the bucket", files, size)
            except (VfsdError, OSError) as error:
                _log.warning("garbage could not be deleted from the bucket: %s", error)
