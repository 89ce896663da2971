"""The samples of frames as arrays: planes without padding, pixel formats, and arrays of pixels.

What the name of a pixel format says about planes, subsampling and range is decided here.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.validation import not_one_of

_FULL_RANGE_YUV = "yuvj"


def names_full_range(pixel_format: str) -> bool:
    """Return whether a YUV format is full range by its name, as in ``yuvj420p``."""
    return pixel_format.startswith(_FULL_RANGE_YUV)


def without_range_name(pixel_format: str) -> str:
    """Return the name of the same format that does not say the range: ``yuv420p`` for
    ``yuvj420p``.
    """
    if names_full_range(pixel_format):
        return f"yuv{pixel_format.removeprefix(_FULL_RANGE_YUV)}"
    return pixel_format


_FLOAT = re.compile(r"f(16|32)")
# (columns, rows) of pixels that share a chroma sample.
_FORMAT_BY_SUBSAMPLING = {
    (1, 1): "yuv444p",
    (2, 1): "yuv422p",
    (2, 2): "yuv420p",
    (4, 1): "yuv411p",
}


def plane_bytes(frame: av.VideoFrame) -> list[npt.NDArray[np.uint8]]:
    """Return each plane as an array of rows x bytes, without padding.

    The arrays are views, valid as long as `frame` is alive.
    """
    views = []
    for number, plane in enumerate(frame.planes):
        samples: Any = plane  # supports the buffer protocol, which its annotation omits
        if not plane.line_size:  # a palette has none
            views.append(np.frombuffer(samples, np.uint8).reshape(1, -1))
            continue
        view = np.frombuffer(samples, np.uint8).reshape(plane.height, abs(plane.line_size))
        if plane.line_size < 0:
            view = view[::-1]
        views.append(view[:, : _row_bytes(frame.format.name, number, plane.width)])
    return views


@cache
def _row_bytes(pixel_format: str, number: int, columns: int) -> int:
    """Return the number of bytes in a row of plane `number` that has `columns` samples."""
    layout = av.VideoFormat(pixel_format)
    if layout.is_planar:
        components = sum(component.plane == number for component in layout.components)
        return columns * components * _sample_bytes(pixel_format)
    shared, _ = chroma_subsampling(pixel_format)
    padded = -(-columns // shared) * shared  # columns that share their chroma lie together
    return -(-padded * layout.padded_bits_per_pixel // 8)


@cache
def _sample_bytes(pixel_format: str) -> int:
    """Return the bytes per sample, for formats that do not pack samples into shared bytes."""
    bits = max(component.bits for component in av.VideoFormat(pixel_format).components)
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


def plane_samples(frame: av.VideoFrame) -> list[npt.NDArray[Any]]:
    """Return each plane as `plane_bytes` does, with one array element per sample.

    The type is uint8, uint16 or uint32 in the byte order of the format. Planar formats only.
    """
    views, name = plane_bytes(frame), frame.format.name
    size = _sample_bytes(name)
    if size == 1:
        return views
    return [view.view(f"{'>' if name.endswith('be') else '<'}u{size}") for view in views]


def plane_pixels(frame: av.VideoFrame) -> list[npt.NDArray[Any]]:
    """Return the planes as `plane_samples` does.

    A packed format gives one array of rows x columns x components.
    """
    samples = plane_samples(frame)
    components = _packed_components(frame.format.name)
    if components == 1:
        return samples
    return [samples[0].reshape(samples[0].shape[0], -1, components)]


@cache
def _packed_components(pixel_format: str) -> int:
    """Return the number of components that are interleaved in the only plane; 1 for planar
    formats.
    """
    layout = av.VideoFormat(pixel_format)
    planes = {component.plane for component in layout.components}
    return len(layout.components) if len(planes) == 1 else 1


def plane_subsampling(frame: av.VideoFrame, plane: int) -> tuple[int, int]:
    """Return how many columns and rows of pixels share a sample of plane number `plane`."""
    return chroma_subsampling(frame.format.name) if plane in (1, 2) else (1, 1)


@cache
def chroma_subsampling(pixel_format: str) -> tuple[int, int]:
    """Return how many columns and rows of pixels share a chroma sample."""
    layout = av.VideoFormat(pixel_format)
    return 16 // layout.chroma_width(16), 16 // layout.chroma_height(16)


@cache
def is_planar(pixel_format: str) -> bool:
    """Return whether a part of a picture consists of parts of its planes.

    That holds if each component has a plane of its own with integer samples of 8 to 16 bits.
    """
    layout = av.VideoFormat(pixel_format)
    components = layout.components
    planar = len({component.plane for component in components}) == len(components)
    whole = all(8 <= component.bits <= 16 for component in components)
    return planar and whole and not (layout.has_palette or holds_floats(pixel_format))


@cache
def is_croppable(pixel_format: str) -> bool:
    """Return whether converting a crop gives a crop of the converted picture, also near its edges.

    Such formats are planar, and at most two pixels in each direction share their chroma.
    """
    return is_planar(pixel_format) and max(chroma_subsampling(pixel_format)) <= 2


@cache
def has_same_samples(pixel_format: str, other: str) -> bool:
    """Return whether two formats have identical planes, sample for sample.

    Transparency, byte order, and the range in the name are ignored.
    """
    if not (is_planar(pixel_format) and is_planar(other)):
        return False
    return _sample_meaning(pixel_format) == _sample_meaning(other)


def _sample_meaning(pixel_format: str) -> tuple[object, ...]:
    """Return a key that is equal for formats in which equal samples mean the same."""
    layout = av.VideoFormat(pixel_format)
    bits = [component.bits for component in layout.components if not component.is_alpha]
    return layout.is_rgb, "msb" in pixel_format, bits, chroma_subsampling(pixel_format)


def holds_floats(pixel_format: str) -> bool:
    """Return whether the samples are floating-point numbers."""
    return _FLOAT.search(pixel_format) is not None


@cache
def has_luma(pixel_format: str) -> bool:
    """Return whether the first plane holds luma alone, in the low bits of each sample."""
    is_shifted = "msb" in pixel_format
    return (
        pixel_format.startswith(("yuv", "gray")) and is_croppable(pixel_format) and not is_shifted
    )


@cache
def planar_format(pixel_format: str) -> str | None:
    """Return a planar format for a format that is not `is_planar`; None if it is planar.

    It has the same samples where such a format exists. Transparency is dropped.
    """
    if is_planar(pixel_format):
        return None
    layout = av.VideoFormat(pixel_format)
    shown = [component for component in layout.components if not component.is_alpha]
    bits = 16 if holds_floats(pixel_format) else max(component.bits for component in shown)
    depth = "" if bits <= 8 else f"{bits}le"
    if layout.is_rgb or layout.has_palette or bits < 8:
        same = f"gbrp{depth}"
    elif len(shown) == 1:
        same = f"gray{depth}"
    else:
        same = f"{_FORMAT_BY_SUBSAMPLING.get(chroma_subsampling(pixel_format), '')}{depth}"
    try:
        return same if is_planar(same) else "gbrp"
    except ValueError:  # FFmpeg has no format of that name
        return "gbrp"


def picture_bytes(frame: av.VideoFrame) -> int:
    """Return the memory that the samples of a picture take, in bytes, padding included."""
    return sum(plane.buffer_size for plane in frame.planes)


def is_copyable(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return whether samples can be copied between two pictures of the same video."""
    return (one.width, one.height, one.format.name, one.interlaced_frame) == (
        other.width,
        other.height,
        other.format.name,
        other.interlaced_frame,
    )


