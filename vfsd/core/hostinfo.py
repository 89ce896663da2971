"""The machine that this runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from vfsd.errors import UsageError
from vfsd.validation import whole_number

_STAT = Path("/proc/stat")
_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Columns of a line of /proc/stat, see proc(5): idle, and idle while a disk is waited for."""
_TIMES = 8
"""Columns that add up to all the time there was; guests' are counted in those of users."""


def host_name() -> str:
    """How this machine is called among others that share a catalog."""
    return platform.node() or "localhost"


def available_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(jobs: int | None) -> int:
    """How many are worked on at a time: `jobs`; None: one for each core.

    Raises `UsageError` for less than 1.
    """
    if jobs is None:
        return available_cores()
    jobs = whole_number(jobs, "jobs")
    if jobs < 1:
        raise UsageError(f"{jobs} jobs get nothing done", hint="give 1 or more")
    return jobs


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, with all its threads and the processes that it has seen
    the end of; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def resident_bytes(pid: int) -> int:
    """Memory that a process has; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


class CpuMeter:
    """How busy the cores that this process may run on are, from one question to the next."""

    def __init__(self) -> None:
        self._busy, self._all = _core_seconds()

    def share(self, without: float = 0.0) -> float:
        """The share of all cores' time since the last question in which they were not idle.

        From 0 to 1.  Of it `without` core seconds do not count: what the asker knows of.  0 where
        the system does not tell, or no time has passed.
        """
        busy, everything = _core_seconds()
        spent, passed = busy - self._busy - without, everything - self._all
        self._busy, self._all = busy, everything
        return min(1.0, max(0.0, spent / passed)) if passed > 0 else 0.0


def _core_seconds() -> tuple[float, float]:
    """Busy, and in all, of our cores since the machine came up."""
    try:
        lines = _STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0, 0.0
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = everything = 0
    for line in lines:
        name, *words = line.split()
        if name in mine:
            times = [int(word) for word in words[:_TIMES]]
            everything += sum(times)
            busy += sum(times) - sum(times[column] for column in _IDLE)
    return busy / _TICK, everything / _TICK
