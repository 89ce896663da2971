"""Whether ages may be acted upon by the clock of this machine.

The rule: the clock is trusted if it is not behind the newest time that the store has recorded, and
at most 30 days after ages were last acted upon.  Before ages are acted upon for the first time, the
30 days count from the first video.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from vfsd.errors import ForbiddenError

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
MAX_PAUSE_DAYS = 30
"""A clock that has jumped ahead by less deletes footage early by less.  Weekly and monthly jobs
need no option."""
_SLACK_NS = 60 * _SECOND_NS
"""The clocks of machines that share a store differ by up to this much."""
_FIRST_NS = 1_704_067_200 * _SECOND_NS
"""The start of 2024, which is before any store.  A clock that has lost its time starts earlier."""


@dataclass(frozen=True, slots=True)
class TrustedClock:
    """The last time at which ages were acted upon."""

    at_ns: int  #: Unix time
    known: Mapping[str, int]
    """The largest row number of each table at that time.  The times of these rows are not checked
    again."""

    def earliest_ns(self, now_ns: int) -> int:
        """The earliest time at which a row can have been written since."""
        return self.at_ns if self.at_ns <= now_ns + _SLACK_NS else _FIRST_NS


def require_trusted_clock(now_ns: int, newest_ns: int | None, since_ns: int | None) -> None:
    """Raise `ForbiddenError` unless ages may be acted upon at `now_ns`.

    Args:
        now_ns: the time of this machine's clock, as Unix time.
        newest_ns: the newest time that the store has recorded; None: it has recorded none.
        since_ns: when ages were last acted upon, or else when the first video was stored; None:
            there is no video.
    """
    if newest_ns is not None and newest_ns > now_ns + _SLACK_NS:
        raise ForbiddenError(
            f"the clock says {_text(now_ns)}, which is behind {_text(newest_ns)}, the newest time "
            "that the store has recorded",
            hint="set the clock of this machine; if it is right now, give --clock-is-right",
        )
    if since_ns is not None and now_ns - since_ns > MAX_PAUSE_DAYS * _DAY_NS:
        raise ForbiddenError(
            f"the clock says {_text(now_ns)}, which is {(now_ns - since_ns) // _DAY_NS} days after "
            f"{_text(since_ns)}, when ages were last acted upon or the first video was stored: the "
            "clock may have jumped ahead",
            hint=f"if the clock is right, give --clock-is-right; runs that are at most "
            f"{MAX_PAUSE_DAYS} days apart do not need it",
        )


def is_plausible_time(at_ns: int) -> bool:
    """Whether a clock that shows this Unix time may be right."""
    return at_ns >= _FIRST_NS


def implausible_times(
    now_ns: int, recorded: Iterable[tuple[int, int]], trusted: TrustedClock | None
) -> set[int]:
    """The ids of the rows whose recorded time cannot be right.

    `recorded` are the ids and times of rows that were written after `trusted`.  A time is wrong if
    it lies in the future, or before ages were last acted upon.
    """
    earliest_ns = _FIRST_NS if trusted is None else trusted.earliest_ns(now_ns)
    return {
        row for row, at_ns in recorded if not earliest_ns - _SLACK_NS <= at_ns <= now_ns + _SLACK_NS
    }


def _text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
