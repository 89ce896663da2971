"""Colours of a video, by which those are told apart that cannot show the same place.

A signature is a histogram of Lab colours of a few frames, of all of the picture, of its left half
and of its right half: cameras side by side share a half.  With the square roots of shares, a dot
product is the Bhattacharyya coefficient of two histograms, and all pairs are a few products of
matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.geometry import Picture

Signature = npt.NDArray[np.float32]
"""3 x 256: all, left half, right half; square roots of the shares of colours."""

RADIUS = 0.4
"""Hellinger distance of the nearest parts of two videos that may overlap.  Of pairs that do, the
farthest had 0.27; the median of all pairs of different clips is 0.56."""
MOST = 8
"""Nearest neighbours of a video that are looked at.  Those that overlap came first or second."""

_BINS = (4, 8, 8)
"""Of lightness and the two colours: cameras differ more in exposure than in hue."""
_BLOCK = 256
"""Videos that are compared with all others at a time."""


def signature(pictures: Sequence[Picture]) -> Signature:
    """Of pictures of one video, which may have any size."""
    total = np.zeros((3, _BINS[0] * _BINS[1] * _BINS[2]))
    for picture in pictures:
        lab = cv2.cvtColor(picture, cv2.COLOR_RGB2LAB)
        middle = max(1, lab.shape[1] // 2)
        for part, pixels in enumerate((lab, lab[:, :middle], lab[:, -middle:])):
            histogram = cv2.calcHist(
                [np.ascontiguousarray(pixels)], [0, 1, 2], None, list(_BINS), [0, 256] * 3
            )
            total[part] += histogram.ravel() / pixels[..., 0].size
    return np.sqrt(total / len(pictures)).astype(np.float32)


def candidates(
    signatures: Sequence[Signature], *, most: int = MOST, radius: float = RADIUS
) -> list[tuple[int, int]]:
    """Pairs i < j of which one is among the `most` nearest of the other, within `radius`.

    At most `most` times as many as there are videos; ascending.
    """
    count = len(signatures)
    if count < 2:
        return []
    parts = np.concatenate(signatures)
    each = len(signatures[0])
    found: set[tuple[int, int]] = set()
    for first in range(0, count, _BLOCK):
        block = parts[first * each : (first + _BLOCK) * each]
        alike = (block @ parts.T).reshape(-1, each, count, each).max(axis=(1, 3))
        near = np.sqrt(np.clip(1 - alike, 0, None))
        for i, distances in enumerate(near, start=first):
            distances[i] = np.inf
            nearest = np.argpartition(distances, min(most, count - 1))[:most]
            found.update((min(i, j), max(i, j)) for j in nearest.tolist() if distances[j] <= radius)
    return sorted(found)
