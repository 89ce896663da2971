"""What making a view takes: which of its pictures are copied, and which are made anew."""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.views.read_notes import Pictures


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Pictures in a row of a view whose packets are copied; nothing is decoded for them."""

    frames: range  #: of the video, from the first to after the last
    count: int  #: of its pictures
    origin: str  #: original or tiles
    codec: str
    bytes: int  #: of the packets
    psnr: float
    """dB that they have at least against the very first original; infinite where they are it."""


@dataclass(frozen=True, slots=True)
class MadePart:
    """Pictures in a row of a view that are decoded and converted, and encoded unless it is raw."""

    pictures: Pictures
    codec: str | None  #: in which they are encoded; None: they are not
    bytes: int  #: of the places in the file that they are given

    @property
    def frames(self) -> range:
        """Of the video, from the first to after the last."""
        return range(int(self.pictures.frames[0]), int(self.pictures.frames[-1]) + 1)


ViewPart = CopiedPart | MadePart
