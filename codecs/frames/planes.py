"""The samples of a frame as arrays without padding, and what the name of a pixel format says about
planes, subsampling and level range.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt

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
