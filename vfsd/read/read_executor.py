"""Executes read plans.

`PlanExecutor` decodes every picture once and writes it to its place in the result.  `TileReader`
opens streams of tiles, and either composes them or converts each tile in place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.packet_decoder import packet_ranges
from vfsd.codecs.frames.to_array import FrameRegion, PixelConverter
from vfsd.codecs.frames.transforms import TileComposer
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import to_coded_rect, to_display_rect
from vfsd.core.model import Access, MediaInfo
from vfsd.core.pixel_array import Pixels
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.read.read_context import ReadContext
from vfsd.read.read_plan import ReadPlan, is_sequential
from vfsd.read.readahead import FrameFiller, InlineRun, PrefetchRun, ReadAhead
from vfsd.read.tile_planner import NeededRegion, TileRun
from vfsd.tiling import Rect

_ONE_REQUEST_BYTES = (4 << 20) - 2 * BLOCK_BYTES
"""A read of up to this size is one request, also without a prefetch: blocks are compared in
parts of 4 MiB."""
_GRID = 16
"""Tile edges are multiples of it."""


@dataclass(frozen=True, slots=True)
class TilePlacement:
    """One tile of a run and the position of its part of the region."""

    pictures: Generator[tuple[int, VideoFrame]]
    converter: PixelConverter
    rect: Rect  #: of the tile in the stored picture
    inner: tuple[slice, slice]  #: rows and columns of the result

    def put(self, picture: VideoFrame, data: Pixels) -> None:
        self.converter.convert(picture, data[self.inner], held=self.rect)


@dataclass(frozen=True, slots=True)
class _PlacingFiller:
    """A `FrameFiller` that converts each tile in its place."""

    placings: tuple[TilePlacement, ...]

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
class _ComposingFiller:
    """A `FrameFiller` that composes all tiles before the conversion."""

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


class TileReader:
    """Opens streams of tiles."""

    def __init__(self, tools: ReadContext) -> None:
        self._tools = tools

    def fillers(
        self, run: TileRun, frames: list[int], plan: ReadPlan, pixel_format: str
    ) -> Sequence[FrameFiller]:
        """Return fillers for pictures of `frames`; all of them together fill a picture."""
        converter = run_converter(plan, run, pixel_format)
        if not converter.is_local:
            return [
                _ComposingFiller(
                    self.composed(run, frames, converter.media, converter.needed), converter
                )
            ]
        return [
            _PlacingFiller(tuple(self.placings(run, tiles, frames, plan, pixel_format)))
            for tiles in split_by_work(run, self._tools.threads)
        ]

    def placings(
        self,
        run: TileRun,
        tiles: Sequence[int],
        frames: list[int],
        plan: ReadPlan,
        pixel_format: str,
    ) -> Iterator[TilePlacement]:
        """Yield a placement for each tile that shows a part of the region."""
        whole = run_converter(plan, run, pixel_format)
        media, region = whole.media, whole.region
        area = to_coded_rect(region, media)
        for tile in tiles:
            rect = run.segment.cell(tile).rect
            mine = area.intersection(rect)
            if mine is None:
                continue
            shown = to_display_rect(mine, media)
            inner = shown.moved(-region.x1, -region.y1)
            yield TilePlacement(
                self._pictures(run, tile, frames, media),
                PixelConverter(media, pixel_format=pixel_format, region=shown),
                rect,
                (slice(inner.y1, inner.y2), slice(inner.x1, inner.x2)),
            )

    def composed(
        self, run: TileRun, frames: list[int], media: MediaInfo, needed: Rect
    ) -> Generator[tuple[int, VideoFrame, Rect]]:
        """Yield (frame, picture, part) with the tiles of each frame composed to cover `needed`.

        `needed` refers to the segment's pictures.  `media` describes these or the original's.
        """
        cells = [run.segment.cell(tile) for tile in run.tiles]
        streams = [self._pictures(run, tile, frames, media) for tile in run.tiles]
        if len(cells) == 1:
            for frame, picture in streams[0]:
                yield frame, picture, cells[0].rect
            return
        composer = TileComposer(expand_to_grid(needed, *run.segment.picture))
        for together in zip(*streams, strict=True):
            for (_, picture), cell in zip(together, cells, strict=True):
                whole = composer.put(picture, cell.rect)
            yield together[0][0], whole, composer.area

    def _pictures(
        self, run: TileRun, tile: int, frames: list[int], media: MediaInfo
    ) -> Generator[tuple[int, VideoFrame]]:
        return self._tools.packs.pictures(
            run.segment, tile, frames, self._tools.tile_index.note, interlaced=media.interlaced
        )


def split_by_work(run: TileRun, pieces: int) -> list[tuple[int, ...]]:
    """Divide the tiles of a run into at most `pieces` lists of about equal work."""
    lists: list[list[int]] = [[] for _ in range(min(pieces, len(run.tiles)))]
    load = [0] * len(lists)
    sizes = [(run.segment.cell(tile).rect.area, tile) for tile in run.tiles]
    for area, tile in sorted(sizes, key=itemgetter(0), reverse=True):
        least = load.index(min(load))
        lists[least].append(tile)
        load[least] += area
    return [tuple(tiles) for tiles in lists]


def expand_to_grid(area: Rect, width: int, height: int) -> Rect:
    """Expand `area` of a picture of that size to the next tile edges."""
    return Rect(
        area.x1 // _GRID * _GRID,
        area.y1 // _GRID * _GRID,
        min(width, -(-area.x2 // _GRID) * _GRID),
        min(height, -(-area.y2 // _GRID) * _GRID),
    )


def run_converter(plan: ReadPlan, run: TileRun, pixel_format: str) -> PixelConverter:
    """Return the converter for pictures of a segment that `plan` uses."""
    converter = plan_converter(plan, pixel_format).for_scaled(*run.segment.picture)
    assert converter is not None
    return converter


def plan_converter(plan: ReadPlan, pixel_format: str) -> PixelConverter:
    """Return the converter for whole pictures of the original."""
    full = plan.physical.media.frame_rect
    return PixelConverter(
        plan.physical.media,
        pixel_format=pixel_format,
        region=None if plan.region == full else plan.region,
        size=None if plan.size == (plan.region.width, plan.region.height) else plan.size,
    )


Job = Callable[[], None]


class PlanExecutor:
    """Executes the plans of a video."""

    def __init__(self, table: FrameTable, tools: ReadContext) -> None:
        self._table = table
        self._tools = tools
        self._tiles = TileReader(tools)

    def execute(self, plan: ReadPlan, *, pixel_format: str = "rgb24", keep: bool = True) -> Pixels:
        """Return the pictures of `plan` along the first axis.

        Without `keep`, the pool does not keep the decoded pictures for later reads.

        Raises `IntegrityError` if a file does not yield a frame that its table lists, `OSError`.
        """
        form = plan_converter(plan, pixel_format)
        data = np.empty((len(plan.frames), *form.shape), form.dtype)
        result = _ResultBuffer(list(data), plan.frames)
        if not self._tools.parts.objects.is_local:
            self._prefetch(plan)
        jobs = [*self._original_jobs(plan, pixel_format, result, keep)]
        jobs += self._tile_jobs(plan, pixel_format, result, workers=self._tools.threads - len(jobs))
        if len(jobs) <= 1:
            for job in jobs:
                job()
        else:
            # Jobs are independent: each core takes one after the other.
            list(self._tools.pool.workers().map(lambda job: job(), jobs))
        return data

    def _prefetch(self, plan: ReadPlan) -> None:
        """Have everything fetched at once that the plan needs from a server."""
        self._tools.packs.prefetch((run.segment, run.tiles, run.frames) for run in plan.tiled)
        if plan.physical.access is Access.EXTENT and plan.contiguous is None:
            spans = [(run.first_packet, run.end_packet) for run in plan.runs]
            ranges = [one for span in spans for one in packet_ranges(self._table, *span)]
            if len(ranges) > 1 or sum(end - start for start, end in ranges) > _ONE_REQUEST_BYTES:
                self._tools.parts.originals.prefetch(plan.physical, ranges)

    def stream(
        self, plan: ReadPlan, *, pixel_format: str = "rgb24"
    ) -> Iterator[tuple[int, Pixels]]:
        """Yield (index in the result, picture) for a plan with ascending frames.

        Pictures from tiles are prefetched on all cores, see `ReadAhead`.
        """
        form = plan_converter(plan, pixel_format)
        stretches = (
            self._stretch(run, places, plan, pixel_format) for run, places in _runs_by_source(plan)
        )
        pool = self._tools.pool
        ahead = ReadAhead(stretches, form.shape, form.dtype, pool.workers(), pool.threads)
        yield from ahead.pictures()

    def _stretch(
        self,
        run: TileRun | None,
        places: Mapping[int, Sequence[int]],
        plan: ReadPlan,
        pixel_format: str,
    ) -> PrefetchRun | InlineRun:
        frames = list(places)
        if run is None:
            # Its decoder has threads of its own, and continues from the previous frames.
            return InlineRun(places, partial(self._converted, plan, frames, pixel_format))
        fillers = partial(self._tiles.fillers, run, frames, plan, pixel_format)
        return PrefetchRun(run.segment.object_key, places, fillers)

    def _converted(
        self, plan: ReadPlan, frames: list[int], pixel_format: str
    ) -> Generator[tuple[int, Pixels]]:
        converter = plan_converter(plan, pixel_format)
        with closing(self._from_original(plan, frames)) as decoded:
            for frame, picture in decoded:
                yield frame, converter.convert(picture)

    def pictures(
        self, plan: ReadPlan, needed: NeededRegion
    ) -> Iterator[tuple[list[int], VideoFrame, FrameRegion | None]]:
        """Yield (indices in the result, picture, part) for a plan with ascending frames.

        A picture is valid until the next iteration.  The part contains everything `needed`; None
        stands for all of the stored picture.
        """
        media = plan.physical.media
        for run, places in _runs_by_source(plan):
            if run is None:
                for frame, picture in self._from_original(plan, list(places)):
                    yield places[frame], picture, None
                continue
            size = run.segment.picture
            area = needed(*size)
            assert area is not None
            for frame, picture, rect in self._tiles.composed(run, list(places), media, area):
                yield places[frame], picture, FrameRegion(rect, size)

    def _original_jobs(
        self, plan: ReadPlan, pixel_format: str, result: _ResultBuffer, keep: bool
    ) -> Iterator[Job]:
        runs = plan.runs
        if plan.contiguous is not None:
            yield partial(self._stream_original, plan, pixel_format, result)
        elif len(runs) == 1:
            # Parallel runs have a core each; a single one has all cores.
            threads = self._tools.pool.threads_for(plan.physical.media)
            yield partial(self._decode_runs, plan, runs, pixel_format, result, threads, keep)
        else:
            workers = min(len(runs), self._tools.threads)
            for worker in range(workers):
                part = runs[worker::workers]
                yield partial(self._decode_runs, plan, part, pixel_format, result, 1, keep)

    def _decode_runs(
        self,
        plan: ReadPlan,
        runs: Sequence[DecodeRun],
        pixel_format: str,
        result: _ResultBuffer,
        threads: int,
        keep: bool,
    ) -> None:
        converter = plan_converter(plan, pixel_format)
        for run in runs:
            for frame, picture in self._tools.pool.pictures(
                plan.physical, self._table, run, threads=threads, keep=keep
            ):
                result.put(frame, picture, converter)

    def _stream_original(self, plan: ReadPlan, pixel_format: str, result: _ResultBuffer) -> None:
        assert plan.contiguous is not None
        converter = plan_converter(plan, pixel_format)
        with self._tools.pool.decoder(plan.physical, self._table) as decoder:
            for frame, picture in decoder.stream(
                plan.contiguous.start,
                plan.contiguous.stop,
                threads=self._tools.pool.threads_for(plan.physical.media),
            ):
                result.put(frame, picture, converter)

    def _from_original(
        self, plan: ReadPlan, frames: list[int]
    ) -> Generator[tuple[int, VideoFrame]]:
        with self._tools.pool.decoder(plan.physical, self._table) as decoder:
            if is_sequential(np.asarray(frames)):
                yield from decoder.stream(
                    frames[0],
                    frames[-1] + 1,
                    threads=self._tools.pool.threads_for(plan.physical.media),
                )
                return
            may_drain = not self._tools.parts.objects.is_local
            for run in self._table.decode_runs(frames):
                yield from decoder.decode(run, may_drain=may_drain)

    def _tile_jobs(
        self, plan: ReadPlan, pixel_format: str, result: _ResultBuffer, *, workers: int
    ) -> list[Job]:
        if not plan.tiled:
            return []
        # Each tile is converted by the job that decodes it.  If there are few segments, their tiles
        # are shared out so that every core is busy.
        pieces = 1 if len(plan.tiled) >= workers else -(-workers // len(plan.tiled))
        jobs: list[Job] = []
        for run in plan.tiled:
            if run_converter(plan, run, pixel_format).is_local:
                jobs += [
                    partial(self._place_tiles, run, tiles, plan, pixel_format, result)
                    for tiles in split_by_work(run, pieces)
                ]
            else:
                jobs.append(partial(self._compose_run, run, plan, pixel_format, result))
        return jobs

    def _place_tiles(
        self,
        run: TileRun,
        tiles: Sequence[int],
        plan: ReadPlan,
        pixel_format: str,
        result: _ResultBuffer,
    ) -> None:
        """Convert each tile's part of the region separately."""
        for placing in self._tiles.placings(run, tiles, list(run.frames), plan, pixel_format):
            for frame, picture in placing.pictures:
                for place in result.places[frame]:
                    placing.put(picture, result.data[place])

    def _compose_run(
        self, run: TileRun, plan: ReadPlan, pixel_format: str, result: _ResultBuffer
    ) -> None:
        converter = run_converter(plan, run, pixel_format)
        media, needed = converter.media, converter.needed
        for frame, picture, held in self._tiles.composed(run, list(run.frames), media, needed):
            result.put(frame, picture, converter, held)


class _ResultBuffer:
    """The pictures that a plan fills, and the indices of each frame."""

    def __init__(self, data: Sequence[Pixels], frames: Ints) -> None:
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
        """Convert a picture to the frame's first index, and copy it to the others."""
        first, *others = self.places[frame]
        converter.convert(picture, self.data[first], held=held)
        for other in others:
            self.data[other][...] = self.data[first]


def _runs_by_source(plan: ReadPlan) -> Iterator[tuple[TileRun | None, dict[int, list[int]]]]:
    """Yield (run, indices of each frame in the result) for ascending frames of one source each.

    The run is None for the original.
    """
    source = {frame: number for number, run in enumerate(plan.tiled) for frame in run.frames}
    frames = enumerate(plan.frames.tolist())
    for number, group in groupby(frames, lambda pair: source.get(pair[1], -1)):
        places: dict[int, list[int]] = {}
        for place, frame in group:
            places.setdefault(frame, []).append(place)
        yield (None if number < 0 else plan.tiled[number]), places
