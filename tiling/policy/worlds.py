"""The worlds that policies observe, computed from boxes, sizes and cost rates.

`BoxWorld` has queries for regions and labels, `SizeWorld` queries for whole pictures in one size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vfsd.tiling.cost import (
    KEY_PICTURE_BYTES,
    DecodeCost,
    DecodeWork,
    EncodeCost,
    Ints,
    WantedBoxes,
    decoded_frames,
    decoded_spans,
    gop_bytes,
    intersecting_pairs,
    tile_areas,
)
from vfsd.tiling.layout import LayoutRules, Rect, TileLayout
from vfsd.tiling.partition import fine_layout
from vfsd.tiling.policy.interface import (
    Aims,
    Query,
    ScaledFrames,
    Tiling,
    TilingCost,
    frames_within,
)


class DecodeExtent:
    """The boxes of one label in a SOT, by the tiles of a layout that they touch."""

    def __init__(self, layout: TileLayout, corners: Ints, frames: Ints, sot: range) -> None:
        wanted = WantedBoxes.of(corners, frames, sot.start)
        tile, box = intersecting_pairs(layout, wanted)
        reached = np.zeros((len(sot) + 1, layout.count), np.int32)
        lengths = wanted.lengths[box]
        np.maximum.at(reached, (lengths, tile), lengths)
        # Row k: frames decoded of each tile to see the boxes on the first k frames.
        self._reached = np.maximum.accumulate(reached, axis=0)

    def lengths(self, start: int, stop: int) -> Ints:
        """Return the frames decoded of each tile to see the boxes on ``start <= f < stop``.

        Frames count from the start of the SOT.
        """
        row = self._reached[stop]
        return np.where(row > start, row, 0).astype(np.int64)


# Entries in caches: a few kB each.
_CACHED_EXTENTS = 1 << 14

Sizes = npt.NDArray[np.float64]
"""Bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelBoxes:
    """Boxes of one label on the frames of a SOT."""

    frames: Ints  #: (N,): of the video
    corners: Ints  #: (N, 4): x1, y1, x2, y2 in pixels of the stored picture, half-open


@dataclass(frozen=True, slots=True)
class ByteDensity:
    """Bytes of a stream in static areas and within boxes."""

    still: float  #: per pixel of every picture
    moving: float  #: additional, per pixel within boxes


@dataclass(frozen=True, slots=True)
class CostRates:
    """Costs per unit of work, and the density of bytes."""

    original: DecodeCost
    tiles: DecodeCost
    encode: EncodeCost
    density: ByteDensity
    key_bytes: float = KEY_PICTURE_BYTES  #: size of a key picture of a tile, in other pictures

    def scaled(self, decode: float, encode: float) -> CostRates:
        """Return rates multiplied by these factors, to simulate bad measurements."""
        return CostRates(
            self.original.times(decode),
            self.tiles.times(decode),
            self.encode.times(encode),
            self.density,
            self.key_bytes,
        )


class OriginalWork(Protocol):
    """The decoding work of the original, the source of tiles and the alternative to them."""

    def work(self, first: int, last: int, since: int | None) -> DecodeWork:
        """Return the work of decoding frames `first` to `last`, inclusive.

        With `since`, a decoder has already decoded everything before that frame; ``since <=
        first``.
        """


@dataclass(frozen=True, slots=True, eq=False)
class VideoProfile:
    """The known properties of a video."""

    width: int
    height: int
    sots: Sequence[range]  #: the frames of each SOT, consecutive
    seen: Sequence[Mapping[str, LabelBoxes]]  #: boxes of each SOT by label
    rules: LayoutRules
    original: OriginalWork | None = None
    """None: each SOT starts with its only key frame, and has the bytes of one large tile."""


class TileSelection(Protocol):
    """Selects the tiles to make of a layout around boxes."""

    def __call__(self, layout: TileLayout, wanted: LabelBoxes, first: int) -> Tiling: ...


def every_tile(layout: TileLayout, wanted: LabelBoxes, first: int) -> Tiling:
    """All tiles, as in TASM, where they replace the original."""
    return Tiling.whole(layout)


