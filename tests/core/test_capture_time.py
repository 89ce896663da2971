"""Times of recording in names, in tags of containers and in arguments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.capture_time import (
    CaptureClock,
    container_time,
    from_ns,
    name_pattern,
    parse_moment,
    parse_span_name,
    time_zone,
    to_ns,
)
from vfsd.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("%Y-%m-%d/%H-%M-%S", "cam3/2026-11-26/14-00-00.mp4", "2026-11-26T14:00:00"),
        # Frigate
        ("%Y-%m-%d/%H/*/%M.%S", "recordings/2026-01-02/03/front/04.05.mp4", "2026-01-02T03:04:05"),
        # MediaMTX
        (
            "%Y-%m-%d_%H-%M-%S-%f",
            "gate/2026-01-02_03-04-05-678901.mp4",
            "2026-01-02T03:04:05.678901",
        ),
        ("%Y%m%dT%H%M%S", "cam-20260701T100000.mp4", "2026-07-01T10:00:00"),
        ("%y%m%d%H%M", "260701100059.mp4", None),
        ("%Y%j-%H", "2026182-10.mp4", "2026-07-01T10:00:00"),
        ("%s", "cam/1782900000.mp4", "2026-07-01T10:00:00"),
        ("%Y-%m-%d %H%%", "2026-07-01 10%.mkv", "2026-07-01T10:00:00"),
        # The last place in a name counts, as directories are less exact.
        ("%Y-%m-%d-%H", "2025-01-01-01/2026-07-01-10.mp4", "2026-07-01T10:00:00"),
        ("%Y-%m-%d-%H", "2026-13-01-10.mp4", None),
        ("%Y%j-%H", "2026366-10.mp4", None),
        ("%Y-%m-%d-%H", "12026-07-01-10.mp4", None),
    ],
)
def test_names(pattern: str, name: str, expected: str | None) -> None:
    found = name_pattern(pattern)(name)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.clock == CaptureClock.NAME
        assert from_ns(found.ns) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "pattern", ["", "%H-%M-%S", "%Y-%m-%d", "%Y-%Y-%m-%d-%H", "%Q", "%Y-%d-%H"]
)
def test_pattern_without_a_time_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        name_pattern(pattern)


def test_zone_of_names() -> None:
    zone = time_zone("Europe/Zurich")
    find = name_pattern("%Y-%m-%dT%H", zone)
    summer, winter, twice = (
        find(f"{day}.mp4") for day in ("2026-07-01T10", "2026-12-01T10", "2026-10-25T02")
    )
    assert summer is not None
    assert winter is not None
    assert twice is not None
    assert from_ns(summer.ns).hour == 8
    assert from_ns(winter.ns).hour == 9
    assert from_ns(twice.ns).hour == 0  # the first of two
    with pytest.raises(UsageError, match="time zone"):
        time_zone("Zurich/Europe")
    with pytest.raises(UsageError, match="time zone"):
        time_zone("../etc/passwd")


@given(st.datetimes(datetime(2000, 1, 3), datetime(2099, 1, 1), timezones=st.just(UTC)))
def test_times_round_trip(moment: datetime) -> None:
    assert from_ns(to_ns(moment)) == moment
    zone = timezone(timedelta(hours=5, minutes=30))
    assert to_ns(moment.astimezone(zone)) == to_ns(moment)
    found = name_pattern("%Y%m%d-%H%M%S.%f")(moment.strftime("%Y%m%d-%H%M%S.%f.mp4"))
    assert found is not None
    assert found.ns == to_ns(moment)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"creation_time": "2016-08-28T21:16:08.000000Z"}, "2016-08-28T21:16:08+00:00"),
        # The start of the recording, with the zone of the telephone.
        (
            {
                "creation_time": "2020-01-01T10:00:00.000000Z",
                "com.apple.quicktime.creationdate": "2020-01-01T10:59:50+0100",
            },
            "2020-01-01T09:59:50+00:00",
        ),
        ({"CREATION_TIME": "2016-08-28 21:16:08"}, "2016-08-28T21:16:08+00:00"),
        ({"creation_time": "1970-01-01T00:00:00Z"}, None),
        ({"creation_time": "1904-01-01T00:00:00Z"}, None),
        ({"creation_time": "2999-01-01T00:00:00Z"}, None),
        ({"creation_time": "yesterday"}, None),
        ({"title": "2016-08-28T21:16:08Z"}, None),
    ],
)
def test_tags_of_containers(tags: dict[str, str], expected: str | None) -> None:
    found = container_time(tags)
    assert (None if found is None else from_ns(found.ns).isoformat()) == expected


def test_arguments() -> None:
    assert parse_moment("2026-05-01T10:00:00Z") == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert parse_moment("2026-05-01T10:00+02:00") == datetime(2026, 5, 1, 8, tzinfo=UTC)
    zone = ZoneInfo("Asia/Tokyo")
    assert parse_moment("2026-05-01 10:00", zone) == datetime(2026, 5, 1, 1, tzinfo=UTC)
    assert parse_moment("2026-05-01").tzinfo is not None
    for text in ("", "now", "10:00", "2026-13-01", "0001-01-01T00:00"):
        with pytest.raises(UsageError, match="a time must be like"):
            parse_moment(text)
    with pytest.raises(UsageError, match="time zone"):
        to_ns(datetime(2026, 5, 1))


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("10:00:00Z-10:05:00Z", "2026-05-01T10:00:00Z", "2026-05-01T10:05:00Z"),
        ("10-00-00Z-10-05-00Z", "2026-05-01T10:00:00Z", "2026-05-01T10:05:00Z"),
        ("10-00-00-05-00-10-05-00", "2026-05-01T15:00:00Z", "2026-05-01T15:05:00Z"),
        ("23:59:59.5+0200-00:00:00.25", "2026-05-01T21:59:59.5Z", "2026-05-01T22:00:00.25Z"),
        ("10:00:00Z-2026-05-03T10:00:00Z", "2026-05-01T10:00:00Z", "2026-05-03T10:00:00Z"),
        ("23:30:00Z-01:45:00+02:00", "2026-05-01T23:30:00Z", "2026-05-01T23:45:00Z"),
        ("10:00:00Z-10:00:00Z", "2026-05-01T10:00:00Z", "2026-05-02T10:00:00Z"),
    ],
)
def test_names_of_spans(name: str, start: str, end: str) -> None:
    found = parse_span_name(f"t=2026-05-01T{name}.mp4")
    assert found == (to_ns(parse_moment(start)), to_ns(parse_moment(end)))


def test_names_of_spans_have_nanoseconds() -> None:
    start, end = parse_span_name("t=1970-01-01T00:00:00.000000001Z-00:00:01.123456789Z.mp4")
    assert (start, end) == (1, 1_123_456_789)


@pytest.mark.parametrize(
    "name",
    [
        "t=1-2.mp4",
        "t=2026-05-01T10:00:00-10:05:00.mp4",
        "t=2026-05-01T10:00:00Z-10:05:00Z.mkv",
        "t=2026-05-01T10:00Z-10:05Z.mp4",
        "t=2026-05-01T10:00:00Z-10:75:00Z.mp4",
        "t=2026-02-30T10:00:00Z-10:05:00Z.mp4",
        "t=2026-05-01T10:00:00+25:00-10:05:00.mp4",
        "t=2026-05-01T10:00:00+01:75-10:05:00.mp4",
        "t=2026-05-01T10:00:00Z-2026-05-01T10:00:00Z.mp4",
        "t=2026-05-01T10:00:00.1234567890Z-10:05:00Z.mp4",
        "t=0001-01-01T00:00:00+23:00-00:00:01.mp4",
        "t=9999-12-31T23:59:59Z-00:00:00Z.mp4",
    ],
)
def test_malformed_names_of_spans(name: str) -> None:
    with pytest.raises(UsageError, match="names no span of time"):
        parse_span_name(name)
