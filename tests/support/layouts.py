"""Boxes, layouts and rules for the tests of tiling."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from vfsd.tiling import LayoutRules, Rect, TileLayout

sizes = st.lists(st.integers(1, 90), min_size=1, max_size=6).map(tuple)
layouts = st.builds(TileLayout, sizes, sizes)


def rects(width: int, height: int, largest: int) -> st.SearchStrategy[Rect]:
    """Boxes that begin in a picture of that size, and may reach outside."""
    return st.builds(
        lambda x, y, w, h: Rect(x, y, x + w, y + h),
        st.integers(0, width - 1),
        st.integers(0, height - 1),
        st.integers(1, largest),
        st.integers(1, largest),
    )


@dataclass(frozen=True)
class Scene:
    """The arguments of `coarse` and `fine`."""

    width: int
    height: int
    boxes: list[Rect]
    frames: list[int] | None
    rules: LayoutRules
    padding: int

    def grown(self) -> list[Rect]:
        """The boxes that may not be cut."""
        return [
            Rect(
                max(0, box.x1 - self.padding),
                max(0, box.y1 - self.padding),
                min(self.width, box.x2 + self.padding),
                min(self.height, box.y2 + self.padding),
            )
            for box in self.boxes
        ]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    width, height = draw(st.integers(1, 700)), draw(st.integers(1, 500))
    boxes = draw(st.lists(rects(width, height, 120), max_size=8))
    times = st.lists(st.integers(0, 29), min_size=len(boxes), max_size=len(boxes))
    rules = LayoutRules(
        align=draw(st.sampled_from([1, 2, 8, 16, 64])),
        minimum_width=draw(st.sampled_from([1, 16, 50, 64])),
        minimum_height=draw(st.sampled_from([1, 16, 50, 64])),
        maximum_tiles=draw(st.none() | st.integers(1, 12)),
        maximum_columns=draw(st.none() | st.integers(1, 4)),
        maximum_rows=draw(st.none() | st.integers(1, 4)),
    )
    return Scene(width, height, boxes, draw(st.none() | times), rules, draw(st.integers(0, 20)))
