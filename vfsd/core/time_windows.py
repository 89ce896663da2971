"""Hours of the day, as settings have them: ``22-6`` or ``12:30-13:15, 19-7``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vfsd.errors import UsageError

_SPAN = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?")
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Spans of a day, half-open, in minutes since midnight; none of them means all of it.

    A span that ends before it starts goes on past midnight.
    """

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Raises `UsageError`."""
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        return cls(tuple(_span(word) for word in words))

    def includes(self, minute: int) -> bool:
        """Whether a minute of the day, counted from midnight, is among them."""
        return not self.spans or any(
            first <= minute < end if first < end else minute >= first or minute < end
            for first, end in self.spans
        )


def _span(word: str) -> tuple[int, int]:
    found = _SPAN.fullmatch(word)
    if found is not None:
        first = int(found[1]) * 60 + int(found[2] or 0)
        end = int(found[3]) * 60 + int(found[4] or 0)
        minutes_are_right = max(int(found[2] or 0), int(found[4] or 0)) < 60
        if minutes_are_right and first < _DAY and end <= _DAY and first != end:
            return first, end
    raise UsageError(
        f"quiet hours must be times of day, got {word!r}",
        hint="for example 22-6, or 12:30-13:15, 19-7",
    )
