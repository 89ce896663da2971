"""What a video's derived data may take: the part of `vfsd.Video` that keeps or lets go."""

from __future__ import annotations

from vfsd.api.video_info import VideoFacts
from vfsd.core.budgets import ChargedSegment, Pin
from vfsd.core.model import Role
from vfsd.core.timebase import Seconds
from vfsd.derive import derived_budget
from vfsd.derive.derived_budget import DerivedBudget
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.validation import width_and_height, yes_or_no


class VideoBudget(VideoFacts):
    """Budget and pins of one video."""

    @property
    def budget(self) -> DerivedBudget:
        """What its tiles and renditions take and may take."""
        return DerivedBudget(self._parts, self._tools, self.info)

    def pins(self) -> list[Pin]:
        """What is kept whatever the budget says, by first frame."""
        return derived_budget.pins(self._parts, self.info)

    def pin(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        tiles: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Pin:
        """Keep tiles and renditions, those to come included, whatever budgets say.

        With `tiles` only tiles; with `size`, (width, height) of the displayed frame, only that
        rendition; with `span` only segments with a frame that appears in these seconds.  What is
        pinned is not charged, and can still be removed explicitly.  Raises `OutOfRangeError`,
        `UsageError`.
        """
        size = None if size is None else width_and_height(size)
        role = _role(tiles, size)
        return derived_budget.pin(self._parts, self.info, self._some(span), role, size)

    def unpin(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        tiles: bool = False,
        size: tuple[int, int] | None = None,
    ) -> list[ChargedSegment]:
        """Take back what `pin` said with the same arguments, or, without any, all pins.

        Gives what had to go, as it is charged now.  Raises `NotFoundError` where there is no such
        pin.
        """
        size = None if size is None else width_and_height(size)
        frames = None if span is None else self._some(span)
        return derived_budget.unpin(self._parts, self.info, frames, _role(tiles, size), size)

    def _some(self, span: tuple[Seconds, Seconds | None] | None) -> range:
        frames = self.frames_in(span)
        if not frames:
            raise OutOfRangeError("no frame appears in that span")
        return frames


def _role(tiles: bool, size: tuple[int, int] | None) -> Role | None:
    if yes_or_no(tiles, "tiles") and size is not None:
        raise UsageError("give either tiles or the size of a rendition, not both")
    if size is not None:
        return Role.RENDITION
    return Role.TILED if tiles else None
