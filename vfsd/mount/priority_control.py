"""How the process that makes views stands back for those who read plain files.

It has a session of its own, with which the system shares out its cores first (see sched(7),
autogroup).  While plain files are read its share is the smallest there is, so that it computes only
when nobody else wants to: one who reads four kilobytes at a time wakes up thousands of times a
second, and would wait each time.  But where others keep the cores busy that would be the end of it,
and of whoever waits for the view; where it gets too little, it has the share of others for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vfsd.core.hostinfo import cores, cpu_seconds
from vfsd.core.idle_priority import LOWEST_PRIORITY, set_share

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


class Deference:
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
            if wanted != self._given and set_share(*wanted):
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
        return (self._window[1] - computed) / (now - began) / cores() < self._least
