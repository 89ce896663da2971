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
"""Without these flags, FFmpeg converts BGR by a shortcut that loses some dB."""
_MATRICES = {
    "bt709": Colorspace.ITU709,
    "fcc": Colorspace.FCC,
    "smpte240m": Colorspace.SMPTE240M,
    "bt2020nc": Colorspace.BT2020,
    "bt2020c": Colorspace.BT2020,
}
"""Matrices of FFmpeg's scaler. All others, and a missing one, are BT.601, as in reads."""


class FrameMaker:
    """Converts arrays of one form to pictures in the pixel format `stored`. Not thread-safe.

    Arrays have the shapes that a `PixelConverter` returns for that `pixel_format`. Raises
    `UsageError` for an unknown format or an impossible size.

    Args:
        pixel_format: form of the arrays, one of the names in `vfsd.codecs.frames.pixel_layouts`
        width, height: size of the pictures in pixels
        stored: FFmpeg's name of the pixel format that is encoded
        like: the pictures get the range and matrix of this video
        color_range, color_space: declared colors of YUV arrays that become JPEG, as in `MediaInfo`
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
        self.dtype: np.dtype[Any] = np.dtype(self._layout.dtype)  #: type of one array
        self.shape = self._layout.shape(width, height)  #: shape of one array

    def picture(self, data: npt.NDArray[Any]) -> av.VideoFrame:
        """Return a new picture of `data`. Raises `UsageError` if its shape or type is wrong."""
        if data.shape != self.shape or data.dtype != self.dtype:
            raise UsageError(
                f"a {self._pixel_format} picture must be "
                f"{_array_shape_text(self.shape, self.dtype)}, "
                f"got {_array_shape_text(data.shape, data.dtype)}"
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
