"""PSNR arithmetic: errors in shares of the peak value, how they add up along a chain of encodings,
and the measured figures of one encoding.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

LOSSLESS_PSNR = 100.0
"""dB that stand for "no difference at all" in what is stored of encodings."""
FINEST_PSNR = 60.0
"""dB beyond which encodings that are not lossless take more bytes than those that are."""
SCALING_ERROR_FACTOR = 1.7
"""The factor by which scaling pictures can enlarge an error, at most: each sample of a bicubically
scaled row is a sum with weights whose sizes add up to 1.3 at most, and so do those with which a
sample of the row contributes; by Schur's test the norm of scaling is at most 1.3 along rows, and
1.69 along both."""
RANGE_ERROR_FACTOR = 255 / 219
"""The factor by which an error of luma grows where a limited range is stretched to full gray."""
COLOR_ERROR_FACTOR = 3.31
"""The factor by which errors of Y, U and V grow in R, G or B, at most: 1.164 + 2.142, the weights
of luma and U in the blue of BT.2020 in a limited range; all others are smaller."""
ROUNDING_ERROR = 1 / 255
"""The most by which the difference of two samples changes when each is rounded to eight bits."""


def error_from_psnr(psnr: float) -> float:
    """The error that a PSNR in dB stands for; 0 for an infinite one."""
    return 0.0 if psnr == math.inf else math.pow(10, -psnr / 20)


def psnr_from_error(error: float) -> float:
    """The PSNR, in dB, of an error; infinite where nothing was lost."""
    return math.inf if error <= 0 else -20 * math.log10(error)


def chained_psnr(psnr: float, error: float, *, scaled_to_bits: int | None = None) -> float:
    """dB that an encoding has at least against the first one of its chain.

    It has `psnr` dB against its source, which has the error `error` at most against the first one.
    `scaled_to_bits`: its pictures were scaled, and each sample rounded to so many bits.
    """
    if error <= 0:
        return psnr
    if scaled_to_bits is not None:
        error = SCALING_ERROR_FACTOR * error + 1 / ((1 << scaled_to_bits) - 1)
    own = 0.0 if psnr >= LOSSLESS_PSNR else error_from_psnr(psnr)
    return psnr_from_error(own + error)


def required_psnr(psnr: float, error: float) -> float | None:
    """`chained_psnr` reversed: the dB that an encoding needs against a source with that `error`, to
    have `psnr` against the first one; None where nothing is good enough."""
    left = error_from_psnr(psnr) - error
    return psnr if error <= 0 else None if left <= 0 else psnr_from_error(left)


def psnr_from_mse(mean_square: float, peak: int) -> float:
    """dB of a mean square error of samples up to `peak`; `LOSSLESS_PSNR` at most."""
    if mean_square <= 0:
        return LOSSLESS_PSNR
    return min(LOSSLESS_PSNR, 10 * math.log10(peak * peak / mean_square))


@dataclass(frozen=True, slots=True)
class PsnrFigures:
    """dB against what a read of the source would give; 0 where nobody has measured it.

    Of the worst picture, but for luma.
    """

    luma: float  #: as it is coded, in the mean of all pictures
    gray: float = 0.0  #: made of luma
    planes: float = 0.0  #: of that one of Y, U and V that has least, as they are coded
    colour: float = 0.0  #: of that one of R, G and B that has least

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """In this order."""
        luma, gray, planes, colour = astuple(self)
        return luma, gray, planes, colour


IDENTICAL = PsnrFigures(LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR)
"""Of pictures that are the same to the bit."""
