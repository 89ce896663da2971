"""The frames of a video: the part of `vfsd.video.Video` that reads."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from reprlib import repr as shown

import numpy as np
import numpy.typing as npt

from vfsd.accounting import Timing, account_of_plan
from vfsd.arguments import decibels
from vfsd.errors import (
    DamagedFileError,
    DamagedPackError,
    IntegrityError,
    UsageError,
)
from vfsd.framenumbers import cut, frame_numbers
from vfsd.framepages import Ints
from vfsd.frames import Frame, Frames, Pixels
from vfsd.plan import ReadPlan, Tiles, avoiding, make_plan, plan_frames
from vfsd.reader import Reader
from vfsd.tiling import Rect
from vfsd.units import Seconds, exact_span, nearest_seconds, rate
from vfsd.videofacts import VideoFacts
from vfsd.view import View

_log = logging.getLogger(__name__)

Region = Rect | tuple[int, int, int, int]


class VideoFrames(VideoFacts):
    """Reads exact frames of one video, from tiles where that is cheaper and good enough."""

    # -- frames by number

    def frames(
        self,
        indices: Sequence[int] | Ints | npt.NDArray[np.bool_],
        *,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Frames:
        """Frames by number, in the order asked for; negative numbers count from the end.

        A mask, one truth value for each frame of the video, means those where it is true.  Each is
        decoded once, whatever the order and however often it is asked for.  `psnr` is as for
        `read`.  Raises `OutOfRangeError`, `UsageError` for what are no numbers of frames.
        """
        numbers = frame_numbers(indices, len(self))
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
        frames: range | slice | Sequence[int] | Ints | npt.NDArray[np.bool_] | None = None,
        region: Region | None = None,
        size: tuple[int, int] | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> Frames:
        """The frames that appear in ``span[0] <= t < span[1]`` seconds, or `frames` by number.

        `region` is (x1, y1, x2, y2) in pixels of the displayed frame, x2 and y2 exclusive; only
        its pixels are converted.  `size` is (width, height) of the result, up to 16384 pixels
        each.  With `fps`, the frame that is on the screen at each multiple of ``1 / fps`` from the
        start of the span.  `format` is rgb24, bgr24, gray, or a planar one (see
        `vfsd.codecs.pixels`).

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
        """What `read` gives, one frame at a time and in the memory of one.

        `frames` are a range or a slice; a list is a `UsageError`.
        """
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

    # -- the work

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
            frames = cut(range(len(self)), frames)
        if frames is not None:
            if not isinstance(frames, range):
                raise UsageError(
                    f"{shown(frames)} is no range of frames",
                    hint="give a range or a slice here; `read` and `frames` take lists",
                )
            chosen = (frames.start, frames.stop, frames.step)
        exact = None if span is None else exact_span(span, self.original.time_base)
        return View(exact, chosen, _rect(region), size, None if fps is None else rate(fps))

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
        wanted = self._parts.settings.minimum_psnr if psnr is None else psnr
        return self._tools.sources.of(self.info, decibels(wanted))

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
        base = original.time_base
        shown = float((entry.pts - original.first_pts) * base)
        return Frame(data, index, entry.pts, shown, float(entry.duration * base))

    def _dress(self, data: Pixels, index: Ints) -> Frames:
        table, base = self.table, self.original.time_base
        pts = np.array([table.frame_pts(int(i)) for i in index], dtype=np.int64)
        following = np.array(
            [table.frame_pts(int(i) + 1) if i + 1 < len(table) else table.end_pts for i in index],
            dtype=np.int64,
        )
        return Frames(
            data,
            index,
            pts,
            nearest_seconds(pts - self.original.first_pts, base),
            nearest_seconds(np.maximum(following - pts, 0), base),
        )


def _rect(region: Region | None) -> Rect | None:
    return None if region is None else Rect.given(region)
