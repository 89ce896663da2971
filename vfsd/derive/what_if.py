"""Compares tiling strategies, TASM's and vfsd's, by replaying a workload on one video.

Nothing is encoded or decoded: costs are predicted as the read planner predicts them on this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from reprlib import repr as shown

import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.frames import to_coded_rect
from vfsd.core.label_query import format_labels
from vfsd.core.model import Segment
from vfsd.core.process_control import host_name
from vfsd.derive.catalog_world import FrameTableOriginal, PlannerReading, cost_rates, load_box_video
from vfsd.derive.tile_encoder import PlannedSegment
from vfsd.derive.workload import WorkloadQuery, queries_of_reads
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.tiling import Rect, TileLayout, uniform_layout
from vfsd.tiling.policy import (
    Aim,
    Aims,
    BoxWorld,
    CostRates,
    FixedTilings,
    IncrementalMore,
    IncrementalRegret,
    LabelBoxes,
    Ledger,
    OriginalWork,
    Query,
    ReadStrategy,
    TileOnFirstQuery,
    Tiling,
    TilingCost,
    TilingPolicy,
    VideoProfile,
    World,
    all_objects,
    every_tile,
    known_queries,
    not_tiled,
    replay_queries,
    wanted_tiles,
)
from vfsd.tiling.policy.interface import ClusteredRegions, cluster_regions, clustered_query
from vfsd.tiling.policy.tasm_policies import offline_tilings
from vfsd.tiling.policy.worlds import TileSelection
from vfsd.validation import non_negative

# Rows and columns of the uniform layouts to try, the best choice for scattered regions.
_GRIDS = ((1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (4, 6), (6, 6))

PRESENT = "present"

OnProgress = Callable[[int, int], None]
"""Called with (queries done, all queries) over all strategies; may raise to stop."""

MAX_QUERIES = 10_000
"""The largest workload; replaying more takes minutes."""

_RegionLabels = Mapping[str, tuple[str, Rect]]
"""By aim: the expression of its boxes, and the region that they must share."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfCase:
    """A workload on one video, with the data for predictions."""

    profile: VideoProfile
    rates: CostRates
    reading: ReadStrategy
    queries: Sequence[Query]
    existing: Mapping[int, Tiling] = field(default_factory=dict)
    """Existing tilings, by SOT."""
    takes_parts: bool = True  #: whether unused tiles may be left out


@dataclass(frozen=True, slots=True)
class TilingStrategy:
    """A named way to decide what to tile."""

    name: str
    title: str
    make: Callable[[World, StrategyContext], TilingPolicy]
    is_ours: bool = False  #: makes only the needed tiles, if the tile codec allows it


class ExistingTilingsWorld:
    """A world like another one, in which existing tilings cost nothing to make."""

    def __init__(self, world: World, existing: Mapping[int, Tiling]) -> None:
        self._world = world
        self._existing = existing

    @property
    def sots(self) -> range:
        return self._world.sots

    @property
    def gops(self) -> Sequence[int | None]:
        return self._world.gops

    def touched(self, query: Query) -> Sequence[int]:
        return self._world.touched(query)

    def labels(self, sot: int) -> Aims:
        return self._world.labels(sot)

    def tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        return self._world.tiling_around(sot, aims)

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        return self._world.decode(sot, query, tiling)

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        return self._world.pixels(sot, query, tiling)

    def making_cost(self, sot: int, tiling: Tiling) -> TilingCost:
        cost = self._world.making_cost(sot, tiling)
        return TilingCost(0.0, cost.bytes) if self._existing.get(sot) == tiling else cost


