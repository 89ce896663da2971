"""Single pictures as PNG and JPEG files, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.registry import new_encoder
from vfsd.errors import UsageError

BEST_JPEG, WORST_JPEG = 2, 31
"""Quantiser scales."""

_PNG_FORMATS = {
    (3, "uint8"): ("rgb24", "rgb24"),
    (1, "uint8"): ("gray", "gray"),
    (3, "uint16"): ("rgb48le", "rgb48be"),
    (1, "uint16"): ("gray16le", "gray16be"),
}


def png(pixels: npt.NDArray[Any], *, compression: int = 3) -> bytes:
    """`pixels` (height x width x 3 RGB or x 1 gray, uint8 or uint16) as a PNG file.

    `compression` is zlib's level.  Raises `UsageError` for another shape or type.
    """
    return _encoded(
        "png",
        *_PNG_FORMATS[_form(pixels)],
        pixels,
        {"compression_level": str(compression), "pred": "mixed"},
    )


def jpeg(pixels: npt.NDArray[np.uint8], *, quantiser: int = 3) -> bytes:
    """`pixels` (height x width x 3 RGB or x 1 gray, uint8) as a baseline JPEG (JFIF) file, 4:2:0.

    Gray is stored as colours without any colour.  `quantiser` goes from `BEST_JPEG` to
    `WORST_JPEG`.  Raises `UsageError` for another shape or type.
    """
    channels, dtype = _form(pixels)
    if dtype != "uint8":
        raise UsageError("a JPEG file holds 8 bits a sample")
    options = {"qmin": str(quantiser), "qmax": str(quantiser), "huffman": "optimal"}
    return _encoded("mjpeg", "rgb24" if channels == 3 else "gray", "yuvj420p", pixels, options)


def _form(pixels: npt.NDArray[Any]) -> tuple[int, str]:
    form = (pixels.shape[-1], pixels.dtype.name)
    if pixels.ndim != 3 or form not in _PNG_FORMATS:
        raise UsageError(
            f"a picture must be gray or RGB pixels, got {pixels.shape} of {pixels.dtype}"
        )
    return form


def _encoded(
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
    context.sample_aspect_ratio = Fraction(1)  # which makes the file a JFIF
    context.options = {**options, "flags": "+bitexact"}  # no version of the encoder in it
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])
