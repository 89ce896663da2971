"""PSNR arithmetic: conversion to errors, bounds along a chain of encodings, and measured figures.

An error is the root mean square difference as a share of the peak value.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

LOSSLESS_PSNR = 100.0
"""dB stored for an encoding without any difference."""
FINEST_PSNR = 60.0
"""dB above which lossy encodings take more bytes than lossless ones."""
SCALING_ERROR_FACTOR = 1.7
"""Upper bound for the growth of an error through scaling.  Each sample of a bicubically
scaled row is a weighted sum whose absolute weights add up to at most 1.3.  So do the
weights of each source sample.  By Schur's test the norm of scaling is at
most 1.3 along rows, and 1.69 along both axes.
"""
RANGE_ERROR_FACTOR = 255 / 219
"""Growth of a luma error when limited range is stretched to full range."""
COLOR_ERROR_FACTOR = 3.31
"""Upper bound for the growth of errors of Y, U and V in R, G or B: 1.164 + 2.142, the
weights of luma and U in the blue of limited-range BT.2020.  All other sums are smaller.
"""
ROUNDING_ERROR = 1 / 255
"""Upper bound of the change in the difference of two samples when each is rounded to 8 bits."""


def error_from_psnr(psnr: float) -> float:
    """Return the error for a PSNR in dB; 0 for an infinite one."""
    return 0.0 if psnr == math.inf else math.pow(10, -psnr / 20)


def psnr_from_error(error: float) -> float:
    """Return the PSNR in dB for an error; infinite for an error of 0."""
    return math.inf if error <= 0 else -20 * math.log10(error)


def chained_psnr(psnr: float, error: float, *, scaled_to_bits: int | None = None) -> float:
    """Return a lower bound in dB for an encoding against the first one of its chain.

    `psnr` is its PSNR against its source, and `error` the largest error of the source against the
    first one.  With `scaled_to_bits`, its pictures were scaled and rounded to that many bits per
    sample.
    """
    if error <= 0:
        return psnr
    if scaled_to_bits is not None:
        error = SCALING_ERROR_FACTOR * error + 1 / ((1 << scaled_to_bits) - 1)
    own = 0.0 if psnr >= LOSSLESS_PSNR else error_from_psnr(psnr)
    return psnr_from_error(own + error)


def required_psnr(psnr: float, error: float) -> float | None:
    """Return the dB that an encoding needs against a source with `error` to have `psnr` against the
    first.

    The reverse of `chained_psnr`.  None if no quality suffices.
    """
    left = error_from_psnr(psnr) - error
    return psnr if error <= 0 else None if left <= 0 else psnr_from_error(left)


def psnr_from_mse(mean_square: float, peak: int) -> float:
    """Return the dB of a mean square error of samples up to `peak`; at most `LOSSLESS_PSNR`."""
    if mean_square <= 0:
        return LOSSLESS_PSNR
    return min(LOSSLESS_PSNR, 10 * math.log10(peak * peak / mean_square))


@dataclass(frozen=True, slots=True)
class PsnrFigures:
    """dB against the source as a read would return it; 0: not measured.

    Luma is the mean over all pictures, the other figures are those of the worst picture.
    """

    luma: float  #: as coded, mean over all pictures
    gray: float = 0.0  #: derived from luma
    planes: float = 0.0  #: worst plane of Y, U and V, as coded
    colour: float = 0.0  #: worst channel of R, G and B

    @property
    def as_tuple(self) -> tuple[float, float, float, float]:
        """(luma, gray, planes, colour)."""
        luma, gray, planes, colour = astuple(self)
        return luma, gray, planes, colour


IDENTICAL = PsnrFigures(LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR)
"""Figures of pictures that are identical bit for bit."""
