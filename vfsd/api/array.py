"""`VideoArray`: a video as a lazy array of (time, rows, columns), sliced like one of numpy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np

from vfsd.api.reading import ReadOptions
from vfsd.core.frames import Frames, Pixels, sliced
from vfsd.core.timebase import Seconds, seconds
from vfsd.errors import IndexKindError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

Axis = slice | int
"""A slice; an int in time is that frame."""

Count = Callable[[tuple[Fraction, Fraction], Fraction | None], int]
"""The number of frames that a read of a span returns, at a rate or without one."""


class Read(Protocol):
    """`Video.read`."""

    def __call__(self, **options: Unpack[ReadOptions]) -> Frames: ...


class _Time(NamedTuple):
    """The time axis of an array: all frames, a span of seconds, or frames by number."""

    span: tuple[Fraction, Fraction] | None = None
    chosen: range | None = None
    fps: Fraction | None = None


class VideoArray:
    """A part of a video that is decoded when its pixels are needed.

    Axes are time, rows and columns; slices are half-open.  Time is counted in frames; `seconds` is
    the same array indexed by seconds: numbers, fractions or strings such as ``"1:30"``.  A step in
    frames takes every n-th frame, a step in seconds sets a rate.  Rows and columns are pixels; a
    step there scales down by that factor.  As with numpy, a slice of a slice counts from the start
    of the first.

        clip = video.seconds[10:20, 100:400, 200:600]
        clip.seconds[2:4, ::2, ::2].numpy()
    """

    def __init__(
        self,
        read: Read,
        frames: int,
        duration: Fraction,
        shape: tuple[int, int],
        count: Count,
        *,
        time: _Time = _Time(),  # noqa: B008 - immutable
        rows: range | None = None,
        columns: range | None = None,
    ) -> None:
        """Use `Video.array`."""
        self._read = read
        self._frames = frames
        self._duration = duration
        self._full = shape
        self._count = count
        self._time = time
        self._span, self._chosen, self._fps = time
        self._rows = range(shape[0]) if rows is None else rows
        self._columns = range(shape[1]) if columns is None else columns

    @property
    def region(self) -> Rect:
        """The pixels of the displayed frame in this array; x2 and y2 exclusive."""
        rows, columns = self._rows, self._columns
        return Rect(columns.start, rows.start, columns.stop, rows.stop)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, after scaling."""
        return len(self._columns), len(self._rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(frames, rows, columns, 3), as of `numpy()`.  Nothing is decoded."""
        width, height = self.size
        return len(self), height, width, 3

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The data type of `numpy()`."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """The number of axes of `numpy()`; the last one, the channels, cannot be indexed."""
        return 4

    def __len__(self) -> int:
        """The number of frames, from the frame table."""
        if self._chosen is not None:
            return len(self._chosen)
        if self._span is not None:
            return self._count(self._span, self._fps)
        return self._frames

    def __repr__(self) -> str:
        if self._chosen is not None:
            when = f"frames {self._chosen.start}:{self._chosen.stop}:{self._chosen.step}"
        else:
            start, stop = self._span or (Fraction(0), self._duration)
            when = f"{float(start):g}:{float(stop):g} s"
            when += f" at {float(self._fps):g} fps" if self._fps is not None else ""
        return f"<VideoArray {when}, {self.region} as {self.size[0]}x{self.size[1]}>"

    def __getitem__(self, key: Axis | tuple[Axis, ...]) -> VideoArray:
        """A part by frames, rows and columns.

        Raises `IndexKindError` for times, `UsageError` for other malformed keys, and
        `OutOfRangeError` for empty parts.
        """
        return self._cut_axes(key, self._cut_frames)

    @property
    def seconds(self) -> SecondsIndex:
        """The same array, indexed by seconds: ``array.seconds[10:20, :, 200:600]``."""
        return SecondsIndex(lambda key: self._cut_axes(key, self._cut_seconds))

    def _cut_axes(
        self, key: Axis | tuple[Axis, ...], cut_time: Callable[[Axis], _Time]
    ) -> VideoArray:
        axes = key if isinstance(key, tuple) else (key,)
        if len(axes) > 3:
            raise UsageError(
                f"a video has three axes: time, rows and columns; got {len(axes)} indices"
            )
        everything = (slice(None),) * 3
        time, rows, columns = (*axes, *everything)[:3]
        return VideoArray(
            self._read,
            self._frames,
            self._duration,
            self._full,
            self._count,
            time=cut_time(time),
            rows=_cut(self._rows, rows, "rows"),
            columns=_cut(self._columns, columns, "columns"),
        )

    def at(self, width: int, height: int) -> Frames:
        """Decode, scaled to width x height pixels."""
        return self._decode(size=(width, height))

    def frames(self, *, format: str = "rgb24") -> Frames:
        """Decode; the result has the times of the frames."""
        width, height = self.size
        region = self.region
        scaled = (width, height) != (region.width, region.height)
        return self._decode(size=(width, height) if scaled else None, format=format)

    def numpy(self, *, format: str = "rgb24") -> Pixels:
        """Decode to an array of frames x height x width x channels."""
        return self.frames(format=format).data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        if copy is False:
            raise ValueError("the array exists only after it is decoded: a copy is unavoidable")
        data = self.numpy()
        return data if dtype is None else data.astype(dtype, copy=False)

    def _decode(self, *, size: tuple[int, int] | None, format: str = "rgb24") -> Frames:
        return self._read(
            span=self._span,
            frames=self._chosen,
            fps=self._fps,
            region=self.region,
            size=size,
            format=format,
        )

    def _cut_frames(self, key: Axis) -> _Time:
        if isinstance(key, (int, np.integer)):
            key = slice(int(key), int(key) + 1 or None)
        parts = _parts(key)
        if not parts:
            return self._time
        if not all(isinstance(part, (int, np.integer)) for part in parts):
            raise IndexKindError(
                f"indices of a video count frames and must be ints, got {_shown(key)}",
                hint=f"by time: video.seconds[{_shown(key)}]",
            )
        if self._span is not None:
            raise UsageError(
                "an array that was cut by seconds cannot be cut by frames",
                hint="cut it by seconds, as in array.seconds[2:4]",
            )
        chosen = sliced(self._chosen or range(self._frames), key)
        if not len(chosen):
            raise OutOfRangeError(
                f"a slice must have at least one frame, got {key.start}:{key.stop}"
            )
        return _Time(chosen=chosen)

    def _cut_seconds(self, key: Axis) -> _Time:
        if not _parts(key):
            return self._time
        assert isinstance(key, slice)
        if self._chosen is not None:
            raise UsageError(
                "an array that was cut by frames cannot be cut by seconds",
                hint="cut it by frames, as in array[10:20]",
            )
        start, stop = self._span or (Fraction(0), self._duration)
        first = start + _moment(key.start, stop - start, Fraction(0))
        end = min(stop, start + _moment(key.stop, stop - start, stop - start))
        if end <= first:
            raise OutOfRangeError(
                f"a span must have at least one frame, got {key.start}:{key.stop} s"
            )
        return _Time(span=(first, end), fps=self._fps if key.step is None else _rate(key.step))


class SecondsIndex:
    """Indexes a video by seconds; see `VideoArray.seconds`."""

    def __init__(self, cut: Callable[[Axis | tuple[Axis, ...]], VideoArray]) -> None:
        self._cut = cut

    def __getitem__(self, key: Axis | tuple[Axis, ...]) -> VideoArray:
        """A part by seconds, rows and columns.  Raises as `VideoArray.__getitem__`."""
        return self._cut(key)


def _parts(key: Axis) -> list[Any]:
    if not isinstance(key, slice):
        raise UsageError(f"the index in time must be a slice, got {key!r}")
    return [part for part in (key.start, key.stop, key.step) if part is not None]


def _shown(key: slice) -> str:
    parts = [key.start, key.stop, *([] if key.step is None else [key.step])]
    return ":".join("" if part is None else f"{part!r}" for part in parts)


def _moment(value: Seconds | None, length: Fraction, default: Fraction) -> Fraction:
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


def _cut(axis: range, key: Axis, name: str) -> range:
    if not isinstance(key, slice):
        raise UsageError(f"{name} must be a slice, got {key!r}")
    kept = sliced(axis, key)
    if kept.step < 1:
        raise UsageError(f"the step of {name} must be positive, got {key.step}")
    if not len(kept):
        raise OutOfRangeError(f"{name} must be 1 or more, got {key.start}:{key.stop}")
    # A range ends where its last pixel's block ends, so that the region is what was named.
    return range(kept.start, min(axis.stop, kept.start + len(kept) * kept.step), kept.step)
