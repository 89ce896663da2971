"""Settings of the current process: priority, time slices, death with its parent, OOM score, and
memory returned by glibc. `MallocTrimmer` calls malloc_trim(3) when the process has grown.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vfsd.core.hostinfo import resident_bytes

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that has started this process ends; at once if it has.

    `parent` is the number of its process.  To be said anew after other user ids were taken.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def set_oom_score(score: int) -> None:
    """Where memory runs out, let this process go before others; see proc(5), oom_score_adj.

    0 is what others have, 1000 the most.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


_SYSCALL_NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Of the system call, which the C library has no name for."""
_ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""size, policy (0: the usual one), flags, nice, priority, runtime (ns), deadline, period."""
_SLICE_NS = 100_000
"""The shortest that there is."""


def shorten_time_slice() -> None:
    """Have short slices, this thread and all that it starts from now on.  Never fails."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    told = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, told, 0)


LOWEST_PRIORITY = 19
"""See nice(2)."""


def set_idle_priority() -> None:
    """Compute, and wait for the disk, only where nobody else wants to; all of this process.

    With SCHED_IDLE the disk's idle class comes by itself (see ioprio_set(2)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)


def set_autogroup_niceness(pid: int, niceness: int) -> bool:
    """Give the session of a process that niceness among other sessions, see sched(7), autogroup.

    False: it has to be said again later, as the kernel takes ten such words a second, and no more
    of those who are not root.  Nothing happens where cores are not shared out like that.
    """
    with suppress(OSError):
        place = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(place, str(niceness).encode("ascii"))
        except BlockingIOError:
            return False
        finally:
            os.close(place)
    return True


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


def limit_arenas() -> None:
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


def disable_huge_pages() -> None:
    """Have no huge pages in this process, and in those that it forks (Linux).

    numpy asks for them, for each array of four megabytes, and what it asked for holds for that part
    of the heap from then on.  Where parts of it are given back, the system fills them up again, a
    whole huge page for every small one that is left.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        _log.debug("huge pages stay as they are")


class MallocTrimmer:
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
