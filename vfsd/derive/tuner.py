"""Executes proposals one segment at a time: encodes tiles, or promotes cached view segments
without encoding them again.  A segment and its decision are published in one transaction, and a
decision can be undone until a later one replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from vfsd.catalog import Transaction
from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_encoders import VIEW_CODECS, verified_likeness
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.frames.quality import SitedFrameComparer
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import (
    Cell,
    LogicalVideo,
    MediaInfo,
    PhysicalVideo,
    Role,
    Segment,
    TilingDecision,
)
from vfsd.derive.derived_data import BudgetHeadroom
from vfsd.derive.promotion_candidates import CandidateIndex, PromotionCandidate
from vfsd.derive.proposals import Proposal, by_value, proposals_for
from vfsd.derive.retile import OnProgress, Retiler
from vfsd.derive.tile_encoder import (
    BetweenPictures,
    OnPublish,
    PlannedSegment,
    SegmentCells,
    SegmentMaker,
    TileSettings,
    require_same_bytes,
)
from vfsd.errors import (
    DamagedFileError,
    ExistsError,
    IntegrityError,
    NotFoundError,
    OutdatedError,
    OverBudgetError,
    UsageError,
    VfsdError,
)
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.read_context import ReadContext, VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import overlaps
from vfsd.tiling.policy import LedgerParameters
from vfsd.validation import value_or_default, within_64_bits
from vfsd.write.frame_index import verify

FROM_VIEW = "view"
"""Value of the parameter `from` in encodings of promoted views."""

PublishSegment = Callable[[OnPublish], Segment]
"""Publishes a segment, and calls its argument in the same transaction."""

Videos = Callable[[], Iterable[VideoContext]]
"""Returns the videos to consider, in their present state."""

OpenVideo = Callable[[LogicalVideo], VideoContext]
"""Opens a video from its catalog record."""

OnFailed = Callable[[LogicalVideo, VfsdError], None]
"""Called with a video, and why no tiles can be made of it."""

BetweenSteps = Callable[[], None]
"""Called before each picture that is processed; may wait, or raise to discard the segment."""


@dataclass(frozen=True, slots=True)
class TuningBudget:
    """Limits of a tuning run; None for no limit."""

    seconds: float | None = None  #: for making tiles
    bytes: int | None = None  #: of tiles

    def allows(self, proposal: Proposal) -> bool:
        """Return whether the budget covers the predicted cost."""
        return (self.seconds is None or proposal.seconds <= self.seconds) and (
            self.bytes is None or proposal.bytes <= self.bytes
        )

    def less(self, seconds: float, bytes: int) -> TuningBudget:
        """Return the rest of the budget after spending this much."""
        return TuningBudget(
            None if self.seconds is None else self.seconds - seconds,
            None if self.bytes is None else self.bytes - bytes,
        )


class Tuner:
    """Executes proposals.  Not thread-safe, but several in any processes may run at once."""

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        videos: Videos,
        open_video: OpenVideo,
        *,
        maker: str = "tune",
        between: BetweenSteps | None = None,
        terms: LedgerParameters | None = None,
    ) -> None:
        """`maker` is stored with each decision: tune or background."""
        self._parts = parts
        self._tools = tools
        self._videos = videos
        self._open_video = open_video
        self._maker = maker
        self._between = between
        self._terms = terms
        self._paused = 0.0  # seconds
        self._pictures: int | None = None  # pictures processed of the current segment
        self._on_picture: Callable[[int], None] | None = None
        self._retilers: dict[tuple[int, TileSettings], Retiler] = {}
        self._promoter = CandidatePromoter(parts, tools, self._pause)
        # bytes to find room for at the next attempt
        self._refused: dict[tuple[int, PlannedSegment], int] = {}

    def proposals(self) -> list[Proposal]:
        """Return the proposals from the current read log, best value first.

        Proposals are left out if they do not fit the budget and all existing data is worth more.
        """
        self._tools.read_log.flush()
        return by_value(
            proposal
            for video in self._videos()
            for proposal in self.fitting(proposals_for(self._parts, video, self._terms))
        )

    def fitting(self, proposals: list[Proposal]) -> list[Proposal]:
        """Return those proposals of one video that fit the budget, each considered separately."""
        if not proposals:
            return []
        with self._parts.catalog.reading() as seen:
            room = BudgetHeadroom(seen, proposals[0].video.id)
            return [one for one in proposals if _fits(room, one, self._bytes_of(one))]

    def next(self, budget: TuningBudget | None = None) -> Proposal | None:
        """Return the best proposal that `budget` covers, or None."""
        budget = value_or_default(budget, TuningBudget)
        return next((one for one in self.proposals() if budget.allows(one)), None)

    def make(self, proposal: Proposal) -> TilingDecision:
        """Execute a proposal.

        Raises `OutdatedError` if the existing tiles or the video's bytes have changed,
        `NotFoundError` if the video is gone, `OverBudgetError` if only more valuable data could
        make room, what `between` raises, and as `retile` does.  On an error the store is unchanged.
        """
        self._parts.require_writable()
        with self._detect_outdated(proposal.video):
            return self._execute(proposal)

    def _execute(self, proposal: Proposal) -> TilingDecision:
        video = self._verified(proposal.video)
        with self._parts.catalog.reading() as seen:
            _require_present(seen, proposal, None)
        if proposal.candidate is None:
            publish = self._to_encode(video, proposal)
        else:
            publish = self._promoter.of(video, proposal.candidate, proposal)
        began, self._paused, self._pictures = time.perf_counter(), 0.0, 0
        made: list[TilingDecision] = []

        def on_publish(change: Transaction, segment: Segment) -> None:
            _require_present(change, proposal, segment)
            seconds = time.perf_counter() - began - self._paused
            decision = _decision(proposal, segment, self._maker, seconds)
            made.append(change.tiling_decisions.add(decision))

        try:
            publish(on_publish)
        except OverBudgetError:
            # It is larger than predicted: do not encode it again only to fail.
            self._refused[_key(proposal)] = 2 * self._bytes_of(proposal)
            raise
        finally:
            self._pictures = None
        return made[-1]

    def tune(
        self,
        budget: TuningBudget | None = None,
        on_progress: OnProgress | None = None,
        on_failed: OnFailed | None = None,
    ) -> list[TilingDecision]:
        """Execute the current proposals, best value first, within `budget`; return the decisions.

        Proposals that are outdated by other processes are computed again.  `on_progress` gets
        (frames done, all frames) and may raise to stop; finished segments stay.  `on_failed` gets
        videos that are damaged or cannot be tiled, which are skipped from then on.  Without it the
        first of them raises as `make` does.
        """
        self._parts.require_writable()
        left, made = value_or_default(budget, TuningBudget), list[TilingDecision]()
        failed = set[int]()
        outdated = True
        while outdated:
            outdated = False
            proposals = self.proposals()
            done = sum(len(one.frames) for one in made)
            total = done + sum(len(one.plan.frames) for one in proposals)
            for proposal in proposals:
                if proposal.video.id not in failed and left.allows(proposal):
                    if on_progress is not None:
                        self._on_picture = partial(_report, on_progress, done, proposal, total)
                    try:
                        made.append(self.make(proposal))
                    except OutdatedError:
                        outdated = True
                    except OverBudgetError:
                        pass  # existing data is worth more
                    except NotFoundError:  # the video is gone
                        failed.add(proposal.video.id)
                    except (UsageError, IntegrityError) as error:
                        if on_failed is None:
                            raise
                        failed.add(proposal.video.id)
                        on_failed(proposal.video, error)
                    else:
                        left = left.less(made[-1].seconds, made[-1].bytes)
                    finally:
                        self._on_picture = None
                done += len(proposal.plan.frames)
                if on_progress is not None:
                    on_progress(done, total)
        return made

    @contextmanager
    def _detect_outdated(self, info: LogicalVideo) -> Iterator[None]:
        """Convert missing bytes to `OutdatedError` if the original was replaced."""
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            with self._parts.catalog.reading() as seen:
                require_same_bytes(info, seen)
            raise

    def _to_encode(self, video: VideoContext, proposal: Proposal) -> PublishSegment:
        retiler = self._retiler(video, proposal.settings)
        if self._parts.catalog.cost_factor(video.info) is None:
            retiler.note_cost(proposal.plan.frames)
        return lambda on_publish: retiler.make(
            proposal.plan, on_publish=on_publish, worth=proposal.saved
        )

    def _bytes_of(self, proposal: Proposal) -> int:
        """Return the minimum number of bytes to find room for."""
        return max(proposal.bytes, self._refused.get(_key(proposal), 0))

    def _verified(self, info: LogicalVideo) -> VideoContext:
        """Verify the frame table first, because tiles refer to frame numbers."""
        video = self._open_video(info)
        # The proposal has the record from before the first tiles of this video were made.
        video.reload_details()
        if not video.original.verified and verify(video, on_progress=self._pause_verifying):
            raise OutdatedError(f"the frame table of {info.name} was corrected", hint="ask again")
        return video

    def _pause_verifying(self, done: int, total: int) -> None:
        self._pause()

    def _pause(self) -> None:
        if self._pictures is not None:
            self._pictures += 1
        if self._on_picture is not None:
            self._on_picture(self._pictures or 0)
        if self._between is not None:
            began = time.perf_counter()
            self._between()
            self._paused += time.perf_counter() - began

    def _retiler(self, video: VideoContext, settings: TileSettings) -> Retiler:
        """Return the video's `Retiler`, which remembers rate factors."""
        key = video.original.id, settings
        if key not in self._retilers:
            self._retilers[key] = Retiler(
                self._parts,
                self._tools.pool,
                video.info,
                video.table,
                settings,
                between=self._pause,
            )
        return self._retilers[key]


