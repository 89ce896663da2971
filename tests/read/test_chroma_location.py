"""The chroma location follows the original, whatever the source of a read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest

from tests.support.color_clips import HEIGHT, WIDTH, encoded
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.pixel_array import Pixels
from vfsd.derive.tile_encoder import TileSettings

TOLD_NOTHING = "ffv1"  # its frames do not signal it
TOLD_LEFT = "libx264"
ROUNDING = 1e-9


def blocks(count: int, pixel_format: str) -> list[av.VideoFrame]:
    """Saturated colors of equal luma, one chroma sample each."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(count):
        picture = av.VideoFrame(WIDTH, HEIGHT, pixel_format)
        scale = 4 if "10" in pixel_format else 1
        for number, plane in enumerate(picture.planes):
            kind: Any = np.uint16 if scale > 1 else np.uint8
            rows = np.frombuffer(cast("Any", plane), kind).reshape(plane.height, -1)
            stripes = rng.choice([100, 156] if number else [110, 130], rows.shape[1])
            rows[...] = scale * stripes
        found.append(picture)
    return found


def specks(count: int) -> list[av.VideoFrame]:
    """Samples that differ from their neighbors as much as possible."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        samples = rng.choice(np.array([16, 240], np.uint8), (HEIGHT * 3 // 2, WIDTH))
        found.append(av.VideoFrame.from_ndarray(samples, format="yuv420p"))
    return found


def clip(
    store: Store,
    path: Path,
    codec: str,
    pixel_format: str,
    pictures: list[av.VideoFrame] | None = None,
) -> Video:
    options = {"qp": "4", "g": "30"} if codec == TOLD_LEFT else {}
    video = store.ingest(encoded(path, codec, pictures or blocks(8, pixel_format), options))
    video.budget.set("none")
    return video


def least_psnr(found: Pixels, exact: Pixels, highest: int) -> float:
    """The lowest PSNR of any frame, over planes or channels; planes of one size are compared
    separately."""
    axes = tuple(range(1, found.ndim - 1))
    if found.ndim == 3:
        found, exact = (data.reshape(len(data), 3, -1) for data in (found, exact))
        axes = (2,)
    errors = np.square(found.astype(float) - exact).mean(axis=axes)
    return float(10 * math.log10(highest**2 / max(errors.max(), 1e-9)))


@pytest.mark.parametrize(
    ("source", "codec", "pixel_format", "form"),
    one_in(
        3,
        [
            (TOLD_NOTHING, "fast", "yuv420p", "yuv444p"),
            (TOLD_NOTHING, "fast", "yuv422p", "yuv444p"),
            (TOLD_NOTHING, "fast", "yuv420p10le", "rgb24"),
            (TOLD_NOTHING, "stitchable", "yuv420p", "yuv444p"),
            (TOLD_LEFT, "small", "yuv420p", "yuv444p"),
            (TOLD_LEFT, "small", "yuv420p10le", "rgb24"),
            (TOLD_LEFT, "small", "yuv420p10le", "rgb48"),
        ],
    ),
)
def test_tiles_reach_their_reported_psnr(
    store: Store,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    source: str,
    codec: str,
    pixel_format: str,
    form: str,
) -> None:
    if codec == "stitchable":
        request.getfixturevalue("kvazaar")
    video = clip(store, tmp_path / "a.mkv", source, pixel_format)
    quality = 12 if codec == "small" else 8
    video.tiles.retile("uniform:1x1", settings=TileSettings(codec, quality=quality))
    take_tiles(store)
    found = video.read(format=form, psnr=15)
    assert 15 <= found.psnr < math.inf
    exact = video.read(format=form, psnr=math.inf)
    highest = np.iinfo(exact.data.dtype).max
    assert least_psnr(found.data, exact.data, highest) >= found.psnr - ROUNDING


@pytest.mark.parametrize("codec", ["fast", "lossless"])
def test_renditions_in_bgr24_reach_their_reported_psnr(
    store: Store, tmp_path: Path, codec: str
) -> None:
    """FFmpeg scales to bgr24 with other rounding than to rgb24."""
    video = clip(store, tmp_path / "a.mkv", TOLD_LEFT, "yuv420p", specks(8))
    size = (WIDTH, HEIGHT // 2)
    video.renditions.make(
        size, settings=TileSettings(codec, quality=8 if codec == "fast" else None)
    )
    take_tiles(store)
    for form in ("rgb24", "bgr24"):
        found = video.read(size=size, format=form, psnr=1)
        assert 1 <= found.psnr < math.inf
        exact = video.read(size=size, format=form, psnr=math.inf)
        assert least_psnr(found.data, exact.data, 255) >= found.psnr - ROUNDING, form


def test_imported_rendition_reaches_its_reported_psnr(store: Store, tmp_path: Path) -> None:
    video = clip(store, tmp_path / "a.mkv", TOLD_LEFT, "yuv420p10le")
    size = (WIDTH // 2, HEIGHT // 2)
    video.renditions.write(
        video.read(size=size, format="yuv420p10").data, size=size, format="yuv420p10"
    )
    take_tiles(store)
    for form in ("rgb24", "rgb48"):
        found = video.read(size=size, format=form, psnr=1)
        assert 1 <= found.psnr < math.inf
        exact = video.read(size=size, format=form, psnr=math.inf)
        highest = np.iinfo(exact.data.dtype).max
        assert least_psnr(found.data, exact.data, highest) >= found.psnr - ROUNDING, form
