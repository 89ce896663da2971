"""When a video was recorded: Unix time in nanoseconds, and the clock that says so.

Also names of spans of time: ``t=2026-05-01T10:00:00Z-10:05:00Z.mp4``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING

from vfsd.errors import UsageError

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo

NS = 1_000_000_000
GAPS = ("keep", "close", "raise")
"""The treatment of times without a video in files of a timeline, see `vfsd.api.timeline`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Cameras without a battery start in 1970, 1980 or 2000; no container with such a tag is older.
_EARLIEST = datetime(2000, 1, 2, tzinfo=UTC)
# Of a camera whose clock is ahead, or that writes local time as UTC.
_MOST_AHEAD = timedelta(days=1)


class CaptureClock(StrEnum):
    """The source of a time of recording."""

    GIVEN = "given"  #: a user gave it
    NAME = "name"  #: the name of the file has it
    RTCP = "rtcp"  #: the clock of the camera, by the reports of its stream
    ARRIVAL = "arrival"  #: the clock of the host that recorded it, when its packets came
    CONTAINER = "container"  #: a tag of the container; some programs write the time of an edit


_TRUSTED_CLOCKS = (CaptureClock.GIVEN, CaptureClock.NAME, CaptureClock.ARRIVAL)


@dataclass(frozen=True, slots=True)
class CaptureTime:
    """The time of a video's first frame."""

    ns: int  #: Unix time
    clock: CaptureClock

    @property
    def is_trusted(self) -> bool:
        """Whether ages may count from it.

        A camera that lost its time starts at some plausible date, for example that of its
        firmware, so its clock and the tags of containers are not trusted.
        """
        return self.clock in _TRUSTED_CLOCKS and self.ns >= to_ns(_EARLIEST)


def capture_record(captured: CaptureTime | None) -> dict[str, object] | None:
    """Return a time of recording for JSON; None if it is unknown."""
    if captured is None:
        return None
    text = from_ns(captured.ns).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"time": text, "ns": captured.ns, "clock": captured.clock.value}


def to_ns(moment: datetime) -> int:
    """Return a time as Unix time in nanoseconds.  Raises `UsageError` for one without a zone."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise UsageError(
            f"a time must be a datetime with a time zone, got {moment!r}",
            hint="for example datetime(2026, 5, 1, 10, tzinfo=timezone.utc)",
        )
    passed = moment - _EPOCH
    # Not `timestamp`: a float has no room for microseconds.
    return (passed.days * 86_400 + passed.seconds) * NS + passed.microseconds * 1000


def from_ns(ns: int) -> datetime:
    """Return Unix time in nanoseconds as a time in UTC, rounded down to microseconds."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


def parse_moment(text: str, zone: tzinfo | None = None) -> datetime:
    """Return the time that an ISO 8601 text gives: ``2026-05-01T10:00:00Z``, ``2026-05-01 10:00``.

    A text without a zone is in `zone`; None: the local time zone.  Raises `UsageError`.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone) if zone is not None else moment.astimezone()
        to_ns(moment)  # a local time of the year 1 has no UTC
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"a time must be like 2026-05-01T10:00:00Z, got {text!r}",
            hint="without Z or +02:00, it is in the local time zone",
        ) from None
    return moment


def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name: UTC, or Europe/Zurich.  Raises `UsageError`."""
    from zoneinfo import ZoneInfo  # few callers need it

    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise UsageError(
            f"the time zone must have a name like Europe/Zurich, got {name!r}",
            hint="UTC, or a name of the IANA time zone database; pip install tzdata adds it",
        ) from None


def container_time(tags: Mapping[str, str]) -> CaptureTime | None:
    """Return the time of recording in the tags of a container; None if it has no plausible one.

    QuickTime's ``creationdate`` has a time zone, and is the beginning of a recording.
    ``creation_time`` is UTC by the standard of MP4, but cameras without a time zone write local
    time.
    """
    lowered = {key.lower(): value for key, value in tags.items()}
    for key in ("com.apple.quicktime.creationdate", "creation_time"):
        text = lowered.get(key)
        if text is None:
            continue
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        if _EARLIEST <= moment <= datetime.now(UTC) + _MOST_AHEAD:
            return CaptureTime(to_ns(moment), CaptureClock.CONTAINER)
    return None


