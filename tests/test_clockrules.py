"""When the clock of a machine is not believed."""

from __future__ import annotations

import pytest

from vfsd.retention.clockrules import Doubt, doubt

MINUTE = 60 * 1_000_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_800_000_000 * 1_000_000_000


def test_what_is_written_down_every_week_agrees_with_the_clock() -> None:
    assert doubt(NOW, []) is None
    assert doubt(NOW, [NOW - 6 * DAY, NOW - 13 * DAY, NOW - 19 * DAY]) is None
    assert doubt(NOW, [NOW + MINUTE // 2]) is None
    assert doubt(NOW, [], NOW - 7 * DAY - HOUR) is None  # a weekly job is late
    assert doubt(NOW, [], NOW + MINUTE // 2) is None


def test_a_clock_that_has_jumped_is_not_believed_whatever_was_written_since() -> None:
    assert doubt(NOW, [NOW - 8 * DAY]) == Doubt(NOW, 8 * DAY)
    start = NOW - 30 * DAY
    assert doubt(NOW, [NOW - HOUR, start, NOW - MINUTE]) == Doubt(NOW - HOUR, 30 * DAY - HOUR)
    assert doubt(NOW, [NOW - HOUR], start) == Doubt(NOW - HOUR, 30 * DAY - HOUR)
    assert doubt(NOW, [], start) == Doubt(NOW, 30 * DAY)


def test_silences_before_it_was_believed_are_not_asked_of() -> None:
    notes = [NOW - 300 * DAY, NOW - 30 * DAY, NOW - 3 * DAY]
    assert doubt(NOW, notes) == Doubt(NOW - 30 * DAY, 270 * DAY)
    assert doubt(NOW, notes, NOW - 5 * DAY) is None


@pytest.mark.parametrize("believed", [None, NOW - DAY])
def test_a_clock_that_is_behind_is_not_believed(believed: int | None) -> None:
    found = doubt(NOW, [NOW - DAY, NOW + DAY, NOW + 2 * DAY], believed)
    assert found == Doubt(NOW + 2 * DAY)
    assert found.is_ahead
    assert doubt(NOW, [], NOW + DAY) == Doubt(NOW + DAY)


def test_what_is_told() -> None:
    ahead = Doubt(NOW + 3650 * DAY).error(NOW, "a.mp4 was held")
    assert "2027-01-15 08:00 UTC, which is behind what" in str(ahead)
    assert "a.mp4 was held at 2037-01-12 08:00 UTC" in str(ahead)
    assert "--clock-is-right" in str(ahead.hint)
    jumped = Doubt(NOW, 30 * DAY)
    assert "30 days, from 2026-12-16 08:00 UTC to now" in str(jumped.error(NOW, None))
    assert "to 2027-01-15 08:00 UTC, when a.mp4 was read" in str(
        jumped.error(NOW, "a.mp4 was read")
    )
