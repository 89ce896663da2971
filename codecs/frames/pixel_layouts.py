"""How the samples of a picture lie in arrays (`PIXEL_FORMATS`) and in raw files of any size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np

from vfsd.codecs.frames.planes import holds_floats, without_range_name
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.validation import not_one_of


@dataclass(frozen=True, slots=True)
class PixelLayout:
    """How the samples of a picture are laid out in an array."""

    name: str  #: FFmpeg's name of the pixel format
    dtype: type[np.unsignedinteger[Any]]
    channels: int  #: channels of a packed format; 0: planar
    subsampled: tuple[int, int] = (1, 1)  #: planar: luma columns and rows per chroma sample
    interleaved: bool = False  #: planar: U and V alternate in one plane
    planes: int = 3  #: planar: 1 for luma alone
    bits: int = 8  #: bits per sample

    def shape(self, width: int, height: int) -> tuple[int, ...]:
        """Return the shape of an array for a picture of that size.

        Sides must be even where two pixels share their chroma.
        """
        if self.channels:
            return (height, width, self.channels)
        return (round(height * self._rows), width)

    def bytes(self, width: int, height: int) -> int:
        """Return the bytes of a picture of that size."""
        return int(np.prod(self.shape(width, height))) * np.dtype(self.dtype).itemsize

    def size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return (width, height) of a picture that fills an array of that shape."""
        return shape[1], shape[0] if self.channels else round(shape[0] / self._rows)

    @property
    def _rows(self) -> float:
        """Rows of a planar array per row of pixels."""
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

_INPUT_ONLY = {
    "yuv422p10": PixelLayout("yuv422p10le", np.uint16, 0, (2, 1), bits=10),
    "yuv444p10": PixelLayout("yuv444p10le", np.uint16, 0, bits=10),
    "yuv420p12": PixelLayout("yuv420p12le", np.uint16, 0, (2, 2), bits=12),
    "yuv422p12": PixelLayout("yuv422p12le", np.uint16, 0, (2, 1), bits=12),
    "yuv444p12": PixelLayout("yuv444p12le", np.uint16, 0, bits=12),
}
"""Formats of arrays that can be encoded, besides `_LAYOUTS`."""

PIXEL_FORMATS = tuple(_LAYOUTS)
"""Every `pixel_format` that a `PixelConverter` accepts."""


def pixel_layout(pixel_format: str) -> PixelLayout:
    """Return the layout of one of `PIXEL_FORMATS`. Raises `UsageError` for any other name."""
    layout = _LAYOUTS.get(pixel_format) if isinstance(pixel_format, str) else None
    if layout is None:
        raise not_one_of("format", pixel_format, PIXEL_FORMATS)
    return layout


def input_layout(pixel_format: str) -> PixelLayout:
    """Return the layout of pictures to be encoded: of `PIXEL_FORMATS` and a few deeper formats.

    Raises `UsageError` for any other name.
    """
    more = _INPUT_ONLY.get(pixel_format) if isinstance(pixel_format, str) else None
    return more or pixel_layout(pixel_format)


def check_size(layout: PixelLayout, name: str, width: int, height: int, rotation: int = 0) -> None:
    """Raise `UsageError` if pictures of that layout cannot have that size and rotation."""
    if width < 1 or height < 1:
        raise UsageError(f"size must be at least 1x1, got {width}x{height}")
    if width % layout.subsampled[0] or height % layout.subsampled[1]:
        even = f"{width - width % 2 or 2}x{height - height % 2 or 2}"
        raise UsageError(
            f"size must be even for {name}, got {width}x{height}",
            hint=f"use {even}, or yuv444p, which has chroma for each pixel",
        )
    require_rotatable(layout, name, rotation)


def require_rotatable(layout: PixelLayout, name: str, rotation: int) -> None:
    """Raise `UsageError` if pictures of that layout cannot be rotated by so many degrees."""
    if rotation % 180 and layout.subsampled[0] != layout.subsampled[1]:
        raise UsageError(
            f"{name} cannot be rotated by {rotation} degrees", hint="use yuv420p or yuv444p"
        )


