"""Scans: the pixels of what was seen in a video, in the order of its frames.

The predicate on labels is answered by the index, so only the tiles are decoded that hold a box
that is wanted, up to the last frame that has one (TASM calls it semantic predicate pushdown).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from vfsd.accounting import ScanPart, Timing, account_of_scan
from vfsd.codecs import VideoFrame
from vfsd.codecs.compose import Composer
from vfsd.codecs.pixels import PixelConverter, in_display
from vfsd.detections import Detection, DetectionColumns
from vfsd.errors import IntegrityError, UsageError
from vfsd.frames import Pixels
from vfsd.frametable import FrameTable
from vfsd.labelexpr import Labels, clauses_of
from vfsd.model import PhysicalVideo, Read, Segment
from vfsd.plan import Tiles
from vfsd.reader import on_grid
from vfsd.tileplan import Costs, original_work, tile_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import Work
from vfsd.tools import Tools

_CHUNK = 64
"""As many frames without tiles are decoded at a time."""


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
class Seen:
    """A run of frames on each of which something wanted was seen."""

    frames: range
    seconds: tuple[float, float]  #: from the first frame's appearance to the last one's end
    labels: tuple[str, ...]
    boxes: int


@dataclass(frozen=True, slots=True)
class _Want:
    """An area of a frame, and what was seen in it."""

    frame: int
    rect: Rect  #: of the displayed frame
    detections: tuple[Detection, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What a run of wanted areas is read from; no segment: the original."""

    segment: Segment | None
    wants: tuple[_Want, ...]  #: by frame


