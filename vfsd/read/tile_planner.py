"""Chooses which frames of a read come from which tiles, by predicted decode time.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PAGE_PACKETS, Ints
from vfsd.core.model import MediaInfo, PhysicalVideo, Segment
from vfsd.tiling import Rect
from vfsd.tiling.cost import DEFAULT_COSTS, LOSSLESS, OTHER_COST, RAW_CELLS, DecodeCost, DecodeWork

_SECONDS_PER_TILE = 20e-6
"""CPU seconds for each picture of a tile, on its way from the decoder."""
_SECONDS_PER_PLACEMENT = 20e-6
"""CPU seconds for each picture of a tile that is put together with others; a pixel more or less
makes no difference: 64x64 of them take 21 us, 480x272 26 us."""
_REQUIRED_GAIN = 1.1
"""Costs are predicted within a tenth, as a rule.  Tiles that promise less than that are not worth
the risk, as the original is what everybody would have decoded anyway."""
_COST_FACTOR_LIMITS = (0.25, 4.0)
# The original has two decoder threads, a tile one. A tile of most of the picture costs less CPU,
# but a sequential reader would wait longer for it.
_LARGE_PICTURE = 250_000
"""Pixels from which on a second thread inside a decoder pays."""
_LOST_FRAME_SECONDS = 1e7
"""Seconds that stand for reading frames that the original has lost: more than anything else takes,
but not so many that differences between other ways would be lost in rounding."""
_LOOKUP_FRAMES = 16 * PAGE_PACKETS
"""Frames in a row that are looked up together: so few pages the table keeps until they are done."""
_SPARSE_DISTANCE = 64
"""From this mean distance of frames on, the original's work is counted frame by frame."""


NeededRegion = Callable[[int, int], Rect | None]
"""Given (width, height) to which pictures were scaled: the area of them that a read needs; None:
pictures of that size are of no use to it."""
IsGoodEnough = Callable[[Segment, Sequence[int]], bool]
"""Whether tiles of a segment, all of which it has, may be used together."""
TileChoice = tuple[Segment, tuple[int, ...]]
"""A segment, and those of its tiles that are needed."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Decode `tiles` of a segment up to the last of `frames`."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending
    tiles: tuple[int, ...]

    @property
    def work(self) -> DecodeWork:
        return tile_work(self.segment, self.tiles, self.frames[-1])


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """What decoding costs on this host."""

    by_name: Mapping[str, DecodeCost] = field(default_factory=dict)
    """By codec, and by name of the tile codec; those without an entry have `DEFAULT_COSTS`."""
    factors: Mapping[int, float] = field(default_factory=dict)
    """By number of an encoding: how many times as much its content costs."""
    threads: int = 1
    """How many threads decode side by side."""

    def of_original(self, physical: PhysicalVideo) -> DecodeCost:
        factor = self.factors.get(physical.id) or physical.cost_factor or 1.0
        return self._of(physical.media.codec).times(factor)

    def of_tiles(self, segment: Segment) -> DecodeCost:
        """What decoding a segment's tiles costs, without making pictures of them."""
        cost, factor = self._of(_cost_name(segment)), self.factors.get(segment.physical_id)
        return cost if factor is None else cost.times(factor)

    def of_new_tiles(self, profile: str) -> DecodeCost:
        """What tiles of that codec cost that nobody has measured yet; pictures are made of them."""
        rule = self._of(profile)
        return replace(rule, picture=rule.picture + _SECONDS_PER_TILE + _SECONDS_PER_PLACEMENT)

    def seconds_of_tiles(self, segment: Segment, work: DecodeWork, *, together: int) -> float:
        """CPU seconds of decoding tiles, and of putting so many `together` into a picture."""
        handling = _SECONDS_PER_TILE + (_SECONDS_PER_PLACEMENT if together > 1 else 0)
        return self.of_tiles(segment).seconds(work) + handling * work.pictures

    def _of(self, name: str) -> DecodeCost:
        return self.by_name.get(name) or DEFAULT_COSTS.get(name, OTHER_COST)


