"""Where renditions come from, in a word."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfsd.core.model import Segment


def origin_of(segment: Segment, decided: Collection[int | None]) -> str:
    """``view``: it was encoded for somebody who read one; ``tuner`` or ``command``: who had it
    made.

    `decided` are the numbers of segments that decisions made.
    """
    if segment.is_from_view:
        return "view"
    return "tuner" if segment.id in decided else "command"
