"""Budgets of derived data: limits, pins, usage, and the order of eviction.

Pure. Pinned segments are not charged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from reprlib import repr as shown

from vfsd.core.model import Role
from vfsd.errors import UsageError
from vfsd.validation import whole_number

HALF_LIFE = 500.0
"""Reads after which what a use was worth counts half."""

GAMMA = 2.0
"""LRU_VSS: reads that a place in the middle of a run counts for, for each step from its end."""
ZETA = 1.0
"""LRU_VSS: reads that each better copy of the same pictures takes off."""


def decayed(value: float, reads: int, half_life: float = HALF_LIFE) -> float:
    """What is left of `value` after so many reads."""
    return value * math.pow(0.5, max(0, reads) / half_life)


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
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


def merged_candidate(entries: Sequence[EvictionCandidate]) -> EvictionCandidate:
    """What can only go together, under the number of the first."""
    if len(entries) == 1:
        return entries[0]
    return replace(
        entries[0],
        bytes=sum(one.bytes for one in entries),
        age=min(one.age for one in entries),
        gain=sum(one.gain for one in entries),
    )


EvictionOrder = Callable[[Iterable[EvictionCandidate]], list[EvictionCandidate]]
"""Puts entries in the order in which they are evicted; retired ones always come first."""


def lru(entries: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """What was used longest ago goes first."""
    return sorted(entries, key=lambda one: (not one.retired, -one.age, one.id))


def lru_vss(entries: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """VSS: the last use, with a bonus for the middle of a run and a malus for each better copy.

    Its term for what is the only good copy is left out: originals stay.
    """

    def key(one: EvictionCandidate) -> tuple[bool, float, int]:
        return (
            not one.retired,
            -one.age + GAMMA * one.from_end - ZETA * one.redundancy,
            one.id,
        )

    return sorted(entries, key=key)


def by_benefit(entries: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """Least benefit first: what a read saves for each byte, shared with better copies, fading with
    age.

    What was used n reads ago counts (n + 1)^2 times less.  With the first power, sizes outweigh age
    where readers move on; with the third, it is nearly LRU (`benchmarks.eviction`).
    """

    def key(one: EvictionCandidate) -> tuple[bool, float]:
        # Summing all past gains with a half-life did up to 14 % better than LRU_VSS where readers
        # stay in place, and took nearly twice as long where they move on.
        benefit = one.gain / max(1, one.bytes) / (1 + one.redundancy)
        return not one.retired, benefit / (one.age + 1) ** 2

    return sorted(lru_vss(entries), key=key)


def victims(order: Sequence[EvictionCandidate], bytes: int) -> list[EvictionCandidate]:
    """The first of `order`, as few as free `bytes`; all of them where that is not enough."""
    chosen: list[EvictionCandidate] = []
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


_MAX_BYTES = (1 << 63) - 1
"""Bytes: catalogs count no further."""
MAX_BYTES_TEXT = f"{_MAX_BYTES >> 40}T"
"""As people write it, in the largest unit."""
_LIMIT_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(?:([KMGT]?)(?:i?B)?|(X))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """So many bytes, so many times the originals' bytes, or (neither) none.

    Raises `UsageError` for what is no number of bytes, as a float, and for too many.
    """

    bytes: int | None = None
    times: float | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            object.__setattr__(self, "bytes", whole_number(self.bytes, "bytes"))
        if self.bytes is not None and self.times is not None:
            raise UsageError(
                "a budget is told in bytes or in times of the originals, not in both",
                hint="give one of them",
            )
        for given, unit in ((self.bytes, " bytes"), (self.times, "x")):
            if given is not None and not 0 <= given <= _MAX_BYTES:
                raise UsageError(
                    f"a budget of {shown(given)}{unit} cannot be kept",
                    hint=f"give 0 or more, up to {MAX_BYTES_TEXT}, or none",
                )

    @classmethod
    def parse(cls, text: str) -> Limit:
        """``500000``, ``20M`` or ``20MiB`` (2^20), ``10x`` or ``none``.

        Raises `UsageError`.
        """
        if text.lower() == "none":
            return cls()
        match = _LIMIT_PATTERN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"budget must be 500000, 20M, 2G, 10x or none, got {text!r}",
                hint="none removes the limit",
            )
        number, unit, times = match.groups()
        if times:
            return cls(times=float(number))
        scale = 10 * " KMGT".index((unit or " ").upper())
        return cls(bytes=math.floor(Fraction(number) * (1 << scale)))

    def __str__(self) -> str:
        """As `parse` takes it."""
        if self.times is not None:
            return f"{self.times:g}x"
        return "none" if self.bytes is None else str(self.bytes)

    def allowed(self, original: int) -> int | None:
        """Bytes, where originals have that many; None: as many as there is room for."""
        return self.bytes if self.times is None else math.floor(self.times * original)


OF_VIDEO = Limit(times=10.0)
"""Where nothing else is said: as in VSS (SIGMOD 2021, section 4)."""
OF_STORE = Limit()


@dataclass(frozen=True, slots=True)
class Pin:
    """Segments in use that have any of these frames are neither charged nor evicted."""

    id: int  #: 0: not there yet
    video_id: int
    frames: range
    role: Role | None  #: tiled or rendition; None: both
    size: tuple[int, int] | None  #: of a rendition's displayed frame; None: of any
    at_ns: int  #: Unix time

    def holds(self, role: Role, frames: range, size: tuple[int, int]) -> bool:
        """Whether a segment like that, of the same video, is pinned while it is in use."""
        return (
            self.frames.start < frames.stop
            and frames.start < self.frames.stop
            and self.role in (None, role)
            and self.size in (None, size)
        )


@dataclass(frozen=True, slots=True)
class ChargedSegment:
    """A segment, as budgets see it."""

    id: int
    video_id: int
    role: Role
    frames: range
    size: tuple[int, int]  #: of the displayed frame
    profile: str  #: the tile codec
    layout: str  #: see `vfsd.tiling.TileLayout`
    object_key: str  #: the pack
    bytes: int
    created_ns: int  #: Unix time
    is_retired: bool  #: reads do not use it; it is kept for a step back
    is_pinned: bool
    made_at_read: int  #: the number of the newest read when it was published
    expected: float  #: CPU seconds that whoever had it made expected it to save
    gain: float  #: CPU seconds that a read of all its frames should save
    used_at_read: int | None  #: the number of the last read that used it
    used_ns: int | None  #: Unix time at which that began
    uses: float  #: reads that used it, faded up to the last
    saved: float  #: CPU seconds that it saved them, faded up to the last

    def uses_at(self, read: int) -> float:
        """`uses`, faded up to the read of that number."""
        return decayed(self.uses, read - (self.used_at_read or 0))

    def saved_at(self, read: int) -> float:
        """`saved`, faded up to the read of that number."""
        return decayed(self.saved, read - (self.used_at_read or 0))

    def worth_at(self, read: int) -> float:
        """CPU seconds that it has saved, and what was expected of it, faded up to that read.

        It would be worth nothing as long as nobody has read it otherwise.
        """
        return self.saved_at(read) + decayed(self.expected, read - self.made_at_read)

    def entry(
        self, read: int, *, place: int = 0, run: int = 1, redundancy: int = 0
    ) -> EvictionCandidate:
        """As orders of eviction see it, when reads have come to that number."""
        last = self.made_at_read if self.used_at_read is None else self.used_at_read
        return EvictionCandidate(
            self.id,
            self.bytes,
            max(0, read - last),
            (self.gain + self.saved) / (1 + self.uses),  # as if it had been read as expected once
            place,
            run,
            redundancy,
            self.is_retired,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What derived data takes, in bytes."""

    original: int  #: of the files as they were written
    limit: Limit
    tiles: int = 0
    renditions: int = 0
    joined: int = 0  #: with another camera's video: the share of what both have
    retired: int = 0  #: kept for a step back
    pinned: int = 0  #: neither of the above, nor charged

    @property
    def used(self) -> int:
        """What is charged."""
        return self.tiles + self.renditions + self.joined + self.retired

    @property
    def allowed(self) -> int | None:
        """None: there is no limit."""
        return self.limit.allowed(self.original)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A segment that went to make room."""

    id: int  #: by order of time; 0: not there yet
    video_id: int
    at_ns: int  #: Unix time
    why: str  #: whose budget was full: video, partner (that it was joined with) or store
    role: Role
    frames: range
    size: tuple[int, int]  #: of the displayed frame
    profile: str  #: the tile codec
    layout: str  #: see `vfsd.tiling.TileLayout`
    bytes: int
    created_ns: int  #: Unix time
    is_retired: bool  #: it was only kept for a step back
    used_ns: int | None  #: Unix time at which the last read of it began
    uses: float  #: reads that used it, faded up to this moment
    saved: float  #: CPU seconds that it saved them, faded likewise

    @classmethod
    def of(cls, held: ChargedSegment, why: str, *, read: int, at_ns: int) -> Eviction:
        """Of a segment, when reads have come to that number."""
        return cls(
            0,
            held.video_id,
            at_ns,
            why,
            held.role,
            held.frames,
            held.size,
            held.profile,
            held.layout,
            held.bytes,
            held.created_ns,
            held.is_retired,
            held.used_ns,
            held.uses_at(read),
            held.saved_at(read),
        )


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a budget would cost."""

    usage: Usage  #: as it would be
    gone: tuple[ChargedSegment, ...] = ()  #: what would go, first first
    uses: float = 0.0  #: reads that used it, faded up to now
    saved: float = 0.0  #: CPU seconds that it saved them, faded up to now
