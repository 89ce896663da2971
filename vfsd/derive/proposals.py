"""What to tile because of what was read: the policy's opinion, held against what there is.

The log of a video's reads is replayed through a `Ledger`, which answers with the tilings that it
would have made by now.  Of these, the ones are proposed that are not there, and that beat what is
there by the store's own figures.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vfsd.codecs.cells.tile_codecs import TILE_CODECS
from vfsd.core.model import Decision, LogicalVideo, PhysicalVideo, Reason, Segment
from vfsd.core.psnr import FINEST_PSNR, psnr_left
from vfsd.derive.existing_layouts import Present
from vfsd.derive.promotable import AtHand
from vfsd.derive.promotion_candidates import Candidate
from vfsd.derive.query_log import Asked, asked_by, sizes_asked_by
from vfsd.derive.tile_spec import PlannedSegment, TileSettings
from vfsd.derive.tunable import TunableVideo
from vfsd.storage.context import Parts
from vfsd.storage.policy_service import usual_psnr
from vfsd.tiling import Rect, TileLayout, common, meet
from vfsd.tiling.policy import Aim, Ledger, Query, Size, SizeWorld, Terms, Tiling, World

_MOST_WEIGHED = 500_000
"""Reads, each as many times as it touches SOTs: about 20 us each."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A segment that should be made, or was for a view and should be kept, and why."""

    video: LogicalVideo
    plan: PlannedSegment
    settings: TileSettings
    reasons: tuple[Reason, ...]  #: what it is good for, the most often first
    reads: int  #: remembered reads that it makes cheaper
    seconds: float  #: of CPU, for making it
    bytes: int  #: that it will have, about
    spent: float  #: CPU seconds of decoding that the remembered reads take as things are
    saved: float  #: of these, with it
    present: frozenset[int]  #: numbers of the segments in use that it was held against
    candidate: Candidate | None = None  #: encoded already, for a view; None: it has to be made

    @property
    def value(self) -> float:
        """Seconds saved for each second of making."""
        return self.saved / self.seconds if self.seconds else float("inf")


def by_value(proposals: Iterable[Proposal]) -> list[Proposal]:
    """Those first that give most for what they cost.

    What is at hand of a video in a size is together, by time: decoders go on from one to the next.
    """
    found = list(proposals)
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


def proposals_for(parts: Parts, video: TunableVideo, terms: Terms | None = None) -> list[Proposal]:
    """What the remembered reads of a video speak for, by time: tiles and renditions.

    Both are made as the newest of their kind that the video has.  Reads that began before somebody
    took a decision back do not count where that was.
    """
    terms = terms or Terms()
    info, media = video.info, video.original.media
    with parts.catalog.reading() as seen:
        tiles = seen.segments.active(info.original.id)
        renditions = seen.segments.renditions(info.original.id)
        encodings = {one.id: one for one in seen.videos.physicals(info.id)}
        undone = seen.decisions.undone(info.id)
    reads = list(parts.catalog.reads(info))
    sots = video.sequences() if reads else []
    minimum = min(usual_psnr(parts, info), info.original.psnr)
    found: list[Proposal] = []
    for asked, segments, is_tiled in (
        (asked_by(reads, media), tiles, True),
        (sizes_asked_by(reads, media), renditions, False),
    ):
        settings = settings_like(segments, encodings, minimum)
        if not _can_be_made(info, settings):
            continue
        mine = [one for one in undone if (one.picture == (media.width, media.height)) == is_tiled]
        told = _newest(list(_since_undone(asked, sots, mine)), sots)
        if told:
            if is_tiled:
                world = _world(video, told, settings)
                there = Present(world, sots, segments, minimum)
                opinion = _opinion(world, told, terms)
            else:
                at_hand = AtHand.of(parts, info, segments, minimum)
                sizes = video.size_world(settings, at_hand.frames)
                there = Present(sizes, sots, segments, minimum)
                opinion = _opinion(sizes, told, terms)
                found += _admitted(info, sots, told, sizes, there, opinion, at_hand, terms)
                opinion = at_hand.left(opinion, sots)
                world = video.size_world(settings)
            found += _proposed(info, sots, told, world, there, opinion, settings, encodings, terms)
    return sorted(found, key=lambda one: one.plan.frames.start)


