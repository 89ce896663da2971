"""Promotes cached view segments to renditions without encoding them again.

`ViewPromoter` builds a pack from the cached packets, and decodes it once to verify it and measure
its quality.  `CandidatePromoter` executes the proposals of the tuner.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import VIEW_CODECS, verified_likeness
from vfsd.codecs.frames.quality import SitedFrameComparer
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell, LogicalVideo, MediaInfo, PhysicalVideo, Segment
from vfsd.derive.promotion_candidates import CandidateIndex, PromotionCandidate
from vfsd.derive.proposals import Proposal
from vfsd.derive.tile_encoder import BetweenPictures, OnPublish, SegmentMaker
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.errors import DamagedFileError, IntegrityError, OutdatedError, UsageError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.read_context import ReadContext
from vfsd.read.video_context import VideoContext
from vfsd.storage.context import StoreContext

FROM_VIEW = "view"
"""Marks the encodings of such renditions."""


class ViewPromoter:
    """Publishes segments of one video that were encoded for views.  Not thread-safe."""

    def __init__(
        self,
        parts: StoreContext,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        codec: str,
        between: BetweenPictures | None = None,
    ) -> None:
        """`codec` is one of `VIEW_CODECS`; `between` as for `vfsd.derive.retile.Retiler`.

        Raises `UsageError` for an unsupported pixel format.
        """
        found = VIEW_CODECS[codec]
        if video.original.media.pixel_format not in found.pixel_formats:
            raise UsageError(
                f"views of {video.name} cannot become renditions: unsupported pixel format"
            )
        settings = TileSettings(codec, quality=0)
        self._work = _PromotionMaker(parts, pool, video, table, found, settings, between)

    def promote(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        *,
        on_publish: OnPublish | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Publish `stream`, the whole picture of the planned frames.

        `quality` is the encoder's setting.  `on_publish` and `worth` are as for
        `vfsd.derive.retile.Retiler`.  Raises `IntegrityError` if it or the original cannot be
        decoded, `NoSpaceError`, `OverBudgetError`.  On an error the store is unchanged.
        """
        return self._work.promote(plan, stream, quality, on_publish, worth)


class _PromotionMaker(SegmentMaker):
    """Measures and publishes existing packets."""

    def promote(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        on_publish: OnPublish | None,
        worth: float | None,
    ) -> Segment:
        media = self._media_of(plan.layout)
        comparer = SitedFrameComparer(media, media.width, media.height)
        with closing(self._pictures(plan.frames)) as pictures:
            likeness = verified_likeness(
                stream.codec,
                stream.extradata,
                stream.packets,
                self._shots(pictures, media),
                comparer,
            )
        against_first = self._against_first(likeness, plan.layout)
        cell = Cell(0, plan.layout.tile(0), 0, 0, quality, *against_first.as_tuple)
        sited = replace(stream, siting=comparer.siting)
        return self._publish(plan, [sited], [cell], on_publish, worth)

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        """Decode each run separately, because these segments need not start at a key frame."""
        for run in self._table.decode_runs(frames):
            with self._pool.decoder(self._video.original, self._table, run) as decoder:
                for _, picture in decoder.decode(run, before_packet=self._pause):
                    yield picture

    def _described(self, media: MediaInfo, now_ns: int) -> PhysicalVideo:
        parameters = {"profile": self._codec.name, "from": FROM_VIEW}
        return replace(super()._described(media, now_ns), parameters=parameters)


PublishSegment = Callable[[OnPublish], Segment]
"""Publishes a segment, and calls its argument in the same transaction."""


class CandidatePromoter:
    """Promotes candidates.  Not thread-safe, but several in any processes may run at once."""

    def __init__(
        self, parts: StoreContext, tools: ReadContext, between: Callable[[], None]
    ) -> None:
        """`between` is called before each packet of an original that is decoded."""
        self._parts = parts
        self._tools = tools
        self._between = between
        self._candidates = CandidateIndex.of_store(parts)
        self._of: dict[tuple[int, str], ViewPromoter] = {}

    def of(
        self, video: VideoContext, candidate: PromotionCandidate, proposal: Proposal
    ) -> PublishSegment:
        """Return a function that publishes `candidate` and then removes it from the cache.

        Raises `OutdatedError` if it is not in the cache any more.  The function raises as
        `ViewPromoter.promote` does.
        """
        made = candidate.made
        stream = self._candidates.stream(candidate)
        if stream is None:
            self._candidates.drop(candidate)  # so that the next reader renders it again
            raise OutdatedError(
                f"the cached view segment of {video.name} was evicted",
                hint="ask for proposals again",
            )
        promoter = self._promoter_for(video, made.codec)

        def promote(on_publish: OnPublish) -> Segment:
            try:
                segment = promoter.promote(
                    proposal.plan, stream, made.quality, on_publish=on_publish, worth=proposal.saved
                )
            except DamagedFileError:
                raise  # damage of the original: the cached segment may be all that is left of it
            except IntegrityError:
                self._candidates.drop(candidate)
                raise
            # Views are served from the rendition from now on.
            self._candidates.drop(candidate)
            return segment

        return promote

    def _promoter_for(self, video: VideoContext, codec: str) -> ViewPromoter:
        key = video.original.id, codec
        if key not in self._of:
            self._of[key] = ViewPromoter(
                self._parts, self._tools.pool, video.info, video.table, codec, self._between
            )
        return self._of[key]
