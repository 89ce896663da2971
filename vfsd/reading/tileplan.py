"""Which frames of a read come from tiles, and from which.  Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vfsd.framepages import Ints
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.model import MediaInfo, PhysicalVideo, Segment
from vfsd.tiling import Rect
from vfsd.tiling.cost import DEFAULT_COSTS, LOSSLESS, OTHER_COST, RAW_CELLS, DecodeCost, Work

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
_LOST = 1e7
"""Seconds that stand for reading frames that the original has lost: more than anything else takes,
but not so many that differences between other ways would be lost in rounding."""
_SPARSE = 64
"""From this mean distance of frames on, the original's work is counted frame by frame."""


Needed = Callable[[int, int], Rect | None]
"""Given (width, height) to which pictures were scaled: the area of them that a read needs; None:
pictures of that size are of no use to it."""
Good = Callable[[Segment, Sequence[int]], bool]
"""Whether tiles of a segment, all of which it has, may be used together."""


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
        return self._of(_cost_name(segment)).times(self.factors.get(segment.physical_id, 1.0))

    def of_new_tiles(self, profile: str) -> DecodeCost:
        """What tiles of that codec cost that nobody has measured yet; pictures are made of them."""
        rule = self._of(profile)
        return replace(rule, picture=rule.picture + _HANDLING + _PLACING)

    def seconds_of_tiles(self, segment: Segment, work: Work, *, together: int) -> float:
        """CPU seconds of decoding tiles, and of putting so many `together` into a picture."""
        handling = _HANDLING + (_PLACING if together > 1 else 0)
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


def tile_work(segment: Segment, tiles: Sequence[int], last: int) -> Work:
    """What decoding those tiles takes, from the segment's start up to frame `last`, inclusive."""
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
    """`factor`, measured time over predicted time, within `_LIMITS`: what is farther off was
    disturbed by something else."""
    low, high = _LIMITS
    return min(high, max(low, factor))


def is_worth_it(tiled: float, untiled: float) -> bool:
    """Whether `tiled` seconds are so much less than `untiled` ones that tiles pay even if the costs
    that both were predicted from are not quite right."""
    return _DOUBT * tiled < untiled


def original_work(physical: PhysicalVideo, table: FrameTable, frames: Sequence[int]) -> Work:
    """What decoding the original takes to see `frames`, which ascend."""
    if not frames:
        return Work()
    if _is_sparse(frames):
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
        bytes=float(sum(table.bytes_of(first, end) for first, end in spans)),
    )


