"""`VideoArray`: a video as a lazy array of (time, rows, columns), sliced like one of numpy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from vfsd.errors import OutOfRangeError, UsageError
from vfsd.framenumbers import cut
from vfsd.frames import Frames, Pixels
from vfsd.tiling import Rect
from vfsd.units import Seconds, seconds

Axis = slice | int
"""Slices only; an int on the time axis means that frame."""

Read = Callable[..., Frames]
"""`Video.read`."""
Count = Callable[[tuple[Fraction, Fraction], Fraction | None], int]
"""How many frames a read of a span gives, at a rate or without one."""


class VideoArray:
    """Part of a video, described but not decoded.

    Axes are time, rows and columns.  Times are seconds (floats, fractions or strings such as
    ``"1:30"``) or, where they are ints, frame numbers; a step in time asks for a rate (every 0.2
    seconds) or for every n-th frame.  Rows and columns are pixels; a step there scales down by
    that factor.  A slice of a slice counts from the start of the first: seconds, frames and
    pixels of what it shows, as with numpy.

        clip = video[10.0:20.0, 100:400, 200:600]
        clip[2.0:4.0, ::2, ::2].numpy()
    """

    def __init__(
        self,
        read: Read,
        frames: int,
        duration: Fraction,
        shape: tuple[int, int],
        count: Count,
        *,
        span: tuple[Fraction, Fraction] | None = None,
        chosen: range | None = None,
        fps: Fraction | None = None,
        rows: range | None = None,
        columns: range | None = None,
    ) -> None:
        self._read = read
        self._frames = frames
        self._duration = duration
        self._full = shape
        self._count = count
        self._span = span
        self._chosen = chosen
        self._fps = fps
        self._rows = range(shape[0]) if rows is None else rows
        self._columns = range(shape[1]) if columns is None else columns

    @property
    def region(self) -> Rect:
        """Which pixels of the displayed frame it shows."""
        rows, columns = self._rows, self._columns
        return Rect(columns.start, rows.start, columns.stop, rows.stop)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of what it shows, after scaling."""
        return len(self._columns), len(self._rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """That of `numpy()`: frames, rows, columns and R, G, B.  Nothing is decoded."""
        width, height = self.size
        return len(self), height, width, 3

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """That of `numpy()`."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """That of `numpy()`: of its axes the last, of colours, cannot be cut."""
        return 4

    def __len__(self) -> int:
        """The number of frames, as the frame table has it."""
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
        """Raises `UsageError` for keys it cannot have, `OutOfRangeError` for empty parts."""
        axes = key if isinstance(key, tuple) else (key,)
        if len(axes) > 3:
            raise UsageError("a video has three axes: time, rows and columns")
        everything = (slice(None),) * 3
        time, rows, columns = (*axes, *everything)[:3]
        changed: dict[str, Any] = self._cut_time(time)
        changed["rows"] = _cut(self._rows, rows, "rows")
        changed["columns"] = _cut(self._columns, columns, "columns")
        return VideoArray(
            self._read, self._frames, self._duration, self._full, self._count, **changed
        )

    def at(self, width: int, height: int) -> Frames:
        """Decoded and scaled to width x height pixels."""
        return self._decode(size=(width, height))

    def frames(self, *, format: str = "rgb24") -> Frames:
        """Decoded, with the times of the frames."""
        width, height = self.size
        region = self.region
        scaled = (width, height) != (region.width, region.height)
        return self._decode(size=(width, height) if scaled else None, format=format)

    def numpy(self, *, format: str = "rgb24") -> Pixels:
        """Decoded: N x H x W x C."""
        return self.frames(format=format).data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        if copy is False:
            raise ValueError("there is no array of it before it is decoded")
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

    def _cut_time(self, key: Axis) -> dict[str, Any]:
        kept = {"span": self._span, "chosen": self._chosen, "fps": self._fps}
        if isinstance(key, (int, np.integer)):
            key = slice(int(key), int(key) + 1 or None)
        if not isinstance(key, slice):
            raise UsageError(f"{key!r} is no slice of time")
        parts = [part for part in (key.start, key.stop, key.step) if part is not None]
        if not parts:
            return kept
        if all(isinstance(part, (int, np.integer)) for part in parts):
            if self._span is not None:
                raise UsageError(
                    "ints count frames, and this array is cut by time already",
                    hint="write seconds as floats: 2.0:4.0; `frames()` gives what can be counted",
                )
            chosen = cut(self._chosen or range(self._frames), key)
            if not len(chosen):
                raise OutOfRangeError(f"{key.start}:{key.stop} holds no frame")
            return {"chosen": chosen}
        if self._chosen is not None:
            raise UsageError("this array is cut by frames already; cut it by ints")
        start, stop = self._span or (Fraction(0), self._duration)
        first = start + _moment(key.start, stop - start, Fraction(0))
        end = min(stop, start + _moment(key.stop, stop - start, stop - start))
        if end <= first:
            raise OutOfRangeError(f"{key.start}:{key.stop} holds no time")
        return {"span": (first, end), "fps": self._fps if key.step is None else _rate(key.step)}


def _moment(value: Seconds | None, length: Fraction, default: Fraction) -> Fraction:
    if value is None:
        return default
    exact = seconds(value)
    return max(Fraction(0), length + exact) if exact < 0 else exact


def _rate(step: Seconds) -> Fraction:
    """Frames per second, of which one comes every `step` seconds."""
    exact = seconds(step)
    if exact <= 0:
        raise UsageError("a step in time is larger than 0")
    return 1 / exact


def _cut(axis: range, key: Axis, name: str) -> range:
    if not isinstance(key, slice):
        raise UsageError(f"{name} are cut by slices, not by {key!r}")
    kept = cut(axis, key)
    if kept.step < 1:
        raise UsageError(f"{name} cannot be turned round")
    if not len(kept):
        raise OutOfRangeError(f"{key.start}:{key.stop} holds no {name}")
    # A range ends where its last pixel's block ends, so that the region is what was named.
    return range(kept.start, min(axis.stop, kept.start + len(kept) * kept.step), kept.step)
