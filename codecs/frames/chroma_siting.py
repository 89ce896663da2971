"""Sets the chroma location and the interlaced flag of frames.

PyAV cannot set either. Frames with these properties are decoded from raw video by FFmpeg, and
samples are copied into them.
"""

from __future__ import annotations

from functools import cache

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import Interpolation

from vfsd.codecs.frames.planes import (
    copy_colors,
    copy_picture,
    plane_bytes,
    plane_samples,
    plane_subsampling,
    without_range_name,
)
from vfsd.codecs.pyav import decode
from vfsd.codecs.registry import new_decoder

SITINGS = ("unspecified", "left", "center", "topleft", "top", "bottomleft", "bottom")
"""Chroma locations, by FFmpeg's names."""

_SIDES = (16, 32, 48)
_TRIAL_SIZE = (64, 48)
_TRIAL_TARGETS = ((20, 12), (64, 48), (90, 70))
_TRIAL_FORMATS = ("yuv444p", "yuv420p")
"""A format without subsampling, and one in which chroma keeps its place."""


def blank_like(picture: av.VideoFrame, width: int, height: int) -> av.VideoFrame:
    """Return a new picture of that size with the form and colors of `picture` and undefined
    samples.
    """
    return _blank(picture, width, height, picture.format.name)


def blank_without_range(picture: av.VideoFrame) -> av.VideoFrame:
    """Return a picture as `blank_like` does, of equal size, in the format that names no range."""
    name = without_range_name(picture.format.name)
    return _blank(picture, picture.width, picture.height, name)


def _blank(picture: av.VideoFrame, width: int, height: int, pixel_format: str) -> av.VideoFrame:
    own = (width, height)
    given = (picture.width, picture.height)
    side = next(side for side in _SIDES if (side, side) not in (own, given))
    try:
        made = _scaled_frame(
            _scaled_frame(picture, side, side, pixel_format), width, height, pixel_format
        )
    except (FFmpegError, ValueError):  # FFmpeg does not scale to all formats
        made = av.VideoFrame(width, height, pixel_format)
    copy_colors(picture, made)
    return made


def is_same_form(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return whether two pictures of one video have the same format and interlacing."""
    return (one.format.name, one.interlaced_frame) == (other.format.name, other.interlaced_frame)


def blank(
    width: int, height: int, pixel_format: str, siting: str, *, interlaced: bool
) -> av.VideoFrame:
    """Return a picture with chroma at `siting` and undefined samples."""
    return blank_like(_decoded_raw(pixel_format, siting, interlaced), width, height)


def frame_siting(picture: av.VideoFrame) -> str:
    """Return the chroma location of a picture: one of `SITINGS`, as far as FFmpeg
    distinguishes it.
    """
    mine = _siting_trace(blank_like(picture, *_TRIAL_SIZE))
    known = _siting_traces(picture.format.name, picture.interlaced_frame)
    return known.get(mine, SITINGS[0])


class SitingSetter:
    """Copies pictures to ones that declare their chroma at `siting`. Not thread-safe.

    Samples are not moved. Use it for pictures from codecs that cannot signal the location.
    """

    def __init__(self, siting: str) -> None:
        self.siting = siting
        self._form: tuple[int, int, str, bool] | None = None
        self._own: av.VideoFrame | None = None

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return a copy of `picture`, valid until the next call."""
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
def _siting_traces(pixel_format: str, interlaced: bool) -> dict[bytes, str]:
    """Return the converted test samples for each siting that FFmpeg distinguishes."""
    found: dict[bytes, str] = {}
    for siting in SITINGS:
        made = blank(*_TRIAL_SIZE, pixel_format, siting, interlaced=interlaced)
        found.setdefault(_siting_trace(made), siting)
    return found


def _siting_trace(picture: av.VideoFrame) -> bytes:
    """Return test samples as FFmpeg converts them in this picture; its own samples are
    overwritten.
    """
    rng = np.random.default_rng(0)
    for plane in plane_bytes(picture):
        plane[...] = rng.integers(0, 2, plane.shape)
        if picture.format.components[0].bits == 8:
            plane *= 160
    copy_colors(av.VideoFrame(*_TRIAL_SIZE, picture.format.name), picture)
    converted = [
        picture.reformat(
            width=width,
            height=height,
            format=form,
            interpolation=Interpolation.BICUBIC,
            threads=1,
        )
        for form in _TRIAL_FORMATS
        for width, height in _TRIAL_TARGETS
    ]
    return b"".join(plane.tobytes() for made in converted for plane in plane_bytes(made))


def _decoded_raw(pixel_format: str, siting: str, interlaced: bool) -> av.VideoFrame:
    """Return a small picture that FFmpeg decoded from raw video with these properties."""
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


def _scaled_frame(
    picture: av.VideoFrame, width: int, height: int, pixel_format: str
) -> av.VideoFrame:
    return picture.reformat(
        width=width,
        height=height,
        format=pixel_format,
        interpolation=Interpolation.POINT,  # reads only the rows that it needs
        threads=1,
    )


class InterlaceSetter:
    """Copies pictures of one video to ones with a given interlaced flag. Not thread-safe."""

    def __init__(self, *, interlaced: bool) -> None:
        self._interlaced = interlaced
        self._form: tuple[int, int, str] | None = None
        self._own: av.VideoFrame | None = None

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return `picture` if its flag is right or cannot be set; else a copy, valid until the next
        call.
        """
        if picture.interlaced_frame == self._interlaced or not self.can_flag(picture):
            return picture
        form = (picture.width, picture.height, picture.format.name)
        if self._own is None or form != self._form:
            siting = frame_siting(picture)
            self._own, self._form = blank(*form, siting, interlaced=self._interlaced), form
        copy_picture(picture, self._own)
        self._own.pts = picture.pts
        return self._own

    def can_flag(self, picture: av.VideoFrame) -> bool:
        """Return whether pictures of this form can have the flag.

        FFmpeg does not set the flag on packed pictures of raw video.
        """
        is_packed = not picture.format.is_planar and not picture.format.name.startswith("gray")
        return picture.interlaced_frame == self._interlaced or not is_packed


def with_full_chroma(frame: av.VideoFrame) -> av.VideoFrame:
    """Return `frame` with each chroma sample repeated for every pixel that shares it.

    In an interlaced frame, the pixels of one field share it, so crops must follow `chroma_grid`.
    """
    name = frame.format.name
    for shared in ("420", "422", "440", "411", "410"):
        name = name.replace(shared, "444")
    full = blank(frame.width, frame.height, name, SITINGS[0], interlaced=frame.interlaced_frame)
    copy_colors(frame, full)
    fields = 2 if frame.interlaced_frame else 1
    planes = zip(plane_samples(frame), plane_samples(full), strict=True)
    for number, (source, target) in enumerate(planes):
        shares_x, shares_y = plane_subsampling(frame, number)
        for field in range(fields):
            rows = target[field::fields]
            repeated = source[field::fields].repeat(shares_y, axis=0).repeat(shares_x, axis=1)
            rows[...] = repeated[: rows.shape[0], : rows.shape[1]]
    return full


def chroma_grid(frame: av.VideoFrame) -> tuple[int, int]:
    """Return the columns and rows at whose multiples a crop of `frame` has its own chroma."""
    shares_x, shares_y = plane_subsampling(frame, 1)
    return shares_x, 2 * shares_y if frame.interlaced_frame and shares_y > 1 else shares_y
