"""Proposes which segments to make from the log of reads.

The log is replayed through a `Ledger`.  The tilings that it chooses are compared with the stored
segments (`ExistingLayouts`) and with promotable cached ones (`CachedSegments`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.cell_encoders import TILE_CODECS, VIEW_CODECS
from vfsd.core.model import (
    FINEST_PSNR,
    LogicalVideo,
    MediaInfo,
    PhysicalVideo,
    Role,
    Segment,
    TilingDecision,
    TilingReason,
    chained_psnr,
    required_psnr,
)
from vfsd.derive.catalog_world import box_world, size_world
from vfsd.derive.promotion_candidates import CachedRun, CandidateIndex, PromotionCandidate
from vfsd.derive.rendition_plan import random_read_segments
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.derive.workload import LoggedQuery, is_random, queries_of_reads, sizes_of_reads
from vfsd.disk.checksums import merged
from vfsd.read.read_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import default_psnr
from vfsd.tiling import Rect, TileLayout, frame_intersection, overlaps
from vfsd.tiling.policy import (
    Aim,
    Ledger,
    LedgerParameters,
    Query,
    ScaledFrames,
    SizeWorld,
    Tiling,
    World,
)

_PROMOTABLE_FORMATS = frozenset[str]().union(
    *(codec.pixel_formats for codec in VIEW_CODECS.values())
)

_PERSISTENCE = 1.0
"""`LedgerParameters.persistence` for videos that are read in random order, as training does."""

# Read entries times touched SOTs that are replayed: about 20 us each.
_MAX_WEIGHED = 500_000


class ExistingLayouts:
    """The segments that reads of each SOT may use: the newest of each size."""

    def __init__(
        self,
        world: World,
        sots: Sequence[range],
        segments: Sequence[Segment],
        minimum_psnr: float,
    ) -> None:
        self._world = world
        self._all = segments
        self._shares: dict[tuple[int, int], list[list[tuple[Segment, float]]]] = {}
        for picture in {segment.picture for segment in segments}:
            usable = [
                segment
                for segment in segments
                if segment.picture == picture and segment.psnr >= minimum_psnr
            ]
            owners = _newest_segments(sots[-1].stop, usable)
            self._shares[picture] = [_segment_shares(frames, owners, usable) for frames in sots]

    def like(self, plan: PlannedSegment, sot: int) -> list[Segment]:
        """Return the segments that reads may use instead of the planned one."""
        mine = self._shares.get((plan.layout.width, plan.layout.height))
        return [] if mine is None else [segment for segment, _ in mine[sot]]

    def numbers(self, plan: PlannedSegment) -> frozenset[int]:
        """Return the ids of all segments of that size and time, usable or not."""
        picture = plan.layout.width, plan.layout.height
        return frozenset(
            one.id
            for one in self._all
            if one.picture == picture and overlaps(one.frames, plan.frames)
        )

    def seconds(self, sot: int, query: Query) -> float:
        """Return the cost of a query in a SOT.

        Segments that are shorter or longer than the SOT count by their share of it.
        """
        ways = [self._seconds(sot, query, shares[sot]) for shares in self._shares.values()]
        return min(ways, default=self._world.decode(sot, query, None))

    def _seconds(self, sot: int, query: Query, shares: list[tuple[Segment, float]]) -> float:
        rest, total = 1.0, 0.0
        for segment, share in shares:
            tiling = Tiling(segment.layout, segment.tiles, segment.gop)
            total += share * self._world.decode(sot, query, tiling)
            rest -= share
        return total + max(0.0, rest) * self._world.decode(sot, query, None)


def _segment_shares(
    frames: range, owners: npt.NDArray[np.int32], usable: Sequence[Segment]
) -> list[tuple[Segment, float]]:
    numbers, counts = np.unique(owners[frames.start : frames.stop], return_counts=True)
    return [
        (usable[number], count / len(frames))
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        if number >= 0
    ]


def _newest_segments(frames: int, segments: Sequence[Segment]) -> npt.NDArray[np.int32]:
    """Return, for each frame, the index of its newest segment, or -1."""
    owner = np.full(frames, -1, np.int32)
    for number, segment in sorted(enumerate(segments), key=lambda pair: pair[1].id):
        owner[segment.first_frame : segment.end_frame] = number
    return owner


class CachedSegments:
    """Candidates of one video that reads could use as renditions."""

    def __init__(
        self, candidates: Sequence[PromotionCandidate], renditions: Sequence[Segment]
    ) -> None:
        """`candidates` of a size must not overlap; `renditions` are those that reads may use."""
        stored = _RenditionCoverage(renditions)
        self.candidates = [one for one in candidates if not stored.has(one.run)]
        found: dict[tuple[int, int], list[range]] = {}
        for made in (one.run for one in self.candidates):
            found.setdefault(made.size, []).append(made.frames)
        self._waiting = dict(found)
        for segment in renditions:
            found[segment.picture] = [*found.get(segment.picture, ()), segment.frames]
        self._there = {size: merged(list(ranges)) for size, ranges in found.items()}

    @classmethod
    def of(
        cls,
        parts: StoreContext,
        video: LogicalVideo,
        renditions: Sequence[Segment],
        minimum_psnr: float,
    ) -> CachedSegments:
        """Load the candidates of at least `minimum_psnr`; none if the store does not
        promote views.
        """
        original = video.original
        usable = [one for one in renditions if one.psnr >= minimum_psnr]
        if not parts.settings.admit_views or original.media.pixel_format not in _PROMOTABLE_FORMATS:
            return cls([], usable)
        candidates = [
            one
            for one in CandidateIndex.of_store(parts).of(video.digest)
            if chained_psnr(one.run.luma, original.error, scaled_to_bits=8) >= minimum_psnr
        ]
        return cls(candidates, usable)

    def frames(self, size: tuple[int, int], frames: range) -> int:
        """Return how many of `frames` are cached in that size or stored already."""
        return _count_frames(self._there.get(size, ()), frames)

    def left(self, tilings: Mapping[int, Tiling], sots: Sequence[range]) -> dict[int, Tiling]:
        """Return the tilings, by SOT, without candidates."""

        def waiting(tiling: Tiling) -> Sequence[range]:
            return self._waiting.get((tiling.layout.width, tiling.layout.height), ())

        return {
            sot: tiling
            for sot, tiling in tilings.items()
            if not _count_frames(waiting(tiling), sots[sot])
        }


class _RenditionCoverage:
    """Frames of renditions, by size."""

    def __init__(self, renditions: Sequence[Segment]) -> None:
        runs: dict[tuple[int, int], list[range]] = {}
        for one in sorted(renditions, key=lambda one: one.first_frame):
            runs.setdefault(one.picture, []).append(one.frames)
        # First frames, and the maximum end of all segments up to each.
        self._of = {
            size: ([one.start for one in each], list(accumulate((one.stop for one in each), max)))
            for size, each in runs.items()
        }

    def has(self, made: CachedRun) -> bool:
        """Return whether a rendition of that size has all frames."""
        starts, reach = self._of.get(made.size, ([], []))
        place = bisect_right(starts, made.frames.start)
        return place > 0 and made.frames.stop <= reach[place - 1]


def _count_frames(ranges: Sequence[range], frames: range) -> int:
    return sum(len(frame_intersection(one, frames)) for one in ranges)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A segment that should be made, or promoted from a view, and why."""

    video: LogicalVideo
    plan: PlannedSegment
    settings: TileSettings
    reasons: tuple[TilingReason, ...]  #: its uses, most frequent first
    reads: int  #: logged reads that become cheaper
    seconds: float  #: CPU time for making it
    bytes: int  #: approximate size
    spent: float  #: CPU seconds of decoding for the logged reads at present
    saved: float  #: the part of `spent` that it saves
    present: frozenset[int]  #: ids of the segments in use that it was compared with
    candidate: PromotionCandidate | None = (
        None  #: encoded already, for a view; None: it has to be made
    )

    @property
    def value(self) -> float:
        """Seconds saved per second of making."""
        return self.saved / self.seconds if self.seconds else float("inf")


