"""Statistics of a mount. `OperationCounters` counts operations and latencies without a lock.

`StatsCollector` adds CPU and memory use. `MountStats` is the JSON form.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vfsd.core.process_control import cpu_seconds, resident_bytes

# Bucket i counts replies that took at least 2 ** (i - 1) and less than 2 ** i nanoseconds.
_BUCKETS = 64
_JUST_NOW_NS = 100_000_000

MOVING = frozenset(("read", "write", "copy_file_range"))
"""Operations with a number of bytes as their result."""


@dataclass(frozen=True, slots=True)
class OperationTotals:
    """Totals of one operation since the mount started."""

    count: int
    failed: int  #: replied with an error, including lookups of missing names
    seconds: float  #: total time of all replies
    bytes: int  #: bytes read, written or copied
    buckets: Mapping[
        float, int
    ]  #: replies by upper limit of seconds; each limit is twice the one before

    def within(self, share: float) -> float:
        """Return the seconds within which that share of all replies came, within a factor of two.

        0 if there were none.
        """
        wanted, seen = share * self.count, 0
        for limit, count in sorted(self.buckets.items()):
            seen += count
            if seen >= wanted:
                return limit
        return 0.0


class ThreadOperationCounts:
    """Counts of one operation in one thread. Only that thread writes them."""

    __slots__ = ("buckets", "bytes", "count", "failed", "nanoseconds")

    def __init__(self) -> None:
        self.count = self.failed = self.nanoseconds = self.bytes = 0
        self.buckets = [0] * _BUCKETS

    def note(self, nanoseconds: int, answer: int) -> None:
        """Count one reply. `answer` is negative for errors, or a number of bytes."""
        self.count += 1
        self.nanoseconds += nanoseconds
        self.buckets[min(nanoseconds.bit_length(), _BUCKETS - 1)] += 1
        if answer < 0:
            self.failed += 1
        else:
            self.bytes += answer


class ThreadCounters(dict[str, ThreadOperationCounts]):
    """Counts of one thread by operation. Missing entries are created."""

    def __missing__(self, name: str) -> ThreadOperationCounts:
        self[name] = found = ThreadOperationCounts()
        return found


class OperationCounters:
    """Counts of all threads. Counting takes no lock: each thread has its own counters."""

    def __init__(self) -> None:
        self._threads: list[ThreadCounters] = []
        self._left: list[ThreadCounters] = []  # of ended threads, for the next new thread
        self._guard = threading.Lock()
        self.file_read_ns = -_JUST_NOW_NS
        """`time.perf_counter_ns` of the last read of a file that is not a view."""
        self.passed_through: Callable[[], int] | None = None
        """Returns how many files the kernel reads directly; None: passthrough is off."""
        self.known_inodes: Callable[[], int] | None = None
        """Returns how many inodes the kernel knows; None: it knows paths."""

    def are_files_read(self) -> bool:
        """Return whether files other than views were read within the last 0.1 s."""
        return time.perf_counter_ns() - self.file_read_ns < _JUST_NOW_NS

    def of_this_thread(self) -> ThreadCounters:
        """Return counters for the calling thread. Call it once per thread, and `give_back` at its
        end."""
        with self._guard:
            if self._left:
                return self._left.pop()
            mine = ThreadCounters()
            self._threads.append(mine)
        return mine

    def give_back(self, mine: ThreadCounters) -> None:
        """Return the counters of a thread that ends. Its counts stay."""
        with self._guard:
            self._left.append(mine)

    def tallies(self) -> dict[str, OperationTotals]:
        """Return the totals by operation name."""
        with self._guard:
            threads = [dict(mine) for mine in self._threads]
        found = {}
        for name in sorted({name for mine in threads for name in mine}):
            counts = [mine[name] for mine in threads if name in mine]
            sums = [sum(column) for column in zip(*(one.buckets for one in counts), strict=True)]
            found[name] = OperationTotals(
                sum(one.count for one in counts),
                sum(one.failed for one in counts),
                sum(one.nanoseconds for one in counts) / 1e9,
                sum(one.bytes for one in counts) if name in MOVING else 0,
                {(1 << i) / 1e9: count for i, count in enumerate(sums) if count},
            )
        return found


@dataclass(frozen=True, slots=True)
class RenderProcessStats:
    """Use of CPU and memory by the render process of a mount."""

    pid: int
    cpu_seconds: float  #: in user and system mode
    memory: int  #: resident bytes
    decoder_memory: int  #: approximate bytes of frames held by open decoders

    @classmethod
    def of(cls, pid: int, decoder_memory: int) -> RenderProcessStats:
        return cls(pid, cpu_seconds(pid), resident_bytes(pid), decoder_memory)


@dataclass(frozen=True, slots=True)
class MountStats:
    """The content of ``user.vfsd.stats`` of a mount point."""

    pid: int
    since: float  #: Unix time of the start
    seconds: float  #: since the start
    cpu_seconds: float  #: of the process, in user and system mode
    memory: int  #: resident bytes
    threads: int
    descriptors: int  #: open files of the process
    operations: Mapping[str, OperationTotals]
    rendering: RenderProcessStats | None = None  #: None: no render process
    passthrough: int | None = None  #: files that the kernel reads directly; None: disabled
    inodes: int | None = None  #: that the kernel knows; None: the mount is served by path

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> MountStats:
        """Parse the output of `text`. Raises `ValueError`."""
        try:
            found: dict[str, Any] = json.loads(text)
            operations = {
                name: OperationTotals(**{**tally, "buckets": _numbered(tally["buckets"])})
                for name, tally in found.pop("operations").items()
            }
            rendering = found.pop("rendering")
            made_by = None if rendering is None else RenderProcessStats(**rendering)
            return cls(**found, operations=operations, rendering=made_by)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"invalid mount statistics: {error}") from error


class StatsCollector:
    """Collects the statistics of this process. Thread-safe."""

    def __init__(self, counters: OperationCounters) -> None:
        self._counters = counters
        self._since = time.time()
        self._began = time.monotonic()

    def now(self, rendering: RenderProcessStats | None) -> MountStats:
        used = os.times()
        passed_through, inodes = self._counters.passed_through, self._counters.known_inodes
        return MountStats(
            os.getpid(),
            self._since,
            time.monotonic() - self._began,
            used.user + used.system,
            resident_bytes(os.getpid()),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
            self._counters.tallies(),
            rendering,
            None if passed_through is None else passed_through(),
            None if inodes is None else inodes(),
        )


def _numbered(buckets: Mapping[str, int]) -> dict[float, int]:
    return {float(limit): count for limit, count in buckets.items()}