def copy_colors(source: av.VideoFrame, target: av.VideoFrame) -> None:
    """Give `target` the range, matrix, primaries and transfer of `source`."""
    target.colorspace = source.colorspace
    target.color_range = source.color_range
    target.color_trc = source.color_trc
    target.color_primaries = source.color_primaries


def copy_picture(source: av.VideoFrame, target: av.VideoFrame) -> None:
    """Copy samples and colors of `source` to `target`, a picture of the same video and form.

    Other properties, such as the chroma location, cannot be copied. They must already be equal.
    """
    copy_colors(source, target)
    for samples, copies in zip(plane_bytes(source), plane_bytes(target), strict=True):
        copies[...] = samples


def fingerprint(frame: av.VideoFrame) -> int:
    """Return a CRC-32 of size, format and all samples; the range in the format name is ignored."""
    name = without_range_name(frame.format.name)
    value = zlib.crc32(f"{frame.width} {frame.height} {name}".encode())
    for view in plane_bytes(frame):
        value = zlib.crc32(view.tobytes(), value)
    return value


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
        full, chroma = self.plane_counts
        return full + chroma / (self.subsampled[0] * self.subsampled[1])

    @property
    def plane_counts(self) -> tuple[int, int]:
        """Planar: the planes with a sample for each pixel, and those with shared samples."""
        chroma = min(self.planes, 3) - 1  # the fourth plane is alpha
        return self.planes - chroma, chroma


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

# Formats of arrays that can be encoded, besides `_LAYOUTS`.
_INPUT_ONLY = {
    "yuv422p10": PixelLayout("yuv422p10le", np.uint16, 0, (2, 1), bits=10),
    "yuv444p10": PixelLayout("yuv444p10le", np.uint16, 0, bits=10),
    "yuv420p12": PixelLayout("yuv420p12le", np.uint16, 0, (2, 2), bits=12),
    "yuv422p12": PixelLayout("yuv422p12le", np.uint16, 0, (2, 1), bits=12),
    "yuv444p12": PixelLayout("yuv444p12le", np.uint16, 0, bits=12),
}

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