def wanted_tiles(layout: TileLayout, wanted: LabelBoxes, first: int) -> Tiling:
    """Only tiles that contain boxes; the rest is read from the original."""
    lengths = decoded_frames(layout, wanted.corners, wanted.frames, first)
    return Tiling(layout, tuple(np.flatnonzero(lengths).tolist()))


class ReadStrategy(Protocol):
    """How a SOT with tiles is read."""

    def seconds(self, tiled: float, untiled: float) -> float:
        """Return the seconds of a read, given the predictions for tiles and for the original."""


class CheapestSource:
    """Read each SOT of a query from the cheaper source, in a store that keeps the original."""

    def seconds(self, tiled: float, untiled: float) -> float:
        return min(tiled, untiled)


class TilesOnly:
    """Read tiled SOTs from tiles, as in TASM (section III-A)."""

    def seconds(self, tiled: float, untiled: float) -> float:
        return tiled


class BoxWorld:
    """A `World` of a video profile.  `made` and `reading` select the model of the store
    or of TASM.
    """

    def __init__(
        self,
        video: VideoProfile,
        rates: CostRates,
        stored_tiles: TileSelection = every_tile,
        reading: ReadStrategy | None = None,
    ) -> None:
        self._video = video
        self._rates = rates
        self._stored_tiles = stored_tiles
        self._reading = reading or CheapestSource()
        self._asked: tuple[Query, int, range, bool] | None = None
        self._untileds = lru_cache(maxsize=None)(self._untiled_seconds)
        self._reaches = lru_cache(_CACHED_EXTENTS)(self._reach)
        self._areas = lru_cache(_CACHED_EXTENTS)(tile_areas)
        self._untiled = TileLayout.untiled(video.width, video.height)
        self._starts = [frames.start for frames in video.sots]
        # Policies repeat the same questions, and answers never change.
        self.tiling_around = lru_cache(maxsize=None)(self._tiling_around)
        self._parts = lru_cache(maxsize=None)(self._part)
        self._decodes = lru_cache(maxsize=None)(self._decode)
        self._sizes = lru_cache(maxsize=None)(self._bytes)
        self.making_cost = lru_cache(maxsize=None)(self._making_cost)

    def at(self, rates: CostRates) -> BoxWorld:
        """Return the same world with other rates."""
        other = BoxWorld(self._video, rates, self._stored_tiles, self._reading)
        # Neither depends on the rates, and layouts take long to compute.
        other.tiling_around, other._parts = self.tiling_around, self._parts
        return other

    @property
    def sots(self) -> range:
        return range(len(self._video.sots))

    @property
    def gops(self) -> Sequence[int | None]:
        return (None,)

    def touched(self, query: Query) -> list[int]:
        if not query.frames:
            return []
        first = max(0, bisect_right(self._starts, query.frames[0]) - 1)
        return [
            sot
            for sot in range(first, bisect_right(self._starts, query.frames[-1]))
            if len(self._parts(sot, self._within(sot, query), query.aims).frames)
        ]

    def labels(self, sot: int) -> Aims:
        return frozenset(self._video.seen[sot])

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        asked = self._asked  # the same query is asked for one candidate after another
        if asked is None or asked[0] is not query or asked[1] != sot:
            asked = query, sot, self._within(sot, query), self._goes_on(sot, query)
            self._asked = asked
        return self._decodes(sot, asked[2], query.aims, tiling, asked[3])

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        wanted = self._parts(sot, self._within(sot, query), query.aims)
        layout = self._untiled if tiling is None else tiling.layout
        first = self._video.sots[sot].start
        lengths = decoded_frames(layout, wanted.corners, wanted.frames, first)
        return int(lengths @ tile_areas(layout))

    def _making_cost(self, sot: int, tiling: Tiling) -> TilingCost:
        frames = len(self._video.sots[sot])
        tiles = list(tiling.tiles)
        pixels = int(tile_areas(tiling.layout)[tiles].sum()) * frames
        size = float(self._sizes(sot, tiling.layout)[tiles].sum())
        mine = self._video.sots[sot]
        seconds = self._rates.original.seconds(self._original(sot, mine[0], mine[-1], False))
        return TilingCost(seconds + self._rates.encode.seconds(len(tiles), pixels, size), size)

    def _tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        video = self._video
        wanted = self._parts(sot, video.sots[sot], aims)
        if not len(wanted.frames):
            return None
        first = video.sots[sot].start
        layout = fine_layout(
            wanted.corners,
            video.width,
            video.height,
            video.rules,
            frames=wanted.frames,
            first_frame=first,
        )
        return None if layout.is_untiled else self._stored_tiles(layout, wanted, first)

    def _part(self, sot: int, frames: range, aims: Aims) -> LabelBoxes:
        """Return the boxes that a query needs on these frames of a SOT."""
        numbers, corners = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
        seen = self._video.seen[sot]
        for aim in aims if frames else ():
            if isinstance(aim, Rect):
                # The first and the last frame determine the decoded frames.
                ends = sorted({frames[0], frames[-1]})
                numbers.append(np.array(ends))
                corners.append(np.array([(aim.x1, aim.y1, aim.x2, aim.y2)] * len(ends)))
            elif isinstance(aim, str) and aim in seen:
                boxes = seen[aim]
                inside = (boxes.frames >= frames.start) & (boxes.frames < frames.stop)
                inside &= (boxes.frames - frames.start) % frames.step == 0
                numbers.append(boxes.frames[inside])
                corners.append(boxes.corners[inside])
        return LabelBoxes(np.concatenate(numbers), np.concatenate(corners))

    def _decode(
        self, sot: int, frames: range, aims: Aims, tiling: Tiling | None, continues: bool
    ) -> float:
        wanted = self._parts(sot, frames, aims)
        if not len(wanted.frames):
            return 0.0
        ends = int(wanted.frames.min()), int(wanted.frames.max())
        untiled = self._untileds(sot, *ends, continues)
        if tiling is None:
            return untiled
        lengths = self._lengths(sot, frames, aims, tiling.layout)
        if not set(np.flatnonzero(lengths).tolist()) <= set(tiling.tiles):
            return untiled
        work = self._work(sot, tiling.layout, lengths)
        return self._reading.seconds(self._rates.tiles.seconds(work), untiled)

    def _lengths(self, sot: int, frames: range, aims: Aims, layout: TileLayout) -> Ints:
        """Return the frames that a query decodes of each tile."""
        first = self._video.sots[sot].start
        if frames.step != 1:
            wanted = self._parts(sot, frames, aims)
            return decoded_frames(layout, wanted.corners, wanted.frames, first)
        lengths = np.zeros(layout.count, np.int64)
        start, stop = frames.start - first, frames.stop - first
        for aim in aims:
            if isinstance(aim, Rect):
                lengths[layout.covering(aim)] = stop
            elif aim in self._video.seen[sot]:
                reach = self._reaches(sot, aim, layout)
                np.maximum(lengths, reach.lengths(start, stop), out=lengths)
        return lengths

    def _reach(self, sot: int, label: str, layout: TileLayout) -> DecodeExtent:
        seen = self._video.seen[sot][label]
        return DecodeExtent(layout, seen.corners, seen.frames, self._video.sots[sot])

    def _goes_on(self, sot: int, query: Query) -> bool:
        """Return whether the query read the previous SOT as well."""
        if self._video.original is None or sot == 0:
            return False
        return len(self._parts(sot - 1, self._within(sot - 1, query), query.aims).frames) > 0

    def _untiled_seconds(self, sot: int, first: int, last: int, continues: bool) -> float:
        return self._rates.original.seconds(self._original(sot, first, last, continues))

    def _original(self, sot: int, first: int, last: int, continues: bool) -> DecodeWork:
        """Return the work of decoding frames of a SOT without tiles."""
        start, original = self._video.sots[sot].start, self._video.original
        if original is None:
            return self._work(sot, self._untiled, np.array([last - start + 1]))
        return original.work(first, last, start if continues else None)

    def _work(self, sot: int, layout: TileLayout, lengths: Ints) -> DecodeWork:
        """Return the work of decoding `lengths` frames of each tile from the start of a SOT."""
        return DecodeWork(
            starts=int(np.count_nonzero(lengths)),
            pictures=int(lengths.sum()),
            pixels=int(lengths @ self._areas(layout)),
            bytes=float(lengths @ self._sizes(sot, layout)) / len(self._video.sots[sot]),
        )

    def _bytes(self, sot: int, layout: TileLayout) -> Sizes:
        """Return the bytes of each tile of a whole SOT."""
        density, video = self._rates.density, self._video
        boxes = [seen.corners for seen in video.seen[sot].values()]
        x1, y1, x2, y2 = np.concatenate([np.zeros((0, 4), np.int64), *boxes]).T
        across = _shared_pixels(layout.column_edges, x1, x2)
        down = _shared_pixels(layout.row_edges, y1, y2)
        moving = (down.T @ across).ravel()
        still = tile_areas(layout) * len(video.sots[sot])
        sizes: Sizes = density.still * still + density.moving * np.minimum(moving, still)
        return sizes

    def _within(self, sot: int, query: Query) -> range:
        """Return the frames of a query within a SOT, with their step."""
        return frames_within(self._video.sots[sot], query.frames)


