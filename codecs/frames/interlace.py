"""Pictures of interlaced video, whose rows belong to two moments in turns.

FFmpeg scales a picture that says it is interlaced field by field.  Codecs of tiles and renditions
do not say it, and decoders may say it of some pictures of a video and not of others; so that all
are scaled alike, wherever they come from, what is known of the video decides.
"""

from __future__ import annotations

import av

from vfsd.codecs.frames.chroma_location import SITINGS, blank, siting_of
from vfsd.codecs.frames.planes import copy_colors, copy_picture, plane_samples, shares


class Scanning:
    """Makes pictures of one video say that they are interlaced, or not.  Not thread-safe."""

    def __init__(self, *, interlaced: bool) -> None:
        self._interlaced = interlaced
        self._form: tuple[int, int, str] | None = None
        self._own: av.VideoFrame | None = None

    def of(self, picture: av.VideoFrame) -> av.VideoFrame:
        """`picture` where it says so or cannot, else a copy, valid until the next is asked for."""
        if picture.interlaced_frame == self._interlaced or not self.can_tell(picture):
            return picture
        form = (picture.width, picture.height, picture.format.name)
        if self._own is None or form != self._form:
            siting = siting_of(picture)
            self._own, self._form = blank(*form, siting, interlaced=self._interlaced), form
        copy_picture(picture, self._own)
        self._own.pts = picture.pts
        return self._own

    def can_tell(self, picture: av.VideoFrame) -> bool:
        """Whether pictures of that form say it: FFmpeg makes none of packed ones that would."""
        is_packed = not picture.format.is_planar and not picture.format.name.startswith("gray")
        return picture.interlaced_frame == self._interlaced or not is_packed


def with_full_chroma(frame: av.VideoFrame) -> av.VideoFrame:
    """`frame` with each chroma sample repeated for every pixel that shares it.

    Of an interlaced one the pixels of one field share it: it has to be cut where `shared_by` says.
    """
    name = frame.format.name
    for shared in ("420", "422", "440", "411", "410"):
        name = name.replace(shared, "444")
    full = blank(frame.width, frame.height, name, SITINGS[0], interlaced=frame.interlaced_frame)
    copy_colors(frame, full)
    fields = 2 if frame.interlaced_frame else 1
    planes = zip(plane_samples(frame), plane_samples(full), strict=True)
    for number, (source, target) in enumerate(planes):
        shares_x, shares_y = shares(frame, number)
        for field in range(fields):
            rows = target[field::fields]
            repeated = source[field::fields].repeat(shares_y, axis=0).repeat(shares_x, axis=1)
            rows[...] = repeated[: rows.shape[0], : rows.shape[1]]
    return full


def shared_by(frame: av.VideoFrame) -> tuple[int, int]:
    """At multiples of how many columns and rows a part of `frame` has chroma of its own."""
    shares_x, shares_y = shares(frame, 1)
    return shares_x, 2 * shares_y if frame.interlaced_frame and shares_y > 1 else shares_y