def by_value(proposals: Iterable[Proposal]) -> list[Proposal]:
    """Sort proposals by value, best first.

    The candidates of a video in one size stay together, by time.
    """
    found = list(proposals)
    # Decoders continue from one candidate to the next.
    best: dict[tuple[int, TileLayout], float] = {}
    for one in found:
        if one.candidate is not None:
            size = one.video.id, one.plan.layout
            best[size] = max(one.value, best.get(size, 0.0))

    def worst_last(one: Proposal) -> tuple[float, str, int]:
        value = one.value
        if one.candidate is not None:
            value = best[one.video.id, one.plan.layout]
        return -value, one.video.name, one.plan.frames.start

    return sorted(found, key=worst_last)


def proposals_for(
    parts: StoreContext, video: VideoContext, terms: LedgerParameters | None = None
) -> list[Proposal]:
    """Return the tiles and renditions that the logged reads of a video justify, by time.

    Settings are those of the newest segments of the same kind.  Reads before an undone decision do
    not count for its frames.
    """
    terms = terms or LedgerParameters()
    info, media = video.info, video.original.media
    with parts.catalog.reading() as seen:
        tiles = seen.segments.active(info.original.id)
        renditions = seen.segments.renditions(info.original.id)
        encodings = {one.id: one for one in seen.videos.physicals(info.id)}
        undone = seen.tiling_decisions.undone(info.id)
    reads = list(parts.catalog.reads(info))
    if not reads:
        return []
    sots = video.sequences()
    minimum = min(default_psnr(parts, info), info.original.psnr)
    found: list[Proposal] = []
    for asked, segments, is_tiled in (
        (queries_of_reads(reads, media), tiles, True),
        (sizes_of_reads(reads, media), renditions, False),
    ):
        settings = settings_like(segments, encodings, minimum)
        if not _can_be_made(info, settings):
            continue
        gops: tuple[int | None, ...] = (None,)
        if not is_tiled and any(is_random(one, media) for one in reads):
            sots, gops = random_read_segments(video)
            terms = replace(terms, persistence=_PERSISTENCE)
        # An undone decision must not be proposed again for the reads that led to it.
        mine = [one for one in undone if (_role(one, media) is Role.TILED) == is_tiled]
        logged = _newest_queries(list(_since_undone(asked, sots, mine)), sots)
        if logged:
            if is_tiled:
                world = _world(video, logged, settings)
                existing = ExistingLayouts(world, sots, segments, minimum)
                tilings = _policy_tilings(world, logged, terms)
            else:
                cached = CachedSegments.of(parts, info, segments, minimum)
                sizes = size_world(video, settings, cached.frames, sots=sots, gops=gops)
                existing = ExistingLayouts(sizes, sots, segments, minimum)
                tilings = _policy_tilings(sizes, logged, terms)
                found += _promotion_proposals(
                    info, sots, logged, sizes, existing, tilings, cached, terms
                )
                tilings = cached.left(tilings, sots)
                world = size_world(video, settings, sots=sots, gops=gops)
            found += _tiling_proposals(
                info, sots, logged, world, existing, tilings, settings, encodings, terms
            )
    return sorted(found, key=lambda one: one.plan.frames.start)


