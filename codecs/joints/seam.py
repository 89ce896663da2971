"""Where two overlapping pictures are cut: left only, both, right only.

The left picture is cut at a column, the *seam*; what is to its right lies in the *middle*, a
picture in the left camera's pixels that also holds all of the right picture's first columns, up to
its own cut, the *edge*.  What of the middle is on neither picture goes on as their edges do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vfsd.codecs.joints.geometry import Matrix, Points, Size, common, outline, projected
from vfsd.tiling import Rect

NARROWEST = 32
"""Columns: a narrower piece costs more than it saves."""
_EXACT = 1e-6
"""Pixels by which a homography misses whole numbers that it means."""


@dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """How two pictures become three pieces."""

    left: Size
    right: Size
    matrix: Matrix  #: from the right picture to the left one
    seam: int  #: the left piece is columns 0 to seam - 1 of the left picture; may be 0
    edge: int  #: the right piece is the right picture's columns from here on; may be its width
    origin: tuple[int, int]  #: x, y of the middle's first pixel in the left picture, or before it
    middle: Size

    @property
    def to_middle(self) -> Matrix:
        """From the right picture to the middle piece."""
        x, y = self.origin
        shift: Matrix = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]], np.float64)
        return shift @ self.matrix

    @property
    def left_in_middle(self) -> Rect:
        """The part of the left picture from the seam on, in pixels of the middle piece."""
        x, y = self.origin
        return Rect(self.seam - x, -y, self.left[0] - x, self.left[1] - y)

    @property
    def left_kept(self) -> float:
        """Pixels of the left and middle pieces together, in left pictures."""
        width, height = self.left
        return (self.seam * height + self.middle[0] * self.middle[1]) / (width * height)

    @property
    def right_kept(self) -> float:
        """Pixels of the right piece, in right pictures."""
        return 1 - self.edge / self.right[0]


def cut(matrix: Matrix, left: Size, right: Size) -> Cut | None:
    """The cut that leaves as much as possible to the middle; all its numbers are even, unless they
    are the pictures' own.

    None where the right picture begins to the left of the left one, or has no columns within it.
    """
    quad = outline(matrix, right)
    polygon = np.zeros((0, 2)) if quad is None else common(quad, left)
    edge = _edge(matrix, left, right) if len(polygon) else 0
    if edge < NARROWEST:
        return None
    seam = _even_down(max(0.0, polygon[:, 0].min() + 0.5))
    if seam < NARROWEST:
        seam = 0
    taken = projected(matrix, _outer(edge, right[1]))
    low, high = taken.min(axis=0), taken.max(axis=0)
    x, y = min(seam, _even_down(low[0])), min(0, _even_down(low[1]))
    if x < -NARROWEST:
        return None
    bottom = max(left[1], math.ceil(high[1] - _EXACT) + 1)
    return Cut(
        left, right, matrix, seam, edge, (x, y), (_even_up(left[0] - x), _even_up(bottom - y))
    )


def _edge(matrix: Matrix, left: Size, right: Size) -> int:
    """How many columns of the right picture have their centres on columns of the left one, or to
    the left of them."""
    width, height = right
    last = left[0] - 1
    if (projected(matrix, _outer(width, height))[:, 0] <= last).all():
        return width
    # The left picture's last column is a line in the right one, so its ends are enough.
    a, b, c = matrix[0] - last * matrix[2]
    if a <= 0:
        return 0
    found = min(-(b * y + c) / a for y in (0, height - 1))
    edge = _even_down(min(width, math.floor(found) + 1))
    return edge if edge <= width - NARROWEST else _even_down(width - NARROWEST)


def _outer(columns: int, rows: int) -> Points:
    """Centres of the outermost pixels of the first columns."""
    return np.array([[0, 0], [columns - 1, 0], [columns - 1, rows - 1], [0, rows - 1]], np.float64)


def _even_down(value: float) -> int:
    return math.floor((value + _EXACT) / 2) * 2


def _even_up(value: int) -> int:
    return value + value % 2
