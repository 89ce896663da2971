"""`Video`: one video of a store, as a sequence of frames."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, overload

import numpy as np

from vfsd.accounting import Timing, account_of_plan
from vfsd.around import ALPHA, Partition, layouts_around
from vfsd.array import Axis, VideoArray
from vfsd.codecs.examine import examine
from vfsd.codecs.pixels import needed_area
from vfsd.codecs.tiles import tile_codec
from vfsd.crops import CropReader
from vfsd.detections import DetectionColumns, Source
from vfsd.errors import IntegrityError, OutOfRangeError, UsageError
from vfsd.estimate import Estimate, estimate
from vfsd.explain import Explanation, explain
from vfsd.framepages import Ints
from vfsd.frames import Frame, Frames, Pixels
from vfsd.frametable import FrameTable
from vfsd.ingest import describe_original, pages
from vfsd.labelexpr import Labels
from vfsd.model import LogicalVideo, PhysicalVideo, Segment
from vfsd.parts import Parts
from vfsd.plan import ReadPlan, Tiles, make_plan, plan_frames, select_frames
from vfsd.reader import Reader
from vfsd.regionscan import Interest, RegionScan, interests_around
from vfsd.retile import OnProgress, PlannedSegment, TileSettings, retile
from vfsd.scan import Scan
from vfsd.tileplan import Costs
from vfsd.tiling import Rect, TileLayout, cut_sequences, fine, parse_layout
from vfsd.tools import Tools
from vfsd.units import Seconds, seconds
from vfsd.videodetect import VideoDetect
from vfsd.view import View

if TYPE_CHECKING:
    _IntSlice = slice[int | None, int | None, int | None]

_log = logging.getLogger(__name__)

Region = Rect | tuple[int, int, int, int]


class Video(VideoDetect):
    """One video of a store.  Frames are exact: `video[i]` is the i-th frame of a full decode.

    Indexing with an int gives a `Frame`, with a slice or a list of ints `Frames`; with a slice of
    times, or with several axes, a lazy `VideoArray`:

        video[7]                             frame 7
        video[-1], video[0:30:2]             the last frame; every second frame of the first 30
        video[[5, 900, 17]]                  three frames, each decoded once
        video[10.0:20.0, 100:400, 200:600]   ten seconds of a region, decoded when asked for

    Nothing is opened or scanned before the first frame is read.  Safe to use from several
    threads and after a fork; decoders belong to the store and are shared.
    """

    def __init__(
        self,
        parts: Parts,
        tools: Tools,
        info: LogicalVideo,
    ) -> None:
        self._parts = parts
        self._tools = tools
        self.info = info  #: what the catalog says
        self._table: FrameTable | None = None
        self._guard = threading.Lock()

    # -- what it is

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def original(self) -> PhysicalVideo:
        return self.info.original

    @property
    def width(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_width

    @property
    def height(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_height

    @property
    def duration(self) -> Fraction:
        """Seconds, from the first frame's appearance to the last one's end."""
        return self.original.duration

    @property
    def rate(self) -> Fraction:
        """Mean frames per second, from the frames' own times."""
        return Fraction(len(self)) / self.duration if self.duration else Fraction(0)

    @property
    def table(self) -> FrameTable:
        """Every frame's time and the place of its packet."""
        with self._guard:
            if self._table is None:
                self._table = self._parts.catalog.frame_table(self.original)
            return self._table

    @property
    def costs(self) -> Costs:
        """What decoding takes on this host, as planners know it now."""
        return self._tools.sources.of(self.info, 0.0).costs

    @property
    def keyframes(self) -> Ints:
        """Indices of the frames at which decoding can start, ascending."""
        return self.table.keyframes()

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self.original.frames

    def __repr__(self) -> str:
        return (
            f"<Video {self.name!r}: {len(self)} frames, {self.width}x{self.height}, "
            f"{float(self.duration):.2f} s, {self.original.media.codec}>"
        )

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing of its own is open; decoders go with the store."""

    # -- frames by number

    @overload
    def __getitem__(self, key: int) -> Frame: ...
    @overload
    def __getitem__(self, key: list[int] | Ints) -> Frames: ...
    @overload
    def __getitem__(self, key: _IntSlice) -> Frames: ...
    @overload
    def __getitem__(self, key: slice) -> VideoArray: ...
    @overload
    def __getitem__(self, key: tuple[Axis, ...]) -> VideoArray: ...

    def __getitem__(
        self, key: int | slice | list[int] | Ints | tuple[Axis, ...]
    ) -> Frame | Frames | VideoArray:
        if isinstance(key, (int, np.integer)):
            return self.frames([int(key)])[0]
        if isinstance(key, slice):
            if all(part is None or _is_int(part) for part in (key.start, key.stop, key.step)):
                return self.frames(range(*key.indices(len(self))))
            return self.array()[key]
        if isinstance(key, tuple):
            return self.array()[key]
        return self.frames(key)

    def __iter__(self) -> Iterator[Frame]:
        return self.iterate()

    def frames(
        self,
        indices: Sequence[int] | Ints,
        *,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Frames:
        """Frames by number, in the order asked for; negative numbers count from the end.

        Each is decoded once, whatever the order and however often it is asked for.  `psnr` is as
        for `read`.  Raises `OutOfRangeError`.
        """
        numbers = np.asarray(indices, dtype=np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise OutOfRangeError(
                f"frames {list(indices)[:5]} were asked for; the video has {len(self)}"
            )
        view = View(region=_rect(region), size=size)
        return self._read(
            lambda tiles: plan_frames(
                numbers, view, self.original, self.table, pixel_format=format, tiles=tiles
            ),
            pixel_format=format,
            psnr=psnr,
        )

    # -- frames by time

    def frame_at(self, time: Seconds, *, region: Region | None = None) -> Frame:
        """The frame that is on the screen at `time`, in seconds from the first frame."""
        return self.frames([self.index_at(time)], region=region)[0]

    def frames_at(self, times: Sequence[Seconds], *, region: Region | None = None) -> Frames:
        """The frames that are on the screen at `times`."""
        return self.frames([self.index_at(time) for time in times], region=region)

    # -- views

    def read(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | Sequence[int] | None = None,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Frames:
        """The frames that appear in ``span[0] <= t < span[1]`` seconds, or `frames` by number.

        `region` is (x1, y1, x2, y2) in pixels of the displayed frame, x2 and y2 exclusive; only
        its pixels are converted.  `size` is (width, height) of the result.  With `fps`, the frame
        that is on the screen at each multiple of ``1 / fps`` from the start of the span.
        `format` is rgb24, bgr24, gray, or a planar one (see `vfsd.codecs.pixels`).

        Where the video has been tiled, frames come from tiles if that is cheaper and these have at
        least `psnr` dB against the original (default: the store's setting; ``math.inf``: always
        from the original); the result's `psnr` tells what it has.

        Raises `OutOfRangeError` outside the timeline or the frame, `UsageError`.
        """
        if frames is not None and not isinstance(frames, (range, slice)):
            if span is not None or fps is not None:
                raise UsageError("give either a span of time or frames, not both")
            return self.frames(frames, region=region, size=size, format=format, psnr=psnr)
        view = self._view(span, frames, region, size, fps)
        return self._read(
            lambda tiles: make_plan(
                view, self.original, self.table, pixel_format=format, tiles=tiles
            ),
            pixel_format=format,
            psnr=psnr,
        )

    def iterate(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Iterator[Frame]:
        """What `read` gives, one frame at a time and in the memory of one."""
        view = self._view(span, frames, region, size, fps)
        return self._stream("api", view, format, psnr)

    def _looked_at(
        self, frames: range, size: tuple[int, int] | None, format: str, psnr: float
    ) -> Iterator[Frame]:
        view = self._view(None, frames, None, size, None)
        return self._stream("detect", view, format, psnr)

    def plan(self, view: View) -> ReadPlan:
        """What would be decoded to show `view`."""
        return make_plan(view, self.original, self.table, tiles=self._tiles(None))

    @overload
    def scan(
        self,
        labels: Labels | None = None,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> Scan: ...

    @overload
    def scan(
        self,
        *,
        roi: str | Region,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        source: str | Source | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> RegionScan: ...

    def scan(
        self,
        labels: Labels | None = None,
        *,
        roi: str | Region | None = None,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> Scan | RegionScan:
        """The pixels of what was seen: crops, tiles, frames or spans, in the order of frames.

        What is wanted is said as for `detections`; `padding` pixels are added around each box.
        `seen_in` is another variant of the same video (with the same frames, and of the same
        size) whose boxes are meant.  `psnr` is as for `read`.

        With `roi`, every frame is looked at, but only at its regions of interest: a region of all
        frames, or a label like "motion": wherever that was seen within the same second or so, and
        all of it in seconds of which no source of that label (or not `source`) has examined a
        frame.  Raises `UsageError`, `OutOfRangeError`.
        """
        other = seen_in or self
        if (len(other), other.width, other.height) != (len(self), self.width, self.height):
            raise UsageError(f"{other.name!r} has other frames than {self.name!r}")
        reader = CropReader(self.info, self.table, self._tools, self._tiles(psnr), labels)
        if roi is not None:
            if (labels, region, min_confidence, track) != (None, None, None, None):
                raise UsageError("a scan of regions of interest is of all that is in them")
            chosen = self.frames_of_span(span) if span is not None else frames
            interests = self._interests(other, roi, chosen, source, padding)
            return RegionScan(self.original, reader, interests)
        found = other.detections(
            labels,
            span=span,
            frames=frames,
            region=region,
            source=source,
            min_confidence=min_confidence,
            track=track,
        )
        return Scan(self.original, self.table, reader, found.columns(), padding=padding)

    def _interests(
        self,
        other: Video,
        roi: str | Region,
        chosen: range | None,
        source: str | Source | None,
        padding: int,
    ) -> list[Interest]:
        frames = range(len(self)) if chosen is None else chosen
        sequences = [run for run in self.sequences() if _common(run, frames)]
        if not isinstance(roi, str):
            rect = self._view(None, None, roi, None, None).region
            if rect is None or not self.original.media.frame_rect.contains(rect):
                raise OutOfRangeError(f"the region {roi} reaches outside the frame")
            nothing = DetectionColumns.of([], [], [])
            found = [Interest(run, (rect,), nothing) for run in sequences]
        else:
            seen = other.detections(roi, source=source).columns()
            sources = seen.sources if source is None else [source]
            examined = [one.frames for who in sources for one in other.examined(who)]
            media = self.original.media
            found = interests_around(seen, media, sequences, examined, padding=padding)
        return [dataclasses.replace(one, frames=_common(one.frames, frames)) for one in found]

    def explain(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Explanation:
        """What `read` with these arguments decodes, from where, and what it would without tiles.

        Nothing is decoded.  Raises `OutOfRangeError`, `UsageError`.
        """
        view = self._view(span, frames, region, size, fps)
        plan = make_plan(
            view, self.original, self.table, pixel_format=format, tiles=self._tiles(psnr)
        )
        return explain(plan, self.table, self.costs)

    # -- tiles

    def around(
        self,
        labels: Labels | None = None,
        *,
        partition: Partition = fine,
        span: tuple[Seconds, Seconds | None] | None = None,
        codec: str = "fast",
        padding: int = 0,
        alpha: float = ALPHA,
        seconds_each: float = 1.0,
    ) -> list[PlannedSegment]:
        """Layouts for `retile` around what was seen, where they pay (see `layouts_around`).

        `partition` is `vfsd.tiling.fine`, which tells objects apart, or `vfsd.tiling.coarse`.
        """
        media = self.original.media
        return layouts_around(
            self.detections(labels, span=span).columns(),
            media,
            self.sequences(span, seconds_each),
            tile_codec(codec, media).rules,
            partition,
            padding=padding,
            alpha=alpha,
        )

    def retile(
        self,
        layout: TileLayout | str | Sequence[PlannedSegment],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        settings: TileSettings | None = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store the pixels in tiles as well, so that reading a region decodes only what it needs.

        `layout` is one for `span` (default: all) of the video, as a value or a text such as
        ``uniform:2x3`` (rows x columns), or a list of frames with their layouts.  Layouts are of
        the stored picture, which is not turned upright yet.  Tiles that are there already stay;
        the new ones are returned.  `jobs` segments are encoded at a time.

        Raises `UsageError` for layouts or pictures that the tile codec does not take,
        `ExtraMissingError` where its encoder is not installed, `IntegrityError`, `NoSpaceError`;
        what was finished until then stays.
        """
        self._require_verified()
        settings = settings or TileSettings()
        media = self.original.media
        if isinstance(layout, str):
            codec = tile_codec(settings.codec, media)
            layout = parse_layout(layout, media.width, media.height, codec.rules)
        if isinstance(layout, TileLayout):
            layout = [PlannedSegment(frames, layout) for frames in self.sequences(span)]
        return retile(
            self._parts,
            self._tools.pool,
            self.info,
            self.table,
            layout,
            settings,
            jobs=jobs,
            on_progress=on_progress,
        )

    def estimate(
        self,
        planned: Sequence[PlannedSegment],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        settings: TileSettings | None = None,
    ) -> Estimate:
        """What reading a region would cost if `planned`, and no other tiles, had been made."""
        media = self.original.media
        view = self._view(span, frames, region, None, None)
        tiles = self._tiles(None)
        assert tiles is not None
        return estimate(
            select_frames(view, self.original, self.table),
            needed_area(media, "rgb24", view.region or media.frame_rect, None),
            self.original,
            self.table,
            planned,
            tiles.costs,
            settings=settings or TileSettings(),
            known=tiles.segments,
        )

    def sequences(
        self, span: tuple[Seconds, Seconds | None] | None = None, seconds_each: float = 1.0
    ) -> list[range]:
        """The runs of frames that share a layout (SOTs), those that have frames in `span`."""
        table = self.table
        times = (np.append(table.pts(), table.end_pts) - self.original.first_pts).astype(float)
        times *= float(self.original.time_base)
        found = cut_sequences(self.keyframes, np.maximum.accumulate(times), seconds_each)
        chosen = self.frames_in(span)
        return [
            frames for frames in found if frames.start < chosen.stop and chosen.start < frames.stop
        ]

    def frames_in(self, span: tuple[Seconds, Seconds | None] | None = None) -> range:
        """The frames that appear in a span of seconds; all of them without one.

        Raises `OutOfRangeError` where the span starts after the end.
        """
        if span is None:
            return range(len(self))
        chosen = select_frames(self._view(span, None, None, None, None), self.original, self.table)
        return range(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else range(0)

    def array(self) -> VideoArray:
        """The whole video as a lazy array of (time, rows, columns)."""
        return VideoArray(self.read, len(self), self.duration, (self.height, self.width))

    def _view(
        self,
        span: tuple[Seconds, Seconds | None] | None,
        frames: range | slice | None,
        region: Region | None,
        size: tuple[int, int] | None,
        fps: Seconds | None,
    ) -> View:
        chosen = None
        if isinstance(frames, slice):
            frames = range(*frames.indices(len(self)))
        if frames is not None:
            chosen = (frames.start, frames.stop, frames.step)
        exact = None
        if span is not None:
            start, stop = span
            exact = (seconds(start), None if stop is None else seconds(stop))
        return View(exact, chosen, _rect(region), size, None if fps is None else seconds(fps))

    # -- the work

    def _require_verified(self) -> None:
        """Tiles go by frame numbers, which must not change afterwards."""
        if not self.original.verified:
            self.verify()

    def _read(
        self,
        make: Callable[[Tiles | None], ReadPlan],
        *,
        pixel_format: str,
        psnr: float | None,
    ) -> Frames:
        at_ns, began = time.time_ns(), time.perf_counter()
        plan, data = self._carried_out(make, pixel_format, psnr)
        if len(plan.frames):
            self._note("api", lambda: plan, Timing(at_ns, time.perf_counter() - began))
        return dataclasses.replace(self._dress(data, plan.frames), psnr=plan.psnr)

    def _carried_out(
        self, make: Callable[[Tiles | None], ReadPlan], pixel_format: str, psnr: float | None
    ) -> tuple[ReadPlan, Pixels]:
        tiles = self._tiles(psnr)
        while True:
            plan = make(tiles)
            try:
                return plan, self._reader().execute(plan, pixel_format=pixel_format)
            except (IntegrityError, FileNotFoundError) as error:
                if plan.tiled:
                    self._warn_of_tiles(error)
                    tiles = None
                elif isinstance(error, FileNotFoundError) or not self._corrects_table():
                    raise

    def _stream(
        self, kind: str, view: View, pixel_format: str, psnr: float | None
    ) -> Iterator[Frame]:
        """One frame at a time; noted when the last has been taken, or no more are."""
        tiles = self._tiles(psnr)
        at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
        done = 0
        try:
            while True:
                plan = make_plan(view, self.original, self.table)
                rest = plan_frames(
                    plan.frames[done:],
                    view,
                    self.original,
                    self.table,
                    pixel_format=pixel_format,
                    tiles=tiles,
                )
                try:
                    for place, data in self._reader().stream(rest, pixel_format=pixel_format):
                        frame = self._dress(data[None], rest.frames[place : place + 1])[0]
                        done += 1
                        seconds += time.perf_counter() - resumed
                        yield frame
                        resumed = time.perf_counter()
                    return
                except (IntegrityError, FileNotFoundError) as error:
                    if tiles is not None and rest.tiled:
                        self._warn_of_tiles(error)
                        tiles = None
                    elif isinstance(error, FileNotFoundError) or not self._corrects_table():
                        raise
        finally:
            if done:
                numbers = plan.frames[:done]
                self._note(
                    kind,
                    lambda: plan_frames(
                        numbers,
                        view,
                        self.original,
                        self.table,
                        pixel_format=pixel_format,
                        tiles=tiles,
                    ),
                    Timing(at_ns, seconds),
                )

    def _note(self, kind: str, plan: Callable[[], ReadPlan], timing: Timing) -> None:
        """Remember a read that is done."""
        table = self.table
        self._tools.reads.note(
            self.info.digest,
            lambda: account_of_plan(kind, plan(), table, self.costs, timing),
        )

    def _reader(self) -> Reader:
        return Reader(self.table, self._tools)

    def _tiles(self, psnr: float | None) -> Tiles | None:
        """What reads may use besides the original."""
        if psnr == math.inf:
            return None
        wanted = float(self._parts.settings.minimum_psnr) if psnr is None else psnr
        return self._tools.sources.of(self.info, wanted)

    def _warn_of_tiles(self, error: Exception) -> None:
        # Another process may have made new tiles meanwhile; what is damaged, fsck finds.
        _log.warning("%s: a read is served from the original, not from tiles: %s", self.name, error)

    def _corrects_table(self) -> bool:
        """The file holds other frames than its packets promised.  A full decode tells which."""
        return not self.original.verified and self.verify()

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
        """Decode everything once and correct the frame table; whether it had to be corrected.

        `on_progress` is told (bytes done, bytes in all); it may raise to give up.
        Raises `RefusedMediaError` when the file does not decode at all any more.
        """
        path = self._parts.bytes_of(self.original)
        found = examine(path, name=self.name, full=True, on_progress=on_progress)
        old = self.table
        before = old.columns(0, old.packets)
        same = (
            np.array_equal(before.flags, found.columns.flags)
            and np.array_equal(before.pts, found.columns.pts)
            and np.array_equal(old.packets_of(range(len(old))), found.order)
        )
        corrected = describe_original(
            found,
            object_key=self.original.object_key,
            link_path=self.original.link_path,
            size=self.original.size,
            now_ns=self.original.created_ns,
        )
        if not self._parts.read_only:
            with self._parts.catalog.writing() as change:
                if same:
                    change.videos.mark_verified(self.original.id)
                else:
                    change.videos.replace_table(self.original.id, corrected, pages(found))
                info = change.videos.get(self.info.id)
            with self._guard:
                self.info, self._table = info, None
        return not same

    def _dress(self, data: Pixels, index: Ints) -> Frames:
        table, base = self.table, float(self.original.time_base)
        pts = np.array([table.frame_pts(int(i)) for i in index], dtype=np.int64)
        following = np.array(
            [table.frame_pts(int(i) + 1) if i + 1 < len(table) else table.end_pts for i in index],
            dtype=np.int64,
        )
        return Frames(
            data,
            index,
            pts,
            (pts - self.original.first_pts).astype(np.float64) * base,
            np.maximum(following - pts, 0).astype(np.float64) * base,
        )


def _common(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))


def _rect(region: Region | None) -> Rect | None:
    return region if region is None or isinstance(region, Rect) else Rect(*region)


def _is_int(part: object) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)
