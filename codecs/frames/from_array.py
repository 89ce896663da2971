"""Converts arrays to frames for an encoder; the reverse of `to_array`."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from vfsd.codecs.frames.pixel_layouts import check_size, input_layout
from vfsd.codecs.frames.planes import names_full_range, plane_pixels, plane_samples
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError

_EXACT_SCALING = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
"""Else BGR takes a short cut that costs some dB."""
_MATRICES = {
    "bt709": Colorspace.ITU709,
    "fcc": Colorspace.FCC,
    "smpte240m": Colorspace.SMPTE240M,
    "bt2020nc": Colorspace.BT2020,
    "bt2020c": Colorspace.BT2020,
}
"""BT.601 for all others, and where none is told, as `vfsd.codecs.frames.to_array` has it."""


class FrameMaker:
    """Turns arrays of one form into pictures in the format `stored` (FFmpeg's name).

    Arrays have the shapes that a `PixelConverter` gives for that `pixel_format`.  With `like`,
    pictures mean their samples as those of that video do.  Not thread-safe.  Raises `UsageError`
    for a format that there is not, or a size that it cannot have.
    """

    def __init__(
        self,
        pixel_format: str,
        width: int,
        height: int,
        stored: str,
        like: MediaInfo | None = None,
        *,
        color_range: str | None = None,
        color_space: str | None = None,
    ) -> None:
        """`color_range` and `color_space` are of YUV that becomes JPEG, see `MediaInfo`."""
        self._layout = input_layout(pixel_format)
        check_size(self._layout, pixel_format, width, height)
        self._pixel_format = pixel_format
        self._width, self._height = width, height
        self._stored = stored
        self._to_yuv = self._layout.channels > 0 and stored.startswith("yuv")
        self._is_jpeg = names_full_range(stored)
        self._given = _swscale_colors(color_space, color_range)
        if self._is_jpeg:
            self._matrix, self._range = Colorspace.ITU601, ColorRange.JPEG
        elif like is not None:
            self._matrix, self._range = _swscale_colors(like.color_space, like.color_range)
        else:
            self._matrix, self._range = Colorspace.ITU709, ColorRange.MPEG
        self._reformatter = VideoReformatter()
        self.dtype: np.dtype[Any] = np.dtype(self._layout.dtype)  #: of one array
        self.shape = self._layout.shape(width, height)  #: of one array

    def picture(self, data: npt.NDArray[Any]) -> av.VideoFrame:
        """A new picture of `data`.  Raises `UsageError` where it has another shape or type."""
        if data.shape != self.shape or data.dtype != self.dtype:
            raise UsageError(
                f"a picture is an array of {_array_shape_text(self.shape, self.dtype)} in "
                f"{self._pixel_format}, not of {_array_shape_text(data.shape, data.dtype)}"
            )
        picture = av.VideoFrame(self._width, self._height, self._layout.name)
        if self._layout.channels:
            target = plane_pixels(picture)[0]
            target[...] = data.reshape(target.shape)
        else:
            self._fill_planes(picture, data)
        if self._to_yuv:
            return self._reformatter.reformat(
                picture,
                format=self._stored,
                dst_colorspace=self._matrix,
                dst_color_range=self._range,
                interpolation=_EXACT_SCALING,
                threads=1,
            )
        if self._is_jpeg:
            matrix, extent = self._given
            return self._reformatter.reformat(
                picture,
                format=self._stored,
                src_colorspace=matrix,
                dst_colorspace=self._matrix,
                src_color_range=extent,
                dst_color_range=self._range,
                interpolation=_EXACT_SCALING,
                threads=1,
            )
        return self._reformatter.reformat(picture, format=self._stored, threads=1)

    def _fill_planes(self, picture: av.VideoFrame, data: npt.NDArray[Any]) -> None:
        flat = np.ascontiguousarray(data).reshape(-1)
        if self._layout.interleaved:
            luma = self._width * self._height
            chroma = flat[luma:].reshape(-1, 2).T.reshape(-1)
            flat = np.concatenate((flat[:luma], chroma))
        at = 0
        for plane in plane_samples(picture):
            plane[...] = flat[at : at + plane.size].reshape(plane.shape)
            at += plane.size


def _swscale_colors(
    color_space: str | None, color_range: str | None
) -> tuple[Colorspace, ColorRange]:
    matrix = _MATRICES.get(color_space or "", Colorspace.ITU601)
    return matrix, ColorRange.JPEG if color_range == "full" else ColorRange.MPEG


def _array_shape_text(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"
