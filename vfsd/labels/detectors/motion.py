"""Finds moving objects in front of a fixed camera, by background subtraction."""

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
from vfsd.labels.detectors import (
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

# Number of pictures that the background is learned from. More do not help: a pixel is hidden in the
# same share of them.
_MOST_SAMPLES = 64

# Share of the pictures that must be explained by the colours of a pixel's background. OpenCV's 0.9
# suits a model that forgets. This model weights all pictures equally, so with 0.9 an object present
# for a tenth of the time counts as background. Recall on the generated traffic is 0.55 with 0.9,
# 0.91 with 0.7 and 0.93 with 0.6. With 0.5, departed objects leave ghosts: one box in three.
_RATIO = 0.6

# OpenCV's value for shadows; moving pixels are 255.
_SHADOW = 127

# Noise specks are smaller than this.
_OPENED = np.ones((3, 3), np.uint8)

# Gaps between the parts of one object are smaller than this.
_CLOSED = np.ones((7, 7), np.uint8)

# Version of this algorithm: increment it when the same settings find other boxes.
_VERSION = "1"

# Small objects remain distinguishable from noise, which downscaling averages out.
LONGEST = 480
"""Longer side of the examined pictures in pixels."""

# Blocks are counted from the start of the video, so a run on a part finds the same boxes as a run
# on the whole.
# With fewer, slow objects hide the same pixels in most of them: a playing dog is covered on 0.68 of
# the frames with 120, and on 0.90 with 400. With more, the light may change, and pictures take
# memory (94 MB for these).
BLOCK = 240
"""Frames that share a background: eight seconds at 30 fps."""

# The default of OpenCV's MOG2.
THRESHOLD = 16.0
"""Squared distance in variances: four standard deviations."""

MINIMUM_AREA = 0.00025
"""Share of the picture: 32 pixels of 480x270, a car at 100 m in a traffic camera."""


def moving_masks(pictures: Sequence[Picture], threshold: float, context: int = 0) -> Iterator[Mask]:
    """Yield a mask for each picture (H x W x 3, uint8): 1 where it differs from the static
    background.

    The first `context` pictures are used only for learning.  The background is a mixture of
    Gaussians per pixel (OpenCV's MOG2).  It is learned from pictures spread evenly over the run,
    with equal weights, and then fixed.  So motion is found from the first picture on, and results
    do not depend on the direction of time.  `threshold` is the squared distance from the mean, in
    variances, beyond which a pixel differs.  Shadows do not count.
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
    """Return the bounding box of each connected part of at least `least` pixels, row by row."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    boxes = [
        (int(y), int(x), int(x + width), int(y + height))
        for x, y, width, height, area in stats[1:]
        if area >= least
    ]
    return [(x1, y1, x2, y2) for y1, x1, x2, y2 in sorted(boxes)]


@dataclass(frozen=True, slots=True)
class MotionDetector:
    """Boxes around moving objects, by background subtraction.

    Each block of frames is compared with its static background.  Objects that stand still for most
    of a block are background.  A larger `every` makes blocks last longer, which finds slower
    objects and costs less.  With a moving camera, everything moves.  Boxes are rounded outward and
    have no confidence.  Raises `UsageError` for invalid settings.
    """

    every: Every = 1  #: "key" with one-second GOPs is the method of TASM: one frame per GOP
    label: str = "motion"
    longest: int = LONGEST  #: longer side of the examined pictures in pixels
    threshold: float = THRESHOLD
    minimum_area: float = MINIMUM_AREA  #: share of the frame
    block: int = BLOCK  #: examined frames per block

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", require_every(self.every))
        if self.block < 2:
            raise UsageError(f"block must be at least 2, got {self.block}")
        if not (self.threshold > 0 and 0 <= self.minimum_area < 1 and self.longest > 0):
            raise UsageError(
                "threshold and longest must be positive, and minimum_area at least 0 and below 1"
            )

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

    def request(self, width: int, height: int) -> FrameRequest:
        return FrameRequest(fit_size(width, height, self.longest), "bgr24", self.every, self.block)

    def detect(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
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
    """Return the regions of interest of a run of frames: areas in which anything moves.

    Used to tile a run (a SOT) before any query is known.  The regions do not overlap, and are
    sorted by their upper left corners, rows first.  They are in pixels of the displayed frame,
    rounded outward. The same frames give the same regions.  Raises `UsageError` for pictures of
    different sizes.

    Args:
        frames: Pictures of the displayed frame, all of one size, preferably that of
            `MotionDetector.request`.
        width: The width of the displayed frame in pixels.
        height: Its height.
        context: Frames from elsewhere in the video to learn the background from, of the same size.
            TASM takes the first of each GOP.  Without it, anything static throughout the run is
            background.  All are held in memory.
        margin: Widens the regions on all sides, as a share of the longer side.
        threshold: As in `moving_masks`.
        minimum_area: Ignore smaller parts, as a share of the frame.
    """
    before = [frame.data for frame in context]
    pictures = before + [frame.data for frame in frames]
    if len({picture.shape for picture in pictures}) > 1:
        raise UsageError("all pictures must have the same size")
    if len(pictures) == len(before):
        return []
    rows, columns = pictures[0].shape[:2]
    everything: Mask = np.zeros((rows, columns), np.uint8)
    for mask in moving_masks(pictures, threshold, len(before)):
        # Parts that are too small on each frame are noise, even if they add up.
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
    """Replace overlapping boxes by their bounding box, until none overlap."""
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
