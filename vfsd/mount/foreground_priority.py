"""Keeps background work out of the way of foreground reads.

`ForegroundReads` counts reads of views in progress; `PriorityControl` sets the CPU share of the
render process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vfsd.core.hostinfo import available_cores, cpu_seconds
from vfsd.core.process_control import LOWEST_PRIORITY, set_autogroup_niceness
from vfsd.core.view_request import CancelCheck, ViewFile, ViewStat
from vfsd.views import Views, ViewUpload


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

    def __init__(self, views: Views, foreground: ForegroundReads) -> None:
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

    def offer(self, ino: int, path: str) -> ViewUpload:
        return self._views.offer(ino, path)


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


ORDINARY, LOWEST = 0, LOWEST_PRIORITY
_QUIET_SECONDS = 1.0
"""The render process has low priority until no plain file was read for this long."""
_WINDOW_SECONDS = 2.0
_GAP_SECONDS = 0.5
"""After a gap like this between requests the process may have been idle."""
# With 36 busy processes on two cores, views took a hundred times longer with the smallest share
# than with an equal one.
_MIN_SHARE = 0.04
"""Share of all cores that it must get at low priority; otherwise it gets ordinary priority."""
_RECOVERY_SECONDS = 30.0
"""How long it then keeps ordinary priority."""


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
