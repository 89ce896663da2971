"""The `Detector` protocol, the chunks of frames that are examined and stored at once, and the
scaling of frames for a detector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Detection, Ints, Source
from vfsd.core.frames import Frame
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import whole_number

Every = int | Literal["key"]
"""Every n-th frame of a video, from its first; "key": the frames at which decoding can start."""

Found = tuple[int, list[Detection]]
"""The number of a frame, and what is in it."""


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """What a detector is to be shown.  Raises `UsageError` for what cannot be."""

    size: tuple[int, int] | None = None  #: pixels, width x height; None: as displayed
    format: str = "rgb24"  #: one of those that `Video.read` takes
    every: Every = 1
    block: int = 1
    """Frames that are looked at together.  With more than one, what is found on a frame depends on
    the others of its block, and blocks are cut from the start of the video, so that it depends on
    nothing else; `every` is then part of what the detector is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", require_every(self.every))
        if self.block < 1:
            raise UsageError(f"a block of {self.block} frames holds none")


class Detector(Protocol):
    """Looks at frames.  The same frames and `source` give the same boxes, whenever it is asked."""

    @property
    def source(self) -> Source:
        """Who says so: everything that what is found depends on."""
        ...

    def wants(self, width: int, height: int) -> FrameRequest:
        """What to show of a video whose displayed frame has width x height pixels."""
        ...

    def find(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        """What is on each of `frames`, which are as `wants` says: one block of them, ascending.

        There is one answer for every frame, in order, also where nothing was found.  Boxes lie
        within the displayed frame of width x height pixels, whatever size was shown.
        """
        ...


def require_every(every: SupportsIndex | Literal["key"]) -> Every:
    """What chooses frames, as it is kept.  Raises `UsageError` for what chooses none."""
    if every == "key":
        return "key"
    try:
        number = whole_number(every, "every")
    except UsageError:
        number = 0
    if number < 1:
        raise UsageError(f"{every!r} chooses no frames", hint='give a number from 1, or "key"')
    return number


CHUNK_FRAMES = 64
"""Frames that are stored together where each is looked at by itself: few enough that little is
lost when a slow detector is interrupted, and a transaction (some 10 ms) costs nothing beside."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkChunk:
    """What is looked at and then stored, all of it or nothing."""

    shown: Ints  #: frames that the detector sees together, ascending
    kept: Ints  #: those of them whose boxes are stored
    covers: range  #: frames up to the next chunk; also those between, which are not looked at


def plan_chunks(
    numbers: Ints, chosen: range, examined: Sequence[range], block: int
) -> list[WorkChunk]:
    """What is left of `chosen` when the `examined` frames are not looked at again.

    `numbers` are the frames of the whole video that the detector may see, ascending, and `block`
    is how many of them it sees together.  Blocks are shown whole, even where only some of their
    frames are left.
    """
    left = (numbers >= chosen.start) & (numbers < chosen.stop) & ~_in_runs(numbers, examined)
    if block == 1:
        wanted = numbers[left]
        parts = [(part, part) for part in _chunks_of(wanted, CHUNK_FRAMES)]
    else:
        starts = _starts(len(numbers), block)
        parts = [
            (shown, shown[mine])
            for shown, mine in zip(np.split(numbers, starts), np.split(left, starts), strict=True)
            if mine.any()
        ]
    ends = [*(int(kept[0]) for _, kept in parts[1:]), chosen.stop]
    firsts = [chosen.start, *ends[:-1]]
    return [
        WorkChunk(shown, kept, range(first, end))
        for (shown, kept), first, end in zip(parts, firsts, ends, strict=False)
    ]


def _in_runs(numbers: Ints, runs: Sequence[range]) -> npt.NDArray[np.bool_]:
    """Which of the ascending numbers lie in any of the runs, of which there may be as many."""
    begun = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(begun, np.searchsorted(numbers, [run.start for run in runs]), 1)
    np.subtract.at(begun, np.searchsorted(numbers, [run.stop for run in runs]), 1)
    return np.cumsum(begun[:-1]) > 0


def stepped_ranges(numbers: Ints) -> Iterator[range]:
    """Ascending numbers as few ranges with equal steps."""
    at = 0
    while at < len(numbers):
        gaps = np.diff(numbers[at:])
        if not len(gaps):
            yield range(int(numbers[at]), int(numbers[at]) + 1)
            return
        other = np.flatnonzero(gaps != gaps[0])
        count = int(other[0]) + 1 if len(other) else len(gaps) + 1
        yield range(int(numbers[at]), int(numbers[at + count - 1]) + 1, int(gaps[0]))
        at += count


def _chunks_of(numbers: Ints, size: int) -> list[Ints]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def _starts(count: int, block: int) -> list[int]:
    """Where the second block and the others begin; a rest of less than half of one has none."""
    starts = list(range(block, count, block))
    if starts and count - starts[-1] < block / 2:
        starts.pop()
    return starts


def fit_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size with these proportions whose longer side has at most `longest` pixels."""
    if longest < 1:
        raise UsageError(f"a picture of {longest} pixels cannot be looked at")
    scale = min(1.0, longest / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def scale_rect_outward(
    box: tuple[int, int, int, int], shown: tuple[int, int], full: tuple[int, int]
) -> Rect:
    """All pixels of the `full` frame that the box of whole pixels of the `shown` picture touches.

    Sizes are (width, height); the box lies within the picture.
    """
    x1, y1, x2, y2 = box
    (across, down), (width, height) = shown, full
    # In integers: with floats a box at the right edge might reach one pixel further.
    return Rect(
        x1 * width // across,
        y1 * height // down,
        -(-x2 * width // across),
        -(-y2 * height // down),
    )
