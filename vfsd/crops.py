"""Areas of frames, from tiles where those are cheaper and good enough, or from the original.

What scans and full scans want is a list of areas, by frame; here are their pixels.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from vfsd.accounting import ScanPart, Timing, account_of_scan
from vfsd.codecs import VideoFrame
from vfsd.codecs.compose import Composer
from vfsd.codecs.pixels import PixelConverter
from vfsd.detections import Detection
from vfsd.errors import IntegrityError, UsageError
from vfsd.frames import Pixels
from vfsd.frametable import FrameTable
from vfsd.labelexpr import Labels, clauses_of
from vfsd.model import LogicalVideo, MediaInfo, Segment
from vfsd.plan import Tiles
from vfsd.reader import on_grid
from vfsd.tileplan import Costs, original_work, tile_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import Work
from vfsd.tools import Tools

CHUNK = 64
"""As many frames without tiles are decoded at a time."""
_KEPT = 32
"""Converters, each with a picture of its area at most."""


@dataclass(frozen=True, eq=False, slots=True)
class Crop:
    """The pixels of one box."""

    data: Pixels  #: H x W x C
    frame: int  #: from 0, in display order
    seconds: float  #: on the video's timeline
    rect: Rect  #: of the displayed frame: the whole pixels that the box touches
    detections: tuple[Detection, ...]  #: what was seen there


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Crops of one size."""

    data: Pixels  #: N x H x W x C
    crops: tuple[Crop, ...]  #: N; their `data` are those of the batch


