"""Frames of a video: decoded pixels, the selection of frames by number, time and rate
(`FrameTimes`), and rectangles of the displayed frame in the coded picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from reprlib import repr as shown
from types import EllipsisType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Detection, contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.pixel_array import PixelArray, Pixels
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.tiling import Rect, TileLayout
from vfsd.validation import whole_number


@dataclass(frozen=True, eq=False, slots=True)
class Frame(PixelArray):
    """One frame: an array of height x width x channels."""

    data: Pixels  #: H x W x C, uint8 (uint16 for formats of more than 8 bits)
    index: int  #: from 0, in display order
    pts: int  #: ticks of the stream's time base, as in the file
    seconds: float  #: on the video's timeline, which starts at 0 with the first frame
    duration: float  #: seconds until the next frame is shown
    damaged: bool = False  #: shows damage of the file; see `Frames.damaged`

    def __getitem__(self, key: Any) -> Any:
        """Return pixels, as ``data[key]``."""
        return self.data[key]

    def __repr__(self) -> str:
        return f"<Frame {self.index} at {self.seconds:.3f} s, {_shape(self.data)}>"


@dataclass(frozen=True, eq=False, slots=True)
class Frames(PixelArray):
    """Several frames: an array of frames x height x width x channels.

    All other arrays have one element per frame.
    """

    data: Pixels  #: N x H x W x C, uint8 (uint16 for formats of more than 8 bits)
    index: npt.NDArray[np.int64]  #: from 0, in display order
    pts: npt.NDArray[np.int64]  #: ticks of the stream's time base, as in the file
    seconds: npt.NDArray[np.float64]  #: on the video's timeline
    duration: npt.NDArray[np.float64]  #: seconds until the next frame is shown
    psnr: float = math.inf
    """Lower bound in dB for every frame and every plane or channel, against the first original.
    Infinite: all frames were decoded from it.  0: not measured.
    """
    damaged: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether a frame shows damage of the file, concealed or not.  Known after a full decode has
    examined the video (see `Video.damaged_frames`); a read that meets damage starts that decode.
    """

    def __post_init__(self) -> None:
        if not len(self.damaged):
            object.__setattr__(self, "damaged", np.zeros(len(self.data), np.bool_))
        lengths = {len(self.data), len(self.index), len(self.pts), len(self.damaged)}
        lengths |= {len(self.seconds), len(self.duration)}
        if len(lengths) != 1:
            raise ValueError(f"arrays of different lengths: {sorted(lengths)}")

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Frame: ...
    @overload
    def __getitem__(self, at: slice | list[int] | npt.NDArray[Any]) -> Frames: ...
    @overload
    def __getitem__(self, at: tuple[Any, ...] | EllipsisType | None) -> Any: ...

    def __getitem__(
        self,
        at: int
        | np.integer[Any]
        | slice
        | list[int]
        | npt.NDArray[Any]
        | tuple[Any, ...]
        | EllipsisType
        | None,
    ) -> Any:
        """Return one frame, or those of a slice, a mask or an index array; pixels for several axes.

        The pixels are those of ``data[at]``.  Raises `UsageError` for other types, and `IndexError`
        for indices out of range.
        """
        if at is None or at is Ellipsis or isinstance(at, tuple):
            return self.data[at]
        if isinstance(at, (slice, list)) or (isinstance(at, np.ndarray) and at.ndim):
            return Frames(
                self.data[at],
                self.index[at],
                self.pts[at],
                self.seconds[at],
                self.duration[at],
                self.psnr,
                self.damaged[at],
            )
        one = whole_number(at, "index")
        return Frame(
            self.data[one],
            int(self.index[one]),
            int(self.pts[one]),
            float(self.seconds[one]),
            float(self.duration[one]),
            bool(self.damaged[one]),
        )

    def __iter__(self) -> Iterator[Frame]:
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        return f"<Frames: {_shape(self.data)}>"

    def _caption_of(self, at: int) -> str:
        return f"{self.index[at]}: {self.seconds[at]:.3f} s{' damaged' * bool(self.damaged[at])}"


def _shape(data: Pixels) -> str:
    return f"{' x '.join(map(str, data.shape))} {data.dtype}"


@dataclass(frozen=True, eq=False, slots=True)
class Crop(PixelArray):
    """The pixels of one box: an array of height x width x channels."""

    data: Pixels  #: H x W x C
    frame: int  #: from 0, in display order
    seconds: float  #: on the video's timeline
    rect: Rect  #: of the displayed frame: the whole pixels that the box touches
    detections: tuple[Detection, ...]  #: the detections in the box

    def __getitem__(self, key: Any) -> Any:
        """Return pixels, as ``data[key]``."""
        return self.data[key]

    def __repr__(self) -> str:
        labels = ", ".join(sorted({one.label for one in self.detections})) or "no label"
        return f"<Crop frame {self.frame} at {self.seconds:.2f} s, {self.rect}: {labels}>"


