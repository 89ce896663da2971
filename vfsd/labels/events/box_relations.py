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


class EventBoxes:
    """Boxes of one variable, one in each row."""

    def __init__(
        self, frames: Ints, boxes: Floats, confidences: Floats, tracks: Ints, speeds: Floats
    ) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            "frames": frames,
            "boxes": boxes,
            "confidences": confidences,
            "tracks": tracks,
            "speeds": speeds,
        }
        self._rows: Ints | None = None  # of the boxes that these were taken from
        self._origin = self
        self._count = len(frames)

    def __len__(self) -> int:
        return self._count

    @property
    def frames(self) -> Ints:
        """Numbers of frames."""
        return self._column("frames")

    @property
    def boxes(self) -> Floats:
        """N x 4: x1, y1, x2, y2 in pixels of the displayed frame."""
        return self._column("boxes")

    @property
    def confidences(self) -> Floats:
        """NaN: none."""
        return self._column("confidences")

    @property
    def tracks(self) -> Ints:
        """-1: none."""
        return self._column("tracks")

    @property
    def speeds(self) -> Floats:
        """Speeds of the centres, in widths of the box per second; NaN: unknown."""
        return self._column("speeds")

    @property
    def widths(self) -> Floats:
        """Widths in pixels."""
        return self._column("widths")

    @property
    def heights(self) -> Floats:
        """Heights in pixels."""
        return self._column("heights")

    @property
    def xs(self) -> Floats:
        """The x of the centres."""
        return self._column("xs")

    @property
    def ys(self) -> Floats:
        """The y of the centres."""
        return self._column("ys")

    @property
    def centers(self) -> Floats:
        """N x 2: x and y of the centres."""
        return np.stack([self.xs, self.ys], axis=1)

    def take(self, rows: Ints | Bools) -> EventBoxes:
        """Return some rows.  A column is copied when it is first read."""
        chosen = np.arange(len(self))[rows] if self._rows is None else self._rows[rows]
        found = EventBoxes.__new__(EventBoxes)
        found._columns, found._rows, found._origin = {}, chosen, self._origin
        found._count = len(chosen)
        return found

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = (
                _DERIVED[name](self._columns["boxes"])
                if self._rows is None
                else self._origin._column(name)[self._rows]
            )
        return self._columns[name]


_DERIVED: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "widths": lambda boxes: boxes[:, 2] - boxes[:, 0],
        "heights": lambda boxes: boxes[:, 3] - boxes[:, 1],
        "xs": lambda boxes: (boxes[:, 0] + boxes[:, 2]) / 2,
        "ys": lambda boxes: (boxes[:, 1] + boxes[:, 3]) / 2,
    }
)
"""Columns that are computed from the boxes, once for all of an origin's rows."""


@dataclass(frozen=True, slots=True)
class RelationShape:
    """The variables and arguments that a condition takes."""

    test: Relation
    variables: int
    defaults: tuple[float | None, ...] = ()  #: of its arguments; None: required
    takes_region: bool = False  #: after its variables


def _distances(a: EventBoxes, b: EventBoxes) -> Floats:
    apart = np.hypot(a.xs - b.xs, a.ys - b.ys)
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
    x, y = a.xs, a.ys
    found: Bools = (region.x1 <= x) & (x < region.x2) & (region.y1 <= y) & (y < region.y2)
    return found


RELATIONS: Mapping[str, RelationShape] = MappingProxyType(
    {
        "near": RelationShape(lambda a, b, most: _distances(a, b) < most, 2, (1.0,)),
        "far": RelationShape(lambda a, b, least: _distances(a, b) > least, 2, (3.0,)),
        "left_of": RelationShape(lambda a, b: a.xs < b.xs, 2),
        "right_of": RelationShape(lambda a, b: a.xs > b.xs, 2),
        "above": RelationShape(lambda a, b: a.ys < b.ys, 2),
        "below": RelationShape(lambda a, b: a.ys > b.ys, 2),
        "overlaps": RelationShape(
            lambda a, b, least: overlap_ratios(a.boxes, b.boxes) > least, 2, (0.0,)
        ),
        "inside": RelationShape(_inside, 1, takes_region=True),
        "faster": RelationShape(lambda a, least: a.speeds > least, 1, (None,)),
        "slower": RelationShape(lambda a, most: a.speeds < most, 1, (None,)),
    }
)
"""The conditions that every event may use."""