class _CachingWorld(BoxWorld):
    """A world that computes a layout around regions once for all SOTs of equal length."""

    def __init__(self, case: WhatIfCase, made: TileSelection) -> None:
        super().__init__(case.profile, case.rates, made, case.reading)
        self._sot_lengths = [len(frames) for frames in case.profile.sots]
        self._region_tilings: dict[tuple[int, Aims], Tiling | None] = {}

    def _tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        # Regions lie at the same place in every SOT; boxes of labels do not.
        if not all(isinstance(aim, Rect) for aim in aims):
            return super()._tiling_around(sot, aims)
        key = self._sot_lengths[sot], aims
        if key not in self._region_tilings:
            self._region_tilings[key] = super()._tiling_around(sot, aims)
        return self._region_tilings[key]


class _CachingOriginal:
    """Caches the work of parts of the original, which every tiling needs again."""

    def __init__(self, original: OriginalWork) -> None:
        self.work = lru_cache(maxsize=None)(original.work)


class StrategyContext:
    """Worlds and results that all strategies share."""

    def __init__(self, case: WhatIfCase) -> None:
        original = case.profile.original
        if original is not None:
            profile = replace(case.profile, original=_CachingOriginal(original))
            case = replace(case, profile=profile)
        self.case = case
        self.clusters = cluster_regions(case.queries)
        self._made: TileSelection = wanted_tiles if case.takes_parts else every_tile
        self._ours = _CachingWorld(case, self._made)
        self._papers = _CachingWorld(case, every_tile)

    def world(self, *, is_ours: bool) -> World:
        return self._ours if is_ours else self._papers

    def with_clusters(self, policy: TilingPolicy) -> TilingPolicy:
        return ClusteredRegions(policy, self.clusters)

    def foreseen(self, world: World) -> TilingPolicy:
        case = self.case
        thought = [clustered_query(query, self.clusters) for query in case.queries]
        found = offline_tilings(world, case.queries, thought, case.existing, self._uniform)
        return FixedTilings(world, found)

    @cached_property
    def _grids(self) -> Sequence[TileLayout]:
        profile = self.case.profile
        found = []
        for rows, columns in _GRIDS:
            try:
                grid = uniform_layout(profile.width, profile.height, rows, columns, profile.rules)
            except UsageError:
                continue
            found.append(grid)
        return found

    def _uniform(self, sot: int, queries: Sequence[Query]) -> Iterator[Tiling]:
        """Yield uniform layouts with the tiles that the queries touch."""
        if not any(isinstance(aim, Rect) for query in queries for aim in query.aims):
            return
        wanted = _queried_boxes(self.case.profile, sot, queries)
        for grid in self._grids:
            yield self._made(grid, wanted, self.case.profile.sots[sot].start)


def _queried_boxes(profile: VideoProfile, sot: int, queries: Sequence[Query]) -> LabelBoxes:
    """Return all boxes and regions that the queries may read in a SOT."""
    last, seen = profile.sots[sot][-1], profile.seen[sot]
    aims = {aim for query in queries for aim in query.aims}
    rects = [(one.x1, one.y1, one.x2, one.y2) for one in aims if isinstance(one, Rect)]
    boxes = [seen[aim] for aim in aims if isinstance(aim, str) and aim in seen]
    return LabelBoxes(
        np.concatenate([np.full(len(rects), last, np.int64), *(one.frames for one in boxes)]),
        np.concatenate([np.array(rects, np.int64).reshape(-1, 4), *(one.corners for one in boxes)]),
    )


STRATEGIES = (
    TilingStrategy("none", "not tiled", lambda world, context: not_tiled(world)),
    TilingStrategy(
        PRESENT,
        "as it is",
        lambda world, context: FixedTilings(world, context.case.existing),
    ),
    TilingStrategy(
        "known",
        "known queries, known objects",
        lambda world, context: known_queries(world, context.case.queries),
    ),
    TilingStrategy("all", "all objects", lambda world, context: all_objects(world)),
    TilingStrategy(
        "lazy", "lazy", lambda world, context: context.with_clusters(TileOnFirstQuery(world))
    ),
    TilingStrategy(
        "more",
        "incremental, more",
        lambda world, context: context.with_clusters(IncrementalMore(world)),
    ),
    TilingStrategy(
        "regret",
        "incremental, regret",
        lambda world, context: context.with_clusters(IncrementalRegret(world)),
    ),
    TilingStrategy(
        "ledger",
        "ours, query by query",
        lambda world, context: context.with_clusters(Ledger(world)),
        is_ours=True,
    ),
    TilingStrategy(
        "foreseen",
        "ours, queries known",
        lambda world, context: context.foreseen(world),
        is_ours=True,
    ),
)
"""TASM's (ICDE 2021, sections IV and V; "lazy" from an earlier version) and ours."""