def _is_sparse(frames: Sequence[int]) -> bool:
    return frames[-1] - frames[0] >= _SPARSE * len(frames)


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
    good: Good,
    unreadable: Sequence[range] = (),
) -> list[TileRun]:
    """The cheapest way to see `needed` of `frames`, as far as it uses tiles; by time.

    Only `good` tiles are used, and the original is the last resort for frames that
    it has lost, the `unreadable` ones.  Each frame
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
        if segment.holds(tiles) and good(segment, tiles)
    ]
    if not usable:
        return []
    edges = {edge for segment, _ in usable for edge in _edges(segment)}
    edges.update(edge for lost in unreadable for edge in (lost.start, lost.stop))
    cuts = sorted(edges)
    parts = [part for part in _split(wanted, cuts) if part]
    ways = _ways(parts, usable)
    prices = _Prices(physical, table, costs, unreadable, side_by_side=_side_by_side(ways))
    return _runs(_cheapest(ways, prices))


def _ways(
    parts: Sequence[list[int]], usable: Sequence[tuple[Segment, tuple[int, ...]]]
) -> list[list[_Way]]:
    """How each part, which follow each other, may be seen.  No segment begins or ends in a part."""
    coming = sorted(usable, key=lambda one: one[0].first_frame, reverse=True)
    here: list[tuple[Segment, tuple[int, ...]]] = []
    ways = []
    for part in parts:
        while coming and coming[-1][0].first_frame <= part[0]:
            here.append(coming.pop())
        here = [one for one in here if one[0].end_frame > part[-1]]
        tiled = (_Way(segment, tiles, part) for segment, tiles in here)
        ways.append([_Way(None, (), part), *tiled])
    return ways


@dataclass(frozen=True, slots=True)
class _Way:
    """To see the frames of one interval: from tiles, or (without a segment) the original."""

    segment: Segment | None
    tiles: tuple[int, ...]
    frames: Sequence[int]


def _side_by_side(ways: Sequence[Sequence[_Way]]) -> float:
    """How many parts that may be seen in tiles are as much to do as the largest of them: so many
    cores are busy with them at a time, each with a part of its own."""
    frames = [len(here[0].frames) for here in ways if len(here) > 1]
    return sum(frames) / max(frames, default=1)


def _edges(segment: Segment) -> tuple[int, int]:
    return segment.first_frame, segment.end_frame


def _split(wanted: list[int], cuts: list[int]) -> list[list[int]]:
    places = [0, *(bisect_left(wanted, cut) for cut in cuts), len(wanted)]
    return [wanted[start:end] for start, end in pairwise(places)]


class _Prices:
    """What each way of a part takes, in seconds, and what of that a part before has done."""

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        costs: Costs,
        unreadable: Sequence[range],
        *,
        side_by_side: float,
    ) -> None:
        self._physical = physical
        self._table = table
        self._costs = costs
        self._own = costs.of_original(physical)
        self._threads = decoder_threads(physical.media, costs.threads)
        self._area = physical.media.width * physical.media.height
        self._before: DecodeRun | None = None
        self._unreadable = unreadable
        self._side_by_side = side_by_side

    def of_tiles(self, way: _Way) -> float:
        """Alone: from the segment's start."""
        assert way.segment is not None
        tiles, segment = way.tiles, way.segment
        work = tile_work(segment, tiles, way.frames[-1])
        seconds = self._costs.seconds_of_tiles(segment, work, together=len(tiles))
        # The original is decoded by several threads, a tile by one: who waits for pictures of one
        # segment in a row waits for the largest tile.
        areas = [segment.cell(tile).rect.area for tile in tiles]
        busy = sum(areas) / max(areas) * self._side_by_side
        return _DOUBT * seconds * max(1.0, self._threads / busy)

    def of_original(self, frames: Sequence[int]) -> tuple[float, float]:
        """(alone, what of that is done if the part before, which was asked for last, was read from
        the original as well)."""
        head = self._table.decode_run(frames[0])
        tail = head if len(frames) == 1 else self._table.decode_run(frames[-1])
        if _is_sparse(frames):
            alone = self._own.seconds(original_work(self._physical, self._table, frames))
        else:
            alone = self._seconds(head.first_packet, max(tail.end_packet, head.end_packet))
        done, before = 0.0, self._before
        if before is not None and (
            before.first_packet == head.first_packet or head.first_packet < before.end_packet
        ):
            done = self._seconds(before.first_packet, before.end_packet)
        self._before = tail
        if any(lost.start <= frames[-1] and frames[0] < lost.stop for lost in self._unreadable):
            alone += _LOST
        return alone, done

    def _seconds(self, first: int, end: int) -> float:
        pictures = end - first
        size = float(self._table.bytes_of(first, end))
        return self._own.seconds(Work(1, pictures, pictures * self._area, size))


def _cheapest(ways: Sequence[Sequence[_Way]], prices: _Prices) -> list[_Way]:
    """One of each part, so that all together take least.

    The first way of each part is the original.
    """
    came: list[list[int]] = []
    totals: list[float] = []  # up to each way of the part before
    alone: dict[int, float] = {}  # of the part before, by number of the segment
    places: dict[int, int] = {}
    for here in ways:
        least = min(range(len(totals)), key=totals.__getitem__) if totals else -1
        rest = totals[least] if totals else 0.0
        itself, done = prices.of_original(here[0].frames)
        row, origins = [rest + itself], [least]
        if totals and totals[0] - done < rest:
            row[0], origins[0] = totals[0] + itself - done, 0
        now: dict[int, float] = {}
        for way in here[1:]:
            assert way.segment is not None
            number = way.segment.id
            price = now[number] = prices.of_tiles(way)
            total, origin = rest + price, least
            # A decoder that stands in the segment goes on.
            place = places.get(number)
            if place is not None and totals[place] - alone[number] < rest:
                total, origin = totals[place] + price - alone[number], place
            row.append(total)
            origins.append(origin)
        came.append(origins)
        totals, alone = row, now
        places = {way.segment.id: n for n, way in enumerate(here) if way.segment is not None}
    chosen: list[_Way] = []
    at = min(range(len(totals)), key=totals.__getitem__)
    for here, origins in zip(reversed(ways), reversed(came), strict=True):
        chosen.append(here[at])
        at = origins[at]
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
