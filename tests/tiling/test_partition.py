"""Layouts around boxes cut none, follow the rules, and are as cheap as the optimum."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import naive_tiling as naive
from tests.support.layouts import Scene, scenes
from tests.support.selection import examples, thorough_but
from vfsd.errors import UsageError
from vfsd.tiling import LayoutRules, Rect, TileLayout, coarse_layout, decoded_pixels, fine_layout


def both(scene: Scene, tile_cost: int) -> tuple[TileLayout, TileLayout]:
    around = scene.boxes, scene.width, scene.height, scene.rules
    return (
        coarse_layout(*around, padding=scene.padding),
        fine_layout(*around, frames=scene.frames, padding=scene.padding, tile_cost=tile_cost),
    )


@given(scenes(), st.sampled_from([0, 3_000, 300_000]))
@settings(deadline=None)
def test_layouts_keep_their_guarantees(scene: Scene, tile_cost: int) -> None:
    layouts = both(scene, tile_cost)
    for layout in layouts:
        assert (layout.width, layout.height) == (scene.width, scene.height)
        scene.rules.check(layout)
        assert not any(layout.cuts(box) for box in scene.grown())
        assert layout.is_untiled or scene.boxes
    untiled = TileLayout.untiled(scene.width, scene.height)
    one, many, none = (
        decoded_pixels(layout, scene.grown(), scene.frames).cost(tile_cost)
        for layout in (*layouts, untiled)
    )
    assert many <= one
    assert many <= none


@given(scenes())
@settings(deadline=None, max_examples=examples(50))
def test_coarse_layout_has_the_smallest_enclosing_tile(scene: Scene) -> None:
    grown = scene.grown()
    if not grown or min(scene.width, scene.height) < 64:
        return
    limits = scene.rules.maximum_tiles, scene.rules.maximum_columns, scene.rules.maximum_rows
    rules = LayoutRules(16, 64, 64, *limits)
    x = range(min(b.x1 for b in grown), max(b.x2 for b in grown))
    y = range(min(b.y1 for b in grown), max(b.y2 for b in grown))
    whole = Rect(x.start, y.start, x.stop, y.stop)
    layout = coarse_layout(scene.boxes, scene.width, scene.height, rules, padding=scene.padding)
    [tile] = layout.covering(whole)
    smallest = min(
        candidate.tile(candidate.covering(whole)[0]).area
        for across in naive.all_cuts(scene.width, 64, 16, [x])
        if len(across) <= 2
        for down in naive.all_cuts(scene.height, 64, 16, [y])
        if len(down) <= 2
        for candidate in [TileLayout.cut_at(scene.width, scene.height, across, down)]
        if rules.allows_count(candidate)
    )
    assert layout.tile(tile).area == smallest


def random_scene(chance: random.Random) -> Scene:
    """A few static or moving objects, in a frame small enough to try all layouts."""
    width, height = chance.randint(130, 420), chance.randint(130, 260)
    boxes, frames = [], []
    for _ in range(chance.randint(2, 7)):
        w, h = chance.randint(8, 60), chance.randint(8, 50)
        x, y = chance.randint(0, width - w), chance.randint(0, height - h)
        step = chance.choice([-2, -1, 0, 0, 0, 1, 2])
        for frame in range(0, chance.randint(1, 30), 6):
            left = min(max(0, x + step * frame), width - w)
            boxes.append(Rect(left, y, left + w, y + h))
            frames.append(frame)
    minimum = chance.choice([32, 48, 64])
    most = chance.choice([None, None, None, 4, 6, 9])
    columns, rows = chance.choice([(None, None), (None, None), (3, None), (None, 2), (4, 3)])
    return Scene(
        width,
        height,
        boxes,
        chance.choice([frames, frames, None]),
        LayoutRules(16, minimum, minimum, most, columns, rows),
        0,
    )


@pytest.mark.parametrize("scenes", thorough_but([60], [60, 300]))
def test_fine_layout_is_close_to_optimal(scenes: int) -> None:
    """At least 98 of 100 scenes are optimal; the others cost at most a tenth more."""
    chance = random.Random(20)
    ratios = []
    for _ in range(scenes):
        scene = random_scene(chance)
        tile_cost = chance.choice([0, 3_000, 30_000, 300_000])
        _, layout = both(scene, tile_cost)
        cost = decoded_pixels(layout, scene.boxes, scene.frames).cost(tile_cost)
        best = naive.lowest_cost(
            scene.boxes, scene.frames, scene.width, scene.height, scene.rules, tile_cost
        )
        ratios.append(cost / best)
    assert min(ratios) == 1
    assert max(ratios) <= 1.1
    assert sum(ratio == 1 for ratio in ratios) >= 0.98 * len(ratios)


def test_two_boxes_that_share_rows_are_isolated() -> None:
    boxes = [Rect(100, 100, 200, 200), Rect(1000, 150, 1100, 260)]
    assert str(fine_layout(boxes, 1920, 1080, LayoutRules())) == "96+112+784+112+816x96+176+808"
    assert str(coarse_layout(boxes, 1920, 1080, LayoutRules())) == "96+1008+816x96+176+808"
    # An additional tile costs more than the pixels it saves, so all boxes share two.
    near = [Rect(100, 100, 200, 200), Rect(210, 100, 300, 200)]
    dear = fine_layout(near, 1920, 1080, LayoutRules(), frames=[0, 0], tile_cost=10**6)
    assert str(dear) == "96+208+1616x96+112+872"
    few = fine_layout(boxes, 1920, 1080, LayoutRules(maximum_tiles=2))
    assert few.count == 2


def test_boxes_may_reach_outside_the_picture() -> None:
    boxes = np.array([(-50, -50, 20, 20), (5000, 0, 5100, 10), (600, 440, 700, 500)])
    layout = fine_layout(boxes, 640, 480, LayoutRules(), frames=[3, 4, 5])
    assert str(layout) == "64+512+64x64+352+64"
    assert fine_layout(boxes[1:2], 640, 480, LayoutRules()).is_untiled
    assert coarse_layout(boxes[1:2], 640, 480, LayoutRules()).is_untiled


def test_boxes_do_not_shrink() -> None:
    with pytest.raises(UsageError):
        fine_layout([Rect(0, 0, 9, 9)], 640, 480, LayoutRules(), padding=-1)
