"""Boxes with a class and a confidence, of which many mean the same object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vfsd.core.detections import Box


@dataclass(frozen=True, slots=True)
class Scored:
    """One box that a detector proposes."""

    box: Box
    kind: int  #: number of its class
    confidence: float


def best_of(proposed: Sequence[Scored], overlap: float, width: int, height: int) -> list[Scored]:
    """The parts of the boxes within width x height, without those that a more confident box of the
    same class covers by more than `overlap` (intersection over union); by falling confidence.

    Boxes that are no boxes (not finite, or without area in the frame) are left out.
    """
    kept = []
    for one in proposed:
        if not np.isfinite((*one.box, one.confidence)).all():
            continue
        x1, y1, x2, y2 = one.box
        box = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            kept.append(Scored(box, one.kind, one.confidence))
    # Ties are broken by place, so that the order in which they were proposed does not matter.
    kept.sort(key=lambda one: (-one.confidence, one.kind, one.box))
    if not kept:
        return []
    chosen = cv2.dnn.NMSBoxesBatched(
        [(x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in (one.box for one in kept)],
        [one.confidence for one in kept],
        [one.kind for one in kept],
        0.0,
        overlap,
    )
    return [kept[at] for at in sorted(np.ravel(chosen).astype(int).tolist())]
