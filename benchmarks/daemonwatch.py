"""What a process takes, sampled from /proc while something else is measured."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vfsd.host import cpu_seconds

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  #: seconds since the watch began
    memory: int  #: bytes that are resident
    descriptors: int
    threads: int
    cpu: float  #: seconds so far


class Watch:
    """Samples a process from another thread; ends with the block."""

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
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines()
        )
        return Sample(
            time.monotonic() - self._began,
            int(status["VmRSS"].split()[0]) << 10,
            len(os.listdir(f"/proc/{self._pid}/fd")),
            int(status["Threads"]),
            cpu_seconds(self._pid),
        )

    def settled(self, fds: int, seconds: float) -> Sample:
        """The first sample with so many descriptors or fewer, or the one after `seconds`."""
        end = time.monotonic() + seconds
        while (found := self.look()).descriptors > fds and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def _run(self) -> None:
        while not self._end.is_set():
            self.samples.append(self.look())
            self._end.wait(self._every)


def memory_figures(samples: list[Sample]) -> dict[str, float]:
    """MiB in each third, by the median; the most; how fast it grows from the second to the last."""
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
