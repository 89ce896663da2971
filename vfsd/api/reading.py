"""Reads exact frames of an open video, from tiles where those are cheaper and good enough.

`vfsd.Video` has the methods; these functions do the work on its `VideoContext`.  A read that meets
damaged tiles repeats without them.  A read that meets a wrong frame table lets `correct_table`
decode the whole file once, and repeats with the corrected one.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from functools import partial
from reprlib import repr as shown
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frame, Frames, frame_numbers, in_ranges, sliced
from vfsd.core.model import MediaInfo
from vfsd.core.pixel_array import Pixels
from vfsd.core.timebase import (
    Seconds,
    Span,
    exact_span,
    frame_rate,
    nearest_seconds,
    on_tick,
    seconds,
)
from vfsd.core.view_request import Size, View, resolve_size
from vfsd.disk.checksums import ranges_text
from vfsd.errors import (
    DamagedFileError,
    DamagedFramesError,
    DamagedPackError,
    IntegrityError,
    OutdatedError,
    OutOfRangeError,
    UsageError,
    VfsdError,
)
from vfsd.read.explain_read import ReadExplanation, explain_plan, fetch_of, find_unused_tiles
from vfsd.read.read_context import VideoContext, VideoSnapshot, warn_of_short_span
from vfsd.read.read_executor import PlanExecutor, plan_converter
from vfsd.read.read_log import ReadTiming
from vfsd.read.read_plan import (
    AvailableTiles,
    ReadPlan,
    make_plan,
    plan_frames,
    tiles_avoiding_damage,
)
from vfsd.tiling import Rect, Region
from vfsd.tiling.cost import Fetch
from vfsd.validation import is_one_integer

_log = logging.getLogger(__name__)

MakePlan = Callable[[VideoSnapshot, AvailableTiles | None], ReadPlan]
"""Plans a read for the present frame table and the tiles that it may use."""

SHOW, RAISE, SKIP = "show", "raise", "skip"


class ReadOptions(TypedDict, total=False):
    """The arguments of `Video.read`."""

    span: Span | None
    frames: int | range | slice | Sequence[int] | Ints | npt.NDArray[np.bool_] | None
    times: Sequence[Seconds] | npt.NDArray[np.floating[Any]] | None
    tolerance: Seconds | None
    region: Region | None
    size: Size | None
    fps: Seconds | None
    format: str
    psnr: float | None
    damaged: str


# -- reads


def read_numbered(
    video: VideoContext,
    numbers: Callable[[VideoSnapshot], Ints],
    view: View,
    format: str,
    psnr: float | None,
    damaged: str = SHOW,
    *,
    keep: bool = True,
) -> Frames:
    """The frames with `numbers`, a function that a corrected frame table calls again.

    Without `keep`, no decoded picture stays in memory for later reads.
    """

    def plan(snapshot: VideoSnapshot, tiles: AvailableTiles | None) -> ReadPlan:
        return plan_frames(
            numbers(snapshot),
            view,
            snapshot.original,
            snapshot.table,
            pixel_format=format,
            tiles=tiles,
        )

    return read_planned(video, plan, pixel_format=format, psnr=psnr, damaged=damaged, keep=keep)


def read_planned(
    video: VideoContext,
    make: MakePlan,
    *,
    pixel_format: str,
    psnr: float | None,
    damaged: str = SHOW,
    keep: bool = True,
) -> Frames:
    """Carry out the plan that `make` returns, and note the read in the read log."""
    if damage_choice(damaged) != SHOW:
        damaged_frames(video)
        make = partial(_plan_undamaged, make, damaged, pixel_format)
    else:
        _known_damage(video)
    at_ns, began = time.time_ns(), time.perf_counter()
    with video.checking():
        snapshot, plan, data = _carry_out(video, make, pixel_format, psnr, keep)
    if len(plan.frames):
        timing = ReadTiming(at_ns, time.perf_counter() - began)
        video.note("api", snapshot, lambda: plan, timing)
    return dataclasses.replace(
        _dress(snapshot, data, plan.frames),
        psnr=plan.psnr,
        damaged=_damage_of(video, snapshot, plan.frames),
    )


def iterate(
    video: VideoContext,
    view: Callable[[VideoSnapshot], View | None],
    format: str,
    psnr: float | None,
    damaged: str,
    kind: str = "api",
) -> Iterator[Frame]:
    """One frame after the other; `view` is None where the arguments name no frames.

    The arguments are checked before this returns.
    """
    damage_choice(damaged)
    view(video.snapshot())
    return _without(video, stream(video, kind, view, format, psnr), damaged)


def _without(
    video: VideoContext, frames: Generator[Frame, None, None], damaged: str
) -> Iterator[Frame]:
    if damaged != SHOW:
        damaged_frames(video)
    with closing(frames):
        for frame in frames:
            if frame.damaged and damaged == RAISE:
                _require_undamaged(video.snapshot(), np.array([frame.index], np.int64))
            if not (frame.damaged and damaged == SKIP):
                yield frame


def stream(
    video: VideoContext,
    kind: str,
    view_of: Callable[[VideoSnapshot], View | None],
    pixel_format: str,
    psnr: float | None,
) -> Generator[Frame, None, None]:
    """One frame at a time.  The read log gets a note at the end, or when the caller stops.

    `kind` is that of the note.
    """
    return video.checked(_stream(video, kind, view_of, pixel_format, psnr))


def _stream(
    video: VideoContext,
    kind: str,
    view_of: Callable[[VideoSnapshot], View | None],
    pixel_format: str,
    psnr: float | None,
) -> Generator[Frame, None, None]:
    _known_damage(video)
    snapshot = video.snapshot()
    tiles = video.tiles(snapshot.info, psnr)
    at_ns, seconds, resumed = time.time_ns(), 0.0, time.perf_counter()
    done = 0
    try:
        while True:
            view = view_of(snapshot)
            if view is None:
                return
            plan = make_plan(view, snapshot.original, snapshot.table)
            rest = plan_frames(
                plan.frames[done:],
                view,
                snapshot.original,
                snapshot.table,
                pixel_format=pixel_format,
                tiles=tiles,
            )
            marked = snapshot
            try:
                reader = PlanExecutor(snapshot.table, video.tools)
                for place, data in reader.stream(rest, pixel_format=pixel_format):
                    number = int(rest.frames[place])
                    if _examines_damage(video, snapshot):
                        marked = video.snapshot()
                    is_damaged = _shows_damage(video, marked, snapshot, number)
                    frame = _timed(snapshot, data, number, is_damaged)
                    done += 1
                    seconds += time.perf_counter() - resumed
                    yield frame
                    resumed = time.perf_counter()
                return
            except (IntegrityError, FileNotFoundError) as error:
                now, others = _after(video, error, rest, snapshot, tiles, psnr)
                if now is not snapshot and done and view.frames is not None:
                    raise OutdatedError(
                        f"the frames of {video.name} have just been counted again, and have "
                        "other numbers than those that were given so far",
                        hint="read them again",
                    ) from error
                # In a read by time the next frame is the same one, whatever its number.
                snapshot, tiles = now, others
    finally:
        if done and view is not None:
            numbers, by, shown_as = plan.frames[:done], snapshot, view
            video.note(
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


def _carry_out(
    video: VideoContext, make: MakePlan, pixel_format: str, psnr: float | None, keep: bool
) -> tuple[VideoSnapshot, ReadPlan, Pixels]:
    snapshot = video.snapshot()
    tiles = video.tiles(snapshot.info, psnr)
    while True:
        plan = make(snapshot, tiles)
        try:
            reader = PlanExecutor(snapshot.table, video.tools)
            data = reader.execute(plan, pixel_format=pixel_format, keep=keep)
            if not _examines_damage(video, snapshot):
                return snapshot, plan, data
            now = video.snapshot()
            if now.original.id == snapshot.original.id:
                return now, plan, data
            snapshot, tiles = now, video.tiles(now.info, psnr)
        except (IntegrityError, FileNotFoundError) as error:
            snapshot, tiles = _after(video, error, plan, snapshot, tiles, psnr)


def _after(
    video: VideoContext,
    error: IntegrityError | FileNotFoundError,
    plan: ReadPlan,
    snapshot: VideoSnapshot,
    tiles: AvailableTiles | None,
    psnr: float | None,
) -> tuple[VideoSnapshot, AvailableTiles | None]:
    """The frame table and the tiles for another attempt, where `plan` met with `error`.

    Damaged tiles are left out, and so are lost frames where others will do.  A frame table that
    does not fit the original is corrected.  Raises `error` where none of that helps.
    """
    now = video.snapshot()
    if now.original.id != snapshot.original.id:  # an examination has corrected the table
        return now, video.tiles(now.info, psnr)
    if isinstance(error, DamagedFileError):
        return snapshot, tiles_avoiding_damage(tiles, error)
    if plan.tiled:
        return snapshot, _without_damaged(video, tiles, error)
    from vfsd.write.frame_index import corrects_table  # imports what examines files

    if isinstance(error, FileNotFoundError) or not corrects_table(video):
        raise error
    snapshot = video.snapshot()
    return snapshot, video.tiles(snapshot.info, psnr)


def _without_damaged(
    video: VideoContext, tiles: AvailableTiles | None, error: Exception
) -> AvailableTiles | None:
    """The tiles that remain; None: the original alone."""
    # A missing tile may just as well have been replaced by another process.
    _log.warning("%s: a read is served from the original, not from tiles: %s", video.name, error)
    video.tools.drop_damaged_tiles(error)
    if tiles is not None and isinstance(error, DamagedPackError) and tiles.unreadable:
        return tiles.without(error.object_key)
    return None


# -- plans


def numbers_at(
    times: Sequence[Seconds] | npt.NDArray[np.floating[Any]], tolerance: Seconds | None
) -> Callable[[VideoSnapshot], Ints]:
    """The frames on the screen at `times` of a frame table; see `Video.read`.

    Raises `UsageError` for arguments of other types.
    """
    if isinstance(times, (str, bytes)) or getattr(times, "ndim", 1) != 1:
        raise _times_error(times)
    try:
        asked = list(times)
    except TypeError:
        raise _times_error(times) from None
    limit = None if tolerance is None else seconds(tolerance)
    if limit is not None and limit < 0:
        raise UsageError(f"tolerance must be 0 or more, got {shown(tolerance)}")

    def numbers(snapshot: VideoSnapshot) -> Ints:
        on_screen, base = snapshot.times, snapshot.original.time_base
        found = np.array([on_screen.at(on_tick(each, base)) for each in asked], np.int64)
        if limit is not None:
            _require_near(snapshot, asked, found, limit)
        return found

    return numbers


def _times_error(times: object) -> UsageError:
    return UsageError(
        f"times must be a list of seconds, got {shown(times)}", hint="`frame_at` takes one"
    )


def _require_near(
    snapshot: VideoSnapshot, times: Sequence[Seconds], numbers: Ints, limit: Fraction
) -> None:
    """Raises `OutOfRangeError` where a frame appears more than `limit` seconds before its time."""
    original = snapshot.original
    base = original.time_base
    ticks = (snapshot.table.pts_of(numbers) - original.first_pts).tolist()
    for asked, number, tick in zip(times, numbers.tolist(), ticks, strict=True):
        distance = on_tick(asked, base) - tick * base
        if distance > limit:
            raise OutOfRangeError(
                f"no frame appears within {float(limit):g} s before {float(seconds(asked)):g} s",
                hint=f"frame {number} appears {float(distance):g} s before it",
            )


def plan_view(
    video: VideoContext, view: View, *, format: str = "rgb24", psnr: float | None = None
) -> ReadPlan:
    """The plan of a read that shows `view`; `format` and `psnr` as for `Video.read`."""
    snapshot = video.snapshot()
    tiles = video.tiles(snapshot.info, psnr)
    return make_plan(view, snapshot.original, snapshot.table, pixel_format=format, tiles=tiles)


def explain_read(
    video: VideoContext,
    *,
    span: Span | None,
    frames: int | range | slice | None,
    region: Region | None,
    size: Size | None,
    fps: Seconds | None,
    format: str,
    psnr: float | None,
) -> ReadExplanation:
    """See `Video.explain`."""
    snapshot = video.snapshot()
    original, table = snapshot.original, snapshot.table
    are_none = is_empty(frames, snapshot)
    chosen = range(1) if are_none else frames  # other errors are errors of an empty range, too
    view = view_of(snapshot, span=span, frames=chosen, region=region, size=size, fps=fps)
    tiles = video.tiles(snapshot.info, psnr)
    plan = make_plan(view, original, table, pixel_format=format, tiles=tiles)
    if are_none:
        plan = plan_frames(plan.frames[:0], view, original, table, pixel_format=format)
    plan_converter(plan, format)  # raises for pixels that cannot be converted
    return explain_plan(plan, table, video.costs, find_unused_tiles(plan, table, tiles))


def fetch_of_read(video: VideoContext, found: ReadExplanation) -> tuple[Fetch, float] | None:
    """Return what a read fetches from the bucket now, and its seconds; None for local files."""
    parts = video.parts
    if parts.objects.is_local or not parts.originals.is_remote(found.plan.physical.place):
        return None
    fetch = fetch_of(found.plan, video.table, parts.objects)
    return fetch, parts.objects.fetch_cost().seconds(fetch)


def is_empty(frames: int | range | slice | None, snapshot: VideoSnapshot) -> bool:
    """Whether `frames` is an empty range, which is allowed."""
    run = sliced(range(len(snapshot)), frames) if isinstance(frames, slice) else frames
    return isinstance(run, range) and not run


def view_of(
    snapshot: VideoSnapshot,
    *,
    span: Span | None = None,
    frames: int | range | slice | None = None,
    region: Region | None = None,
    size: Size | None = None,
    fps: Seconds | None = None,
) -> View:
    """The arguments of `Video.read` as a view, by the frame numbers of `snapshot`.

    Raises `UsageError`, also for `frames` that are neither a range nor a slice.
    """
    chosen = None
    if isinstance(frames, slice):
        frames = sliced(range(len(snapshot)), frames)
    elif is_one_integer(frames):
        one = operator.index(frames)  # type: ignore[arg-type]
        frames = range(one, one + 1)
    if frames is not None:
        if not isinstance(frames, range):
            raise UsageError(
                f"frames must be a range or a slice, got {shown(frames)}",
                hint="`read` and `frames` take lists, too",
            )
        if frames.step > 0 and frames and frames[-1] < 0:  # counted from the end, as in a list
            first, last = frame_numbers((frames[0], frames[-1]), len(snapshot)).tolist()
            frames = range(first, last + 1, frames.step)
        # A stop beyond the last frame of the range does not count.
        stop = frames[-1] + 1 if frames and frames.step > 0 else frames.stop
        chosen = (frames.start, stop, frames.step)
    exact = None if span is None else exact_span(span, snapshot.original.time_base)
    if exact is not None and exact[0] < snapshot.original.duration:
        warn_of_short_span(exact[1], snapshot.original)
    rect = rect_of(region)
    sides = sides_in(size, rect, snapshot.original.media)
    return View(exact, chosen, rect, sides, None if fps is None else frame_rate(fps))


def rect_of(region: Region | None) -> Rect | None:
    return None if region is None else Rect.from_value(region)


def sides_in(size: Size | None, region: Rect | None, media: MediaInfo) -> tuple[int, int] | None:
    """Width and height of a result of that `size`, from `region` or the whole frame."""
    if size is None:
        return None
    shape = region or media.frame_rect
    return resolve_size(size, shape.width, shape.height)


def displayed_size(size: Size, media: MediaInfo) -> tuple[int, int]:
    """Width and height of the whole displayed frame, scaled to `size`."""
    return resolve_size(size, media.display_width, media.display_height)


# -- damaged frames
#
# Only a full decode in order shows which frames are damaged.  All reads use its result, so a frame
# counts as damaged however a read reaches it.


def damage_choice(damaged: str) -> str:
    """Check the `damaged` argument of a read.  Raises `UsageError`."""
    if damaged not in (SHOW, RAISE, SKIP):
        raise UsageError(f"damaged must be show, raise or skip, got {shown(damaged)}")
    return damaged


def damaged_frames(video: VideoContext) -> Ints:
    """See `Video.damaged_frames`."""
    if _known_damage(video) is None:
        from vfsd.write.frame_index import verify

        verify(video)
    damage = video.original.damage or ()
    parts = [np.arange(part.start, part.stop, dtype=np.int64) for part in damage]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def kept_frames(video: VideoContext, numbers: Ints, damaged: str) -> Ints:
    """Those of the frames with `numbers` that a read with that `damaged` returns.

    Raises `DamagedFramesError` for "raise", `UsageError`, and as `Video.damaged_frames` does.
    """
    if damage_choice(damaged) == SHOW:
        return numbers
    damaged_frames(video)
    snapshot = video.snapshot()
    if damaged == RAISE:
        _require_undamaged(snapshot, numbers)
        return numbers
    return numbers[~in_ranges(numbers, snapshot.original.damage or ())]


def _known_damage(video: VideoContext) -> tuple[range, ...] | None:
    """None: no process has examined the video by a full decode yet."""
    if video.original.damage is None and not video.original.is_growing:
        video.reload_details()
    return video.original.damage


def _examines_damage(video: VideoContext, snapshot: VideoSnapshot) -> bool:
    """Examine a video whose decoder has just concealed damage, unless that was done before.

    Whether it was done now; the record and the frame table may be others afterwards.
    """
    original = snapshot.original
    concealed = video.tools.pool.concealed
    if original.damage is not None or original.id not in concealed or original.is_growing:
        return False
    concealed.discard(original.id)  # once: an examination that fails would fail each time
    if _known_damage(video) is None:
        from vfsd.write.frame_index import verify

        try:
            verify(video)
        except (VfsdError, OSError) as error:
            _log.warning("%s: its damaged frames are not known: %s", video.name, error)
    return True


def _plan_undamaged(
    make: MakePlan,
    damaged: str,
    pixel_format: str,
    snapshot: VideoSnapshot,
    tiles: AvailableTiles | None,
) -> ReadPlan:
    """The plan that `make` returns, without damaged frames.  Raises `DamagedFramesError`."""
    plan = make(snapshot, tiles)
    if damaged == RAISE:
        _require_undamaged(snapshot, plan.frames)
        return plan
    return plan_frames(
        plan.frames[~in_ranges(plan.frames, snapshot.original.damage or ())],
        View(region=plan.region, size=plan.size),
        snapshot.original,
        snapshot.table,
        pixel_format=pixel_format,
        tiles=tiles,
    )


def _damage_of(
    video: VideoContext, snapshot: VideoSnapshot, numbers: Ints
) -> npt.NDArray[np.bool_]:
    """One bool for each frame: known to be damaged.  The first one of a video is logged."""
    found = in_ranges(numbers, snapshot.original.damage or ())
    if found.any() and video.tools.pool.should_warn(snapshot.original.id):
        _log.warning("%s", _told(snapshot))
    return found


def _shows_damage(
    video: VideoContext, marked: VideoSnapshot, snapshot: VideoSnapshot, number: int
) -> bool:
    """Whether frame `number` of `snapshot` is damaged according to `marked`, where frames may have
    other numbers.  Raises `IntegrityError` where `marked` has no frame at that time.
    """
    if not marked.original.damage and marked.original.id == snapshot.original.id:
        return False  # as for nearly every frame
    if marked.original.id != snapshot.original.id:
        (same,) = np.nonzero(marked.table.pts() == snapshot.table.frame_pts(number))
        if not len(same):
            raise IntegrityError("the frames have been counted again")
        number = int(same[0])
    return bool(_damage_of(video, marked, np.array([number], np.int64)))


def _require_undamaged(snapshot: VideoSnapshot, numbers: Ints) -> None:
    damaged = numbers[in_ranges(numbers, snapshot.original.damage or ())]
    if len(damaged):
        raise DamagedFramesError(
            f"frame {damaged[0]} is damaged; {_told(snapshot)}",
            hint='read with damaged="skip" to leave such frames out, or "show" to have them',
        )


def _told(snapshot: VideoSnapshot) -> str:
    original = snapshot.original
    damage = original.damage or ()
    return (
        f"{snapshot.info.name}: {original.damaged_frames} of {original.frames} frames are damaged "
        f"in the file: {ranges_text(damage)}"
    )


# -- results


def _timed(snapshot: VideoSnapshot, data: Pixels, index: int, damaged: bool) -> Frame:
    """As `_dress`, for one frame, without arrays of one element."""
    entry, original = snapshot.table.frame(index), snapshot.original
    base = original.time_base
    at = float((entry.pts - original.first_pts) * base)
    return Frame(data, index, entry.pts, at, float(entry.duration * base), damaged)


def _dress(snapshot: VideoSnapshot, data: Pixels, index: Ints) -> Frames:
    table, original = snapshot.table, snapshot.original
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
