"""When the system clock can be trusted for actions that depend on age."""

from __future__ import annotations

import pytest

from vfsd.core.retention_policy import (
    TrustedClock,
    implausible_times,
    is_plausible_time,
    require_trusted_clock,
)
from vfsd.errors import ForbiddenError

DAY = 86_400 * 1_000_000_000
NOW = 20_500 * DAY


@pytest.mark.parametrize(
    ("newest", "since"),
    [(None, None), (NOW, NOW), (NOW + 59 * 1_000_000_000, NOW - 30 * DAY), (None, NOW - 30 * DAY)],
)
def test_plausible_clock_is_trusted(newest: int | None, since: int | None) -> None:
    require_trusted_clock(NOW, newest, since)


def test_clock_behind_the_newest_time_is_refused() -> None:
    with pytest.raises(ForbiddenError, match="behind 2026-02-16 00:01 UTC") as caught:
        require_trusted_clock(NOW, NOW + 61 * 1_000_000_000, NOW)
    assert "--clock-is-right" in str(caught.value.hint)


def test_long_pause_is_refused() -> None:
    with pytest.raises(ForbiddenError, match="31 days after 2026-01-16 00:00 UTC") as caught:
        require_trusted_clock(NOW, None, NOW - 31 * DAY)
    assert "at most 30 days apart" in str(caught.value.hint)


def test_times_before_the_last_run_or_ahead_are_implausible() -> None:
    trusted = TrustedClock(NOW - 5 * DAY, {})
    rows = [(1, NOW), (2, NOW - 5 * DAY), (3, NOW - 6 * DAY), (4, NOW + DAY), (5, 0)]
    assert implausible_times(NOW, rows, trusted) == {3, 4, 5}
    assert implausible_times(NOW, rows, None) == {4, 5}


def test_last_run_ahead_of_the_clock_is_ignored() -> None:
    ahead = TrustedClock(NOW + 300 * DAY, {})
    assert implausible_times(NOW, [(1, NOW), (2, 0)], ahead) == {2}


def test_times_before_any_store_are_implausible() -> None:
    assert not is_plausible_time(0)
    assert is_plausible_time(NOW)
