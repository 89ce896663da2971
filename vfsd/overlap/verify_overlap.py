"""Whether two cameras show the same, where they are said to: pixels, and what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.exposure import Exposure, Mask, exposure
from vfsd.codecs.joints.geometry import Picture, inverse, size_of
from vfsd.codecs.joints.warp import decibels, laid_over, mean_square
from vfsd.overlap.homography import Alignment

_BLOCK = 8
"""Pixels of a side: means of blocks hardly have noise, and what moves is larger."""
_STILL = 1.0
"""Levels squared, of means of blocks between two moments: less is no movement but noise."""

_Means = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Where both see the same part of the world."""

    left: tuple[float, ...]  #: dB by moment: the right picture laid over the left one
    right: tuple[float, ...]  #: dB by moment: the left picture laid over the right one
    exposure: Exposure
    movement: float | None
    """How far what moves is the same on both: 1 at the same time, 0 at times that have nothing to
    do with each other; None where nothing moves."""

    @property
    def psnr_left(self) -> float:
        """dB over all moments together."""
        return _together(self.left)

    @property
    def psnr_right(self) -> float:
        return _together(self.right)


def agreement(left: Sequence[Picture], right: Sequence[Picture], alignment: Alignment) -> Agreement:
    """Of pictures taken at the same moments."""
    size, other = size_of(left[0]), size_of(right[0])
    laid = [
        laid_over(picture, matrix, size)
        for picture, matrix in zip(right, alignment.matrices, strict=True)
    ]
    light = exposure([(one, *over) for one, over in zip(left, laid, strict=True)])
    laid = [(light.to_left(picture), mask) for picture, mask in laid]
    forth = [
        decibels(mean_square(one, picture, mask))
        for one, (picture, mask) in zip(left, laid, strict=True)
    ]
    back = []
    for one, picture, matrix in zip(left, right, alignment.matrices, strict=True):
        over, mask = laid_over(one, inverse(matrix), other)
        back.append(decibels(mean_square(light.to_right(over), picture, mask)))
    return Agreement(tuple(forth), tuple(back), light, _movement(left, laid))


def _movement(left: Sequence[Picture], laid: Sequence[tuple[Picture, Mask]]) -> float | None:
    """(O - S) / M.

    S is the variance over blocks of the difference of the two cameras at the same moment, O at
    different moments, and M that of one camera at different moments.  What is wrong with the
    projection is in both O and S; light that changes everywhere is in none of them.  At the same
    time, what has moved is in O and not in S: O = S + M.  At times that have nothing to do with
    each other it is in both alike: O = S.
    """
    means = [_means(picture) for picture in left]
    others = [(_means(picture), _inside(mask)) for picture, mask in laid]
    same = different = moved = 0.0
    for i, one in enumerate(means):
        for j, (other, there) in enumerate(others):
            mask = there & others[i][1]
            if i == j or not mask.any():
                continue
            different += _variance(one, other, mask)
            moved += _variance(one, means[j], mask)
            same += (_variance(one, others[i][0], mask) + _variance(means[j], other, mask)) / 2
    pairs = len(means) * (len(means) - 1)
    if not pairs or moved / pairs < _STILL:
        return None
    return (different - same) / moved


def _means(picture: Picture) -> _Means:
    width, height = size_of(picture)
    size = max(1, width // _BLOCK), max(1, height // _BLOCK)
    return np.asarray(
        cv2.resize(picture.astype(np.float32), size, interpolation=cv2.INTER_AREA), np.float32
    )


def _inside(mask: Mask) -> Mask:
    """Blocks that are all there."""
    height, width = mask.shape
    size = max(1, width // _BLOCK), max(1, height // _BLOCK)
    whole: Mask = cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.999
    return whole


def _variance(one: _Means, other: _Means, mask: Mask) -> float:
    return float((one[mask] - other[mask]).var(axis=0).mean())


def _together(values: Sequence[float]) -> float:
    return decibels(float(np.mean([255 * 255 / 10 ** (value / 10) for value in values])))
