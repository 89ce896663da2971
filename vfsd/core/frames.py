"""Decoded frames and crops of frames: pixels with exact times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Detection
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import whole_number

Pixels = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """One frame."""

    data: Pixels  #: H x W x C, uint8 (uint16 for formats of more than 8 bits)
    index: int  #: from 0, in display order
    pts: int  #: ticks of the stream's time base, as in the file
    seconds: float  #: on the video's timeline, which starts at 0 with the first frame
    duration: float  #: seconds until the next frame is shown
    damaged: bool = False  #: shows damage of the file; see `Frames.damaged`

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        return _as_array(self.data, dtype, copy)

    def __repr__(self) -> str:
        return f"<Frame {self.index} at {self.seconds:.3f} s, {_shape(self.data)}>"


@dataclass(frozen=True, eq=False, slots=True)
class Frames:
    """A run of frames.  All arrays have one element per frame."""

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

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Frame: ...
    @overload
    def __getitem__(self, at: slice | list[int] | npt.NDArray[Any]) -> Frames: ...

    def __getitem__(
        self, at: int | np.integer[Any] | slice | list[int] | npt.NDArray[Any]
    ) -> Frame | Frames:
        """Return one frame, or those of a slice, a mask or an index array, as numpy arrays do.

        Raises `UsageError` for other types, and `IndexError` for indices out of range.
        """
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        return _as_array(self.data, dtype, copy)

    def __repr__(self) -> str:
        return f"<Frames: {_shape(self.data)}>"


def _as_array(data: Pixels, dtype: Any, copy: bool | None) -> Pixels:
    """Return the array for numpy, which would make an array of objects otherwise.

    Raises `ValueError` if a copy is required and `copy` is False.
    """
    found = data if dtype is None else data.astype(dtype, copy=False)
    if copy is False and found is not data:
        raise ValueError(
            f"converting pixels from {data.dtype} to {np.dtype(dtype)} requires a copy"
        )
    return found.copy() if copy and found is data else found


def _shape(data: Pixels) -> str:
    return f"{' x '.join(map(str, data.shape))} {data.dtype}"


@dataclass(frozen=True, eq=False, slots=True)
class Crop:
    """The pixels of one box."""

    data: Pixels  #: H x W x C
    frame: int  #: from 0, in display order
    seconds: float  #: on the video's timeline
    rect: Rect  #: of the displayed frame: the whole pixels that the box touches
    detections: tuple[Detection, ...]  #: the detections in the box

    def __repr__(self) -> str:
        labels = ", ".join(sorted({one.label for one in self.detections})) or "no label"
        return f"<Crop frame {self.frame} at {self.seconds:.2f} s, {self.rect}: {labels}>"


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Crops of one size."""

    data: Pixels  #: N x H x W x C
    crops: tuple[Crop, ...]  #: N; their `data` are views of the batch

    def __repr__(self) -> str:
        height, width = self.data.shape[1:3]
        return f"<Batch of {len(self.crops)} crops of {width}x{height}>"


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
