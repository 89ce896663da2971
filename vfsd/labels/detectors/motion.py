"""Finds what moves in front of a fixed camera, by background subtraction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Detection, Source
from vfsd.core.frames import Frame
from vfsd.errors import UsageError
from vfsd.labels.detectors.detector import (
    Every,
    Found,
    FrameRequest,
    fit_size,
    require_every,
    scale_rect_outward,
)
from vfsd.tiling import Rect

Mask = npt.NDArray[np.uint8]
Picture = npt.NDArray[Any]

_MOST_SAMPLES = 64
"""Pictures that the background is learned from.  More make it no better: a pixel is hidden in the
same share of them."""

_RATIO = 0.6
"""Share of the pictures that the colours of a pixel's background account for.  OpenCV's 0.9 is
meant for a model that forgets; of one that has seen all pictures alike, it takes what stands in
front for a tenth of the time for background, too: recall on the generated traffic is 0.55 with
0.9, 0.91 with 0.7 and 0.93 with 0.6; with 0.5 what has gone leaves ghosts, one box in three."""

_SHADOW = 127
"""How OpenCV marks a shadow; what moves is 255."""

_OPENED = np.ones((3, 3), np.uint8)
"""Specks of noise are smaller than this."""

_CLOSED = np.ones((7, 7), np.uint8)
"""Parts of one object have gaps smaller than this between them."""


def moving_masks(pictures: Sequence[Picture], threshold: float, context: int = 0) -> Iterator[Mask]:
    """For each picture (H x W x 3, uint8) a mask that is 1 where something differs from what
    stands still in all of them; the first `context` are only learned from.

    The background is a mixture of Gaussians for each pixel (OpenCV's MOG2) that is learned from
    pictures spread evenly over the run, all with the same weight, and does not change afterwards.
    So what moves is told from the first picture on, and what is found does not depend on the
    direction of time.  `threshold` is the squared distance from the mean, in variances, beyond
    which a pixel differs; shadows do not count.
    """
    model = cv2.createBackgroundSubtractorMOG2(len(pictures), threshold, True)
    model.setBackgroundRatio(_RATIO)
    samples = np.unique(np.linspace(0, len(pictures) - 1, _MOST_SAMPLES).round().astype(int))
    for already, at in enumerate(samples):
        model.apply(pictures[at], learningRate=1 / (already + 1))
    for picture in pictures[context:]:
        mask = model.apply(picture, learningRate=0)
        found: Mask = (np.asarray(mask) > _SHADOW).astype(np.uint8)
        found = np.asarray(cv2.morphologyEx(found, cv2.MORPH_OPEN, _OPENED), np.uint8)
        yield np.asarray(cv2.morphologyEx(found, cv2.MORPH_CLOSE, _CLOSED), np.uint8)


def connected_boxes(mask: Mask, least: float) -> list[tuple[int, int, int, int]]:
    """The box of each connected part of at least `least` pixels, by its place in the picture."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    boxes = [
        (int(y), int(x), int(x + width), int(y + height))
        for x, y, width, height, area in stats[1:]
        if area >= least
    ]
    return [(x1, y1, x2, y2) for y1, x1, x2, y2 in sorted(boxes)]


_VERSION = "1"
"""Of what is done here: counted up when the same settings find other boxes."""

LONGEST = 480
"""Pixels of the longer side of what is looked at: small objects can still be told from noise,
which scaling down averages out."""

# Blocks are counted from the start of the video, so a run of a part finds the same boxes as a run
# of the whole.
BLOCK = 240
"""Frames that share a background: eight seconds at 30 frames a second.  With fewer, slow objects
hide the same pixels in most of them (a dog at play is covered on 0.68 of the frames with 120, on
0.90 with 400); with more, light has time to change, and pictures need memory (94 MB for these)."""

THRESHOLD = 16.0
"""Variances, squared distance: four standard deviations.  The default of OpenCV's MOG2."""

MINIMUM_AREA = 0.00025
"""Part of the picture: 32 pixels of 480x270, a car 100 m away in a traffic camera."""


