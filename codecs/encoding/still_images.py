"""Encodes single pictures as PNG, JPEG and NumPy files, with the same bytes every time.

The size of uncompressed PNG and .npy files follows from width and height alone.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.registry import new_encoder
from vfsd.errors import UsageError

MIN_JPEG_QUANTISER, MAX_JPEG_QUANTISER = 2, 31
"""Bounds of the quantizer scale."""

_PNG_FORMATS = {
    (3, "uint8"): ("rgb24", "rgb24"),
    (1, "uint8"): ("gray", "gray"),
    (3, "uint16"): ("rgb48le", "rgb48be"),
    (1, "uint16"): ("gray16le", "gray16be"),
}


def encode_png(pixels: npt.NDArray[Any], *, compression: int = 3) -> bytes:
    """Return a PNG file of `pixels`: height x width x 3 RGB or x 1 gray, uint8 or uint16.

    `compression` is zlib's level. Raises `UsageError` for another shape or type.
    """
    return _encode_still(
        "png",
        *_PNG_FORMATS[_array_form(pixels)],
        pixels,
        {"compression_level": str(compression), "pred": "mixed"},
    )


def encode_jpeg(pixels: npt.NDArray[np.uint8], *, quantiser: int = 3) -> bytes:
    """Return a baseline JPEG (JFIF) file of `pixels`: height x width x 3 RGB or x 1 gray, uint8.

    The file has 4:2:0 chroma; for gray it is neutral. `quantiser` is `MIN_JPEG_QUANTISER` to
    `MAX_JPEG_QUANTISER`. Raises `UsageError` for another shape or type.
    """
    channels, dtype = _array_form(pixels)
    if dtype != "uint8":
        raise UsageError(f"JPEG needs uint8 pixels, got {dtype}")
    options = {"qmin": str(quantiser), "qmax": str(quantiser), "huffman": "optimal"}
    return _encode_still("mjpeg", "rgb24" if channels == 3 else "gray", "yuvj420p", pixels, options)


def _array_form(pixels: npt.NDArray[Any]) -> tuple[int, str]:
    form = (pixels.shape[-1], pixels.dtype.name)
    if pixels.ndim != 3 or form not in _PNG_FORMATS:
        raise UsageError(
            f"a picture must be gray or RGB pixels, got {pixels.shape} of {pixels.dtype}"
        )
    return form


def _encode_still(
    codec: str,
    given: str,
    stored: str,
    pixels: npt.NDArray[Any],
    options: Mapping[str, str],
) -> bytes:
    array = np.ascontiguousarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    frame = av.VideoFrame.from_ndarray(array, format=given).reformat(format=stored, threads=1)
    frame.pts = 0
    context = new_encoder(codec)
    context.width, context.height, context.pix_fmt = frame.width, frame.height, stored
    context.time_base = Fraction(1, 25)
    context.thread_count = 1
    context.sample_aspect_ratio = Fraction(1)  # makes FFmpeg write a JFIF header
    context.options = {**options, "flags": "+bitexact"}  # omits the version of the encoder
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


RgbArray = npt.NDArray[np.uint8]
"""height x width x 3."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_STORED_BLOCK = 65535
_PNG_BYTES = 63
"""Signature 8, IHDR 25, IDAT without data 12 + 2 + 4 (zlib header, Adler-32), IEND 12."""
_BLOCK_BYTES = 5


def uncompressed_png_size(width: int, height: int) -> int:
    """Return the size in bytes of the result of `uncompressed_png`."""
    rows = height * (1 + 3 * width)
    return _PNG_BYTES + rows + _BLOCK_BYTES * -(-rows // _STORED_BLOCK)


def uncompressed_png(pixels: RgbArray) -> bytes:
    """Return a PNG file of RGB pixels without compression."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with filter type 0
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
    body = _png_chunk(b"IDAT", b"".join(parts))
    return b"".join((_SIGNATURE, _png_chunk(b"IHDR", header), body, _png_chunk(b"IEND", b"")))


def npy_file_size(width: int, height: int) -> int:
    """Return the size in bytes of the result of `npy_file`."""
    return len(_npy_header(height, width)) + width * height * 3


def npy_file(pixels: RgbArray) -> bytes:
    """Return a .npy file of one C-contiguous uint8 array, height x width x 3."""
    height, width, _ = pixels.shape
    return _npy_header(height, width) + pixels.tobytes()


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(body, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(body)), kind, body, struct.pack(">I", check)))


def _npy_header(height: int, width: int) -> bytes:
    stream = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": (height, width, 3)}
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue()
