"""Budgets of derived data: limits, pins, usage, and eviction order.

Pure.  Pinned segments are not charged.
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
"""Number of reads after which the value of an earlier use has halved."""

GAMMA = 2.0
"""LRU_VSS: bonus in reads for each step between a segment and the nearer end of its run."""
ZETA = 1.0
"""LRU_VSS: penalty in reads for each better copy of the same pictures."""


def decayed(value: float, reads: int, half_life: float = HALF_LIFE) -> float:
    """Return `value` decayed over `reads` reads."""
    return value * math.pow(0.5, max(0, reads) / half_life)


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A unit of derived data that may be evicted."""

    id: int
    bytes: int
    age: int  #: reads since the last use, or since creation if it was never used
    gain: float  #: CPU seconds that a read of it saves
    place: int = 0  #: index in its run of adjacent units of the same kind
    run: int = 1  #: length of that run
    redundancy: int = 0  #: number of better units that cover the same pictures
    retired: bool = False  #: reads must not use it

    @property
    def from_end(self) -> int:
        """Steps to the nearer end of the run."""
        return min(self.place, self.run - 1 - self.place)


def merged_candidate(candidates: Sequence[EvictionCandidate]) -> EvictionCandidate:
    """Return one candidate for units that must be evicted together, with the id of the first."""
    if len(candidates) == 1:
        return candidates[0]
    return replace(
        candidates[0],
        bytes=sum(one.bytes for one in candidates),
        age=min(one.age for one in candidates),
        gain=sum(one.gain for one in candidates),
    )


EvictionOrder = Callable[[Iterable[EvictionCandidate]], list[EvictionCandidate]]
"""Sorts candidates into eviction order.  Retired ones always come first."""


