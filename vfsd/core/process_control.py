"""Settings of the current process: priority, time slice, death with the parent, OOM score, malloc.

`MallocTrimmer` calls malloc_trim(3) when the process has grown.
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

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Kill this process when the thread that started it ends, or now if it has ended.

    `parent` is the pid of the starting process.  Call it again after a change of user ids, which
    clears the setting.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def set_oom_score(score: int) -> None:
    """Set oom_score_adj (see proc(5)), so that the kernel kills this process before others.

    0 is the default of other processes, 1000 the maximum.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


_SYSCALL_NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Of sched_setattr(2): the C library has no wrapper."""
_ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""size, policy (0: SCHED_OTHER), flags, nice, priority, runtime (ns), deadline, period."""
_SLICE_NS = 100_000
"""The shortest slice that the kernel accepts."""


def shorten_time_slice() -> None:
    """Request short time slices for this thread and all that it starts later.  Never fails."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


LOWEST_PRIORITY = 19
"""See nice(2)."""


def set_idle_priority() -> None:
    """Use the CPU and the disk only when they are otherwise idle, for the whole process.

    SCHED_IDLE implies the idle class for disk access (see ioprio_set(2)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)


def set_autogroup_niceness(pid: int, niceness: int) -> bool:
    """Set the niceness of a process's session among other sessions; see sched(7), autogroup.

    Returns False if the caller must retry later: the kernel accepts ten changes a second from
    processes without root.  Does nothing where autogrouping is disabled.
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
"""Number of malloc arenas.  Few arenas let threads reuse memory that others freed."""
_FREE_AT_THE_END = 16 << 20
"""Bytes that an arena may keep free at its end.  With the default of glibc, which starts at 128 KiB
and grows to twice the largest freed block, each reply of 512 KiB cost a hundred page faults.
"""
_OWN_MAPPING = 32 << 20
"""Larger blocks get their own mapping.  32 MiB is the maximum of glibc's dynamic threshold, which
becomes static when the other threshold is set.
"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
# Trimming every second cost a sixth of the throughput of raw views, in page faults.
_CHECK_SECONDS = 5.0
_SLACK = 64 << 20
"""Bytes that the process may grow by before free memory is returned."""
_LONGEST_SECONDS = 30.0
_IDLE_SECONDS = 30.0
"""Resources kept for the next reader are freed after this idle time."""
# numpy requests huge pages for arrays of 4 MiB or more.  Trimming punches holes into them, which
# the kernel fills up again.
_PR_SET_THP_DISABLE = 41
"""Option of prctl(2)."""


def limit_arenas() -> None:
    """Limit the number of malloc arenas, and let them keep some freed memory.

    Call it before other threads allocate.
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
            _log.debug("mallopt(%d) failed", what)


def disable_huge_pages() -> None:
    """Disable transparent huge pages in this process and its forked children (Linux).

    numpy requests them for arrays of 4 MiB or more, and the advice stays with that part of the
    heap. After trimming, the kernel would fill up a whole huge page for every small page that is
    left.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        _log.debug("huge pages cannot be disabled")


class MallocTrimmer:
    """A thread that returns free memory: when the process has grown, and periodically."""

    def __init__(self, evict_idle: Callable[[float], None]) -> None:
        """`evict_idle(seconds)` is called every few seconds and frees what was unused for that
        long.
        """
        self._evict_idle = evict_idle
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
        while not self._stop.wait(_CHECK_SECONDS):
            self._evict_idle(_IDLE_SECONDS)
            now = resident_bytes(me)
            if now > least + _SLACK or time.monotonic() - last > _LONGEST_SECONDS:
                self._trim(ctypes.c_size_t(0))
                least, last = resident_bytes(me), time.monotonic()
