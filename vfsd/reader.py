"""Carrying out read plans: every picture decoded once, and put where it belongs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.compose import Composer
from vfsd.codecs.pixels import PixelConverter, in_display, in_picture
from vfsd.decoders import decoder_threads
from vfsd.framepages import Ints
from vfsd.frames import Pixels
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.plan import ReadPlan, is_stream
from vfsd.tileplan import TileRun
from vfsd.tiling import Rect
from vfsd.tools import Tools

_GRID = 16
"""Edges of tiles lie on multiples of it."""

Job = Callable[[], None]


class Reader:
    """Carries out plans for a video, with what a store keeps open."""

    def __init__(self, table: FrameTable, tools: Tools) -> None:
        self._table = table
        self._pool = tools.pool
        self._packs = tools.packs
        self._note = tools.sources.note

    def execute(self, plan: ReadPlan, *, pixel_format: str = "rgb24") -> Pixels:
        """The pictures of `plan`, one after the other along the first axis.

        Raises `IntegrityError` when a file does not yield a frame that it promises, `OSError`.
        """
        form = _converter(plan, pixel_format)
        result = _Result(np.empty((len(plan.frames), *form.shape), form.dtype), plan.frames)
        jobs = [*self._original_jobs(plan, pixel_format, result)]
        jobs += self._tile_jobs(plan, pixel_format, result, hands=_cores() - len(jobs))
        if len(jobs) <= 1:
            for job in jobs:
                job()
        else:
            # Jobs are independent: each core takes one after the other.
            list(self._pool.workers().map(lambda job: job(), jobs))
        return result.data

    def stream(
        self, plan: ReadPlan, *, pixel_format: str = "rgb24"
    ) -> Iterator[tuple[int, Pixels]]:
        """(place in the result, picture) one at a time, for a plan whose frames ascend.

        Takes the memory of one picture at a time.
        """
        converter = _converter(plan, pixel_format)
        for places, picture, held in self.pictures(plan, converter.needed):
            data = converter.convert(picture, held=held)
            for place in places:
                yield place, data

    def pictures(
        self, plan: ReadPlan, needed: Rect
    ) -> Iterator[tuple[list[int], VideoFrame, Rect | None]]:
        """(places in the result, picture, what it holds) for a plan whose frames ascend.

        A picture is the caller's until the next is asked for.  What it holds is a part of the
        stored picture with all of `needed`; None: the whole.
        """
        source = {frame: number for number, run in enumerate(plan.tiled) for frame in run.frames}
        frames = enumerate(plan.frames.tolist())
        for number, group in groupby(frames, lambda pair: source.get(pair[1], -1)):
            places: dict[int, list[int]] = {}
            for place, frame in group:
                places.setdefault(frame, []).append(place)
            if number < 0:
                for frame, picture in self._from_original(plan, list(places)):
                    yield places[frame], picture, None
                continue
            for frame, picture, held in self._composed(
                plan.tiled[number], list(places), plan, needed
            ):
                yield places[frame], picture, held

    # -- from the original

    def _original_jobs(self, plan: ReadPlan, pixel_format: str, result: _Result) -> Iterator[Job]:
        runs = plan.runs
        if plan.contiguous is not None:
            yield partial(self._stream_original, plan, pixel_format, result)
        elif len(runs) == 1:
            # Runs on their own have a core each; a single one has them all.
            threads = decoder_threads(plan.physical.media)
            yield partial(self._decode_runs, plan, runs, pixel_format, result, threads)
        else:
            hands = min(len(runs), _cores())
            for hand in range(hands):
                yield partial(self._decode_runs, plan, runs[hand::hands], pixel_format, result, 1)

    def _decode_runs(
        self,
        plan: ReadPlan,
        runs: Sequence[DecodeRun],
        pixel_format: str,
        result: _Result,
        threads: int,
    ) -> None:
        converter = _converter(plan, pixel_format)
        for run in runs:
            for frame, picture in self._pool.pictures(
                plan.physical, self._table, run, threads=threads
            ):
                result.put(frame, picture, converter)

    def _stream_original(self, plan: ReadPlan, pixel_format: str, result: _Result) -> None:
        assert plan.contiguous is not None
        converter = _converter(plan, pixel_format)
        with self._pool.decoder(plan.physical, self._table) as decoder:
            for frame, picture in decoder.stream(
                plan.contiguous.start,
                plan.contiguous.stop,
                threads=decoder_threads(plan.physical.media),
            ):
                result.put(frame, picture, converter)

    def _from_original(self, plan: ReadPlan, frames: list[int]) -> Iterator[tuple[int, VideoFrame]]:
        with self._pool.decoder(plan.physical, self._table) as decoder:
            if is_stream(np.asarray(frames)):
                yield from decoder.stream(
                    frames[0], frames[-1] + 1, threads=decoder_threads(plan.physical.media)
                )
                return
            for run in self._table.decode_runs(frames):
                yield from decoder.decode(run)

    # -- from tiles

    def _tile_jobs(
        self, plan: ReadPlan, pixel_format: str, result: _Result, *, hands: int
    ) -> list[Job]:
        if not plan.tiled:
            return []
        if not _converter(plan, pixel_format).is_local:
            return [
                partial(self._compose_run, run, plan, pixel_format, result) for run in plan.tiled
            ]
        # Each tile is converted where it comes from a decoder.  Few segments are shared out by
        # tiles, so that every core has something to do.
        pieces = 1 if len(plan.tiled) >= hands else -(-hands // len(plan.tiled))
        return [
            partial(self._place_tiles, run, tiles, plan, pixel_format, result)
            for run in plan.tiled
            for tiles in _shared_out(run, pieces)
        ]

    def _place_tiles(
        self,
        run: TileRun,
        tiles: Sequence[int],
        plan: ReadPlan,
        pixel_format: str,
        result: _Result,
    ) -> None:
        """Convert each tile's part of the region by itself."""
        media = plan.physical.media
        area = in_picture(plan.region, media)
        for tile in tiles:
            rect = run.segment.cells[tile].rect
            mine = area.intersection(rect)
            if mine is None:
                continue
            shown = in_display(mine, media)
            converter = PixelConverter(media, pixel_format=pixel_format, region=shown)
            inner = shown.moved(-plan.region.x1, -plan.region.y1)
            rows, columns = slice(inner.y1, inner.y2), slice(inner.x1, inner.x2)
            for frame, picture in self._packs.pictures(run.segment, tile, run.frames, self._note):
                for place in result.places[frame]:
                    converter.convert(picture, result.data[place, rows, columns], held=rect)

    def _compose_run(
        self, run: TileRun, plan: ReadPlan, pixel_format: str, result: _Result
    ) -> None:
        converter = _converter(plan, pixel_format)
        for frame, picture, held in self._composed(run, list(run.frames), plan, converter.needed):
            result.put(frame, picture, converter, held)

    def _composed(
        self, run: TileRun, frames: list[int], plan: ReadPlan, needed: Rect
    ) -> Iterator[tuple[int, VideoFrame, Rect]]:
        """Put the tiles of each frame together, so that `needed` is whole."""
        cells = [run.segment.cells[tile] for tile in run.tiles]
        streams = [
            self._packs.pictures(run.segment, tile, frames, self._note) for tile in run.tiles
        ]
        if len(cells) == 1:
            for frame, picture in streams[0]:
                yield frame, picture, cells[0].rect
            return
        media = plan.physical.media
        composer = Composer(_on_grid(needed, media.width, media.height))
        for together in zip(*streams, strict=True):
            for (_, picture), cell in zip(together, cells, strict=True):
                whole = composer.put(picture, cell.rect)
            yield together[0][0], whole, composer.area