def _role(decision: TilingDecision, media: MediaInfo) -> Role:
    plan = PlannedSegment(decision.frames, decision.layout, decision.tiles, decision.gop)
    return plan.role(media)


def _can_be_made(video: LogicalVideo, settings: TileSettings) -> bool:
    """Return whether the tile codec supports the pictures and can reach the quality."""
    original, codec = video.original, TILE_CODECS[settings.codec]
    if original.media.pixel_format not in codec.pixel_formats:
        return False
    left = required_psnr(settings.psnr, original.error)
    return codec.is_lossless or (left is not None and left <= FINEST_PSNR)


def _world(video: VideoContext, logged: Sequence[Query], settings: TileSettings) -> World:
    """Return a world with the boxes of all labels in the queries."""
    aims = frozenset[Aim]().union(*(query.aims for query in logged))
    first = min(query.frames[0] for query in logged)
    last = max(query.frames[-1] for query in logged)
    return box_world(video, aims, settings=settings, within=range(first, last + 1))


def _tiling_proposals(
    video: LogicalVideo,
    sots: Sequence[range],
    logged: Sequence[Query],
    world: World,
    present: ExistingLayouts,
    tilings: Mapping[int, Tiling],
    settings: TileSettings,
    encodings: Mapping[int, PhysicalVideo],
    terms: LedgerParameters,
) -> Iterator[Proposal]:
    for sot, queries in _by_sot(world, logged, tilings).items():
        tiling = tilings[sot]
        plan = PlannedSegment(sots[sot], tiling.layout, tiling.tiles, tiling.gop)
        existing = present.like(plan, sot)
        if any(_matches_plan(segment, plan, settings, encodings) for segment in existing):
            continue
        making = world.making_cost(sot, tilings[sot])
        spent = [present.seconds(sot, query) for query in queries]
        tiled = [world.decode(sot, query, tilings[sot]) for query in queries]
        if not _is_better(sum(tiled) + making.seconds, sum(spent), sum(tiled), existing, terms):
            continue
        better = [query for query, a, b in zip(queries, tiled, spent, strict=True) if a < b]
        yield Proposal(
            video,
            plan,
            settings,
            _reasons(better),
            len(better),
            making.seconds,
            round(making.bytes),
            sum(spent),
            sum(spent) - sum(tiled),
            present.numbers(plan),
        )


