"""Renditions of what was encoded already, for somebody who has read a view.

No picture is encoded again: a pack is made of the very packets, published as any other is.  They
are decoded once, beside the original, so that nothing is published that does not decode, packet by
packet, and what it is told to have was measured of it, as of whatever else reads are given.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import VIEW_CODECS
from vfsd.codecs.cells.verify import checked_likeness
from vfsd.codecs.frames.quality import SitedComparer
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell, LogicalVideo, MediaInfo, PhysicalVideo, Segment
from vfsd.derive.tile_encoder import Beside, BetweenPictures, TileWork
from vfsd.derive.tile_spec import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.storage.context import Parts

FROM_VIEW = "view"
"""What encodings of such renditions say that they are from."""


class Admission:
    """Publishes segments of one video that were encoded for views.  Not thread-safe."""

    def __init__(
        self,
        parts: Parts,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        codec: str,
        between: BetweenPictures | None = None,
    ) -> None:
        """`codec` is one of `VIEW_CODECS`; `between` is as for `vfsd.derive.retile.Retiler`.

        Raises `UsageError` where the pictures are of another kind.
        """
        found = VIEW_CODECS[codec]
        if video.original.media.pixel_format not in found.pixel_formats:
            raise UsageError(f"views of {video.name} do not become renditions")
        settings = TileSettings(codec, quality=0)
        self._work = _AdmittedWork(parts, pool, video, table, found, settings, between)

    def admit(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        *,
        beside: Beside | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Let reads use `stream`, the whole picture of the planned frames.

        `quality` is what the encoder was given.  `beside` and `worth` are as for
        `vfsd.derive.retile.Retiler`.  Raises `IntegrityError` where it, or the original, does not
        decode, `NoSpaceError`, `OverBudgetError`; the store is then as it was.
        """
        return self._work.admit(plan, stream, quality, beside, worth)


class _AdmittedWork(TileWork):
    """Measures and publishes what is there."""

    def admit(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        beside: Beside | None,
        worth: float | None,
    ) -> Segment:
        media = self._media_of(plan.layout)
        comparer = SitedComparer(media, media.width, media.height)
        with closing(self._pictures(plan.frames)) as pictures:
            likeness = checked_likeness(
                stream.codec,
                stream.extradata,
                stream.packets,
                self._shots(pictures, media),
                comparer,
            )
        against_first = self._against_first(likeness, plan.layout)
        cell = Cell(0, plan.layout.tile(0), 0, 0, quality, *against_first.figures)
        sited = replace(stream, siting=comparer.siting)
        return self._publish(plan, [sited], [cell], beside, worth)

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        """Decoders go on from the segment before: these begin where nobody has put a key frame."""
        for run in self._table.decode_runs(frames):
            with self._pool.decoder(self._video.original, self._table, run) as decoder:
                for _, picture in decoder.decode(run, before_packet=self._pause):
                    yield picture

    def _described(self, media: MediaInfo, now_ns: int) -> PhysicalVideo:
        parameters = {"profile": self._codec.name, "from": FROM_VIEW}
        return replace(super()._described(media, now_ns), parameters=parameters)