def _can_be_made(video: LogicalVideo, settings: TileSettings) -> bool:
    """Whether the tile codec takes the pictures, and can be good enough."""
    original, codec = video.original, TILE_CODECS[settings.codec]
    if original.media.pixel_format not in codec.pixel_formats:
        return False
    left = psnr_left(settings.psnr, original.error)
    return codec.is_lossless or (left is not None and left <= FINEST_PSNR)


def _world(video: TunableVideo, told: Sequence[Query], settings: TileSettings) -> World:
    """With boxes of all labels that were looked for."""
    aims = frozenset[Aim]().union(*(query.aims for query in told))
    first = min(query.frames[0] for query in told)
    last = max(query.frames[-1] for query in told)
    return video.world(aims, settings=settings, within=range(first, last + 1))


def _proposed(
    video: LogicalVideo,
    sots: Sequence[range],
    told: Sequence[Query],
    world: World,
    present: Present,
    opinion: Mapping[int, Tiling],
    settings: TileSettings,
    encodings: Mapping[int, PhysicalVideo],
    terms: Terms,
) -> Iterator[Proposal]:
    for sot, queries in _by_sot(world, told, opinion).items():
        plan = PlannedSegment(sots[sot], opinion[sot].layout, opinion[sot].tiles)
        there = present.like(plan, sot)
        if any(_is_it(segment, plan, settings, encodings) for segment in there):
            continue
        making = world.making(sot, opinion[sot])
        spent = [present.seconds(sot, query) for query in queries]
        tiled = [world.decode(sot, query, opinion[sot]) for query in queries]
        if not _beats(sum(tiled) + making.seconds, sum(spent), sum(tiled), there, terms):
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


def _admitted(
    video: LogicalVideo,
    sots: Sequence[range],
    told: Sequence[Query],
    world: SizeWorld,
    present: Present,
    opinion: Mapping[int, Tiling],
    at_hand: AtHand,
    terms: Terms,
) -> Iterator[Proposal]:
    """What is at hand of what should be there: segments with frames of their own, not of SOTs."""
    if not at_hand.candidates:
        return
    queries = _by_sot(world, told, opinion)
    figures = {
        sot: [
            (query, present.seconds(sot, query), world.decode(sot, query, opinion[sot]))
            for query in mine
        ]
        for sot, mine in queries.items()
    }
    starts = [one.start for one in sots]
    for candidate in at_hand.candidates:
        made = candidate.made
        plan = PlannedSegment(made.frames, TileLayout.untiled(*made.size))
        first = bisect_right(starts, made.frames.start) - 1
        shares = {
            sot: len(common(sots[sot], made.frames)) / len(sots[sot])
            for sot in range(first, bisect_left(starts, made.frames.stop))
            if sot in opinion and opinion[sot].layout == plan.layout
        }
        if not shares:
            continue
        rows = [(share, *row) for sot, share in shares.items() for row in figures[sot]]
        spent = sum(share * there for share, _, there, _ in rows)
        tiled = sum(share * then for share, _, _, then in rows)
        seconds = world.looking_through(plan.layout, plan.frames)
        numbers = present.numbers(plan)
        if not _beats(tiled + seconds, spent, tiled, numbers, terms):
            continue
        better = list(dict.fromkeys(query for _, query, there, then in rows if then < there))
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
    """How to make tiles of a video that has `segments`, so that reads may use them."""
    usable = [
        segment for segment in segments if segment.psnr >= minimum_psnr and not segment.is_from_view
    ]
    if not usable:
        return replace(TileSettings(), psnr=max(TileSettings().psnr, minimum_psnr))
    made = encodings[max(usable, key=lambda segment: segment.id).physical_id].parameters
    found = TileSettings(made["profile"], quality=made.get("quality"))
    return replace(found, psnr=max(made.get("psnr", found.psnr), minimum_psnr))


