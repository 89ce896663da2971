"""Line charts: curves end where their values end, and their labels do not overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from vfsd.views.line_chart import Colour, Picture, Values, draw, panel, write

RED, GREEN, BLUE = (200, 0, 0), (0, 150, 0), (0, 0, 220)
AXES = "queries", "seconds"


def once(*values: float) -> Values:
    return np.array([values], np.float64)


def rows(drawn: Picture, colour: Colour) -> set[int]:
    """The rows that have pixels of exactly this color."""
    return set(np.flatnonzero((drawn == colour).all(axis=2).any(axis=1)).tolist())


def test_curve_height_is_proportional() -> None:
    values = {"a": once(0, 0, 30), "b": once(0, 0, 60)}
    colours = {"a": RED, "b": BLUE}
    drawn = panel("", "queries", values, colours, highest=100)
    end = max(column for column in np.flatnonzero((drawn == BLUE).all(axis=2).any(axis=0))
              if column < drawn.shape[1] * 0.85)  # fmt: skip
    low, high = (
        float(np.flatnonzero((drawn[:, end - 6 : end] == colour).all(axis=2).any(axis=1)).min())
        for colour in (RED, BLUE)
    )
    bottom = max(rows(drawn, RED))
    assert (bottom - high) / (bottom - low) == pytest.approx(2, abs=0.1)


def test_labels_of_close_or_clipped_curves_do_not_overlap() -> None:
    for end in (0.0, 50.0, 500.0):
        values = {name: once(0, end) for name in "abc"}
        colours = dict(zip("abc", (RED, GREEN, BLUE), strict=True))
        drawn = panel("", "queries", values, colours, highest=100)
        edge = drawn[:, -40:]
        bands = [rows(edge, colour) for colour in colours.values()]
        assert all(bands)
        assert not set.intersection(*bands)
        assert not bands[0] & bands[1]
        assert not bands[1] & bands[2]


def test_flat_and_single_step_curves_are_drawn(tmp_path: Path) -> None:
    assert rows(panel("", "queries", {"a": once(0, 0)}, {"a": RED}), RED)
    draw(tmp_path / "one.png", "", AXES, {"a": once(3)}, {"a": RED})
    written: Any = cv2.imread(str(tmp_path / "one.png"))
    assert rows(written[:, :, ::-1], RED)


def test_panels_are_side_by_side(tmp_path: Path) -> None:
    panels = [panel("", "queries", {"a": once(3)}, {"a": colour}) for colour in (RED, GREEN, BLUE)]
    write(tmp_path / "all.png", panels, columns=2)
    written: Any = cv2.imread(str(tmp_path / "all.png"))
    height, width = panels[0].shape[:2]
    assert written.shape == (2 * height, 2 * width, 3)
    assert (written[height:, :width, ::-1] == panels[2]).all()
