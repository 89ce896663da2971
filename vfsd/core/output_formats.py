"""Names of the forms that pixels and videos are had in: one list for paths, Python and commands."""

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
"""Of bare pixels.  Samples of more than 8 bits take two bytes, the lower one first."""

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
"""What views are encoded in, and the layouts of pixels that each can have, the default first."""

CONTAINERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mp4": tuple(CODECS),
        "matroska": tuple(CODECS),
        "h264": ("h264",),
        "hevc": ("hevc",),
    }
)
"""What each container may hold, the default first."""

ENDINGS = ("mp4", "mkv", "h264", "hevc", "rgb", "yuv", "raw", "y4m")
"""Of the names of views: the forms that they are had in."""

UNCOMPRESSED_LAYOUTS = ("yuv420p", "yuv422p", "yuv444p", "yuv420p10")
"""Of Y4M files, the default first."""
