"""What encoded pictures have of those that they stand for, in dB, by what is read of them."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from vfsd.core.psnr import LOSSLESS_PSNR


@dataclass(frozen=True, slots=True)
class Likeness:
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


IDENTICAL = Likeness(LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR, LOSSLESS_PSNR)
"""Of pictures that are the same to the bit."""
