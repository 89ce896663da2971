"""When raw pictures are compressed, and how hard: the fuller a budget is, the harder.

That is VSS's rule ("A Storage System for Video Analytics", SIGMOD 2021, section 5.2), which begins
with what is least likely to be evicted.  Readers are not made to wait for it, as they are there:
`vfsd compress` does it, and mounts do when nothing else is to be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vfsd.catalog import Transaction
from vfsd.codecs.cells.lossless import HIGHEST, RAW
from vfsd.core.budgets import Held
from vfsd.core.eviction import by_benefit
from vfsd.core.model import Segment
from vfsd.errors import NotFoundError
from vfsd.storage.context import Parts
from vfsd.storage.enforce_budget import allowed, entries
from vfsd.tiling.cost import LOSSLESS

_FROM = 0.25
"""How full a budget is from which on VSS compresses (section 5.2)."""
_STEPS = (1, 9, HIGHEST)
"""Levels that are worth compressing anew for: between them a budget fills for nothing."""


@dataclass(frozen=True, slots=True)
class Due:
    """A segment that should take less room by now."""

    video_id: int
    segment: Segment
    level: int  #: at which its cells are to be compressed


# Level 1 after differences does most of the work: level 9 saves 0 to 12 % more in three to seven
# times the time.
def level_for(used: int, budget: int) -> int:
    """How hard to compress when `used` bytes of a `budget` are taken.

    0 (not at all) while less than a quarter is, then 1 to 19, in proportion to how full the rest
    is.  A budget of nothing is full.
    """
    full = used / budget if budget > 0 else 1.0
    if full < _FROM:
        return RAW
    share = (min(full, 1.0) - _FROM) / (1 - _FROM)
    return 1 + int(share * (HIGHEST - 1))


def step_for(used: int, budget: int) -> int:
    """As `level_for`, of the few levels that are used: the next one below."""
    level = level_for(used, budget)
    return max((step for step in _STEPS if step <= level), default=RAW)


def wanted_level(parts: Parts, video_id: int) -> int:
    """How hard the pictures of a video should be compressed by now; 0: not at all."""
    with parts.catalog.reading() as seen:
        return _wanted_level(seen, video_id)


def due(parts: Parts, video_id: int | None = None) -> list[Due]:
    """What of a video, or of all, should be compressed harder than it is.

    What is least likely to be evicted comes first.  What is pinned is left alone: it is not
    charged.
    """
    with parts.catalog.reading() as seen:
        held = seen.holdings.held(video_id)
        raw = {one.id: one for one in held if one.profile == LOSSLESS and not one.is_pinned}
        if not raw:
            return []
        levels = {number: _wanted_level(seen, number) for number in _videos(raw)}
        last = [one.id for one in reversed(by_benefit(entries(held, seen.holdings.newest_read())))]
        found = []
        for number in (number for number in last if number in raw):
            level = levels[raw[number].video_id]
            if level == RAW:
                continue
            segment = seen.segments.get(number)
            if any(cell.quality < level for cell in segment.cells):
                found.append(Due(raw[number].video_id, segment, level))
    return found


def is_due(parts: Parts, one: Due) -> bool:
    """Whether it still should be: what was compressed meanwhile may have been enough."""
    try:
        return wanted_level(parts, one.video_id) >= one.level
    except NotFoundError:
        return False


def _wanted_level(seen: Transaction, video_id: int) -> int:
    levels = [RAW]
    for scope in (video_id, None):
        limit = allowed(seen, scope)
        if limit is not None:
            levels.append(step_for(seen.holdings.charged(scope), limit))
    return max(levels)


def _videos(held: Mapping[int, Held]) -> set[int]:
    return {one.video_id for one in held.values()}