_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "y": 2, "j": 3}
_PARTS = {
    **{letter: rf"(?P<{letter}>\d{{{count}}})" for letter, count in _DIGITS.items()},
    "f": r"(?P<f>\d{1,9})",
    "s": r"(?P<s>\d{9,11})",
    "%": "%",
}
_DATES = (set("Ymd"), set("ymd"), set("Yj"), set("yj"))


def name_pattern(pattern: str, zone: tzinfo = UTC) -> Callable[[str], CaptureTime | None]:
    """Return a function that finds the time of recording in a name.

    The function returns None for a name without the pattern, or with an impossible time.  Of
    several places in a name, the last one counts.  A time that a zone has twice, at the end of
    daylight saving time, is the earlier one.

    Raises `UsageError` for a pattern that does not give a date and an hour.

    Args:
        pattern: Text with ``%Y`` (or ``%y``), ``%m``, ``%d`` (or ``%j``, the day of the year),
            ``%H``, ``%M``, ``%S`` and ``%f`` (digits of a fraction of a second), or ``%s`` (Unix
            time).  ``*`` stands for any characters but a slash.
        zone: The time zone of the names; ``%s`` needs none.
    """
    seen: set[str] = set()
    text = ""
    for piece in re.split(r"(%.|\*)", pattern, flags=re.DOTALL):
        if piece == "*":
            text += "[^/]*?"
        elif piece.startswith("%") and len(piece) == 2:
            letter = piece[1]
            if letter not in _PARTS or letter in seen:
                raise _pattern_error(pattern, f"{piece} is not a part of it, or is there twice")
            seen |= {letter} - {"%"}
            text += _PARTS[letter]
        else:
            text += re.escape(piece)
    if "s" not in seen and not (any(date <= seen for date in _DATES) and "H" in seen):
        raise _pattern_error(pattern, "it must give a date and an hour")
    # A run of digits before or after would be cut: %Y in 120261126 is not 1202.
    compiled = re.compile(rf"(?<!\d){text}(?!\d)" if text else text)

    def find(name: str) -> CaptureTime | None:
        last = deque(compiled.finditer(name), maxlen=1)
        return _matched_time(last[0].groupdict(), zone) if last else None

    return find


def _pattern_error(pattern: str, why: str) -> UsageError:
    return UsageError(
        f"the pattern {pattern!r} cannot be used: {why}",
        hint="for example %Y-%m-%d/%H-%M-%S, %Y%m%dT%H%M%S or %s",
    )


def _matched_time(parts: Mapping[str, str], zone: tzinfo) -> CaptureTime | None:
    fraction = int(parts.get("f", "0").ljust(9, "0"))
    if "s" in parts:
        return CaptureTime(int(parts["s"]) * NS + fraction, CaptureClock.NAME)
    year = int(parts["Y"]) if "Y" in parts else 2000 + int(parts["y"])
    clock = (int(parts["H"]), int(parts.get("M", 0)), int(parts.get("S", 0)))
    try:
        if "j" in parts:
            day = datetime(year, 1, 1) + timedelta(days=int(parts["j"]) - 1)
            if day.year != year:
                return None
        else:
            day = datetime(year, int(parts["m"]), int(parts["d"]))
        moment = datetime(day.year, day.month, day.day, *clock, tzinfo=zone)
        return CaptureTime(to_ns(moment.astimezone(UTC)) + fraction, CaptureClock.NAME)
    except (ValueError, OverflowError):
        return None


