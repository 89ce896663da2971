"""Renditions of what was encoded already, for somebody who has read a view.

No picture is encoded again: a pack is made of the very packets, published as any other is.  They
are decoded once, so that nothing is published that does not decode, packet by packet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vfsd.budget.reclaim import clear_away
from vfsd.codecs.cells.cellcheck import require_decodable
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tiles import VIEW_CODECS
from vfsd.errors import UsageError
from vfsd.frametable import FrameTable
from vfsd.likeness import Likeness
from vfsd.making.planned import PlannedSegment, TileSettings
from vfsd.making.tilework import Beside, TileWork
from vfsd.model import Cell, LogicalVideo, MediaInfo, PhysicalVideo, Segment
from vfsd.parts import Parts
from vfsd.reading.decoders import DecoderPool

FROM_VIEW = "view"
"""What encodings of such renditions say that they are from."""


class Admission:
    """Publishes segments of one video that were encoded for views.  Not thread-safe."""

    def __init__(
        self, parts: Parts, pool: DecoderPool, video: LogicalVideo, table: FrameTable, codec: str
    ) -> None:
        """`codec` is one of `VIEW_CODECS`.  Raises `UsageError` where the pictures are of another
        kind."""
        self._parts = parts
        found = VIEW_CODECS[codec]
        if video.original.media.pixel_format not in found.pixel_formats:
            raise UsageError(f"views of {video.name} do not become renditions")
        self._work = _AdmittedWork(parts, pool, video, table, found, TileSettings(codec, quality=0))

    def admit(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        likeness: Likeness,
        *,
        between: Callable[[], None] = lambda: None,
        beside: Beside | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Let reads use `stream`, the whole picture of the planned frames.

        `likeness` is what it has against the original in that size; `quality` what the encoder was
        given.  `between`, `beside` and `worth` are as for `vfsd.making.retile.Retiler`.  Raises
        `IntegrityError` where it does not decode, `NoSpaceError`, `OverBudgetError`; the store is
        then as it was.
        """
        require_decodable(stream, len(plan.frames), between)
        try:
            return self._work.publish(plan, stream, quality, likeness, beside, worth)
        finally:
            clear_away(self._parts)


class _AdmittedWork(TileWork):
    """Publishes what is there."""

    def publish(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        likeness: Likeness,
        beside: Beside | None,
        worth: float | None,
    ) -> Segment:
        rect = plan.layout.tile(0)
        against_first = self._against_first(likeness, plan.layout)
        cell = Cell(0, rect, 0, 0, quality, *against_first.figures)
        return self._publish(plan, [stream], [cell], beside, worth)

    def _described(self, media: MediaInfo, now_ns: int) -> PhysicalVideo:
        parameters = {"profile": self._codec.name, "from": FROM_VIEW}
        return replace(super()._described(media, now_ns), parameters=parameters)
