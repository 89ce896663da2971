"""Names of pixel layouts, codecs and containers: one list for paths, Python and commands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PIXEL_LAYOUTS = (
    "rgb24",
    "bgr24",
    "rgb48",
    "gray",
    "gray16",
    "yuv420p",
    "yuv422p",
    "yuv444p",
    "yuv420p10",
    "nv12",
)
"""Layouts of raw pixels.  Samples of more than 8 bits take two bytes, little-endian."""

_EIGHT_OR_TEN = ("yuv420p", "yuv420p10")

CODECS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "h264": _EIGHT_OR_TEN,
        "hevc": _EIGHT_OR_TEN,
        "av1": _EIGHT_OR_TEN,
        "mjpeg": ("yuv420p",),
        "ffv1": ("yuv420p", "yuv422p", "yuv444p", "yuv420p10"),
    }
)
"""Codecs of encoded views, with the pixel layouts of each; the default comes first."""

CONTAINERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mp4": tuple(CODECS),
        "matroska": tuple(CODECS),
        "h264": ("h264",),
        "hevc": ("hevc",),
    }
)
"""Codecs that each container may hold; the default comes first."""

ENDINGS = ("mp4", "mkv", "h264", "hevc", "rgb", "yuv", "raw", "y4m", "wav")
"""Suffixes of view names."""

UNCOMPRESSED_LAYOUTS = ("yuv420p", "yuv422p", "yuv444p", "yuv420p10")
"""Pixel layouts of Y4M files; the default comes first."""
