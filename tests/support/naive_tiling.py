"""Simple versions of the algorithms in vfsd.tiling, one tile and one box at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vfsd.tiling import Decoded, LayoutRules, Rect, TileLayout


def decoded(layout: TileLayout, boxes: Sequence[Rect], frames: Sequence[int] | None) -> Decoded:
    """`decoded_pixels` for a SOT that begins with frame 0."""
    pixels = tiles = 0
    for tile in layout.tiles:
        lengths = [
            1 if frames is None else frames[number] + 1
            for number, box in enumerate(boxes)
            if tile.intersection(box)
        ]
        if frames is not None:
            lengths = [max(lengths)] if lengths else []
        pixels += sum(lengths) * tile.area
        tiles += len(lengths)
    return Decoded(pixels, tiles)


def all_cuts(length: int, minimum: int, align: int, taken: list[range]) -> list[tuple[int, ...]]:
    """Every set of boundaries of one axis that the rules allow and that cut none of `taken`."""
    found: list[tuple[int, ...]] = [()]
    for position in range(align, length, align):
        if any(stretch.start < position < stretch.stop for stretch in taken):
            continue
        if length - position < minimum:
            continue
        found += [
            (*cuts, position)
            for cuts in found
            if position - (cuts[-1] if cuts else 0) >= minimum
        ]  # fmt: skip
    return found


def lowest_cost(
    boxes: Sequence[Rect],
    frames: Sequence[int] | None,
    width: int,
    height: int,
    rules: LayoutRules,
    tile_cost: int,
) -> int:
    """The cost of the best of all layouts that the rules allow and that cut no box.

    The cost of a layout is that of its columns, each taken as a layout of its own.
    """
    most = rules.maximum_tiles or width * height
    most_columns, most_rows = rules.maximum_columns or width, rules.maximum_rows or height
    columns = all_cuts(
        width, rules.minimum_width, rules.align, [range(b.x1, b.x2) for b in boxes]
    )  # fmt: skip
    rows = all_cuts(height, rules.minimum_height, rules.align, [range(b.y1, b.y2) for b in boxes])
    lowest: int | None = None
    for down in rows:
        costs: dict[tuple[int, int], int] = {}
        for across in columns:
            if (len(across) + 1) * (len(down) + 1) > most:
                continue
            if len(across) >= most_columns or len(down) >= most_rows:
                continue
            cost = 0
            for x1, x2 in pairwise((0, *across, width)):
                if (x1, x2) not in costs:
                    inside = [n for n, box in enumerate(boxes) if x1 <= box.x1 < x2]
                    costs[x1, x2] = decoded(
                        TileLayout.cut_at(x2 - x1, height, (), down),
                        [boxes[n].moved(-x1, 0) for n in inside],
                        None if frames is None else [frames[n] for n in inside],
                    ).cost(tile_cost)
                cost += costs[x1, x2]
            lowest = cost if lowest is None else min(lowest, cost)
    assert lowest is not None
    return lowest
