"""The samples of a decoded picture, without the padding around them."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.pictures.rangenames import without_range


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
        views.append(view[:, : plane.width * _bytes_per_column(frame.format.name, number)])
    return views


@cache
def _bytes_per_column(pixel_format: str, number: int) -> int:
    layout = av.VideoFormat(pixel_format)
    mine = [c for c in layout.components if c.plane == number]
    wide = 2 if mine[0].bits > 8 else 1
    if layout.is_planar or len(mine) == len(layout.components) == 1:
        return wide * len(mine)
    return -(-layout.padded_bits_per_pixel // 8)


def plane_samples(frame: av.VideoFrame) -> list[npt.NDArray[Any]]:
    """As `plane_bytes`, but of uint16 where samples are wider than a byte, whichever of their bytes
    comes first.  Planar formats only."""
    views, name = plane_bytes(frame), frame.format.name
    if not _is_wide(name):
        return views
    return [view.view(">u2" if name.endswith("be") else np.uint16) for view in views]


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


@cache
def _is_wide(pixel_format: str) -> bool:
    return bool(av.VideoFormat(pixel_format).components[0].bits > 8)


def shares(frame: av.VideoFrame, plane: int) -> tuple[int, int]:
    """How many columns and rows of pixels share a sample of that plane."""
    return chroma_shares(frame.format.name) if plane in (1, 2) else (1, 1)


@cache
def chroma_shares(pixel_format: str) -> tuple[int, int]:
    """How many columns and rows of pixels share a sample of chroma."""
    layout = av.VideoFormat(pixel_format)
    return 16 // layout.chroma_width(16), 16 // layout.chroma_height(16)


def is_croppable(frame: av.VideoFrame) -> bool:
    """Whether every component has a plane of its own, with chroma shared by two pixels at most."""
    components = frame.format.components
    planar = len({component.plane for component in components}) == len(components)
    return planar and max(shares(frame, 1)) <= 2


def has_luma(frame: av.VideoFrame) -> bool:
    """Whether the first plane is luma and nothing else."""
    return frame.format.name.startswith(("yuv", "gray")) and is_croppable(frame)


def picture_bytes(frame: av.VideoFrame) -> int:
    """The memory that the samples of a picture take, padding included."""
    return sum(plane.buffer_size for plane in frame.planes)


def is_like(one: av.VideoFrame, other: av.VideoFrame) -> bool:
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
    name = without_range(frame.format.name)
    value = zlib.crc32(f"{frame.width} {frame.height} {name}".encode())
    for view in plane_bytes(frame):
        value = zlib.crc32(view.tobytes(), value)
    return value
