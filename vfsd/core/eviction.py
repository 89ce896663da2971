"""Which derived data goes first where room is needed: orders of eviction.  Pure.

`lru_vss` is that of VSS (SIGMOD 2021, section 4), `by_benefit` our own, which is what stores use.
Time is counted in reads, so that a night in which nobody reads anything changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

HALF_LIFE = 500.0
"""Reads after which what a use was worth counts half."""

GAMMA = 2.0
"""LRU_VSS: reads that a place in the middle of a run counts for, for each step from its end."""
ZETA = 1.0
"""LRU_VSS: reads that each better copy of the same pictures takes off."""


def faded(value: float, reads: int, half_life: float = HALF_LIFE) -> float:
    """What is left of `value` after so many reads."""
    return value * math.pow(0.5, max(0, reads) / half_life)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that may be evicted."""

    id: int
    bytes: int
    age: int  #: reads since the last that used it; where none has, since it was made
    gain: float  #: CPU seconds that a read of it saves
    place: int = 0  #: in a run of neighbours of its kind, from 0
    run: int = 1  #: how many they are
    redundancy: int = 0  #: how many that are better show all that it shows
    retired: bool = False  #: no read may use it

    @property
    def from_end(self) -> int:
        """Steps to the nearer end of its run."""
        return min(self.place, self.run - 1 - self.place)


def as_one(entries: Sequence[Entry]) -> Entry:
    """What can only go together, under the number of the first."""
    if len(entries) == 1:
        return entries[0]
    return replace(
        entries[0],
        bytes=sum(one.bytes for one in entries),
        age=min(one.age for one in entries),
        gain=sum(one.gain for one in entries),
    )


Order = Callable[[Iterable[Entry]], list[Entry]]
"""Puts entries in the order in which they are evicted; retired ones always come first."""


def lru(entries: Iterable[Entry]) -> list[Entry]:
    """What was used longest ago goes first."""
    return sorted(entries, key=lambda one: (not one.retired, -one.age, one.id))


def lru_vss(entries: Iterable[Entry]) -> list[Entry]:
    """VSS: the last use, with a bonus for the middle of a run and a malus for each better copy.

    Its term for what is the only good copy is left out: originals stay.
    """

    def key(one: Entry) -> tuple[bool, float, int]:
        return (
            not one.retired,
            -one.age + GAMMA * one.from_end - ZETA * one.redundancy,
            one.id,
        )

    return sorted(entries, key=key)


def by_benefit(entries: Iterable[Entry]) -> list[Entry]:
    """Least benefit first: what a read saves for each byte, shared with better copies, fading with
    age.

    What was used n reads ago counts (n + 1)^2 times less.  With the first power, sizes outweigh age
    where readers move on; with the third, it is nearly LRU (`benchmarks.eviction`).
    """

    def key(one: Entry) -> tuple[bool, float]:
        # Summing all past gains with a half-life did up to 14 % better than LRU_VSS where readers
        # stay in place, and took nearly twice as long where they move on.
        benefit = one.gain / max(1, one.bytes) / (1 + one.redundancy)
        return not one.retired, benefit / (one.age + 1) ** 2

    return sorted(lru_vss(entries), key=key)


def victims(order: Sequence[Entry], bytes: int) -> list[Entry]:
    """The first of `order`, as few as free `bytes`; all of them where that is not enough."""
    chosen: list[Entry] = []
    freed = 0
    for one in order:
        if freed >= bytes:
            break
        chosen.append(one)
        freed += one.bytes
    for one in reversed(chosen[:-1]):  # a large one at the end may make smaller ones needless
        if freed - one.bytes >= bytes:
            chosen.remove(one)
            freed -= one.bytes
    return chosen
