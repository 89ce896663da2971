"""Pictures of our own whose samples mean what those of another picture do.

Where chroma lies among luma, and that a picture is interlaced, decides how FFmpeg converts it, but
PyAV can neither tell the one nor set either.  FFmpeg hands both on from what it scales to what it
makes, and takes both from what it is told of raw video; so pictures are made by scaling ones that
are right, and where chroma lies is found by comparing what is converted.
"""

from __future__ import annotations

from functools import cache

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import Interpolation

from vfsd.codecs.frames.pix_fmt_range import without_range
from vfsd.codecs.frames.planes import copy_colors, copy_picture, plane_bytes
from vfsd.codecs.pyav import decode
from vfsd.codecs.registry import new_decoder

SITINGS = ("unspecified", "left", "center", "topleft", "top", "bottomleft", "bottom")
"""Where chroma may lie, by FFmpeg's names."""

_SIDES = (16, 32, 48)
_TRIED = (64, 48)
_TRIED_TO = ((20, 12), (64, 48), (90, 70))
_TRIED_AS = ("yuv444p", "yuv420p")
"""One where chroma is taken apart, and one where it is brought together in the same places."""


def blank_like(picture: av.VideoFrame, width: int, height: int) -> av.VideoFrame:
    """A picture of that size, the caller's own, like `picture` but for what it shows.

    Which is anything.
    """
    return _blank(picture, width, height, picture.format.name)


def blank_without_range(picture: av.VideoFrame) -> av.VideoFrame:
    """As `blank_like`, as large, and in the format whose name says nothing of the range."""
    name = without_range(picture.format.name)
    return _blank(picture, picture.width, picture.height, name)


def _blank(picture: av.VideoFrame, width: int, height: int, pixel_format: str) -> av.VideoFrame:
    own = (width, height)
    given = (picture.width, picture.height)
    side = next(side for side in _SIDES if (side, side) not in (own, given))
    try:
        made = _scaled(_scaled(picture, side, side, pixel_format), width, height, pixel_format)
    except (FFmpegError, ValueError):  # FFmpeg does not scale to all formats
        made = av.VideoFrame(width, height, pixel_format)
    copy_colors(picture, made)
    return made


def means_like(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Whether two pictures of one video are of the same form, but for their size and colours."""
    return (one.format.name, one.interlaced_frame) == (other.format.name, other.interlaced_frame)


def blank(
    width: int, height: int, pixel_format: str, siting: str, *, interlaced: bool
) -> av.VideoFrame:
    """A picture with chroma where `siting` says, which shows anything."""
    return blank_like(_raw(pixel_format, siting, interlaced), width, height)


def siting_of(picture: av.VideoFrame) -> str:
    """Where chroma lies in a picture, as far as that makes a difference to FFmpeg."""
    mine = _trace(blank_like(picture, *_TRIED))
    known = _traces(picture.format.name, picture.interlaced_frame)
    return known.get(mine, SITINGS[0])


class Sited:
    """Makes pictures say that chroma lies where `siting` says.  Not thread-safe.

    That moves nothing: it is for pictures whose codec cannot tell what is known of them.
    """

    def __init__(self, siting: str) -> None:
        self.siting = siting
        self._form: tuple[int, int, str, bool] | None = None
        self._own: av.VideoFrame | None = None

    def of(self, picture: av.VideoFrame) -> av.VideoFrame:
        """A copy of `picture`, which is valid until the next is asked for."""
        width, height, name = picture.width, picture.height, picture.format.name
        form = (width, height, name, picture.interlaced_frame)
        if self._own is None or form != self._form:
            interlaced = picture.interlaced_frame
            self._own = blank(width, height, name, self.siting, interlaced=interlaced)
            self._form = form
        copy_picture(picture, self._own)
        self._own.pts = picture.pts
        return self._own


@cache
def _traces(pixel_format: str, interlaced: bool) -> dict[bytes, str]:
    """For each siting that makes a difference, what becomes of some samples."""
    found: dict[bytes, str] = {}
    for siting in SITINGS:
        made = blank(*_TRIED, pixel_format, siting, interlaced=interlaced)
        found.setdefault(_trace(made), siting)
    return found


def _trace(picture: av.VideoFrame) -> bytes:
    """What FFmpeg makes of certain samples in a picture like this one, which loses its own."""
    rng = np.random.default_rng(0)
    for plane in plane_bytes(picture):
        plane[...] = rng.integers(0, 2, plane.shape)
        if picture.format.components[0].bits == 8:
            plane *= 160
    copy_colors(av.VideoFrame(*_TRIED, picture.format.name), picture)
    converted = [
        picture.reformat(
            width=width,
            height=height,
            format=form,
            interpolation=Interpolation.BICUBIC,
            threads=1,
        )
        for form in _TRIED_AS
        for width, height in _TRIED_TO
    ]
    return b"".join(plane.tobytes() for made in converted for plane in plane_bytes(made))


def _raw(pixel_format: str, siting: str, interlaced: bool) -> av.VideoFrame:
    """A small picture as FFmpeg decodes raw video that is said to be so."""
    side = _SIDES[0]
    context = new_decoder("rawvideo")
    context.width = context.height = side
    context.pix_fmt = pixel_format
    context.options = {
        "chroma_sample_location": "unknown" if siting == SITINGS[0] else siting,
        "field_order": "tt" if interlaced else "progressive",
    }
    like = av.VideoFrame(side, side, pixel_format)
    size = sum(plane.size for plane in plane_bytes(like))
    (picture,) = decode(context, av.Packet(bytes(size)))
    return picture


def _scaled(picture: av.VideoFrame, width: int, height: int, pixel_format: str) -> av.VideoFrame:
    return picture.reformat(
        width=width,
        height=height,
        format=pixel_format,
        interpolation=Interpolation.POINT,  # looks at just the rows that it needs
        threads=1,
    )
