"""Compares tiling strategies for one video on a workload, with the costs of this host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from reprlib import repr as shown

from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.display_geometry import to_coded_rect
from vfsd.core.hostinfo import host_name
from vfsd.core.label_query import format_labels
from vfsd.derive.catalog_world import FrameTableOriginal, PlannerReading, cost_rates, load_box_video
from vfsd.derive.what_if import (
    Advice,
    OnProgress,
    WhatIfCase,
    compare_strategies,
    sots_with_segments,
)
from vfsd.derive.workload import WorkloadQuery, queries_of_reads
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.read.video_context import VideoContext
from vfsd.tiling import Rect
from vfsd.tiling.policy import Aim, LabelBoxes, Query, VideoProfile
from vfsd.validation import non_negative

MOST_QUERIES = 10_000
"""The largest workload; replaying more takes minutes."""

_Parts = Mapping[str, tuple[str, Rect]]
"""By aim: the expression of its boxes, and the region that they must share."""


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
    queries = _remembered(video, newest) if workload is None else _meant(video, workload, parts)
    media = video.original.media
    chosen = tile_codec(codec, media)
    tiles = video.usual_tiles(video.info)
    catalog = video.parts.catalog
    segments = catalog.segments(video.info)
    good = [segment for segment in segments if segment.psnr >= tiles.luma]
    sots, there = sots_with_segments(video.sequences(), good)
    aims: set[Aim] = {aim for query in queries for aim in query.aims}
    aims -= parts.keys()
    aims |= {expression for expression, _ in parts.values()}
    aims |= {format_labels([[one.label]]) for one in catalog.labels(video.info)}
    original = FrameTableOriginal(video.table, media.width * media.height)
    footage = load_box_video(catalog, video.info, original, sots, aims, chosen)
    measured = catalog.costs(host_name())
    case = WhatIfCase(
        _with_parts(footage, parts),
        cost_rates(video.original, original.whole, chosen, tiles.costs, measured, segments),
        PlannerReading(),
        queries,
        there,
        chosen.takes_parts,
    )
    return compare_strategies(case, on_progress=on_progress)


def _remembered(video: VideoContext, newest: int) -> list[Query]:
    """The newest reads of the read log, as queries.  Raises `NotFoundError` without any."""
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


def _meant(
    video: VideoContext, given: Iterable[WorkloadQuery], parts: dict[str, tuple[str, Rect]]
) -> list[Query]:
    """Queries in the form that policies take; boxes in a region are added to `parts`."""
    is_several = isinstance(given, Iterable) and not isinstance(given, str)
    workload = list(given) if is_several else []
    if not is_several or not all(isinstance(one, WorkloadQuery) for one in workload):
        raise UsageError(
            f"workload must be a list of WorkloadQuery, got {shown(given)}",
            hint='as in [WorkloadQuery("car", times=20)]',
        )
    asked = sum(one.times for one in workload)
    if not 0 < asked <= MOST_QUERIES:
        raise UsageError(
            f"a workload must have 1 to {MOST_QUERIES} queries, got {asked}",
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
    """As those of `vfsd.derive.workload`; boxes in a region are added to `parts`."""
    media = video.original.media
    region = None if query.region is None else Rect.from_value(query.region)
    if region is not None and not media.frame_rect.contains(region):
        size = f"{media.display_width}x{media.display_height}"
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {size}")
    clauses = [sorted(clause) for clause in query.clauses]
    if not clauses:
        assert region is not None
        return frozenset([needed_area(media, "rgb24", region, None)])
    if len(clauses) > 1:
        expressions = [format_labels(clauses)]
    else:
        expressions = [format_labels([[label]]) for label in clauses[0]]
    if region is None:
        return frozenset(expressions)
    area = to_coded_rect(region, media)
    named = {f"{one} in {region}": (one, area) for one in expressions}
    parts |= named
    return frozenset(named)


def _with_parts(footage: VideoProfile, parts: _Parts) -> VideoProfile:
    """The footage, with the boxes that overlap a region as labels of their own."""
    if not parts:
        return footage
    seen = []
    for known in footage.seen:
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
    return replace(footage, seen=seen)
