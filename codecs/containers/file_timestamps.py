"""The timestamps of a file that is being written: `FileTimestamps` refuses times that the
container cannot represent, and checks those that were written.
"""

from __future__ import annotations

from array import array
from decimal import Decimal
from fractions import Fraction

import numpy as np

from vfsd.core.frame_table_pages import Ints
from vfsd.errors import IntegrityError, UsageError

MATROSKA_TICK = Fraction(1, 1000)
"""FFmpeg writes Matroska with times in milliseconds."""
MAX_STEP = (1 << 31) - 2
"""Ticks from one picture to the next in mp4 and mov: later ones FFmpeg's muxer moves to a tick
after the one before.  What a sample lasts has 32 bits there."""
MAX_MATROSKA_TIME = 1 << 53
"""Milliseconds: 285,000 years.  FFmpeg reads them as floats, and rounds what is later."""

_MIN_TIMESCALE = 10_000
"""FFmpeg doubles the ticks of a second in mp4 and mov until there are as many."""
_CONTAINER_TITLES = {"mp4": "mp4", "mov": "mov", "matroska": "Matroska"}


class FileTimestamps:
    """When the pictures of a new file are shown, in its own ticks.  Not thread-safe."""

    def __init__(self, container: str, time_base: Fraction) -> None:
        """`container` is mp4, mov or matroska, and `time_base` the seconds of a tick that is given.

        Raises `UsageError` for ticks of which the container cannot tell one.
        """
        self._is_matroska = container == "matroska"
        self._form = _CONTAINER_TITLES[container]
        self._time_base = time_base
        self.tick = MATROSKA_TICK if self._is_matroska else _mov_tick(time_base)  #: seconds
        self._ticks = array("q")  # of the file, of all pictures: 8 bytes each
        self._last = 0  # the one that was given last
        self._require_near(1, "a picture would last for a tick at least, which is")

    def in_file(self, pts: int) -> int:
        """Ticks of the time base in those of the file; halves are rounded up."""
        exact = pts * self._time_base / self.tick
        return (2 * exact.numerator + exact.denominator) // (2 * exact.denominator)

    def add(self, pts: int) -> None:
        """The next picture is shown from tick `pts` of the time base on; the first from 0.

        `require` has to have passed.
        """
        self._ticks.append(self.in_file(pts))
        self._last = pts

    def take_back(self, count: int, last: int) -> None:
        """Only the first `count` pictures are there, of which the last is shown from tick `last`
        of the time base on."""
        del self._ticks[count:]
        self._last = last

    def require(self, pts: int) -> None:
        """Raises `UsageError` unless the next picture can be shown from tick `pts` on: later than
        the one before, also in the file's own ticks, and at a time that the file can tell.
        """
        if not self._ticks:
            return
        number, ticks = len(self._ticks), self.in_file(pts)
        now, before = self._told(pts), self._told(self._last)
        if ticks <= self._ticks[-1]:
            raise UsageError(
                f"frame {number} is shown at {now}, not after the one before it, at {before}",
                hint="times have to ascend"
                + (", by a millisecond in Matroska" if self._is_matroska else ""),
            )
        both = f"frame {number} is shown at {now}, and the one before it at {before}"
        self._require_near(pts - self._last, f"{both}, earlier by")
        if self._is_matroska and ticks > MAX_MATROSKA_TIME:
            raise UsageError(
                f"{both}: Matroska ends at {_seconds(MAX_MATROSKA_TIME * MATROSKA_TICK)}",
                hint="look whether pts and time_base are what is meant",
            )

    def require_written(self, shown: Ints, time_base: Fraction) -> None:
        """Raises `IntegrityError` unless the file shows its pictures when they were to be shown.

        `shown` is in ticks of `time_base`, in display order, wherever it begins.
        """
        given = np.frombuffer(self._ticks, np.int64)
        if len(shown) != len(given):
            raise IntegrityError(
                f"{len(given)} pictures were given, and the file that was made shows {len(shown)}"
            )
        found = shown - shown[0]
        if time_base == self.tick:
            wrong = np.flatnonzero(found != given).tolist()
        else:
            pairs = enumerate(zip(found.tolist(), given.tolist(), strict=True))
            wrong = [n for n, (one, other) in pairs if one * time_base != other * self.tick]
        if wrong:
            number = wrong[0]
            raise IntegrityError(
                f"the file that was made shows frame {number} at "
                f"{_seconds(int(found[number]) * time_base)}, not at "
                f"{_seconds(int(given[number]) * self.tick)}",
                hint="nothing of it was stored; another container may take these times",
            )

    def _require_near(self, step: int, what: str) -> None:
        """Raises `UsageError` where a picture cannot last for so many of the ticks given."""
        if self._is_matroska or step * self._time_base <= MAX_STEP * self.tick:
            return
        raise UsageError(
            f"{what} {_seconds(step * self._time_base)}: {self._form} can tell of "
            f"{_seconds(MAX_STEP * self.tick)} at most, in ticks of {self.tick} s",
            hint=self._way_out(step),
        )

    def _way_out(self, step: int) -> str:
        matroska = "let the name end in .mkv, which has milliseconds and no such limit"
        if step * self._time_base <= MAX_STEP * Fraction(1, _MIN_TIMESCALE):
            return f"take a coarser time_base, down to 1/{_MIN_TIMESCALE} s, or {matroska}"
        return matroska

    def _told(self, pts: int) -> str:
        return _seconds(pts * self._time_base)


def _mov_tick(time_base: Fraction) -> Fraction:
    """Seconds of a tick in mp4 and mov.  Those that are given are whole numbers of it."""
    scale = time_base.denominator
    while scale < _MIN_TIMESCALE:
        scale *= 2
    return Fraction(1, scale)


def _seconds(exact: Fraction) -> str:
    """Of any size, also beyond that of floats."""
    number = Decimal(exact.numerator) / Decimal(exact.denominator)
    return f"{number:.6f} s" if number < 10**15 else f"{number:.3e} s"
