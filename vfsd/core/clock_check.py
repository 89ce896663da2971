"""Pure: whether the clock of this machine agrees with what a store has written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from vfsd.errors import ForbiddenError

_SECOND_NS = 1_000_000_000
_HOUR_NS = 3600 * _SECOND_NS
_DAY_NS = 24 * _HOUR_NS
_SLACK_NS = 60 * _SECOND_NS
"""Clocks of several machines may differ by as much."""
# The newest note is no proof: a clock that jumped ahead has written it. The gap before that note
# stays.
_SILENCE_NS = 7 * _DAY_NS + 6 * _HOUR_NS
"""Where nothing was written down for longer, the clock may have jumped ahead.  A week, and as much
as what is done once a week may be late."""
_DISORDER_NS = _HOUR_NS
"""Moments may be as much earlier than those of rows with lower numbers: they are told before their
transaction has its turn."""
_FIRST_NS = 1_704_067_200 * _SECOND_NS
"""2024: no store was there before.  Clocks that have forgotten the time begin long before that."""


@dataclass(frozen=True, slots=True)
class TrustedClock:
    """The last time at which ages were told by the clock, and acted upon."""

    at_ns: int  #: Unix time
    known: Mapping[str, int]
    """What had been written down by then, right or wrong: the newest number in each table.  It is
    asked no more."""

    def start_ns(self, now_ns: int) -> int:
        """Before which nothing can have been written down since."""
        return self.at_ns if self.at_ns <= now_ns + _SLACK_NS else _FIRST_NS


@dataclass(frozen=True, slots=True)
class ClockProblem:
    """Why the clock may be wrong now, or was when something was written down."""

    at_ns: int  #: of what lies ahead of the clock or behind, or came after a silence
    silent_ns: int = 0  #: how long nothing was written down before that; 0: it is no silence
    before_ns: int = 0  #: what had been written down before, though later; 0: it lies ahead

    @property
    def is_ahead(self) -> bool:
        return not self.silent_ns and not self.before_ns

    @property
    def is_behind(self) -> bool:
        return bool(self.before_ns)

    def error(self, now_ns: int, what: str | None) -> ForbiddenError:
        """For people.  `what` was written down at that moment; None: nothing was, it is now."""
        if self.is_ahead:
            return ForbiddenError(
                f"by the clock it is {_text(now_ns)}, which is behind what the store has written "
                f"down: {what} at {_text(self.at_ns)}",
                hint="set the clock of this machine; where it is right, and was wrong then, say "
                "--clock-is-right",
            )
        if self.is_behind:
            return ForbiddenError(
                f"the clock was behind when {what}: by it that was at {_text(self.at_ns)}, and "
                f"{_text(self.before_ns)} had passed before",
                hint="where it is right now, say --clock-is-right: ages of what was stored while "
                "it was behind count from what was stored next by the right time, or from now",
            )
        start, days = self.at_ns - self.silent_ns, self.silent_ns // _DAY_NS
        until = "now" if what is None else f"{_text(self.at_ns)}, when {what}"
        return ForbiddenError(
            f"by the clock nothing was written down for {days} days, from {_text(start)} to "
            f"{until}: it may have jumped ahead",
            hint="where it is right, say --clock-is-right",
        )


def find_clock_problem(
    now_ns: int,
    notes: Sequence[int],
    believed_ns: int | None = None,
    *,
    in_order: Iterable[Sequence[int]] = (),
) -> ClockProblem | None:
    """What speaks against the clock; None: nothing.

    `notes` are the moments at which anything was written down since it was `believed_ns`, in any
    order; each part of `in_order` has some in the order of writing.  Each moment may itself come
    from a wrong clock: so it is not only asked how long ago the last was, but whether there is a
    silence before any of them, and whether any is earlier than one before it.
    """
    notes = [one for one in notes if is_plausible_time(one)]
    known = notes if believed_ns is None else [*notes, believed_ns]
    newest = max(known, default=now_ns)
    if newest > now_ns + _SLACK_NS:
        return ClockProblem(newest)
    for part in in_order:
        fallen = _first_backward_step(part, _FIRST_NS if believed_ns is None else believed_ns)
        if fallen is not None:
            return fallen
    start = min(known, default=now_ns) if believed_ns is None else believed_ns
    moments = [start, *sorted(one for one in notes if start < one < now_ns), now_ns]
    silent_ns, end = max((after - before, after) for before, after in pairwise(moments))
    return ClockProblem(end, silent_ns) if silent_ns > _SILENCE_NS else None


def is_plausible_time(at_ns: int) -> bool:
    """Whether a clock that says so may be right: there was no store before 2024."""
    return at_ns >= _FIRST_NS


def earliest_age_start(
    now_ns: int, rows: Iterable[tuple[int, int]], start_ns: int = _FIRST_NS
) -> dict[int, int]:
    """Since when, at most, there is what was written down while the clock was behind; nothing of
    anything else.

    `rows` are whose they are, and the moment by the clock, in the order of writing, all of them
    after `start_ns`.  What was behind came before the next row that was not, or before now.
    """
    highest = start_ns
    found: dict[int, int] = {}
    behind: list[int] = []
    for whose, moment in rows:
        if moment > now_ns + _SLACK_NS:
            continue  # it lies ahead, and says nothing of others
        if moment < highest - _DISORDER_NS:
            behind.append(whose)
            continue
        highest = max(highest, moment)
        found.update(dict.fromkeys(behind, highest))
        behind.clear()
    return found | dict.fromkeys(behind, now_ns)


def _first_backward_step(moments: Iterable[int], highest: int) -> ClockProblem | None:
    """The first that is earlier than what came before it."""
    for moment in moments:
        if moment < highest - _DISORDER_NS:
            return ClockProblem(moment, before_ns=highest)
        highest = max(highest, moment)
    return None


def _text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