def capture_source(
    captured: datetime | str | None, zone: str = "UTC"
) -> Callable[[LogicalVideo], CaptureTime | None]:
    """Return a function that gives a video's time of recording.

    The function returns None where the source has none.  Raises `UsageError`.

    Args:
        captured: The time of the first frame; "container" for that in the tags of the file;
            "name:PATTERN" for that in the name (see `name_pattern`); None
            for an unknown time.
        zone: The time zone of names.
    """
    if captured is None:
        return lambda video: None
    if isinstance(captured, datetime):
        given = CaptureTime(to_ns(captured), CaptureClock.GIVEN)
        return lambda video: given
    if captured == "container":
        return lambda video: container_time(video.original.media.tags)
    if isinstance(captured, str) and captured.startswith("name:"):
        find = name_pattern(captured.removeprefix("name:"), time_zone(zone))
        return lambda video: find(video.name)
    raise UsageError(
        f'captured must be a time, "container", "name:PATTERN" or None, got {captured!r}',
        hint='for example "name:%Y-%m-%d/%H-%M-%S"',
    )


_DAY_TEXT = r"\d{4}-\d{2}-\d{2}"
# Colons are not allowed in names on Windows.
_CLOCK_TEXT = r"\d{2}[:-]\d{2}[:-]\d{2}(?:\.\d{1,9})?"
_ZONE_TEXT = r"Z|[+-]\d{2}[:-]?\d{2}"
_SPAN_NAME = re.compile(
    rf"t=(?P<day>{_DAY_TEXT})T(?P<start>{_CLOCK_TEXT})(?P<zone>{_ZONE_TEXT})"
    rf"-(?:(?P<end_day>{_DAY_TEXT})T)?(?P<end>{_CLOCK_TEXT})(?P<end_zone>{_ZONE_TEXT})?\.mp4",
    re.ASCII,
)
_ONE_DAY = timedelta(days=1)


def is_span_name(name: str) -> bool:
    """Return whether a name is meant as a span of time; it may be malformed."""
    return name.startswith("t=")


def parse_span_name(name: str) -> tuple[int, int]:
    """Return the span that a name gives: Unix time in nanoseconds, half-open.

    An end without a zone has that of the start; one without a date is the first such time after
    the start.  Raises `UsageError`.
    """
    found = _SPAN_NAME.fullmatch(name)
    if found is None:
        raise _span_error(name, "it is malformed")
    try:
        zone = _zone_of(found["zone"])
        day = date.fromisoformat(found["day"])
        start = _clock_ns(day, found["start"], zone)
        end_zone = zone if found["end_zone"] is None else _zone_of(found["end_zone"])
        if found["end_day"] is not None:
            end = _clock_ns(date.fromisoformat(found["end_day"]), found["end"], end_zone)
        else:
            day = from_ns(start).astimezone(end_zone).date()
            end = _clock_ns(day, found["end"], end_zone)
            if end <= start:
                end = _clock_ns(day + _ONE_DAY, found["end"], end_zone)
    except (ValueError, OverflowError) as error:
        raise _span_error(name, str(error)) from None
    if end <= start:
        raise _span_error(name, "its end must be after its start")
    return start, end


def _clock_ns(day: date, clock: str, zone: tzinfo) -> int:
    whole, _, fraction = clock.partition(".")
    hours, minutes, seconds = int(whole[:2]), int(whole[3:5]), int(whole[6:])
    moment = datetime(day.year, day.month, day.day, hours, minutes, seconds, tzinfo=zone)
    return to_ns(moment) + int(fraction.ljust(9, "0"))


def _zone_of(text: str) -> tzinfo:
    if text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    if minutes > 59:
        raise ValueError("minutes of a zone must be in 0..59")
    passed = timedelta(hours=hours, minutes=minutes)
    return timezone(-passed if text[0] == "-" else passed)


def _span_error(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name!r} names no span of time: {why}",
        hint="use t=2026-05-01T10:00:00Z-10:05:00Z.mp4; Z may be an offset like +02:00, "
        "and colons may be hyphens",
    )
