"""Explains a read plan: what it decodes, what the same read would decode without tiles, and which
stored tiles it leaves unused and why. Pure functions.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from vfsd.core.display_geometry import to_display_layout
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.read.read_plan import AvailableTiles, ReadPlan, original_runs
from vfsd.read.tile_planner import DecodeCosts, is_worth_it, original_work, tile_work
from vfsd.tiling.cost import DecodeWork


class UnusedReason(StrEnum):
    """Why tiles are not used."""

    SIZE = "size"
    """Pictures of the size that they were scaled to are of no use to the result."""
    MISSING = "missing"
    """Some that it needs are not stored."""
    QUALITY = "quality"
    """They may be less like the original than is asked for."""
    OTHERS = "others"
    """Other tiles cost less."""
    COST = "cost"
    """They cost no less than the original, or too little less for a prediction to be relied on."""
    TIME = "time"
    """They cost less than the original would alone, which is there no later all the same: several
    cores work at it, or it is decoded for the frames before anyway."""


@dataclass(frozen=True, slots=True)
class UnusedTiles:
    """A segment of which frames are wanted that come from elsewhere."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending: those that come from elsewhere
    tiles: tuple[int, ...]  #: of its layout, that show what is needed; none where `why` is SIZE
    why: UnusedReason
    psnr: float | None
    """dB that the result would have at least, 0 where nobody has measured it; of MISSING and SIZE
    None."""
    seconds: float | None  #: CPU time that they would take, predicted; None where `psnr` is
    original_seconds: float  #: that the original takes for the same frames alone

    @property
    def span(self) -> range:
        """From the first of its frames to after the last."""
        return range(self.frames[0], self.frames[-1] + 1)


def find_unused_tiles(
    plan: ReadPlan, table: FrameTable, tiles: AvailableTiles | None
) -> tuple[UnusedTiles, ...]:
    """What `plan`, which was made with `tiles`, leaves unused of them; by time."""
    if tiles is None or not len(plan.frames):
        return ()
    found = _find_unused(plan, table, tiles)
    return tuple(sorted(found, key=lambda one: (one.frames[0], one.segment.id)))


def _find_unused(plan: ReadPlan, table: FrameTable, tiles: AvailableTiles) -> Iterator[UnusedTiles]:
    wanted = sorted(set(plan.frames.tolist()))
    from_tiles = {frame for run in plan.tiled for frame in run.frames}
    used: dict[int, set[int]] = {}
    for run in plan.tiled:
        used.setdefault(run.segment.id, set()).update(run.frames)
    own, needed = tiles.costs.of_original(plan.physical), plan.needed
    good = tiles.good_for(plan.form, plan.physical)
    for segment in tiles.stored:
        mine = used.get(segment.id, ())
        first = bisect_left(wanted, segment.first_frame)
        end = bisect_left(wanted, segment.end_frame, first)
        frames = tuple(frame for frame in wanted[first:end] if frame not in mine)
        if not frames:
            continue
        original = own.seconds(original_work(plan.physical, table, frames))
        area = needed(*segment.picture)
        covering = () if area is None else tuple(segment.layout.covering(area))
        if area is None or not segment.holds(covering):
            why = UnusedReason.SIZE if area is None else UnusedReason.MISSING
            yield UnusedTiles(segment, frames, covering, why, None, None, original)
            continue
        cells = [segment.cell(tile) for tile in covering]
        psnr = plan.form.psnr_of(cells, segment.picture)
        work = tile_work(segment, covering, frames[-1])
        seconds = tiles.costs.seconds_of_tiles(segment, work, together=len(covering))
        if not good(segment, covering):
            why = UnusedReason.QUALITY
        elif from_tiles.issuperset(frames):
            why = UnusedReason.OTHERS
        else:
            why = _slower(seconds, original)
        yield UnusedTiles(segment, frames, covering, why, psnr, seconds, original)


def _slower(tiled: float, original: float) -> UnusedReason:
    return UnusedReason.TIME if is_worth_it(tiled, original) else UnusedReason.COST


_MAX_REORDER_FRAMES = 17
"""Frames among which the last packet of a row is: no codec holds back more than 16."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Frames in a row that come from the same place."""

    frames: tuple[int, ...]  #: of the video, ascending, each once
    segment: Segment | None  #: None: the original
    tiles: tuple[int, ...]  #: of the segment's layout
    work: DecodeWork
    seconds: float  #: CPU time, predicted

    @property
    def kind(self) -> str:
        """original, tiles or joined."""
        if self.segment is None:
            return "original"
        return "joined" if self.segment.is_joined else "tiles"

    @property
    def span(self) -> range:
        """From the first of its frames to after the last."""
        return range(self.frames[0], self.frames[-1] + 1)


@dataclass(frozen=True, slots=True)
class DecodeSummary:
    """What is decoded, and what would be without tiles.  Seconds are predicted CPU time of all
    cores together."""

    sources: tuple[SourceRun, ...]  #: by time; no frame is in two of them
    untiled: DecodeWork  #: for the same frames from the original alone
    untiled_seconds: float
    passed_over: tuple[UnusedTiles, ...]
    """Tiles of these frames that are not used, or not for all of them; empty where nobody asked."""

    @property
    def work(self) -> DecodeWork:
        return sum((source.work for source in self.sources), DecodeWork())

    @property
    def seconds(self) -> float:
        return sum(source.seconds for source in self.sources)

    @property
    def pixel_gain(self) -> float:
        """How many times fewer pixels are decoded than without tiles; 1 where none are."""
        return self.untiled.pixels / self.work.pixels if self.work.pixels else 1.0

    @property
    def time_gain(self) -> float:
        """How many times faster than without tiles, as predicted."""
        return self.untiled_seconds / self.seconds if self.seconds else 1.0