def _cost_name(segment: Segment) -> str:
    if segment.profile == LOSSLESS and not any(cell.quality for cell in segment.cells):
        return RAW_CELLS
    return segment.profile


def decoder_threads(media: MediaInfo, threads: int) -> int:
    """How many of `threads` a decoder of an original should use when no other one is at work."""
    return 2 if media.width * media.height >= _LARGE_PICTURE and threads > 1 else 1


def tile_work(segment: Segment, tiles: Sequence[int], last: int) -> DecodeWork:
    """What decoding those tiles takes, from the segment's start up to frame `last`, inclusive."""
    pictures = last - segment.first_frame + 1
    part = pictures / len(segment.frames)
    mine = [segment.cell(tile) for tile in tiles]
    return DecodeWork(
        starts=len(mine),
        pictures=pictures * len(mine),
        pixels=pictures * sum(cell.rect.area for cell in mine),
        bytes=part * sum(cell.size for cell in mine),
    )


def clamp_cost_factor(factor: float) -> float:
    """`factor`, measured time over predicted time, within `_LIMITS`: what is farther off was
    disturbed by something else."""
    low, high = _COST_FACTOR_LIMITS
    return min(high, max(low, factor))


def is_worth_it(tiled: float, untiled: float) -> bool:
    """Whether `tiled` seconds are so much less than `untiled` ones that tiles pay even if the costs
    that both were predicted from are not quite right."""
    return _REQUIRED_GAIN * tiled < untiled


def original_work(physical: PhysicalVideo, table: FrameTable, frames: Sequence[int]) -> DecodeWork:
    """What decoding the original takes to see `frames`, which ascend."""
    if not frames:
        return DecodeWork()
    if _is_sparse(frames[0], frames[-1], len(frames)):
        spans = [(run.first_packet, run.end_packet) for run in table.decode_runs(frames)]
    else:
        first, last = table.decode_run(frames[0]), table.decode_run(frames[-1])
        spans = [(first.first_packet, max(last.end_packet, first.end_packet))]
    pictures = sum(end - first for first, end in spans)
    media = physical.media
    return DecodeWork(
        starts=len(spans),
        pictures=pictures,
        pixels=pictures * media.width * media.height,
        bytes=float(sum(table.bytes_of(first, end) for first, end in spans)),
    )


def _is_sparse(first: int, last: int, count: int) -> bool:
    return last - first >= _SPARSE_DISTANCE * count


def in_full_size(media: MediaInfo, area: Rect) -> NeededRegion:
    """`area` of pictures as they are; those that were scaled are of no use."""

    def needed(width: int, height: int) -> Rect | None:
        return area if (width, height) == (media.width, media.height) else None

    return needed


def choose_tiles(
    frames: Ints,
    needed: NeededRegion,
    physical: PhysicalVideo,
    table: FrameTable,
    segments: Sequence[Segment],
    costs: DecodeCosts,
    *,
    good: IsGoodEnough,
    unreadable: Sequence[range] = (),
) -> list[TileRun]:
    """The cheapest way to see `needed` of `frames`, as far as it uses tiles; by time.

    Only `good` tiles are used, and the original is the last resort for frames that
    it has lost, the `unreadable` ones.  Each frame
    comes from one source; where it is in no run, from the original.  A source that served the
    frames before goes on where it stands, so what a frame costs depends on the one before: a
    dynamic programme over the intervals between the ends of segments.
    """
    wanted = _unique_ascending(frames)
    first, last = int(wanted[0]), int(wanted[-1])
    usable = [
        (segment, tiles)
        for segment in segments
        if segment.first_frame <= last and segment.end_frame > first
        if (area := needed(*segment.picture)) is not None
        if segment.holds(tiles := tuple(segment.layout.covering(area))) and good(segment, tiles)
    ]
    if not usable:
        return []
    edges = {edge for segment, _ in usable for edge in _segment_edges(segment)}
    edges.update(edge for lost in unreadable for edge in (lost.start, lost.stop))
    parts = _split_intervals(wanted, sorted(edges), usable)
    prices = _IntervalCosts(
        physical, table, costs, wanted, unreadable, side_by_side=_parallelism(parts)
    )
    return _runs(wanted, parts, _cheapest(parts, prices))


