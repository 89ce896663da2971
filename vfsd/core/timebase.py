"""Exact time: fractions of seconds in the API, integer ticks of a time base internally.

Also parses and formats byte counts and hours of the day.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from vfsd.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


if TYPE_CHECKING:
    Seconds = int | float | str | Fraction | Decimal | np.integer[Any] | np.floating[Any]
else:
    Seconds = int | float | str | Fraction | Decimal

Span = tuple[Seconds, Seconds | None] | str
"""Times from the first (inclusive) to the second (exclusive), None: to the end; or text as for
`parse_span`.
"""

# Seconds: a longer time does not fit into a float.
_LONGEST = 10**300

_RATIO = re.compile(r"(\d{1,9}(?:\.\d{1,18})?)(?:[/:]([1-9]\d{0,8}|10{9}))?")
_RATE_HINT = "write 25, 29.97 or 30000/1001"
_BYTES = re.compile(r"(\d{1,25})([KMGT]?)(?:i?B)?", re.ASCII)
_CLOCK = re.compile(r"(?:(?:(\d{1,18}):)?(\d{1,2}):)?(\d{1,18}(?:\.\d{1,1000})?)s?")


def seconds(value: Seconds) -> Fraction:
    """Return exact seconds for a number, ``"12.5"``, ``"12.5s"`` or ``"1:02:03.5"``.

    Raises `UsageError` for anything else, including infinities and negative clock times.
    """
    if isinstance(value, str):
        match = _CLOCK.fullmatch(value.strip())
        if match is None:
            raise UsageError(
                f"time must be in seconds or h:mm:ss, got {value!r}",
                hint="for example 12.5, 12.5s or 1:02:03.5",
            )
        hours, minutes, rest = match.groups()
        return int(hours or 0) * 3600 + int(minutes or 0) * 60 + Fraction(rest)
    try:
        exact = value if isinstance(value, Fraction) else _exact(value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"time must be in seconds or h:mm:ss, got {shown(value)}") from None
    if abs(exact) > _LONGEST:
        raise UsageError(f"time must be at most {_LONGEST:.0e} seconds, got {shown(value)}")
    return exact


def _exact(value: Any) -> Fraction:
    if isinstance(value, Integral):
        return Fraction(int(value))  # numpy's integers would overflow in later arithmetic
    # `repr` of numpy's floats includes their type.
    return Fraction(str(value) if isinstance(value, Real) else value)


def parse_span(text: str) -> tuple[Fraction, Fraction | None]:
    """Parse ``A-B``, ``A-`` or ``-B``, with times as for `seconds`.  Raises `UsageError`."""
    start, dash, end = text.partition("-")
    if not dash:
        raise _span_error(text)
    if "-" in end:
        raise UsageError(f"span must be A-B in seconds, got {text!r}", hint=_SPAN_HINT)
    return seconds(start) if start else Fraction(0), seconds(end) if end else None


_SPAN_HINT = "for example 10-20, 1:05-1:10, or 20- for the rest"


def _span_error(text: str) -> UsageError:
    """Text without a dash: 1:30 may mean two times or one."""
    try:
        one = seconds(text)
    except UsageError:
        return UsageError(f"span must be A-B in seconds, got {text!r}", hint=_SPAN_HINT)
    start, colon, end = text.partition(":")
    readings = f"write {text}- to read to the end"
    if colon:
        readings = (
            f"write {start}-{end} for {start} s to {end} s, or {text}- from {float(one):g} s on"
        )
    return UsageError(f"span must be A-B in seconds, got {text!r}", hint=readings)


def span_ends(span: Span) -> tuple[Seconds, Seconds | None]:
    """Return start and end of a span.  Raises `UsageError` for anything but a pair or text."""
    if isinstance(span, str):
        return parse_span(span)
    if not isinstance(span, bytes):  # would unpack into two numbers
        try:
            start, end = span
            return start, end
        except (TypeError, ValueError):
            pass
    raise UsageError(
        f"span must be (start, end) in seconds or A-B, got {shown(span)}",
        hint="an end of None is the end of the video",
    )


def on_tick(value: Seconds, time_base: Fraction) -> Fraction:
    """Like `seconds`, but a float nearest to the time of a tick becomes exactly that time."""
    # So the float time of a frame maps back to that frame: the float nearest to 1/30 is below 1/30.
    if isinstance(value, float) and math.isfinite(value):
        tick = round(Fraction(value) / time_base) * time_base
        if float(tick) == value:
            return tick
    return seconds(value)


def exact_span(span: Span, time_base: Fraction) -> tuple[Fraction, Fraction | None]:
    """Return a span in exact seconds; see `on_tick`.  Raises `UsageError`."""
    start, end = span_ends(span)
    return on_tick(start, time_base), None if end is None else on_tick(end, time_base)


def frame_rate(value: Seconds) -> Fraction:
    """Return exact frames per second for a number, ``"29.97"`` or ``"30000/1001"``.

    Raises `UsageError` for anything else.
    """
    if isinstance(value, str):
        match = _RATIO.fullmatch(value.strip())
        if match is None:
            raise UsageError(f"rate must be a number or N/D, got {value!r}", hint=_RATE_HINT)
        return Fraction(match[1]) / int(match[2] or 1)
    try:
        found = seconds(value)
    except UsageError:
        raise UsageError(
            f"rate must be a number or N/D, got {shown(value)}", hint=_RATE_HINT
        ) from None
    if 0 < found < Fraction(1, _LONGEST):
        raise UsageError(
            f"rate must be at least 1 frame in {_LONGEST:.0e} seconds, got {shown(value)}"
        )
    return found


def nearest_seconds(ticks: npt.NDArray[np.int64], time_base: Fraction) -> npt.NDArray[np.float64]:
    """Return the float nearest to the time of each tick; `on_tick` reverses it."""
    # Both are integers that floats represent exactly, so only the quotient is rounded.
    return ticks.astype("float64") * time_base.numerator / time_base.denominator


def ticks_at_or_after(time: Fraction, time_base: Fraction) -> int:
    """Return the first tick not earlier than `time`."""
    return (time / time_base).__ceil__()


def byte_count(text: str) -> int:
    """Parse ``5000000``, ``500M`` or ``4GiB``; units are powers of 1024.

    Raises `ValueError` for anything else.
    """
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


def byte_text(count: int) -> str:
    """Return text that `byte_count` parses, in the largest unit that is exact."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % (1 << 10 * power) == 0:
            return f"{count >> 10 * power}{unit}"
    return str(count)


