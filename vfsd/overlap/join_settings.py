"""Settings for joining two videos, and the requirements on their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vfsd.codecs.frames.color import media_coding
from vfsd.codecs.joints.plane_merge import MERGES, is_divisible
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.overlap.overlap_pair import MIN_PSNR
from vfsd.validation import not_one_of

PSNR = 30.0
"""dB that VSS calls near-lossless."""
_SHARES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "yuv420p": ((1, 1), (2, 2), (2, 2)),
    "yuvj420p": ((1, 1), (2, 2), (2, 2)),
    "yuv422p": ((1, 1), (2, 1), (2, 1)),
    "yuvj422p": ((1, 1), (2, 1), (2, 1)),
    "yuv444p": ((1, 1), (1, 1), (1, 1)),
    "yuvj444p": ((1, 1), (1, 1), (1, 1)),
}
"""Pixel formats that can be joined, with the columns and rows that share a sample of each plane."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How two videos are joined.  Raises `UsageError` for invalid values."""

    merge: str = "mean"  #: `mean`, or `unprojected`: the pixels of the left picture
    psnr: float = PSNR  #: minimum dB of every plane of every picture of either video
    codec: str = "fast"  #: tile codec of the pieces: fast or small
    cells: float = 40.0  #: minimum dB of luma of every piece, if `quality` is None
    quality: int | None = None  #: one rate factor for all pieces instead

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise not_one_of("merge", self.merge, MERGES)
        if self.codec not in ("fast", "small"):
            raise not_one_of("the codec of joined pictures", self.codec, ("fast", "small"))
        if self.psnr < MIN_PSNR:
            raise UsageError(
                f"psnr must be at least {MIN_PSNR:g} dB, got {self.psnr:g}",
                hint="with less, joined pictures show objects twice",
            )

    def parameters(self) -> dict[str, object]:
        """Return the settings as stored with the encoding."""
        aim = {"cells": self.cells} if self.quality is None else {"quality": self.quality}
        return {"merge": self.merge, "psnr": self.psnr, "codec": self.codec, **aim}


def require_joinable(left: MediaInfo, right: MediaInfo) -> None:
    """Raises `UsageError` for videos whose pictures cannot be joined."""
    for media in (left, right):
        shares = _SHARES.get(media.pixel_format)
        if shares is None:
            raise UsageError(
                f"pictures in {media.pixel_format} cannot be joined",
                hint=f"they must be in {_one_of(_SHARES)}",
            )
        if media.interlaced:
            raise UsageError("interlaced pictures cannot be joined")
        if media.mirrored:
            raise UsageError("mirrored pictures cannot be joined")
        if media.rotation % 180 and any(across != down for across, down in shares):
            raise UsageError(f"rotated pictures in {media.pixel_format} cannot be joined")
        if not is_divisible((media.width, media.height), shares):
            raise UsageError(f"pictures of {media.width}x{media.height} cannot be joined")
    coded = [(media.pixel_format, media_coding(media)) for media in (left, right)]
    if coded[0] != coded[1]:
        raise UsageError(
            "both videos must have the same color coding, got "
            f"{_coding_text(left)}, and {_coding_text(right)}"
        )


def _coding_text(media: MediaInfo) -> str:
    """Return the coding of samples, with defaults for unknown properties."""
    levels = "full" if media_coding(media).is_full else "limited"
    return f"{media.pixel_format} of {levels} range and {media.color_space or 'bt601'}"


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"
