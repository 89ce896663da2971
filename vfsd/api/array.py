"""`VideoArray`: a video as a lazy array of (time, rows, columns, channels), indexed like one of
NumPy. `SecondsIndex` indexes its first axis by seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vfsd.api.reading import view_of
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frames, frame_numbers
from vfsd.core.pixel_array import Pixels, tensor_of
from vfsd.core.timebase import Seconds, seconds
from vfsd.errors import IndexKindError, OutOfRangeError, UsageError
from vfsd.read.read_plan import select_frames
from vfsd.tiling import Rect
from vfsd.validation import is_one_integer

if TYPE_CHECKING:
    from vfsd.api.video import Video

Axis = slice | int | EllipsisType | Sequence[int] | npt.NDArray[Any]
"""An index of one axis; numbers of many elements, or a mask, only select frames."""

_Selection = range | int
"""The elements of an axis, or the only one, whose axis is dropped."""

_AXES = ("frames", "rows", "columns", "channels")


@dataclass(frozen=True)
class _Axes:
    """The elements that are left of each axis of a video."""

    frames: _Selection | Ints
    rows: _Selection
    columns: _Selection
    channels: _Selection = range(3)
    #: the seconds that `frames` were cut out of, half-open; None after a cut by frames
    span: tuple[Fraction, Fraction] | None = None
    fps: Fraction | None = None  #: the rate that `frames` were selected at

    def all(self) -> tuple[_Selection | Ints, ...]:
        return self.frames, self.rows, self.columns, self.channels


class VideoArray:
    """A part of a video that is decoded when its pixels are needed.

    Axes are frames, rows, columns and channels (red, green, blue), and indices follow NumPy: an int
    drops its axis, slices are half-open and count from the start of the part, and may be empty or
    reversed.  A list of ints or a mask selects frames.  `seconds` is the same array with its first
    axis indexed by seconds.

        clip = video.seconds[10:20, 100:400, 200:600]
        clip.seconds[2:4].numpy()
        video[::30, :, :, 0].numpy()
    """

    def __init__(self, video: Video, axes: _Axes) -> None:
        """Use `Video.array`."""
        self._video = video
        self._axes = axes

    @classmethod
    def of(cls, video: Video) -> VideoArray:
        """Return the whole video."""
        span = Fraction(0), video.duration
        frames = range(video.num_frames)
        return cls(video, _Axes(frames, range(video.height), range(video.width), span=span))

    # -- description

    @property
    def region(self) -> Rect:
        """The pixels of the displayed frame that hold this array; x2 and y2 exclusive.

        Raises `OutOfRangeError` if the array has no rows or columns.
        """
        (top, bottom), (left, right) = _bounds(self._axes.rows), _bounds(self._axes.columns)
        if top == bottom or left == right:
            raise OutOfRangeError(f"an array of shape {self.shape} has no region")
        return Rect(left, top, right, bottom)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `numpy()`; of a whole video, (frames, rows, columns, 3).

        Nothing is decoded.
        """
        return tuple(len(axis) for axis in self._axes.all() if not isinstance(axis, int))

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The data type of `numpy()`."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """The number of axes of `numpy()`."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of `numpy()`."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        """The length of the first axis.  Raises `TypeError` if there is none."""
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<VideoArray of {self._video.name!r}, {' x '.join(map(str, self.shape))}>"

    def _repr_html_(self) -> str:
        """Return evenly spaced frames for a notebook, as many as are cheap to decode.

        They show the whole region, whatever the steps and the channels of the array.
        """
        from vfsd.api.previews import array_html
        from vfsd.api.video import context_of

        chosen = self._axes.frames
        frames = [chosen] if isinstance(chosen, int) else chosen
        region = self.region if self.size else self._video.original.media.frame_rect
        return array_html(context_of(self._video), frames if self.size else [], region, repr(self))

    # -- parts

    def __getitem__(self, key: Any) -> VideoArray:
        """Return a part by index, as NumPy does.

        Raises `IndexKindError` for times, `UsageError` for other malformed keys, and
        `OutOfRangeError` (an `IndexError`) for ints outside the array.
        """
        return self._part(key, by_seconds=False)

    @property
    def seconds(self) -> SecondsIndex:
        """The same array, with frames selected by seconds: ``array.seconds[10:20, :, 200:600]``."""
        return SecondsIndex(self)

    def _part(self, key: Any, *, by_seconds: bool) -> VideoArray:
        changed: dict[str, Any] = {}
        for name, one in self._by_axis(key):
            if name != "frames":
                changed[name] = _cut(getattr(self._axes, name), one, name)
            elif by_seconds:
                changed.update(self._cut_seconds(one))
            elif not _is_everything(one):
                changed.update(frames=_cut_frames(self._axes.frames, one), span=None, fps=None)
        return VideoArray(self._video, replace(self._axes, **changed))

    def _by_axis(self, key: Any) -> list[tuple[str, Any]]:
        """The given indices, with the names of their axes."""
        keys = list(key) if isinstance(key, tuple) else [key]
        left = [name for name in _AXES if not isinstance(getattr(self._axes, name), int)]
        ellipses = [place for place, one in enumerate(keys) if one is Ellipsis]
        if len(ellipses) > 1:
            raise UsageError("an index can have a single ellipsis ('...')")
        if len(keys) - len(ellipses) > len(left):
            raise OutOfRangeError(
                f"too many indices: the array has {len(left)} axes, got {len(keys)} indices"
            )
        if not ellipses:
            return list(zip(left, keys, strict=False))
        before, after = keys[: ellipses[0]], keys[ellipses[0] + 1 :]
        return [
            *zip(left, before, strict=False),
            *zip(left[len(left) - len(after) :], after, strict=True),
        ]

    def _cut_seconds(self, key: Any) -> dict[str, Any]:
        if _is_everything(key):
            return {}
        if self._axes.span is None:
            raise UsageError(
                "an array that was cut by frames cannot be cut by seconds",
                hint="cut it by frames, as in array[10:20]",
            )
        start, stop = self._axes.span
        if not isinstance(key, slice):
            moment = start + _moment(key, stop - start, Fraction(0))
            if moment >= stop:
                raise OutOfRangeError(f"{key} s is after the end of the array")
            return {"frames": self._video.index_at(moment), "span": None, "fps": None}
        first = start + _moment(key.start, stop - start, Fraction(0))
        end = min(stop, start + _moment(key.stop, stop - start, stop - start))
        if end <= first:
            raise OutOfRangeError(
                f"a span must have at least one frame, got {key.start}:{key.stop} s"
            )
        fps = self._axes.fps if key.step is None else _rate(key.step)
        span = first, end
        return {"frames": _frames_in(self._video, span, fps), "span": span, "fps": fps}

    # -- pixels

    def at(self, width: int, height: int) -> Frames:
        """Decode the region of the array, scaled to width x height pixels.

        Raises `UsageError` for an array with an axis other than frames dropped.
        """
        self._require_pictures()
        return self._decode(size=(width, height))

    def frames(self, *, format: str = "rgb24") -> Frames:
        """Decode; the result has the times of the frames.

        Raises `UsageError` for an array with an axis other than frames dropped.
        """
        self._require_pictures()
        decoded = self._decode(format=format)
        return replace(decoded, data=self._within(decoded.data))

    def numpy(self) -> Pixels:
        """Decode to an array of `shape`."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        data = self._within(self._decode().data)
        axes = self._axes
        kept = data[(0 if isinstance(axes.frames, int) else slice(None), ...)]
        return kept[..., _steps(axes.channels, 0)]

    def torch(self) -> Any:
        """Decode to a `torch.Tensor` of `shape`.  Raises `ExtraMissingError` without PyTorch."""
        return tensor_of(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        if copy is False:
            raise ValueError("the array exists only after it is decoded: a copy is unavoidable")
        data = self.numpy()
        return data if dtype is None else data.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """Decode, and export the pixels as `numpy.ndarray.__dlpack__`."""
        return np.ascontiguousarray(self.numpy()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of the pixels: always the CPU."""
        device: tuple[int, int] = np.empty(0, self.dtype).__dlpack_device__()
        return device

    def _decode(self, *, size: tuple[int, int] | None = None, format: str = "rgb24") -> Frames:
        """Frames of the region; without the steps of rows and columns."""
        chosen = self._axes.frames
        frames = [chosen] if isinstance(chosen, int) else chosen
        return self._video.read(frames=frames, region=self.region, size=size, format=format)

    def _within(self, data: Pixels) -> Pixels:
        """The rows and columns of decoded frames of the region."""
        rows, columns = self._axes.rows, self._axes.columns
        return data[:, _steps(rows, _bounds(rows)[0])][
            (slice(None),) * (1 if isinstance(rows, int) else 2)
            + (_steps(columns, _bounds(columns)[0]),)
        ]

    def _require_pictures(self) -> None:
        axes = self._axes
        if isinstance(axes.rows, int) or isinstance(axes.columns, int) or axes.channels != range(3):
            raise UsageError(
                f"frames must have rows, columns and all channels, got an array of {self.shape}",
                hint="numpy() decodes any array",
            )