class Scan:
    """What was seen, and how to have its pixels.  Made by `Video.scan`; may be used repeatedly.

    Everything comes in the order of frames, and within a frame in the order in which the boxes
    came into the index.  Results are made ahead of who takes them, by all cores, for a few
    seconds of video at most.
    """

    def __init__(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        tools: Tools,
        tiles: Tiles | None,
        columns: DetectionColumns,
        *,
        padding: int,
        digest: str,
        labels: Labels | None,
    ) -> None:
        """`columns` are the boxes that are wanted, of the bytes with that digest; `labels` is what
        they were asked for by."""
        self._digest = digest
        self._labels = None
        if labels is not None:
            self._labels = tuple(tuple(sorted(clause)) for clause in clauses_of(labels))
        self._physical = physical
        self._table = table
        self._tools = tools
        self._tiles = tiles
        self._padding = padding
        self._owner = _owners(len(table), tiles)
        media = physical.media
        self._columns = columns.clipped(media.display_width, media.display_height).in_order()

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self._columns)

    # -- forms

    def crops(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """The pixels of each box, scaled to `size` (width, height) if that is given."""
        return self._read(self._boxes(), size, format)

    def batches(
        self, count: int, size: tuple[int, int], *, format: str = "rgb24"
    ) -> Iterator[Batch]:
        """Crops scaled to one size, `count` at a time; the last batch may have fewer.

        Raises `UsageError`.
        """
        if count < 1:
            raise UsageError(f"a batch of {count} holds nothing")
        crops = self.crops(size=size, format=format)
        while some := tuple(islice(crops, count)):
            yield Batch(np.stack([crop.data for crop in some]), some)

    def frames(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """Whole frames on which something was seen, once each."""
        return self._read(self._whole_frames(), size, format)

    def tiles(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """The tiles, as they are stored, that hold what was seen; of untiled frames all of it."""
        return self._read(self._touched_tiles(), size, format)

    def regions(
        self, *, size: tuple[int, int] | None = None, format: str = "rgb24"
    ) -> Iterator[Crop]:
        """Of every frame of a second in which something was seen: the area around all of that.

        For detectors that have to look at every frame, but not at all of it.
        """
        return self._read(self._areas(), size, format)

    def spans(self, *, gap: int = 0) -> list[Seen]:
        """Runs of frames on which something was seen, up to `gap` frames without it included."""
        runs: list[tuple[int, int]] = []  # rows, half-open
        frames = self._columns.frames
        start = 0
        for row in range(1, len(frames) + 1):
            if row == len(frames) or frames[row] - frames[row - 1] > gap + 1:
                runs.append((start, row))
                start = row
        return [self._seen(low, high) for low, high in runs]

    # -- what is wanted

    def _boxes(self) -> list[_Want]:
        return [
            _Want(detection.frame, self._rect(detection), (detection,))
            for detection in self._columns
        ]

    def _whole_frames(self) -> list[_Want]:
        full = self._physical.media.frame_rect
        return [_Want(frame, full, seen) for frame, seen in self._by_frame()]

    def _touched_tiles(self) -> list[_Want]:
        media = self._physical.media
        wants = []
        for frame, seen in self._by_frame():
            segment = self._segment_of(frame)
            if segment is None:
                wants.append(_Want(frame, media.frame_rect, seen))
                continue
            for cell in segment.cells:
                shown = in_display(cell.rect, media)
                inside = tuple(one for one in seen if self._rect(one).intersection(shown))
                if inside:
                    wants.append(_Want(frame, shown, inside))
        return wants

    def _areas(self) -> list[_Want]:
        """Of each segment, or each chunk of frames without one, with something in it."""
        by_frame = dict(self._by_frame())
        wants: list[_Want] = []
        done = 0
        for frame in sorted(by_frame):
            if frame < done:
                continue
            frames = self._together(frame)
            inside = [one for each in frames for one in by_frame.get(each, ())]
            area = Rect.around(self._rect(one) for one in inside)
            wants += [_Want(each, area, by_frame.get(each, ())) for each in frames]
            done = frames.stop
        return wants

    def _together(self, frame: int) -> range:
        """The frames that are read together with that one: those of its segment, if it has one."""
        segment = self._segment_of(frame)
        if segment is not None:
            return segment.frames
        stop = frame + 1
        while stop < min(frame + _CHUNK, len(self._table)) and self._segment_of(stop) is None:
            stop += 1
        return range(frame, stop)

    def _by_frame(self) -> Iterator[tuple[int, tuple[Detection, ...]]]:
        rows = list(self._columns)
        start = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or rows[end].frame != rows[start].frame:
                yield rows[start].frame, tuple(rows[start:end])
                start = end

    def _rect(self, detection: Detection) -> Rect:
        media = self._physical.media
        inside = detection.rect(media.display_width, media.display_height)
        assert inside is not None  # what lies outside was left out
        pad = self._padding
        return Rect(
            max(0, inside.x1 - pad),
            max(0, inside.y1 - pad),
            min(media.display_width, inside.x2 + pad),
            min(media.display_height, inside.y2 + pad),
        )

    def _seen(self, low: int, high: int) -> Seen:
        rows = self._columns.select(slice(low, high))
        frames = range(int(rows.frames[0]), int(rows.frames[-1]) + 1)
        last = self._table.frame(frames[-1])
        start = self._table.frame_pts(frames.start)
        return Seen(
            frames,
            (self._seconds(start), self._seconds(last.pts + last.duration)),
            tuple(sorted({str(label) for label in rows.labels})),
            len(rows),
        )

    def _seconds(self, pts: int) -> float:
        return (pts - self._physical.first_pts) * float(self._physical.time_base)

    # -- reading

    def _read(
        self, wants: Sequence[_Want], size: tuple[int, int] | None, pixel_format: str
    ) -> Iterator[Crop]:
        sources = self._sources(wants, pixel_format, size)
        ahead = os.cpu_count() or 1
        workers = self._tools.pool.workers()

        def submit(source: _Source) -> tuple[_Source, Future[list[Crop]]]:
            return source, workers.submit(self._crops_of, source, size, pixel_format)

        at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
        taken: list[_Source] = []
        running = deque(submit(source) for source in islice(sources, ahead + 1))
        try:
            while running:
                source, future = running.popleft()
                crops = future.result()
                running.extend(submit(source) for source in islice(sources, 1))
                taken.append(source)
                for crop in crops:
                    seconds += time.perf_counter() - resumed
                    yield crop
                    resumed = time.perf_counter()
        finally:
            for _, future in running:
                future.cancel()
            if taken:
                self._note(taken, size, pixel_format, Timing(at_ns, seconds))

    def _note(
        self,
        taken: Sequence[_Source],
        size: tuple[int, int] | None,
        pixel_format: str,
        timing: Timing,
    ) -> None:
        """Remember what was read until nobody wanted more."""

        def account() -> Read:
            parts = [self._part(source, size, pixel_format) for source in taken]
            costs = self._tiles.costs if self._tiles is not None else Costs()
            return account_of_scan(
                parts, self._physical, self._table, costs, size, self._labels, timing
            )

        self._tools.reads.note(self._digest, account)

    def _part(self, source: _Source, size: tuple[int, int] | None, pixel_format: str) -> ScanPart:
        tiles = 0
        work = Work()
        if source.segment is not None:
            touched = self._tile_frames(source.segment, source.wants, pixel_format, size)
            tiles, work = len(touched), _work(source.segment, touched)
        return ScanPart(
            source.segment,
            tiles,
            work,
            tuple(sorted({want.frame for want in source.wants})),
            len(source.wants),
            Rect.around(want.rect for want in source.wants),
        )

    def _sources(
        self, wants: Sequence[_Want], pixel_format: str, size: tuple[int, int] | None
    ) -> Iterator[_Source]:
        """Runs of wants that are read from one place: a segment, or the original."""
        start = 0
        while start < len(wants):
            segment = self._segment_of(wants[start].frame)
            end = start
            while end < len(wants) and (
                wants[end].frame < segment.end_frame
                if segment is not None
                else wants[end].frame < wants[start].frame + _CHUNK
                and self._segment_of(wants[end].frame) is None
            ):
                end += 1
            run = tuple(wants[start:end])
            if segment is not None and not self._pays(segment, run, pixel_format, size):
                segment = None
            yield _Source(segment, run)
            start = end

    def _segment_of(self, frame: int) -> Segment | None:
        """The newest segment with that frame whose tiles are good enough."""
        number = int(self._owner[frame])
        return None if self._tiles is None or number < 0 else self._tiles.segments[number]

    def _pays(
        self,
        segment: Segment,
        wants: Sequence[_Want],
        pixel_format: str,
        size: tuple[int, int] | None,
    ) -> bool:
        assert self._tiles is not None
        costs = self._tiles.costs
        work = _work(segment, self._tile_frames(segment, wants, pixel_format, size))
        seen = sorted({want.frame for want in wants})
        own = original_work(self._physical, self._table, seen)
        untiled = costs.of_original(self._physical).seconds(own)
        return costs.of_tiles(segment).seconds(work) < untiled

    def _tile_frames(
        self,
        segment: Segment,
        wants: Sequence[_Want],
        pixel_format: str,
        size: tuple[int, int] | None,
    ) -> dict[int, list[int]]:
        """For each tile that is touched, the frames on which it is."""
        found: dict[int, list[int]] = {}
        for want in wants:
            needed = self._converter(want.rect, pixel_format, size).needed
            for tile in segment.layout.covering(needed):
                frames = found.setdefault(tile, [])
                if not frames or frames[-1] != want.frame:
                    frames.append(want.frame)
        return found

    def _converter(
        self, rect: Rect, pixel_format: str, size: tuple[int, int] | None
    ) -> PixelConverter:
        scaled = None if size == (rect.width, rect.height) else size
        return PixelConverter(
            self._physical.media, pixel_format=pixel_format, region=rect, size=scaled
        )

    def _crops_of(
        self, source: _Source, size: tuple[int, int] | None, pixel_format: str
    ) -> list[Crop]:
        if source.segment is not None:
            try:
                return self._from_tiles(source.segment, source.wants, size, pixel_format)
            except (IntegrityError, FileNotFoundError):
                pass  # the original has it, too
        return self._from_original(source.wants, size, pixel_format)

    def _from_tiles(
        self,
        segment: Segment,
        wants: Sequence[_Want],
        size: tuple[int, int] | None,
        pixel_format: str,
    ) -> list[Crop]:
        streams = {
            tile: self._tools.packs.pictures(segment, tile, frames, self._tools.sources.note)
            for tile, frames in self._tile_frames(segment, wants, pixel_format, size).items()
        }
        shown: dict[int, VideoFrame] = {}
        crops = []
        before = -1
        media = self._physical.media
        for want in wants:
            if want.frame != before:
                shown.clear()  # pictures are ours until the next of their stream
                before = want.frame
            converter = self._converter(want.rect, pixel_format, size)
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

    def _from_original(
        self, wants: Sequence[_Want], size: tuple[int, int] | None, pixel_format: str
    ) -> list[Crop]:
        by_frame: dict[int, list[int]] = {}
        for place, want in enumerate(wants):
            by_frame.setdefault(want.frame, []).append(place)
        crops: dict[int, Crop] = {}
        for run in self._table.decode_runs(list(by_frame)):
            for frame, picture in self._tools.pool.pictures(self._physical, self._table, run):
                for place in by_frame[frame]:
                    want = wants[place]
                    data = self._converter(want.rect, pixel_format, size).convert(picture)
                    crops[place] = self._crop(want, data)
        return [crops[place] for place in range(len(wants))]

    def _crop(self, want: _Want, data: Pixels) -> Crop:
        seconds = self._seconds(self._table.frame_pts(want.frame))
        return Crop(data, want.frame, seconds, want.rect, want.detections)


def _owners(frames: int, tiles: Tiles | None) -> npt.NDArray[np.int32]:
    """For each frame the place, among the segments, of the one that a scan reads it from."""
    owner = np.full(frames, -1, np.int32)
    segments = enumerate(tiles.segments if tiles is not None else ())
    for number, segment in sorted(segments, key=lambda pair: pair[1].id):
        if tiles is not None and segment.psnr >= tiles.psnr:
            owner[segment.first_frame : segment.end_frame] = number
    return owner


def _work(segment: Segment, touched: Mapping[int, Sequence[int]]) -> Work:
    """Decoding tiles of a segment, each up to the last of its frames."""
    parts = (tile_work(segment, (tile,), frames[-1]) for tile, frames in touched.items())
    return sum(parts, Work())
