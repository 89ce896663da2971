"""What a mount has been asked for, and how long its answers took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_BUCKETS = 64
"""The i-th counts answers that took less than 2 ** i ns, and not less than half of that."""
_JUST_NOW_NS = 100_000_000

MOVING = frozenset(("read", "write", "copy_file_range"))
"""Operations that answer with a number of bytes."""


@dataclass(frozen=True, slots=True)
class Tally:
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


class Counts:
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


class ByOperation(dict[str, Counts]):
    """Of one thread; what was not asked for yet begins when it is."""

    def __missing__(self, name: str) -> Counts:
        self[name] = found = Counts()
        return found


class Counters:
    """All operations of all threads.  Counting takes no lock: each thread has counts of its own."""

    def __init__(self) -> None:
        self._threads: list[ByOperation] = []
        self._left: list[ByOperation] = []  # by threads that have ended; the next one goes on
        self._guard = threading.Lock()
        self.file_read_ns = -_JUST_NOW_NS
        """When a file was read last that is no view, as `time.perf_counter_ns` has it."""
        self.passed_through: Callable[[], int] | None = None
        """How many files the kernel can read by itself just now; None: it reads none so."""

    def are_files_read(self) -> bool:
        """Whether somebody reads files that are no views just now."""
        return time.perf_counter_ns() - self.file_read_ns < _JUST_NOW_NS

    def of_this_thread(self) -> ByOperation:
        """Counts for the thread that asks, its own until it gives them back: once for each."""
        with self._guard:
            if self._left:
                return self._left.pop()
            mine = ByOperation()
            self._threads.append(mine)
        return mine

    def give_back(self, mine: ByOperation) -> None:
        """The thread that had these ends; what it has counted stays."""
        with self._guard:
            self._left.append(mine)

    def tallies(self) -> dict[str, Tally]:
        """Of the operations that were asked for at all, by name."""
        with self._guard:
            threads = [dict(mine) for mine in self._threads]
        found = {}
        for name in sorted({name for mine in threads for name in mine}):
            counts = [mine[name] for mine in threads if name in mine]
            sums = [sum(column) for column in zip(*(one.buckets for one in counts), strict=True)]
            found[name] = Tally(
                sum(one.count for one in counts),
                sum(one.failed for one in counts),
                sum(one.nanoseconds for one in counts) / 1e9,
                sum(one.bytes for one in counts) if name in MOVING else 0,
                {(1 << i) / 1e9: count for i, count in enumerate(sums) if count},
            )
        return found
