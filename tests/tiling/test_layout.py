"""Layouts are exact partitions, have a text form, and find tiles like a linear search.  Layouts
with one tile for a region.  Uniform layouts follow the rules, and are as equal as these permit."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.layouts import layouts, rects
from vfsd.errors import UsageError
from vfsd.tiling import LayoutRules, Rect, TileLayout, uniform_layout
from vfsd.tiling.layout import layout_around


@given(layouts)
def test_every_pixel_is_in_exactly_one_tile(layout: TileLayout) -> None:
    tiles = layout.tiles
    assert len(tiles) == layout.count
    assert sum(tile.area for tile in tiles) == layout.width * layout.height
    assert not any(a.intersection(b) for i, a in enumerate(tiles) for b in tiles[:i])
    assert [layout.tile(index) for index in range(layout.count)] == list(tiles)
    assert tiles == tuple(sorted(tiles, key=lambda tile: (tile.y1, tile.x1)))


@given(layouts, rects(600, 600, 300))
def test_tile_lookup_equals_a_linear_search(layout: TileLayout, rect: Rect) -> None:
    touched = [n for n, tile in enumerate(layout.tiles) if tile.intersection(rect)]
    assert layout.covering(rect) == touched
    assert layout.cuts(rect) == (len(touched) > 1)


@given(layouts)
def test_text_and_pickle_round_trip(layout: TileLayout) -> None:
    assert TileLayout.parse(str(layout)) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    inner = layout.column_edges[1:-1], layout.row_edges[1:-1]
    assert TileLayout.cut_at(layout.width, layout.height, *inner) == layout


def test_text_is_widths_x_heights() -> None:
    layout = TileLayout.parse("480+960+480x272+808")
    assert layout == TileLayout((480, 960, 480), (272, 808))
    assert (layout.width, layout.height, layout.columns, layout.rows) == (1920, 1080, 3, 2)
    assert layout.tile(4) == Rect(480, 272, 1440, 1080)


@pytest.mark.parametrize(
    "nonsense",
    ["", "480", "x", "480x", "x480", "1x2x3", "0x10", "1+x2", "+1x2", "-1x2", "01x2", "1x2\n"],
)
def test_invalid_layouts_are_refused(nonsense: str) -> None:
    with pytest.raises(UsageError):
        TileLayout.parse(nonsense)


@pytest.mark.parametrize(
    ("widths", "heights"), [((), (1,)), ((1,), ()), ((1, 0), (1,)), ((1,), (-1,))]
)
def test_empty_parts_are_refused(widths: tuple[int, ...], heights: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        TileLayout(widths, heights)


def test_untiled_is_a_layout_of_one_tile() -> None:
    layout = TileLayout.untiled(1919, 1079)
    assert layout.is_untiled
    assert layout.tiles == (Rect.of_size(1919, 1079),)
    LayoutRules().check(layout)
    for index in (-1, 1):
        with pytest.raises(UsageError):
            layout.tile(index)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("64+65x100", None),
        ("65+64x100", "multiples of 16"),
        ("64+63x100", "column .* got 63"),
        ("100x48+100", "row .* got 48"),
        ("100x64+40", "row .* got 40"),
        (
            "64+64x63",
            "row .* got 63",
        ),  # a frame below the minimum is not cut in the other direction
        ("30x20", None),
        ("64+64+64x64+64", "tiles, got 6"),
    ],
)
def test_errors_name_the_broken_rule(text: str, broken: str | None) -> None:
    rules = LayoutRules(maximum_tiles=4)
    if broken is None:
        rules.check(TileLayout.parse(text))
    else:
        with pytest.raises(UsageError, match=broken):
            rules.check(TileLayout.parse(text))


@pytest.mark.parametrize(
    ("text", "broken"),
    [("64+64+64x64", "columns, got 3"), ("64x64+64+64", "rows, got 3"), ("64+64x64", None)],
)
def test_columns_and_rows_are_counted(text: str, broken: str | None) -> None:
    rules = LayoutRules(maximum_columns=2, maximum_rows=2)
    if broken is None:
        rules.check(TileLayout.parse(text))
    else:
        with pytest.raises(UsageError, match=broken):
            rules.check(TileLayout.parse(text))


@given(st.sampled_from([rule.name for rule in dataclasses.fields(LayoutRules)]))
def test_rules_are_positive(name: str) -> None:
    with pytest.raises(UsageError):
        LayoutRules(**{name: 0})


# --------------------------------------------------------------------------------------------------
# Layouts with one tile for a region


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
    """Pixels of the smallest tile, found by trying every pair of cuts on each axis."""

    def lengths(start: int, end: int, length: int, minimum: int) -> dict[int, int]:
        """The length of the shortest part that contains the pixels, by the number of parts."""
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
def test_region_is_in_one_tile_of_minimal_size(
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


def test_known_layouts() -> None:
    rules = LayoutRules()
    assert str(layout_around(Rect(100, 100, 200, 160), 320, 240, rules)) == "96+112+112x96+64+80"
    assert str(layout_around(Rect(10, 10, 60, 60), 320, 240, rules)) == "64+256x64+176"
    assert str(layout_around(Rect(150, 110, 160, 120), 320, 240, rules)) == "128+64+128x80+64+96"
    assert layout_around(Rect(0, 0, 320, 240), 320, 240, rules) == TileLayout.untiled(320, 240)
    assert layout_around(Rect(0, 0, 9, 9), 60, 240, rules) == TileLayout.untiled(60, 240)


def test_union_contains_all_regions() -> None:
    assert Rect.around([Rect(5, 8, 6, 9), Rect(1, 9, 2, 20)]) == Rect(1, 8, 6, 20)


# --------------------------------------------------------------------------------------------------
# Uniform layouts follow the rules, and are as equal as these permit


def test_even_sizes_are_divided_evenly() -> None:
    assert (
        str(uniform_layout(1920, 1088, 4, 5, LayoutRules()))
        == "384+384+384+384+384x272+272+272+272"
    )
    assert str(uniform_layout(1920, 1080, 2, 1, LayoutRules())) == "1920x544+536"


@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 70),
    st.integers(1, 100),
)
def test_uniform_layouts(
    width: int, height: int, rows: int, columns: int, align: int, minimum: int
) -> None:
    rules = LayoutRules(align, minimum, minimum)
    step = -(-minimum // align) * align
    possible = all(
        parts == 1 or step * (parts - 1) + minimum <= length
        for parts, length in ((columns, width), (rows, height))
    ) and (rows * columns == 1 or min(width, height) >= minimum)
    if not possible:
        with pytest.raises(UsageError):
            uniform_layout(width, height, rows, columns, rules)
        return
    layout = uniform_layout(width, height, rows, columns, rules)
    rules.check(layout)
    assert (layout.width, layout.height) == (width, height)
    assert (layout.rows, layout.columns) == (rows, columns)
    for edges, parts, length in (
        (layout.column_edges, columns, width),
        (layout.row_edges, rows, height),
    ):
        if length / parts >= step + align:  # the minimum does not apply
            for number, edge in enumerate(edges[1:-1], 1):
                assert abs(edge - number * length / parts) <= align / 2


@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, -1)])
def test_there_is_at_least_one_row_and_column(rows: int, columns: int) -> None:
    with pytest.raises(UsageError):
        uniform_layout(640, 480, rows, columns, LayoutRules())


def test_the_largest_number_of_tiles_is_kept() -> None:
    with pytest.raises(UsageError, match="at most 5"):
        uniform_layout(640, 480, 2, 3, LayoutRules(maximum_tiles=5))
