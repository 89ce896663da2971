"""Whether what somebody thinks of making would find room, before it is made."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from vfsd.catalog import Transaction
from vfsd.core.budgets import Held
from vfsd.core.eviction import by_benefit
from vfsd.core.model import Role
from vfsd.storage.enforce_budget import LEAD, entries, exceeded


class Room:
    """What is left of the budgets of a video and of the store, as one transaction sees them.

    Looks at segments only where there is too little; then once, however often it is asked.
    """

    def __init__(self, seen: Transaction, video_id: int) -> None:
        self._pins = seen.holdings.pins(video_id)
        self._read = seen.holdings.newest_read()
        self._scopes = [_Scope(seen, number, self._read) for number in (video_id, None)]

    def fits(
        self,
        role: Role,
        frames: range,
        size: tuple[int, int],
        *,
        bytes: int,
        worth: float,
        replaced: Collection[int],
    ) -> bool:
        """Whether such a segment, of the displayed frame in that size, could be published.

        `worth`: CPU seconds that it is expected to save; what would be evicted has to be worth
        less.  `replaced` are the numbers of those whose place it would take.
        """
        if any(pin.holds(role, frames, size) for pin in self._pins):
            return True
        return all(scope.fits(bytes, worth, replaced) for scope in self._scopes)


class _Scope:
    """A video, or the store."""

    def __init__(self, seen: Transaction, video_id: int | None, read: int) -> None:
        self._seen = seen
        self._id = video_id
        self._read = read
        self._over = exceeded(seen, video_id)

    def fits(self, bytes: int, worth: float, replaced: Collection[int]) -> bool:
        if self._over is None or self._over + bytes <= 0:
            return True
        over = self._over + bytes
        freed = sum(one.bytes for one in self._order if one.id in replaced)
        lost = 0.0
        for one in self._order:
            if freed >= over:
                break
            if one.id not in replaced:
                freed += one.bytes
                lost += 0.0 if one.is_retired else one.worth_at(self._read)
        return freed >= over and LEAD * lost <= worth

    @cached_property
    def _order(self) -> list[Held]:
        """What may go, what goes first first."""
        held = self._seen.holdings.held(self._id)
        free = {one.id: one for one in held if not one.is_pinned}
        order = by_benefit(one for one in entries(held, self._read) if one.id in free)
        return [free[one.id] for one in order]