@dataclass(frozen=True, slots=True, eq=False)
class StrategyOutcome:
    """The predicted result of a strategy."""

    name: str  #: of the strategy
    title: str  #: for people
    decoding: npt.NDArray[np.float64]  #: CPU seconds of each query
    making: npt.NDArray[np.float64]  #: CPU seconds of the tiles made at each query
    bytes: float  #: of all tiles at the end
    tilings: Mapping[int, Tiling]  #: by SOT, at the end

    def __repr__(self) -> str:
        return (
            f"<Outcome {self.name!r}: {self.seconds:.3f} s of CPU time for {len(self.decoding)} "
            f"queries, {len(self.tilings)} SOTs tiled>"
        )

    @property
    def seconds(self) -> float:
        """Total CPU seconds."""
        return float(self.decoding.sum() + self.making.sum())

    @property
    def curve(self) -> npt.NDArray[np.float64]:
        """Cumulative CPU seconds after each query."""
        total: npt.NDArray[np.float64] = np.cumsum(self.decoding + self.making)
        return total


@dataclass(frozen=True, eq=False)
class Advice:
    """The results of all strategies on a workload."""

    outcomes: Sequence[StrategyOutcome]  #: the first is "none"
    sots: Sequence[range]  #: the frames of each
    regions: int  #: number of different regions in the workload
    clusters: int  #: number of clusters of regions

    def __repr__(self) -> str:
        return (
            f"<Advice: {self.queries} queries, {len(self.sots)} SOTs, {len(self.outcomes)} "
            f"strategies; best is {self.best.name!r}, {self.relative(self.best):.2f} of the time "
            "without tiles>"
        )

    @property
    def queries(self) -> int:
        """Number of queries, including repetitions."""
        return len(self.outcomes[0].decoding)

    @property
    def idle(self) -> int:
        """Number of queries that find nothing and decode nothing."""
        return int(np.count_nonzero(self.outcomes[0].decoding == 0))

    @cached_property
    def best(self) -> StrategyOutcome:
        """The strategy with the least total time; of equal ones, with the least time for making
        tiles.
        """
        return min(self.outcomes, key=lambda one: (round(one.seconds, 9), one.making.sum()))

    def __getitem__(self, name: str) -> StrategyOutcome:
        """Return the result of a strategy.  Raises `NotFoundError`."""
        for one in self.outcomes:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.outcomes)
        raise NotFoundError(f"strategy must be one of {known}, got {name!r}")

    def relative(self, outcome: StrategyOutcome) -> float:
        """Return its seconds relative to reads without tiles; 1 if these take none."""
        untiled = self.outcomes[0].seconds
        return outcome.seconds / untiled if untiled else 1.0

    def layouts(self, outcome: StrategyOutcome | None = None) -> list[PlannedSegment]:
        """Return a strategy's final tiling (default: the best) for `VideoTiles.retile`, by time."""
        tilings = (outcome or self.best).tilings
        return [
            PlannedSegment(self.sots[sot], tiling.layout, tiling.tiles)
            for sot, tiling in sorted(tilings.items())
            if tiling.tiles
        ]


