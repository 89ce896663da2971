"""The frames of a video: the part of `vfsd.video.Video` that reads."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from vfsd.accounting import Timing, account_of_plan
from vfsd.errors import (
    DamagedFileError,
    DamagedPackError,
    IntegrityError,
    OutOfRangeError,
    UsageError,
)
from vfsd.framepages import Ints
from vfsd.frames import Frame, Frames, Pixels
from vfsd.frametable import FrameTable
from vfsd.ingest import describe_original, pages, put_sound
from vfsd.model import LogicalVideo, PhysicalVideo
from vfsd.parts import Parts
from vfsd.plan import ReadPlan, Tiles, avoiding, make_plan, plan_frames, select_frames
from vfsd.reader import Reader
from vfsd.tileplan import Costs
from vfsd.tiling import Rect
from vfsd.tools import Tools
from vfsd.units import Seconds, seconds, ticks_at_or_after, ticks_at_or_before
from vfsd.view import View

_log = logging.getLogger(__name__)

Region = Rect | tuple[int, int, int, int]


class VideoFrames:
    """Reads exact frames of one video, from tiles where that is cheaper and good enough."""

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

    # -- frames by number

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

    def index_at(self, time: Seconds) -> int:
        """The number of the frame that is on the screen at `time`.  Raises `OutOfRangeError`."""
        ticks = ticks_at_or_before(seconds(time), self.info.original.time_base)
        return self.table.frame_at(self.info.original.first_pts + ticks)

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
        from the original); the result's `psnr` tells what it has.  Where the original has been
        replaced, both are against the very first one, and nothing better than the one that is
        there is asked for.

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

    def frames_of_span(self, span: tuple[Seconds, Seconds | None]) -> range:
        """The numbers of the frames that appear in ``span[0] <= t < span[1]`` seconds."""
        original = self.info.original
        low, high = (
            None
            if time is None
            else original.first_pts + ticks_at_or_after(seconds(time), original.time_base)
            for time in span
        )
        table = self.table
        return table.frames_starting_between(
            original.first_pts if low is None else low, table.end_pts if high is None else high
        )

    def frames_in(self, span: tuple[Seconds, Seconds | None] | None = None) -> range:
        """The frames that appear in a span of seconds; all of them without one.

        Raises `OutOfRangeError` where the span starts after the end.
        """
        if span is None:
            return range(len(self))
        chosen = select_frames(self._view(span, None, None, None, None), self.original, self.table)
        return range(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else range(0)

    # -- checking

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
        """Decode everything once and correct the frame table; whether it had to be corrected.

        `on_progress` is told (bytes done, bytes in all); it may raise to give up.
        Raises `RefusedMediaError` when the file does not decode at all any more.
        """
        self._parts.require_whole(self.original)
        path = self._parts.bytes_of(self.original)
        found = self._parts.examiner.examine(
            path, name=self.name, full=True, on_progress=on_progress
        )
        old = self.table
        before = old.columns(0, old.packets)
        same = (
            np.array_equal(before.flags, found.columns.flags)
            and np.array_equal(before.pts, found.columns.pts)
            and np.array_equal(old.packets_of(range(len(old))), found.order)
        )
        corrected = dataclasses.replace(
            describe_original(
                found,
                object_key=self.original.object_key,
                link_path=self.original.link_path,
                size=self.original.size,
                now_ns=self.original.created_ns,
            ),
            parameters=self.original.parameters,
            error=self.original.error,
        )
        if not self._parts.read_only:
            self._parts.suspects.lift(self.original)
            with self._parts.catalog.writing() as change:
                change.videos.physical(self.original.id)  # it may be gone meanwhile
                if same:
                    change.videos.mark_verified(self.original.id)
                else:
                    change.videos.replace_table(self.original.id, corrected, pages(found))
                put_sound(change, self.original, found)
                info = change.videos.get(self.info.id)
            with self._guard:
                self.info, self._table = info, None
        return not same

    # -- the work

    def _corrects_table(self) -> bool:
        """The file holds other frames than its packets promised.  A full decode tells which."""
        return not self.original.verified and self.verify()

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
            except DamagedFileError as error:
                tiles = avoiding(tiles, error)
            except (IntegrityError, FileNotFoundError) as error:
                if plan.tiled:
                    tiles = self._without_damaged(tiles, error)
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
                        frame = self._timed(data, int(rest.frames[place]))
                        done += 1
                        seconds += time.perf_counter() - resumed
                        yield frame
                        resumed = time.perf_counter()
                    return
                except DamagedFileError as error:
                    tiles = avoiding(tiles, error)
                except (IntegrityError, FileNotFoundError) as error:
                    if rest.tiled:
                        tiles = self._without_damaged(tiles, error)
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

    def _without_damaged(self, tiles: Tiles | None, error: Exception) -> Tiles | None:
        """What may be used instead; None: the original alone."""
        # Another process may have made new tiles meanwhile.
        _log.warning("%s: a read is served from the original, not from tiles: %s", self.name, error)
        self._tools.mender.note(error)
        if tiles is not None and isinstance(error, DamagedPackError) and tiles.unreadable:
            return tiles.without(error.object_key)
        return None

    def _timed(self, data: Pixels, index: int) -> Frame:
        """As `_dress`, of one frame, without arrays of one element."""
        entry, original = self.table.frame(index), self.original
        base = float(original.time_base)
        shown = (entry.pts - original.first_pts) * base
        return Frame(data, index, entry.pts, shown, entry.duration * base)

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


def _rect(region: Region | None) -> Rect | None:
    return region if region is None or isinstance(region, Rect) else Rect(*region)
