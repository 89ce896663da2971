"""What a read came to, as it is remembered: a plan, or what a scan did, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import PhysicalVideo, Read, Segment, SegmentUse
from vfsd.read.explain import Explanation, explain
from vfsd.read.plan import ReadPlan
from vfsd.read.tile_planner import Costs, original_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import Work

Clauses = tuple[tuple[str, ...], ...]
"""Labels: an AND of ORs."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a read began, and what it took."""

    at_ns: int  #: Unix time
    seconds: float  #: that its reader waited for it


def account_of_plan(
    kind: str,
    plan: ReadPlan,
    table: FrameTable,
    costs: Costs,
    timing: Timing,
    labels: Clauses | None = None,
) -> Read:
    """What carrying out `plan`, which has frames, came to; `labels`: what it was done for."""
    found = explain(plan, table, costs)
    return Read(
        id=0,
        video_id=plan.physical.video_id,
        at_ns=timing.at_ns,
        kind=kind,
        first_frame=int(plan.frames.min()),
        end_frame=int(plan.frames.max()) + 1,
        frames=len(plan.frames),
        region=plan.region,
        size=plan.size,
        labels=labels,
        pixels=found.work.pixels,
        untiled_pixels=found.untiled.pixels,
        predicted=found.seconds,
        untiled_predicted=found.untiled_seconds,
        seconds=timing.seconds,
        segments=len({run.segment.id for run in plan.tiled}),
        tiles=sum(len(run.tiles) for run in plan.tiled),
        original_frames=sum(
            len(source.frames) for source in found.sources if source.segment is None
        ),
        uses=_uses_of_plan(found, table, costs),
    )


def _uses_of_plan(found: Explanation, table: FrameTable, costs: Costs) -> tuple[SegmentUse, ...]:
    """What each segment saved: its part of what the original would have taken, less what it took.

    Frames in a row are decoded in one go, so that the parts together take less than one by one.
    """
    physical = found.plan.physical
    own = costs.of_original(physical)
    tiled = [source for source in found.sources if source.segment is not None]
    alone = [own.seconds(original_work(physical, table, source.frames)) for source in tiled]
    rest = sum(source.seconds for source in found.sources if source.segment is None)
    together = max(0.0, found.untiled_seconds - rest)
    scale = together / sum(alone) if sum(alone) else 0.0
    saved: dict[int, float] = {}
    for source, seconds in zip(tiled, alone, strict=True):
        assert source.segment is not None
        number = source.segment.id
        saved[number] = saved.get(number, 0.0) + scale * seconds - source.seconds
    return tuple(SegmentUse(number, max(0.0, seconds)) for number, seconds in saved.items())


@dataclass(frozen=True, slots=True)
class ScanPart:
    """What a scan has read from one place."""

    segment: Segment | None  #: None: the original alone
    tiles: int  #: of the segment that were decoded
    work: Work  #: of decoding these; nothing for the original
    frames: tuple[int, ...]  #: ascending, each once
    own: tuple[int, ...]  #: those of them that were read from the original
    pictures: int  #: that came of it
    area: Rect  #: around all that was read, on the displayed frame


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a scan is for.  It may read more: whole tiles, or whole frames where there are none."""

    labels: Clauses | None = None  #: boxes that carry them
    region: Rect | None = None  #: of the displayed frame; None: all that it reads


def account_of_scan(
    parts: Sequence[ScanPart],
    physical: PhysicalVideo,
    table: FrameTable,
    costs: Costs,
    size: tuple[int, int] | None,
    purpose: Purpose,
    timing: Timing,
) -> Read:
    """What a scan came to that has read `parts`: one at least, in the order of time."""
    own = costs.of_original(physical)
    work = untiled = Work()
    predicted = untiled_predicted = 0.0
    saved: dict[int, float] = {}
    for part in parts:
        alone = original_work(physical, table, part.frames)
        untiled += alone
        untiled_predicted += own.seconds(alone)
        mine = alone if part.own == part.frames else original_work(physical, table, part.own)
        work += mine
        predicted += own.seconds(mine)
        if part.segment is not None:
            tiles = costs.seconds_of_tiles(part.segment, part.work, together=part.tiles)
            work += part.work
            predicted += tiles
            gain = own.seconds(alone) - own.seconds(mine) - tiles
            saved[part.segment.id] = saved.get(part.segment.id, 0.0) + gain
    tiled = [part for part in parts if part.segment is not None]
    return Read(
        id=0,
        video_id=physical.video_id,
        at_ns=timing.at_ns,
        kind="scan",
        first_frame=parts[0].frames[0],
        end_frame=parts[-1].frames[-1] + 1,
        frames=sum(part.pictures for part in parts),
        region=purpose.region or Rect.around(part.area for part in parts),
        size=size,
        labels=purpose.labels,
        pixels=work.pixels,
        untiled_pixels=untiled.pixels,
        predicted=predicted,
        untiled_predicted=untiled_predicted,
        seconds=timing.seconds,
        segments=len({part.segment.id for part in tiled if part.segment is not None}),
        tiles=sum(part.tiles for part in tiled),
        original_frames=sum(len(part.own) for part in parts),
        uses=tuple(SegmentUse(number, max(0.0, seconds)) for number, seconds in saved.items()),
    )
