"""Layouts around boxes: what TASM calls PARTITION(s, O), coarse and fine.

Where TASM places the boundaries of each axis on their own, as many as fit, `fine` looks for the
two sets of boundaries that together make the boxes cheapest to read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vfsd.tiling.cut_search import Axis
from vfsd.tiling.decode_work import TILE_COST
from vfsd.tiling.layout import LayoutRules, TileLayout
from vfsd.tiling.search import Limits, Search
from vfsd.tiling.wanted_boxes import Boxes, FrameNumbers, Wanted


def coarse(
    boxes: Boxes, width: int, height: int, rules: LayoutRules, *, padding: int = 0
) -> TileLayout:
    """The layout of a picture with the smallest tile that holds all `boxes`.

    Its edges are extended through the picture, so there are up to 9 tiles.  Boxes are enlarged by
    `padding` pixels on each side, as far as there is a picture.  Without a box in the picture it
    is untiled, as it is where no smaller tile keeps to the `rules`.

    Raises `UsageError` as `Wanted.of` does.
    """
    corners = Wanted.of(boxes, None, 0).within(width, height, padding).corners
    if not len(corners) or not rules.allows_tiles(width, height):
        return TileLayout.untiled(width, height)
    (x1, y1), (x2, y2) = corners[:, :2].min(axis=0).tolist(), corners[:, 2:].max(axis=0).tolist()
    ways = [
        (
            (columns[1] - columns[0]) * (rows[1] - rows[0]),
            TileLayout.cut_at(width, height, _inner(columns, width), _inner(rows, height)),
        )
        for columns in _enclosures(x1, x2, width, rules.align, rules.minimum_width)
        for rows in _enclosures(y1, y2, height, rules.align, rules.minimum_height)
    ]
    return min(
        (way for way in ways if rules.allows_count(way[1])),
        key=lambda way: (way[0], way[1].count),
    )[1]


def _enclosures(
    start: int, end: int, length: int, align: int, minimum: int
) -> Iterable[tuple[int, int]]:
    """The stretches of an axis that may be the one tile around ``start <= pixel < end``: all of
    it, the shortest at either edge of the picture, and the shortest anywhere."""
    first = -(-minimum // align) * align  # the lowest boundary
    last = (length - minimum) // align * align  # the highest

    def end_from(begin: int) -> int:
        """Where the shortest stretch that begins there and holds `end` ends."""
        boundary = -(-max(end, begin + minimum) // align) * align
        return boundary if boundary <= last else length

    yield 0, length
    yield 0, end_from(0)
    begin = min(start // align * align, last)
    if begin < first:
        return
    yield begin, length
    # A begin further left helps only as long as the minimum, not a box, says where it ends.
    begins = range(begin, max(first, min(begin, end - minimum - align)) - 1, -align)
    yield min(((at, end_from(at)) for at in begins), key=lambda stretch: stretch[1] - stretch[0])


def _inner(stretch: tuple[int, int], length: int) -> tuple[int, ...]:
    return tuple(edge for edge in stretch if 0 < edge < length)


def fine(
    boxes: Boxes,
    width: int,
    height: int,
    rules: LayoutRules,
    *,
    frames: FrameNumbers | None = None,
    first_frame: int = 0,
    padding: int = 0,
    tile_cost: int = TILE_COST,
) -> TileLayout:
    """A layout of a picture in which `boxes` are cheap to read and none is cut.

    Cheap is ``decoded_pixels(layout, boxes, frames, first_frame).cost(tile_cost)``: see there for
    `frames`.  Boxes are enlarged by `padding` pixels on each side, as far as there is a picture.
    The layout keeps to `rules`, and is never dearer than that of `coarse` or an untiled one.
    Without a box in the picture it is untiled.

    It is a local optimum: neither its columns nor its rows could be placed better alone.  Mostly
    it is the best of all layouts, with which the tests compare it.

    Raises `UsageError` as `Wanted.of` does.
    """
    wanted = Wanted.of(boxes, frames, first_frame).within(width, height, padding)
    if not len(wanted.corners) or not rules.allows_tiles(width, height):
        return TileLayout.untiled(width, height)
    x1, y1, x2, y2 = wanted.corners.T
    across = Axis.of(x1, x2, width, rules.align, rules.minimum_width)
    down = Axis.of(y1, y2, height, rules.align, rules.minimum_height)
    start = coarse(wanted.corners, width, height, rules).row_edges[1:-1]
    limits = Limits(rules.maximum_tiles, rules.maximum_columns, rules.maximum_rows)
    search = Search.of(across, down, wanted, tile_cost, limits)
    columns, rows = search.best(tuple(np.searchsorted(down.stops, start).tolist()))
    return TileLayout.cut_at(
        width, height, across.stops[list(columns)].tolist(), down.stops[list(rows)].tolist()
    )
