"""What is asked of two videos that are to be joined, and whether they can be."""

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
"""Forms of pictures that can be joined, and how many columns and rows share a sample."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How two videos are joined.  Raises `UsageError` for what cannot be."""

    merge: str = "mean"  #: `mean`, or `unprojected`: the left one's pixels
    psnr: float = PSNR  #: dB that every picture of either has at least, in every plane
    codec: str = "fast"  #: name of the tile codec of the pieces: fast or small
    cells: float = 40.0  #: dB of luma that every piece has at least, if `quality` is None
    quality: int | None = None  #: one rate factor for all pieces instead

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise not_one_of("merge", self.merge, MERGES)
        if self.codec not in ("fast", "small"):
            raise not_one_of("the codec of joined pictures", self.codec, ("fast", "small"))
        if self.psnr < MIN_PSNR:
            raise UsageError(
                f"joined pictures of less than {MIN_PSNR:g} dB show things twice",
                hint=f"ask for {MIN_PSNR:g} dB or more",
            )

    def parameters(self) -> dict[str, object]:
        """What is noted of it."""
        aim = {"cells": self.cells} if self.quality is None else {"quality": self.quality}
        return {"merge": self.merge, "psnr": self.psnr, "codec": self.codec, **aim}


def require_joinable(left: MediaInfo, right: MediaInfo) -> None:
    """Raises `UsageError` for videos whose pictures cannot be joined."""
    for media in (left, right):
        shares = _SHARES.get(media.pixel_format)
        if shares is None:
            raise UsageError(
                f"pictures in {media.pixel_format} cannot be joined", hint=_one_of(_SHARES)
            )
        if media.interlaced:
            raise UsageError("pictures of interlaced fields cannot be joined")
        if media.mirrored:
            raise UsageError("pictures that are shown mirrored cannot be joined")
        if media.rotation % 180 and any(across != down for across, down in shares):
            raise UsageError(f"pictures in {media.pixel_format} that are turned cannot be joined")
        if not is_divisible((media.width, media.height), shares):
            raise UsageError(f"pictures of {media.width}x{media.height} cannot be joined")
    coded = [(media.pixel_format, media_coding(media)) for media in (left, right)]
    if coded[0] != coded[1]:
        raise UsageError(
            "the colours of the two are coded in different ways: "
            f"{_coding_text(left)}, and {_coding_text(right)}"
        )


def _coding_text(media: MediaInfo) -> str:
    """What samples mean; of what nobody tells, what they are taken for."""
    levels = "full" if media_coding(media).is_full else "limited"
    return f"{media.pixel_format} of {levels} range and {media.color_space or 'bt601'}"


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"
