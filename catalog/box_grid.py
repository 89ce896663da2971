"""The spatial index of boxes: maps each box to one cell of a grid.

A B-tree over cells can then be searched by region.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vfsd.core.detections import Box, Floats, Ints

# An R*Tree takes 17 s to fill with a million boxes, these cells take 4.6 s.  Only SQLite has one.
SMALLEST = 64
"""Side of a cell in the finest grid, in pixels; it doubles from grid to grid."""

GRIDS = 7
"""With cells of 64 to 4096 pixels.  Larger boxes share the only cell of one more grid."""

_CELLS = 256
_STEP = 4.0
_BITS = 12
_MOST = (1 << _BITS) - 1

SHIFTS = (3 * _BITS, 2 * _BITS, _BITS, 0)
"""Bit offsets of x1, y1, x2 and y2 in `bounds`."""

MASK = _MOST


def cells(boxes: Floats) -> Ints:
    """Return the cell of each box: grid, row and column in one number."""
    extent = np.maximum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
    grid = np.zeros(len(boxes), dtype=np.int64)
    for number in range(GRIDS):
        grid += extent > SMALLEST << number
    side = (SMALLEST << grid).astype(np.float64)
    column = np.clip(np.floor(boxes[:, 0] / side), 0, _CELLS - 1).astype(np.int64)
    row = np.clip(np.floor(boxes[:, 1] / side), 0, _CELLS - 1).astype(np.int64)
    shared = grid == GRIDS
    return np.where(shared, _number(GRIDS, 0, 0), _number(grid, row, column))


def bounds(boxes: Floats) -> Ints:
    """Return each box in units of 4 pixels, rounded down and packed: x1, y1, x2, y2 of 12 bits
    each.
    """
    units = np.clip(np.floor(boxes / _STEP), 0, _MOST).astype(np.int64)
    packed: Ints = np.bitwise_or.reduce(units << np.array(SHIFTS, dtype=np.int64), axis=1)
    return packed


def units(region: Box) -> tuple[int, int, int, int]:
    """Return a region in the units of `bounds`.

    A box intersects it only if its x1 and y1 are at most the last two, and its x2 and y2 are at
    least the first two.
    """
    x1, y1, x2, y2 = (int(min(max(value // _STEP, 0), _MOST)) for value in region)
    return x1, y1, x2, y2


def cells_of(region: Box, limit: int) -> list[int] | None:
    """Return the cells of all boxes that can intersect `region`, or None for more than `limit`."""
    found = [int(_number(GRIDS, 0, 0))]
    for grid in range(GRIDS):
        side = SMALLEST << grid
        columns, rows = _reach(region[0], region[2], side), _reach(region[1], region[3], side)
        if len(found) + len(columns) * len(rows) > limit:
            return None
        found += [int(_number(grid, row, column)) for row in rows for column in columns]
    return found


def _reach(low: float, high: float, side: int) -> Sequence[int]:
    """Return the rows or columns in which a box that reaches into low to high can start."""
    # One pixel more: the extent of a box is rounded as a difference of two numbers.
    first = min(max(int((low - side - 1) // side), 0), _CELLS - 1)
    last = min(max(int(high // side), 0), _CELLS - 1)
    return range(first, last + 1)


def _number(grid: Ints | int, row: Ints | int, column: Ints | int) -> Ints | int:
    return (grid << 16) | (row << 8) | column