class _Result:
    """The array that a plan fills, and where each frame goes."""

    def __init__(self, data: Pixels, frames: Ints) -> None:
        self.data = data
        self.places: dict[int, list[int]] = {}
        for place, frame in enumerate(frames.tolist()):
            self.places.setdefault(frame, []).append(place)

    def put(
        self,
        frame: int,
        picture: VideoFrame,
        converter: PixelConverter,
        held: Rect | None = None,
    ) -> None:
        """Convert a picture to the frame's first place, and copy that to the others."""
        first, *others = self.places[frame]
        converter.convert(picture, self.data[first], held=held)
        for other in others:
            self.data[other] = self.data[first]


def _shared_out(run: TileRun, pieces: int) -> list[tuple[int, ...]]:
    """The tiles of a run in up to so many lists of about the same work."""
    lists: list[list[int]] = [[] for _ in range(min(pieces, len(run.tiles)))]
    load = [0] * len(lists)
    sizes = [(run.segment.cells[tile].rect.area, tile) for tile in run.tiles]
    for area, tile in sorted(sizes, key=itemgetter(0), reverse=True):
        least = load.index(min(load))
        lists[least].append(tile)
        load[least] += area
    return [tuple(tiles) for tiles in lists]


def _on_grid(area: Rect, width: int, height: int) -> Rect:
    return Rect(
        area.x1 // _GRID * _GRID,
        area.y1 // _GRID * _GRID,
        min(width, -(-area.x2 // _GRID) * _GRID),
        min(height, -(-area.y2 // _GRID) * _GRID),
    )


def _cores() -> int:
    return os.cpu_count() or 1


def _converter(plan: ReadPlan, pixel_format: str) -> PixelConverter:
    full = plan.physical.media.frame_rect
    return PixelConverter(
        plan.physical.media,
        pixel_format=pixel_format,
        region=None if plan.region == full else plan.region,
        size=None if plan.size == (plan.region.width, plan.region.height) else plan.size,
    )
