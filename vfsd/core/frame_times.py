"""From times and rates to frames.  Every such conversion is made here.

Times are exact seconds from the first frame.  Time stamps are whole ticks, and coarse ones round:
in milliseconds the frames of 30 per second lie at 0, 33, 67, 100.  The frame of 1/15 s must be the
one at 67 all the same.  The rules:

- At a constant rate, frame number n is due at n / rate, as well as at its time stamp.  It is on the
  screen from the earlier of both; a span begins with it where the later of both is in the span.  A
  read at another rate goes by n / rate alone.
- Where time stamps are rounded, a time within half a tick of one means that one.  A time in the
  middle between two ticks means the later tick, as FFmpeg's muxers round.
- A time within half a microsecond of a time stamp means that: programs print times with six
  digits.
- A rate means the nominal rate, a multiple of it or a fraction 1 / n where it differs by rounding:
  the float 23.976023976023978 is 24000/1001.
- All else is exact: at other rates, and where time stamps are not rounded.

Time stamps count as rounded where the frames' nominal times do not lie on ticks, and where the
rate varies and frames last four ticks or more on average.  With fewer ticks to a frame, as in AVI,
the tick is the frame period itself and nothing is rounded.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo
from vfsd.errors import OutOfRangeError

_PRINTED = Fraction(1, 2_000_000)
"""Seconds by which a time of six digits is wrong."""
_SAME_RATE = Fraction(1, 10_000_000)
"""Relative difference up to which a rate is another one, written with too few digits."""
_MOST_TIMES = 10
"""Multiples and fractions of the nominal rate that are recognised."""
_FINE = 4
"""Ticks that a frame lasts on average, where time stamps of a variable rate count as rounded."""


class FrameTimes:
    """When the frames of a stored encoding are shown, by its frame table."""

    def __init__(self, physical: PhysicalVideo, table: FrameTable) -> None:
        self._physical = physical
        self._table = table
        self._base = physical.time_base
        self._rate = physical.constant_rate
        self._rounding = self._base / 2 if self._is_rounded() else Fraction(0)

    def _is_rounded(self) -> bool:
        if self._rate is not None:
            return (self._rate * self._base).numerator != 1
        physical = self._physical
        return physical.end_pts - physical.first_pts >= _FINE * physical.frames

    def at(self, time: Fraction) -> int:
        """The frame that is on the screen at `time`.

        Raises `OutOfRangeError` before the first frame, and at or after the end of the last.
        """
        end = self._physical.duration
        if time < 0 or time >= end:
            raise OutOfRangeError(
                f"nothing is shown at {float(time):g} seconds: the video runs from 0 to "
                f"{float(end):g}",
                hint="times count from the first frame, and the end is exclusive",
            )
        time = self._meant_time(time)
        found = int(self._stamped(time, Fraction(0), 1)[0])
        if self._rate is not None:
            due = min((time * self._rate).__floor__(), len(self._table) - 1)
            if due > found and self._are_on_time(np.array([due], np.int64))[0]:
                return due
        return found

    def between(self, start: Fraction, stop: Fraction | None = None) -> range:
        """The frames that appear in ``start <= t < stop``; None: to the end.

        Spans that touch share no frame and leave none out.
        """
        first = self._first_from(start)
        return range(
            first, len(self._table) if stop is None else max(first, self._first_from(stop))
        )

    def at_rate(self, fps: Fraction, start: Fraction, stop: Fraction | None = None) -> Ints:
        """The frame on the screen at each ``start + k / fps`` before `stop`; None: to the end.

        The first is always there.  Raises `OutOfRangeError` where `start` is after the end.
        """
        self.require_before_end(start)
        end, fps, rate = self._physical.duration, self._meant_rate(fps), self._rate
        first = self._meant_time(start)
        if rate is not None:  # the frame on the screen may be due a little later
            shown = self.at(first)
            if self._are_on_time(np.array([shown], np.int64))[0]:
                first = max(first, shown / rate)
        if stop is None or stop >= end:
            length = end - first - self._rounding
        else:
            length = self._meant_time(stop) - first
        count = max(1, (length * fps).__ceil__())
        if rate is None:
            return self._stamped(first, 1 / fps, count)
        found = np.minimum(_floors(first * rate, rate / fps, count), len(self._table) - 1)
        odd = ~self._are_on_time(found)
        if odd.any():
            found[odd] = self._stamped(first, 1 / fps, count)[odd]
        return found

    def _meant_rate(self, fps: Fraction) -> Fraction:
        if self._rate is None:
            return fps
        times = max(fps / self._rate, self._rate / fps)
        whole = round(times)
        if not 1 <= whole <= _MOST_TIMES or abs(times - whole) > whole * _SAME_RATE:
            return fps
        return self._rate * whole if fps > self._rate * Fraction(3, 4) else self._rate / whole

    def _meant_time(self, time: Fraction) -> Fraction:
        """The time of a frame, or of a tick, that `time` is with six digits; else `time`."""
        units = (self._base,) if self._rate is None else (1 / self._rate, self._base)
        for unit in units:
            exact = round(time / unit) * unit
            if abs(exact - time) <= min(_PRINTED, self._base / 2):
                return exact
        return time

    def require_before_end(self, time: Fraction) -> None:
        """Raises `OutOfRangeError` for a time at which the video is over."""
        end = self._physical.duration
        if time >= end:
            raise OutOfRangeError(
                f"{float(time):.3f} s is after the end of the video at {float(end):.3f} s"
            )

    def _stamped(self, start: Fraction, step: Fraction, count: int) -> Ints:
        """By their time stamps, the frames on the screen at `start`, and at `count` - 1 times
        more, `step` apart."""
        most = self._physical.end_pts - 1
        ticks = _floors((start + self._rounding) / self._base, step / self._base, count)
        found = self._table.last_not_after(np.minimum(self._physical.first_pts + ticks, most))
        return np.maximum(found, 0)

    def _first_from(self, time: Fraction) -> int:
        """The first frame that appears at `time` or later; one past the last frame: none."""
        if time >= self._physical.duration:
            return len(self._table)
        time = self._meant_time(max(time, Fraction(0)))
        if self._rounding:
            ticks = ((time - self._rounding) / self._base).__floor__() + 1
        else:
            ticks = (time / self._base).__ceil__()
        before = np.array([self._physical.first_pts + ticks - 1], np.int64)
        found = int(self._table.last_not_after(before)[0]) + 1
        if self._rate is not None:
            due = (time * self._rate).__ceil__()
            if due < found and self._are_on_time(np.array([due], np.int64))[0]:
                return due
        return found

    def _are_on_time(self, frames: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether the time stamps of frames are nearer to their nominal times than to others.

        They are, unless the table is not what the rate says.
        """
        assert self._rate is not None
        step = float(1 / (self._rate * self._base))
        late = self._table.pts_of(frames) - self._physical.first_pts - frames * step
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(late) < step / 2
        return found


def _floors(start: Fraction, step: Fraction, count: int) -> Ints:
    """The whole part of ``start + k * step`` for each ``k < count``, exactly."""
    below = start.denominator * step.denominator
    first, each = start.numerator * step.denominator, step.numerator * start.denominator
    return np.fromiter(((first + k * each) // below for k in range(count)), np.int64, count)