class SecondsIndex:
    """Indexes the first axis of a video by seconds; see `VideoArray.seconds`."""

    def __init__(self, array: VideoArray) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> VideoArray:
        """Return a part by seconds, rows, columns and channels.

        Seconds are numbers, fractions or strings such as ``"1:30"``, and count from the start of
        the array.  One number is the frame on the screen then; a slice is half-open, and its step
        sets a rate: ``[0:10:0.5]`` is two frames a second.  The other axes are indexed as in
        `VideoArray`.  Raises `OutOfRangeError` for a span without a frame, and `UsageError`.
        """
        return self._array._part(key, by_seconds=True)


def _frames_in(video: Video, span: tuple[Fraction, Fraction], fps: Fraction | None) -> range | Ints:
    """The frames that `Video.read` returns for a span and a rate."""
    from vfsd.api.video import context_of

    snapshot = context_of(video).snapshot()
    view = view_of(snapshot, span=span, fps=fps)
    numbers = np.asarray(select_frames(view, snapshot.original, snapshot.table), np.int64)
    if len(numbers) and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
        return range(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def _is_everything(key: Any) -> bool:
    return isinstance(key, slice) and key == slice(None)


def _cut_frames(frames: _Selection | Ints, key: Any) -> _Selection | Ints:
    parts = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
    if any(isinstance(part, (float, str, Fraction)) for part in parts):
        shown = _shown(key) if isinstance(key, slice) else repr(key)
        raise IndexKindError(
            f"indices of a video count frames and must be ints, got {shown}",
            hint=f"by time: video.seconds[{shown}]",
        )
    assert not isinstance(frames, int)  # a dropped axis takes no index
    if isinstance(key, slice) or is_one_integer(key):
        selected: _Selection | Ints = _cut(frames, key, "frames")
        return selected
    return np.asarray(frames)[frame_numbers(key, len(frames))]


def _cut(axis: Any, key: Any, name: str) -> Any:
    """``axis[key]`` for an int or a slice of ints."""
    if not isinstance(key, slice) and not is_one_integer(key):
        raise UsageError(f"the index of {name} must be an int or a slice, got {key!r}")
    try:
        found = axis[key]
    except IndexError:
        raise OutOfRangeError(f"the array has {len(axis)} {name}, got index {key}") from None
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a slice of {name} must have whole numbers, got {_shown(key)}",
            hint="the step must not be 0" if isinstance(error, ValueError) else "give ints",
        ) from None
    return found if isinstance(key, slice) else int(found)


