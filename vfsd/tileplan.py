"""Which frames of a read come from tiles, and from which.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from vfsd.framepages import Ints
from vfsd.frametable import FrameTable
from vfsd.model import MediaInfo, PhysicalVideo, Segment
from vfsd.tiling import Rect
from vfsd.tiling.cost import DEFAULT_COSTS, OTHER_COST, DecodeCost, Work

_HANDLING = 20e-6
"""CPU seconds for each picture of a tile, on its way from the decoder."""
_PLACING = 20e-6
"""CPU seconds for each picture of a tile that is put together with others; a pixel more or less
makes no difference: 64x64 of them take 21 us, 480x272 26 us."""
_DOUBT = 1.1
"""Costs are predicted within a tenth, as a rule.  Tiles that promise less than that are not worth
the risk, as the original is what everybody would have decoded anyway."""
_LIMITS = (0.25, 4.0)
_LARGE_PICTURE = 250_000
"""Pixels from which on a second thread inside a decoder pays."""
_SPARSE = 64
"""Frames apart on average from which on the original is counted frame by frame."""


Needed = Callable[[int, int], Rect | None]
"""What of a picture that was scaled to (width, height) has to be there; None: it is of no use."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Decode `tiles` of a segment up to the last of `frames`."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending
    tiles: tuple[int, ...]

    @property
    def work(self) -> Work:
        return tile_work(self.segment, self.tiles, self.frames[-1])


@dataclass(frozen=True, slots=True)
class Costs:
    """What decoding costs on this host."""

    by_name: Mapping[str, DecodeCost] = field(default_factory=dict)
    """By codec, and by name of the tile codec; without an entry: what is the rule elsewhere."""
    factors: Mapping[int, float] = field(default_factory=dict)
    """By number of an encoding: as many times as much, as its content makes it."""
    threads: int = 1
    """That decode side by side."""

    def of_original(self, physical: PhysicalVideo) -> DecodeCost:
        factor = self.factors.get(physical.id) or physical.cost_factor or 1.0
        return self._of(physical.media.codec).times(factor)

    def of_tiles(self, segment: Segment) -> DecodeCost:
        """Of decoding alone."""
        return self._of(segment.profile).times(self.factors.get(segment.physical_id, 1.0))

    def of_new_tiles(self, profile: str) -> DecodeCost:
        """Of tiles that nobody has measured yet, making pictures of them included."""
        rule = self._of(profile)
        return replace(rule, picture=rule.picture + _HANDLING + _PLACING)

    def seconds_of_tiles(self, segment: Segment, work: Work, *, together: int) -> float:
        """CPU time of decoding tiles, and of making pictures out of so many of them `together`."""
        handling = _HANDLING + (_PLACING if together > 1 else 0)
        return self.of_tiles(segment).seconds(work) + handling * work.pictures

    def _of(self, name: str) -> DecodeCost:
        return self.by_name.get(name) or DEFAULT_COSTS.get(name, OTHER_COST)


def decoder_threads(media: MediaInfo, threads: int) -> int:
    """How many of `threads` one decoder of an original should have that works alone."""
    return 2 if media.width * media.height >= _LARGE_PICTURE and threads > 1 else 1


def tile_work(segment: Segment, tiles: Sequence[int], last: int) -> Work:
    """Decoding those tiles of a segment from its start up to frame `last`."""
    pictures = last - segment.first_frame + 1
    part = pictures / len(segment.frames)
    mine = [segment.cell(tile) for tile in tiles]
    return Work(
        starts=len(mine),
        pictures=pictures * len(mine),
        pixels=pictures * sum(cell.rect.area for cell in mine),
        bytes=part * sum(cell.size for cell in mine),
    )


def plausible(factor: float) -> float:
    """A measured time as a part of the predicted one.  What is very far off was disturbed."""
    low, high = _LIMITS
    return min(high, max(low, factor))


def is_worth_it(tiled: float, untiled: float) -> bool:
    """Whether so many seconds are so much less than others that this holds even if the costs
    that they were predicted from are not quite right."""
    return _DOUBT * tiled < untiled


def original_work(physical: PhysicalVideo, table: FrameTable, frames: Sequence[int]) -> Work:
    """Decoding the original to see `frames`, which ascend."""
    if not frames:
        return Work()
    if frames[-1] - frames[0] >= _SPARSE * len(frames):
        spans = [(run.first_packet, run.end_packet) for run in table.decode_runs(frames)]
    else:
        first, last = table.decode_run(frames[0]), table.decode_run(frames[-1])
        spans = [(first.first_packet, max(last.end_packet, first.end_packet))]
    pictures = sum(end - first for first, end in spans)
    media = physical.media
    return Work(
        starts=len(spans),
        pictures=pictures,
        pixels=pictures * media.width * media.height,
        bytes=float(sum(int(table.columns(first, end).size.sum()) for first, end in spans)),
    )


