"""What a mount has been asked for, and how long its answers took."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

_BUCKETS = 64
"""The i-th counts answers that took less than 2 ** i ns, and not less than half of that."""

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
        self._guard = threading.Lock()

    def of_this_thread(self) -> ByOperation:
        """New counts, for the thread that asks: to be called once by each."""
        mine = ByOperation()
        with self._guard:
            self._threads.append(mine)
        return mine

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
