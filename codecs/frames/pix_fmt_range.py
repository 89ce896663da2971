"""FFmpeg's names of pixel formats that say in which range of levels samples lie.

YUV has a second name, ``yuvj420p`` beside ``yuv420p``, for samples of full range.  It is that of
JPEG's pictures: of the formats that files are written in, all of JPEG have such names, and no
others.
"""

from __future__ import annotations

_FULL_RANGE_YUV = "yuvj"


def names_full_range(pixel_format: str) -> bool:
    """Whether it is YUV whose name says that it is of full range."""
    return pixel_format.startswith(_FULL_RANGE_YUV)


def without_range(pixel_format: str) -> str:
    """The same format by the name that says nothing of the range."""
    if names_full_range(pixel_format):
        return f"yuv{pixel_format.removeprefix(_FULL_RANGE_YUV)}"
    return pixel_format