def _bounds(axis: _Selection) -> tuple[int, int]:
    """The least run of elements that holds an axis, half-open."""
    if isinstance(axis, int):
        return axis, axis + 1
    return (min(axis[0], axis[-1]), max(axis[0], axis[-1]) + 1) if axis else (0, 0)


def _steps(axis: _Selection, start: int) -> int | slice:
    """The index that selects an axis from its run of elements, which begins with `start`."""
    if isinstance(axis, int):
        return axis - start
    if not axis:
        return slice(0, 0)
    stop = axis[-1] - start + (1 if axis.step > 0 else -1)
    return slice(axis.start - start, stop if stop >= 0 else None, axis.step)


def _shown(key: slice) -> str:
    parts = [key.start, key.stop, *([] if key.step is None else [key.step])]
    return ":".join("" if part is None else f"{part!r}" for part in parts)


def _moment(value: Seconds | None, length: Fraction, default: Fraction) -> Fraction:
    """Seconds from the start of an array of `length` seconds; negative ones count from the end."""
    if value is None:
        return default
    exact = seconds(value)
    return max(Fraction(0), length + exact) if exact < 0 else exact


def _rate(step: Seconds) -> Fraction:
    """The rate in frames per second with one frame every `step` seconds."""
    exact = seconds(step)
    if exact <= 0:
        raise UsageError(f"a step in time must be larger than 0, got {step!r}")
    return 1 / exact
