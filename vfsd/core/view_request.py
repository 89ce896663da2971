"""`View`, the pixels that a caller asks for, and `ViewFile`, the protocol by which the mount reads
the result.
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
"""Frames per second: more are taken for a slip of the pen."""

LARGEST_SIDE = 16384
"""Pixels of the width or height to which frames are scaled: encoders take no more."""


Size = int | tuple[int, int]
"""(width, height), where a 0 keeps the shape; or the length of the shorter side."""


def resolve_size(size: Size, width: int, height: int) -> tuple[int, int]:
    """The (width, height) that `size` means for a picture of width x height pixels.

    A side that follows from the other is even.  Raises `UsageError`.
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
    """Which pixels of a video, how large, how often.

    `span` is in seconds on the video's timeline, which starts at 0 with the first frame; the
    frames that appear in ``span[0] <= t < span[1]`` are meant.  `frames` is (start, stop, step),
    half-open.  At most one of the two is given; neither means everything.  Without `fps` every
    frame comes once; with it, the frame that is on the screen at each multiple of ``1 / fps``
    seconds from the start.  `region` is of the displayed full frame; `size` is (width, height)
    of the result.
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
                    f"nothing lies between {float(start):g} s and {until}",
                    hint="times count from 0, and the second is later than the first",
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
            raise UsageError(
                f"{float(self.fps):g} frames per second are more than {HIGHEST_RATE}, the highest "
                "rate"
            )
        if self.fps is not None and self.frames is not None:
            raise UsageError("a rate goes with a span of time, not with frames")


def scaled_size(given: tuple[int, int]) -> tuple[int, int]:
    """A (width, height) to which frames or parts of them can be scaled, as ints.

    Raises `UsageError` for another one, and for what is no size at all.
    """
    width, height = width_and_height(given)
    if width > LARGEST_SIDE or height > LARGEST_SIDE:
        raise UsageError(
            f"{width}x{height} is too large: frames are scaled to {LARGEST_SIDE} pixels a side"
        )
    if width < 1 or height < 1:
        raise UsageError(
            f"both sides of this size must be at least 1 pixel, got {width}x{height}",
            hint="a side of 0 keeps the shape in views and in reads of whole frames or one region",
        )
    return width, height


CancelCheck = Callable[[], None]
"""Called now and then while somebody waits for a view to be made, by the thread that waits; raises
`OSError` when nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class ViewStat:
    """What `stat` tells of a view, or of a folder of views."""

    is_dir: bool
    size: int  #: bytes; 0 for a folder
    mtime_ns: int  #: that of the video
    is_writable: bool = False  #: frames may be offered as it


class ViewFile(Protocol):
    """A view, open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """Equal for files with the same bytes, and only for these."""

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with just these bytes, if there is one; valid until `close`."""

    @property
    def is_work(self) -> bool:
        """Whether something has to be computed for it, which is given up when nobody wants it."""

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        """Fill `buffer` with what lies at `offset`; short only at the end.  Thread-safe.

        Raises what `patience` does, which is asked now and then while this takes long.
        """

    def close(self) -> None: ...
