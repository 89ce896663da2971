"""Detectors find objects in frames: the `Detector` protocol, the chunks of frames that are
examined and stored together, and scaling.  `make_detector` builds a detector from its name on
the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Detection, Ints, Source
from vfsd.core.frames import Frame
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import not_one_of, whole_number

Every = int | Literal["key"]
"""Every n-th frame of a video, from its first; "key": the frames at which decoding can start."""

Found = tuple[int, list[Detection]]
"""Frame number, and the boxes on that frame."""

# Few enough that an interrupted slow detector loses little; enough that a transaction (some 10 ms)
# is negligible.
CHUNK_FRAMES = 64
"""Frames that are stored together if each is examined alone."""

__all__ = [
    "Detector",
    "Every",
    "FrameRequest",
    "make_detector",
]


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """The frames that a detector needs as input.  Raises `UsageError` for invalid values."""

    size: tuple[int, int] | None = None  #: pixels, width x height; None: as displayed
    format: str = "rgb24"  #: a format of `Video.read`
    every: Every = 1
    block: int = 1
    """Number of frames that are examined together.  With more than one, the boxes on a frame depend
    on the other frames of its block.  Blocks are counted from the start of the video, so that
    results depend on nothing else; `every` is then part of the source.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", require_every(self.every))
        if self.block < 1:
            raise UsageError(f"block must be at least 1, got {self.block}")


class Detector(Protocol):
    """Finds boxes on frames.  Deterministic: the same frames and `source` give the same boxes."""

    @property
    def source(self) -> Source:
        """The source of the boxes: everything that results depend on."""
        ...

    def request(self, width: int, height: int) -> FrameRequest:
        """Return the input needed for a video with a displayed frame of width x height pixels."""
        ...

    def detect(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        """Yield the boxes on each of `frames`: one block as requested, ascending.

        Every frame gets an item, in order, also without boxes.  Boxes lie within the displayed
        frame of width x height pixels, whatever the input size.
        """
        ...


def require_every(every: SupportsIndex | Literal["key"]) -> Every:
    """Return a valid `every`.  Raises `UsageError`."""
    if every == "key":
        return "key"
    try:
        number = whole_number(every, "every")
    except UsageError:
        number = 0
    if number < 1:
        raise UsageError(f'every must be at least 1, or "key", got {every!r}')
    return number


@dataclass(frozen=True, slots=True, eq=False)
class WorkChunk:
    """A unit of work that is stored as a whole or not at all."""

    shown: Ints  #: frames that the detector sees together, ascending
    kept: Ints  #: those of them with boxes to store
    covers: range  #: frames up to the next chunk, including those that are not examined


def plan_chunks(
    numbers: Ints, chosen: range, examined: Sequence[range], block: int
) -> list[WorkChunk]:
    """Return the chunks for the frames of `chosen` that are not in `examined`.

    `numbers` are all frames of the video that the detector may see, ascending; `block` is the
    number that it sees together.  Whole blocks are shown, even if only some of their frames are
    needed.
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


def block_starts(count: int, block: int) -> list[int]:
    """Return the positions at which work on `count` frames may be divided between processes."""
    return _starts(count, block) if block > 1 else list(range(CHUNK_FRAMES, count, CHUNK_FRAMES))


def _in_runs(numbers: Ints, runs: Sequence[range]) -> npt.NDArray[np.bool_]:
    """Return whether each of the ascending numbers lies in a run; fast for many runs."""
    begun = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(begun, np.searchsorted(numbers, [run.start for run in runs]), 1)
    np.subtract.at(begun, np.searchsorted(numbers, [run.stop for run in runs]), 1)
    return np.cumsum(begun[:-1]) > 0


def stepped_ranges(numbers: Ints) -> Iterator[range]:
    """Yield ascending numbers as few ranges with equal steps."""
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
    """Return the starts of all blocks but the first; the last may be up to half a block longer."""
    starts = list(range(block, count, block))
    if starts and count - starts[-1] < block / 2:
        starts.pop()
    return starts


def fit_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return the size with these proportions whose longer side has at most `longest` pixels."""
    if longest < 1:
        raise UsageError(f"longest must be at least 1, got {longest}")
    scale = min(1.0, longest / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def scale_rect_outward(
    box: tuple[int, int, int, int], shown: tuple[int, int], full: tuple[int, int]
) -> Rect:
    """Return all pixels of the `full` frame that a box of the `shown` picture touches.

    Sizes are (width, height); the box has integer edges within the picture.
    """
    x1, y1, x2, y2 = box
    (across, down), (width, height) = shown, full
    # In integers: with floats, a box at the right edge could extend one pixel further.
    return Rect(
        x1 * width // across,
        y1 * height // down,
        -(-x2 * width // across),
        -(-y2 * height // down),
    )


def make_detector(
    text: str,
    *,
    every: Every = 1,
    min_confidence: float | None = None,
    label: str | None = None,
    names: Path | None = None,
) -> Detector:
    """Build the detector ``motion`` or ``onnx:MODEL.onnx``.  Raises `UsageError` and its own
    errors.

    Args:
        text: The name of the detector.
        every: The step between frames; used only by detectors with results that depend on it.
        min_confidence: None: the default of the detector.
        label: None: the default of the detector.
        names: A file with class names.
    """
    kind, _, path = text.partition(":")
    if names is not None and kind != "onnx":
        raise UsageError(f"names requires an ONNX model; {text} has no classes")
    # OpenCV and ONNX Runtime are slow to import; each is loaded for its own detector only.
    if text == "motion":
        from vfsd.labels.detectors.motion import MotionDetector

        if min_confidence is not None:
            raise UsageError("min_confidence requires an ONNX model; motion has no confidence")
        return MotionDetector(every) if label is None else MotionDetector(every, label)
    if kind == "onnx" and path:
        from vfsd.labels.detectors.onnx import OnnxDetector

        if min_confidence is None:
            return OnnxDetector(path, label=label, names=names)
        return OnnxDetector(path, label=label, names=names, min_confidence=min_confidence)
    raise not_one_of("detector", text, ("motion", "onnx:MODEL.onnx"))
