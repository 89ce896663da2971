"""Uniform layouts: the picture cut into parts of equal size, whatever it shows."""

from __future__ import annotations

import re

from vfsd.errors import UsageError
from vfsd.tiling.layout import LayoutRules, TileLayout

_UNIFORM = re.compile(r"uniform:(\d{1,4})x(\d{1,4})")


def uniform(width: int, height: int, rows: int, columns: int, rules: LayoutRules) -> TileLayout:
    """A picture of `width` x `height` pixels in `rows` x `columns` tiles as equal as can be.

    Every boundary is at the multiple of the alignment that is nearest to where it would divide
    the picture equally, or at the nearest one that leaves the minimum on both sides.

    Raises `UsageError` when the minimum or the largest number of tiles makes that impossible.
    """
    if rows < 1 or columns < 1:
        raise UsageError(f"a picture cannot be cut into {rows} rows and {columns} columns")
    layout = TileLayout.cut_at(
        width,
        height,
        _cuts(width, columns, rules.align, rules.minimum_width, "columns"),
        _cuts(height, rows, rules.align, rules.minimum_height, "rows"),
    )
    rules.check(layout)
    return layout


def _cuts(length: int, parts: int, align: int, minimum: int, what: str) -> list[int]:
    """The inner boundaries of `parts` parts of `length` pixels.  Raises `UsageError`."""
    if parts == 1:
        return []
    # Boundaries are multiples of `align`, so all parts but the last are at least this long.
    step = -(-minimum // align) * align
    last = (length - minimum) // align * align
    if step * (parts - 1) > last:
        raise UsageError(
            f"{length} pixels cannot be cut into {parts} {what} of at least {minimum} pixels "
            f"at multiples of {align}"
        )
    cuts: list[int] = []
    for number in range(1, parts):
        nearest = (2 * number * length + parts * align) // (2 * parts * align) * align
        lowest = (cuts[-1] if cuts else 0) + step
        highest = last - (parts - 1 - number) * step
        cuts.append(min(max(nearest, lowest), highest))
    return cuts


def parse_layout(text: str, width: int, height: int, rules: LayoutRules) -> TileLayout:
    """A layout as users write it: ``uniform:RxC`` (rows and columns), ``untiled``, or its sizes.

    Raises `UsageError`, also for sizes that are not those of a picture of width x height.
    """
    if text == "untiled":
        return TileLayout.untiled(width, height)
    grid = _UNIFORM.fullmatch(text)
    if grid is None:
        layout = TileLayout.parse(text)
        if (layout.width, layout.height) != (width, height):
            raise UsageError(
                f"the layout {text} is for pictures of {layout.width}x{layout.height}, "
                f"not of {width}x{height}",
                hint="uniform:RxC has R rows and C columns",
            )
        return layout
    return uniform(width, height, int(grid.group(1)), int(grid.group(2)), rules)
