"""A store, and the frames of scenes without one."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from sample_videos.scene import Scene
from vfsd import Detection, Frame


def frames_of(scene: Scene, size: tuple[int, int] | None = None) -> list[Frame]:
    """All frames of a scene, in a size."""
    return [
        Frame(
            scene.frame(at)
            if size is None
            else np.asarray(cv2.resize(scene.frame(at), size, interpolation=cv2.INTER_AREA)),
            at,
            at,
            at / 30,
            1 / 30,
        )
        for at in range(scene.frames)
    ]


def covered(truth: tuple[int, int, int, int], found: Iterable[Detection]) -> float:
    """The part of a box that the others cover together."""
    x1, y1, x2, y2 = truth
    mask = np.zeros((y2 - y1, x2 - x1), bool)
    for one in found:
        left, top, right, bottom = map(int, one.box)
        rows = slice(max(top - y1, 0), max(bottom - y1, 0))
        mask[rows, max(left - x1, 0) : max(right - x1, 0)] = True
    return float(mask.mean())