def _report(on_progress: OnProgress, done: int, of: Proposal, total: int, pictures: int) -> None:
    # A segment may be processed several times to reach its quality.
    on_progress(done + min(pictures, len(of.plan.frames)), total)


def undo_decision(
    parts: StoreContext, decision_id: int | None = None
) -> tuple[TilingDecision, list[Segment]]:
    """Undo a decision, by default the last one in use.

    Returns its new state and the restored segments.  Raises `NotFoundError`, `ExistsError` if it
    was undone before, `OutdatedError` if later tiles replaced it.
    """
    parts.require_writable()
    with parts.catalog.writing() as change:
        decision = _decision_to_undo(change, decision_id)
        assert decision.segment_id is not None
        segment = change.segments.get(decision.segment_id)
        now = time.time_ns()
        change.segments.retire([segment.id], now_ns=now)
        change.tiling_decisions.note_undone([segment.id], now_ns=now)
        restored = _reactivate(change, decision.video_id, segment)
        # A retired segment is charged even if it was pinned before.
        make_room(change, decision.video_id, now_ns=now)
        undone = change.tiling_decisions.get(decision.id)
    reclaim_or_log(parts, keys=change.segments.released)
    return undone, restored


def _decision_to_undo(change: Transaction, decision_id: int | None) -> TilingDecision:
    if decision_id is None:
        for decision in change.tiling_decisions.newest():
            if decision.in_use:
                return decision
        raise NotFoundError("there is no decision to undo", hint="see `vfsd tune history`")
    number = within_64_bits(decision_id, "decision ", hint="see `vfsd tune history`")
    decision = change.tiling_decisions.get(number)
    if decision.in_use:
        return decision
    if decision.undone_ns is not None:
        raise ExistsError(f"decision {decision.id} was undone before")
    later = [
        one.id
        for one in change.tiling_decisions.newest(decision.video_id)
        if one.in_use and one.id > decision.id and overlaps(one.frames, decision.frames)
    ]
    raise OutdatedError(
        f"the tiles of decision {decision.id} are not in use: later tiles replaced them",
        hint=f"undo decision {later[0]} first" if later else "see `vfsd layout history`",
    )