def _promotion_proposals(
    video: LogicalVideo,
    sots: Sequence[range],
    logged: Sequence[Query],
    world: SizeWorld,
    present: ExistingLayouts,
    tilings: Mapping[int, Tiling],
    cached: CachedSegments,
    terms: LedgerParameters,
) -> Iterator[Proposal]:
    """Yield the useful candidates; their frames need not be those of SOTs."""
    if not cached.candidates:
        return
    queries = _by_sot(world, logged, tilings)
    figures = {
        sot: [
            (query, present.seconds(sot, query), world.decode(sot, query, tilings[sot]))
            for query in mine
        ]
        for sot, mine in queries.items()
    }
    starts = [one.start for one in sots]
    for candidate in cached.candidates:
        made = candidate.run
        plan = PlannedSegment(made.frames, TileLayout.untiled(*made.size))
        first = bisect_right(starts, made.frames.start) - 1
        shares = {
            sot: len(frame_intersection(sots[sot], made.frames)) / len(sots[sot])
            for sot in range(first, bisect_left(starts, made.frames.stop))
            if sot in tilings and tilings[sot].layout == plan.layout
        }
        if not shares:
            continue
        rows = [(share, *row) for sot, share in shares.items() for row in figures[sot]]
        spent = sum(share * existing for share, _, existing, _ in rows)
        tiled = sum(share * then for share, _, _, then in rows)
        seconds = world.verification_seconds(plan.layout, plan.frames)
        numbers = present.numbers(plan)
        if not _is_better(tiled + seconds, spent, tiled, numbers, terms):
            continue
        better = list(dict.fromkeys(query for _, query, existing, then in rows if then < existing))
        yield Proposal(
            video,
            plan,
            TileSettings(made.codec, quality=made.quality),
            _reasons(better),
            len(better),
            seconds,
            candidate.bytes,
            spent,
            spent - tiled,
            numbers,
            candidate,
        )


def settings_like(
    segments: Sequence[Segment], encodings: Mapping[int, PhysicalVideo], minimum_psnr: float
) -> TileSettings:
    """Return the settings of the newest usable tiles of a video."""
    usable = [
        segment for segment in segments if segment.psnr >= minimum_psnr and not segment.is_from_view
    ]
    if not usable:
        return replace(TileSettings(), psnr=max(TileSettings().psnr, minimum_psnr))
    made = encodings[max(usable, key=lambda segment: segment.id).physical_id].parameters
    found = TileSettings(made["profile"], quality=made.get("quality"))
    return replace(found, psnr=max(made.get("psnr", found.psnr), minimum_psnr))


