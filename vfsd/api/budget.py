"""`VideoBudget`: the limit for the tiles and renditions of one video; `video.budget`."""

from __future__ import annotations

from vfsd.core.budgets import ChargedSegment, Pin
from vfsd.core.model import Role
from vfsd.core.timebase import Seconds
from vfsd.derive import derived_budget
from vfsd.derive.derived_budget import DerivedBudget
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.video_context import VideoContext
from vfsd.validation import boolean, width_and_height


class VideoBudget(DerivedBudget):
    """The budget of one video, and its pins: tiles and renditions that are never evicted.

    video.budget.set("20M")
    video.budget.pin(span=(0, 60), tiles=True)
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("a budget")
        super().__init__(video.parts, video.tools, video.info)
        self._context = video

    def pins(self) -> list[Pin]:
        """All pins of the video, by first frame."""
        return derived_budget.pins(self._context.parts, self._context.info)

    def pin(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        tiles: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Pin:
        """Keep tiles and renditions, present and future ones, whatever budgets say.

        With `tiles`, tiles alone; with `size`, (width, height) of the displayed frame, that
        rendition alone.  `span` is in seconds, end exclusive: segments with a frame in it are
        pinned.  Pinned data is not charged, and can still be removed explicitly.  Raises
        `OutOfRangeError` and `UsageError`.
        """
        size = None if size is None else width_and_height(size)
        role = _role(tiles, size)
        video = self._context
        return derived_budget.pin(video.parts, video.info, self._some(span), role, size)

    def unpin(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        tiles: bool = False,
        size: tuple[int, int] | None = None,
    ) -> list[ChargedSegment]:
        """Remove the pins that `pin` made with the same arguments; without any, all pins.

        Returns the data that was evicted.  Raises `NotFoundError` without such a pin.
        """
        size = None if size is None else width_and_height(size)
        frames = None if span is None else self._some(span)
        video = self._context
        return derived_budget.unpin(video.parts, video.info, frames, _role(tiles, size), size)

    def _some(self, span: tuple[Seconds, Seconds | None] | None) -> range:
        frames = self._context.frames_in(span)
        if not frames:
            raise OutOfRangeError("no frame appears in that span")
        return frames


def _role(tiles: bool, size: tuple[int, int] | None) -> Role | None:
    if boolean(tiles, "tiles") and size is not None:
        raise UsageError("give either tiles or the size of a rendition, not both")
    if size is not None:
        return Role.RENDITION
    return Role.TILED if tiles else None
