"""Clips with a display matrix that rotates or mirrors their pictures."""

from __future__ import annotations

import struct
from pathlib import Path

ORIENTATIONS = {
    "upright": (1, 0, 0, 1),
    "90": (0, 1, -1, 0),
    "180": (-1, 0, 0, -1),
    "270": (0, -1, 1, 0),
    "hflip": (-1, 0, 0, 1),
    "vflip": (1, 0, 0, -1),
    "transpose": (0, 1, 1, 0),
    "transverse": (0, -1, -1, 0),
}
"""a, b, c, d of the display matrix: all rotations by 90 degrees, with and without mirroring."""
MIRRORED = tuple(name for name, (a, b, c, d) in ORIENTATIONS.items() if a * d - b * c < 0)
ASKEW = (0.875, 0.5, -0.5, 0.875)
"""A rotation by about 30 degrees."""


def with_matrix(
    source: Path,
    target: Path,
    matrix: tuple[float, float, float, float],
    moved: tuple[int, int] = (0, 0),
) -> Path:
    """A copy of an MP4 file with this display matrix in its first track; `moved` is in pixels."""
    data = bytearray(source.read_bytes())
    header = data.index(b"tkhd") + 4
    version = data[header]
    at = header + 4 + (32 if version else 20) + 16
    a, b, c, d = (round(value * (1 << 16)) for value in matrix)
    x, y = (value << 16 for value in moved)
    struct.pack_into(">9i", data, at, a, b, 0, c, d, 0, x, y, 1 << 30)
    target.write_bytes(data)
    return target
