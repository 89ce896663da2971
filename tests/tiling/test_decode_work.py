"""The decoding work of a read equals a count over single tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import naive_tiling as naive
from tests.support.layouts import layouts, rects
from vfsd.errors import UsageError
from vfsd.tiling import Rect, TileLayout, decoded_pixels

wanted = st.lists(st.tuples(rects(600, 600, 200), st.integers(0, 29)), max_size=12)


@given(layouts, wanted)
def test_counts_equal_the_naive_count(layout: TileLayout, wanted: list[tuple[Rect, int]]) -> None:
    boxes, frames = [box for box, _ in wanted], [frame for _, frame in wanted]
    array = np.array([(b.x1, b.y1, b.x2, b.y2) for b in boxes], np.int32).reshape(-1, 4)
    later = [frame + 1000 for frame in frames]
    assert decoded_pixels(layout, boxes) == naive.decoded(layout, boxes, None)
    assert decoded_pixels(layout, boxes, frames) == naive.decoded(layout, boxes, frames)
    assert decoded_pixels(layout, array, later, 1000) == naive.decoded(layout, boxes, frames)


def test_tile_is_decoded_once_up_to_its_last_wanted_frame() -> None:
    layout = TileLayout((100, 100), (100,))
    boxes = [Rect(0, 0, 10, 10), Rect(20, 0, 30, 10), Rect(95, 0, 105, 10)]
    assert decoded_pixels(layout, boxes, [12, 14, 11], first_frame=10) == (70_000, 2)
    assert decoded_pixels(layout, boxes) == (40_000, 4)
    assert decoded_pixels(layout, boxes).cost(tile_cost=5) == 40_020


def test_boxes_outside_of_the_frame_cost_nothing() -> None:
    layout = TileLayout((100, 100), (100,))
    outside = np.array([(-20, 0, 0, 10), (200, 0, 220, 10), (0, -9, 10, 0), (0, 100, 10, 110)])
    assert decoded_pixels(layout, outside, [0, 1, 2, 3]) == (0, 0)
    assert decoded_pixels(layout, np.array([(-20, -20, 5, 5)])) == (10_000, 1)


@pytest.mark.parametrize(
    ("boxes", "frames"),
    [
        (np.zeros((2, 3), np.int64), None),
        (np.ones((1, 4)), None),
        (np.array([(5, 0, 5, 9)]), None),
        ([Rect(0, 0, 1, 1)], []),
        ([Rect(0, 0, 1, 1)], [-1]),
    ],
)
def test_invalid_arguments_are_refused(boxes: list[Rect], frames: list[int] | None) -> None:
    with pytest.raises(UsageError):
        decoded_pixels(TileLayout.untiled(10, 10), boxes, frames)
