"""What has to be done after the answer was given: deleting bytes, and little things in a while."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from vfsd.parts import Parts
from vfsd.reclaim import reclaim

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.2


class Janitor:
    """One thread that deletes what nothing refers to any more, a batch at a time."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = threading.Condition()
        self._work = threading.Lock()
        self._inodes: list[int] = []
        self._keys: list[str] = []
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="vfsd-janitor", daemon=True)
        self._thread.start()

    def discard_inode(self, ino: int) -> None:
        """The inode's row is gone; so may its private file be."""
        with self._wake:
            self._inodes.append(ino)
            self._wake.notify()

    def discard_object(self, key: str) -> None:
        """The object has lost a reference; if that was the last one it may go."""
        with self._wake:
            self._keys.append(key)
            self._wake.notify()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` then, or when closing, whichever comes first."""
        with self._wake:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), action))
            self._wake.notify()

    def clean_now(self) -> bool:
        """Delete what there is to delete; whether there was anything."""
        with self._work:
            with self._wake:
                inodes, self._inodes = self._inodes, []
                keys, self._keys = self._keys, []
            if not inodes and not keys:
                return False
            reclaim(self._parts, keys=keys, inodes=inodes)
            return True

    def close(self) -> None:
        """Do what is left to do, and end."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._wake:
                if not self._closed:
                    self._wake.wait(self._pause())
                closing = self._closed
            try:
                self._do_due(everything=closing)
                if not closing and (self._inodes or self._keys):
                    self._gather()
                self.clean_now()
            except Exception:
                _log.exception("cleaning up failed; the next mount, or `vfsd gc`, does it")

    def _gather(self) -> None:
        """Let more come together before anything is deleted; what is due is not kept waiting."""
        end = time.monotonic() + _GATHER_SECONDS
        while (left := end - time.monotonic()) > 0:
            with self._wake:
                if self._closed:
                    return
                due = self._later[0][0] - time.monotonic() if self._later else left
                self._wake.wait(max(0.0, min(left, due)))
            self._do_due(everything=False)

    def _pause(self) -> float | None:
        """Seconds until there is something to do; None for an open end."""
        if self._inodes or self._keys:
            return 0.0
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def _do_due(self, *, everything: bool) -> None:
        while True:
            with self._wake:
                if not self._later:
                    return
                if not everything and self._later[0][0] > time.monotonic():
                    return
                _, _, action = heapq.heappop(self._later)
            action()
