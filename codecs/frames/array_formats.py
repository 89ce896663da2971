"""The forms in which pixels are given and taken, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vfsd.errors import UsageError
from vfsd.validation import not_one_of


@dataclass(frozen=True, slots=True)
class PixelLayout:
    """How the samples of a picture lie in an array."""

    name: str  #: FFmpeg's
    dtype: type[np.unsignedinteger[Any]]
    channels: int  #: of packed formats; 0: planar
    subsampled: tuple[int, int] = (1, 1)  #: planar: luma columns and rows for one of chroma
    interleaved: bool = False  #: planar: samples of U and V take turns
    planes: int = 3  #: planar: 1 for what has luma alone
    bits: int = 8  #: of a sample

    def shape(self, width: int, height: int) -> tuple[int, ...]:
        """Of an array that holds a picture of that size, whose sides are even where they must."""
        if self.channels:
            return (height, width, self.channels)
        return (round(height * self._rows), width)

    def bytes(self, width: int, height: int) -> int:
        """Of a picture of that size."""
        return int(np.prod(self.shape(width, height))) * np.dtype(self.dtype).itemsize

    def size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Width and height of a picture that fills an array of that shape."""
        return shape[1], shape[0] if self.channels else round(shape[0] / self._rows)

    @property
    def _rows(self) -> float:
        """Of an array of planes, for each row of pixels."""
        return 1 + (self.planes - 1) / (self.subsampled[0] * self.subsampled[1])


_LAYOUTS = {
    "rgb24": PixelLayout("rgb24", np.uint8, 3),
    "bgr24": PixelLayout("bgr24", np.uint8, 3),
    "gray": PixelLayout("gray", np.uint8, 1),
    "rgb48": PixelLayout("rgb48le", np.uint16, 3, bits=16),
    "gray16": PixelLayout("gray16le", np.uint16, 1, bits=16),
    "yuv420p": PixelLayout("yuv420p", np.uint8, 0, (2, 2)),
    "yuv422p": PixelLayout("yuv422p", np.uint8, 0, (2, 1)),
    "yuv444p": PixelLayout("yuv444p", np.uint8, 0),
    "yuv420p10": PixelLayout("yuv420p10le", np.uint16, 0, (2, 2), bits=10),
    "nv12": PixelLayout("yuv420p", np.uint8, 0, (2, 2), interleaved=True),
}

_GIVEN_ONLY = {
    "yuv422p10": PixelLayout("yuv422p10le", np.uint16, 0, (2, 1), bits=10),
    "yuv444p10": PixelLayout("yuv444p10le", np.uint16, 0, bits=10),
    "yuv420p12": PixelLayout("yuv420p12le", np.uint16, 0, (2, 2), bits=12),
    "yuv422p12": PixelLayout("yuv422p12le", np.uint16, 0, (2, 1), bits=12),
    "yuv444p12": PixelLayout("yuv444p12le", np.uint16, 0, bits=12),
}
"""Of pictures that are given to be encoded, besides `_LAYOUTS`."""

PIXEL_FORMATS = tuple(_LAYOUTS)
"""Every `pixel_format` of a `PixelConverter`."""


def pixel_layout(pixel_format: str) -> PixelLayout:
    """Raises `UsageError` for what is none of `PIXEL_FORMATS`."""
    layout = _LAYOUTS.get(pixel_format) if isinstance(pixel_format, str) else None
    if layout is None:
        raise not_one_of("format", pixel_format, PIXEL_FORMATS)
    return layout


def given_layout(pixel_format: str) -> PixelLayout:
    """As `pixel_layout`, of pictures that are given to be encoded: some more are taken."""
    more = _GIVEN_ONLY.get(pixel_format) if isinstance(pixel_format, str) else None
    return more or pixel_layout(pixel_format)


def check_size(layout: PixelLayout, name: str, width: int, height: int, rotation: int = 0) -> None:
    """Raises `UsageError` for a size that pictures of that layout cannot have."""
    if width < 1 or height < 1:
        raise UsageError(f"size must be at least 1x1, got {width}x{height}")
    if width % layout.subsampled[0] or height % layout.subsampled[1]:
        even = f"{width - width % 2 or 2}x{height - height % 2 or 2}"
        raise UsageError(
            f"{name} needs an even size, not {width}x{height}",
            hint=f"take {even}, or yuv444p, in which each pixel has its own colours",
        )
    require_turnable(layout, name, rotation)


def require_turnable(layout: PixelLayout, name: str, rotation: int) -> None:
    """Raises `UsageError` where pictures of that layout cannot be turned by so many degrees."""
    if rotation % 180 and layout.subsampled[0] != layout.subsampled[1]:
        raise UsageError(
            f"{name} cannot be turned by {rotation} degrees", hint="take yuv420p or yuv444p"
        )
