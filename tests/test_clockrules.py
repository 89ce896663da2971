"""When the clock of a machine is not believed."""

from __future__ import annotations

import pytest

from vfsd.core.clock_check import ClockProblem, TrustedClock, earliest_age_start, find_clock_problem

MINUTE = 60 * 1_000_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_800_000_000 * 1_000_000_000


def test_what_is_written_down_every_week_agrees_with_the_clock() -> None:
    assert find_clock_problem(NOW, []) is None
    assert find_clock_problem(NOW, [NOW - 6 * DAY, NOW - 13 * DAY, NOW - 19 * DAY]) is None
    assert find_clock_problem(NOW, [NOW + MINUTE // 2]) is None
    assert find_clock_problem(NOW, [], NOW - 7 * DAY - HOUR) is None  # a weekly job is late
    assert find_clock_problem(NOW, [], NOW + MINUTE // 2) is None


def test_a_clock_that_has_jumped_is_not_believed_whatever_was_written_since() -> None:
    assert find_clock_problem(NOW, [NOW - 8 * DAY]) == ClockProblem(NOW, 8 * DAY)
    start = NOW - 30 * DAY
    assert find_clock_problem(NOW, [NOW - HOUR, start, NOW - MINUTE]) == ClockProblem(
        NOW - HOUR, 30 * DAY - HOUR
    )
    assert find_clock_problem(NOW, [NOW - HOUR], start) == ClockProblem(NOW - HOUR, 30 * DAY - HOUR)
    assert find_clock_problem(NOW, [], start) == ClockProblem(NOW, 30 * DAY)


def test_silences_before_it_was_believed_are_not_asked_of() -> None:
    notes = [NOW - 300 * DAY, NOW - 30 * DAY, NOW - 3 * DAY]
    assert find_clock_problem(NOW, notes) == ClockProblem(NOW - 30 * DAY, 270 * DAY)
    assert find_clock_problem(NOW, notes, NOW - 5 * DAY) is None


@pytest.mark.parametrize("believed", [None, NOW - DAY])
def test_a_clock_that_is_behind_is_not_believed(believed: int | None) -> None:
    found = find_clock_problem(NOW, [NOW - DAY, NOW + DAY, NOW + 2 * DAY], believed)
    assert found == ClockProblem(NOW + 2 * DAY)
    assert found.is_ahead
    assert find_clock_problem(NOW, [], NOW + DAY) == ClockProblem(NOW + DAY)


def test_a_clock_that_was_behind_is_not_believed_of_what_was_stored_then() -> None:
    start, epoch = NOW - 2 * DAY, MINUTE
    found = find_clock_problem(NOW, [], NOW - DAY, in_order=[[], [epoch, NOW - HOUR]])
    assert found == ClockProblem(epoch, before_ns=NOW - DAY)
    assert found.is_behind
    assert not found.is_ahead
    assert find_clock_problem(NOW, [], in_order=[[start, epoch, NOW]]) == ClockProblem(
        epoch, before_ns=start
    )
    nothing_before = find_clock_problem(NOW, [], in_order=[[epoch]])
    assert nothing_before is not None
    assert nothing_before.is_behind
    # Reads are numbered as they end, and others wait for their turn to be written.
    assert find_clock_problem(NOW, [NOW - 5 * DAY, epoch], start) is None
    assert find_clock_problem(NOW, [], in_order=[[start, start - MINUTE * 30, NOW - HOUR]]) is None


def test_what_was_stored_by_a_clock_that_was_behind_is_as_old_as_what_came_next() -> None:
    right, later = NOW - 9 * DAY, NOW - 3 * DAY
    assert earliest_age_start(NOW, [(1, right), (2, right - MINUTE), (3, later)]) == {}
    rows = [(1, right), (2, MINUTE), (3, right - DAY), (4, later), (5, 2 * MINUTE)]
    assert earliest_age_start(NOW, rows) == {2: later, 3: later, 5: NOW}
    assert earliest_age_start(NOW, [(1, MINUTE)]) == {1: NOW}
    assert earliest_age_start(NOW, [(1, right)], later) == {1: NOW}
    # What lies ahead makes nothing old or young.
    assert earliest_age_start(NOW, [(1, right), (2, NOW + DAY), (3, later)]) == {}


def test_what_was_believed_ahead_is_no_start() -> None:
    assert (
        earliest_age_start(NOW, [(1, NOW - DAY)], TrustedClock(NOW + DAY, {}).start_ns(NOW)) == {}
    )
    assert TrustedClock(NOW - DAY, {}).start_ns(NOW) == NOW - DAY


def test_what_is_told() -> None:
    ahead = ClockProblem(NOW + 3650 * DAY).error(NOW, "a.mp4 was held")
    assert "2027-01-15 08:00 UTC, which is behind what" in str(ahead)
    assert "a.mp4 was held at 2037-01-12 08:00 UTC" in str(ahead)
    assert "--clock-is-right" in str(ahead.hint)
    jumped = ClockProblem(NOW, 30 * DAY)
    assert "30 days, from 2026-12-16 08:00 UTC to now" in str(jumped.error(NOW, None))
    assert "to 2027-01-15 08:00 UTC, when a.mp4 was read" in str(
        jumped.error(NOW, "a.mp4 was read")
    )
    behind = ClockProblem(0, before_ns=NOW).error(NOW + DAY, "b.avi was stored")
    assert "behind when b.avi was stored: by it that was at 1970-01-01 00:00 UTC" in str(behind)
    assert "2027-01-15 08:00 UTC had passed before" in str(behind)
    assert "count from what was stored next" in str(behind.hint)
