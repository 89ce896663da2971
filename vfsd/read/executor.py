"""Carrying out read plans: every picture decoded once, and put where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.to_array import Held, PixelConverter
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Pixels
from vfsd.read.context import Tools
from vfsd.read.plan import ReadPlan, is_stream
from vfsd.read.readahead import Direct, ReadAhead, Stretch
from vfsd.read.tile_decoder import TileStreams, plan_converter, run_converter, shared_out
from vfsd.read.tile_planner import Needed, TileRun
from vfsd.tiling import Rect

Job = Callable[[], None]


class Reader:
    """Carries out plans for a video, with what a store keeps open."""

    def __init__(self, table: FrameTable, tools: Tools) -> None:
        self._table = table
        self._pool = tools.pool
        self._tiles = TileStreams(tools)

    def execute(self, plan: ReadPlan, *, pixel_format: str = "rgb24") -> Pixels:
        """The pictures of `plan`, one after the other along the first axis.

        Raises `IntegrityError` when a file does not yield a frame that it promises, `OSError`.
        """
        form = plan_converter(plan, pixel_format)
        data = np.empty((len(plan.frames), *form.shape), form.dtype)
        result = _Result(list(data), plan.frames)
        jobs = [*self._original_jobs(plan, pixel_format, result)]
        jobs += self._tile_jobs(plan, pixel_format, result, hands=self._pool.threads - len(jobs))
        if len(jobs) <= 1:
            for job in jobs:
                job()
        else:
            # Jobs are independent: each core takes one after the other.
            list(self._pool.workers().map(lambda job: job(), jobs))
        return data

    def stream(
        self, plan: ReadPlan, *, pixel_format: str = "rgb24"
    ) -> Iterator[tuple[int, Pixels]]:
        """(place in the result, picture) one at a time, for a plan whose frames ascend.

        Those that come from tiles are made ahead by all cores, as `ReadAhead` has it.
        """
        form = plan_converter(plan, pixel_format)
        stretches = (
            self._stretch(run, places, plan, pixel_format) for run, places in _by_source(plan)
        )
        pool = self._pool
        ahead = ReadAhead(stretches, form.shape, form.dtype, pool.workers(), pool.threads)
        yield from ahead.pictures()

    def _stretch(
        self,
        run: TileRun | None,
        places: Mapping[int, Sequence[int]],
        plan: ReadPlan,
        pixel_format: str,
    ) -> Stretch | Direct:
        frames = list(places)
        if run is None:
            # Its decoder has threads of its own, and is in the middle of the frames before.
            return Direct(places, partial(self._converted, plan, frames, pixel_format))
        hands = partial(self._tiles.hands, run, frames, plan, pixel_format)
        return Stretch(run.segment.object_key, places, hands)

    def _converted(
        self, plan: ReadPlan, frames: list[int], pixel_format: str
    ) -> Generator[tuple[int, Pixels]]:
        converter = plan_converter(plan, pixel_format)
        with closing(self._from_original(plan, frames)) as decoded:
            for frame, picture in decoded:
                yield frame, converter.convert(picture)

    def pictures(
        self, plan: ReadPlan, needed: Needed
    ) -> Iterator[tuple[list[int], VideoFrame, Held | None]]:
        """(places in the result, picture, what it holds) for a plan whose frames ascend.

        A picture is the caller's until the next is asked for.  What it holds is a part with all
        that is `needed`; None: all of the stored picture.
        """
        media = plan.physical.media
        for run, places in _by_source(plan):
            if run is None:
                for frame, picture in self._from_original(plan, list(places)):
                    yield places[frame], picture, None
                continue
            size = run.segment.picture
            area = needed(*size)
            assert area is not None
            for frame, picture, rect in self._tiles.composed(run, list(places), media, area):
                yield places[frame], picture, Held(rect, size)

    # -- from the original

    def _original_jobs(self, plan: ReadPlan, pixel_format: str, result: _Result) -> Iterator[Job]:
        runs = plan.runs
        if plan.contiguous is not None:
            yield partial(self._stream_original, plan, pixel_format, result)
        elif len(runs) == 1:
            # Runs on their own have a core each; a single one has them all.
            threads = self._pool.threads_for(plan.physical.media)
            yield partial(self._decode_runs, plan, runs, pixel_format, result, threads)
        else:
            hands = min(len(runs), self._pool.threads)
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
        converter = plan_converter(plan, pixel_format)
        for run in runs:
            for frame, picture in self._pool.pictures(
                plan.physical, self._table, run, threads=threads
            ):
                result.put(frame, picture, converter)

    def _stream_original(self, plan: ReadPlan, pixel_format: str, result: _Result) -> None:
        assert plan.contiguous is not None
        converter = plan_converter(plan, pixel_format)
        with self._pool.decoder(plan.physical, self._table) as decoder:
            for frame, picture in decoder.stream(
                plan.contiguous.start,
                plan.contiguous.stop,
                threads=self._pool.threads_for(plan.physical.media),
            ):
                result.put(frame, picture, converter)

    def _from_original(
        self, plan: ReadPlan, frames: list[int]
    ) -> Generator[tuple[int, VideoFrame]]:
        with self._pool.decoder(plan.physical, self._table) as decoder:
            if is_stream(np.asarray(frames)):
                yield from decoder.stream(
                    frames[0], frames[-1] + 1, threads=self._pool.threads_for(plan.physical.media)
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
        # Each tile is converted where it comes from a decoder.  Few segments are shared out by
        # tiles, so that every core has something to do.
        pieces = 1 if len(plan.tiled) >= hands else -(-hands // len(plan.tiled))
        jobs: list[Job] = []
        for run in plan.tiled:
            if run_converter(plan, run, pixel_format).is_local:
                jobs += [
                    partial(self._place_tiles, run, tiles, plan, pixel_format, result)
                    for tiles in shared_out(run, pieces)
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
        result: _Result,
    ) -> None:
        """Convert each tile's part of the region by itself."""
        for placing in self._tiles.placings(run, tiles, list(run.frames), plan, pixel_format):
            for frame, picture in placing.pictures:
                for place in result.places[frame]:
                    placing.put(picture, result.data[place])

    def _compose_run(
        self, run: TileRun, plan: ReadPlan, pixel_format: str, result: _Result
    ) -> None:
        converter = run_converter(plan, run, pixel_format)
        media, needed = converter.media, converter.needed
        for frame, picture, held in self._tiles.composed(run, list(run.frames), media, needed):
            result.put(frame, picture, converter, held)


class _Result:
    """The pictures that a plan fills, and where each frame goes."""

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
        """Convert a picture to the frame's first place, and copy that to the others."""
        first, *others = self.places[frame]
        converter.convert(picture, self.data[first], held=held)
        for other in others:
            self.data[other][...] = self.data[first]


def _by_source(plan: ReadPlan) -> Iterator[tuple[TileRun | None, dict[int, list[int]]]]:
    """For frames that ascend: each run of them from one source, None being the original, and
    where each of its frames goes in the result."""
    source = {frame: number for number, run in enumerate(plan.tiled) for frame in run.frames}
    frames = enumerate(plan.frames.tolist())
    for number, group in groupby(frames, lambda pair: source.get(pair[1], -1)):
        places: dict[int, list[int]] = {}
        for place, frame in group:
            places.setdefault(frame, []).append(place)
        yield (None if number < 0 else plan.tiled[number]), places
