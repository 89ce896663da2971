"""Which derived data goes first where room is needed: orders of eviction.  Pure.

`lru_vss` is that of VSS (SIGMOD 2021, section 4), `by_worth` our own, which is what stores use.
Time is counted in reads, so that a night in which nobody reads anything changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    used: int  #: the number of the last read that used it; of none, of the newest when it was made
    worth: float  #: CPU seconds that it saves, by what it has saved, faded up to the same read
    place: int = 0  #: in a run of neighbours of its kind, from 0
    run: int = 1  #: how many they are
    redundancy: int = 0  #: how many that are better show all that it shows
    retired: bool = False  #: no read may use it

    @property
    def from_end(self) -> int:
        """Steps to the nearer end of its run."""
        return min(self.place, self.run - 1 - self.place)


Order = Callable[[Iterable[Entry]], list[Entry]]
"""All of them, what goes first first.  What is retired always comes before what is not."""


def lru(entries: Iterable[Entry]) -> list[Entry]:
    """What was used longest ago goes first."""
    return sorted(entries, key=lambda one: (not one.retired, one.used, one.id))


def lru_vss(entries: Iterable[Entry]) -> list[Entry]:
    """VSS: the last use, with a bonus for the middle of a run and a malus for each better copy.

    Its term for what is the only good copy is left out: originals stay.
    """

    def key(one: Entry) -> tuple[bool, float, int]:
        return (
            not one.retired,
            one.used + GAMMA * one.from_end - ZETA * one.redundancy,
            one.id,
        )

    return sorted(entries, key=key)


def by_worth(entries: Iterable[Entry]) -> list[Entry]:
    """What saves least for its bytes goes first; of equals, as `lru_vss` has it."""

    def key(one: Entry) -> tuple[bool, float]:
        return not one.retired, one.worth / max(1, one.bytes)

    return sorted(lru_vss(entries), key=key)


def victims(order: Sequence[Entry], bytes: int) -> list[Entry]:
    """As few of the first of `order` as have `bytes` together; all where that is not enough."""
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
