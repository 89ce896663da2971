"""Chooses which frames of a read come from which tiles, by predicted decode time.  Pure
functions, except for `DecodeCosts.missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from vfsd.codecs.cells.pack import TABLE_BYTES
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import PAGE_PACKETS, Ints
from vfsd.core.model import Access, MediaInfo, PhysicalVideo, Segment
from vfsd.tiling import Rect
from vfsd.tiling.cost import (
    DEFAULT_COSTS,
    KEY_PICTURE_BYTES,
    LOSSLESS,
    OTHER_COST,
    RAW_CELLS,
    DecodeCost,
    DecodeWork,
    RemoteCost,
    decoded_spans,
    gop_bytes,
)

_SECONDS_PER_TILE = 20e-6
"""CPU seconds to handle one decoded picture of a tile."""
_SECONDS_PER_PLACEMENT = 20e-6
"""CPU seconds to copy one picture of a tile into a larger one.  The area hardly matters: 21 us for
64x64, 26 us for 480x272."""
_REQUIRED_GAIN = 1.1
"""Predictions are usually right within a tenth.  A smaller gain is not worth the risk, because the
original is the default."""
_COST_FACTOR_LIMITS = (0.25, 4.0)
_LOST_FRAME_SECONDS = 1e7
"""Cost of reading frames that the original has lost: more than anything else, but small enough that
differences between other options survive rounding."""
_LOOKUP_FRAMES = 16 * PAGE_PACKETS
"""Consecutive frames that are looked up together; the table keeps that few pages at a time."""
_SPARSE_DISTANCE = 64
"""From this mean distance of frames on, the original's work is counted frame by frame."""
SPARE = 1.2
"""The share of a cell that is fetched before the sizes of its packets are known, in relation to
the expected one.  Too little costs a second request."""


NeededRegion = Callable[[int, int], Rect | None]
"""Maps the (width, height) of scaled pictures to the region that a read needs, or None if pictures
of that size are unusable."""
IsGoodEnough = Callable[[Segment, Sequence[int]], bool]
"""Tests whether stored tiles of a segment may be used together."""
TileChoice = tuple[Segment, tuple[int, ...]]
"""A segment and the tiles of it that are needed."""
MissingShare = Callable[[str, Sequence[tuple[int, int]]], float]
"""Maps the key of an object and half-open byte ranges to the share that must be fetched."""
_MAX_CACHE_LOOKUPS = 8
"""Segments of a read, and ranges of the original, that are looked up in the cache.  Longer reads
wait for bandwidth, and are planned as if nothing were cached."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Decode `tiles` of a segment up to the last of `frames`."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending
    tiles: tuple[int, ...]

    @property
    def work(self) -> DecodeWork:
        return tile_work(self.segment, self.tiles, self.frames)


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """Decode costs on this host."""

    by_name: Mapping[str, DecodeCost] = field(default_factory=dict)
    """By codec and by tile codec; others have `DEFAULT_COSTS`."""
    factors: Mapping[int, float] = field(default_factory=dict)
    """By id of an encoding: the factor of its content on the cost."""
    threads: int = 1
    """Number of threads that decode in parallel."""
    remote: RemoteCost | None = None
    """Of fetching the packets; None: they are in local files."""
    missing: MissingShare | None = None
    """Looks into the cache of a remote store; None: nothing is taken to be cached."""

    def of_original(
        self, physical: PhysicalVideo, missing: float = 1.0, *, waits: float = 0.0
    ) -> DecodeCost:
        """Return the cost of decoding an original; see `RemoteCost.added_to`."""
        factor = self.factors.get(physical.id) or physical.cost_factor or 1.0
        return self._with_fetch(self._of(physical.media.codec).times(factor), missing, waits)

    def of_tiles(self, segment: Segment, missing: float = 1.0, *, waits: float = 0.0) -> DecodeCost:
        """Return the cost of decoding a segment's tiles, without the handling of pictures.

        See `RemoteCost.added_to`.
        """
        cost, factor = self._of(_cost_name(segment)), self.factors.get(segment.physical_id)
        return self._with_fetch(cost if factor is None else cost.times(factor), missing, waits)

    def _with_fetch(self, cost: DecodeCost, missing: float, waits: float) -> DecodeCost:
        if self.remote is None:
            return cost
        return self.remote.added_to(cost, missing, waits=waits)

    def of_new_tiles(self, profile: str) -> DecodeCost:
        """Return the cost of tiles of that codec that were never measured, including the handling
        of pictures.
        """
        rule = self._of(profile)
        return replace(rule, picture=rule.picture + _SECONDS_PER_TILE + _SECONDS_PER_PLACEMENT)

    def seconds_of_tiles(
        self, segment: Segment, work: DecodeWork, *, together: int, rule: DecodeCost | None = None
    ) -> float:
        """Return CPU seconds for decoding tiles and composing `together` of them to a picture.

        `rule` stands for `of_tiles`.
        """
        handling = _SECONDS_PER_TILE + (_SECONDS_PER_PLACEMENT if together > 1 else 0)
        return (rule or self.of_tiles(segment)).seconds(work) + handling * work.pictures

    def _of(self, name: str) -> DecodeCost:
        return self.by_name.get(name) or DEFAULT_COSTS.get(name, OTHER_COST)


def _cost_name(segment: Segment) -> str:
    if segment.profile == LOSSLESS and not any(cell.quality for cell in segment.cells):
        return RAW_CELLS
    return segment.profile


def tile_work(segment: Segment, tiles: Sequence[int], frames: Sequence[int]) -> DecodeWork:
    """Return the work of decoding `frames`, ascending, of some tiles, from key pictures on."""
    spans = _decoded_spans(segment, frames)
    pictures = sum(map(len, spans))
    keys = 0 if segment.gop is None else sum(_keys_within(segment, span) for span in spans)
    return _work_of_pictures(segment, tiles, len(spans), pictures, keys)


def _work_of_pictures(
    segment: Segment, tiles: Sequence[int], starts: int, pictures: int, keys: int
) -> DecodeWork:
    mine = [segment.cell(tile) for tile in tiles]
    return DecodeWork(
        starts=starts * len(mine),
        pictures=pictures * len(mine),
        pixels=pictures * sum(cell.rect.area for cell in mine),
        bytes=_share_of_bytes(segment, pictures, keys) * sum(cell.size for cell in mine),
    )


def _decoded_spans(segment: Segment, frames: Sequence[int]) -> list[range]:
    """Return the runs of frames that a read of `frames`, ascending, decodes of a segment."""
    if segment.gop is None:
        return [range(segment.first_frame, frames[-1] + 1)]
    return decoded_spans(frames, segment.first_frame, segment.gop)


def _keys_within(segment: Segment, span: range) -> int:
    """Return the number of key pictures in a run of frames that starts with one."""
    return -(-len(span) // segment.gop_frames)


def _share_of_bytes(segment: Segment, pictures: int, keys: int) -> float:
    """Return the share of a segment's bytes in some of its pictures."""
    frames, gop = len(segment.frames), segment.gop
    if gop is None or gop == 1:
        return pictures / frames
    return (pictures + (KEY_PICTURE_BYTES - 1) * keys) / gop_bytes(frames, gop)


