"""Whether a mount may make tiles now: decisions without a clock, a machine or a process.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfsd.core.time_windows import QuietHours
from vfsd.core.timebase import human_bytes
from vfsd.disk.config import Settings

CALM_SECONDS = 1.0
"""As long after the last read of a view nothing is done: readers tend to come back."""
LEAST_FREE = 1 << 30
"""Bytes of disk that are left to others in any case."""

_BURST_SECONDS = 2.0
"""In so much time what is allowed may be used up in one go."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a mount and its machine are like."""

    minute: int  #: of the day, since midnight
    load: float  #: share of all cores that others keep busy, 0 to 1
    calm: float  #: seconds since somebody last waited for a view; 0 while somebody does
    free: int  #: bytes of the disk that holds the store


@dataclass(frozen=True, slots=True)
class Rules:
    """When work may be done."""

    hours: QuietHours = field(default_factory=QuietHours)
    max_load: float = 0.5  #: share of all cores that others may keep busy
    calm: float = CALM_SECONDS
    least_free: int = LEAST_FREE

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """What a store's settings say."""
        hours = QuietHours.parse(settings.tune_quiet_hours)
        return cls(hours, settings.tune_max_load / 100)

    def obstacle(self, now: Moment) -> str | None:
        """Why nothing may be done now, in words; None when it may."""
        if now.calm < self.calm:
            return "somebody reads"
        if not self.hours.includes(now.minute):
            return "quiet hours have not begun"
        if now.load > self.max_load:
            return f"others use {now.load:.0%} of the cores"
        if now.free < self.least_free:
            return f"only {human_bytes(now.free)} of the disk are free"
        return None


class CpuAllowance:
    """A share of one core, over time: what is not used up is kept for a moment, no longer.

    Over any stretch of time no more is used than its share of that, of two seconds more, and what
    is computed between two questions.
    """

    def __init__(self, share: float) -> None:
        """`share` of one core; above 1 where several cores may be used."""
        self._share = share
        self._most = share * _BURST_SECONDS
        self._left = self._most
        self._at: float | None = None
        self._pausing = False

    def is_left(self, at: float, used: float) -> bool:
        """Whether work may go on at time `at`, with `used` core seconds since the last question.

        What has been used up has to come back by half before it may.
        """
        passed = 0.0 if self._at is None else at - self._at
        self._at = at
        self._left = min(self._most, self._left + passed * self._share - used)
        if self._left <= 0:
            self._pausing = True
        elif self._left >= self._most / 2:
            self._pausing = False
        return not self._pausing


class Patience:
    """How long what has failed is left alone: longer each time, up to a day."""

    FIRST_SECONDS = 600.0
    MOST_SECONDS = 86400.0

    def __init__(self) -> None:
        self._until: dict[int, tuple[float, float]] = {}  # by what: (until when, how long)

    def failed(self, what: int, at: float) -> float:
        """It has failed; for how many seconds it is left alone."""
        _, before = self._until.get(what, (0.0, 0.0))
        seconds = min(self.MOST_SECONDS, max(self.FIRST_SECONDS, 2 * before))
        self._until[what] = at + seconds, seconds
        return seconds

    def succeeded(self, what: int) -> None:
        self._until.pop(what, None)

    def resting(self, at: float) -> list[int]:
        """All that is left alone at that time, ascending."""
        return sorted(what for what, (until, _) in self._until.items() if at < until)
