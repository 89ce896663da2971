"""Layouts with one tile for a region."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vfsd.tiling import LayoutRules, Rect, TileLayout
from vfsd.tiling.layout import layout_around


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rect, int, int, LayoutRules]:
    width, height = draw(st.integers(2, 120)), draw(st.integers(2, 120))
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    rect = Rect(x1, y1, draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height)))
    rules = LayoutRules(
        align=draw(st.sampled_from([1, 4, 8, 16])),
        minimum_width=draw(st.integers(1, 40)),
        minimum_height=draw(st.integers(1, 40)),
        maximum_tiles=draw(st.sampled_from([None, None, 1, 2, 4, 6])),
    )
    return rect, width, height, rules


def smallest(rect: Rect, width: int, height: int, rules: LayoutRules) -> int:
    """Pixels of the smallest tile, by trying every pair of cuts on either axis."""

    def lengths(start: int, end: int, length: int, minimum: int) -> dict[int, int]:
        """The shortest part that holds the pixels, by the number of parts of the axis."""
        cuts = [0, *range(rules.align, length, rules.align), length]
        found: dict[int, int] = {}
        for first in (cut for cut in cuts if cut <= start):
            for last in (cut for cut in cuts if cut >= end):
                sizes = [size for size in (first, last - first, length - last) if size]
                if min(sizes) >= minimum:
                    before = found.get(len(sizes), length)
                    found[len(sizes)] = min(before, last - first)
        return found

    columns = lengths(rect.x1, rect.x2, width, rules.minimum_width)
    rows = lengths(rect.y1, rect.y2, height, rules.minimum_height)
    areas = [
        wide * high
        for across, wide in columns.items()
        for down, high in rows.items()
        if across * down <= (rules.maximum_tiles or 9)
    ]
    return min(areas, default=width * height)


@given(cases())
def test_it_lies_in_one_tile_that_is_as_small_as_can_be(
    case: tuple[Rect, int, int, LayoutRules],
) -> None:
    rect, width, height, rules = case
    layout = layout_around(rect, width, height, rules)
    rules.check(layout)
    assert (layout.width, layout.height) == (width, height)
    (tile,) = layout.covering(rect)
    assert layout.tile(tile).contains(rect)
    assert layout.tile(tile).area == smallest(rect, width, height, rules)
    assert layout.columns <= 3
    assert layout.rows <= 3


def test_some_that_are_known() -> None:
    rules = LayoutRules()
    assert str(layout_around(Rect(100, 100, 200, 160), 320, 240, rules)) == "96+112+112x96+64+80"
    assert str(layout_around(Rect(10, 10, 60, 60), 320, 240, rules)) == "64+256x64+176"
    assert str(layout_around(Rect(150, 110, 160, 120), 320, 240, rules)) == "128+64+128x80+64+96"
    assert layout_around(Rect(0, 0, 320, 240), 320, 240, rules) == TileLayout.untiled(320, 240)
    assert layout_around(Rect(0, 0, 9, 9), 60, 240, rules) == TileLayout.untiled(60, 240)


def test_the_union_holds_all() -> None:
    assert Rect.around([Rect(5, 8, 6, 9), Rect(1, 9, 2, 20)]) == Rect(1, 8, 6, 20)
