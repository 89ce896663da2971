"""CPUs, memory and name of this machine, and CPU use of processes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from vfsd.errors import UsageError
from vfsd.validation import whole_number

_STAT = Path("/proc/stat")
_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Columns of a line of /proc/stat, see proc(5): idle, and iowait."""
_TIMES = 8
"""Columns that add up to all the time; guest time is already part of user time."""


def host_name() -> str:
    """Return the name of this machine.  It identifies hosts that share a catalog."""
    return platform.node() or "localhost"


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(jobs: int | None) -> int:
    """Return `jobs`, or the number of available cores for None.

    Raises `UsageError` for less than 1.
    """
    if jobs is None:
        return available_cores()
    jobs = whole_number(jobs, "jobs")
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}")
    return jobs


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, including its threads and its children that were waited
    for.

    0 if the process does not exist.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


class CpuMeter:
    """Measures how busy the cores available to this process are, between two calls."""

    def __init__(self) -> None:
        self._busy, self._all = _core_seconds()

    def share(self, without: float = 0.0) -> float:
        """Return the share of time, 0 to 1, in which the cores were busy since the last call.

        `without` core seconds are subtracted from the busy time: known work of the caller.  0 where
        the system does not provide figures, or no time has passed.
        """
        busy, everything = _core_seconds()
        spent, passed = busy - self._busy - without, everything - self._all
        self._busy, self._all = busy, everything
        return min(1.0, max(0.0, spent / passed)) if passed > 0 else 0.0


def _core_seconds() -> tuple[float, float]:
    """Return (busy, total) seconds of the available cores since boot."""
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