@dataclass(frozen=True, slots=True)
class Want:
    """An area of a frame, and what was seen in it."""

    frame: int
    rect: Rect  #: of the displayed frame
    detections: tuple[Detection, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What a run of wanted areas is read from; no segment: the original."""

    wants: tuple[Want, ...]  #: by frame
    segment: Segment | None = None
    frames: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Of each tile that is touched, those on which it is."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What areas are turned into."""

    media: MediaInfo
    size: tuple[int, int] | None
    pixel_format: str

    def converter(self, rect: Rect) -> PixelConverter:
        scaled = None if self.size == (rect.width, rect.height) else self.size
        return PixelConverter(self.media, pixel_format=self.pixel_format, region=rect, size=scaled)


class _Converters:
    """Those that were used lately: frames that follow each other often want the same areas.

    Not thread-safe.
    """

    def __init__(self, form: _Form) -> None:
        self._form = form
        self._kept: dict[Rect, PixelConverter] = {}

    def of(self, rect: Rect) -> PixelConverter:
        """The converter for an area of the displayed frame."""
        found = self._kept.get(rect)
        if found is None:
            if len(self._kept) == _KEPT:
                self._kept.clear()
            found = self._kept[rect] = self._form.converter(rect)
        return found


class CropReader:
    """The pixels of areas of one video, which are wanted for the sake of `labels`, or of none."""

    def __init__(
        self,
        video: LogicalVideo,
        table: FrameTable,
        tools: Tools,
        tiles: Tiles | None,
        labels: Labels | None = None,
    ) -> None:
        self._digest = video.digest
        self._physical = video.original
        self._labels = None
        if labels is not None:
            self._labels = tuple(tuple(sorted(clause)) for clause in clauses_of(labels))
        self._table = table
        self._tools = tools
        self._tiles = tiles
        self._owner = _owners(len(table), tiles)

    def seconds(self, pts: int) -> float:
        """A time stamp on the video's timeline."""
        return (pts - self._physical.first_pts) * float(self._physical.time_base)

    def read(
        self, wants: Iterable[Want], size: tuple[int, int] | None, pixel_format: str
    ) -> Iterator[Crop]:
        """What is wanted, in that order, which is by frame; scaled to `size` if that is given.

        Results are made ahead of who takes them, by all cores, for a few seconds of video.
        """
        form = _Form(self._physical.media, size, pixel_format)
        sources = self._sources(wants, form)
        ahead = os.cpu_count() or 1
        workers = self._tools.pool.workers()

        def submit(source: _Source) -> tuple[_Source, Future[list[Crop]]]:
            return source, workers.submit(self._crops_of, source, form)

        at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
        taken: list[ScanPart] = []
        running = deque(submit(source) for source in islice(sources, ahead + 1))
        try:
            while running:
                source, future = running.popleft()
                crops = future.result()
                running.extend(submit(source) for source in islice(sources, 1))
                taken.append(_part(source))
                for crop in crops:
                    seconds += time.perf_counter() - resumed
                    yield crop
                    resumed = time.perf_counter()
        finally:
            for _, future in running:
                future.cancel()
            if taken:
                self._note(taken, size, Timing(at_ns, seconds))

    def _note(
        self, taken: Sequence[ScanPart], size: tuple[int, int] | None, timing: Timing
    ) -> None:
        """Remember what was read until nobody wanted more."""
        costs = self._tiles.costs if self._tiles is not None else Costs()
        self._tools.reads.note(
            self._digest,
            lambda: account_of_scan(
                taken, self._physical, self._table, costs, size, self._labels, timing
            ),
        )

    def _sources(self, wants: Iterable[Want], form: _Form) -> Iterator[_Source]:
        """Runs of wants that are read from one place: a segment, or the original."""

        def place(want: Want) -> int:
            owner = int(self._owner[want.frame])
            return owner if owner >= 0 else -1 - want.frame // CHUNK

        converters = _Converters(form)
        for _, together in groupby(wants, place):
            run = tuple(together)
            segment = self.segment_of(run[0].frame)
            if segment is not None:
                frames = _frames_of_tiles(segment, run, converters)
                if self._pays(segment, run, frames):
                    yield _Source(run, segment, frames)
                    continue
            yield _Source(run)

    def segment_of(self, frame: int) -> Segment | None:
        """The newest segment with that frame whose tiles are good enough; none: the original."""
        number = int(self._owner[frame])
        return None if self._tiles is None or number < 0 else self._tiles.segments[number]

    def _pays(
        self, segment: Segment, wants: Sequence[Want], frames: Mapping[int, Sequence[int]]
    ) -> bool:
        assert self._tiles is not None
        costs = self._tiles.costs
        work = _work(segment, frames)
        whole = sorted({want.frame for want in wants})
        untiled = original_work(self._physical, self._table, whole)
        return costs.of_tiles(segment).seconds(work) < costs.of_original(self._physical).seconds(
            untiled
        )

    def _crops_of(self, source: _Source, form: _Form) -> list[Crop]:
        converters = _Converters(form)
        if source.segment is not None:
            try:
                return self._from_tiles(source.segment, source, converters)
            except (IntegrityError, FileNotFoundError):
                pass  # the original has it, too
        return self._from_original(source.wants, converters)

    def _from_tiles(self, segment: Segment, source: _Source, converters: _Converters) -> list[Crop]:
        streams = {
            tile: self._tools.packs.pictures(segment, tile, frames, self._tools.sources.note)
            for tile, frames in source.frames.items()
        }
        shown: dict[int, VideoFrame] = {}
        crops = []
        before = -1
        media = self._physical.media
        for want in source.wants:
            if want.frame != before:
                shown.clear()  # pictures are ours until the next of their stream
                before = want.frame
            converter = converters.of(want.rect)
            tiles = segment.layout.covering(converter.needed)
            for tile in tiles:
                if tile not in shown:
                    shown[tile] = next(streams[tile])[1]
            if len(tiles) == 1:
                data = converter.convert(shown[tiles[0]], held=segment.cells[tiles[0]].rect)
            else:
                composer = Composer(on_grid(converter.needed, media.width, media.height))
                for tile in tiles:
                    whole = composer.put(shown[tile], segment.cells[tile].rect)
                data = converter.convert(whole, held=composer.area)
            crops.append(self._crop(want, data))
        for stream in streams.values():
            next(stream, None)  # so that it ends by itself, and its decoder stays warm
        return crops

    def _from_original(self, wants: Sequence[Want], converters: _Converters) -> list[Crop]:
        by_frame: dict[int, list[int]] = {}
        for place, want in enumerate(wants):
            by_frame.setdefault(want.frame, []).append(place)
        crops: dict[int, Crop] = {}
        for run in self._table.decode_runs(list(by_frame)):
            for frame, picture in self._tools.pool.pictures(self._physical, self._table, run):
                for place in by_frame[frame]:
                    want = wants[place]
                    crops[place] = self._crop(want, converters.of(want.rect).convert(picture))
        return [crops[place] for place in range(len(wants))]

    def _crop(self, want: Want, data: Pixels) -> Crop:
        seconds = self.seconds(self._table.frame_pts(want.frame))
        return Crop(data, want.frame, seconds, want.rect, want.detections)


def _part(source: _Source) -> ScanPart:
    """What has been read, without the pixels."""
    return ScanPart(
        source.segment,
        len(source.frames),
        Work() if source.segment is None else _work(source.segment, source.frames),
        tuple(sorted({want.frame for want in source.wants})),
        len(source.wants),
        Rect.around(want.rect for want in source.wants),
    )


def _work(segment: Segment, frames: Mapping[int, Sequence[int]]) -> Work:
    """Decoding tiles of a segment, each up to the last of its frames."""
    parts = (tile_work(segment, (tile,), seen[-1]) for tile, seen in frames.items())
    return sum(parts, Work())


def _frames_of_tiles(
    segment: Segment, wants: Sequence[Want], converters: _Converters
) -> dict[int, list[int]]:
    """Of each tile that is touched, the frames on which it is, ascending."""
    found: dict[int, list[int]] = {}
    for want in wants:
        for tile in segment.layout.covering(converters.of(want.rect).needed):
            frames = found.setdefault(tile, [])
            if not frames or frames[-1] != want.frame:
                frames.append(want.frame)
    return found


def padded(detection: Detection, media: MediaInfo, padding: int) -> Rect:
    """The whole pixels that a box touches, with `padding` more on every side that are there.

    The box has to be in the displayed frame, at least in part.
    """
    width, height = media.display_width, media.display_height
    inside = detection.rect(width, height)
    if inside is None:
        raise UsageError(f"{detection} is outside the frame")
    return Rect(
        max(0, inside.x1 - padding),
        max(0, inside.y1 - padding),
        min(width, inside.x2 + padding),
        min(height, inside.y2 + padding),
    )


def batched(crops: Iterator[Crop], count: int) -> Iterator[Batch]:
    """Crops of one size, `count` at a time; the last batch may have fewer.  Raises `UsageError`."""
    if count < 1:
        raise UsageError(f"a batch of {count} holds nothing")
    while some := tuple(islice(crops, count)):
        yield Batch(np.stack([crop.data for crop in some]), some)


def _owners(frames: int, tiles: Tiles | None) -> npt.NDArray[np.int32]:
    """For each frame the place, among the segments, of the one that a scan reads it from."""
    owner = np.full(frames, -1, np.int32)
    segments = enumerate(tiles.segments if tiles is not None else ())
    for number, segment in sorted(segments, key=lambda pair: pair[1].id):
        if tiles is not None and segment.psnr >= tiles.psnr:
            owner[segment.first_frame : segment.end_frame] = number
    return owner
