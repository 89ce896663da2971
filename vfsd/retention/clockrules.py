"""Pure: whether the clock of this machine agrees with what a store has written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from vfsd.errors import ForbiddenError

_SECOND_NS = 1_000_000_000
_HOUR_NS = 3600 * _SECOND_NS
_DAY_NS = 24 * _HOUR_NS
_SLACK_NS = 60 * _SECOND_NS
"""Clocks of several machines may differ by as much."""
_SILENCE_NS = 7 * _DAY_NS + 6 * _HOUR_NS
"""Where nothing was written down for longer, the clock may have jumped ahead.  A week, and as much
as what is done once a week may be late."""


@dataclass(frozen=True, slots=True)
class Believed:
    """The last time at which ages were told by the clock, and acted upon."""

    at_ns: int  #: Unix time
    known: Mapping[str, int]
    """What had been written down by then, right or wrong: the newest number in each table.  It is
    asked no more."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the clock may be wrong now, or was when something was written down."""

    at_ns: int  #: of what lies ahead of the clock, or came after a silence
    silent_ns: int = 0  #: how long nothing was written down before that; 0: it lies ahead

    @property
    def is_ahead(self) -> bool:
        return not self.silent_ns

    def error(self, now_ns: int, what: str | None) -> ForbiddenError:
        """For people.  `what` was written down at that moment; None: nothing was, it is now."""
        if self.is_ahead:
            return ForbiddenError(
                f"by the clock it is {_text(now_ns)}, which is behind what the store has written "
                f"down: {what} at {_text(self.at_ns)}",
                hint="set the clock of this machine; where it is right, and was wrong then, say "
                "--clock-is-right",
            )
        start, days = self.at_ns - self.silent_ns, self.silent_ns // _DAY_NS
        until = "now" if what is None else f"{_text(self.at_ns)}, when {what}"
        return ForbiddenError(
            f"by the clock nothing was written down for {days} days, from {_text(start)} to "
            f"{until}: it may have jumped ahead",
            hint="where it is right, say --clock-is-right",
        )


def doubt(now_ns: int, notes: Sequence[int], believed_ns: int | None = None) -> Doubt | None:
    """What speaks against the clock; None: nothing.

    `notes` are the moments at which anything was written down since it was `believed_ns`, in any
    order.  Each of them may itself come from a wrong clock: so it is not only asked how long ago
    the last was, but whether there is a silence before any of them.
    """
    known = list(notes) if believed_ns is None else [*notes, believed_ns]
    newest = max(known, default=now_ns)
    if newest > now_ns + _SLACK_NS:
        return Doubt(newest)
    start = min(known, default=now_ns) if believed_ns is None else believed_ns
    moments = [start, *sorted(one for one in notes if start < one < now_ns), now_ns]
    silent_ns, end = max((after - before, after) for before, after in pairwise(moments))
    return Doubt(end, silent_ns) if silent_ns > _SILENCE_NS else None


def _text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
