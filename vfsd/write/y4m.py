"""Reads YUV4MPEG2 streams: the header line, then planar frames.

The format is yuv4mpeg(5) with FFmpeg's additional color spaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import IO

import numpy as np

from vfsd.codecs.frames.pixel_layouts import check_size, input_layout
from vfsd.core.frames import Pixels
from vfsd.errors import CutOffError, UsageError

MAGIC = b"YUV4MPEG2 "
_FRAME = b"FRAME"
_MAX_LINE_BYTES = 4096
_UNKNOWN_ASPECT = "0:0"
_QUARTER = "411"
_DEEP_GRAY = ("mono9", "mono10", "mono12", "mono14")
_DEPTH_FAMILIES = ("420", "422", "444")
_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "420": "yuv420p",
        "420jpeg": "yuv420p",
        "420mpeg2": "yuv420p",
        "420paldv": "yuv420p",
        "422": "yuv422p",
        "444": "yuv444p",
        **{f"{form}p{bits}": f"yuv{form}p{bits}" for form in _DEPTH_FAMILIES for bits in (10, 12)},
        "411": "yuv422p",
        "mono": "gray",
        **{f"mono{bits}": "gray16" for bits in (9, 10, 12, 14, 16)},
    }
)
"""The pixel format of each color space; some are wider, and none loses samples."""


@dataclass(frozen=True, slots=True)
class Y4mHeader:
    """The header of a YUV4MPEG2 file."""

    width: int
    height: int
    rate: Fraction | None  #: pictures per second; None if unknown
    pixel_format: str  #: as in `vfsd.codecs.frames.to_array`
    color_range: str | None  #: "limited", "full" or None if unspecified
    sample_aspect_ratio: Fraction | None
    space: str = "420jpeg"  #: color space as written in the file


def read_y4m_header(file: IO[bytes]) -> Y4mHeader:
    """Parse the first line of a file that starts with `MAGIC`.

    Raises `UsageError` for a damaged header, interlaced pictures, or an unknown color space.
    """
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise UsageError("the YUV4MPEG2 header is truncated or damaged")
    words = line.decode("ascii", "replace").split()
    told: dict[str, str] = {}
    for word in words[1:]:
        key, value = word.partition("=")[::2] if word.startswith("X") else (word[0], word[1:])
        if key in told and not word.startswith("X"):
            raise UsageError(f"a YUV4MPEG2 header must not have {key} twice: {line[:80]!r}")
        told.setdefault(key, value)
    try:
        width, height = int(told["W"]), int(told["H"])
        rate = None if told["F"] == _UNKNOWN_ASPECT else Fraction(told["F"].replace(":", "/"))
        aspect = told.get("A", _UNKNOWN_ASPECT)
        ratio = None if aspect in (_UNKNOWN_ASPECT, "1:1") else Fraction(aspect.replace(":", "/"))
    except (KeyError, ValueError, ZeroDivisionError):
        raise UsageError(f"invalid YUV4MPEG2 header: {line[:80]!r}") from None
    space = told.get("C", "420jpeg")
    if space not in _FORMATS:
        raise UsageError(
            f"YUV4MPEG2 in {space} cannot be encoded",
            hint="`vfsd ingest`, or `cp` into a mount, keeps it as it is; or convert it to one of "
            f"{', '.join(_FORMATS)}",
        )
    if told.get("I", "p") not in ("p", "?"):
        raise UsageError(
            "interlaced pictures cannot be written",
            hint="deinterlace them first, or give the encoded stream, which is stored unchanged",
        )
    if width < 1 or height < 1 or (rate is not None and rate <= 0):
        raise UsageError(f"invalid YUV4MPEG2 header: {line[:80]!r}")
    pixel_format = _FORMATS[space]
    check_size(input_layout(pixel_format), pixel_format, width, height)
    color_range = told.get("XCOLORRANGE", "").lower() or None
    if pixel_format.startswith("gray"):
        if color_range == "limited":
            raise UsageError(
                "YUV4MPEG2 in gray of limited range cannot be encoded",
                hint="convert it to full range",
            )
        color_range = None  # gray pictures always have full range
    if space == _QUARTER and width % 4:
        raise UsageError(
            f"YUV4MPEG2 in 411 must have a width divisible by 4, got {width}",
            hint="convert it to 444",
        )
    return Y4mHeader(width, height, rate, pixel_format, color_range, ratio, space)


def read_y4m_frames(file: IO[bytes], header: Y4mHeader) -> Iterator[Pixels]:
    """Yield each picture after the header.  Raises `CutOffError` for a partial last frame."""
    layout = input_layout(header.pixel_format)
    shape, dtype = layout.shape(header.width, header.height), np.dtype(layout.dtype)
    wanted = layout.bytes(header.width, header.height)
    if header.space == _QUARTER:
        wanted = header.width * header.height * 3 // 2
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        if line.split(b" ", 1)[0].rstrip() != _FRAME and not _FRAME.startswith(line):
            raise CutOffError(f"frame {number} of YUV4MPEG2 does not begin with FRAME")
        samples = read_exactly(file, wanted) if line.endswith(b"\n") else b""
        if len(samples) < wanted:
            raise CutOffError(f"frame {number} of YUV4MPEG2 is truncated")
        yield _widen_samples(np.frombuffer(samples, dtype), header).reshape(shape)
        number += 1


def _widen_samples(samples: Pixels, header: Y4mHeader) -> Pixels:
    """Convert samples to `header.pixel_format` without loss.

    Chroma is repeated, and gray of fewer bits is shifted up.
    """
    if header.space == _QUARTER:
        luma = header.width * header.height
        return np.concatenate((samples[:luma], np.repeat(samples[luma:], 2)))
    if header.space in _DEEP_GRAY:
        return samples << (16 - int(header.space.removeprefix("mono")))
    return samples


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, also from a pipe that returns fewer at a time; fewer only at the end."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
