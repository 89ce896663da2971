"""Pictures of a video that change their size on the way, all in the size of the first.

FFmpeg's command does the same: it scales later pictures, bicubically, to the size and the format of
the first one.
"""

from __future__ import annotations

import av
from av.video.reformatter import Interpolation, VideoReformatter

from vfsd.codecs.frames.planes import copy_colors


class FirstSize:
    """Brings pictures to one size and format.  Not thread-safe."""

    def __init__(self, width: int, height: int, pixel_format: str) -> None:
        self._form = (width, height, pixel_format)
        self._reformatter = VideoReformatter()

    def of(self, picture: av.VideoFrame) -> av.VideoFrame:
        """`picture` itself where it has that size, whatever its format; else a scaled copy."""
        width, height, pixel_format = self._form
        if (picture.width, picture.height) == (width, height):
            return picture
        scaled = self._reformatter.reformat(
            picture,
            width=width,
            height=height,
            format=pixel_format,
            interpolation=Interpolation.BICUBIC,
            threads=1,  # results do not depend on it, and examiners may start none
        )
        copy_colors(picture, scaled)
        scaled.pts = picture.pts
        return scaled
