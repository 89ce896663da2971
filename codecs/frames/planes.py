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
    """Whether it is YUV whose name says that it is of full range."""
    return pixel_format.startswith(_FULL_RANGE_YUV)


def without_range_name(pixel_format: str) -> str:
    """The same format by the name that says nothing of the range."""
    if names_full_range(pixel_format):
        return f"yuv{pixel_format.removeprefix(_FULL_RANGE_YUV)}"
    return pixel_format


_FLOAT = re.compile(r"f(16|32)")
_FORMAT_BY_SUBSAMPLING = {
    (1, 1): "yuv444p",
    (2, 1): "yuv422p",
    (2, 2): "yuv420p",
    (4, 1): "yuv411p",
}


def plane_bytes(frame: av.VideoFrame) -> list[npt.NDArray[np.uint8]]:
    """One array of rows x bytes for each plane: views, valid as long as `frame` is alive."""
    views = []
    for number, plane in enumerate(frame.planes):
        samples: Any = plane  # a buffer, which its annotation does not say
        if not plane.line_size:  # a palette
            views.append(np.frombuffer(samples, np.uint8).reshape(1, -1))
            continue
        view = np.frombuffer(samples, np.uint8).reshape(plane.height, abs(plane.line_size))
        if plane.line_size < 0:
            view = view[::-1]
        views.append(view[:, : _row_bytes(frame.format.name, number, plane.width)])
    return views


@cache
def _row_bytes(pixel_format: str, number: int, columns: int) -> int:
    """Of a row of that plane, which has so many columns."""
    layout = av.VideoFormat(pixel_format)
    if layout.is_planar:
        mine = sum(component.plane == number for component in layout.components)
        return columns * mine * _sample_bytes(pixel_format)
    shared, _ = chroma_subsampling(pixel_format)
    whole = -(-columns // shared) * shared  # columns that share their chroma lie together
    return -(-whole * layout.padded_bits_per_pixel // 8)


@cache
def _sample_bytes(pixel_format: str) -> int:
    """Of a sample, where each has bytes of its own."""
    bits = max(component.bits for component in av.VideoFormat(pixel_format).components)
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


def plane_samples(frame: av.VideoFrame) -> list[npt.NDArray[Any]]:
    """As `plane_bytes`, but of uint16 where samples are wider than a byte (uint32 where they are
    wider than that), whichever of their bytes comes first.  Planar formats only."""
    views, name = plane_bytes(frame), frame.format.name
    wide = _sample_bytes(name)
    if wide == 1:
        return views
    return [view.view(f"{'>' if name.endswith('be') else '<'}u{wide}") for view in views]


def plane_pixels(frame: av.VideoFrame) -> list[npt.NDArray[Any]]:
    """As `plane_samples`, and of packed formats one array of rows x columns x components."""
    samples = plane_samples(frame)
    components = _packed_components(frame.format.name)
    if components == 1:
        return samples
    return [samples[0].reshape(samples[0].shape[0], -1, components)]


@cache
def _packed_components(pixel_format: str) -> int:
    """How many components the samples of the only plane take turns to show; 1: planes' own."""
    layout = av.VideoFormat(pixel_format)
    planes = {component.plane for component in layout.components}
    return len(layout.components) if len(planes) == 1 else 1


def plane_subsampling(frame: av.VideoFrame, plane: int) -> tuple[int, int]:
    """How many columns and rows of pixels share a sample of that plane."""
    return chroma_subsampling(frame.format.name) if plane in (1, 2) else (1, 1)


@cache
def chroma_subsampling(pixel_format: str) -> tuple[int, int]:
    """How many columns and rows of pixels share a sample of chroma."""
    layout = av.VideoFormat(pixel_format)
    return 16 // layout.chroma_width(16), 16 // layout.chroma_height(16)


@cache
def is_planar(pixel_format: str) -> bool:
    """Whether a part of a picture is parts of its planes: every component has one of its own, whose
    samples are whole numbers of 8 to 16 bits."""
    layout = av.VideoFormat(pixel_format)
    components = layout.components
    planar = len({component.plane for component in components}) == len(components)
    whole = all(8 <= component.bits <= 16 for component in components)
    return planar and whole and not (layout.has_palette or holds_floats(pixel_format))


@cache
def is_croppable(pixel_format: str) -> bool:
    """Whether what is made of a part is a part of what is made of the whole, close to its edges,
    too: `is_planar`, with chroma shared by two pixels at most."""
    return is_planar(pixel_format) and max(chroma_subsampling(pixel_format)) <= 2


@cache
def has_same_samples(pixel_format: str, other: str) -> bool:
    """Whether the planes of the one, but for transparency, are those of the other, sample for
    sample: in whichever order their bytes are, and whatever range the names tell."""
    if not (is_planar(pixel_format) and is_planar(other)):
        return False
    return _sample_meaning(pixel_format) == _sample_meaning(other)


def _sample_meaning(pixel_format: str) -> tuple[object, ...]:
    """What makes the same number mean the same, and where."""
    layout = av.VideoFormat(pixel_format)
    bits = [component.bits for component in layout.components if not component.is_alpha]
    return layout.is_rgb, "msb" in pixel_format, bits, chroma_subsampling(pixel_format)


def holds_floats(pixel_format: str) -> bool:
    """Whether samples are no whole numbers."""
    return _FLOAT.search(pixel_format) is not None


@cache
def has_luma(pixel_format: str) -> bool:
    """Whether the first plane is luma and nothing else, from 0 upwards."""
    is_shifted = "msb" in pixel_format
    return (
        pixel_format.startswith(("yuv", "gray")) and is_croppable(pixel_format) and not is_shifted
    )


@cache
def planar_format(pixel_format: str) -> str | None:
    """For a format that is not `is_planar`, one that is, with the very same samples where there
    is such a one, but for transparency; None for all others."""
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
    except ValueError:  # there is no such format
        return "gbrp"


def picture_bytes(frame: av.VideoFrame) -> int:
    """The memory that the samples of a picture take, padding included."""
    return sum(plane.buffer_size for plane in frame.planes)


def is_copyable(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Whether samples of the one, copied to the other, make the same picture of the same video."""
    return (one.width, one.height, one.format.name, one.interlaced_frame) == (
        other.width,
        other.height,
        other.format.name,
        other.interlaced_frame,
    )


def copy_colors(source: av.VideoFrame, target: av.VideoFrame) -> None:
    """What the samples of `source` mean is what those of `target` mean."""
    target.colorspace = source.colorspace
    target.color_range = source.color_range
    target.color_trc = source.color_trc
    target.color_primaries = source.color_primaries


def copy_picture(source: av.VideoFrame, target: av.VideoFrame) -> None:
    """Make `target`, a picture of the same video that is like it, show what `source` does.

    Of the same video, as not all that a picture says of its samples can be copied: not where
    chroma lies between the pixels of luma.
    """
    copy_colors(source, target)
    for samples, copies in zip(plane_bytes(source), plane_bytes(target), strict=True):
        copies[...] = samples


def fingerprint(frame: av.VideoFrame) -> int:
    """A checksum of size, format and every sample, whatever range of levels the format names."""
    name = without_range_name(frame.format.name)
    value = zlib.crc32(f"{frame.width} {frame.height} {name}".encode())
    for view in plane_bytes(frame):
        value = zlib.crc32(view.tobytes(), value)
    return value
