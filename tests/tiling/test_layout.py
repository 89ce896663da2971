"""Layouts are exact partitions, say so in text, and find tiles as a look at each would."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiling.making import layouts, rects
from vfsd.errors import UsageError
from vfsd.tiling import LayoutRules, Rect, TileLayout


@given(layouts)
def test_every_pixel_is_in_exactly_one_tile(layout: TileLayout) -> None:
    tiles = layout.tiles
    assert len(tiles) == layout.count
    assert sum(tile.area for tile in tiles) == layout.width * layout.height
    assert not any(a.intersection(b) for i, a in enumerate(tiles) for b in tiles[:i])
    assert [layout.tile(index) for index in range(layout.count)] == list(tiles)
    assert tiles == tuple(sorted(tiles, key=lambda tile: (tile.y1, tile.x1)))


@given(layouts, rects(600, 600, 300))
def test_tiles_are_found_as_by_looking_at_each(layout: TileLayout, rect: Rect) -> None:
    touched = [n for n, tile in enumerate(layout.tiles) if tile.intersection(rect)]
    assert layout.covering(rect) == touched
    assert layout.cuts(rect) == (len(touched) > 1)


@given(layouts)
def test_text_and_pickle_hold_all_of_it(layout: TileLayout) -> None:
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
def test_nonsense_is_no_layout(nonsense: str) -> None:
    with pytest.raises(UsageError):
        TileLayout.parse(nonsense)


@pytest.mark.parametrize(
    ("widths", "heights"), [((), (1,)), ((1,), ()), ((1, 0), (1,)), ((1,), (-1,))]
)
def test_parts_hold_pixels(widths: tuple[int, ...], heights: tuple[int, ...]) -> None:
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
        ),  # a picture below the minimum is not cut in the other direction
        ("30x20", None),
        ("64+64+64x64+64", "tiles, got 6"),
    ],
)
def test_rules_name_what_is_broken(text: str, broken: str | None) -> None:
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
