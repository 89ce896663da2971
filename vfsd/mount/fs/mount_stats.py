"""Statistics of a mount.

`OperationCounters` counts operations and their latency without a lock; `StatsCollector` adds the
use of CPU and memory and writes JSON.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vfsd.core.hostinfo import cpu_seconds, resident_bytes

_BUCKETS = 64
"""The i-th counts answers that took less than 2 ** i ns, and not less than half of that."""
_JUST_NOW_NS = 100_000_000

MOVING = frozenset(("read", "write", "copy_file_range"))
"""Operations that answer with a number of bytes."""


@dataclass(frozen=True, slots=True)
class OperationTotals:
    """Of one operation, since the mount began."""

    count: int
    failed: int  #: answered with an error; looking for what is not there counts as well
    seconds: float  #: that all answers took together
    bytes: int  #: that were moved
    buckets: Mapping[float, int]  #: answers that took up to so many seconds, and more than half

    def within(self, share: float) -> float:
        """Seconds within which that share of all answers came, to a factor of two; 0 for none."""
        wanted, seen = share * self.count, 0
        for limit, count in sorted(self.buckets.items()):
            seen += count
            if seen >= wanted:
                return limit
        return 0.0


class ThreadOperationCounts:
    """Those of one thread, of one operation.  Only that thread writes."""

    __slots__ = ("buckets", "bytes", "count", "failed", "nanoseconds")

    def __init__(self) -> None:
        self.count = self.failed = self.nanoseconds = self.bytes = 0
        self.buckets = [0] * _BUCKETS

    def note(self, nanoseconds: int, answer: int) -> None:
        """`answer` is below 0 for errors, and bytes where bytes are moved."""
        self.count += 1
        self.nanoseconds += nanoseconds
        self.buckets[min(nanoseconds.bit_length(), _BUCKETS - 1)] += 1
        if answer < 0:
            self.failed += 1
        else:
            self.bytes += answer


class ThreadCounters(dict[str, ThreadOperationCounts]):
    """Of one thread; what was not asked for yet begins when it is."""

    def __missing__(self, name: str) -> ThreadOperationCounts:
        self[name] = found = ThreadOperationCounts()
        return found


class OperationCounters:
    """All operations of all threads.  Counting takes no lock: each thread has counts of its own."""

    def __init__(self) -> None:
        self._threads: list[ThreadCounters] = []
        self._left: list[ThreadCounters] = []  # by threads that have ended; the next one goes on
        self._guard = threading.Lock()
        self.file_read_ns = -_JUST_NOW_NS
        """When a file was read last that is no view, as `time.perf_counter_ns` has it."""
        self.passed_through: Callable[[], int] | None = None
        """How many files the kernel can read by itself just now; None: it reads none so."""

    def are_files_read(self) -> bool:
        """Whether somebody reads files that are no views just now."""
        return time.perf_counter_ns() - self.file_read_ns < _JUST_NOW_NS

    def of_this_thread(self) -> ThreadCounters:
        """Counts for the thread that asks, its own until it gives them back: once for each."""
        with self._guard:
            if self._left:
                return self._left.pop()
            mine = ThreadCounters()
            self._threads.append(mine)
        return mine

    def give_back(self, mine: ThreadCounters) -> None:
        """The thread that had these ends; what it has counted stays."""
        with self._guard:
            self._left.append(mine)

    def tallies(self) -> dict[str, OperationTotals]:
        """Of the operations that were asked for at all, by name."""
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
    """The process that makes views for a mount."""

    pid: int
    cpu_seconds: float  #: in user and system mode
    memory: int  #: bytes that are resident
    decoder_memory: int  #: bytes of pictures that decoders kept warm hold, roughly

    @classmethod
    def of(cls, pid: int, decoder_memory: int) -> RenderProcessStats:
        return cls(pid, cpu_seconds(pid), resident_bytes(pid), decoder_memory)


@dataclass(frozen=True, slots=True)
class MountStats:
    """As the attribute ``user.vfsd.stats`` of a mountpoint tells it."""

    pid: int
    since: float  #: Unix time at which the mount began
    seconds: float  #: for which it has been there
    cpu_seconds: float  #: of the process, in user and system mode
    memory: int  #: bytes that are resident
    threads: int
    descriptors: int  #: open files of the process
    operations: Mapping[str, OperationTotals]
    rendering: RenderProcessStats | None = None  #: None: nobody has wanted views lately
    passthrough: int | None = None  #: files that the kernel can read by itself; None: it may not

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> MountStats:
        """Raises `ValueError` for what is none."""
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
            raise ValueError(f"figures of a mount cannot be read: {error}") from error


class StatsCollector:
    """Looks at this process.  Thread-safe."""

    def __init__(self, counters: OperationCounters) -> None:
        self._counters = counters
        self._since = time.time()
        self._began = time.monotonic()

    def now(self, rendering: RenderProcessStats | None) -> MountStats:
        used = os.times()
        passed_through = self._counters.passed_through
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
        )


def _numbered(buckets: Mapping[str, int]) -> dict[float, int]:
    return {float(limit): count for limit, count in buckets.items()}
