"""Explains a read plan: what it decodes, what it would decode without tiles, and which tiles are
unused and why.

Pure functions.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from vfsd.codecs.decoding.packet_decoder import packet_ranges
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frames import to_display_layout
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.disk.object_reader import StoredObjects
from vfsd.read.read_plan import AvailableTiles, ReadPlan, original_runs
from vfsd.read.tile_planner import (
    DecodeCosts,
    cell_ranges,
    is_worth_it,
    original_work,
    tile_work,
)
from vfsd.tiling.cost import DecodeWork, Fetch


class UnusedReason(StrEnum):
    """Why tiles are not used."""

    SIZE = "size"
    """Pictures of their scaled size cannot serve the result."""
    MISSING = "missing"
    """Some of the needed tiles are not stored."""
    QUALITY = "quality"
    """They may be less similar to the original than required."""
    OTHERS = "others"
    """Other tiles cost less."""
    COST = "cost"
    """They do not cost less than the original, or not by a reliable margin."""
    TIME = "time"
    """They cost less CPU time than the original, but finish no earlier: several cores decode the
    original, or it is decoded for earlier frames anyway."""


@dataclass(frozen=True, slots=True)
class UnusedTiles:
    """A segment with requested frames that come from another source."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending; the frames from other sources
    tiles: tuple[int, ...]  #: of its layout, needed for the result; empty for SIZE
    why: UnusedReason
    psnr: float | None
    """Minimum dB of the result, 0 if it was never measured; None for MISSING and SIZE."""
    seconds: float | None  #: predicted CPU time; None if `psnr` is None
    original_seconds: float  #: for the same frames from the original alone

    @property
    def span(self) -> range:
        """From its first to its last frame, half-open."""
        return range(self.frames[0], self.frames[-1] + 1)


def find_unused_tiles(
    plan: ReadPlan, table: FrameTable, tiles: AvailableTiles | None
) -> tuple[UnusedTiles, ...]:
    """Return the tiles that `plan` leaves unused of those it was made with, by time."""
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
        work = tile_work(segment, covering, frames)
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


# As in `vfsd.remote`.
_REQUEST_BYTES = 8 << 20
_GAP_BYTES = 1 << 18
_MAX_REORDER_FRAMES = 17
"""The last packet of a run is among this many frames; codecs hold back at most 16."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Consecutive frames from the same source."""

    frames: tuple[int, ...]  #: of the video, ascending, without duplicates
    segment: Segment | None  #: None for the original
    tiles: tuple[int, ...]  #: of the segment's layout
    work: DecodeWork
    seconds: float  #: predicted CPU time

    @property
    def kind(self) -> str:
        """original, tiles or joined."""
        if self.segment is None:
            return "original"
        return "joined" if self.segment.is_joined else "tiles"

    @property
    def span(self) -> range:
        """From its first to its last frame, half-open."""
        return range(self.frames[0], self.frames[-1] + 1)


@dataclass(frozen=True, slots=True)
class DecodeSummary:
    """The decoding of a read, and the decoding without tiles.

    Seconds are predicted CPU time of all cores.
    """

    sources: tuple[SourceRun, ...]  #: by time; a frame is in at most one
    untiled: DecodeWork  #: the same frames from the original alone
    untiled_seconds: float
    passed_over: tuple[UnusedTiles, ...]
    """Tiles that are not used for some of these frames; empty if this was not requested."""

    @property
    def work(self) -> DecodeWork:
        return sum((source.work for source in self.sources), DecodeWork())

    @property
    def seconds(self) -> float:
        return sum(source.seconds for source in self.sources)

    @property
    def pixel_gain(self) -> float:
        """Reduction factor of the decoded pixels by tiles; 1 without tiles."""
        return self.untiled.pixels / self.work.pixels if self.work.pixels else 1.0

    @property
    def time_gain(self) -> float:
        """Reduction factor of the predicted time by tiles."""
        return self.untiled_seconds / self.seconds if self.seconds else 1.0


@dataclass(frozen=True, slots=True)
class ReadExplanation(DecodeSummary):
    """The decoding of a read plan."""

    plan: ReadPlan

    def _repr_html_(self) -> str:
        """Return the sources of the frames and the cost, for a notebook."""
        plan = self.plan
        title = f"{len(plan.frames)} frames of {plan.size[0]}x{plan.size[1]}"
        return summary_html(self, plan.physical, title)