def _reactivate(change: Transaction, video_id: int, gone: Segment) -> list[Segment]:
    """Restore the segments that were in use before `gone`, unless later ones replaced them."""
    taken_back = {one.segment_id for one in change.tiling_decisions.undone(video_id)}
    restored = []
    for segment in sorted(change.segments.of_original(gone.original_id), key=lambda one: -one.id):
        was_in_use = (
            segment.id < gone.id
            and not segment.is_joined
            and segment.picture == gone.picture
            and (segment.retired_ns or 0) >= gone.created_ns
            and overlaps(segment.frames, gone.frames)
        )
        if was_in_use and segment.id not in taken_back and not change.segments.is_covered(segment):
            change.segments.restore([segment.id])
            restored.append(segment)
    return restored


# Prevents two concurrent tuners from making the same tiles twice, or replacing each other's.
def _require_present(seen: Transaction, proposal: Proposal, made: Segment | None) -> None:
    """Raises `OutdatedError` if the existing tiles, except `made`, differ from those of the
    proposal.
    """
    original, plan = proposal.video.original.id, proposal.plan
    in_use = (None,) if made is None else (None, made.created_ns)
    numbers = {
        one.id
        for one in seen.segments.of_original(original)
        if one.picture == (plan.layout.width, plan.layout.height) and not one.is_joined
        if one.retired_ns in in_use and overlaps(one.frames, plan.frames)
    }
    if numbers - ({made.id} if made is not None else set()) != proposal.present:
        frames = proposal.plan.frames
        raise OutdatedError(
            f"the tiles of {proposal.video.name}, frames {frames.start} to {frames.stop - 1}, "
            "have changed",
            hint="ask for proposals again",
        )


