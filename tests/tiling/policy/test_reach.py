"""What is told at once of any run of frames, against counting it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.decode_work import decoded_frames
from vfsd.tiling.policy.box_world import DecodeExtent

SOT = range(40, 52)
corner = st.tuples(st.integers(0, 180), st.integers(0, 130))
size = st.tuples(st.integers(1, 60), st.integers(1, 60))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(SOT)), corner, size), max_size=12),
    st.sampled_from(["160x120", "40+120x120", "40+40+80x30+60+30"]),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_reach_is_what_is_counted(
    seen: list[tuple[int, tuple[int, int], tuple[int, int]]], text: str, start: int, stop: int
) -> None:
    layout = TileLayout.parse(text)
    frames = np.array([frame for frame, _, _ in seen], np.int64)
    boxes = [Rect(x, y, x + w, y + h) for _, (x, y), (w, h) in seen]
    corners = np.array([(r.x1, r.y1, r.x2, r.y2) for r in boxes], np.int64).reshape(-1, 4)
    reach = DecodeExtent(layout, corners, frames, SOT)
    inside = (frames >= SOT.start + start) & (frames < SOT.start + stop)
    counted = decoded_frames(layout, corners[inside], frames[inside], SOT.start)
    assert reach.lengths(start, stop).tolist() == counted.tolist()
