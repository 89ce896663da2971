"""Two overlapping pictures as three pieces that say everything once, and back.

After VSS (SIGMOD 2021): with `unprojected` the left picture comes back as it was and the right one
has what the left one saw; with `mean` both give way a little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np

from vfsd.codecs.joints.exposure import Exposure, Mask
from vfsd.codecs.joints.geometry import Picture, inverse
from vfsd.codecs.joints.seam import Cut
from vfsd.codecs.joints.warp import laid_over

Merge = Callable[[Picture, Picture, Mask], Picture]
"""From what the left camera saw, what the right one saw of the same (laid over it, with the left
one's exposure), and where it saw it."""


@dataclass(frozen=True, eq=False, slots=True)
class Pieces:
    """What is kept of two pictures; a piece may have no columns."""

    left: Picture
    middle: Picture
    right: Picture


def unprojected(left: Picture, right: Picture, seen: Mask) -> Picture:
    return left


def mean(left: Picture, right: Picture, seen: Mask) -> Picture:
    both = cv2.addWeighted(left, 0.5, right, 0.5, 0)
    seen = seen if left.ndim == 2 else seen[:, :, np.newaxis]
    return np.where(seen, both, left).astype(np.uint8)


MERGES: Mapping[str, Merge] = MappingProxyType({"unprojected": unprojected, "mean": mean})
"""By name."""


def split(left: Picture, right: Picture, cut: Cut, light: Exposure, merge: Merge) -> Pieces:
    """Cut a pair into pieces."""
    laid, seen = laid_over(light.to_left(right), cut.to_middle, cut.middle)
    x1, y1, x2, y2 = _corners(cut)
    middle = laid
    middle[y1:y2, x1:x2] = merge(left[:, cut.seam :], laid[y1:y2, x1:x2].copy(), seen[y1:y2, x1:x2])
    return Pieces(left[:, : cut.seam].copy(), middle, right[:, cut.edge :].copy())


def joined_left(pieces: Pieces, cut: Cut) -> Picture:
    """The left picture from the pieces."""
    x1, y1, x2, y2 = _corners(cut)
    return np.hstack([pieces.left, pieces.middle[y1:y2, x1:x2]])


def joined_right(pieces: Pieces, cut: Cut, light: Exposure) -> Picture:
    """The right picture from the pieces."""
    size = cut.edge, cut.right[1]
    laid, _ = laid_over(pieces.middle, inverse(cut.to_middle), size)
    return np.hstack([light.to_right(laid), pieces.right])


def _corners(cut: Cut) -> tuple[int, int, int, int]:
    place = cut.left_in_middle
    return place.x1, place.y1, place.x2, place.y2