def _key(proposal: Proposal) -> tuple[int, PlannedSegment]:
    return proposal.video.id, proposal.plan


def _fits(room: BudgetHeadroom, proposal: Proposal, bytes: int) -> bool:
    media, layout = proposal.video.original.media, proposal.plan.layout
    picture = layout.width, layout.height
    return room.fits(
        proposal.plan.role(media),
        proposal.plan.frames,
        picture if media.rotation % 180 == 0 else picture[::-1],
        bytes=bytes,
        worth=proposal.saved,
        replaced=proposal.present,
    )


def _decision(proposal: Proposal, segment: Segment, maker: str, seconds: float) -> TilingDecision:
    return TilingDecision(
        id=0,
        video_id=proposal.video.id,
        segment_id=segment.id,
        at_ns=segment.created_ns,
        maker=maker,
        first_frame=segment.first_frame,
        end_frame=segment.end_frame,
        layout=segment.layout,
        tiles=proposal.plan.tiles,
        profile=segment.profile,
        reasons=proposal.reasons,
        reads=proposal.reads,
        predicted_seconds=proposal.seconds,
        predicted_saved=proposal.saved,
        predicted_bytes=proposal.bytes,
        seconds=seconds,
        bytes=segment.size,
        undone_ns=None,
        gop=segment.gop,
    )


class ViewPromoter(SegmentMaker):
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
        super().__init__(parts, pool, video, table, found, settings, between)

    def promote(
        self,
        plan: PlannedSegment,
        stream: CellStream,
        quality: int,
        *,
        on_publish: OnPublish | None = None,
        worth: float | None = None,
    ) -> Segment:
        """Decode and measure `stream`, the whole picture of the planned frames, and publish it.

        `quality` is the encoder's setting.  `on_publish` and `worth` are as for
        `vfsd.derive.retile.Retiler`.  Raises `IntegrityError` if it or the original cannot be
        decoded, `NoSpaceError`, `OverBudgetError`.  On an error the store is unchanged.
        """
        media = self._media_of(plan.layout)
        comparer = SitedFrameComparer(media, media.width, media.height)
        with closing(self._pictures(plan.frames)) as pictures:
            sources = self._source_pictures(pictures, media)
            likeness = verified_likeness(
                stream.codec, stream.extradata, stream.packets, sources, comparer
            )
        against_first = self._against_first(likeness, plan.layout)
        cell = Cell(0, plan.layout.tile(0), 0, 0, quality, *against_first.as_tuple)
        sited = replace(stream, siting=comparer.siting)
        return self._publish([SegmentCells(plan, [sited], [cell])], on_publish, worth)[0]

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        """Decode each run separately, because these segments need not start at a key frame."""
        for run in self._table.decode_runs(frames):
            with self._pool.decoder(self._video.original, self._table, run) as decoder:
                for _, picture in decoder.decode(run, before_packet=self._pause):
                    yield picture

    def _new_encoding(self, media: MediaInfo, role: Role, now_ns: int) -> PhysicalVideo:
        parameters = {"profile": self._codec.name, "from": FROM_VIEW}
        return replace(super()._new_encoding(media, role, now_ns), parameters=parameters)


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
        made = candidate.run
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
