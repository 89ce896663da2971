"""Samples the resource use of a process from /proc during a measurement."""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vfsd.core.process_control import cpu_seconds

MIB = 1 << 20
VIEWS_NAME = "vfsd-views"
"""Name of the processes that render views."""


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  #: seconds since the watch began
    memory: int  #: resident bytes; memory shared by processes counts once
    descriptors: int
    threads: int
    cpu: float  #: CPU seconds so far


class Watch:
    """Samples a mount and its view worker from another thread until the block ends."""

    def __init__(self, pid: int, every: float = 0.5) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._every = every
        self._began = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def look(self) -> Sample:
        family = family_of(self._pid)
        return Sample(
            time.monotonic() - self._began,
            sum(_memory(pid) for pid in family),
            sum(_entries(pid, "fd") for pid in family),
            sum(_entries(pid, "task") for pid in family),
            cpu_of(self._pid),
        )

    def settled(self, fds: int, seconds: float) -> Sample:
        """The first sample with at most that many descriptors, or the one after `seconds`."""
        end = time.monotonic() + seconds
        while (found := self.look()).descriptors > fds and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def _run(self) -> None:
        while not self._end.is_set():
            self.samples.append(self.look())
            self._end.wait(self._every)


def family_of(pid: int) -> list[int]:
    """The process of a mount, and its view workers."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                text = (path / "stat").read_text(errors="replace")
                name, _, rest = text.partition("(")[2].rpartition(")")
                if name == VIEWS_NAME:
                    parents[int(path.name)] = int(rest.split()[1])
    family = [pid]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    return family


def cpu_of(pid: int) -> float:
    """CPU seconds of a mount and its current view worker."""
    return sum(cpu_seconds(one) for one in family_of(pid))


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def _entries(pid: int, folder: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except OSError:
        return 0


def memory_figures(samples: list[Sample]) -> dict[str, float]:
    """Median MiB in each third, the peak, and the growth from the second third to the last."""
    thirds = [part.tolist() for part in np.array_split([one.memory / MIB for one in samples], 3)]
    first, second, last = (statistics.median(part or thirds[0]) for part in thirds)
    minutes = max(samples[-1].at - samples[0].at, 1.0) / 3 / 60
    return {
        "first third": first,
        "second third": second,
        "last third": last,
        "most": max(one.memory / MIB for one in samples),
        "MiB a minute": (last - second) / minutes,
    }
