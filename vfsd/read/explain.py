"""What a read plan decodes, counted; and what the same read would decode without tiles.  Pure."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.core.orientation import layout_in_display
from vfsd.read.plan import ReadPlan, from_original
from vfsd.read.tile_planner import Costs
from vfsd.read.unused_tiles import PassedOver
from vfsd.tiling.cost import Work

_REORDERED = 17
"""Frames among which the last packet of a row is: no codec holds back more than 16."""


@dataclass(frozen=True, slots=True)
class Source:
    """Frames in a row that come from the same place."""

    frames: tuple[int, ...]  #: of the video, ascending, each once
    segment: Segment | None  #: None: the original
    tiles: tuple[int, ...]  #: of the segment's layout
    work: Work
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
class Decoding:
    """What is decoded, and what would be without tiles.  Seconds are predicted CPU time of all
    cores together."""

    sources: tuple[Source, ...]  #: by time; no frame is in two of them
    untiled: Work  #: for the same frames from the original alone
    untiled_seconds: float
    passed_over: tuple[PassedOver, ...]
    """Tiles of these frames that are not used, or not for all of them; empty where nobody asked."""

    @property
    def work(self) -> Work:
        return sum((source.work for source in self.sources), Work())

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
class Explanation(Decoding):
    """A plan in numbers."""

    plan: ReadPlan


def explain(
    plan: ReadPlan, table: FrameTable, costs: Costs, passed_over: tuple[PassedOver, ...] = ()
) -> Explanation:
    """Count what `plan` decodes.  What a store has decoded lately and kept is not considered."""
    own = costs.of_original(plan.physical)
    sources = [
        Source(
            run.frames,
            run.segment,
            run.tiles,
            run.work,
            costs.seconds_of_tiles(run.segment, run.work, together=len(run.tiles)),
        )
        for run in plan.tiled
    ]
    tiled = sorted(run.frames[0] for run in plan.tiled)
    for frames, work in _from_original(plan, table, tiled):
        sources.append(Source(frames, None, (), work, own.seconds(work)))
    if plan.tiled:
        untiled = _total(plan.physical, table, *from_original(plan.frames, table))
    else:
        untiled = sum((source.work for source in sources), Work())
    return Explanation(
        sources=tuple(sorted(sources, key=attrgetter("frames"))),
        untiled=untiled,
        untiled_seconds=own.seconds(untiled),
        passed_over=passed_over,
        plan=plan,
    )


def record(found: Explanation) -> dict[str, Any]:
    """An explanation as a JSON object; see ``vfsd explain`` for its keys."""
    plan = found.plan
    return result_record(found, plan.physical, len(plan.frames), plan.size, plan.psnr)


def result_record(
    found: Decoding, physical: PhysicalVideo, frames: int, size: tuple[int, int], psnr: float
) -> dict[str, Any]:
    """The same of so many `frames` of a size that come of what is decoded of `physical`."""
    return {
        "frames": frames,
        "width": size[0],
        "height": size[1],
        "psnr": None if psnr == math.inf else psnr,
        "sources": [_source_record(physical, source) for source in found.sources],
        "decoded": _work_record(found.work, found.seconds),
        "untiled": _work_record(found.untiled, found.untiled_seconds),
        "pixel_gain": found.pixel_gain,
        "time_gain": found.time_gain,
        "passed_over": [_passed_record(physical, one) for one in found.passed_over],
    }


def _source_record(physical: PhysicalVideo, source: Source) -> dict[str, Any]:
    return {
        "source": source.kind,
        "frames": [source.span.start, source.span.stop],
        "count": len(source.frames),
        **_segment_record(physical, source.segment, source.tiles),
        **_work_record(source.work, source.seconds),
    }


def _passed_record(physical: PhysicalVideo, one: PassedOver) -> dict[str, Any]:
    return {
        "source": "joined" if one.segment.is_joined else "tiles",
        "frames": [one.span.start, one.span.stop],
        "count": len(one.frames),
        **_segment_record(physical, one.segment, one.tiles),
        "why": str(one.why),
        "psnr": one.psnr,
        "seconds": one.seconds,
        "original_seconds": one.original_seconds,
    }


def _segment_record(
    physical: PhysicalVideo, segment: Segment | None, tiles: Sequence[int]
) -> dict[str, Any]:
    layout = None if segment is None else layout_in_display(segment.layout, physical.media)
    return {
        "layout": None if layout is None else str(layout),
        "codec": None if segment is None else segment.profile,
        "from_view": segment is not None and segment.is_from_view,
        "tiles": None if segment is None else list(tiles),
    }


def _work_record(work: Work, seconds: float) -> dict[str, Any]:
    return {
        "starts": work.starts,
        "pictures": work.pictures,
        "pixels": work.pixels,
        "bytes": round(work.bytes),
        "seconds": seconds,
    }


def _from_original(
    plan: ReadPlan, table: FrameTable, tiled: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Work]]:
    """(frames, work) of each stretch that no tiles interrupt."""
    if plan.contiguous is not None:
        yield tuple(plan.contiguous), _streamed(plan.physical, table, plan.contiguous)
        return
    placed = [(bisect(tiled, min(run.wanted.values())), run) for run in plan.runs]
    for _, together in groupby(placed, itemgetter(0)):
        runs = [run for _, run in together]
        frames = sorted(frame for run in runs for frame in run.wanted.values())
        yield tuple(frames), _fed(plan.physical, table, runs)


def _total(
    physical: PhysicalVideo,
    table: FrameTable,
    runs: Sequence[DecodeRun],
    contiguous: range | None,
) -> Work:
    if contiguous is not None:
        return _streamed(physical, table, contiguous)
    return _fed(physical, table, runs)


def _streamed(physical: PhysicalVideo, table: FrameTable, frames: range) -> Work:
    first = table.decode_run(frames[0]).first_packet
    # The last packet may be that of a frame that is shown before others.
    ends = [table.decode_run(frame).end_packet for frame in frames[-_REORDERED:]]
    run = DecodeRun(first, max(ends), {})
    return _fed(physical, table, [run])


def _fed(physical: PhysicalVideo, table: FrameTable, runs: Sequence[DecodeRun]) -> Work:
    """Feeding each of `runs` to a decoder that starts afresh."""
    pictures = sum(run.end_packet - run.first_packet for run in runs)
    size = sum(int(table.columns(run.first_packet, run.end_packet).size.sum()) for run in runs)
    area = physical.media.width * physical.media.height
    return Work(len(runs), pictures, pictures * area, float(size))
