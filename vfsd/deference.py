"""How the process that makes views stands back for those who read plain files.

It has a session of its own, with which the system shares out its cores first (see sched(7),
autogroup).  While plain files are read its share is the smallest there is, so that it computes only
when nobody else wants to: one who reads four kilobytes at a time wakes up thousands of times a
second, and would wait each time.  But where others keep the cores busy, that would be the end of
it, and of whoever waits for the view; then it has an ordinary share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vfsd.host import CoreUse, cpu_seconds

ORDINARY, LAST = 5, 19
"""See nice(2)."""
_CALM_SECONDS = 1.0
"""After as long without a read of a plain file it stands back no more."""
_LOOK_SECONDS = 0.5
_BUSY = 0.8


def set_share(pid: int, niceness: int) -> None:
    """Give the session of a process that niceness; nothing happens where there is no such thing."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


class Deference:
    """Thread-safe."""

    def __init__(self, files_are_read: Callable[[], bool], busy: float = _BUSY) -> None:
        """`files_are_read` tells whether somebody reads plain files just now; `busy` is the share
        of all cores that others may keep busy while it stands back."""
        self._files_are_read = files_are_read
        self._busy = busy
        self._guard = threading.Lock()
        self._given = (0, ORDINARY)  # to which process
        self._read = self._looked = -float("inf")
        self._use = CoreUse()
        self._ours = 0.0
        self._others_are_busy = False

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
            if now >= self._looked + _LOOK_SECONDS:
                self._looked = now
                self._others_are_busy = self._others(pid) > self._busy
            is_last = now < self._read + _CALM_SECONDS and not self._others_are_busy
            wanted = (pid, LAST if is_last else ORDINARY)
            if wanted != self._given:
                self._given = wanted
                set_share(*wanted)
        finally:
            self._guard.release()

    def _others(self, pid: int) -> float:
        """The share of the cores that neither this process nor that one has used lately."""
        ours = cpu_seconds(os.getpid()) + cpu_seconds(pid)
        used, self._ours = ours - self._ours, ours
        return self._use.share(max(0.0, used))