def compare_strategies(case: WhatIfCase, *, on_progress: OnProgress | None = None) -> Advice:
    """Replay all strategies.

    For a workload with many different regions, learning strategies decide by clusters of regions
    (`vfsd.tiling.policy.interface`); costs of reads are computed for the regions themselves.
    """
    context = StrategyContext(case)
    strategies = [one for one in STRATEGIES if one.name != PRESENT or case.existing]
    total = len(strategies) * len(case.queries)
    outcomes = []
    for number, one in enumerate(strategies):
        before = number * len(case.queries)
        outcomes.append(
            _replay_strategy(one, context, _with_progress(case.queries, before, total, on_progress))
        )
    known = context.clusters
    return Advice(outcomes, case.profile.sots, len(known), len(set(known.values())))


def _with_progress(
    queries: Sequence[Query], before: int, total: int, on_progress: OnProgress | None
) -> Iterator[Query]:
    for number, query in enumerate(queries):
        if on_progress is not None:
            on_progress(before + number, total)
        yield query


def _replay_strategy(
    strategy: TilingStrategy, context: StrategyContext, queries: Iterable[Query]
) -> StrategyOutcome:
    world = context.world(is_ours=strategy.is_ours)
    bill = replay_queries(
        strategy.make(world, context), ExistingTilingsWorld(world, context.case.existing), queries
    )
    tilings = {retile.sot: retile.tiling for _, retile in bill.retiles}
    return StrategyOutcome(
        strategy.name,
        strategy.title,
        np.array(bill.decoding),
        np.array(bill.making),
        sum(world.making_cost(sot, tiling).bytes for sot, tiling in tilings.items()),
        tilings,
    )


def sots_with_segments(
    sequences: Sequence[range], segments: Sequence[Segment]
) -> tuple[list[range], dict[int, Tiling]]:
    """Divide all frames of a video into SOTs, one for each segment, and return their tilings too.

    Frames without a segment are divided as in `sequences`.  Of overlapping segments only the newest
    counts.
    """
    owner = np.full(sequences[-1].stop, -1)
    for segment in sorted(segments, key=lambda one: one.id):
        owner[segment.first_frame : segment.end_frame] = segment.id
    whole = {
        segment.first_frame: segment
        for segment in segments
        if (owner[segment.first_frame : segment.end_frame] == segment.id).all()
    }
    edges = {sequence.start for sequence in sequences} | {sequences[-1].stop}
    for segment in whole.values():
        edges -= set(segment.frames)
        edges |= {segment.first_frame, segment.end_frame}
    sots = [range(*pair) for pair in pairwise(sorted(edges))]
    existing = {
        number: Tiling(whole[sot.start].layout, whole[sot.start].tiles)
        for number, sot in enumerate(sots)
        if sot.start in whole
    }
    return sots, existing


def advise(
    video: VideoContext,
    workload: Sequence[WorkloadQuery] | None,
    *,
    codec: str,
    newest: int,
    on_progress: OnProgress | None,
) -> Advice:
    """See `vfsd.api.tiles.VideoTiles.advise`."""
    parts: dict[str, tuple[str, Rect]] = {}
    queries = (
        _logged_queries(video, newest)
        if workload is None
        else _given_queries(video, workload, parts)
    )
    media = video.original.media
    chosen = tile_codec(codec, media)
    tiles = video.usual_tiles(video.info)
    catalog = video.parts.catalog
    segments = catalog.segments(video.info)
    good = [segment for segment in segments if segment.psnr >= tiles.luma]
    sots, existing = sots_with_segments(video.sequences(), good)
    aims: set[Aim] = {aim for query in queries for aim in query.aims}
    aims -= parts.keys()
    aims |= {expression for expression, _ in parts.values()}
    aims |= {format_labels([[one.label]]) for one in catalog.detections.labels(video.info)}
    original = FrameTableOriginal(video.table, media.width * media.height)
    profile = load_box_video(catalog, video.info, original, sots, aims, chosen)
    measured = catalog.costs(host_name())
    case = WhatIfCase(
        _with_region_labels(profile, parts),
        cost_rates(video.original, original.whole, chosen, tiles.costs, measured, segments),
        PlannerReading(),
        queries,
        existing,
        chosen.takes_parts,
    )
    return compare_strategies(case, on_progress=on_progress)


