"""Levels of HEVC: what a decoder must be able to do to play a stream (ITU-T H.265, annex A.4).

Main tier of the Main profile.  What a level says of the ratio of compression is left out: only
streams of nearly lossless quality come near it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

_NAL_FACTOR = 1100
"""CpbNalFactor and BrNalFactor of the Main profile (table A.10): bits in a unit of the tables."""
_MOST_BUFFERS = 16
_BUFFERS_AT_FULL_SIZE = 6

NARROWEST_COLUMN, LOWEST_ROW = 256, 64
"""The smallest tiles of the Main profile, luma samples (A.3.2)."""


@dataclass(frozen=True, slots=True)
class Level:
    """A row of the tables A.8 and A.9."""

    idc: int  #: general_level_idc: 30 times the level
    samples: int  #: luma samples of a picture
    units: int  #: MaxCPB and MaxBR, which are the same in this tier: 1100 bits (a second)
    slices: int  #: slice segments of a picture
    rows: int  #: of tiles
    columns: int
    samples_per_second: int

    def buffers(self, samples: int) -> int:
        """How many decoded pictures of `samples` luma samples a decoder keeps (A.4.2)."""
        for shrunk in (4, 2):
            if samples * shrunk <= self.samples:
                return min(shrunk * _BUFFERS_AT_FULL_SIZE, _MOST_BUFFERS)
        at_least_a_quarter_smaller = samples * 4 <= self.samples * 3
        return 4 * _BUFFERS_AT_FULL_SIZE // 3 if at_least_a_quarter_smaller else 6


LEVELS = (
    Level(30, 36864, 128, 16, 1, 1, 552960),
    Level(60, 122880, 1500, 16, 1, 1, 3686400),
    Level(63, 245760, 3000, 20, 1, 1, 7372800),
    Level(90, 552960, 6000, 30, 2, 2, 16588800),
    Level(93, 983040, 10000, 40, 3, 3, 33177600),
    Level(120, 2228224, 12000, 75, 5, 5, 66846720),
    Level(123, 2228224, 20000, 75, 5, 5, 133693440),
    Level(150, 8912896, 25000, 200, 11, 10, 267386880),
    Level(153, 8912896, 40000, 200, 11, 10, 534773760),
    Level(156, 8912896, 60000, 200, 11, 10, 1069547520),
    Level(180, 35651584, 60000, 600, 22, 20, 1069547520),
    Level(183, 35651584, 120000, 600, 22, 20, 2139095040),
    Level(186, 35651584, 240000, 600, 22, 20, 4278190080),
)
HIGHEST = LEVELS[-1].idc


@dataclass(frozen=True, slots=True)
class Demand:
    """What a stream asks of its decoder."""

    width: int  #: of the coded picture
    height: int
    columns: int  #: of tiles
    rows: int
    buffers: int  #: decoded pictures that are kept, the current one among them
    rate: Fraction | None = None  #: pictures a second, where the stream tells
    bits_per_second: int = 0  #: 0: not known

    def lowest_level(self) -> Level | None:
        """The first that allows it; None: none does."""
        return next((level for level in LEVELS if self._fits(level)), None)

    def _fits(self, level: Level) -> bool:
        samples = self.width * self.height
        return (
            samples <= level.samples
            and max(self.width, self.height) ** 2 <= 8 * level.samples
            and self.columns <= level.columns
            and self.rows <= level.rows
            and self.columns * self.rows <= level.slices
            and samples * (self.rate or 0) <= level.samples_per_second
            and self.bits_per_second <= level.units * _NAL_FACTOR
            and self.buffers <= level.buffers(samples)
        )