@dataclass(frozen=True, slots=True)
class ReadExplanation(DecodeSummary):
    """A plan in numbers."""

    plan: ReadPlan


def explain_plan(
    plan: ReadPlan, table: FrameTable, costs: DecodeCosts, passed_over: tuple[UnusedTiles, ...] = ()
) -> ReadExplanation:
    """Count what `plan` decodes.  What a store has decoded lately and kept is not considered."""
    own = costs.of_original(plan.physical)
    sources = [
        SourceRun(
            run.frames,
            run.segment,
            run.tiles,
            run.work,
            costs.seconds_of_tiles(run.segment, run.work, together=len(run.tiles)),
        )
        for run in plan.tiled
    ]
    tiled = sorted(run.frames[0] for run in plan.tiled)
    for frames, work in _original_work_by_run(plan, table, tiled):
        sources.append(SourceRun(frames, None, (), work, own.seconds(work)))
    if plan.tiled:
        untiled = _total_work(plan.physical, table, *original_runs(plan.frames, table))
    else:
        untiled = sum((source.work for source in sources), DecodeWork())
    return ReadExplanation(
        sources=tuple(sorted(sources, key=attrgetter("frames"))),
        untiled=untiled,
        untiled_seconds=own.seconds(untiled),
        passed_over=passed_over,
        plan=plan,
    )


def explanation_json(found: ReadExplanation) -> dict[str, Any]:
    """An explanation as a JSON object; see ``vfsd explain`` for its keys."""
    plan = found.plan
    return result_json(found, plan.physical, len(plan.frames), plan.size, plan.psnr)


def result_json(
    found: DecodeSummary, physical: PhysicalVideo, frames: int, size: tuple[int, int], psnr: float
) -> dict[str, Any]:
    """The same of so many `frames` of a size that come of what is decoded of `physical`."""
    return {
        "frames": frames,
        "width": size[0],
        "height": size[1],
        "psnr": None if psnr == math.inf else psnr,
        "sources": [_source_json(physical, source) for source in found.sources],
        "decoded": _work_json(found.work, found.seconds),
        "untiled": _work_json(found.untiled, found.untiled_seconds),
        "pixel_gain": found.pixel_gain,
        "time_gain": found.time_gain,
        "passed_over": [_unused_json(physical, one) for one in found.passed_over],
    }


def _source_json(physical: PhysicalVideo, source: SourceRun) -> dict[str, Any]:
    return {
        "source": source.kind,
        "frames": [source.span.start, source.span.stop],
        "count": len(source.frames),
        **_segment_json(physical, source.segment, source.tiles),
        **_work_json(source.work, source.seconds),
    }


def _unused_json(physical: PhysicalVideo, one: UnusedTiles) -> dict[str, Any]:
    return {
        "source": "joined" if one.segment.is_joined else "tiles",
        "frames": [one.span.start, one.span.stop],
        "count": len(one.frames),
        **_segment_json(physical, one.segment, one.tiles),
        "why": str(one.why),
        "psnr": one.psnr,
        "seconds": one.seconds,
        "original_seconds": one.original_seconds,
    }


def _segment_json(
    physical: PhysicalVideo, segment: Segment | None, tiles: Sequence[int]
) -> dict[str, Any]:
    layout = None if segment is None else to_display_layout(segment.layout, physical.media)
    return {
        "layout": None if layout is None else str(layout),
        "codec": None if segment is None else segment.profile,
        "from_view": segment is not None and segment.is_from_view,
        "tiles": None if segment is None else list(tiles),
    }


def _work_json(work: DecodeWork, seconds: float) -> dict[str, Any]:
    return {
        "starts": work.starts,
        "pictures": work.pictures,
        "pixels": work.pixels,
        "bytes": round(work.bytes),
        "seconds": seconds,
    }


def _original_work_by_run(
    plan: ReadPlan, table: FrameTable, tiled: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], DecodeWork]]:
    """(frames, work) of each stretch that no tiles interrupt."""
    if plan.contiguous is not None:
        yield tuple(plan.contiguous), _streaming_work(plan.physical, table, plan.contiguous)
        return
    placed = [(bisect(tiled, min(run.wanted.values())), run) for run in plan.runs]
    for _, together in groupby(placed, itemgetter(0)):
        runs = [run for _, run in together]
        frames = sorted(frame for run in runs for frame in run.wanted.values())
        yield tuple(frames), _work_of_runs(plan.physical, table, runs)


def _total_work(
    physical: PhysicalVideo,
    table: FrameTable,
    runs: Sequence[DecodeRun],
    contiguous: range | None,
) -> DecodeWork:
    if contiguous is not None:
        return _streaming_work(physical, table, contiguous)
    return _work_of_runs(physical, table, runs)


def _streaming_work(physical: PhysicalVideo, table: FrameTable, frames: range) -> DecodeWork:
    first = table.decode_run(frames[0]).first_packet
    # The last packet may be that of a frame that is shown before others.
    ends = [table.decode_run(frame).end_packet for frame in frames[-_MAX_REORDER_FRAMES:]]
    run = DecodeRun(first, max(ends), {})
    return _work_of_runs(physical, table, [run])


def _work_of_runs(
    physical: PhysicalVideo, table: FrameTable, runs: Sequence[DecodeRun]
) -> DecodeWork:
    """Feeding each of `runs` to a decoder that starts afresh."""
    pictures = sum(run.end_packet - run.first_packet for run in runs)
    size = sum(int(table.columns(run.first_packet, run.end_packet).size.sum()) for run in runs)
    area = physical.media.width * physical.media.height
    return DecodeWork(len(runs), pictures, pictures * area, float(size))
