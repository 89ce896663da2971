"""Small cases of choosing the sources of frames, with the cost of every choice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell, PhysicalVideo, Segment
from vfsd.read.tile_planner import _REQUIRED_GAIN, DecodeCosts, TileRun, original_work, tile_work
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import DecodeCost

LAYOUTS = (
    TileLayout.untiled(320, 240),
    TileLayout((160, 160), (128, 112)),
    TileLayout((96, 96, 128), (240,)),
)
REGION = Rect(100, 100, 200, 180)
Way = tuple[Segment | None, Sequence[int]]
"""Some frames, and the segment that they come from; None: the original."""


def some_segments(rng: np.random.Generator, frames: int, count: int) -> list[Segment]:
    found = []
    for number in range(count):
        first = int(rng.integers(0, frames - 2))
        end = int(rng.integers(first + 1, min(frames, first + 50) + 1))
        layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
        stored = [tile for tile in range(layout.count) if rng.random() < 0.8] or [0]
        cells = tuple(
            Cell(tile, layout.tile(tile), 0, int(rng.integers(1, 60_000)), 20, 40.0)
            for tile in stored
        )
        gop = None if rng.random() < 0.5 else int(rng.integers(1, 20))
        found.append(
            Segment(number + 1, 2, 1, first, end, layout, "fast", "", 1, 40.0, 0, None, cells, gop)
        )
    return found


def some_costs(rng: np.random.Generator) -> DecodeCosts:
    def cost(scale: float) -> DecodeCost:
        start, picture, pixel, byte = rng.random(4) * (3e-3, 1e-4, 5e-9, 1e-7) * scale
        return DecodeCost(start, picture, pixel, byte)

    by_name = {"h264": cost(1), "mpeg4": cost(1), "fast": cost(float(rng.choice([0.1, 1.0])))}
    return DecodeCosts(by_name, threads=int(rng.integers(1, 4)))


def some_frames(rng: np.random.Generator, frames: int) -> list[int]:
    if rng.random() < 0.5:
        first = int(rng.integers(0, frames - 1))
        return list(range(first, int(rng.integers(first + 1, frames + 1))))
    return sorted(set(rng.integers(0, frames, int(rng.integers(1, 20))).tolist()))


class Oracle:
    """The cost of every choice of sources.  The originals are too small for decoding by several
    threads."""

    def __init__(
        self,
        original: PhysicalVideo,
        table: FrameTable,
        costs: DecodeCosts,
        segments: list[Segment],
    ) -> None:
        self.original, self.table, self.costs = original, table, costs
        self.segments = [one for one in segments if one.holds(one.layout.covering(REGION))]

    def parts(self, wanted: Sequence[int]) -> list[list[int]]:
        cuts = sorted({at for one in self.segments for at in (one.first_frame, one.end_frame)})
        edges = [-1, *cuts, len(self.table) + 1]
        found = [[f for f in wanted if low <= f < high] for low, high in itertools.pairwise(edges)]
        return [part for part in found if part]

    def ways(self, part: Sequence[int]) -> list[Way]:
        tiled = [one for one in self.segments if set(part) <= set(one.frames)]
        return [(None, part), *((one, part) for one in tiled)]

    def total(self, chosen: Sequence[Way]) -> float:
        seconds = self.alone(chosen[0])
        for before, way in itertools.pairwise(chosen):
            seconds += self.alone(way) - self.saved(before, way)
        return seconds

    def alone(self, way: Way) -> float:
        segment, frames = way
        if segment is None:
            own = self.costs.of_original(self.original)
            return own.seconds(original_work(self.original, self.table, frames))
        return self.tiled(segment, frames)

    def tiled(self, segment: Segment, frames: Sequence[int]) -> float:
        tiles = segment.layout.covering(REGION)
        work = tile_work(segment, tiles, frames)
        return _REQUIRED_GAIN * self.costs.seconds_of_tiles(segment, work, together=len(tiles))

    def saved(self, before: Way, way: Way) -> float:
        if before[0] is None and way[0] is None:
            run, last = self.table.decode_run(way[1][0]), self.table.decode_run(before[1][-1])
            goes_on = last.first_packet == run.first_packet or run.first_packet < last.end_packet
            if not goes_on:
                return 0.0
            return self.alone((None, [before[1][-1]]))
        if before[0] is not None and before[0] is way[0]:
            key, stop = before[0].key_before(way[1][0]), before[1][-1] + 1
            if key < stop:
                return self.tiled(before[0], range(key, stop))
            # A decoder that stands before the key picture continues without a start.
            if key == stop:
                return self.tiled(before[0], way[1]) - self._continued(before[0], way[1])
        return 0.0

    def _continued(self, segment: Segment, frames: Sequence[int]) -> float:
        tiles = segment.layout.covering(REGION)
        work = tile_work(segment, tiles, frames)
        work = replace(work, starts=work.starts - len(tiles))
        return _REQUIRED_GAIN * self.costs.seconds_of_tiles(segment, work, together=len(tiles))


def as_ways(parts: Sequence[list[int]], runs: Sequence[TileRun]) -> list[Way]:
    where = {frame: run.segment for run in runs for frame in run.frames}
    return [(where.get(part[0]), part) for part in parts]