# --------------------------------------------------------------------------------- the opinion


def _opinion(world: World, told: Sequence[Query], terms: Terms) -> dict[int, Tiling]:
    """What the policy would have made by now, had it been there from the first read on."""
    policy = Ledger(world, terms)
    policy.start()
    found: dict[int, Tiling] = {}
    for query in told:
        for retile in policy.tell(query):
            found[retile.sot] = retile.tiling
    return dict(sorted(found.items()))


def _newest(told: Sequence[Query], sots: Sequence[range]) -> Sequence[Query]:
    """As many of the newest as can be thought about in seconds."""
    starts = [frames.start for frames in sots]
    weighed = 0
    for number in range(len(told) - 1, -1, -1):
        frames = told[number].frames
        weighed += bisect_right(starts, frames[-1]) - bisect_right(starts, frames[0]) + 1
        if weighed > _MOST_WEIGHED:
            return told[number + 1 :]
    return told


def _since_undone(
    asked: Sequence[Asked], sots: Sequence[range], undone: Sequence[Decision]
) -> Iterator[Query]:
    """The queries, without those parts that somebody knew of who took a decision back there."""
    since = {
        sot: max(one.undone_ns or 0 for one in mine)
        for sot, frames in enumerate(sots)
        if (mine := [one for one in undone if meet(one.frames, frames)])
    }
    for one in asked:
        gone = [sots[sot] for sot, at_ns in since.items() if one.at_ns <= at_ns]
        yield from _without(one.query, gone)


def _without(query: Query, gone: Sequence[range]) -> Iterator[Query]:
    """The parts of a query between ranges of frames, which ascend."""
    rest = query.frames
    for frames in gone:
        before = rest[: _steps(rest, frames.start)]
        if before:
            yield replace(query, frames=before)
        rest = rest[_steps(rest, frames.stop) :]
    if rest:
        yield replace(query, frames=rest)


def _steps(frames: range, to: int) -> int:
    """How many of `frames` come before `to`."""
    return min(len(frames), max(0, -(-(to - frames.start) // frames.step)))


def _by_sot(
    world: World, told: Sequence[Query], opinion: Mapping[int, Tiling]
) -> dict[int, list[Query]]:
    found: dict[int, list[Query]] = {sot: [] for sot in opinion}
    for query in told:
        for sot in world.touched(query):
            if sot in found:
                found[sot].append(query)
    return found


# ------------------------------------------------------------------------------------ weighing


def _is_it(
    segment: Segment,
    plan: PlannedSegment,
    settings: TileSettings,
    encodings: Mapping[int, PhysicalVideo],
) -> bool:
    """Whether a segment is what was planned."""
    codec = TILE_CODECS[settings.codec]
    return (
        (segment.frames, segment.layout) == (plan.frames, plan.layout)
        and segment.holds(plan.stored)
        and dict(encodings[segment.physical_id].parameters) == settings.parameters(codec)
    )


def _beats(
    total: float, spent: float, tiled: float, there: Collection[object], terms: Terms
) -> bool:
    """Whether tiles that come to `total`, making them included, should take the place of others.

    Where there are none, the policy has the last word: it may hope for what is to come.
    """
    # Existing tiles may have been made by hand, so that new ones must be clearly better.
    return spent >= terms.lead * total if there else tiled < spent


def _reasons(queries: Sequence[Query]) -> tuple[Reason, ...]:
    counted = Counter(aim for query in queries for aim in query.aims)
    order = sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0])))
    return tuple(_reason(aim, reads) for aim, reads in order)


def _reason(aim: Aim, reads: int) -> Reason:
    if isinstance(aim, Rect):
        return Reason(None, aim, reads)
    if isinstance(aim, Size):
        return Reason(None, None, reads, (aim.width, aim.height))
    return Reason(aim, None, reads)
