"""Who waits for a view: what is done in the background stands back for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vfsd.core.view_file import Patience, ViewFile, ViewStat
from vfsd.views import Offer, Views


class Foreground:
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

    def __init__(self, views: Views, foreground: Foreground) -> None:
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

    def offer(self, ino: int, path: str) -> Offer:
        return self._views.offer(ino, path)


class _ObservedFile:
    def __init__(self, file: ViewFile, foreground: Foreground) -> None:
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

    def readinto(self, buffer: memoryview, offset: int, patience: Patience | None = None) -> int:
        with self._foreground.waiting():
            return self._file.readinto(buffer, offset, patience)

    def close(self) -> None:
        self._file.close()