def human_bytes(count: float) -> str:
    """Return ``12.3 MiB`` and the like, for people; never parsed back."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_wait(seconds: float) -> str:
    """Return ``3 minutes`` and the like: a wait, rounded up."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{math.ceil(seconds / length)} {unit}"
    return f"{math.ceil(seconds)} seconds"


def clock_text(seconds: Fraction | float) -> str:
    """Return ``1:02:03.50`` and the like, for people."""
    hundredths = round(seconds * 100)
    whole, part = divmod(hundredths, 100)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}.{part:02}"
    return f"{minutes}:{rest:02}.{part:02}"


_HOURS_PATTERN = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?")
_MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Half-open spans of a day, in minutes since midnight; no span means the whole day.

    A span that ends before it starts wraps around midnight.
    """

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse ``22-6`` or ``12:30-13:15, 19-7``.  Raises `UsageError`."""
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        return cls(tuple(_hours(word) for word in words))

    def includes(self, minute: int) -> bool:
        """Return whether a minute of the day, counted from midnight, is in a span."""
        return not self.spans or any(
            first <= minute < end if first < end else minute >= first or minute < end
            for first, end in self.spans
        )


def _hours(word: str) -> tuple[int, int]:
    found = _HOURS_PATTERN.fullmatch(word)
    if found is not None:
        first = int(found[1]) * 60 + int(found[2] or 0)
        end = int(found[3]) * 60 + int(found[4] or 0)
        minutes_are_right = max(int(found[2] or 0), int(found[4] or 0)) < 60
        if (
            minutes_are_right
            and first < _MINUTES_PER_DAY
            and end <= _MINUTES_PER_DAY
            and first != end
        ):
            return first, end
    raise UsageError(
        f"quiet hours must be times of day, got {word!r}",
        hint="for example 22-6, or 12:30-13:15, 19-7",
    )


def iso_time(time_ns: int) -> str:
    """Unix time as ISO 8601 in UTC, to the microsecond, for JSON."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    moment = moment.replace(microsecond=time_ns // 1000 % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