@dataclass(frozen=True, slots=True)
class MotionDetector:
    """Boxes around what moves, by background subtraction.

    Blocks of frames are compared with what stands still in them.  What is still for most of a
    block is background; a larger `every` makes blocks last longer, which shows slower objects and
    costs less.  Before a camera that moves everything does.  Boxes are rounded outward.  Nobody
    knows how sure it is: no confidence.  Raises `UsageError`.
    """

    every: Every = 1  #: "key" with groups of a second is what TASM does: one frame of each group
    label: str = "motion"
    longest: int = LONGEST  #: pixels of the longer side of what is looked at
    threshold: float = THRESHOLD
    minimum_area: float = MINIMUM_AREA  #: part of the frame
    block: int = BLOCK  #: frames, of those that are looked at

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", require_every(self.every))
        if self.block < 2:
            raise UsageError("motion is told from at least two frames")
        if not (self.threshold > 0 and 0 <= self.minimum_area < 1 and self.longest > 0):
            raise UsageError("sizes and thresholds are above 0, an area is a part of the frame")

    @property
    def source(self) -> Source:
        return Source(
            "motion",
            "MOG2",
            _VERSION,
            {
                "every": self.every,
                "label": self.label,
                "longest": self.longest,
                "threshold": self.threshold,
                "minimum_area": self.minimum_area,
                "block": self.block,
            },
        )

    def wants(self, width: int, height: int) -> FrameRequest:
        return FrameRequest(fit_size(width, height, self.longest), "bgr24", self.every, self.block)

    def find(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        shown = list(frames)
        pictures = [frame.data for frame in shown]
        for frame, mask in zip(shown, moving_masks(pictures, self.threshold), strict=True):
            yield (
                frame.index,
                [
                    Detection(frame.index, self.label, (box.x1, box.y1, box.x2, box.y2))
                    for box in _boxes(mask, self.minimum_area, width, height)
                ],
            )


def motion_regions(
    frames: Iterable[Frame],
    width: int,
    height: int,
    *,
    context: Iterable[Frame] = (),
    margin: float = 0.01,
    threshold: float = THRESHOLD,
    minimum_area: float = MINIMUM_AREA,
) -> list[Rect]:
    """The regions of interest of a run of frames: where anything moves in any of them.

    For tiling a run (a SOT) around what may matter, before anybody has asked for anything.
    `frames` are pictures of the displayed frame of width x height pixels, all of one size, best of
    the one that `MotionDetector.wants`; the result is in pixels of the displayed frame, rounded
    outward and widened by `margin` (part of the longer side) on all sides.  No two regions
    overlap; they are ordered by their upper left corner, rows first.  Where nothing moves there
    are none.

    `context` are frames from elsewhere in the video to learn the background from, of the same
    size: TASM takes the first of each group of pictures.  Without it, what is still all through
    the run is background.  They are held in memory together, with the run.  The same frames give
    the same regions.  Raises `UsageError` for pictures of different sizes.
    """
    before = [frame.data for frame in context]
    pictures = before + [frame.data for frame in frames]
    if len({picture.shape for picture in pictures}) > 1:
        raise UsageError("pictures of different sizes cannot be compared")
    if len(pictures) == len(before):
        return []
    rows, columns = pictures[0].shape[:2]
    everything: Mask = np.zeros((rows, columns), np.uint8)
    for mask in moving_masks(pictures, threshold, len(before)):
        # Parts too small on each frame are noise, even where they add up to something.
        for x1, y1, x2, y2 in connected_boxes(mask, minimum_area * mask.size):
            everything[y1:y2, x1:x2] = 1
    around = 2 * round(margin * max(rows, columns)) + 1
    wide = np.asarray(cv2.dilate(everything, np.ones((around, around), np.uint8)), np.uint8)
    return _merge_overlapping(
        [
            scale_rect_outward(box, (columns, rows), (width, height))
            for box in connected_boxes(wide, 1)
        ]
    )


def _boxes(mask: Mask, minimum_area: float, width: int, height: int) -> list[Rect]:
    shown = mask.shape[1], mask.shape[0]
    return [
        scale_rect_outward(box, shown, (width, height))
        for box in connected_boxes(mask, minimum_area * mask.size)
    ]


def _merge_overlapping(boxes: list[Rect]) -> list[Rect]:
    """Boxes that overlap are replaced by the one around them, until none do."""
    left: list[Rect] = []
    for box in boxes:
        while (other := next((one for one in left if one.intersection(box)), None)) is not None:
            left.remove(other)
            box = Rect(
                min(box.x1, other.x1),
                min(box.y1, other.y1),
                max(box.x2, other.x2),
                max(box.y2, other.y2),
            )
        left.append(box)
    return sorted(left, key=lambda box: (box.y1, box.x1))
