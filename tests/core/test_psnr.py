"""The errors of successive encodings add up to a valid bound."""

from __future__ import annotations

import math
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.selection import examples
from vfsd.codecs.encoding.archive_encoder import ARCHIVE_CODECS, decode_run, encode_run, frame_error
from vfsd.codecs.frames.transforms import PictureScaler
from vfsd.core.model import (
    LOSSLESS_PSNR,
    MediaInfo,
    chained_psnr,
    error_from_psnr,
    psnr_from_error,
    required_psnr,
)

WIDTH, HEIGHT = 96, 80


def media(width: int = WIDTH, height: int = HEIGHT) -> MediaInfo:
    return MediaInfo("mp4", "h264", None, width, height, "yuv420p", Fraction(1, 25), Fraction(25))


def pictures(seed: int, count: int = 6) -> list[av.VideoFrame]:
    """Moving blobs with noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (12, 24 + count), np.uint8)
    found = []
    for number in range(count):
        luma = np.kron(coarse[:10, number : number + 12], np.ones((8, 8), np.uint8)).astype(float)
        luma += rng.normal(0, 6, luma.shape)
        chroma = rng.integers(90, 160, (HEIGHT // 2, WIDTH), np.uint8)
        planes = np.concatenate([luma.clip(0, 255).astype(np.uint8), chroma])
        found.append(av.VideoFrame.from_ndarray(planes, format="yuv420p"))
    return found


@settings(max_examples=examples(12))
@given(
    st.integers(0, 1000),
    st.lists(
        st.tuples(st.sampled_from(sorted(ARCHIVE_CODECS)), st.integers(5, 45)),
        min_size=2,
        max_size=5,
    ),
)
def test_chain_stays_within_its_bound(seed: int, steps: list[tuple[str, int]]) -> None:
    first = now = pictures(seed)
    total = 0.0
    for name, quality in steps:
        codec = ARCHIVE_CODECS[name]
        run = encode_run(codec, media(), quality, now)
        now = list(decode_run(codec, run))
        total += run.error
        for one, other in zip(first, now, strict=True):
            assert frame_error(one, other) <= total + 1e-12
        assert chained_psnr(psnr_from_error(run.error), total - run.error) == pytest.approx(
            psnr_from_error(total)
        )


@settings(max_examples=examples(25))
@given(st.integers(0, 1000), st.integers(8, WIDTH // 2), st.integers(8, HEIGHT // 2))
def test_scaling_error_stays_within_its_bound(seed: int, columns: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    (first,) = pictures(seed, 1)
    luma = first.to_ndarray()
    noise = rng.choice([-9, 9], luma.shape) if seed % 2 else rng.integers(-20, 21, luma.shape)
    planes = (luma.astype(int) + noise).clip(0, 255).astype(np.uint8)
    other = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    error = frame_error(first, other)
    scaler = PictureScaler(2 * columns, 2 * rows, interlaced=False)
    small, other_small = scaler.scale(first), scaler.scale(other)
    found = frame_error(small, other_small)
    assert found <= error_from_psnr(chained_psnr(math.inf, error, scaled_to_bits=8))


@given(st.floats(20, 60), st.floats(20, 60))
def test_required_psnr_inverts_chained_psnr(psnr: float, own: float) -> None:
    left = required_psnr(psnr, error_from_psnr(own))
    if left is None:
        assert own <= psnr
    else:
        found = chained_psnr(left, error_from_psnr(own))
        assert found >= psnr - 1e-6
        assert found == pytest.approx(psnr, abs=1e-6) or left >= LOSSLESS_PSNR
    assert required_psnr(psnr, 0.0) == psnr
    assert chained_psnr(psnr, 0.0) == psnr
