"""People who stand or walk, by OpenCV's histograms of oriented gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from vfsd.core.detections import Detection, Source
from vfsd.core.frames import Frame
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.labels.detectors.detector import Found, Wanted
from vfsd.labels.detectors.nms import Scored, best_of

_VERSION = "1"
"""Of what is done here: counted up when the same settings find other boxes."""

LONGEST = 960
"""Pixels of the longer side of what is looked at, to which smaller frames are enlarged: the
detector's window is 64 x 128 pixels, and whoever is smaller than three quarters of it is not seen.
"""

_MOST_ENLARGED = 2.0
"""Times.  Beyond that there are no gradients to be had any more."""

_STEP = 1.05
"""From one size that is searched for to the next.  OpenCV's default."""

_STRIDE = (8, 8)
"""Pixels from one place that is searched to the next: one cell of the histograms."""

_PADDING = (8, 8)
"""Pixels around the picture, so that people at its edge are found."""

_OVERLAP = 0.4
"""Intersection over union from which two boxes are the same person: people who walk side by side
overlap by less."""

_MARGIN = (0.1, 0.07, 0.03)
"""Parts of the window that are empty at either side, above and below: the people it was trained
with stand in the middle of it.  OpenCV's own sample, peopledetect, cuts off the same."""


@dataclass(frozen=True, slots=True)
class PeopleDetector:
    """Upright people of whom most is to be seen, from about 100 pixels of height.

    The confidence is the distance from the boundary of OpenCV's support vector machine, pressed
    into 0.5 to 1 by the logistic function: an order, no probability.  Raises `UsageError`,
    `ExtraMissingError` where OpenCV has no such detector.
    """

    min_confidence: float = 0.6  #: below, most are lamp posts
    label: str = "person"
    longest: int = LONGEST

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1 or self.longest < 1:
            raise UsageError("a confidence lies within 0 and 1, and a picture has pixels")
        _model()

    @property
    def source(self) -> Source:
        return Source(
            "people",
            "HOG",
            _VERSION,
            {
                "label": self.label,
                "longest": self.longest,
                "min_confidence": self.min_confidence,
            },
        )

    def wants(self, width: int, height: int) -> Wanted:
        scale = min(_MOST_ENLARGED, self.longest / max(width, height))
        return Wanted((max(1, round(width * scale)), max(1, round(height * scale))), "gray")

    def find(self, frames: Iterable[Frame], width: int, height: int) -> Iterator[Found]:
        for frame in frames:
            found = self._find(frame, width, height)
            yield (
                frame.index,
                [Detection(frame.index, self.label, one.box, one.confidence) for one in found],
            )

    def _find(self, frame: Frame, width: int, height: int) -> list[Scored]:
        rows, columns = frame.data.shape[:2]
        picture = np.ascontiguousarray(frame.data).reshape(rows, columns)
        boxes, weights = _model().detectMultiScale(
            picture, winStride=_STRIDE, padding=_PADDING, scale=_STEP, groupThreshold=0
        )
        across, down = width / columns, height / rows
        side, above, below = _MARGIN
        found = []
        for (x, y, w, h), weight in zip(boxes, np.ravel(weights), strict=True):
            x1, x2 = x + side * w, x + (1 - side) * w
            y1, y2 = y + above * h, y + (1 - below) * h
            confidence = float(1 / (1 + np.exp(-weight)))
            if confidence >= self.min_confidence:
                box = (x1 * across, y1 * down, x2 * across, y2 * down)
                found.append(Scored(box, 0, confidence))
        return best_of(found, _OVERLAP, width, height)


@functools.cache
def _model() -> Any:
    # OpenCV 5 has moved it from opencv-python to opencv-contrib-python.
    make = getattr(cv2, "HOGDescriptor", None)
    if make is None:
        raise ExtraMissingError(
            f"OpenCV {cv2.__version__} has no detector of people",
            hint="pip install 'vfsd[people]', or opencv-contrib-python in the place of "
            "opencv-python",
        )
    model = make()
    model.setSVMDetector(cv2.HOGDescriptor_getDefaultPeopleDetector())  # type: ignore[attr-defined,unused-ignore]
    return model
