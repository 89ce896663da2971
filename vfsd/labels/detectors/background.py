"""What stands still in a run of pictures, and which pixels of each differ from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint8]
Picture = npt.NDArray[Any]

_MOST_SAMPLES = 64
"""Pictures that the background is learned from.  More make it no better: a pixel is hidden in the
same share of them."""

_RATIO = 0.6
"""Share of the pictures that the colours of a pixel's background account for.  OpenCV's 0.9 is
meant for a model that forgets; of one that has seen all pictures alike, it takes what stands in
front for a tenth of the time for background, too: recall on the generated traffic is 0.55 with
0.9, 0.91 with 0.7 and 0.93 with 0.6; with 0.5 what has gone leaves ghosts, one box in three."""

_SHADOW = 127
"""How OpenCV marks a shadow; what moves is 255."""

_OPENED = np.ones((3, 3), np.uint8)
"""Specks of noise are smaller than this."""

_CLOSED = np.ones((7, 7), np.uint8)
"""Parts of one object have gaps smaller than this between them."""


def moving(pictures: Sequence[Picture], threshold: float, context: int = 0) -> Iterator[Mask]:
    """For each picture (H x W x 3, uint8) a mask that is 1 where something differs from what
    stands still in all of them; the first `context` are only learned from.

    The background is a mixture of Gaussians for each pixel (OpenCV's MOG2) that is learned from
    pictures spread evenly over the run, all with the same weight, and does not change afterwards.
    So what moves is told from the first picture on, and what is found does not depend on the
    direction of time.  `threshold` is the squared distance from the mean, in variances, beyond
    which a pixel differs; shadows do not count.
    """
    model = cv2.createBackgroundSubtractorMOG2(len(pictures), threshold, True)
    model.setBackgroundRatio(_RATIO)
    samples = np.unique(np.linspace(0, len(pictures) - 1, _MOST_SAMPLES).round().astype(int))
    for already, at in enumerate(samples):
        model.apply(pictures[at], learningRate=1 / (already + 1))
    for picture in pictures[context:]:
        mask = model.apply(picture, learningRate=0)
        found: Mask = (np.asarray(mask) > _SHADOW).astype(np.uint8)
        found = np.asarray(cv2.morphologyEx(found, cv2.MORPH_OPEN, _OPENED), np.uint8)
        yield np.asarray(cv2.morphologyEx(found, cv2.MORPH_CLOSE, _CLOSED), np.uint8)


def pieces(mask: Mask, least: float) -> list[tuple[int, int, int, int]]:
    """The box of each connected part of at least `least` pixels, by its place in the picture."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    boxes = [
        (int(y), int(x), int(x + width), int(y + height))
        for x, y, width, height, area in stats[1:]
        if area >= least
    ]
    return [(x1, y1, x2, y2) for y1, x1, x2, y2 in sorted(boxes)]
