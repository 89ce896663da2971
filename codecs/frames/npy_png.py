"""Single pictures as files whose sizes follow from width and height: NumPy's .npy, plain PNG.

A plain PNG holds the pixels as they are, in "stored" deflate blocks.  It is larger than a packed
one, and several times faster to write and to read.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt

Rgb = npt.NDArray[np.uint8]
"""height x width x 3."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_STORED_BLOCK = 65535
_PNG_BYTES = 63
"""Signature 8, header 25, frame of the data 12 + 2 + 4, end 12."""
_BLOCK_BYTES = 5


def png_size(width: int, height: int) -> int:
    """Bytes of what `png` gives."""
    rows = height * (1 + 3 * width)
    return _PNG_BYTES + rows + _BLOCK_BYTES * -(-rows // _STORED_BLOCK)


def png(pixels: Rgb) -> bytes:
    """A PNG file, not compressed."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    data = memoryview(rows.reshape(-1).data)
    parts = [b"\x78\x01"]
    for start in range(0, len(data), _STORED_BLOCK):
        block = data[start : start + _STORED_BLOCK]
        last = start + len(block) == len(data)
        parts.append(struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF))
        parts.append(bytes(block))
    parts.append(struct.pack(">I", zlib.adler32(data)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = _chunk(b"IDAT", b"".join(parts))
    return b"".join((_SIGNATURE, _chunk(b"IHDR", header), body, _chunk(b"IEND", b"")))


def npy_size(width: int, height: int) -> int:
    """Bytes of what `npy` gives."""
    return len(_npy_header(height, width)) + width * height * 3


def npy(pixels: Rgb) -> bytes:
    """A file with one C-contiguous array of uint8, height x width x 3."""
    height, width, _ = pixels.shape
    return _npy_header(height, width) + pixels.tobytes()


def _chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(body, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(body)), kind, body, struct.pack(">I", check)))


def _npy_header(height: int, width: int) -> bytes:
    stream = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": (height, width, 3)}
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue()
