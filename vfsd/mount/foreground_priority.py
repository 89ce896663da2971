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
    """Counts those who wait for a view at present.  Thread-safe."""

    def __init__(self) -> None:
        #: Called by whoever comes when nobody is waiting, before it waits.
        self.on_first: Callable[[], None] = lambda: None
        self._guard = threading.Lock()
        self._waiting = 0
        self._last = -float("inf")  # when the last of them had waited

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """To be held by somebody for as long as it waits."""
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
        """Seconds since somebody waited last; 0 while somebody does."""
        with self._guard:
            return 0.0 if self._waiting else time.monotonic() - self._last


class ObservedViews:
    """Views whose readers are counted."""

    def __init__(self, views: Views, foreground: ForegroundReads) -> None:
        self._views = views
        self._foreground = foreground

    def stat(self, ino: int, path: str) -> ViewStat:
        with self._foreground.waiting():  # a JPEG is made to be measured
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

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        with self._foreground.waiting():
            return self._file.readinto(buffer, offset, patience)

    def close(self) -> None:
        self._file.close()


ORDINARY, LAST = 0, LOWEST_PRIORITY
_CALM_SECONDS = 1.0
"""When no plain file was read for so long, the process stands back no more."""
_LOOK_SECONDS = 2.0
_GAP_SECONDS = 0.5
"""When nobody has asked it for anything for so long, it may have had nothing to do."""
# With 36 busy processes on two cores, views took a hundred times longer with the smallest share
# than with an equal one.
_LEAST = 0.04
"""The share of all cores that it has to get while it stands back; with less it stops doing so."""
_RECOVERY_SECONDS = 30.0
"""For how long it has an ordinary share then."""


class PriorityControl:
    """Decides, from time to time, which share of the cores a process gets.  Thread-safe."""

    def __init__(self, files_are_read: Callable[[], bool], least: float = _LEAST) -> None:
        """`files_are_read` tells whether somebody reads plain files just now; `least` is the share
        of all cores with which the process goes on standing back."""
        self._files_are_read = files_are_read
        self._least = least
        self._guard = threading.Lock()
        self._given = (0, ORDINARY)  # to which process
        self._read = self._seen = -float("inf")
        self._window = (0.0, 0.0)  # when it began, and what had been computed by then
        self._ordinary_until = -float("inf")

    def look(self, pid: int) -> None:
        """Do what is right by now; to be called often while a process makes something.

        It has the share `ORDINARY` to begin with.
        """
        if not self._guard.acquire(blocking=False):
            return  # another thread does
        try:
            now = time.monotonic()
            if self._files_are_read():
                self._read = now
            is_wanted = self._read + _CALM_SECONDS > now
            if self._is_starving(pid, now):
                self._ordinary_until = now + _RECOVERY_SECONDS
            is_last = is_wanted and now >= self._ordinary_until
            wanted = (pid, LAST if is_last else ORDINARY)
            if wanted != self._given and set_autogroup_niceness(*wanted):
                self._given = wanted
                self._window = (now, cpu_seconds(pid))
        finally:
            self._guard.release()

    def _is_starving(self, pid: int, now: float) -> bool:
        """Whether it stood back, and got too little for that."""
        began, computed = self._window
        last, self._seen = self._seen, now
        if now < began + _LOOK_SECONDS and now < last + _GAP_SECONDS:
            return False
        self._window = (now, cpu_seconds(pid))
        if now >= last + _GAP_SECONDS or self._given != (pid, LAST):
            return False
        return (self._window[1] - computed) / (now - began) / available_cores() < self._least