@dataclass(frozen=True, eq=False, slots=True)
class Batch(PixelArray):
    """Crops of one size: an array of crops x height x width x channels."""

    data: Pixels  #: N x H x W x C
    crops: tuple[Crop, ...]  #: N; their `data` are views of the batch

    def __getitem__(self, key: Any) -> Any:
        """Return pixels, as ``data[key]``."""
        return self.data[key]

    def _caption_of(self, at: int) -> str:
        return crop_caption(self.crops[at])

    def __repr__(self) -> str:
        height, width = self.data.shape[1:3]
        return f"<Batch of {len(self.crops)} crops of {width}x{height}>"


def crop_caption(crop: Crop | CropRequest) -> str:
    """Return frame and labels, as a contact sheet shows them."""
    labels = ", ".join(sorted({one.label for one in crop.detections}))
    return f"{crop.frame} {labels}"


@dataclass(frozen=True, slots=True)
class CropRequest:
    """An area of a frame to crop, and the detections in it."""

    frame: int
    rect: Rect  #: of the displayed frame
    detections: tuple[Detection, ...]


def padded_rect(detection: Detection, media: MediaInfo, padding: int) -> Rect:
    """Return the whole pixels that a box touches, plus `padding` on every side, clipped to the
    frame.

    Raises `UsageError` for a box outside the displayed frame.
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


def crop_batches(crops: Iterator[Crop], count: int) -> Iterator[Batch]:
    """Yield batches of `count` crops of one size; the last may have fewer.  Raises `UsageError`."""
    count = whole_number(count, "count")
    if count < 1:
        raise UsageError(f"count must be at least 1, got {count}")
    while some := tuple(islice(crops, count)):
        yield Batch(np.stack([crop.data for crop in some]), some)


_MOST_LISTED = 5
_HINT = "give whole numbers, a slice of them, or a mask with one value for each frame"


def sliced(whole: range, key: slice) -> range:
    """Return ``whole[key]``.  Raises `UsageError` for a step of 0, and for bounds that are not
    ints.
    """
    try:
        return whole[key]
    except (TypeError, ValueError) as error:
        is_zero = isinstance(error, ValueError)
        raise UsageError(
            f"a slice of frames must have whole numbers, got {key.start}:{key.stop}:{key.step}",
            hint="the step must not be 0" if is_zero else "give a span to select by time",
        ) from None


def frame_numbers(
    indices: slice | Sequence[int] | Ints | npt.NDArray[np.bool_], count: int
) -> Ints:
    """Return the selected frames out of `count` as numbers from 0, in the order of `indices`.

    Negative numbers count from the end.  A mask has one truth value for each frame.  Raises
    `OutOfRangeError` for numbers outside the video, and `UsageError` for floats, text and more than
    one dimension.
    """
    if isinstance(indices, slice):
        indices = sliced(range(count), indices)
    if isinstance(indices, range) and indices:
        _require_within(_one_axis((indices[0], indices[-1])), count)  # before allocating memory
    numbers = _one_axis(indices)
    if numbers.dtype.kind == "b":
        if len(numbers) != count:
            raise UsageError(
                f"a mask must have {count} values, one for each frame, got {len(numbers)}",
                hint=_HINT,
            )
        return np.flatnonzero(numbers)
    _require_within(numbers, count)
    numbers = numbers.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def frames_in_range(
    indices: Sequence[int] | Ints | npt.NDArray[np.bool_] | int, count: int
) -> Ints:
    """Like `frame_numbers`, but accepts a single number and ignores numbers outside the video."""
    numbers = raw_indices(indices, count)
    return frame_numbers(numbers[(numbers >= -count) & (numbers < count)], count)


def raw_indices(indices: Any, count: int) -> npt.NDArray[Any]:
    """Return the given numbers, one or many, without a range check; of a mask, the set positions.

    Raises `UsageError` as `frame_numbers` does.
    """
    one = isinstance(indices, (int, np.integer)) or getattr(indices, "ndim", 1) == 0
    numbers = _one_axis([indices] if one else indices)
    return frame_numbers(numbers, count) if numbers.dtype.kind == "b" else numbers


def selected_frames(
    frames: range | Sequence[int] | Ints | npt.NDArray[np.bool_] | int, count: int
) -> range | Ints:
    """Like `frames_in_range`, but a range without negative numbers stays a range, in ascending
    order.
    """
    if not isinstance(frames, range):
        return frames_in_range(frames, count)
    ascending = frames[::-1] if frames.step < 0 else frames
    first, end = (_steps_to(at, ascending) for at in (-count, count))
    within = ascending[first:end]  # before allocating memory
    return frames_in_range(within, count) if within and within[0] < 0 else within


def in_ranges(numbers: Ints, ranges: Sequence[range]) -> npt.NDArray[np.bool_]:
    """Return for each number whether it is in one of `ranges`, which ascend and do not overlap."""
    if not ranges:
        return np.zeros(len(numbers), np.bool_)
    starts = np.array([part.start for part in ranges])
    stops = np.array([part.stop for part in ranges])
    place = np.searchsorted(starts, numbers, side="right") - 1
    found: npt.NDArray[np.bool_] = (place >= 0) & (numbers < stops[place])
    return found


def count_in_ranges(numbers: Ints, ranges: Sequence[range] | None) -> int | None:
    """Return how many of `numbers` are in `ranges`; None if the ranges are unknown."""
    return None if ranges is None else int(in_ranges(numbers, ranges).sum())


def _steps_to(number: int, ascending: range) -> int:
    """Return how many numbers of a range are below `number`, at least 0."""
    return max(0, -((ascending.start - number) // ascending.step))


def _one_axis(indices: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a one-dimensional array of integers or truth values."""
    try:
        found = np.asarray(indices)
    except (ValueError, TypeError):  # ragged lists, or elements that are not numbers
        found = np.empty(())
    if found.ndim == 1:
        if not found.size:
            return found.astype(np.int64)
        if found.dtype.kind in "biu" or all(type(one) is int for one in found.tolist()):
            return found  # beyond 64 bits the elements stay Python ints
    raise UsageError(
        f"frames must be whole numbers, a slice or a mask, got {shown(indices)}", hint=_HINT
    )


