"""MOTA and IDF1 of tracks, by their definitions."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from vfsd.core.detections import DetectionColumns
from vfsd.labels.tracking import best_pairs


class TrackScores(NamedTuple):
    mota: float  #: 1 - (misses + false boxes + switches) / true boxes
    idf1: float  #: share of boxes with the right identity


def track_scores(true: DetectionColumns, found: DetectionColumns) -> TrackScores:
    """Compare tracks: a box is found if one overlaps it by half, as intersection over union."""
    together: Counter[tuple[int, int]] = Counter()
    misses = extra = switches = 0
    last: dict[int, int] = {}
    for frame in np.union1d(true.frames, found.frames).tolist():
        one, other = true[true.frames == frame], found[found.frames == frame]
        iou = _iou(one.boxes, other.boxes)
        pairs = best_pairs(np.where(iou >= 0.5, iou, 0))
        misses += len(one) - len(pairs)
        extra += len(other) - len(pairs)
        for row, column in pairs:
            name, track = int(one.tracks[row]), int(other.tracks[column])
            switches += last.get(name, track) != track
            last[name] = track
            together[name, track] += 1
    names, tracks = (sorted(set(rows.tracks.tolist())) for rows in (true, found))
    shared = np.zeros((len(names), len(tracks)))
    for (name, track), count in together.items():
        shared[names.index(name), tracks.index(track)] = count
    right = sum(shared[pair] for pair in best_pairs(shared))
    return TrackScores(
        1 - (misses + extra + switches) / len(true), 2 * right / (len(true) + len(found))
    )


def _iou(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    low = np.maximum(ones[:, None, :2], others[None, :, :2])
    high = np.minimum(ones[:, None, 2:], others[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (ones, others)]
    found: np.ndarray = common / (areas[0][:, None] + areas[1][None] - common)
    return found