def clamp_cost_factor(factor: float) -> float:
    """Limit `factor`, measured time over predicted time: larger deviations have other causes."""
    low, high = _COST_FACTOR_LIMITS
    return min(high, max(low, factor))


def is_worth_it(tiled: float, untiled: float) -> bool:
    """Return whether `tiled` seconds are less than `untiled` seconds by a reliable margin."""
    return _REQUIRED_GAIN * tiled < untiled


def original_work(physical: PhysicalVideo, table: FrameTable, frames: Sequence[int]) -> DecodeWork:
    """Return the work of decoding `frames`, ascending, of the original."""
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
    """Return a `NeededRegion` for unscaled pictures only."""

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
    """Return the cheapest way to show `needed` of `frames`, as the runs that use tiles, by time.

    Only `good` tiles are used.  The `unreadable` frames of the original are its last resort.  Each
    frame has one source; a frame in no run comes from the original.  A source that served the
    previous frames continues there, so the cost of a frame depends on the source before: a dynamic
    programme over the intervals between the ends of segments.
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
        physical, table, costs, wanted, parts, unreadable, side_by_side=_parallelism(parts)
    )
    return _runs(wanted, parts, _cheapest(parts, prices))


def _unique_ascending(frames: Ints) -> Ints:
    """Sort `frames` and remove duplicates."""
    if (frames[1:] > frames[:-1]).all():
        return frames
    # np.unique would import numpy.ma, which takes 20 ms
    return np.array(sorted(set(frames.tolist())))


@dataclass(frozen=True, slots=True)
class _Interval:
    """Consecutive requested frames without a segment boundary inside.

    Each element of `tiled`, and the original, can show all of them.
    """

    first: int
    last: int
    start: int  #: index of its first frame among all requested ones
    end: int
    tiled: Sequence[TileChoice]


def _split_intervals(
    wanted: Ints, cuts: Sequence[int], usable: Sequence[TileChoice]
) -> list[_Interval]:
    """Divide the requested frames at `cuts`, the ascending boundaries of segments."""
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
    """Return how many cores can decode tiles at a time: the total work divided by the largest
    interval.
    """
    frames = [part.end - part.start for part in parts if part.tiled]
    return sum(frames) / max(frames, default=1)


def _segment_edges(segment: Segment) -> tuple[int, int]:
    return segment.first_frame, segment.end_frame


class _ColdShares:
    """The costs of the sources of a read, with what must be fetched of each."""

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        costs: DecodeCosts,
        wanted: Ints,
        parts: Sequence[_Interval],
    ) -> None:
        self._physical = physical
        self._costs = costs
        self._intervals = len(parts)
        self._own = 1.0
        self._tiles: dict[int, float] = {}  # by segment id
        tiled = {way[0].id: way for part in parts for way in part.tiled}
        if costs.missing is None or len(tiled) > _MAX_CACHE_LOOKUPS:
            return
        key = physical.place.object_key
        if key is not None and physical.access is Access.EXTENT:
            self._own = costs.missing(key, _original_ranges(table, wanted))
        last = {way[0].id: part.last for part in parts for way in part.tiled}
        for number, (segment, tiles) in tiled.items():
            ranges = cell_ranges(segment, tiles, [last[number]], spare=1.0)
            self._tiles[number] = costs.missing(segment.object_key, ranges)

    @property
    def _is_something_cached(self) -> bool:
        return not self._own or 0.0 in self._tiles.values()

    def of_original(self) -> DecodeCost:
        waits = 1.0 if self._is_something_cached else 0.0
        return self._costs.of_original(self._physical, self._own, waits=waits)

    def of_tiles(self, segment: Segment, tiles: Sequence[int]) -> DecodeCost:
        missing = self._tiles.get(segment.id, 1.0)
        starts = self._intervals * len(tiles)
        waits = 1.0 / starts if self._is_something_cached else 0.0
        return self._costs.of_tiles(segment, missing, waits=waits)


def _original_ranges(table: FrameTable, wanted: Ints) -> list[tuple[int, int]]:
    """Return half-open byte ranges of the original that show whether `wanted` is cached."""
    first, last = int(wanted[0]), int(wanted[-1])
    if _is_sparse(first, last, len(wanted)):
        some = wanted[:: -(-len(wanted) // _MAX_CACHE_LOOKUPS)].tolist()
        runs = table.decode_runs(some)
    else:
        one, other = table.decode_run(first), table.decode_run(last)
        runs = [DecodeRun(one.first_packet, max(one.end_packet, other.end_packet), {})]
    found = []
    for run in runs:
        head = table.columns(run.first_packet, run.first_packet + 1)
        tail = table.columns(run.end_packet - 1, run.end_packet)
        start = int(head.position[0])
        found.append((start, max(start, int(tail.position[0] + tail.size[0]))))
    return found


def pack_ranges(
    segment: Segment, tiles: Sequence[int], frames: Sequence[int], *, spare: float = SPARE
) -> list[tuple[int, int]]:
    """Return the half-open byte ranges of an object that a read of some frames probably needs."""
    at = segment.pack_at
    return [(at, at + TABLE_BYTES), *cell_ranges(segment, tiles, frames, spare=spare)]


def cell_ranges(
    segment: Segment, tiles: Sequence[int], frames: Sequence[int], *, spare: float = SPARE
) -> list[tuple[int, int]]:
    """Return the part of `pack_ranges` behind the table of the pack."""
    if segment.is_joined:  # the row of a side spans all its pieces
        return [(cell.position, cell.position + cell.size) for cell in segment.cells]
    count = len(segment.frames)
    gop = segment.gop_frames or count
    needed = frames[-1] + 1 - segment.first_frame if frames else count
    share = min(1.0, spare * gop_bytes(needed, gop) / gop_bytes(count, gop))
    cells = [segment.cell(tile) for tile in tiles]
    return [(cell.position, cell.position + int(cell.size * share)) for cell in cells]


class _IntervalCosts:
    """The cost in seconds of each option of an interval, and how much a previous interval saves."""

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        costs: DecodeCosts,
        wanted: Ints,
        parts: Sequence[_Interval],
        unreadable: Sequence[range],
        *,
        side_by_side: float,
    ) -> None:
        self._physical = physical
        self._table = table
        self._costs = costs
        self._cold = _ColdShares(physical, table, costs, wanted, parts)
        self._own = self._cold.of_original()
        self._threads = physical.media.decoder_threads(costs.threads)
        self._wanted = wanted
        self._unreadable = unreadable
        self._side_by_side = side_by_side
        self._starts: dict[int, float] = {}  # by segment id
        self._pictures: dict[int, float] = {}
        self._keys: dict[int, float] = {}  # what a key picture costs more than others

    def of_tiles(self, way: TileChoice, part: _Interval) -> float:
        """Return the cost of an interval from tiles alone, from key pictures on."""
        segment = way[0]
        if segment.gop is None:
            return self._of_run(way, part.last - segment.first_frame + 1)
        spans = _decoded_spans(segment, self._wanted[part.start : part.end].tolist())
        keys = sum(_keys_within(segment, span) for span in spans)
        return self._of_run(way, sum(map(len, spans)), keys, len(spans))

    def shared(self, way: TileChoice, before: int, first: int) -> float:
        """Return how much of the cost of showing `first` a decoder saves that showed `before`."""
        segment = way[0]
        key = segment.key_before(first)
        if key > before:
            return 0.0 if key > before + 1 else self._of_run(way, 0)
        return self._of_run(way, before - key + 1, 0 if segment.gop is None else 1)

    def _of_run(self, way: TileChoice, pictures: int, keys: int = 0, starts: int = 1) -> float:
        segment = way[0]
        start = self._starts.get(segment.id)
        if start is None:
            start = self._measure(*way)
        number = segment.id
        return starts * start + self._pictures[number] * pictures + self._keys[number] * keys

    def _measure(self, segment: Segment, tiles: Sequence[int]) -> float:
        """Compute the cost of a start, which is returned, and of each picture."""
        frames, together = segment.end_frame - segment.first_frame, len(tiles)
        rule = self._cold.of_tiles(segment, tiles)
        # Key pictures are counted apart: a picture here is one of the others.
        work = _work_of_pictures(segment, tiles, 1, frames, 0)
        start = rule.start * work.starts
        seconds = self._costs.seconds_of_tiles(segment, work, together=together, rule=rule)
        pictures = seconds - start
        size = sum(segment.cell(tile).size for tile in tiles)
        key = rule.byte * size * _share_of_bytes(segment, 0, 1)
        # The original is decoded by several threads, a tile by one, so a sequential reader waits
        # for the largest tile.
        busy = self._side_by_side
        if together > 1:
            areas = [segment.cell(tile).rect.area for tile in tiles]
            busy *= sum(areas) / max(areas)
        doubt = _REQUIRED_GAIN * max(1.0, self._threads / busy)
        number = segment.id
        self._pictures[number] = doubt * pictures / frames
        self._keys[number] = doubt * key if segment.gop is not None else 0.0
        found = self._starts[number] = doubt * start
        return found

    def of_original(self, parts: Sequence[_Interval]) -> Iterator[tuple[float, float]]:
        """Yield (cost alone, part saved if the previous interval used the original too) for each
        interval.

        The intervals follow each other; nothing is saved for the first.
        """
        tail = 0, 0  # packets of the last frame of the previous interval
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
                if self._unreadable and self._is_unreadable(part):
                    alone[number] += _LOST_FRAME_SECONDS
                yield alone[number], done[number] if begun == head or head < ended else 0.0
            tail = first[-1], end[-1]

    def _is_unreadable(self, part: _Interval) -> bool:
        return any(lost.start <= part.last and part.first < lost.stop for lost in self._unreadable)

    def _seconds(self, first: Sequence[int], end: Sequence[int]) -> list[float]:
        """Return the cost of decoding the packets ``first <= p < end``, for each pair, with one
        start each.
        """
        area = self._physical.media.width * self._physical.media.height
        start, byte = self._own.start, self._own.byte
        picture = self._own.seconds(DecodeWork(pictures=1, pixels=area))
        sizes = self._table.bytes_between(first, end)
        return [
            start + picture * (stop - at) + byte * size
            for at, stop, size in zip(first, end, sizes, strict=True)
        ]


def _cheapest(parts: Sequence[_Interval], prices: _IntervalCosts) -> list[int]:
    """Return the option of each interval with the least total cost: 0 for the original,
    then tiles.
    """
    came: list[int] = []  # the previous interval's option that leads to each option
    begins: list[int] = []  # start of each interval in `came`
    totals: list[float] = []  # total cost up to each option of the previous interval
    before = -1  # last frame of the previous interval
    places: dict[int, int] = {}  # index of each segment's option in the previous interval
    for part, (itself, done) in zip(parts, prices.of_original(parts), strict=True):
        rest = min(totals, default=0.0)
        least = totals.index(rest) if totals else -1
        begins.append(len(came))
        if totals and totals[0] - done < rest:
            row, origin = [totals[0] + itself - done], 0
        else:
            row, origin = [rest + itself], least
        came.append(origin)
        places_here: dict[int, int] = {}
        for way in part.tiled:
            number = way[0].id
            price = prices.of_tiles(way, part)
            places_here[number] = len(row)
            total, origin = rest + price, least
            # A decoder that has started in the segment continues.
            place = places.get(number)
            if place is not None:
                saved = prices.shared(way, before, part.first)
                if totals[place] - saved < rest:
                    total, origin = totals[place] + price - saved, place
            row.append(total)
            came.append(origin)
        totals, before, places = row, part.last, places_here
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