def _require_within(numbers: npt.NDArray[Any], count: int) -> None:
    beyond = numbers[(numbers < -count) | (numbers >= count)]
    if len(beyond):
        some = ", ".join(str(number) for number in beyond[:_MOST_LISTED])
        more = ", ..." if len(beyond) > _MOST_LISTED else ""
        raise OutOfRangeError(f"frames must be less than {count}, got {some}{more}")


FrameBounds = tuple[int, int]
"""First frame, and one past the last."""


def frame_ranges(frames: Iterable[int] | Iterable[range] | Ints) -> list[range]:
    """Return ascending, disjoint ranges for the set of frames that a caller gave."""
    if isinstance(frames, range) and frames.step == 1:
        return [frames] if len(frames) else []
    several = list(frames)
    parts = [part for part in several if isinstance(part, range)]
    if parts and len(parts) == len(several):
        return [
            range(*pair) for pair in merge_ranges(pair for part in parts for pair in _pairs(part))
        ]
    return contiguous_ranges(np.unique(np.asarray(several, dtype=np.int64)))


def merge_ranges(ranges: Iterable[FrameBounds]) -> list[FrameBounds]:
    """Return the union of `ranges` as ascending, disjoint ranges."""
    made: list[FrameBounds] = []
    for start, stop in sorted(ranges):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], stop))
        else:
            made.append((start, stop))
    return made


def subtract_ranges(ranges: Iterable[FrameBounds], gone: Sequence[range]) -> list[FrameBounds]:
    """Return `ranges` without `gone`; both ascend and do not overlap."""
    left: list[FrameBounds] = []
    at = 0
    for start, stop in ranges:
        while at < len(gone) and gone[at].stop <= start:
            at += 1
        for number in range(at, len(gone)):
            one = gone[number]
            if one.start >= stop:
                break
            if one.start > start:
                left.append((start, one.start))
            start = one.stop
        if start < stop:
            left.append((start, stop))
    return left


def _pairs(part: range) -> list[FrameBounds]:
    return [(run.start, run.stop) for run in frame_ranges(part)]


# Seconds: the largest error of a time written with six digits.
_PRINTED = Fraction(1, 2_000_000)
# Relative difference within which a rate counts as another one with too few digits.
_SAME_RATE = Fraction(1, 10_000_000)
# Multiples and fractions of the nominal rate that are recognised.
_MOST_TIMES = 10
# Mean ticks per frame from which on time stamps of a variable rate count as rounded.
_FINE = 4


