"""`View`, the pixels that a caller requests, and `ViewFile`, the protocol for reading the result.

The mount implements files below ``NAME@/`` with `ViewFile`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown
from typing import Any, Protocol

from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import is_one_integer, width_and_height

HIGHEST_RATE = 1000
"""Frames per second: a higher rate is taken for a mistake."""

LARGEST_SIDE = 16384
"""Largest width or height of scaled frames: encoders accept no more."""


Size = int | tuple[int, int]
"""(width, height), where a 0 keeps the aspect ratio; or the length of the shorter side."""


def resolve_size(size: Size, width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) that `size` means for a picture of width x height pixels.

    A side that is derived from the other is even.  Raises `UsageError`.
    """
    pair: Any = size
    if is_one_integer(pair):
        pair = (operator.index(pair), 0) if width <= height else (0, operator.index(pair))
    try:
        w, h = width_and_height(pair)
    except UsageError as error:
        raise UsageError(f"size must be (width, height) or an int, got {shown(size)}") from error
    if min(w, h) < 0 or not (w or h):
        raise UsageError(f"size must have a side of at least 1 pixel, got {w}x{h}")
    w = w or max(2, round(Fraction(width * h, height) / 2) * 2)
    h = h or max(2, round(Fraction(height * w, width) / 2) * 2)
    return scaled_size((w, h))


@dataclass(frozen=True, slots=True)
class View:
    """The requested pixels of a video, their size and rate.

    `span` is in seconds on the video's timeline, which starts at 0 with the first frame.  It
    selects the frames that appear in ``span[0] <= t < span[1]``.  `frames` is (start, stop, step),
    half-open. At most one of the two is given; neither selects everything.  Without `fps`, every
    frame comes once. With it, the frame on screen at each multiple of ``1 / fps`` seconds from the
    start.  `region` refers to the displayed full frame; `size` is (width, height) of the result.
    """

    span: tuple[Fraction, Fraction | None] | None = None
    frames: tuple[int, int | None, int] | None = None
    region: Rect | None = None
    size: tuple[int, int] | None = None
    fps: Fraction | None = None

    def __post_init__(self) -> None:
        if self.span is not None and self.frames is not None:
            raise UsageError("give either a span of time or frames, not both")
        if self.span is not None:
            start, stop = self.span
            if start < 0 or (stop is not None and stop <= start):
                until = "the end" if stop is None else f"{float(stop):g} s"
                raise UsageError(
                    f"the span must not be empty, got {float(start):g} s to {until}",
                    hint="times count from 0, and the second must be later than the first",
                )
        if self.frames is not None:
            first, end, step = self.frames
            if first < 0 or step < 1 or (end is not None and end <= first):
                raise UsageError(f"frames must have at least one frame, got {first}:{end}:{step}")
        if self.size is not None:
            object.__setattr__(self, "size", scaled_size(self.size))
        if self.fps is not None and self.fps <= 0:
            raise UsageError(f"fps must be more than 0, got {self.fps}")
        if self.fps is not None and self.fps > HIGHEST_RATE:
            raise UsageError(f"fps must be at most {HIGHEST_RATE}, got {float(self.fps):g}")
        if self.fps is not None and self.frames is not None:
            raise UsageError("fps requires a span of time, not frames")


def scaled_size(given: tuple[int, int]) -> tuple[int, int]:
    """Return a valid (width, height) for scaled frames, as ints.

    Raises `UsageError` for sizes out of range, and for anything but a pair.
    """
    width, height = width_and_height(given)
    if width > LARGEST_SIDE or height > LARGEST_SIDE:
        raise UsageError(
            f"both sides of size must be at most {LARGEST_SIDE} pixels, got {width}x{height}"
        )
    if width < 1 or height < 1:
        raise UsageError(
            f"both sides of size must be at least 1 pixel, got {width}x{height}",
            hint="0 for one side is valid for views, and for reads of whole frames or one region",
        )
    return width, height


CancelCheck = Callable[[], None]
"""Called periodically by the thread that waits for a view; raises `OSError` if the request was
cancelled.
"""


@dataclass(frozen=True, slots=True)
class ViewStat:
    """The result of `stat` for a view, or for a directory of views."""

    is_dir: bool
    size: int  #: bytes; 0 for a directory
    mtime_ns: int  #: that of the video
    is_writable: bool = False  #: frames may be written to it


class ViewFile(Protocol):
    """A view, open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """Equal for files with the same bytes, and only for these."""

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with exactly these bytes, or None; valid until `close`."""

    @property
    def is_work(self) -> bool:
        """Whether reading requires computation, which is cancelled when the request is."""

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        """Fill `buffer` from `offset`; short only at the end.  Thread-safe.

        Calls `cancel_check` periodically during long work, and propagates its errors.
        """

    def close(self) -> None: ...
