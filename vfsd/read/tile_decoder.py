"""Pictures of tiles on their way into results: put together, or each part where it goes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.compose import Composer
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.core.frames import Pixels
from vfsd.core.model import MediaInfo
from vfsd.core.orientation import in_display, in_picture
from vfsd.read.context import Tools
from vfsd.read.plan import ReadPlan
from vfsd.read.readahead import Hand
from vfsd.read.tile_planner import TileRun
from vfsd.tiling import Rect

_GRID = 16
"""Edges of tiles lie on multiples of it."""


@dataclass(frozen=True, slots=True)
class Placing:
    """One tile of a run, and where its part of the region goes."""

    pictures: Generator[tuple[int, VideoFrame]]
    converter: PixelConverter
    rect: Rect  #: of the tile, in the stored picture
    inner: tuple[slice, slice]  #: rows and columns of the result

    def put(self, picture: VideoFrame, data: Pixels) -> None:
        self.converter.convert(picture, data[self.inner], held=self.rect)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A `Hand` that puts each tile where it goes."""

    placings: tuple[Placing, ...]

    def fill(self, pictures: Sequence[Pixels]) -> None:
        for placing in self.placings:
            for data in pictures:
                _, picture = next(placing.pictures)
                placing.put(picture, data)

    def finish(self) -> None:
        for placing in self.placings:
            next(placing.pictures, None)

    def close(self) -> None:
        for placing in self.placings:
            placing.pictures.close()


@dataclass(frozen=True, slots=True)
class _Whole:
    """A `Hand` that has all tiles put together first."""

    composed: Generator[tuple[int, VideoFrame, Rect]]
    converter: PixelConverter

    def fill(self, pictures: Sequence[Pixels]) -> None:
        for data in pictures:
            _, picture, held = next(self.composed)
            self.converter.convert(picture, data, held=held)

    def finish(self) -> None:
        next(self.composed, None)

    def close(self) -> None:
        self.composed.close()


class TileStreams:
    """Opens streams of tiles, with what a store keeps open."""

    def __init__(self, tools: Tools) -> None:
        self._threads = tools.pool.threads
        self._packs = tools.packs
        self._note = tools.sources.note

    def hands(
        self, run: TileRun, frames: list[int], plan: ReadPlan, pixel_format: str
    ) -> Sequence[Hand]:
        """What fills the next so many pictures of `frames`; together the hands fill them whole."""
        converter = run_converter(plan, run, pixel_format)
        if not converter.is_local:
            return [
                _Whole(self.composed(run, frames, converter.media, converter.needed), converter)
            ]
        return [
            _Parts(tuple(self.placings(run, tiles, frames, plan, pixel_format)))
            for tiles in shared_out(run, self._threads)
        ]

    def placings(
        self,
        run: TileRun,
        tiles: Sequence[int],
        frames: list[int],
        plan: ReadPlan,
        pixel_format: str,
    ) -> Iterator[Placing]:
        """Of each tile that shows a part of the region."""
        whole = run_converter(plan, run, pixel_format)
        media, region = whole.media, whole.region
        area = in_picture(region, media)
        for tile in tiles:
            rect = run.segment.cell(tile).rect
            mine = area.intersection(rect)
            if mine is None:
                continue
            shown = in_display(mine, media)
            inner = shown.moved(-region.x1, -region.y1)
            yield Placing(
                self._pictures(run, tile, frames, media),
                PixelConverter(media, pixel_format=pixel_format, region=shown),
                rect,
                (slice(inner.y1, inner.y2), slice(inner.x1, inner.x2)),
            )

    def composed(
        self, run: TileRun, frames: list[int], media: MediaInfo, needed: Rect
    ) -> Generator[tuple[int, VideoFrame, Rect]]:
        """Put the tiles of each frame together, so that `needed`, of the segment's pictures, is
        whole.  `media` is of these, or of the original's."""
        cells = [run.segment.cell(tile) for tile in run.tiles]
        streams = [self._pictures(run, tile, frames, media) for tile in run.tiles]
        if len(cells) == 1:
            for frame, picture in streams[0]:
                yield frame, picture, cells[0].rect
            return
        composer = Composer(on_grid(needed, *run.segment.picture))
        for together in zip(*streams, strict=True):
            for (_, picture), cell in zip(together, cells, strict=True):
                whole = composer.put(picture, cell.rect)
            yield together[0][0], whole, composer.area

    def _pictures(
        self, run: TileRun, tile: int, frames: list[int], media: MediaInfo
    ) -> Generator[tuple[int, VideoFrame]]:
        interlaced = media.interlaced
        return self._packs.pictures(run.segment, tile, frames, self._note, interlaced=interlaced)


def shared_out(run: TileRun, pieces: int) -> list[tuple[int, ...]]:
    """The tiles of a run in up to so many lists of about the same work."""
    lists: list[list[int]] = [[] for _ in range(min(pieces, len(run.tiles)))]
    load = [0] * len(lists)
    sizes = [(run.segment.cell(tile).rect.area, tile) for tile in run.tiles]
    for area, tile in sorted(sizes, key=itemgetter(0), reverse=True):
        least = load.index(min(load))
        lists[least].append(tile)
        load[least] += area
    return [tuple(tiles) for tiles in lists]


def on_grid(area: Rect, width: int, height: int) -> Rect:
    """`area`, of a picture of that size, and what lies between it and the next edges of tiles."""
    return Rect(
        area.x1 // _GRID * _GRID,
        area.y1 // _GRID * _GRID,
        min(width, -(-area.x2 // _GRID) * _GRID),
        min(height, -(-area.y2 // _GRID) * _GRID),
    )


def run_converter(plan: ReadPlan, run: TileRun, pixel_format: str) -> PixelConverter:
    """What makes results of the pictures of a segment that `plan` uses."""
    converter = plan_converter(plan, pixel_format).of_scaled(*run.segment.picture)
    assert converter is not None
    return converter


def plan_converter(plan: ReadPlan, pixel_format: str) -> PixelConverter:
    """What makes results of whole pictures of the original."""
    full = plan.physical.media.frame_rect
    return PixelConverter(
        plan.physical.media,
        pixel_format=pixel_format,
        region=None if plan.region == full else plan.region,
        size=None if plan.size == (plan.region.width, plan.region.height) else plan.size,
    )