class FrameTimes:
    """Converts times to frames of a stored encoding, according to its frame table."""

    def __init__(self, physical: PhysicalVideo, table: FrameTable) -> None:
        self._physical = physical
        self._table = table
        self._base = physical.time_base
        self._rate = physical.constant_rate
        self._rounding = self._base / 2 if self._is_rounded() else Fraction(0)

    def _is_rounded(self) -> bool:
        if self._rate is not None:
            return (self._rate * self._base).numerator != 1
        physical = self._physical
        return physical.end_pts - physical.first_pts >= _FINE * physical.frames

    def at(self, time: Fraction) -> int:
        """Return the frame that is on screen at `time`.

        Raises `OutOfRangeError` before the first frame, and at or after the end of the last.
        """
        end = self._physical.duration
        if time < 0 or time >= end:
            raise OutOfRangeError(
                f"time must be at least 0 and less than {float(end):g} seconds, "
                f"got {float(time):g}",
                hint="times count from the first frame; the end is exclusive",
            )
        time = self._meant_time(time)
        found = int(self._stamped(time, Fraction(0), 1)[0])
        # A rounded time stamp may be later than the frame is due.
        if self._rate is not None:
            due = min((time * self._rate).__floor__(), len(self._table) - 1)
            if due > found and self._are_on_time(np.array([due], np.int64))[0]:
                return due
        return found

    def seconds_at(self, frame: int) -> Fraction:
        """Return when a frame appears, in seconds from the first one; for their number, the end."""
        if self._rate is not None:
            return frame / self._rate
        if frame == self._physical.frames:
            return self._physical.duration
        return (self._table.frame_pts(frame) - self._physical.first_pts) * self._base

    def between(self, start: Fraction, stop: Fraction | None = None) -> range:
        """Return the frames that appear in ``start <= t < stop``; None: to the end.

        Adjacent spans share no frame and leave none out.
        """
        first = self._first_from(start)
        return range(
            first, len(self._table) if stop is None else max(first, self._first_from(stop))
        )

    def at_rate(self, fps: Fraction, start: Fraction, stop: Fraction | None = None) -> Ints:
        """Return the frame on screen at each ``start + k / fps`` before `stop`; None: to the end.

        The result has at least one frame.  Raises `OutOfRangeError` if `start` is after the end.
        """
        self.require_before_end(start)
        end, fps, rate = self._physical.duration, self._meant_rate(fps), self._rate
        first = self._meant_time(start)
        if rate is not None:  # the frame on screen may be due a little later
            shown = self.at(first)
            if self._are_on_time(np.array([shown], np.int64))[0]:
                first = max(first, shown / rate)
        if stop is None or stop >= end:
            length = end - first - self._rounding
        else:
            length = self._meant_time(stop) - first
        count = max(1, (length * fps).__ceil__())
        if rate is None:
            return self._stamped(first, 1 / fps, count)
        # By the rate, not by time stamps: their rounding would repeat or skip single frames.
        found = np.minimum(_floors(first * rate, rate / fps, count), len(self._table) - 1)
        odd = ~self._are_on_time(found)
        if odd.any():
            found[odd] = self._stamped(first, 1 / fps, count)[odd]
        return found

    def _meant_rate(self, fps: Fraction) -> Fraction:
        if self._rate is None:
            return fps
        times = max(fps / self._rate, self._rate / fps)
        whole = round(times)
        if not 1 <= whole <= _MOST_TIMES or abs(times - whole) > whole * _SAME_RATE:
            return fps
        return self._rate * whole if fps > self._rate * Fraction(3, 4) else self._rate / whole

    def _meant_time(self, time: Fraction) -> Fraction:
        """Return the time of a frame or tick that `time` is a six-digit rounding of, or `time`."""
        units = (self._base,) if self._rate is None else (1 / self._rate, self._base)
        for unit in units:
            exact = round(time / unit) * unit
            if abs(exact - time) <= min(_PRINTED, self._base / 2):
                return exact
        return time

    def require_before_end(self, time: Fraction) -> None:
        """Raises `OutOfRangeError` for a time at or after the end of the video."""
        end = self._physical.duration
        if time >= end:
            raise OutOfRangeError(
                f"time must be before the end of the video at {float(end):.3f} s, got "
                f"{float(time):.3f} s"
            )

    def _stamped(self, start: Fraction, step: Fraction, count: int) -> Ints:
        """Return the frames on screen at `count` times from `start`, `step` apart."""
        most = self._physical.end_pts - 1
        ticks = _floors((start + self._rounding) / self._base, step / self._base, count)
        found = self._table.last_not_after(np.minimum(self._physical.first_pts + ticks, most))
        return np.maximum(found, 0)

    def _first_from(self, time: Fraction) -> int:
        """Return the first frame that appears at `time` or later, or the number of frames."""
        if time >= self._physical.duration:
            return len(self._table)
        time = self._meant_time(max(time, Fraction(0)))
        if self._rounding:
            ticks = ((time - self._rounding) / self._base).__floor__() + 1
        else:
            ticks = (time / self._base).__ceil__()
        before = np.array([self._physical.first_pts + ticks - 1], np.int64)
        found = int(self._table.last_not_after(before)[0]) + 1
        if self._rate is not None:
            due = (time * self._rate).__ceil__()
            if due < found and self._are_on_time(np.array([due], np.int64))[0]:
                return due
        return found

    def _are_on_time(self, frames: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return whether time stamps are nearer to the nominal times of their frames than to
        others.
        """
        # They always are, unless the table contradicts the rate.
        assert self._rate is not None
        step = float(1 / (self._rate * self._base))
        late = self._table.pts_of(frames) - self._physical.first_pts - frames * step
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(late) < step / 2
        return found


def _floors(start: Fraction, step: Fraction, count: int) -> Ints:
    """Return the floor of ``start + k * step`` for each ``k < count``, computed exactly."""
    below = start.denominator * step.denominator
    first, each = start.numerator * step.denominator, step.numerator * start.denominator
    return np.fromiter(((first + k * each) // below for k in range(count)), np.int64, count)


def to_coded_rect(region: Rect, media: MediaInfo) -> Rect:
    """Return where a region of the displayed frame lies in the stored picture."""
    width, height = media.width, media.height
    if media.rotation == 90:
        region = Rect(region.y1, height - region.x2, region.y2, height - region.x1)
    elif media.rotation == 180:
        region = Rect(width - region.x2, height - region.y2, width - region.x1, height - region.y1)
    elif media.rotation == 270:
        region = Rect(width - region.y2, region.x1, width - region.y1, region.x2)
    return _mirrored(region, media)


def to_display_rect(area: Rect, media: MediaInfo) -> Rect:
    """Return where an area of the stored picture lies on the displayed frame."""
    width, height = media.width, media.height
    area = _mirrored(area, media)
    if media.rotation == 90:
        return Rect(height - area.y2, area.x1, height - area.y1, area.x2)
    if media.rotation == 180:
        return Rect(width - area.x2, height - area.y2, width - area.x1, height - area.y1)
    if media.rotation == 270:
        return Rect(area.y1, width - area.x2, area.y2, width - area.x1)
    return area


def to_coded_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    """Return a layout of the displayed frame in the orientation of the stored picture."""
    widths, heights = layout.widths, layout.heights
    if media.rotation == 90:
        layout = TileLayout(heights, widths[::-1])
    elif media.rotation == 180:
        layout = TileLayout(widths[::-1], heights[::-1])
    elif media.rotation == 270:
        layout = TileLayout(heights[::-1], widths)
    return _mirrored_layout(layout, media)


def to_display_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    """Return a layout of the stored picture in the orientation of the displayed frame."""
    layout = _mirrored_layout(layout, media)
    widths, heights = layout.widths, layout.heights
    if media.rotation == 90:
        return TileLayout(heights[::-1], widths)
    if media.rotation == 180:
        return TileLayout(widths[::-1], heights[::-1])
    if media.rotation == 270:
        return TileLayout(heights, widths[::-1])
    return layout


def _mirrored(area: Rect, media: MediaInfo) -> Rect:
    if not media.mirrored:
        return area
    return Rect(media.width - area.x2, area.y1, media.width - area.x1, area.y2)


def _mirrored_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    return TileLayout(layout.widths[::-1], layout.heights) if media.mirrored else layout


# Streams store a pixel aspect ratio as two 16-bit numbers.
_HIGHEST = 65535


def scaled_aspect(ratio: Fraction, before: tuple[int, int], after: tuple[int, int]) -> Fraction:
    """Return the pixel aspect ratio of a picture scaled from `before` to `after`, (width, height).

    The picture keeps its displayed shape, exactly if 16-bit numbers can express it.
    """
    exact = ratio * Fraction(before[0] * after[1], before[1] * after[0])
    return 1 / _bounded_ratio(1 / exact) if exact > 1 else _bounded_ratio(exact)


def upright_aspect(media: MediaInfo) -> Fraction | None:
    """Return the pixel aspect ratio after rotation to the displayed orientation."""
    ratio = media.sample_aspect_ratio
    return 1 / ratio if ratio and media.rotation % 180 else ratio


def _bounded_ratio(ratio: Fraction) -> Fraction:
    return max(ratio.limit_denominator(_HIGHEST), Fraction(1, _HIGHEST))
