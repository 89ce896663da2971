"""What derived data may take, and what it does take: the values.

Derived is everything but originals: tiles, renditions, and what is joined with another camera's
video.  What is pinned is not charged.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown

from vfsd.core.eviction import Entry, faded
from vfsd.core.model import Role
from vfsd.errors import UsageError
from vfsd.validation import whole_number

_MOST = (1 << 63) - 1
"""Bytes: catalogs count no further."""
MOST_BYTES = f"{_MOST >> 40}T"
"""As people write it, in the largest unit."""
_FORM = re.compile(r"(\d+(?:\.\d+)?)(?:([KMGT]?)(?:i?B)?|(X))", re.IGNORECASE)


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
            if given is not None and not 0 <= given <= _MOST:
                raise UsageError(
                    f"a budget of {shown(given)}{unit} cannot be kept",
                    hint=f"give 0 or more, up to {MOST_BYTES}, or none",
                )

    @classmethod
    def parse(cls, text: str) -> Limit:
        """``500000``, ``20M`` or ``20MiB`` (2^20), ``10x`` or ``none``.

        Raises `UsageError`.
        """
        if text.lower() == "none":
            return cls()
        match = _FORM.fullmatch(text)
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
class Held:
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
        return faded(self.uses, read - (self.used_at_read or 0))

    def saved_at(self, read: int) -> float:
        """`saved`, faded up to the read of that number."""
        return faded(self.saved, read - (self.used_at_read or 0))

    def worth_at(self, read: int) -> float:
        """CPU seconds that it has saved, and what was expected of it, faded up to that read.

        It would be worth nothing as long as nobody has read it otherwise.
        """
        return self.saved_at(read) + faded(self.expected, read - self.made_at_read)

    def entry(self, read: int, *, place: int = 0, run: int = 1, redundancy: int = 0) -> Entry:
        """As orders of eviction see it, when reads have come to that number."""
        last = self.made_at_read if self.used_at_read is None else self.used_at_read
        return Entry(
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
    def of(cls, held: Held, why: str, *, read: int, at_ns: int) -> Eviction:
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
    gone: tuple[Held, ...] = ()  #: what would go, first first
    uses: float = 0.0  #: reads that used it, faded up to now
    saved: float = 0.0  #: CPU seconds that it saved them, faded up to now
