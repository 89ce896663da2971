"""Pictures of layouts: what is drawn, and where; layouts in a line of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.core.detections import Detection
from vfsd.core.text_image import Picture
from vfsd.tiling import Rect
from vfsd.views.layout_image import draw_layout, picture_size
from vfsd.views.layout_summary import LayoutFacts, layout_facts, layout_text, read_counts

NAMES = ("traffic.mp4", "portrait.mp4", "odd-size.webm")
SCALE = 3  # of traffic.mp4, which is 320x240


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        for name in NAMES:
            opened.ingest(FOLDER / name)
        yield opened


def facts_of(store: Store, name: str = "traffic.mp4", frame: int | None = None) -> LayoutFacts:
    """Of the first second, tiled or not, with all reads noted until now."""
    store.tools.read_log.close()
    video = store[name]
    (segment, *_) = [*store.catalog.segments(video.info), None]
    frames = range(30) if segment is None else segment.frames
    return layout_facts(store.catalog, video.info, context_of(video).table, segment, frames, frame)


def facts_without_boxes(store: Store, frame: int) -> LayoutFacts:
    facts = facts_of(store, frame=frame)
    return dataclasses.replace(facts, boxes=facts.boxes.select(slice(0, 0)))


def frame_of(picture: Picture) -> Picture:
    """Without the headline."""
    return picture[-240 * SCALE :]


def test_areas_that_overlap_are_counted() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        read, expected = [], np.zeros((30, 40), int)
        for _ in range(rng.integers(0, 6)):
            times = int(rng.integers(1, 5))
            rects = []
            mask = np.zeros((30, 40), bool)
            for _ in range(rng.integers(0, 4)):
                x1, y1 = int(rng.integers(0, 40)), int(rng.integers(0, 30))
                rect = Rect(x1, y1, int(rng.integers(x1, 40)) + 1, int(rng.integers(y1, 30)) + 1)
                rects.append(rect)
                mask[rect.y1 : rect.y2, rect.x1 : rect.x2] = True
            expected[mask] += times
            read.append((times, rects))
        assert (read_counts(read, 40, 30) == expected).all()


def test_what_was_read_of_those_frames_is_counted(store: Store) -> None:
    video = store["traffic.mp4"]
    video.tiles.retile("uniform:2x2", span=(0, 1))
    video.labels.add([Detection(9, "car", (200, 100, 240, 130.5))], "test")
    for _ in range(3):
        video.read(frames=range(0, 2), region=(0, 0, 100, 50))
    video.read(frames=range(40, 42))  # of another second
    list(video.scan("car").crops())
    list(video.scan("car").crops())
    facts = facts_of(store)
    assert facts.reads == 5
    assert facts.frame == 9  # where something is to be seen
    assert (facts.heat[:50, :100] == 3).all()
    assert (facts.heat[100:131, 200:240] == 2).all()
    assert (facts.heat > 0).sum() == 100 * 50 + 40 * 31


def test_pictures_show_boxes_tiles_and_heat(store: Store) -> None:
    video = store["traffic.mp4"]
    video.tiles.retile("uniform:2x2", span=(0, 1))
    bare = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    video.labels.add([Detection(10, "car", (30, 150, 90, 200))], "test")
    boxed = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    later = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=11)))
    edge = boxed[450, 100:260].astype(int)  # the upper edge of the box
    assert (np.ptp(edge, axis=0) < 40).all()
    assert (edge != bare[450, 100:260]).any(axis=1).all()
    assert (boxed[480:570, 120:240] == bare[480:570, 120:240]).all()  # inside of it
    plain = frame_of(
        draw_layout(context_of(video).table, store.tools, facts_without_boxes(store, 11))
    )
    solid, faint = np.abs(boxed.astype(int) - bare).sum(), np.abs(later.astype(int) - plain).sum()
    assert solid > 3 * faint > 0


def test_what_was_read_is_coloured_and_nothing_else(store: Store) -> None:
    video = store["traffic.mp4"]
    cold = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    with Store.open(store.path) as other:
        other["traffic.mp4"].read(frames=range(5), region=(0, 0, 160, 240))
        for _ in range(4):
            other["traffic.mp4"].read(frames=range(5), region=(0, 0, 80, 240))
    warm = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    change = np.abs(warm.astype(int) - cold).sum(axis=2)
    most, some, none = (change[:, at : at + 80 * SCALE].mean() for at in (0, 240, 480))
    assert most > some > 10
    assert none == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_the_size_follows_from_that_of_the_frame(store: Store, name: str) -> None:
    video = store[name]
    untiled = draw_layout(context_of(video).table, store.tools, facts_of(store, name, 0))
    video.labels.add(
        [Detection(0, f"label {number}", (number, 0, 90, 60)) for number in range(40)], "test"
    )
    crowded = draw_layout(context_of(video).table, store.tools, facts_of(store, name, 0))
    size = picture_size(video.width, video.height)
    assert untiled.shape == crowded.shape == (size[1], size[0], 3)


def test_boxes_that_leave_the_frame_are_drawn_as_far_as_they_are_in_it(store: Store) -> None:
    boxes = [(-50, -50, 400, 300), (319.5, 239.5, 330, 250), (0, 0, 0.2, 0.2), (0, 230, 9, 260)]
    store["traffic.mp4"].labels.add(
        [Detection(at, "x" * 60, box) for box in boxes for at in (3, 4)], "test"
    )
    facts = facts_of(store, frame=3)
    assert len(draw_layout(context_of(store["traffic.mp4"]).table, store.tools, facts)) > 0


@pytest.mark.thorough
def test_layouts_in_a_line(store: Store) -> None:
    video = store["traffic.mp4"]

    def text() -> str:
        return layout_text(
            video.original, context_of(video).table, store.catalog.segments(video.info)
        )

    assert text() == "untiled"
    video.tiles.retile("uniform:2x3", span=(0, 2))
    assert text() == "uniform 2x3 0-2s, untiled 2-4s"
    video.tiles.retile("64+256x240", span=(1, 2))
    assert text() == "uniform 2x3 0-1s, 1x2 1-2s, untiled 2-4s"
    video.tiles.retile("uniform:2x2")
    assert text() == "uniform 2x2 0-4s"
