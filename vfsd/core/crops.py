"""Areas of frames that are wanted, and their pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from vfsd.core.detections import Detection
from vfsd.core.frames import Pixels
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import whole_number


@dataclass(frozen=True, eq=False, slots=True)
class Crop:
    """The pixels of one box."""

    data: Pixels  #: H x W x C
    frame: int  #: from 0, in display order
    seconds: float  #: on the video's timeline
    rect: Rect  #: of the displayed frame: the whole pixels that the box touches
    detections: tuple[Detection, ...]  #: what was seen there

    def __repr__(self) -> str:
        labels = ", ".join(sorted({one.label for one in self.detections})) or "no label"
        return f"<Crop frame {self.frame} at {self.seconds:.2f} s, {self.rect}: {labels}>"


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Crops of one size."""

    data: Pixels  #: N x H x W x C
    crops: tuple[Crop, ...]  #: N; their `data` are those of the batch

    def __repr__(self) -> str:
        height, width = self.data.shape[1:3]
        return f"<Batch of {len(self.crops)} crops of {width}x{height}>"


@dataclass(frozen=True, slots=True)
class Want:
    """An area of a frame, and what was seen in it."""

    frame: int
    rect: Rect  #: of the displayed frame
    detections: tuple[Detection, ...]


def padded(detection: Detection, media: MediaInfo, padding: int) -> Rect:
    """The whole pixels that a box touches, with `padding` more on every side that are there.

    The box has to be in the displayed frame, at least in part.
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


def batched(crops: Iterator[Crop], count: int) -> Iterator[Batch]:
    """Crops of one size, `count` at a time; the last batch may have fewer.  Raises `UsageError`."""
    count = whole_number(count, "count")
    if count < 1:
        raise UsageError(f"a batch of {count} holds nothing")
    while some := tuple(islice(crops, count)):
        yield Batch(np.stack([crop.data for crop in some]), some)