def _policy_tilings(
    world: World, logged: Sequence[Query], terms: LedgerParameters
) -> dict[int, Tiling]:
    """Return the tilings that the policy would have made since the first read."""
    # The read log is the whole state: equal reads give equal proposals.
    policy = Ledger(world, terms)
    policy.start()
    found: dict[int, Tiling] = {}
    for query in logged:
        for retile in policy.observe(query):
            found[retile.sot] = retile.tiling
    return dict(sorted(found.items()))


def _newest_queries(logged: Sequence[Query], sots: Sequence[range]) -> Sequence[Query]:
    """Return the newest queries, as many as can be replayed in seconds."""
    # A query is weighed once for each SOT that it touches.
    starts = [frames.start for frames in sots]
    weighed = 0
    for number in range(len(logged) - 1, -1, -1):
        frames = logged[number].frames
        weighed += bisect_right(starts, frames[-1]) - bisect_right(starts, frames[0]) + 1
        if weighed > _MAX_WEIGHED:
            return logged[number + 1 :]
    return logged


def _since_undone(
    asked: Sequence[LoggedQuery], sots: Sequence[range], undone: Sequence[TilingDecision]
) -> Iterator[Query]:
    """Yield the queries without the parts that came before an undone decision."""
    since = {
        sot: max(one.undone_ns or 0 for one in mine)
        for sot, frames in enumerate(sots)
        if (mine := [one for one in undone if overlaps(one.frames, frames)])
    }
    for one in asked:
        gone = [sots[sot] for sot, at_ns in since.items() if one.at_ns <= at_ns]
        yield from _query_without(one.query, gone)


def _query_without(query: Query, gone: Sequence[range]) -> Iterator[Query]:
    """Yield the parts of a query outside of `gone`, ascending ranges of frames."""
    rest = query.frames
    for frames in gone:
        before = rest[: _steps(rest, frames.start)]
        if before:
            yield replace(query, frames=before)
        rest = rest[_steps(rest, frames.stop) :]
    if rest:
        yield replace(query, frames=rest)


def _steps(frames: range, to: int) -> int:
    """Return how many of `frames` come before `to`."""
    return min(len(frames), max(0, -(-(to - frames.start) // frames.step)))


def _by_sot(
    world: World, logged: Sequence[Query], tilings: Mapping[int, Tiling]
) -> dict[int, list[Query]]:
    found: dict[int, list[Query]] = {sot: [] for sot in tilings}
    for query in logged:
        for sot in world.touched(query):
            if sot in found:
                found[sot].append(query)
    return found


def _matches_plan(
    segment: Segment,
    plan: PlannedSegment,
    settings: TileSettings,
    encodings: Mapping[int, PhysicalVideo],
) -> bool:
    """Return whether a segment is equal to the planned one."""
    codec = TILE_CODECS[settings.codec]
    return (
        (segment.frames, segment.layout, segment.gop) == (plan.frames, plan.layout, plan.gop)
        and segment.holds(plan.stored)
        and dict(encodings[segment.physical_id].parameters) == settings.parameters(codec)
    )


def _is_better(
    total: float, spent: float, tiled: float, existing: Collection[object], terms: LedgerParameters
) -> bool:
    """Return whether tiles with a cost of `total`, including making them, should replace others."""
    # Existing tiles may have been made by hand, so new ones must be clearly better.  Without any,
    # the policy decides, because it may expect future reads.
    return spent >= terms.lead * total if existing else tiled < spent


def _reasons(queries: Sequence[Query]) -> tuple[TilingReason, ...]:
    counted = Counter(aim for query in queries for aim in query.aims)
    order = sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0])))
    return tuple(_reason(aim, reads) for aim, reads in order)


def _reason(aim: Aim, reads: int) -> TilingReason:
    if isinstance(aim, Rect):
        return TilingReason(None, aim, reads)
    if isinstance(aim, ScaledFrames):
        return TilingReason(None, None, reads, (aim.width, aim.height))
    return TilingReason(aim, None, reads)