def _logged_queries(video: VideoContext, newest: int) -> list[Query]:
    """Return the newest reads of the read log as queries.  Raises `NotFoundError` without any."""
    video.tools.read_log.flush()
    reads = list(islice(video.parts.catalog.reads(video.info), non_negative(newest, "newest")))
    found = [asked.query for asked in queries_of_reads(reads, video.original.media)]
    if not found:
        what = "only reads of whole frames" if reads else "no reads"
        raise NotFoundError(
            f"the read log of {video.name} has {what}",
            hint="write a workload into a file, or see `vfsd reads`",
        )
    return found


def _given_queries(
    video: VideoContext, given: Iterable[WorkloadQuery], parts: dict[str, tuple[str, Rect]]
) -> list[Query]:
    """Return queries for policies; boxes in a region are added to `parts`."""
    is_several = isinstance(given, Iterable) and not isinstance(given, str)
    workload = list(given) if is_several else []
    if not is_several or not all(isinstance(one, WorkloadQuery) for one in workload):
        raise UsageError(
            f"workload must be a list of WorkloadQuery, got {shown(given)}",
            hint='as in [WorkloadQuery("car", times=20)]',
        )
    asked = sum(one.times for one in workload)
    if not 0 < asked <= MAX_QUERIES:
        raise UsageError(
            f"a workload must have 1 to {MAX_QUERIES} queries, got {asked}",
            hint='only proportions count: reduce all "times"',
        )
    queries: list[Query] = []
    for number, one in enumerate(workload):
        try:
            query = Query(_frames_of(video, one), _aims_of(video, one, parts))
        except OutOfRangeError as error:
            raise OutOfRangeError(f"query {number}: {error}", hint=error.hint) from error
        queries += [query] * one.times
    return queries


def _frames_of(video: VideoContext, query: WorkloadQuery) -> range:
    if query.frames is None:
        return video.frames_in(query.span)
    if query.frames.stop > video.original.frames:
        raise OutOfRangeError(
            f'"frames" must end at {video.original.frames} or before, got '
            f"{query.frames.start} to {query.frames.stop}"
        )
    return query.frames


def _aims_of(
    video: VideoContext, query: WorkloadQuery, parts: dict[str, tuple[str, Rect]]
) -> frozenset[Aim]:
    """Return the aims of a query; boxes in a region are added to `parts`."""
    media = video.original.media
    region = None if query.region is None else Rect.from_value(query.region)
    if region is not None and not media.frame_rect.contains(region):
        size = f"{media.display_width}x{media.display_height}"
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {size}")
    clauses = query.clauses
    if not clauses:
        assert region is not None
        return frozenset([needed_area(media, "rgb24", region, None)])
    if len(clauses) > 1 or not clauses[0].is_plain:
        expressions = [format_labels(clauses)]
    else:
        expressions = [format_labels([[label]]) for label in sorted(clauses[0].labels)]
    if region is None:
        return frozenset(expressions)
    area = to_coded_rect(region, media)
    named = {f"{one} in {region}": (one, area) for one in expressions}
    parts |= named
    return frozenset(named)


def _with_region_labels(profile: VideoProfile, parts: _RegionLabels) -> VideoProfile:
    """Return the profile with the boxes that overlap a region as labels of their own."""
    if not parts:
        return profile
    seen = []
    for known in profile.seen:
        mine = dict(known)
        for name, (expression, area) in parts.items():
            if expression not in known:
                continue
            boxes = known[expression]
            x1, y1, x2, y2 = boxes.corners.T
            inside = (x1 < area.x2) & (x2 > area.x1) & (y1 < area.y2) & (y2 > area.y1)
            if inside.any():
                mine[name] = LabelBoxes(boxes.frames[inside], boxes.corners[inside])
        seen.append(mine)
    return replace(profile, seen=seen)