def _shared_pixels(edges: tuple[int, ...], start: Ints, end: Ints) -> Ints:
    """Return (ranges, parts): pixels of each range in each of the parts between `edges`."""
    bounds = np.array(edges)
    inside = np.minimum(end[:, None], bounds[1:]) - np.maximum(start[:, None], bounds[:-1])
    shared: Ints = inside.clip(0)
    return shared


CachedBytes = Callable[[tuple[int, int], range], int]
"""Returns how many of some frames are already encoded in a size, in the view cache."""


class SizeWorld:
    """A `World` with queries for sizes, and tilings that are whole pictures in one size.

    A rendition serves its own size and integer fractions of it.
    """

    def __init__(
        self,
        video: VideoProfile,
        rates: CostRates,
        reading: ReadStrategy | None = None,
        cached_bytes: CachedBytes | None = None,
        gops: Sequence[int | None] = (None,),
    ) -> None:
        """`video` must have an original; its boxes are not used.

        `cached_bytes` returns cached frames that need not be encoded; None: there are none.  `gops`
        are the GOP lengths of renditions; with any but None, renditions in full size are possible,
        too.
        """
        assert video.original is not None
        self._original = video.original
        self._sots = video.sots
        self._starts = [frames.start for frames in video.sots]
        self._rates = rates
        self._reading = reading or CheapestSource()
        self._cached_bytes = cached_bytes or _no_cached_bytes
        self._full = video.width, video.height
        self._gops = tuple(gops)
        self._has_short_gops = any(gop is not None for gop in gops)
        self._spent = lru_cache(_CACHED_EXTENTS)(self._work_of_frames)
        self.tiling_around = lru_cache(maxsize=None)(self._tiling_around)
        self.making_cost = lru_cache(maxsize=None)(self._making_cost)

    @property
    def sots(self) -> range:
        return range(len(self._sots))

    @property
    def gops(self) -> Sequence[int | None]:
        return self._gops

    def touched(self, query: Query) -> list[int]:
        if not query.frames:
            return []
        first = max(0, bisect_right(self._starts, query.frames[0]) - 1)
        last = bisect_right(self._starts, query.frames[-1])
        return [sot for sot in range(first, last) if frames_within(self._sots[sot], query.frames)]

    def labels(self, sot: int) -> Aims:
        return frozenset()

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        frames = frames_within(self._sots[sot], query.frames)
        if not frames:
            return 0.0
        start = self._sots[sot].start
        continues = sot > 0 and bool(frames_within(self._sots[sot - 1], query.frames))
        since = start if continues else None
        untiled = self._rates.original.seconds(self._original.work(frames[0], frames[-1], since))
        if tiling is None or not self._can_serve(tiling, query.aims):
            return untiled
        work = self._spent(tiling, sot, frames)
        return self._reading.seconds(self._rates.tiles.seconds(work), untiled)

    def rendition_seconds(self, sot: int, query: Query, tiling: Tiling) -> float:
        """Return the seconds of a query in a SOT from a rendition, even if that costs more."""
        frames = frames_within(self._sots[sot], query.frames)
        return self._rates.tiles.seconds(self._spent(tiling, sot, frames)) if frames else 0.0

    def _can_serve(self, tiling: Tiling, aims: Aims) -> bool:
        # In full size, one GOP in each SOT is left to the tiles of `BoxWorld`.
        if tiling.gop is None and _picture(tiling.layout) == self._full:
            return False
        return _serves(tiling.layout, aims)

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        frames = frames_within(self._sots[sot], query.frames)
        if not frames:
            return 0
        served = tiling is not None and _serves(tiling.layout, query.aims)
        width, height = _picture(tiling.layout) if tiling is not None and served else self._full
        return (frames[-1] - self._sots[sot].start + 1) * width * height

    def verification_seconds(self, layout: TileLayout, frames: range) -> float:
        """Return the seconds of decoding the frames of a rendition once, along with the original.

        The decoder of the original is already positioned there.  This is all that cached frames
        need.
        """
        original = self._original.work(frames[0], frames[-1], frames[0] or None)
        rendition = self._work(layout, None, len(frames))
        return self._rates.original.seconds(original) + self._rates.tiles.seconds(rendition)

    def _tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        """Return the smallest rendition that serves all aims, or None."""
        for size in sorted(_sizes(aims), key=lambda size: size.width):
            layout = TileLayout.untiled(size.width, size.height)
            if _serves(layout, aims) and (self._has_short_gops or _picture(layout) != self._full):
                return Tiling.whole(layout)
        return None

    def _making_cost(self, sot: int, tiling: Tiling) -> TilingCost:
        frames = self._sots[sot]
        work = self._work(tiling.layout, tiling.gop, len(frames))
        seconds = self._rates.original.seconds(self._original.work(frames[0], frames[-1], None))
        seconds += self._rates.encode.seconds(1, work.pixels, work.bytes)
        share = self._cached_bytes(_picture(tiling.layout), frames) / len(frames)
        seconds += share * (self.verification_seconds(tiling.layout, frames) - seconds)
        return TilingCost(seconds, work.bytes)

    def _work(self, layout: TileLayout, gop: int | None, frames: int) -> DecodeWork:
        """Return the work of decoding a whole SOT."""
        width, height = _picture(layout)
        pixels = frames * width * height
        size = self._density * pixels
        if gop is not None:
            size *= self._gop_bytes(frames, gop) / self._gop_bytes(frames, frames)
        return DecodeWork(1, frames, pixels, size)

    def _work_of_frames(self, tiling: Tiling, sot: int, frames: range) -> DecodeWork:
        """Return the work of decoding some frames of a SOT, from key pictures on."""
        width, height = _picture(tiling.layout)
        mine, key_bytes = self._sots[sot], self._rates.key_bytes
        gop = tiling.gop or len(mine)
        spans = decoded_spans(frames, mine.start, gop)
        pictures = sum(map(len, spans))
        other = self._density * width * height * len(mine) / self._gop_bytes(len(mine), len(mine))
        size = other * sum(gop_bytes(len(span), gop, key_bytes) for span in spans)
        return DecodeWork(len(spans), pictures, pictures * width * height, size)

    @property
    def _density(self) -> float:
        return self._rates.density.still + self._rates.density.moving

    def _gop_bytes(self, frames: int, gop: int) -> float:
        return gop_bytes(frames, gop, self._rates.key_bytes)


def _no_cached_bytes(size: tuple[int, int], frames: range) -> int:
    return 0


def _picture(layout: TileLayout) -> tuple[int, int]:
    return layout.width, layout.height


def _serves(layout: TileLayout, aims: Aims) -> bool:
    return all(
        layout.width % size.width == 0 and layout.height % size.height == 0 for size in _sizes(aims)
    )


def _sizes(aims: Aims) -> list[ScaledFrames]:
    return [aim for aim in aims if isinstance(aim, ScaledFrames)]
