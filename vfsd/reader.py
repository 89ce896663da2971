"""Carrying out read plans: every picture decoded once, and put where it belongs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby, islice
from typing import Protocol

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.pixels import Held, PixelConverter
from vfsd.decoders import DecoderPool
from vfsd.framepages import Ints
from vfsd.frames import Pixels
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.plan import ReadPlan, is_stream
from vfsd.tileplan import Needed, TileRun
from vfsd.tilestreams import Hand, TileStreams, plan_converter, run_converter, shared_out
from vfsd.tiling import Rect
from vfsd.tools import Tools

_AHEAD_BYTES = 8 << 20
"""Of pictures that are read from tiles together, while those before are with the caller."""

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

        Takes the memory of a few pictures: tiles are read a little ahead, by all cores.  Those of
        the next run are begun while the one before is read, once the caller has gone on from its
        first picture.
        """
        flows = (self._flow(run, places, plan, pixel_format) for run, places in _by_source(plan))
        for flow, following in _with_next(flows):
            pictures = flow.pictures()
            yield from islice(pictures, 1)
            if following is not None:
                following.begin()
            yield from pictures

    def _flow(
        self,
        run: TileRun | None,
        places: Mapping[int, Sequence[int]],
        plan: ReadPlan,
        pixel_format: str,
    ) -> _Flow:
        if run is None:
            decoded = self._from_original(plan, list(places))
            return _OriginalFlow(decoded, places, plan_converter(plan, pixel_format))
        open_hands = partial(self._tiles.hands, run, list(places), plan, pixel_format)
        return _TileFlow(open_hands, places, plan_converter(plan, pixel_format), self._pool)

    def pictures(
        self, plan: ReadPlan, needed: Needed
    ) -> Iterator[tuple[list[int], VideoFrame, Held | None]]:
        """(places in the result, picture, what it holds) for a plan whose frames ascend.

        A picture is the caller's until the next is asked for.  What it holds is a part with all
        that is `needed`; None: all of the stored picture.
        """
        for run, places in _by_source(plan):
            if run is None:
                for frame, picture in self._from_original(plan, list(places)):
                    yield places[frame], picture, None
                continue
            size = run.segment.picture
            area = needed(*size)
            assert area is not None
            for frame, picture, rect in self._tiles.composed(run, list(places), area):
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

    def _from_original(self, plan: ReadPlan, frames: list[int]) -> Iterator[tuple[int, VideoFrame]]:
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
        for frame, picture, held in self._tiles.composed(run, list(run.frames), converter.needed):
            result.put(frame, picture, converter, held)


class _Flow(Protocol):
    """Pictures of a run of frames from one source."""

    def begin(self) -> None:
        """Its pictures will be wanted soon, and nobody waits for the first of them yet."""

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        """(place in the result, picture), for each place of each frame."""


class _OriginalFlow:
    """From the original."""

    def __init__(
        self,
        decoded: Iterator[tuple[int, VideoFrame]],
        places: Mapping[int, Sequence[int]],
        converter: PixelConverter,
    ) -> None:
        self._decoded = decoded
        self._places = places
        self._converter = converter

    def begin(self) -> None:
        """Nothing: its decoder may be at work on the frames before."""

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        for frame, picture in self._decoded:
            data = self._converter.convert(picture)
            for place in self._places[frame]:
                yield place, data


class _TileFlow:
    """From tiles: a part of the frames is filled by workers while the caller has the one before."""

    def __init__(
        self,
        open_hands: Callable[[], Sequence[Hand]],
        places: Mapping[int, Sequence[int]],
        form: PixelConverter,
        pool: DecoderPool,
    ) -> None:
        self._open_hands = open_hands
        self._places = places
        self._form = form
        self._workers = pool.workers()
        picture_bytes = math.prod(form.shape) * form.dtype.itemsize
        self._most = max(1, _AHEAD_BYTES // picture_bytes)
        self._hands: Sequence[Hand] = ()
        self._parts: Iterator[Sequence[int]] = iter(())
        self._ahead: deque[tuple[Sequence[int], list[Pixels], list[Future[None]]]] = deque()

    def begin(self) -> None:
        self._start(self._most)

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        if not self._ahead:
            self._start(1)
        while self._ahead:
            frames, pictures, jobs = self._ahead.popleft()
            for job in jobs:
                job.result()
            self._submit()
            for frame, data in zip(frames, pictures, strict=True):
                for place in self._places[frame]:
                    yield place, data
        for hand in self._hands:
            hand.finish()

    def _start(self, first: int) -> None:
        """Have the `first` frames filled."""
        self._hands = self._open_hands()
        self._parts = _growing(list(self._places), first, self._most)
        self._submit()

    def _submit(self) -> None:
        for frames in islice(self._parts, 1):
            # Each has memory of its own, so that the caller may keep some without the others.
            pictures = [np.empty(self._form.shape, self._form.dtype) for _ in frames]
            jobs = [self._workers.submit(hand.fill, pictures) for hand in self._hands]
            self._ahead.append((frames, pictures, jobs))


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


def _with_next(flows: Iterable[_Flow]) -> Iterator[tuple[_Flow, _Flow | None]]:
    """Each, and the one after it."""
    last: _Flow | None = None
    for flow in flows:
        if last is not None:
            yield last, flow
        last = flow
    if last is not None:
        yield last, None


def _growing(frames: Sequence[int], first: int, most: int) -> Iterator[Sequence[int]]:
    """All of them in parts, each twice as long as the one before, of `first` up to `most`: where
    somebody waits for them, the first is there soon."""
    start, count = 0, first
    while start < len(frames):
        yield frames[start : start + count]
        start, count = start + count, min(2 * count, most)
