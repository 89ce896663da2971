"""Reads regions of frames for scans.

`CropReader` takes each region from tiles if they are cheaper and good enough, and from the original
otherwise.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.frames.transforms import TileComposer
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import Crop, CropRequest
from vfsd.core.model import LogicalVideo, MediaInfo, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.core.process_control import OwnerProcess
from vfsd.core.view_request import Size, checked_size, resolve_size, scaled_size
from vfsd.errors import DamagedFileError, IntegrityError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import expand_to_grid
from vfsd.read.read_log import ReadTiming, ScanPart, ScanPurpose, describe_scan
from vfsd.read.read_plan import AvailableTiles, ReadOutput
from vfsd.read.tile_planner import DecodeCosts, IsGoodEnough, is_worth_it, original_work, tile_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import DecodeWork

_log = logging.getLogger(__name__)

_CHUNK_FRAMES = 64
"""Frames without tiles are decoded in chunks of this size."""
_MAX_CONVERTERS = 32
"""Each converter holds at most one picture of its region."""


@dataclass(frozen=True, slots=True)
class _TileGroup:
    """The tiles that a run of requested regions touches, up to a second of video.

    A frame is read from the original with all its regions if some region is not covered by stored
    tiles of sufficient quality.
    """

    segment: Segment
    tiles: Mapping[Rect, tuple[int, ...]]  #: that cover each region
    frames: Mapping[int, Sequence[int]]  #: that each tile is decoded for, ascending
    rest: tuple[int, ...]  #: frames that are read from the original, ascending

    @classmethod
    def by(
        cls,
        wants: Sequence[CropRequest],
        segment: Segment,
        converters: _ConverterCache,
        good_for: Callable[[Rect], IsGoodEnough],
    ) -> _TileGroup:
        """Group the tiles for `wants`; `good_for` returns the test for tiles of a region."""
        tiles: dict[Rect, tuple[int, ...]] = {}
        useless: set[Rect] = set()
        rest: dict[int, None] = {}
        for want in wants:
            mine = tiles.get(want.rect)
            if mine is None:
                needed = converters.of(want.rect).needed
                mine = tiles[want.rect] = tuple(segment.layout.covering(needed))
                good = good_for(want.rect)
                if not segment.holds(mine) or not good(segment, mine):
                    useless.add(want.rect)
            if want.rect in useless:
                rest[want.frame] = None
        frames: dict[int, list[int]] = {}
        for want in wants:
            for tile in tiles[want.rect] if want.frame not in rest else ():
                seen = frames.setdefault(tile, [])
                if not seen or seen[-1] != want.frame:
                    seen.append(want.frame)
        return cls(segment, tiles, frames, tuple(rest))

    @property
    def work(self) -> DecodeWork:
        """The work of decoding each tile up to the last of its frames."""
        parts = (tile_work(self.segment, (tile,), seen) for tile, seen in self.frames.items())
        return sum(parts, DecodeWork())


@dataclass(frozen=True, slots=True)
class _CropForm:
    """The form of the results."""

    media: MediaInfo
    size: Size | None
    pixel_format: str

    def converter(self, rect: Rect) -> PixelConverter:
        size = self._size_of(rect)
        scaled = None if size == (rect.width, rect.height) else size
        return PixelConverter(self.media, pixel_format=self.pixel_format, region=rect, size=scaled)

    def result(self, rect: Rect) -> ReadOutput:
        """Return the form of the result for a region of the displayed frame."""
        return ReadOutput(self.media, rect, self._size_of(rect), self.pixel_format)

    def _size_of(self, rect: Rect) -> tuple[int, int]:
        sides = rect.width, rect.height
        return sides if self.size is None else resolve_size(self.size, *sides)


class _ConverterCache:
    """Converters by region; consecutive frames often request the same regions.  Not thread-safe."""

    def __init__(self, form: _CropForm) -> None:
        self._form = form
        self._kept: dict[Rect, PixelConverter] = {}

    def of(self, rect: Rect) -> PixelConverter:
        """Return the converter for a region of the displayed frame."""
        found = self._kept.get(rect)
        if found is None:
            if len(self._kept) == _MAX_CONVERTERS:
                self._kept.clear()
            found = self._kept[rect] = self._form.converter(rect)
        return found


class CropReader:
    """Reads regions of frames of one video, and logs the purpose of the scan."""

    def __init__(
        self,
        video: LogicalVideo,
        table: FrameTable,
        tools: ReadContext,
        tiles: AvailableTiles | None,
        purpose: ScanPurpose,
    ) -> None:
        self._video = video
        self._digest = video.digest
        self._physical = video.original
        self._purpose = purpose
        self.table = table
        self._tools = tools
        self._tiles = tiles
        media = video.original.media
        self._owner = _segment_of_each_frame(len(table), (media.width, media.height), tiles)

    def __reduce__(self) -> tuple[Callable[..., CropReader], tuple[object, ...]]:
        # A frame table is pages of the catalog, which the other process reads itself.
        return _reopened, (self._video, self._tools, self._tiles, self._purpose)

    def of_frames(self) -> CropReader:
        """Return a reader for whole frames, without the labels and region that chose them."""
        return CropReader(self._video, self.table, self._tools, self._tiles, ScanPurpose())

    def seconds(self, pts: int) -> float:
        """Convert a pts to seconds on the video's timeline."""
        return float((pts - self._physical.first_pts) * self._physical.time_base)

    def read(
        self,
        wants: Iterable[CropRequest],
        size: Size | None,
        pixel_format: str,
        *,
        by_gop: bool = False,
    ) -> Iterator[Crop]:
        """Yield the requested regions in the given order, which must be by frame, scaled to `size`
        if given.

        Results are prefetched on all cores, for a few seconds of video.  With `by_gop`, each core
        takes whole GOPs of the original, so that sparse frames of a long GOP decode it once.
        """
        size = None if size is None else checked_size(size)
        one_size = size if isinstance(size, tuple) and all(size) else None
        if one_size is not None:
            one_size = scaled_size(one_size)
        form = _CropForm(self._physical.media, size, pixel_format)
        runs = self._runs(wants, by_gop)
        pool = self._tools.pool
        workers = pool.workers()
        origin = OwnerProcess()

        def submit(run: Sequence[CropRequest]) -> Future[tuple[list[Crop], ScanPart]]:
            return workers.submit(self._read_run, run, form)

        at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
        taken: list[ScanPart] = []
        running = deque(submit(run) for run in islice(runs, pool.threads + 1))
        try:
            while running:
                crops, part = running.popleft().result()
                running.extend(submit(run) for run in islice(runs, 1))
                taken.append(part)
                for crop in crops:
                    seconds += time.perf_counter() - resumed
                    yield crop
                    origin.require_same_process("a read")
                    resumed = time.perf_counter()
        finally:
            # A future has a lock, which another thread of the parent may have held at the fork.
            for future in running if not origin.is_parent else ():
                future.cancel()
            if taken:
                self._note(taken, one_size, ReadTiming(at_ns, seconds))

    def _note(
        self, taken: Sequence[ScanPart], size: tuple[int, int] | None, timing: ReadTiming
    ) -> None:
        """Log what was read up to the point where the reader stopped."""
        costs = self._tiles.costs if self._tiles is not None else DecodeCosts()
        self._tools.read_log.note(
            self._digest,
            lambda: describe_scan(
                taken, self._physical, self.table, costs, size, self._purpose, timing
            ),
        )

    def segment_of(self, frame: int) -> Segment | None:
        """Return the newest segment of that frame with sufficient luma, or None for the
        original.
        """
        number = int(self._owner[frame])
        return None if self._tiles is None or number < 0 else self._tiles.segments[number]

    def _runs(self, wants: Iterable[CropRequest], by_gop: bool) -> Iterator[Sequence[CropRequest]]:
        """Group requests that are read together: in one segment, or in a GOP or a chunk of frames
        without tiles.
        """
        keys = self.table.keyframes() if by_gop else np.empty(0, np.int64)

        def place(want: CropRequest) -> int:
            owner = int(self._owner[want.frame])
            if owner >= 0:
                return owner
            if by_gop:
                return -1 - int(np.searchsorted(keys, want.frame, "right"))
            return -1 - want.frame // _CHUNK_FRAMES

        return (tuple(run) for _, run in groupby(wants, place))

    def _read_run(self, run: Sequence[CropRequest], form: _CropForm) -> tuple[list[Crop], ScanPart]:
        converters = _ConverterCache(form)
        frames = tuple(sorted({want.frame for want in run}))
        segment = self.segment_of(frames[0])
        found = None
        if segment is not None:
            found = _TileGroup.by(run, segment, converters, partial(self._good_for, form))
        touched = found if found is not None and self._pays(found, frames) else None
        part = ScanPart(
            None if touched is None else touched.segment,
            0 if touched is None else len(touched.frames),
            DecodeWork() if touched is None else touched.work,
            frames,
            frames if touched is None else touched.rest,
            len(run),
            Rect.around(want.rect for want in run),
        )
        if touched is not None:
            try:
                return self._from_both(run, touched, converters), part
            except (IntegrityError, FileNotFoundError) as error:
                _log.warning("a scan is served from the original, not from tiles: %s", error)
                self._tools.drop_damaged_tiles(error)
        try:
            return self._from_original(run, converters), part
        except DamagedFileError:
            if found is None or found.rest:
                raise
        return self._from_tiles(run, found, converters), part

    def _good_for(self, form: _CropForm, rect: Rect) -> IsGoodEnough:
        assert self._tiles is not None
        return self._tiles.good_for(form.result(rect), self._physical)

    def _pays(self, touched: _TileGroup, frames: Sequence[int]) -> bool:
        """Return whether tiles cost less than the part of the original that they replace."""
        if not touched.frames:
            return False
        assert self._tiles is not None
        lost = self._tiles.unreadable
        if any(one.start <= frames[-1] and frames[0] < one.stop for one in lost):
            return True
        costs = self._tiles.costs
        own = costs.of_original(self._physical)
        whole = original_work(self._physical, self.table, frames)
        rest = original_work(self._physical, self.table, touched.rest)
        together = max(map(len, touched.tiles.values()))
        return is_worth_it(
            costs.seconds_of_tiles(touched.segment, touched.work, together=together),
            own.seconds(whole) - own.seconds(rest),
        )

    def _from_both(
        self, run: Sequence[CropRequest], touched: _TileGroup, converters: _ConverterCache
    ) -> list[Crop]:
        if not touched.rest:
            return self._from_tiles(run, touched, converters)
        left = frozenset(touched.rest)
        stored = [want for want in run if want.frame not in left]
        others = [want for want in run if want.frame in left]
        tiled = iter(self._from_tiles(stored, touched, converters))
        original = iter(self._from_original(others, converters))
        return [next(original if want.frame in left else tiled) for want in run]

    def _from_tiles(
        self, run: Sequence[CropRequest], touched: _TileGroup, converters: _ConverterCache
    ) -> list[Crop]:
        segment = touched.segment
        streams = {
            tile: self._tools.packs.pictures(
                segment,
                tile,
                frames,
                self._tools.tile_index.note,
                interlaced=self._physical.media.interlaced,
            )
            for tile, frames in touched.frames.items()
        }
        shown: dict[int, VideoFrame] = {}
        crops = []
        before = -1
        for want in run:
            if want.frame != before:
                shown.clear()  # pictures are valid until the next of their stream
                before = want.frame
            tiles = touched.tiles[want.rect]
            for tile in tiles:
                if tile not in shown:
                    shown[tile] = next(streams[tile])[1]
            pictures = [(shown[tile], segment.cell(tile).rect) for tile in tiles]
            crops.append(self._crop(want, self._put_together(pictures, converters.of(want.rect))))
        for stream in streams.values():
            next(stream, None)  # the end of the stream leaves the decoder reusable
        return crops

    def _put_together(
        self, pictures: Sequence[tuple[VideoFrame, Rect]], converter: PixelConverter
    ) -> Pixels:
        """Return the converter's result from tiles and their positions in the picture."""
        if len(pictures) == 1:
            ((picture, rect),) = pictures
            return converter.convert(picture, held=rect)
        media = self._physical.media
        composer = TileComposer(expand_to_grid(converter.needed, media.width, media.height))
        for picture, rect in pictures:
            whole = composer.put(picture, rect)
        return converter.convert(whole, held=composer.area)

    def _from_original(self, run: Sequence[CropRequest], converters: _ConverterCache) -> list[Crop]:
        by_frame: dict[int, list[int]] = {}
        for place, want in enumerate(run):
            by_frame.setdefault(want.frame, []).append(place)
        crops: dict[int, Crop] = {}
        for together in self.table.decode_runs(list(by_frame)):
            for frame, picture in self._tools.pool.pictures(self._physical, self.table, together):
                for place in by_frame[frame]:
                    want = run[place]
                    crops[place] = self._crop(want, converters.of(want.rect).convert(picture))
        return [crops[place] for place in range(len(run))]

    def _crop(self, want: CropRequest, data: Pixels) -> Crop:
        seconds = self.seconds(self.table.frame_pts(want.frame))
        return Crop(data, want.frame, seconds, want.rect, want.detections)


def _segment_of_each_frame(
    frames: int, picture: tuple[int, int], tiles: AvailableTiles | None
) -> npt.NDArray[np.int32]:
    """Return, for each frame, the index of the segment that a scan reads it from, or -1.

    Only segments with pictures of that size count.
    """
    owner = np.full(frames, -1, np.int32)
    segments = enumerate(tiles.segments if tiles is not None else ())
    for number, segment in sorted(segments, key=lambda pair: pair[1].id):
        if tiles is not None and segment.psnr >= tiles.luma and segment.picture == picture:
            owner[segment.first_frame : segment.end_frame] = number
    return owner


def _reopened(
    video: LogicalVideo, tools: ReadContext, tiles: AvailableTiles | None, purpose: ScanPurpose
) -> CropReader:
    """Return the reader of an unpickled scan."""
    table = tools.parts.catalog.frame_table(video.original)
    return CropReader(video, table, tools, tiles, purpose)
