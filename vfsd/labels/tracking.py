"""Tracks: numbers that tell which boxes of a detector are one object.

`assign_tracks` is a tracker of the SORT family: a Kalman filter predicts each box, and the boxes of
a frame are assigned by overlap.  It sees boxes only, no pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Floats, Ints
from vfsd.labels.events.box_relations import box_areas, overlap_ratios

_REACH = 0.8
"""Maximum distance of centres, in mean sides, of a box that continues a track without overlap."""

_MOST_GROWTH = 3.0
"""Ratio of areas beyond which such a box is another object."""

_LEAST_MISSES = 2
"""Examined frames without a box that never end a track, however far apart they are."""

# In mean sides of the box, so that near and far objects are alike.
_BOX_ERROR = 0.05
_FIRST_SPEED = 2.0
_ACCELERATION = np.array([2.0, 2.0, 0.5, 0.5])


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """The conditions for a box to continue a track."""

    gap: float = 1.0  #: most seconds without a box
    min_iou: float = 0.2  #: least overlap with the predicted box, as intersection over union


def assign_tracks(
    frames: Ints, boxes: Floats, steps: Ints, times: Floats, settings: TrackerSettings
) -> Ints:
    """Return the track of each box, from 0 in order of their first boxes.

    The same arguments give the same tracks.

    Args:
        frames: The frame of each of N boxes, ascending.
        boxes: N x 4: x1, y1, x2, y2.
        steps: The examined frames, ascending; all of `frames` are among them.
        times: The time of each step in seconds.
        settings: The conditions for a box to continue a track.
    """
    tracks = np.empty(len(frames), np.int64)
    filters, active, made = MotionFilter(), _Active(), 0
    edges = np.flatnonzero(np.diff(frames, prepend=-1, append=-1))
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        here = int(np.searchsorted(steps, frames[first]))
        now, shown = float(times[here]), boxes[first:stop]
        # A detector on every tenth frame may miss an object for longer than `gap`.
        keep = (now - filters.seen <= settings.gap) | (here - active.steps <= _LEAST_MISSES + 1)
        filters.keep(keep)
        active.keep(keep)
        pairs = _pairs(filters.predicted(now), shown, settings)
        matched = np.array([pair[0] for pair in pairs], np.int64)
        taken = np.array([pair[1] for pair in pairs], np.int64)
        filters.update(matched, shown[taken], now)
        active.steps[matched] = here
        tracks[first:stop][taken] = active.numbers[matched]
        new = np.setdiff1d(np.arange(len(shown)), taken)
        numbers = np.arange(made, made + len(new))
        tracks[first:stop][new] = numbers
        filters.add(shown[new], now)
        active.add(numbers, here)
        made += len(new)
    return tracks


class _Active:
    """The tracks that may go on."""

    def __init__(self) -> None:
        self.numbers = np.empty(0, np.int64)
        self.steps = np.empty(0, np.int64)  #: when each was seen last

    def add(self, numbers: Ints, step: int) -> None:
        self.numbers = np.concatenate([self.numbers, numbers])
        self.steps = np.concatenate([self.steps, np.full(len(numbers), step)])

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        self.numbers, self.steps = self.numbers[chosen], self.steps[chosen]


def _pairs(predicted: Floats, shown: Floats, settings: TrackerSettings) -> list[tuple[int, int]]:
    """Return (track, box) for each box that continues a track: by overlap, then by distance."""
    overlap = overlap_ratios(predicted[:, None], shown[None])
    pairs = best_pairs(np.where(overlap >= settings.min_iou, overlap, 0))
    tracks = np.setdiff1d(np.arange(len(predicted)), [pair[0] for pair in pairs])
    boxes = np.setdiff1d(np.arange(len(shown)), [pair[1] for pair in pairs])
    if len(tracks) and len(boxes):
        near = _nearness(predicted[tracks], shown[boxes])
        pairs += [(int(tracks[one]), int(boxes[other])) for one, other in best_pairs(near)]
    return pairs


def _nearness(ones: Floats, others: Floats) -> Floats:
    """Return 1 for equal centres, down to 0 at `_REACH`; 0 for boxes of other sizes."""
    centers = [(boxes[:, :2] + boxes[:, 2:]) / 2 for boxes in (ones, others)]
    apart = np.hypot(*np.moveaxis(centers[0][:, None] - centers[1][None], 2, 0))
    sides = [(boxes[:, 2:] - boxes[:, :2]).mean(axis=1) for boxes in (ones, others)]
    side = (sides[0][:, None] + sides[1][None]) / 2
    ratio = box_areas(ones)[:, None] / box_areas(others)[None]
    alike = (ratio <= _MOST_GROWTH) & (ratio >= 1 / _MOST_GROWTH)
    found: Floats = np.where(alike, np.clip(1 - apart / (side * _REACH), 0, None), 0)
    return found


class MotionFilter:
    """A Kalman filter for each of several boxes.

    The centre, the width and the height are four values that move independently, each with its
    position and speed; `_errors` has the three different entries of their covariances.
    """

    def __init__(self) -> None:
        self.seen: Floats = np.empty(0)  #: when each box was seen last, in seconds
        self._values, self._speeds = np.empty((0, 4)), np.empty((0, 4))
        self._errors = np.empty((3, 0, 4))

    def add(self, boxes: Floats, now: float) -> None:
        """Add boxes, after the others."""
        sides = _sides(boxes)
        first = np.stack(
            [
                np.repeat((_BOX_ERROR * sides) ** 2, 4, axis=1),
                np.zeros((len(boxes), 4)),
                np.repeat((_FIRST_SPEED * sides) ** 2, 4, axis=1),
            ]
        )
        self.seen = np.concatenate([self.seen, np.full(len(boxes), now)])
        self._values = np.concatenate([self._values, _values(boxes)])
        self._speeds = np.concatenate([self._speeds, np.zeros((len(boxes), 4))])
        self._errors = np.concatenate([self._errors, first], axis=1)

    def keep(self, chosen: npt.NDArray[Any]) -> None:
        self.seen = self.seen[chosen]
        self._values, self._speeds = self._values[chosen], self._speeds[chosen]
        self._errors = self._errors[:, chosen]

    def predicted(self, now: float) -> Floats:
        """Return where the boxes are at a time, N x 4."""
        values = self._values + self._speeds * (now - self.seen)[:, None]
        half = np.maximum(values[:, 2:], 1.0) / 2
        return np.concatenate([values[:, :2] - half, values[:, :2] + half], axis=1)

    def update(self, rows: npt.NDArray[Any], boxes: Floats, now: float) -> None:
        """Correct some of the boxes by those that were seen."""
        passed = (now - self.seen[rows])[:, None]
        sides = _sides(boxes)
        noise = (_ACCELERATION * sides) ** 2
        place, both, speed = self._errors[:, rows]
        place = place + 2 * passed * both + passed**2 * speed + noise * passed**4 / 4
        both = both + passed * speed + noise * passed**3 / 2
        speed = speed + noise * passed**2
        off = _values(boxes) - (self._values[rows] + self._speeds[rows] * passed)
        whole = place + (_BOX_ERROR * sides) ** 2
        gain, speed_gain = place / whole, both / whole
        self._values[rows] += self._speeds[rows] * passed + gain * off
        self._speeds[rows] += speed_gain * off
        self._errors[:, rows] = (1 - gain) * place, (1 - gain) * both, speed - speed_gain * both
        self.seen[rows] = now


def _values(boxes: Floats) -> Floats:
    sizes = boxes[:, 2:] - boxes[:, :2]
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, sizes], axis=1)


def _sides(boxes: Floats) -> Floats:
    """Return the mean side of each box, N x 1."""
    found: Floats = (boxes[:, 2:] - boxes[:, :2]).mean(axis=1, keepdims=True)
    return found


def best_pairs(scores: Floats) -> list[tuple[int, int]]:
    """Return the pairs (row, column) with the largest sum of scores, by row.

    Each row and each column is in one pair at most.  Only scores above 0 make a pair.
    """
    pairs: list[tuple[int, int]] = []
    for rows, columns in _components(scores > 0):
        if len(rows) == len(columns) == 1:
            pairs.append((rows[0], columns[0]))
            continue
        part = np.maximum(scores[np.ix_(rows, columns)], 0)
        flipped = len(rows) > len(columns)
        for row, column in enumerate(_assigned(-part.T if flipped else -part)):
            one, other = (column, row) if flipped else (row, column)
            if part[one, other] > 0:
                pairs.append((rows[one], columns[other]))
    return sorted(pairs)


def _components(edges: npt.NDArray[np.bool_]) -> list[tuple[list[int], list[int]]]:
    """Return the rows and columns that `edges` connect; most objects overlap one box only."""
    found = []
    left = edges.any(axis=1)
    while left.any():
        rows: npt.NDArray[np.bool_] = np.zeros(len(edges), np.bool_)
        rows[int(np.argmax(left))] = True
        while True:
            columns = np.asarray(edges[rows].any(axis=0))
            grown = np.asarray(edges[:, columns].any(axis=1))
            if (grown == rows).all():
                break
            rows = grown
        left &= ~rows
        found.append((np.flatnonzero(rows).tolist(), np.flatnonzero(columns).tolist()))
    return found


def _assigned(cost: Floats) -> list[int]:
    """Return the column of each row with the least total cost; rows must not outnumber columns.

    The Hungarian algorithm with potentials, one shortest path for each row.
    """
    count, width = cost.shape
    row_potential, potential = np.zeros(count + 1), np.zeros(width + 1)
    owner = np.zeros(width + 1, np.int64)  # of each column, counting from 1; column 0 starts a path
    for row in range(1, count + 1):
        owner[0] = row
        at = 0
        least, before = np.full(width + 1, np.inf), np.zeros(width + 1, np.int64)
        used = np.zeros(width + 1, bool)
        while owner[at]:
            used[at] = True
            here = owner[at]
            slack = cost[here - 1] - row_potential[here] - potential[1:]
            better = ~used[1:] & (slack < least[1:])
            least[1:][better] = slack[better]
            before[1:][better] = at
            open_ = np.where(used, np.inf, least)
            open_[0] = np.inf
            following = int(np.argmin(open_))
            step = open_[following]
            row_potential[owner[used]] += step
            potential[used] -= step
            least[~used] -= step
            at = following
        while at:
            owner[at] = owner[before[at]]
            at = int(before[at])
    columns = np.empty(count, np.int64)
    taken = np.flatnonzero(owner[1:])
    columns[owner[1:][taken] - 1] = taken
    found: list[int] = columns.tolist()
    return found