_RGB_LAYOUT = "bgr0"  #: the 8-bit RGB format that FFV1 supports
_RGB_PREFIXES = ("rgb", "bgr", "0rgb", "0bgr", "argb", "abgr", "gbr", "pal8")
_SAME_SAMPLES = {
    **{"nv12": "yuv420p", "nv21": "yuv420p", "nv16": "yuv422p", "nv24": "yuv444p"},
    **{"yuyv422": "yuv422p", "yvyu422": "yuv422p", "uyvy422": "yuv422p", "nv42": "yuv444p"},
    "vyu444": "yuv444p",
    **{"p010le": "yuv420p10le", "p210le": "yuv422p10le", "p410le": "yuv444p10le"},
    **{"p016le": "yuv420p16le", "p012le": "yuv420p12le", "gray": "gray8"},
}
"""Formats that lay out the same samples differently.

``gray8`` names raw samples here; reads of ``gray`` stretch limited range to full range.
"""
_ALPHA_FORMATS = re.compile(r"yuva|gbrap|rgba|bgra|argb|abgr|^ya")


@dataclass(frozen=True, slots=True)
class LosslessLayout:
    """The layout in which FFV1 stores the pictures of a video."""

    layout: str
    lost: str | None = None  #: the part of the source's samples that it cannot keep


def has_alpha(pixel_format: str) -> bool:
    """Return whether the pixel format has an alpha channel."""
    return _ALPHA_FORMATS.search(pixel_format) is not None


def lossless_layout(media: MediaInfo) -> LosslessLayout:
    """Return the layout that FFV1 supports and that is nearest to the format of the source."""
    source = without_range_name(media.pixel_format)
    low_first = f"{source[:-2]}le" if source.endswith("be") else source
    wanted = _SAME_SAMPLES.get(low_first, low_first)
    lost = "transparency" if has_alpha(source) else None
    if holds_floats(source) or "msb" in source:
        return _unsupported_layout(source)
    if wanted.startswith(_RGB_PREFIXES):
        bits = max(component.bits for component in av.VideoFormat(source).components)
        wanted = _RGB_LAYOUT if bits <= 8 or source == "pal8" else f"gbrp{bits}le"
    elif lost is not None:
        wanted = wanted.replace("yuva", "yuv").replace("ya8", "gray8").replace("ya16", "gray16")
    if not _is_supported(wanted):
        return _unsupported_layout(source)
    layout = raw_layout(wanted)
    if media.rotation % 180 and layout.subsampled[0] != layout.subsampled[1]:
        full = re.sub(r"yuv4\d\dp", "yuv444p", wanted)
        if _is_supported(full):
            return LosslessLayout(full, "colors are interpolated, as they cannot be rotated")
    return LosslessLayout(_own_name(wanted), lost)


def _unsupported_layout(source: str) -> LosslessLayout:
    return LosslessLayout("yuv420p", f"FFV1 does not support pixel format {source}")


def raw_layout(name: str) -> PixelLayout:
    """Return the layout of one of `PIXEL_FORMATS`, or of a format that `lossless_layout` returns.

    Raises `UsageError` for any other name.
    """
    if not isinstance(name, str) or name in PIXEL_FORMATS:
        return pixel_layout(name)
    layout = _native_layout(name) if _is_supported(name) else None
    if layout is None:
        raise not_one_of("format", name, PIXEL_FORMATS)
    return layout


def raw_samples(layout: PixelLayout, width: int, height: int) -> int:
    """Return the number of samples of a picture; width and height may be odd."""
    if layout.channels:
        return width * height * layout.channels
    across, down = layout.subsampled
    return width * height + (layout.planes - 1) * -(-width // across) * -(-height // down)


def is_in_rows(name: str, width: int, height: int) -> bool:
    """Return whether a picture of that size is an array of rows, as `PixelLayout.shape`
    describes.
    """
    across, down = raw_layout(name).subsampled
    return width % across == height % down == 0


@cache
def _native_layout(name: str) -> PixelLayout | None:
    form = av.VideoFormat(name)
    bits = form.components[0].bits
    dtype = np.uint16 if bits > 8 else np.uint8
    if name == _RGB_LAYOUT:
        return PixelLayout(name, np.uint8, 4)
    shared = (16 // form.chroma_width(16), 16 // form.chroma_height(16))
    planes = len(form.components)
    if not form.is_planar and planes > 1:
        return None
    return PixelLayout(form.name, dtype, 0, shared, planes=planes, bits=bits)


@cache
def _is_supported(name: str) -> bool:
    formats = av.Codec("ffv1", "w").video_formats or ()
    known = {"gray8", *(form.name for form in formats if not holds_floats(form.name))}
    return name in known


def _own_name(wanted: str) -> str:
    """Return the name in `PIXEL_FORMATS` for FFmpeg's name, if there is one."""
    short = wanted.removesuffix("le")
    return short if short in PIXEL_FORMATS and not short.startswith("gray") else wanted
