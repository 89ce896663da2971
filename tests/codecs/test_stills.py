"""PNG and JPEG files of arrays."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from vfsd.codecs.encoding.encoder import (
    MAX_JPEG_QUANTISER,
    MIN_JPEG_QUANTISER,
    encode_jpeg,
    encode_png,
)
from vfsd.errors import UsageError


def _picture(height: int, width: int, channels: int) -> npt.NDArray[np.uint8]:
    rows, columns = np.mgrid[:height, :width]
    planes = (rows * 255 // height, columns * 255 // width, (rows + columns) * 255 // 600)
    return np.stack(planes, axis=-1).astype(np.uint8)[..., :channels]


def _opened(data: bytes) -> npt.NDArray[Any]:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    return pixels[..., ::-1] if pixels.ndim == 3 else pixels[..., np.newaxis]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(240, 320), (7, 5), (1, 1)])
def test_png_keeps_every_sample(
    size: tuple[int, int], channels: int, dtype: type[np.unsignedinteger[Any]]
) -> None:
    scale = 257 if dtype is np.uint16 else 1
    pixels = _picture(*size, channels).astype(dtype) * scale
    data = encode_png(pixels)
    assert data == encode_png(pixels)
    opened = _opened(data)
    assert opened.dtype == pixels.dtype
    np.testing.assert_array_equal(opened, pixels)
    np.testing.assert_array_equal(_opened(encode_png(pixels[:, ::-1])), pixels[:, ::-1])


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_close_to_the_frame(channels: int) -> None:
    pixels = _picture(240, 320, channels)
    data = encode_jpeg(pixels)
    assert data == encode_jpeg(pixels)
    assert data[6:10] == b"JFIF"
    assert b"Lavc" not in data
    difference = _opened(data)[..., :channels].astype(int) - pixels
    assert np.abs(difference).mean() < 2
    assert len(encode_jpeg(pixels, quantiser=MAX_JPEG_QUANTISER)) < len(
        encode_jpeg(pixels, quantiser=MIN_JPEG_QUANTISER)
    )


def test_invalid_arrays_are_refused() -> None:
    for shape, dtype in (((4, 4), "uint8"), ((4, 4, 2), "uint8"), ((4, 4, 3), "float32")):
        with pytest.raises(UsageError, match="a picture must be"):
            encode_png(np.zeros(shape, dtype))
    with pytest.raises(UsageError, match="uint8"):
        encode_jpeg(np.zeros((4, 4, 3), np.uint16))
