"""The tracker: on scenes with exact tracks, and on the boxes of real footage."""

from __future__ import annotations

import csv
import dataclasses
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.selection import thorough_but
from tests.support.tracking_scores import track_scores
from vfsd.core.detections import DetectionColumns
from vfsd.labels.tracking import TrackerSettings, assign_tracks, best_pairs

_SCORES = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)


@given(_SCORES)
def test_no_other_pairs_have_a_larger_sum(rows: list[list[float]]) -> None:
    scores = np.array(rows)
    side = max(scores.shape)
    square = np.zeros((side, side))
    square[: scores.shape[0], : scores.shape[1]] = scores
    best = max(square[np.arange(side), order].sum() for order in permutations(range(side)))
    pairs = best_pairs(scores)
    assert sum(scores[pair] for pair in pairs) == pytest.approx(best)
    assert all(scores[pair] > 0 for pair in pairs)
    assert len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)


def tracked(
    rows: DetectionColumns, steps: np.ndarray, fps: float, gap: float = 1
) -> DetectionColumns:
    tracks = assign_tracks(rows.frames, rows.boxes, steps, steps / fps, TrackerSettings(gap))
    return dataclasses.replace(rows, tracks=tracks)


def scene(seed: int, every: int, misses: float) -> tuple[DetectionColumns, np.ndarray]:
    """Objects that cross at different speeds, seen with noise, on every n-th of 300 frames."""
    rng = np.random.default_rng(seed)
    steps = np.arange(0, 300, every)
    frames, boxes, tracks = [], [], []
    for track in range(8):
        width, height = rng.uniform(40, 90), rng.uniform(30, 60)
        x, y = rng.uniform(0, 800), 90 * track + rng.uniform(0, 40)
        speed, sway = rng.uniform(-60, 60), rng.uniform(0, 25)
        for frame in steps.tolist():
            seconds = frame / 30
            left = x + speed * seconds + rng.normal(0, 1)
            top = y + sway * np.sin(seconds) + rng.normal(0, 1)
            if rng.random() >= misses:
                frames.append(frame)
                boxes.append((left, top, left + width, top + height))
                tracks.append(track)
    rows = DetectionColumns.of(frames, "car", boxes, tracks=tracks).sorted_by_frame()
    return rows, steps


@pytest.mark.parametrize(
    ("every", "misses"), thorough_but([(10, 0.1)], [(1, 0.0), (1, 0.2), (10, 0.1)])
)
def test_generated_scenes(every: int, misses: float) -> None:
    for seed in range(3):
        true, steps = scene(seed, every, misses)
        found = tracked(true, steps, 30)
        assert np.array_equal(found.tracks, tracked(true, steps, 30).tracks)
        scores = track_scores(true, found)
        assert scores.mota > 0.98, (seed, scores)
        assert scores.idf1 > 0.95, (seed, scores)


def test_a_track_ends_after_the_gap_but_not_after_few_examined_frames() -> None:
    boxes = [(10, 10, 50, 50)] * 3
    rows = DetectionColumns.of([0, 30, 75], "car", boxes)
    every = np.arange(0, 90)
    assert tracked(rows, every, 30).tracks.tolist() == [0, 0, 1]
    assert tracked(rows, every, 30, gap=2).tracks.tolist() == [0, 0, 0]
    # A detector on every 15th frame missed it twice.
    assert tracked(rows, np.arange(0, 90, 15), 30).tracks.tolist() == [0, 0, 0]
    assert tracked(rows[:0], every, 30).tracks.tolist() == []


def read_boxes(path: Path, *, by_center: bool = False) -> DetectionColumns:
    rows = list(csv.DictReader(path.read_text().splitlines()))
    boxes = np.array([[float(row[key]) for key in ("x1", "y1", "x2", "y2")] for row in rows])
    if by_center:  # this file has the centre where the corner should be, half a box off
        half = (boxes[:, 2:] - boxes[:, :2]) / 2
        boxes += np.concatenate([half, half], axis=1)
    tracks = [int(row["id"]) if row["id"] else None for row in rows]
    frames = [int(row["frame"]) for row in rows]
    return DetectionColumns.of(frames, "object", boxes, tracks=tracks).sorted_by_frame()


@pytest.mark.parametrize("every", [1, 5])
def test_known_tracks_of_real_footage(footage: Path, every: int) -> None:
    truth = footage / "gt"
    for boxes, tracks, fps, count, mota, idf1 in (
        # Boxes of a detector against the tracks of another tracker.
        ("otv_truck_800x600.boxes.csv", "otv_truck_800x600.tracks.csv", 20, 60, 0.9, 0.9),
        # The known tracks break and change hands more often than the objects do.
        ("otv_cyclist_800x600.tracks.csv", "otv_cyclist_800x600.tracks.csv", 20, 60, 0.88, 0.8),
        ("flies_a_1024x1024.boxes.csv", "flies_a_1024x1024.boxes.csv", 25, 1500, 1.0, 1.0),
    ):
        true = read_boxes(truth / tracks, by_center="truck" in tracks)
        seen = read_boxes(truth / boxes)
        true, seen = (rows[rows.frames % every == 0] for rows in (true, seen))
        scores = track_scores(true, tracked(seen, np.arange(0, count, every), fps))
        assert scores.mota >= mota, (boxes, scores)
        assert scores.idf1 >= idf1, (boxes, scores)
