"""Layouts with one tile for one region, and the rest of the picture around it."""

from __future__ import annotations

from itertools import product

from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import LayoutRules, TileLayout


def around(rect: Rect, width: int, height: int, rules: LayoutRules) -> TileLayout:
    """The layout of a picture in which the tile that holds all of `rect` is as small as `rules`
    allow.

    The tile is bounded by at most two columns and two rows of the rest.  Where it could lie at
    several places it lies where `rect` is nearest to its middle.  A picture that is too small to
    be cut, or of which `rect` needs everything, is untiled.  `rect` lies inside the picture.
    """
    untiled = TileLayout.untiled(width, height)
    if not rules.allows_tiles(width, height):
        return untiled
    columns = _spans(rect.x1, rect.x2, width, rules.align, rules.minimum_width)
    rows = _spans(rect.y1, rect.y2, height, rules.align, rules.minimum_height)
    allowed = (
        layout
        for (x1, x2), (y1, y2) in product(columns, rows)
        if rules.allows_count(layout := _cut(width, height, x1, x2, y1, y2))
    )
    return min(allowed, key=lambda layout: _area(layout, rect), default=untiled)


def _spans(start: int, end: int, length: int, align: int, minimum: int) -> list[tuple[int, int]]:
    """The best parts of an axis that hold ``start <= pixel < end``: cut twice, once, or never."""
    found = [(0, length)]
    for begins, ends in (
        (_begins(start, align, minimum), [length]),
        ([0], _ends(end, length, align, minimum)),
        (_begins(start, align, minimum), _ends(end, length, align, minimum)),
    ):
        parts = [(first, last) for first, last in product(begins, ends) if last - first >= minimum]
        if parts:
            found.append(min(parts, key=lambda part: _goodness(part, start, end)))
    return found


def _goodness(part: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    first, last = part
    return last - first, abs((start - first) - (last - end))


def _begins(start: int, align: int, minimum: int) -> list[int]:
    """Boundaries at or before `start` that leave a part of its own before them."""
    nearest = start // align * align
    lowest = -(-minimum // align) * align
    # Further away than the minimum, none is needed.
    return list(range(nearest, max(lowest, nearest - minimum - align) - 1, -align))


def _ends(end: int, length: int, align: int, minimum: int) -> list[int]:
    nearest = -(-end // align) * align
    highest = min(length - minimum, nearest + minimum + align)
    return list(range(nearest, highest + 1, align))


def _cut(width: int, height: int, x1: int, x2: int, y1: int, y2: int) -> TileLayout:
    columns = [at for at in (x1, x2) if 0 < at < width]
    rows = [at for at in (y1, y2) if 0 < at < height]
    return TileLayout.cut_at(width, height, columns, rows)


def _area(layout: TileLayout, rect: Rect) -> tuple[int, int]:
    """Pixels of the tile that holds `rect`, then the number of tiles."""
    (tile,) = layout.covering(rect)
    return layout.tile(tile).area, layout.count
