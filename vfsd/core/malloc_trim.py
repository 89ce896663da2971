"""Memory that was freed goes back to the system, and not only to the C library.

glibc keeps it for what is allocated next, in up to eight arenas a core, and pictures that came and
went leave holes in all of them: a mount that is read by many had twice as much as it used.  With
other C libraries only what nobody needs any more is freed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable

from vfsd.core.hostinfo import resident_bytes

_ARENAS = 4
"""In how many heaps threads allocate, so that what one has freed serves another."""
_FREE_AT_THE_END = 16 << 20
"""Bytes that a heap may have free at its end.  With glibc's own bound, which begins at 128 KiB and
is twice the largest block that was freed, each answer of half a megabyte was a hundred page
faults."""
_OWN_MAPPING = 32 << 20
"""Larger blocks are no part of a heap.  It is where glibc's own bound ends, which stays where it is
as soon as the other one is set."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of mallopt(3)."""
# Trimming each second cost a sixth of the throughput of raw views, in page faults.
_LOOK_SECONDS = 5.0
_SLACK = 64 << 20
"""Bytes by which the process may have grown before what is free is given back."""
_LONGEST_SECONDS = 30.0
_COLD_SECONDS = 30.0
"""What is kept for the next reader is freed when none has come for so long."""
# numpy asks for huge pages for arrays of four megabytes. Trimming punches holes into them, and the
# kernel fills these again.
_PR_SET_THP_DISABLE = 41
"""Of prctl(2)."""

_log = logging.getLogger(__name__)


def share_arenas() -> None:
    """Have all threads of this process allocate from few heaps, which keep some of what is freed.

    To be called before they do.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    settings = (
        (_ARENA_MAX, _ARENAS),
        (_TRIM_THRESHOLD, _FREE_AT_THE_END),
        (_MMAP_THRESHOLD, _OWN_MAPPING),
    )
    for what, value in settings:
        if not libc.mallopt(what, value):
            _log.debug("malloc does as it likes (%d)", what)


def use_small_pages() -> None:
    """Have no huge pages in this process, and in those that it forks (Linux).

    numpy asks for them, for each array of four megabytes, and what it asked for holds for that part
    of the heap from then on.  Where parts of it are given back, the system fills them up again, a
    whole huge page for every small one that is left.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        _log.debug("huge pages stay as they are")


class Trimmer:
    """A thread that gives back what is free: when the process has grown, and now and then."""

    def __init__(self, cool: Callable[[float], None]) -> None:
        """`cool` is called every few seconds, and frees what nobody has used for so many."""
        self._cool = cool
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-heap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        me = os.getpid()
        least, last = resident_bytes(me), time.monotonic()
        while not self._stop.wait(_LOOK_SECONDS):
            self._cool(_COLD_SECONDS)
            now = resident_bytes(me)
            if now > least + _SLACK or time.monotonic() - last > _LONGEST_SECONDS:
                self._trim(ctypes.c_size_t(0))
                least, last = resident_bytes(me), time.monotonic()
