"""How the samples of pictures lie in files: one after the other, in any size.

Where two columns or rows share their colours, an odd last one has its own, as in FFmpeg's raw
video.  Such planes do not fit into the rows of an array, so that these are plain runs of samples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import av
import numpy as np

from vfsd.codecs.frames.array_formats import PIXEL_FORMATS, PixelLayout, pixel_layout
from vfsd.codecs.frames.pix_fmt_range import without_range
from vfsd.codecs.frames.planes import holds_floats
from vfsd.core.model import MediaInfo
from vfsd.validation import not_one_of

_RGB = "bgr0"  #: that of 8 bits which FFV1 takes
_RGB_PREFIXES = ("rgb", "bgr", "0rgb", "0bgr", "argb", "abgr", "gbr", "pal8")
_SAME = {
    **{"nv12": "yuv420p", "nv21": "yuv420p", "nv16": "yuv422p", "nv24": "yuv444p"},
    **{"yuyv422": "yuv422p", "yvyu422": "yuv422p", "uyvy422": "yuv422p", "nv42": "yuv444p"},
    "vyu444": "yuv444p",
    **{"p010le": "yuv420p10le", "p210le": "yuv422p10le", "p410le": "yuv444p10le"},
    **{"p016le": "yuv420p16le", "p012le": "yuv420p12le", "gray": "gray8"},
}
"""Other ways to lay out the very same samples; gray8 is not stretched to full range as gray is."""
_ALPHA = re.compile(r"yuva|gbrap|rgba|bgra|argb|abgr|^ya")


@dataclass(frozen=True, slots=True)
class Lossless:
    """The layout in which FFV1 keeps pictures of a video."""

    layout: str
    lost: str | None = None  #: what it has not of the source's samples


def has_alpha(pixel_format: str) -> bool:
    """Whether pictures in that format have an alpha channel among their samples."""
    return _ALPHA.search(pixel_format) is not None


def lossless_layout(media: MediaInfo) -> Lossless:
    """That which is nearest to the source's among those which FFV1 takes."""
    source = without_range(media.pixel_format)
    low_first = f"{source[:-2]}le" if source.endswith("be") else source
    wanted = _SAME.get(low_first, low_first)
    lost = "transparency" if has_alpha(source) else None
    if holds_floats(source) or "msb" in source:
        return _not_taken(source)
    if wanted.startswith(_RGB_PREFIXES):
        bits = max(component.bits for component in av.VideoFormat(source).components)
        wanted = _RGB if bits <= 8 or source == "pal8" else f"gbrp{bits}le"
    elif lost is not None:
        wanted = wanted.replace("yuva", "yuv").replace("ya8", "gray8").replace("ya16", "gray16")
    if not _is_taken(wanted):
        return _not_taken(source)
    layout = file_layout(wanted)
    if media.rotation % 180 and layout.subsampled[0] != layout.subsampled[1]:
        full = re.sub(r"yuv4\d\dp", "yuv444p", wanted)
        if _is_taken(full):
            return Lossless(full, "colours are interpolated, as they cannot be turned")
    return Lossless(_named(wanted), lost)


def _not_taken(source: str) -> Lossless:
    return Lossless("yuv420p", f"its pixels are {source}, which FFV1 does not take")


def file_layout(name: str) -> PixelLayout:
    """One of `PIXEL_FORMATS`, or of those that `lossless_layout` gives.

    Raises `UsageError` for another one.
    """
    if not isinstance(name, str) or name in PIXEL_FORMATS:
        return pixel_layout(name)
    layout = _native_layout(name) if _is_taken(name) else None
    if layout is None:
        raise not_one_of("format", name, PIXEL_FORMATS)
    return layout


def file_samples(layout: PixelLayout, width: int, height: int) -> int:
    """Of a picture of that size, with an odd column or row."""
    if layout.channels:
        return width * height * layout.channels
    across, down = layout.subsampled
    return width * height + (layout.planes - 1) * -(-width // across) * -(-height // down)


def is_in_rows(name: str, width: int, height: int) -> bool:
    """Whether the samples of a picture are rows of an array, as `PixelLayout.shape` has them."""
    across, down = file_layout(name).subsampled
    return width % across == height % down == 0


@cache
def _native_layout(name: str) -> PixelLayout | None:
    form = av.VideoFormat(name)
    bits = form.components[0].bits
    dtype = np.uint16 if bits > 8 else np.uint8
    if name == _RGB:
        return PixelLayout(name, np.uint8, 4)
    shared = (16 // form.chroma_width(16), 16 // form.chroma_height(16))
    planes = len(form.components)
    if not form.is_planar and planes > 1:
        return None
    return PixelLayout(form.name, dtype, 0, shared, planes=planes, bits=bits)


@cache
def _is_taken(name: str) -> bool:
    formats = av.Codec("ffv1", "w").video_formats or ()
    known = {"gray8", *(form.name for form in formats if not holds_floats(form.name))}
    return name in known


def _named(wanted: str) -> str:
    """By our own name where it is one of ours."""
    short = wanted.removesuffix("le")
    return short if short in PIXEL_FORMATS and not short.startswith("gray") else wanted