# The 8-bit RGB formats that FFV1 supports.
_RGB_LAYOUT, _RGBA_LAYOUT = "bgr0", "bgra"
_RGB_PREFIXES = ("rgb", "bgr", "0rgb", "0bgr", "argb", "abgr", "gbr", "pal8")
# Formats that lay out the same samples differently. ``gray8`` names raw samples here; reads of
# ``gray`` stretch limited range to full range.
_SAME_SAMPLES = {
    **{"nv12": "yuv420p", "nv21": "yuv420p", "nv16": "yuv422p", "nv24": "yuv444p"},
    **{"yuyv422": "yuv422p", "yvyu422": "yuv422p", "uyvy422": "yuv422p", "nv42": "yuv444p"},
    "vyu444": "yuv444p",
    **{"p010le": "yuv420p10le", "p210le": "yuv422p10le", "p410le": "yuv444p10le"},
    **{"p016le": "yuv420p16le", "p012le": "yuv420p12le", "gray": "gray8"},
}
ALPHA = "alpha channel"
"""The name in `MediaInfo.marks` of alpha values that the pixel format does not tell: those of a
palette, and BlockAdditions of Matroska, one for each picture.
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


def shows_alpha(media: MediaInfo) -> bool:
    """Return whether decoded pictures of the file may be transparent.

    The palette of ``pal8`` has alpha values, which are opaque in most files: the side data of the
    file says whether they are.
    """
    is_palette = media.pixel_format == "pal8"
    return has_alpha(media.pixel_format) or (is_palette and ALPHA in (media.marks or {}))


def lossless_layout(media: MediaInfo) -> LosslessLayout:
    """Return the layout that FFV1 supports and that is nearest to the format of the source."""
    source = without_range_name(media.pixel_format)
    low_first = f"{source[:-2]}le" if source.endswith("be") else source
    wanted = _SAME_SAMPLES.get(low_first, low_first)
    kept = _layout_with_alpha(media, source, wanted)
    if kept is not None:
        return LosslessLayout(kept)
    lost = "transparency" if shows_alpha(media) else None
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


def _layout_with_alpha(media: MediaInfo, source: str, wanted: str) -> str | None:
    """Return the layout with alpha for a source with alpha; None if FFV1 has none."""
    if not shows_alpha(media) or holds_floats(source):
        return None
    if wanted.startswith(_RGB_PREFIXES):
        bits = max(component.bits for component in av.VideoFormat(source).components)
        wanted = _RGBA_LAYOUT if bits <= 8 or source == "pal8" else f"gbrap{bits}le"
    if not _is_supported(wanted):
        return None
    layout = _native_layout(wanted)
    is_turned = media.rotation % 180 and layout and layout.subsampled[0] != layout.subsampled[1]
    return None if layout is None or is_turned else wanted


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
    full, chroma = layout.plane_counts
    return full * width * height + chroma * -(-width // across) * -(-height // down)


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
    if name in (_RGB_LAYOUT, _RGBA_LAYOUT):
        return PixelLayout(name, np.uint8, 4)
    shared = (16 // form.chroma_width(16), 16 // form.chroma_height(16))
    planes = len(form.components)
    if not form.is_planar and planes > 1:
        return None
    return PixelLayout(form.name, dtype, 0, shared, planes=planes, bits=bits)


@cache
def _is_supported(name: str) -> bool:
    formats = av.Codec("ffv1", "w").video_formats or ()
    names = {"gray8", *(form.name for form in formats if not holds_floats(form.name))}
    return name in names


def _own_name(wanted: str) -> str:
    """Return the name in `PIXEL_FORMATS` for FFmpeg's name, if there is one."""
    short = wanted.removesuffix("le")
    return short if short in PIXEL_FORMATS and not short.startswith("gray") else wanted


# Without these flags, FFmpeg converts BGR by a shortcut that loses some dB.
_EXACT_SCALING = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
# Matrices of FFmpeg's scaler. All others, and a missing one, are BT.601, as in reads.
_MATRICES = {
    "bt709": Colorspace.ITU709,
    "fcc": Colorspace.FCC,
    "smpte240m": Colorspace.SMPTE240M,
    "bt2020nc": Colorspace.BT2020,
    "bt2020c": Colorspace.BT2020,
}


class FrameMaker:
    """Converts arrays of one form to pictures in the pixel format `stored`. Not thread-safe.

    Arrays have the shapes that a `PixelConverter` returns for that `pixel_format`. Raises
    `UsageError` for an unknown format or an impossible size.

    Args:
        pixel_format: form of the arrays, one of the names in `vfsd.codecs.frames.planes`
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