def in_full_size(media: MediaInfo, area: Rect) -> Needed:
    """`area` of pictures as they are; those that were scaled are of no use."""

    def needed(width: int, height: int) -> Rect | None:
        return area if (width, height) == (media.width, media.height) else None

    return needed


def choose_tiles(
    frames: Ints,
    needed: Needed,
    physical: PhysicalVideo,
    table: FrameTable,
    segments: Sequence[Segment],
    costs: Costs,
    *,
    psnr: float,
) -> list[TileRun]:
    """The cheapest way to see `needed` of `frames`, as far as it uses tiles; by time.

    Only cells with at least `psnr` dB are used.  Each frame
    comes from one source; where it is in no run, from the original.  A source that served the
    frames before goes on where it stands, so what a frame costs depends on the one before: a
    dynamic programme over the intervals between the ends of segments.
    """
    wanted = sorted(set(frames.tolist()))  # np.unique would import numpy.ma: 20 ms
    usable = [
        (segment, tuple(segment.layout.covering(area)))
        for segment in segments
        if segment.first_frame <= wanted[-1] and segment.end_frame > wanted[0]
        if (area := needed(*segment.picture)) is not None
    ]
    usable = [
        (segment, tiles)
        for segment, tiles in usable
        if segment.holds(tiles) and all(segment.cell(tile).psnr >= psnr for tile in tiles)
    ]
    if not usable:
        return []
    cuts = sorted({edge for segment, _ in usable for edge in _edges(segment)})
    parts = [part for part in _split(wanted, cuts) if part]
    own = costs.of_original(physical)
    ways: list[list[_Way]] = []
    for part in parts:
        here = [_Way(None, (), part)]
        here += [
            _Way(segment, tiles, part)
            for segment, tiles in usable
            if segment.first_frame <= part[0] and part[-1] < segment.end_frame
        ]
        ways.append(here)
    return _runs(_cheapest(ways, physical, table, own, costs))


@dataclass(frozen=True, slots=True)
class _Way:
    """To see the frames of one interval: from tiles, or (without a segment) the original."""

    segment: Segment | None
    tiles: tuple[int, ...]
    frames: Sequence[int]


def _edges(segment: Segment) -> tuple[int, int]:
    return segment.first_frame, segment.end_frame


def _split(wanted: list[int], cuts: list[int]) -> list[list[int]]:
    places = [0, *(int(np.searchsorted(wanted, cut)) for cut in cuts), len(wanted)]
    return [wanted[start:end] for start, end in pairwise(places)]


def _cheapest(
    ways: list[list[_Way]],
    physical: PhysicalVideo,
    table: FrameTable,
    own: DecodeCost,
    costs: Costs,
) -> list[_Way]:
    threads = decoder_threads(physical.media, costs.threads)

    def tiled(segment: Segment, tiles: tuple[int, ...], last: int) -> float:
        seconds = costs.seconds_of_tiles(
            segment, tile_work(segment, tiles, last), together=len(tiles)
        )
        # The original is decoded by several threads, a tile by one: who waits for pictures in a
        # row waits for the largest tile.
        areas = [segment.cell(tile).rect.area for tile in tiles]
        return _DOUBT * seconds * max(1.0, threads * max(areas) / sum(areas))

    def alone(way: _Way) -> float:
        if way.segment is None:
            return own.seconds(original_work(physical, table, way.frames))
        return tiled(way.segment, way.tiles, way.frames[-1])

    def saved(before: _Way, way: _Way) -> float:
        """What need not be done again, as `before` has done it."""
        if way.segment is None and before.segment is None:
            run = table.decode_run(way.frames[0])
            last = table.decode_run(before.frames[-1])
            if last.first_packet == run.first_packet or run.first_packet < last.end_packet:
                return own.seconds(original_work(physical, table, [before.frames[-1]]))
        elif way.segment is not None and before.segment is way.segment:
            return tiled(way.segment, way.tiles, before.frames[-1])
        return 0.0

    best: list[list[tuple[float, int]]] = []
    for number, here in enumerate(ways):
        row = []
        for way in here:
            itself = alone(way)
            if not number:
                row.append((itself, -1))
                continue
            row.append(
                min(
                    (best[-1][index][0] + itself - saved(before, way), index)
                    for index, before in enumerate(ways[number - 1])
                )
            )
        best.append(row)
    chosen: list[_Way] = []
    at = min(range(len(best[-1])), key=lambda index: best[-1][index][0])
    for number in range(len(ways) - 1, -1, -1):
        chosen.append(ways[number][at])
        at = best[number][at][1]
    return chosen[::-1]


def _runs(chosen: list[_Way]) -> list[TileRun]:
    runs: list[TileRun] = []
    for way in chosen:
        if way.segment is None:
            continue
        if runs and runs[-1].segment is way.segment:
            runs[-1] = TileRun(way.segment, (*runs[-1].frames, *way.frames), way.tiles)
        else:
            runs.append(TileRun(way.segment, tuple(way.frames), way.tiles))
    return runs
