"""The timestamps of a file that is being written.

`FileTimestamps` refuses times that the container cannot represent, and checks the written ones.
"""

from __future__ import annotations

from array import array
from decimal import Decimal
from fractions import Fraction

import numpy as np

from vfsd.core.frame_table_pages import Ints
from vfsd.errors import IntegrityError, UsageError

MATROSKA_TICK = Fraction(1, 1000)
"""FFmpeg writes Matroska with a timestamp scale of a millisecond."""
MAX_STEP = (1 << 31) - 2
"""Most ticks between pictures in mp4 and mov, where sample durations have 32 bits.

FFmpeg's muxer moves later pictures to one tick after the previous one.
"""
MAX_MATROSKA_TIME = 1 << 53
"""Milliseconds (285,000 years). FFmpeg reads them as floats, and rounds later times."""

# FFmpeg doubles the timescale of mp4 and mov until it has at least this value.
_MIN_TIMESCALE = 10_000
_CONTAINER_TITLES = {"mp4": "mp4", "mov": "mov", "matroska": "Matroska"}


class FileTimestamps:
    """The display times of pictures in ticks of the new file. Not thread-safe."""

    def __init__(self, container: str, time_base: Fraction) -> None:
        """`container` is mp4, mov or matroska; `time_base` is the seconds per input tick.

        Raises `UsageError` if the container cannot represent one tick.
        """
        self._is_matroska = container == "matroska"
        self._form = _CONTAINER_TITLES[container]
        self._time_base = time_base
        self.tick = MATROSKA_TICK if self._is_matroska else _mov_tick(time_base)  #: seconds
        self._ticks = array("q")  # ticks of the file of all pictures
        self._last = 0  # input pts of the last picture
        self._require_near(1, "a picture lasts at least one tick of time_base, which is")

    def in_file(self, pts: int) -> int:
        """Convert ticks of the time base to ticks of the file; halves are rounded up."""
        exact = pts * self._time_base / self.tick
        return (2 * exact.numerator + exact.denominator) // (2 * exact.denominator)

    def add(self, pts: int) -> None:
        """Add a picture that is shown from tick `pts` on; the first one is at 0.

        `require` must have passed.
        """
        self._ticks.append(self.in_file(pts))
        self._last = pts

    def take_back(self, count: int, last: int) -> None:
        """Drop all but the first `count` pictures; the last of these is shown at tick `last`."""
        del self._ticks[count:]
        self._last = last

    def require(self, pts: int) -> None:
        """Raise `UsageError` unless the next picture can be shown from tick `pts` on.

        It must be later than the previous one in ticks of the file, and representable there.
        """
        if not self._ticks:
            return
        number, ticks = len(self._ticks), self.in_file(pts)
        now, before = self._time_text(pts), self._time_text(self._last)
        if ticks <= self._ticks[-1]:
            raise UsageError(
                f"frame {number} is at {now}, which is not after the previous frame at {before}",
                hint="times must ascend"
                + (", by a millisecond in Matroska" if self._is_matroska else ""),
            )
        both = f"frame {number} is at {now}, and the previous frame at {before}"
        self._require_near(pts - self._last, f"{both}, earlier by")
        if self._is_matroska and ticks > MAX_MATROSKA_TIME:
            raise UsageError(
                f"{both}: Matroska ends at {_seconds(MAX_MATROSKA_TIME * MATROSKA_TICK)}",
                hint="check pts and time_base",
            )

    def require_written(self, shown: Ints, time_base: Fraction) -> None:
        """Raise `IntegrityError` unless the file shows its pictures at the intended times.

        `shown` is in ticks of `time_base`, in display order, with any start.
        """
        ticks = np.frombuffer(self._ticks, np.int64)
        if len(shown) != len(ticks):
            raise IntegrityError(f"the new file must have {len(ticks)} pictures, got {len(shown)}")
        found = shown - shown[0]
        if time_base == self.tick:
            wrong = np.flatnonzero(found != ticks).tolist()
        else:
            pairs = enumerate(zip(found.tolist(), ticks.tolist(), strict=True))
            wrong = [n for n, (one, other) in pairs if one * time_base != other * self.tick]
        if wrong:
            number = wrong[0]
            raise IntegrityError(
                f"the new file shows frame {number} at "
                f"{_seconds(int(found[number]) * time_base)}, not at "
                f"{_seconds(int(ticks[number]) * self.tick)}",
                hint="the file was not stored; another container may represent these times",
            )

    def _require_near(self, step: int, what: str) -> None:
        """Raise `UsageError` if a picture cannot last for `step` input ticks."""
        if self._is_matroska or step * self._time_base <= MAX_STEP * self.tick:
            return
        raise UsageError(
            f"{what} {_seconds(step * self._time_base)}: {self._form} allows at most "
            f"{_seconds(MAX_STEP * self.tick)} in ticks of {self.tick} s",
            hint=self._way_out(step),
        )

    def _way_out(self, step: int) -> str:
        matroska = "write .mkv, which has ticks of a millisecond and no such limit"
        if step * self._time_base <= MAX_STEP * Fraction(1, _MIN_TIMESCALE):
            return f"use a coarser time_base, up to 1/{_MIN_TIMESCALE} s, or {matroska}"
        return matroska

    def _time_text(self, pts: int) -> str:
        return _seconds(pts * self._time_base)


def _mov_tick(time_base: Fraction) -> Fraction:
    """Return the seconds per tick in mp4 and mov; the time base is a multiple of it."""
    scale = time_base.denominator
    while scale < _MIN_TIMESCALE:
        scale *= 2
    return Fraction(1, scale)


def _seconds(exact: Fraction) -> str:
    """Format seconds, also beyond the range of floats."""
    number = Decimal(exact.numerator) / Decimal(exact.denominator)
    return f"{number:.6f} s" if number < 10**15 else f"{number:.3e} s"
