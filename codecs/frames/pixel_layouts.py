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

_INPUT_ONLY = {
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


def input_layout(pixel_format: str) -> PixelLayout:
    """As `pixel_layout`, of pictures that are given to be encoded: some more are taken."""
    more = _INPUT_ONLY.get(pixel_format) if isinstance(pixel_format, str) else None
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
    require_rotatable(layout, name, rotation)


def require_rotatable(layout: PixelLayout, name: str, rotation: int) -> None:
    """Raises `UsageError` where pictures of that layout cannot be turned by so many degrees."""
    if rotation % 180 and layout.subsampled[0] != layout.subsampled[1]:
        raise UsageError(
            f"{name} cannot be turned by {rotation} degrees", hint="take yuv420p or yuv444p"
        )


_RGB_LAYOUT = "bgr0"  #: that of 8 bits which FFV1 takes
_RGB_PREFIXES = ("rgb", "bgr", "0rgb", "0bgr", "argb", "abgr", "gbr", "pal8")
_SAME_SAMPLES = {
    **{"nv12": "yuv420p", "nv21": "yuv420p", "nv16": "yuv422p", "nv24": "yuv444p"},
    **{"yuyv422": "yuv422p", "yvyu422": "yuv422p", "uyvy422": "yuv422p", "nv42": "yuv444p"},
    "vyu444": "yuv444p",
    **{"p010le": "yuv420p10le", "p210le": "yuv422p10le", "p410le": "yuv444p10le"},
    **{"p016le": "yuv420p16le", "p012le": "yuv420p12le", "gray": "gray8"},
}
"""Other ways to lay out the very same samples; gray8 is not stretched to full range as gray is."""
_ALPHA_FORMATS = re.compile(r"yuva|gbrap|rgba|bgra|argb|abgr|^ya")


@dataclass(frozen=True, slots=True)
class LosslessLayout:
    """The layout in which FFV1 keeps pictures of a video."""

    layout: str
    lost: str | None = None  #: what it has not of the source's samples


def has_alpha(pixel_format: str) -> bool:
    """Whether pictures in that format have an alpha channel among their samples."""
    return _ALPHA_FORMATS.search(pixel_format) is not None


def lossless_layout(media: MediaInfo) -> LosslessLayout:
    """That which is nearest to the source's among those which FFV1 takes."""
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
            return LosslessLayout(full, "colours are interpolated, as they cannot be turned")
    return LosslessLayout(_own_name(wanted), lost)


def _unsupported_layout(source: str) -> LosslessLayout:
    return LosslessLayout("yuv420p", f"its pixels are {source}, which FFV1 does not take")


def raw_layout(name: str) -> PixelLayout:
    """One of `PIXEL_FORMATS`, or of those that `lossless_layout` gives.

    Raises `UsageError` for another one.
    """
    if not isinstance(name, str) or name in PIXEL_FORMATS:
        return pixel_layout(name)
    layout = _native_layout(name) if _is_supported(name) else None
    if layout is None:
        raise not_one_of("format", name, PIXEL_FORMATS)
    return layout


def raw_samples(layout: PixelLayout, width: int, height: int) -> int:
    """Of a picture of that size, with an odd column or row."""
    if layout.channels:
        return width * height * layout.channels
    across, down = layout.subsampled
    return width * height + (layout.planes - 1) * -(-width // across) * -(-height // down)


def is_in_rows(name: str, width: int, height: int) -> bool:
    """Whether the samples of a picture are rows of an array, as `PixelLayout.shape` has them."""
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
    """By our own name where it is one of ours."""
    short = wanted.removesuffix("le")
    return short if short in PIXEL_FORMATS and not short.startswith("gray") else wanted
