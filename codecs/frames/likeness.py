"""How like two pictures are, plane by plane."""

from __future__ import annotations

import av
import cv2

from vfsd.codecs.frames.planes import plane_samples
from vfsd.core.psnr import psnr_of_squares


def plane_errors(one: av.VideoFrame, other: av.VideoFrame) -> list[float]:
    """The mean square error of each plane, luma first.  Both are planar, of one size and format."""
    pairs = zip(plane_samples(one), plane_samples(other), strict=True)
    return [float(cv2.norm(a, b, cv2.NORM_L2SQR)) / a.size for a, b in pairs]


def square_error(decibels: float, peak: int) -> float:
    """The mean square error that a PSNR tells; `vfsd.core.psnr.psnr_of_squares` reversed."""
    return float(peak * peak / 10 ** (decibels / 10))


def summed(one: float, other: float, peak: int) -> float:
    """The PSNR in dB that is left at least where errors of two PSNRs follow each other.

    The square roots of mean square errors are distances, and the triangle inequality holds.
    """
    distance = square_error(one, peak) ** 0.5 + square_error(other, peak) ** 0.5
    return psnr_of_squares(distance**2, peak)