def _unique_ascending(frames: Ints) -> Ints:
    """Each once."""
    if (frames[1:] > frames[:-1]).all():
        return frames
    return np.array(sorted(set(frames.tolist())))  # np.unique would import numpy.ma: 20 ms


@dataclass(frozen=True, slots=True)
class _Interval:
    """Wanted frames in a row, at which no segment begins or ends but before the first and after the
    last of them; each of `tiled` is a way to see them all, and so is the original."""

    first: int
    last: int
    start: int  #: its place among all that are wanted
    end: int
    tiled: Sequence[TileChoice]


def _split_intervals(
    wanted: Ints, cuts: Sequence[int], usable: Sequence[TileChoice]
) -> list[_Interval]:
    """`cuts`, which ascend, are where segments begin and end."""
    coming = sorted(usable, key=lambda one: one[0].first_frame, reverse=True)
    here: list[TileChoice] = []
    parts = []
    places = wanted.searchsorted(cuts).tolist()
    for start, end in pairwise([0, *places, len(wanted)]):
        if start == end:
            continue
        first, last = wanted[start].item(), wanted[end - 1].item()
        begun = []
        while coming and coming[-1][0].first_frame <= first:
            begun.append(coming.pop())
        here = [one for one in (*here, *begun) if one[0].end_frame > last]
        parts.append(_Interval(first, last, start, end, here))
    return parts


def _parallelism(parts: Sequence[_Interval]) -> float:
    """How many parts that may be seen in tiles are as much to do as the largest of them: so many
    cores are busy with them at a time, each with a part of its own."""
    frames = [part.end - part.start for part in parts if part.tiled]
    return sum(frames) / max(frames, default=1)


def _segment_edges(segment: Segment) -> tuple[int, int]:
    return segment.first_frame, segment.end_frame