def summary_html(found: DecodeSummary, physical: PhysicalVideo, title: str) -> str:
    """Return the sources of decoded pictures and their cost as HTML."""
    from vfsd.core.rich_repr import table

    cost = (
        f"{title}: {found.seconds:.3f} CPU s predicted, {found.untiled_seconds:.3f} without tiles; "
        f"{found.work.pixels / 1e6:.2f} Mpx, {found.untiled.pixels / 1e6:.2f} without tiles"
    )
    used = table(
        cost,
        ("source", "frames", "count", "tiles", "pictures", "Mpx", "CPU s"),
        (
            (
                one.kind,
                f"{one.span.start}-{one.span.stop - 1}",
                len(one.frames),
                len(one.tiles) or "-",
                one.work.pictures,
                f"{one.work.pixels / 1e6:.2f}",
                f"{one.seconds:.3f}",
            )
            for one in found.sources
        ),
        len(found.sources),
    )
    if not found.passed_over:
        return used
    unused = table(
        "tiles that are not used",
        ("frames", "layout", "why", "CPU s", "original"),
        (
            (
                f"{one.span.start}-{one.span.stop - 1}",
                to_display_layout(one.segment.layout, physical.media),
                one.why,
                "-" if one.seconds is None else f"{one.seconds:.3f}",
                f"{one.original_seconds:.3f}",
            )
            for one in found.passed_over
        ),
        len(found.passed_over),
    )
    return used + unused


def explain_plan(
    plan: ReadPlan, table: FrameTable, costs: DecodeCosts, passed_over: tuple[UnusedTiles, ...] = ()
) -> ReadExplanation:
    """Count what `plan` decodes.  Cached pictures and decoders are not considered."""
    costs = replace(costs, remote=None)  # CPU time only; see `fetch_of`
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


def fetch_of(plan: ReadPlan, table: FrameTable, objects: StoredObjects) -> Fetch:
    """Return the requests to the bucket that a read makes now.  Raises `OSError`, `StoreError`."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for run in plan.tiled:
        ranges = cell_ranges(run.segment, run.tiles, run.frames)
        wanted.setdefault(run.segment.object_key, []).extend(ranges)
    spans = [(run.first_packet, run.end_packet) for run in plan.runs]
    if plan.contiguous is not None:
        first, last = (table.decode_run(plan.contiguous[at]) for at in (0, -1))
        spans = [(first.first_packet, max(first.end_packet, last.end_packet))]
    key = plan.physical.place.object_key
    if key is not None:
        ranges = [one for span in spans for one in packet_ranges(table, *span)]
        wanted.setdefault(key, []).extend(ranges)
    requests = size = here = 0
    for key, ranges in wanted.items():
        with closing(objects.open(key)) as reader:
            for start, end in _joined(ranges):
                end = min(end, reader.size)
                missing = end - start - reader.cached(start, end - start)
                here += end - start - missing
                requests += -(-missing // _REQUEST_BYTES)
                size += missing
    return Fetch(requests, size, min(1, requests), here)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return whole blocks, joined as in requests, in ascending order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        start, end = start // BLOCK_BYTES * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES
        if found and start <= found[-1][1] + _GAP_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def explanation_json(found: ReadExplanation) -> dict[str, Any]:
    """Return the JSON object of an explanation; see ``vfsd explain`` for its keys."""
    plan = found.plan
    return result_json(found, plan.physical, len(plan.frames), plan.size, plan.psnr)


def result_json(
    found: DecodeSummary, physical: PhysicalVideo, frames: int, size: tuple[int, int], psnr: float
) -> dict[str, Any]:
    """Return the JSON object for `frames` pictures of `size` decoded from `physical`."""
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
        "gop": None if segment is None else segment.gop_frames,
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
    """Yield (frames, work) of each range between tiles."""
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
    # A frame that is shown earlier may have the last packet.
    ends = [table.decode_run(frame).end_packet for frame in frames[-_MAX_REORDER_FRAMES:]]
    run = DecodeRun(first, max(ends), {})
    return _work_of_runs(physical, table, [run])


def _work_of_runs(
    physical: PhysicalVideo, table: FrameTable, runs: Sequence[DecodeRun]
) -> DecodeWork:
    """Return the work of decoding each run with a decoder that starts at its key frame."""
    pictures = sum(run.end_packet - run.first_packet for run in runs)
    size = sum(int(table.columns(run.first_packet, run.end_packet).size.sum()) for run in runs)
    area = physical.media.width * physical.media.height
    return DecodeWork(len(runs), pictures, pictures * area, float(size))
