"""The frames of a video: the part of `vfsd.Video` that reads."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from reprlib import repr as shown
from typing import Any, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt

from vfsd.api.damage import RAISE, SHOW, SKIP, VideoDamage, damage_choice
from vfsd.api.video_info import Counted, warn_of_short_span
from vfsd.core.frame_selection import frame_numbers, in_ranges, sliced
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frame, Frames, Pixels
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.timebase import Seconds, exact_span, frame_rate, nearest_seconds
from vfsd.core.view_request import Size, View, resolve_size
from vfsd.errors import (
    DamagedFileError,
    DamagedPackError,
    IntegrityError,
    OutdatedError,
    UsageError,
)
from vfsd.read.explain_read import ReadExplanation, explain_plan, find_unused_tiles
from vfsd.read.read_executor import PlanExecutor, plan_converter
from vfsd.read.read_log import ReadTiming, describe_planned_read
from vfsd.read.read_plan import (
    AvailableTiles,
    ReadPlan,
    make_plan,
    plan_frames,
    tiles_avoiding_damage,
)
from vfsd.tiling import Rect
from vfsd.validation import decibels

_log = logging.getLogger(__name__)

Region = Rect | str | Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]
"""A `Rect`, x1, y1, x2, y2, or text as for `Rect.parse`."""


class ReadOptions(TypedDict, total=False):
    """The arguments of `VideoFrames.read`."""

    span: tuple[Seconds, Seconds | None] | None
    frames: range | slice | Sequence[int] | Ints | npt.NDArray[np.bool_] | None
    region: Region | None
    size: Size | None
    fps: Seconds | None
    format: str
    psnr: float | None
    damaged: str


class VideoFrames(VideoDamage):
    """Reads exact frames of one video, from tiles where that is cheaper and good enough."""

    # -- frames by number

    def frames(
        self,
        indices: slice | Sequence[int] | Ints | npt.NDArray[np.bool_],
        *,
        region: Region | None = None,
        size: Size | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Frames:
        """Frames by number, in the order asked for; negative numbers count from the end.

        A mask, one truth value for each frame of the video, means those where it is true, and a
        slice what it does of a list.  Each is decoded once, whatever the order and however often it
        is asked for.  `psnr` and `damaged` are as for `read`.  Raises `OutOfRangeError`, and
        `UsageError` for what are no numbers of frames.
        """
        rect = _rect(region)
        view = View(region=rect, size=_sides(size, rect, self.original.media))

        def numbers(counted: Counted) -> Ints:
            return frame_numbers(indices, len(counted))

        return self._numbered(numbers, view, format, psnr, damaged)

    # -- frames by time

    def frame_at(self, time: Seconds, *, region: Region | None = None) -> Frame:
        """The frame that is on the screen at `time`, in seconds from the first frame."""
        return self.frames_at([time], region=region)[0]

    def frames_at(self, times: Sequence[Seconds], *, region: Region | None = None) -> Frames:
        """The frames that are on the screen at `times`."""
        if (
            isinstance(times, str)
            or not isinstance(times, Iterable)
            or getattr(times, "ndim", 1) == 0
        ):
            raise UsageError(
                f"times must be a list of seconds, got {shown(times)}", hint="`frame_at` takes one"
            )

        def numbers(counted: Counted) -> Ints:
            return np.array([counted.index_at(time) for time in times], np.int64)

        return self._numbered(numbers, View(region=_rect(region)), "rgb24", None)

    # -- views

    def read(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | Sequence[int] | Ints | npt.NDArray[np.bool_] | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Frames:
        """Read the frames that appear in ``span[0] <= t < span[1]`` seconds, or those with the
        numbers `frames`, in that order, as `VideoFrames.frames` takes them; by default all.

        `region` is (x1, y1, x2, y2) in pixels of the displayed frame, x2 and y2 exclusive, a
        `Rect`, or text such as "400x300+600+0" (width x height + x + y) or "600,0,1000,300"; only
        its pixels are converted.  `size` is (width, height) of the result, up to 16384 pixels
        each, where a 0 keeps the shape; an int is the length of the shorter side.  With `fps`, the
        frame that is on the screen at each multiple of ``1 / fps`` from the start of the span.
        `format` is rgb24, bgr24, gray, or a planar one (see `vfsd.codecs.frames.to_array`).

        Tiles and renditions are used where that is cheaper and every frame of the result still has
        at least `psnr` dB, in each plane or channel of `format`, against what the original would
        give (``math.inf``: always from the original).  Without `psnr`, the luma of a segment needs
        the store's `minimum_psnr` on average.  The result's own `psnr` tells in the same way what
        it has; 0: nobody has measured that.  Where the original has been replaced, both are
        against the very first one, and no more is asked for than the present one has; that is known
        of whole pictures: a region may have less.

        `damaged` says what becomes of frames that show damage of the file (see `damaged_frames`).
        "show" gives them, marked in `Frames.damaged`, and logs one warning for each video.
        "raise" raises `DamagedFramesError` before anything is decoded; "skip" leaves them out.
        Both need to know all of them: where no full decode has examined the video, they make one.

        Raises `OutOfRangeError` outside the timeline or the frame, `UsageError`.
        """
        if frames is not None:
            if span is not None or fps is not None:
                raise UsageError("give either a span of time or frames, not both")
            return self.frames(
                frames, region=region, size=size, format=format, psnr=psnr, damaged=damaged
            )

        def plan(counted: Counted, tiles: AvailableTiles | None) -> ReadPlan:
            view = view_of(counted, span=span, region=region, size=size, fps=fps)
            return make_plan(
                view, counted.original, counted.table, pixel_format=format, tiles=tiles
            )

        return self._read(plan, pixel_format=format, psnr=psnr, damaged=damaged)

    def iterate(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Iterator[Frame]:
        """What `read` gives, one frame at a time, so that not all of them have to fit into memory.

        `frames` are a range or a slice, ascending; a list is a `UsageError`.  With
        ``damaged="raise"`` all frames before the first damaged one are given.
        """
        asked = partial(view_of, span=span, region=region, size=size, fps=fps)

        def view(counted: Counted) -> View | None:
            if not _is_none(frames, counted):
                return asked(counted, frames=frames)
            asked(counted, frames=range(1))  # what cannot be cannot be of none either
            return None

        damage_choice(damaged)
        view(self._counted())  # what cannot be is told at once
        return self._filtered(self._stream("api", view, format, psnr), damaged)

    def plan(self, view: View, *, format: str = "rgb24", psnr: float | None = None) -> ReadPlan:
        """What would be decoded to show `view`; `format` and `psnr` as for `read`."""
        counted = self._counted()
        tiles = self._tiles(counted.info, psnr)
        return make_plan(view, counted.original, counted.table, pixel_format=format, tiles=tiles)

    def explain(
        self,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> ReadExplanation:
        """What `read` with these arguments decodes, from where, and what it would without tiles;
        and why tiles that are there are not used.

        Nothing is decoded.  Raises `OutOfRangeError`, `UsageError`.
        """
        counted = self._counted()
        are_none = _is_none(frames, counted)
        chosen = range(1) if are_none else frames  # what cannot be cannot be of none either
        view = view_of(counted, span=span, frames=chosen, region=region, size=size, fps=fps)
        tiles = self._tiles(self.info, psnr)
        plan = make_plan(view, self.original, self.table, pixel_format=format, tiles=tiles)
        if are_none:
            plan = plan_frames(
                plan.frames[:0], view, self.original, self.table, pixel_format=format
            )
        plan_converter(plan, format)  # what cannot be read is told here, too
        unused = find_unused_tiles(plan, self.table, tiles)
        return explain_plan(plan, self.table, self.costs, unused)

    # -- the work

    def _numbered(
        self,
        numbers: Callable[[Counted], Ints],
        view: View,
        pixel_format: str,
        psnr: float | None,
        damaged: str = SHOW,
    ) -> Frames:
        """The frames with `numbers`, which are asked for again where frames are counted anew."""

        def plan(counted: Counted, tiles: AvailableTiles | None) -> ReadPlan:
            return plan_frames(
                numbers(counted),
                view,
                counted.original,
                counted.table,
                pixel_format=pixel_format,
                tiles=tiles,
            )

        return self._read(plan, pixel_format=pixel_format, psnr=psnr, damaged=damaged)

    def _read(
        self,
        make: Callable[[Counted, AvailableTiles | None], ReadPlan],
        *,
        pixel_format: str,
        psnr: float | None,
        damaged: str = SHOW,
    ) -> Frames:
        if damage_choice(damaged) != SHOW:
            self.damaged_frames()
            make = partial(self._undamaged, make, damaged, pixel_format)
        else:
            self._known_damage()
        at_ns, began = time.time_ns(), time.perf_counter()
        counted, plan, data = self._carried_out(make, pixel_format, psnr)
        if len(plan.frames):
            timing = ReadTiming(at_ns, time.perf_counter() - began)
            self._note("api", counted, lambda: plan, timing)
        return dataclasses.replace(
            _dress(counted, data, plan.frames),
            psnr=plan.psnr,
            damaged=self._damage_of(counted, plan.frames),
        )

    def _undamaged(
        self,
        make: Callable[[Counted, AvailableTiles | None], ReadPlan],
        damaged: str,
        pixel_format: str,
        counted: Counted,
        tiles: AvailableTiles | None,
    ) -> ReadPlan:
        """The plan that `make` makes, without damaged frames.  Raises `DamagedFramesError`."""
        plan = make(counted, tiles)
        if damaged == RAISE:
            self._require_undamaged(counted, plan.frames)
            return plan
        return plan_frames(
            plan.frames[~in_ranges(plan.frames, counted.original.damage or ())],
            View(region=plan.region, size=plan.size),
            counted.original,
            counted.table,
            pixel_format=pixel_format,
            tiles=tiles,
        )

    def _filtered(self, frames: Generator[Frame, None, None], damaged: str) -> Iterator[Frame]:
        if damaged != SHOW:
            self.damaged_frames()
        with closing(frames):
            for frame in frames:
                if frame.damaged and damaged == RAISE:
                    self._require_undamaged(self._counted(), np.array([frame.index], np.int64))
                if not (frame.damaged and damaged == SKIP):
                    yield frame

    def _carried_out(
        self,
        make: Callable[[Counted, AvailableTiles | None], ReadPlan],
        pixel_format: str,
        psnr: float | None,
    ) -> tuple[Counted, ReadPlan, Pixels]:
        counted = self._counted()
        tiles = self._tiles(counted.info, psnr)
        while True:
            plan = make(counted, tiles)
            try:
                reader = PlanExecutor(counted.table, self._tools)
                data = reader.execute(plan, pixel_format=pixel_format)
                if not self._examines_damage(counted):
                    return counted, plan, data
                anew = self._counted()
                if anew.original.id == counted.original.id:
                    return anew, plan, data
                counted, tiles = anew, self._tiles(anew.info, psnr)
            except (IntegrityError, FileNotFoundError) as error:
                counted, tiles = self._after(error, plan, counted, tiles, psnr)

    def _shows_damage(self, marked: Counted, counted: Counted, number: int) -> bool:
        """Whether a frame of `counted` shows damage by what `marked` knows, which may number frames
        in another way.  Raises `IntegrityError` where it has no frame at that time.
        """
        if not marked.original.damage and marked.original.id == counted.original.id:
            return False  # as for nearly every frame that is read
        if marked.original.id != counted.original.id:
            (same,) = np.nonzero(marked.table.pts() == counted.table.frame_pts(number))
            if not len(same):
                raise IntegrityError("the frames have been counted again")
            number = int(same[0])
        return bool(self._damage_of(marked, np.array([number], np.int64)))

    def _stream(
        self,
        kind: str,
        view_of: Callable[[Counted], View | None],
        pixel_format: str,
        psnr: float | None,
    ) -> Generator[Frame, None, None]:
        """One frame at a time; noted when the last has been taken, or no more are.

        `view_of` gives None where no frames are meant.
        """
        self._known_damage()
        counted = self._counted()
        tiles = self._tiles(counted.info, psnr)
        at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
        done = 0
        try:
            while True:
                view = view_of(counted)
                if view is None:
                    return
                plan = make_plan(view, counted.original, counted.table)
                rest = plan_frames(
                    plan.frames[done:],
                    view,
                    counted.original,
                    counted.table,
                    pixel_format=pixel_format,
                    tiles=tiles,
                )
                marked = counted
                try:
                    reader = PlanExecutor(counted.table, self._tools)
                    for place, data in reader.stream(rest, pixel_format=pixel_format):
                        number = int(rest.frames[place])
                        if self._examines_damage(counted):
                            marked = self._counted()
                        is_damaged = self._shows_damage(marked, counted, number)
                        frame = _timed(counted, data, number, is_damaged)
                        done += 1
                        seconds += time.perf_counter() - resumed
                        yield frame
                        resumed = time.perf_counter()
                    return
                except (IntegrityError, FileNotFoundError) as error:
                    anew, others = self._after(error, rest, counted, tiles, psnr)
                    if anew is not counted and done and view.frames is not None:
                        raise OutdatedError(
                            f"the frames of {self.name} have just been counted anew, and have "
                            "other numbers than those that were given so far",
                            hint="read them again",
                        ) from error
                    # By time the next one is the next one, whatever its number.
                    counted, tiles = anew, others
        finally:
            if done and view is not None:
                numbers, by, shown_as = plan.frames[:done], counted, view
                self._note(
                    kind,
                    by,
                    lambda: plan_frames(
                        numbers,
                        shown_as,
                        by.original,
                        by.table,
                        pixel_format=pixel_format,
                        tiles=tiles,
                    ),
                    ReadTiming(at_ns, seconds),
                )

    def _note(
        self, kind: str, counted: Counted, plan: Callable[[], ReadPlan], timing: ReadTiming
    ) -> None:
        """Remember a read that is done."""
        self._tools.reads.note(
            counted.info.digest,
            lambda: describe_planned_read(kind, plan(), counted.table, self.costs, timing),
        )

    def _tiles(self, info: LogicalVideo, psnr: float | None) -> AvailableTiles | None:
        """What a read with that `psnr` may use besides the original; None: nothing."""
        wanted = None if psnr is None else decibels(psnr)
        if wanted == math.inf:
            return None
        tiles = self._usual_tiles(info)
        return tiles if wanted is None else tiles.asking(wanted)

    def _usual_tiles(self, info: LogicalVideo) -> AvailableTiles:
        """What a read without a `psnr` may use besides the original."""
        return self._tools.sources.of(info, float(self._parts.settings.minimum_psnr))

    def _after(
        self,
        error: IntegrityError | FileNotFoundError,
        plan: ReadPlan,
        counted: Counted,
        tiles: AvailableTiles | None,
        psnr: float | None,
    ) -> tuple[Counted, AvailableTiles | None]:
        """What to go by once more where carrying out `plan` has met with `error`.

        Tiles that are damaged are not used, nor frames decoded that are lost where others will do;
        what the original has not is counted anew.  Raises `error` where none of that helps.
        """
        now = self._counted()
        if now.original.id != counted.original.id:  # an examination has corrected the table
            return now, self._tiles(now.info, psnr)
        if isinstance(error, DamagedFileError):
            return counted, tiles_avoiding_damage(tiles, error)
        if plan.tiled:
            return counted, self._without_damaged(tiles, error)
        if isinstance(error, FileNotFoundError) or not self._corrects_table():
            raise error
        counted = self._counted()
        return counted, self._tiles(counted.info, psnr)

    def _without_damaged(
        self, tiles: AvailableTiles | None, error: Exception
    ) -> AvailableTiles | None:
        """What may be used instead; None: the original alone."""
        # Another process may have made new tiles meanwhile.
        _log.warning("%s: a read is served from the original, not from tiles: %s", self.name, error)
        self._tools.mender.note(error)
        if tiles is not None and isinstance(error, DamagedPackError) and tiles.unreadable:
            return tiles.without(error.object_key)
        return None


def _is_none(frames: range | slice | None, counted: Counted) -> bool:
    """Whether these are no frames, as it is allowed to ask for; what is no range is not none."""
    run = sliced(range(len(counted)), frames) if isinstance(frames, slice) else frames
    return isinstance(run, range) and not run


def view_of(
    counted: Counted,
    *,
    span: tuple[Seconds, Seconds | None] | None = None,
    frames: range | slice | None = None,
    region: Region | None = None,
    size: Size | None = None,
    fps: Seconds | None = None,
) -> View:
    """The view that the arguments of `VideoFrames.read` ask for, by the present frame numbers.

    Raises `UsageError`, also for `frames` that are neither a range nor a slice.
    """
    chosen = None
    if isinstance(frames, slice):
        frames = sliced(range(len(counted)), frames)
    if frames is not None:
        if not isinstance(frames, range):
            raise UsageError(
                f"frames must be a range or a slice, got {shown(frames)}",
                hint="`read` and `frames` take lists, too",
            )
        if frames.step > 0 and frames and frames[-1] < 0:  # from the end, as in a list
            first, last = frame_numbers((frames[0], frames[-1]), len(counted)).tolist()
            frames = range(first, last + 1, frames.step)
        # Of a range that goes on beyond its last frame that does not count.
        stop = frames[-1] + 1 if frames and frames.step > 0 else frames.stop
        chosen = (frames.start, stop, frames.step)
    exact = None if span is None else exact_span(span, counted.original.time_base)
    if exact is not None and exact[0] < counted.original.duration:
        warn_of_short_span(exact[1], counted.original)
    rect = _rect(region)
    sides = _sides(size, rect, counted.original.media)
    return View(exact, chosen, rect, sides, None if fps is None else frame_rate(fps))


def _sides(size: Size | None, region: Rect | None, media: MediaInfo) -> tuple[int, int] | None:
    if size is None:
        return None
    shape = region or Rect.of_size(media.display_width, media.display_height)
    return resolve_size(size, shape.width, shape.height)


def _timed(counted: Counted, data: Pixels, index: int, damaged: bool) -> Frame:
    """As `_dress`, of one frame, without arrays of one element."""
    entry, original = counted.table.frame(index), counted.original
    base = original.time_base
    shown = float((entry.pts - original.first_pts) * base)
    return Frame(data, index, entry.pts, shown, float(entry.duration * base), damaged)


def _dress(counted: Counted, data: Pixels, index: Ints) -> Frames:
    table, original = counted.table, counted.original
    last = len(table) - 1
    times = table.pts_of(np.concatenate([index, np.minimum(index + 1, last)]))
    pts, following = np.split(times, 2)
    following[index == last] = table.end_pts
    return Frames(
        data,
        index,
        pts,
        nearest_seconds(pts - original.first_pts, original.time_base),
        nearest_seconds(np.maximum(following - pts, 0), original.time_base),
    )


def _rect(region: Region | None) -> Rect | None:
    return None if region is None else Rect.given(region)