class _IntervalCosts:
    """What each way of a part takes, in seconds, and what of that a part before has done."""

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        costs: DecodeCosts,
        wanted: Ints,
        unreadable: Sequence[range],
        *,
        side_by_side: float,
    ) -> None:
        self._physical = physical
        self._table = table
        self._costs = costs
        self._own = costs.of_original(physical)
        self._threads = decoder_threads(physical.media, costs.threads)
        self._wanted = wanted
        self._unreadable = unreadable
        self._side_by_side = side_by_side
        self._starts: dict[int, float] = {}  # by number of the segment
        self._pictures: dict[int, float] = {}

    def of_tiles(self, way: TileChoice, last: int) -> float:
        """Alone: from the segment's start up to frame `last`."""
        segment = way[0]
        start = self._starts.get(segment.id)
        if start is None:
            start = self._look_at(*way)
        return start + self._pictures[segment.id] * (last - segment.first_frame + 1)

    def _look_at(self, segment: Segment, tiles: Sequence[int]) -> float:
        """Find out what starting takes, which it gives, and each picture."""
        work, together = tile_work(segment, tiles, segment.end_frame - 1), len(tiles)
        start = self._costs.of_tiles(segment).start * work.starts
        pictures = self._costs.seconds_of_tiles(segment, work, together=together) - start
        # The original is decoded by several threads, a tile by one: who waits for pictures of one
        # segment in a row waits for the largest tile.
        busy = self._side_by_side
        if together > 1:
            areas = [segment.cell(tile).rect.area for tile in tiles]
            busy *= sum(areas) / max(areas)
        doubt = _REQUIRED_GAIN * max(1.0, self._threads / busy)
        number, frames = segment.id, segment.end_frame - segment.first_frame
        self._pictures[number] = doubt * pictures / frames
        found = self._starts[number] = doubt * start
        return found

    def of_original(self, parts: Sequence[_Interval]) -> Iterator[tuple[float, float]]:
        """(alone, what of that is done if the part before was read from the original as well) for
        each of them, which follow each other; of the first nothing is done."""
        tail = 0, 0  # the packets of the last frame of the part before
        for _, near in groupby(parts, lambda part: part.first // _LOOKUP_FRAMES):
            here = list(near)
            ends = np.array([end for part in here for end in (part.first, part.last)])
            first, end = self._table.packets_to_decode(ends).tolist()
            heads, until = first[::2], list(map(max, end[::2], end[1::2]))
            alone = self._seconds(heads, until)
            before = [tail[0], *first[1:-1:2]], [tail[1], *end[1:-1:2]]
            done = self._seconds(*before)
            for number, (part, head, begun, ended) in enumerate(
                zip(here, heads, *before, strict=True)
            ):
                if _is_sparse(part.first, part.last, part.end - part.start):
                    frames = self._wanted[part.start : part.end].tolist()
                    work = original_work(self._physical, self._table, frames)
                    alone[number] = self._own.seconds(work)
                if self._unreadable and self._has_lost(part):
                    alone[number] += _LOST_FRAME_SECONDS
                yield alone[number], done[number] if begun == head or head < ended else 0.0
            tail = first[-1], end[-1]

    def _has_lost(self, part: _Interval) -> bool:
        return any(lost.start <= part.last and part.first < lost.stop for lost in self._unreadable)

    def _seconds(self, first: Sequence[int], end: Sequence[int]) -> list[float]:
        """Of decoding the packets ``first <= p < end``, for each pair, by one start each."""
        area = self._physical.media.width * self._physical.media.height
        start, byte = self._own.start, self._own.byte
        picture = self._own.seconds(DecodeWork(pictures=1, pixels=area))
        sizes = self._table.bytes_between(first, end)
        return [
            start + picture * (stop - at) + byte * size
            for at, stop, size in zip(first, end, sizes, strict=True)
        ]


def _cheapest(parts: Sequence[_Interval], prices: _IntervalCosts) -> list[int]:
    """How to see each part so that all together take least: 0 is the original, and then come the
    ways in tiles."""
    came: list[int] = []  # from which way of the part before, of all ways of all parts
    begins: list[int] = []  # where those of each part do
    totals: list[float] = []  # up to each way of the part before
    alone: dict[int, float] = {}  # of the part before, by number of the segment
    places: dict[int, int] = {}  # among its ways
    for part, (itself, done) in zip(parts, prices.of_original(parts), strict=True):
        rest = min(totals, default=0.0)
        least = totals.index(rest) if totals else -1
        begins.append(len(came))
        if totals and totals[0] - done < rest:
            row, origin = [totals[0] + itself - done], 0
        else:
            row, origin = [rest + itself], least
        came.append(origin)
        prices_here: dict[int, float] = {}
        places_here: dict[int, int] = {}
        for way in part.tiled:
            number = way[0].id
            price = prices_here[number] = prices.of_tiles(way, part.last)
            places_here[number] = len(row)
            total, origin = rest + price, least
            # A decoder that stands in the segment goes on.
            place = places.get(number)
            if place is not None and totals[place] - alone[number] < rest:
                total, origin = totals[place] + price - alone[number], place
            row.append(total)
            came.append(origin)
        totals, alone, places = row, prices_here, places_here
    chosen: list[int] = []
    at = totals.index(min(totals))
    for begin in reversed(begins):
        chosen.append(at)
        at = came[begin + at]
    return chosen[::-1]


def _runs(wanted: Ints, parts: Sequence[_Interval], chosen: Sequence[int]) -> list[TileRun]:
    found: list[tuple[TileChoice, list[int]]] = []
    for part, number in zip(parts, chosen, strict=True):
        if not number:
            continue
        way, frames = part.tiled[number - 1], wanted[part.start : part.end].tolist()
        if found and found[-1][0][0] is way[0]:
            found[-1][1].extend(frames)
        else:
            found.append((way, frames))
    return [TileRun(segment, tuple(frames), tiles) for (segment, tiles), frames in found]