def lru_vss(candidates: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """Order of VSS: recency, plus a bonus for the middle of a run, minus a penalty per better copy.

    The paper's term for the only good copy is omitted: originals are never evicted here.
    """

    def key(one: EvictionCandidate) -> tuple[bool, float, int]:
        return (
            not one.retired,
            -one.age + GAMMA * one.from_end - ZETA * one.redundancy,
            one.id,
        )

    return sorted(candidates, key=key)


def by_benefit(candidates: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """Least benefit first: CPU seconds saved per byte, divided among better copies, decayed by age.

    Benefit falls with (age + 1)^2.  With the first power, size outweighs age when readers move on.
    With the third power, the order is nearly LRU (`benchmarks.eviction`).
    """

    def key(one: EvictionCandidate) -> tuple[bool, float]:
        # Summing all past gains with a half-life did up to 14 % better than LRU_VSS while readers
        # stay in place, but took nearly twice as long when they move on.
        benefit = one.gain / max(1, one.bytes) / (1 + one.redundancy)
        return not one.retired, benefit / (one.age + 1) ** 2

    return sorted(lru_vss(candidates), key=key)


def victims(order: Sequence[EvictionCandidate], bytes: int) -> list[EvictionCandidate]:
    """Return the fewest candidates from the start of `order` that free `bytes`, or all of them."""
    chosen: list[EvictionCandidate] = []
    freed = 0
    for one in order:
        if freed >= bytes:
            break
        chosen.append(one)
        freed += one.bytes
    for one in reversed(chosen[:-1]):  # a large last one may make smaller ones unnecessary
        if freed - one.bytes >= bytes:
            chosen.remove(one)
            freed -= one.bytes
    return chosen


# Largest byte count that a catalog column can hold.
_MAX_BYTES = (1 << 63) - 1
MAX_BYTES_TEXT = f"{_MAX_BYTES >> 40}T"
"""The same in the largest unit, for messages."""
_LIMIT_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(?:([KMGT]?)(?:i?B)?|(X))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit in bytes, as a multiple of the original's bytes, or (neither) no limit.

    Raises `UsageError` unless the number of bytes is an int in range.
    """

    bytes: int | None = None
    times: float | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            object.__setattr__(self, "bytes", whole_number(self.bytes, "bytes"))
        if self.bytes is not None and self.times is not None:
            raise UsageError(
                "a budget must be given in bytes or as a multiple of the originals, not both",
                hint="give only one of them",
            )
        for given, unit in ((self.bytes, " bytes"), (self.times, "x")):
            if given is not None and not 0 <= given <= _MAX_BYTES:
                raise UsageError(
                    f"budget must be 0 to {MAX_BYTES_TEXT}, got {shown(given)}{unit}",
                    hint="give none to remove the limit",
                )

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse ``500000``, ``20M`` or ``20MiB`` (2^20), ``10x`` or ``none``.

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
        """Return the text form that `parse` accepts."""
        if self.times is not None:
            return f"{self.times:g}x"
        return "none" if self.bytes is None else str(self.bytes)

    def allowed(self, original: int) -> int | None:
        """Return the bytes allowed for `original` bytes of originals; None: no limit."""
        return self.bytes if self.times is None else math.floor(self.times * original)


DEFAULT_VIDEO_LIMIT = Limit(times=10.0)
"""The default limit for each video, as in VSS (SIGMOD 2021, section 4)."""
DEFAULT_STORE_LIMIT = Limit()


@dataclass(frozen=True, slots=True)
class Pin:
    """Segments that overlap these frames are neither charged nor evicted while in use."""

    id: int  #: 0: not stored yet
    video_id: int
    frames: range
    role: Role | None  #: TILED or RENDITION; None: both
    size: tuple[int, int] | None  #: displayed frame of a rendition; None: any
    at_ns: int  #: Unix time

    def holds(self, role: Role, frames: range, size: tuple[int, int]) -> bool:
        """Return whether this pin covers a segment of the same video with these properties."""
        return (
            self.frames.start < frames.stop
            and frames.start < self.frames.stop
            and self.role in (None, role)
            and self.size in (None, size)
        )


@dataclass(frozen=True, slots=True)
class ChargedSegment:
    """A stored segment with the figures that budgets need."""

    id: int
    video_id: int
    role: Role
    frames: range
    size: tuple[int, int]  #: of the displayed frame
    profile: str  #: tile codec
    layout: str  #: see `vfsd.tiling.TileLayout`
    object_key: str  #: of the pack
    bytes: int
    created_ns: int  #: Unix time
    is_retired: bool  #: not used by reads; kept for undo
    is_pinned: bool
    made_at_read: int  #: number of the newest read at the time of publication
    expected: float  #: CPU seconds that it was expected to save when it was made
    gain: float  #: CPU seconds that a read of all its frames should save
    used_at_read: int | None  #: number of the last read that used it
    used_ns: int | None  #: Unix time at which that read began
    uses: float  #: number of reads that used it, decayed up to the last
    saved: float  #: CPU seconds that it saved them, decayed up to the last

    def uses_at(self, read: int) -> float:
        """Return `uses`, decayed up to read number `read`."""
        return decayed(self.uses, read - (self.used_at_read or 0))

    def saved_at(self, read: int) -> float:
        """Return `saved`, decayed up to read number `read`."""
        return decayed(self.saved, read - (self.used_at_read or 0))

    def worth_at(self, read: int) -> float:
        """Return the CPU seconds that it saved or was expected to save, decayed up to read `read`.

        Without the expectation, a new segment would be worth nothing before its first read.
        """
        return self.saved_at(read) + decayed(self.expected, read - self.made_at_read)

    def candidate(
        self, read: int, *, place: int = 0, run: int = 1, redundancy: int = 0
    ) -> EvictionCandidate:
        """Return the eviction candidate for this segment at read number `read`."""
        last = self.made_at_read if self.used_at_read is None else self.used_at_read
        return EvictionCandidate(
            self.id,
            self.bytes,
            max(0, read - last),
            (self.gain + self.saved) / (1 + self.uses),  # as if read once with the expected gain
            place,
            run,
            redundancy,
            self.is_retired,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of derived data by kind."""

    original: int  #: of the original files
    limit: Limit
    tiles: int = 0
    renditions: int = 0
    joined: int = 0  #: share of data joined with another camera's video
    retired: int = 0  #: kept for undo
    pinned: int = 0  #: not counted above, and not charged
    indexes: int = 0  #: indexes of layers

    @property
    def used(self) -> int:
        """Bytes that are charged."""
        return self.tiles + self.renditions + self.joined + self.retired + self.indexes

    @property
    def allowed(self) -> int | None:
        """Bytes that may be charged; None: no limit."""
        return self.limit.allowed(self.original)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A log entry for an evicted segment."""

    id: int  #: ascending in time; 0: not stored yet
    video_id: int
    at_ns: int  #: Unix time
    why: str  #: which budget was full: video, partner (of a joined video) or store
    role: Role
    frames: range
    size: tuple[int, int]  #: of the displayed frame
    profile: str  #: tile codec
    layout: str  #: see `vfsd.tiling.TileLayout`
    bytes: int
    created_ns: int  #: Unix time
    is_retired: bool  #: it was kept only for undo
    used_ns: int | None  #: Unix time at which the last read of it began
    uses: float  #: number of reads that used it, decayed up to the eviction
    saved: float  #: CPU seconds that it saved them, decayed likewise

    @classmethod
    def of(cls, held: ChargedSegment, why: str, *, read: int, at_ns: int) -> Eviction:
        """Return the log entry for evicting `held` at read number `read`."""
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
    """The effect of a hypothetical budget."""

    usage: Usage  #: after the change
    gone: tuple[ChargedSegment, ...] = ()  #: segments that would be evicted, in order
    uses: float = 0.0  #: number of reads that used them, decayed up to now
    saved: float = 0.0  #: CPU seconds that they saved, decayed up to now
