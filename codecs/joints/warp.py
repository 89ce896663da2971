"""One camera's picture as the other would have taken it."""

from __future__ import annotations

import math

import cv2
import numpy as np

from vfsd.codecs.joints.exposure import Mask
from vfsd.codecs.joints.geometry import Matrix, Picture, Size, size_of

LOSSLESS = 100.0
"""dB that are told of pictures without any difference."""

_EDGE = 2
"""Pixels at the edge of a projected picture that are mixed with what is outside: cubic weights
reach two pixels far."""


def laid_over(picture: Picture, matrix: Matrix, size: Size) -> tuple[Picture, Mask]:
    """`picture` projected into one of `size` pixels, and where it is all there."""
    return warped(picture, matrix, size), there(size_of(picture), matrix, size)


def warped(picture: Picture, matrix: Matrix, size: Size) -> Picture:
    """`picture`, which may also be a single plane, projected into one of `size` pixels.

    Outside, its edge goes on: an encoder has little to do there.
    """
    laid = cv2.warpPerspective(
        picture, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(laid, dtype=np.uint8)


def there(picture: Size, matrix: Matrix, size: Size) -> Mask:
    """Where all of a projected picture is there, in one of `size` pixels."""
    width, height = picture
    inside = np.zeros((height, width), np.uint8)
    inside[_EDGE : height - _EDGE, _EDGE : width - _EDGE] = 255
    mask = cv2.warpPerspective(inside, matrix, size, flags=cv2.INTER_NEAREST)
    return np.asarray(mask > 0)


def mean_square(one: Picture, other: Picture, mask: Mask | None = None) -> float:
    """Of the differences of all samples, or those where `mask` is; as bad as can be where it is
    nowhere, since nothing speaks for it."""
    difference = one.astype(np.float32) - other.astype(np.float32)
    squares = np.square(difference if mask is None else difference[mask])
    return float(squares.mean()) if squares.size else 255.0 * 255.0


def decibels(squares: float) -> float:
    """PSNR of 8-bit samples from their mean square error; `LOSSLESS` at most."""
    return LOSSLESS if squares <= 0 else min(LOSSLESS, 10 * math.log10(255 * 255 / squares))
