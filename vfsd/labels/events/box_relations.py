"""Conditions on the boxes of one frame: `near`, `left_of`, `inside` and others.

Each takes the boxes of its variables, in rows that belong together, then its arguments, and returns
one bool for each row.  A distance is between centres, in mean widths of both boxes (Zhang et al.,
EQUI-VOCAL, PVLDB 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Floats, Ints
from vfsd.tiling import Rect

Bools = npt.NDArray[np.bool_]
Relation = Callable[..., Any]
"""A condition: (boxes of each variable, arguments) -> bools."""


@dataclass(frozen=True, slots=True, eq=False)
class EventBoxes:
    """Boxes of one variable, one in each row."""

    frames: Ints
    boxes: Floats  #: N x 4: x1, y1, x2, y2 in pixels of the displayed frame
    confidences: Floats  #: NaN: none
    tracks: Ints  #: -1: none
    speeds: Floats  #: of the centre, in widths of the box per second; NaN: unknown

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def widths(self) -> Floats:
        """Widths in pixels."""
        found: Floats = self.boxes[:, 2] - self.boxes[:, 0]
        return found

    @property
    def heights(self) -> Floats:
        """Heights in pixels."""
        found: Floats = self.boxes[:, 3] - self.boxes[:, 1]
        return found

    @property
    def centers(self) -> Floats:
        """N x 2: x and y of the centres."""
        found: Floats = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        return found

    def take(self, rows: Ints | Bools) -> EventBoxes:
        """Return some rows."""
        return EventBoxes(
            self.frames[rows],
            self.boxes[rows],
            self.confidences[rows],
            self.tracks[rows],
            self.speeds[rows],
        )


@dataclass(frozen=True, slots=True)
class RelationShape:
    """The variables and arguments that a condition takes."""

    test: Relation
    variables: int
    defaults: tuple[float | None, ...] = ()  #: of its arguments; None: required
    takes_region: bool = False  #: after its variables


def _distances(a: EventBoxes, b: EventBoxes) -> Floats:
    apart = np.hypot(*(a.centers - b.centers).T)
    found: Floats = apart / ((a.widths + b.widths) / 2)
    return found


def overlap_ratios(ones: Floats, others: Floats) -> Floats:
    """Return the intersection over union of boxes: ... x 4, of shapes that broadcast."""
    low = np.maximum(ones[..., :2], others[..., :2])
    high = np.minimum(ones[..., 2:], others[..., 2:])
    common = np.prod(np.maximum(high - low, 0), axis=-1)
    found: Floats = common / (box_areas(ones) + box_areas(others) - common)
    return found


def box_areas(boxes: Floats) -> Floats:
    found: Floats = np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)
    return found


def _inside(a: EventBoxes, region: Rect) -> Bools:
    x, y = a.centers.T
    found: Bools = (region.x1 <= x) & (x < region.x2) & (region.y1 <= y) & (y < region.y2)
    return found


RELATIONS: Mapping[str, RelationShape] = MappingProxyType(
    {
        "near": RelationShape(lambda a, b, most: _distances(a, b) < most, 2, (1.0,)),
        "far": RelationShape(lambda a, b, least: _distances(a, b) > least, 2, (3.0,)),
        "left_of": RelationShape(lambda a, b: a.centers[:, 0] < b.centers[:, 0], 2),
        "right_of": RelationShape(lambda a, b: a.centers[:, 0] > b.centers[:, 0], 2),
        "above": RelationShape(lambda a, b: a.centers[:, 1] < b.centers[:, 1], 2),
        "below": RelationShape(lambda a, b: a.centers[:, 1] > b.centers[:, 1], 2),
        "overlaps": RelationShape(
            lambda a, b, least: overlap_ratios(a.boxes, b.boxes) > least, 2, (0.0,)
        ),
        "inside": RelationShape(_inside, 1, takes_region=True),
        "faster": RelationShape(lambda a, least: a.speeds > least, 1, (None,)),
        "slower": RelationShape(lambda a, most: a.speeds < most, 1, (None,)),
    }
)
"""The conditions that every event may use."""
