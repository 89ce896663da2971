"""`PixelConverter`: crops are exact, frames upright, and the rest equals FFmpeg's output."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.clips import media_of
from tests.support.ffmpeg_reference import decoder_for
from tests.support.selection import examples
from vfsd.codecs.frames.planes import PIXEL_FORMATS, plane_samples
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.probing.probe import examine
from vfsd.errors import ChangedSizeError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

PACKED = ("rgb24", "bgr24", "gray", "rgb48", "gray16")
SUBSAMPLED = {"yuv420p": (2, 2), "yuv420p10": (2, 2), "yuv422p": (2, 1), "yuv444p": (1, 1)}
SOURCES = (
    *("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"),
    *("gbrp", "gray", "gray10le", "nv12", "yuyv422", "rgb24", "bgra", "yuv411p", "yuva420p"),
)
SIZES = ((96, 64), (70, 40), (57, 39), (17, 33), (2, 2))


def _noise(width: int, height: int, pixel_format: str, seed: int = 1) -> av.VideoFrame:
    chance = np.random.default_rng(seed)
    frame = av.VideoFrame(width, height, pixel_format)
    highest = 1 << frame.format.components[0].bits
    for plane in plane_samples(frame):
        plane[...] = chance.integers(0, highest, plane.shape)
    return frame


def _split(
    data: npt.NDArray[Any], width: int, height: int, shares: tuple[int, int]
) -> list[npt.NDArray[Any]]:
    flat = data.reshape(-1)
    chroma = (height // shares[1], width // shares[0])
    sizes = [height * width, chroma[0] * chroma[1], chroma[0] * chroma[1]]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [p.reshape(s) for p, s in zip(parts, [(height, width), chroma, chroma], strict=True)]


@settings(max_examples=examples(300), deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    size=st.sampled_from(SIZES),
    rotation=st.sampled_from([0, 90, 180, 270]),
    mirrored=st.booleans(),
    pixel_format=st.sampled_from(PACKED),
    corners=st.tuples(*[st.floats(0, 1, exclude_max=True) for _ in range(4)]),
)
def test_region_equals_part_of_the_whole(
    source: str,
    size: tuple[int, int],
    rotation: int,
    mirrored: bool,
    pixel_format: str,
    corners: tuple[float, float, float, float],
) -> None:
    media = media_of(*size, source, rotation, mirrored=mirrored)
    width, height = media.display_width, media.display_height
    x1, y1 = int(corners[0] * width), int(corners[1] * height)
    x2, y2 = x1 + 1 + int(corners[2] * (width - x1)), y1 + 1 + int(corners[3] * (height - y1))
    frame = _noise(*size, source)
    whole = PixelConverter(media, pixel_format=pixel_format).convert(frame)
    region = Rect(x1, y1, min(x2, width), min(y2, height))
    converter = PixelConverter(media, pixel_format=pixel_format, region=region)
    part = converter.convert(frame)
    assert (part.shape, part.dtype) == (converter.shape, converter.dtype)
    np.testing.assert_array_equal(part, whole[region.y1 : region.y2, region.x1 : region.x2])


@settings(max_examples=examples(200), deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    rotation=st.sampled_from([0, 90, 180, 270]),
    mirrored=st.booleans(),
    pixel_format=st.sampled_from(sorted(SUBSAMPLED)),
    corners=st.tuples(*[st.integers(0, 15) for _ in range(4)]),
)
def test_planes_of_a_region_equal_parts_of_the_whole(
    source: str,
    rotation: int,
    mirrored: bool,
    pixel_format: str,
    corners: tuple[int, int, int, int],
) -> None:
    shares = SUBSAMPLED[pixel_format]
    media = media_of(72, 40, source, rotation, mirrored=mirrored)
    if rotation % 180 and shares[0] != shares[1]:
        with pytest.raises(UsageError, match="cannot be rotated"):
            PixelConverter(media, pixel_format=pixel_format)
        return
    width, height = media.display_width, media.display_height
    x1, y1 = corners[0] * 2, corners[1] * 2
    region = Rect(x1, y1, min(x1 + 2 + corners[2] * 2, width), min(y1 + 2 + corners[3] * 2, height))
    frame = _noise(72, 40, source)
    whole = PixelConverter(media, pixel_format=pixel_format).convert(frame)
    part = PixelConverter(media, pixel_format=pixel_format, region=region).convert(frame)
    planes = zip(
        _split(whole, width, height, shares),
        _split(part, region.width, region.height, shares),
        [(1, 1), shares, shares],
        strict=True,
    )
    for full, cropped, (by_x, by_y) in planes:
        rows = slice(region.y1 // by_y, region.y2 // by_y)
        columns = slice(region.x1 // by_x, region.x2 // by_x)
        np.testing.assert_array_equal(cropped, full[rows, columns])


@pytest.mark.parametrize("pixel_format", PACKED)
@pytest.mark.parametrize("source", ["yuv420p", "yuvj420p", "yuv444p", "yuv422p", "gbrp"])
def test_conversion_equals_ffmpeg(source: str, pixel_format: str) -> None:
    frame = _noise(96, 64, source)
    name = {"rgb48": "rgb48le", "gray16": "gray16le"}.get(pixel_format, pixel_format)
    expected = frame.reformat(format=name, interpolation="BICUBIC", threads=1).to_ndarray()
    converted = PixelConverter(media_of(96, 64, source), pixel_format=pixel_format).convert(frame)
    near = 1 if pixel_format == "gray16" else 0
    difference = converted.astype(int) - expected.reshape(converted.shape).astype(int)
    assert np.abs(difference).max() <= near


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("pixel_format", ["rgb24", "gray", "yuv420p", "yuv444p"])
def test_frames_are_mirrored_then_rotated_clockwise(
    rotation: int, pixel_format: str, mirrored: bool
) -> None:
    frame = _noise(70, 40, "yuv420p")
    lying = PixelConverter(media_of(70, 40, "yuv420p"), pixel_format=pixel_format).convert(frame)
    media = media_of(70, 40, "yuv420p", rotation, mirrored=mirrored)
    upright = PixelConverter(media, pixel_format=pixel_format).convert(frame)
    if pixel_format in PACKED:
        np.testing.assert_array_equal(upright, _turned(lying, rotation, mirrored=mirrored))
        return
    shares = SUBSAMPLED[pixel_format]
    before = _split(lying, 70, 40, shares)
    after = _split(upright, media.display_width, media.display_height, shares)
    for plane, turned in zip(before, after, strict=True):
        np.testing.assert_array_equal(turned, _turned(plane, rotation, mirrored=mirrored))


def _turned(picture: npt.NDArray[Any], rotation: int, *, mirrored: bool) -> npt.NDArray[Any]:
    return np.rot90(np.fliplr(picture) if mirrored else picture, -rotation // 90)


def test_planes_in_the_stored_format_are_unchanged() -> None:
    for source, color_range, told in (
        ("yuv420p", 0, None),
        ("yuv420p", 1, "limited"),
        ("yuv420p", 1, None),
        ("yuv420p", 2, "full"),
        ("yuv420p", 0, "full"),
        ("yuvj420p", 2, "full"),
        ("yuvj420p", 0, "full"),
    ):
        frame = _noise(96, 64, source)
        frame.color_range = color_range
        media = replace(media_of(96, 64, source), color_range=told)
        converted = PixelConverter(media, pixel_format="yuv420p").convert(frame)
        parts = _split(converted, 96, 64, (2, 2))
        for part, plane in zip(parts, plane_samples(frame), strict=True):
            np.testing.assert_array_equal(part, plane)


def test_gray_equals_luma() -> None:
    frame = _noise(96, 64, "yuv420p")
    luma = plane_samples(frame)[0].astype(int)
    stretched = np.clip(np.floor((luma - 16) * 255 / 219 + 0.5), 0, 255)
    for colorspace in (1, 2, 5, 9):
        frame.colorspace, frame.color_range = colorspace, 1
        gray = PixelConverter(media_of(96, 64, "yuv420p"), pixel_format="gray").convert(frame)
        np.testing.assert_array_equal(gray[..., 0], stretched)
    frame.color_range = 2
    full = PixelConverter(media_of(96, 64, "yuv420p"), pixel_format="gray").convert(frame)
    np.testing.assert_array_equal(full[..., 0], luma)


def test_scaling_ignores_pixels_outside_the_region() -> None:
    frame = _noise(96, 64, "yuv420p")
    for plane in plane_samples(frame):
        plane[...] = 128
    plane_samples(frame)[0][16:32, 32:64] = 235
    media = media_of(96, 64, "yuv420p")
    for pixel_format, white in (("rgb24", 255), ("gray", 255), ("gray16", 65535)):
        for region in (Rect(32, 16, 64, 32), Rect(33, 17, 63, 31)):
            converter = PixelConverter(
                media, pixel_format=pixel_format, region=region, size=(20, 10)
            )
            scaled = converter.convert(frame)
            assert scaled.shape[:2] == (10, 20)
            # The dark surroundings do not bleed in.
            assert scaled.min() >= white - white // 80


@pytest.mark.parametrize("pixel_format", ["rgb24", "bgr24", "gray"])
def test_reduced_pixels_are_means_of_areas(pixel_format: str) -> None:
    """Each pixel averages its own area; neighbors share no color."""
    frame = _noise(96, 64, "yuv420p")
    chance = np.random.default_rng(2)
    for plane, side in zip(plane_samples(frame), (4, 2, 2), strict=True):
        plane[...] = np.kron(chance.integers(60, 190, (16, 24)), np.ones((side, side)))
    media = media_of(96, 64, "yuv420p")
    whole = PixelConverter(media, pixel_format=pixel_format).convert(frame)
    reduced = PixelConverter(media, pixel_format=pixel_format, size=(24, 16)).convert(frame)
    means = whole.reshape(16, 4, 24, 4, -1).mean(axis=(1, 3))
    assert np.abs(reduced - means).max() <= 3


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("source", ["yuv420p", "nv12", "yuv422p10le", "gbrp", "gray"])
def test_scaled_frames_are_upright(source: str, rotation: int, mirrored: bool) -> None:
    frame = _noise(96, 64, source)
    lying = PixelConverter(media_of(96, 64, source), size=(48, 16)).convert(frame)
    media = media_of(96, 64, source, rotation, mirrored=mirrored)
    size = (16, 48) if rotation % 180 else (48, 16)
    upright = PixelConverter(media, size=size).convert(frame)
    np.testing.assert_array_equal(upright, _turned(lying, rotation, mirrored=mirrored))


def test_planes_at_odd_offsets_are_resampled() -> None:
    frame = _noise(96, 64, "yuv420p")
    for plane, level in zip(plane_samples(frame), (100, 90, 160), strict=True):
        plane[...] = level
    converter = PixelConverter(
        media_of(96, 64, "yuv420p"), pixel_format="yuv420p", region=Rect(11, 7, 31, 27)
    )
    parts = _split(converter.convert(frame), 20, 20, (2, 2))
    for part, level in zip(parts, (100, 90, 160), strict=True):
        assert np.abs(part.astype(int) - level).max() <= 1


def test_output_into_a_given_array() -> None:
    frame = _noise(96, 64, "yuv420p")
    for pixel_format in PIXEL_FORMATS:
        converter = PixelConverter(media_of(96, 64, "yuv420p"), pixel_format=pixel_format)
        expected = converter.convert(frame)
        out = np.zeros(converter.shape, converter.dtype)
        assert converter.convert(frame, out) is out
        np.testing.assert_array_equal(out, expected)
        strided = np.zeros((*converter.shape[:1], converter.shape[1] * 2, *converter.shape[2:]))
        view = strided.astype(converter.dtype)[:, ::2]
        converter.convert(frame, view)
        np.testing.assert_array_equal(view, expected)


@pytest.mark.parametrize(("source", "wanted"), [("gray", "gray"), ("rgb24", "rgb24")])
def test_results_are_independent_of_later_frames(source: str, wanted: str) -> None:
    converter = PixelConverter(
        media_of(96, 64, source), pixel_format=wanted, region=Rect(3, 5, 50, 60)
    )
    first = converter.convert(_noise(96, 64, source, seed=1))
    kept = first.copy()
    converter.convert(_noise(96, 64, source, seed=2))
    np.testing.assert_array_equal(first, kept)


def test_errors_name_the_cause() -> None:
    media = media_of(96, 64, "yuv420p")
    with pytest.raises(UsageError, match=r"format must be one of .*, got 'cmyk'") as usage:
        PixelConverter(media, pixel_format="cmyk")
    assert "rgb24" in str(usage.value)
    with pytest.raises(OutOfRangeError, match=r"97x64\+0\+0 reaches beyond the frame of 96x64"):
        PixelConverter(media, region=Rect(0, 0, 97, 64))
    with pytest.raises(UsageError, match="size must be even") as error:
        PixelConverter(media, pixel_format="yuv420p", region=Rect(0, 0, 9, 8))
    assert str(error.value.hint).startswith("use 8x8, or yuv444p")
    with pytest.raises(UsageError, match="at least 1x1"):
        PixelConverter(media, size=(0, 5))
    converter = PixelConverter(media)
    with pytest.raises(ChangedSizeError, match="a frame has 70x40 pixels in a video of 96x64"):
        converter.convert(_noise(70, 40, "yuv420p"))
    with pytest.raises(UsageError, match=r"shape \(64, 96, 3\) and type uint8"):
        converter.convert(_noise(96, 64, "yuv420p"), np.empty((64, 96, 4), np.uint8))


@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4", "mjpeg.avi"])
@pytest.mark.parametrize("pixel_format", ["rgb24", "gray"])
def test_frames_equal_the_ffmpeg_command(name: str, pixel_format: str) -> None:
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    path: Path = FOLDER / name
    found = examine(path)
    raw = subprocess.run(
        [
            *(command, "-nostdin", "-v", "error", "-i", path, "-frames:v", "3"),
            *("-pix_fmt", pixel_format, "-f", "rawvideo", "-"),
        ],
        capture_output=True,
        check=True,
    ).stdout
    converter = PixelConverter(found.media, pixel_format=pixel_format)
    expected = np.frombuffer(raw, np.uint8).reshape(3, *converter.shape)
    with decoder_for(path, found) as decoder:
        for index, frame in decoder.stream(0, 3):
            np.testing.assert_array_equal(converter.convert(frame), expected[index])
