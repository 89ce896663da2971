"""The shape of pixels, which changes where pictures are scaled by more one way than the other."""

from __future__ import annotations

from fractions import Fraction

from vfsd.core.model import MediaInfo

_HIGHEST = 65535
"""Streams tell a shape as two numbers of 16 bits."""


def scaled_aspect(ratio: Fraction, before: tuple[int, int], after: tuple[int, int]) -> Fraction:
    """That of pixels of a picture that was scaled from `before` to `after`, (width, height).

    The picture is shown in the shape that it had: exactly, as long as that can be told.
    """
    exact = ratio * Fraction(before[0] * after[1], before[1] * after[0])
    return 1 / _told(1 / exact) if exact > 1 else _told(exact)


def upright_aspect(media: MediaInfo) -> Fraction | None:
    """That of pixels as they are displayed: stored pictures may have to be turned."""
    ratio = media.sample_aspect_ratio
    return 1 / ratio if ratio and media.rotation % 180 else ratio


def _told(ratio: Fraction) -> Fraction:
    return max(ratio.limit_denominator(_HIGHEST), Fraction(1, _HIGHEST))
