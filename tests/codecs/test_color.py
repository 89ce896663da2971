"""Frames with other colour properties are converted to those of the stream.

Frames with unusual pixel formats are converted like the nearest usual one.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from vfsd.codecs.cells.lossless import LOSSLESS_PIXEL_FORMATS
from vfsd.codecs.frames.color import (
    SITINGS,
    ColorNormalizer,
    blank,
    blank_like,
    frame_coding,
    frame_siting,
    media_coding,
    planes_range,
    with_true_range_name,
)
from vfsd.codecs.frames.planes import fingerprint, plane_bytes, plane_samples, plane_subsampling
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.frames.transforms import PictureReformatter, TileComposer
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError
from vfsd.tiling import Rect

MEDIA = MediaInfo("", "h264", None, 64, 48, "yuv420p", Fraction(1, 25), None)
SPACES = {None: 2, "bt709": 1, "smpte170m": 6, "smpte240m": 7, "bt2020nc": 9, "fcc": 4}


def told(space: str | None, color_range: str | None, pixel_format: str = "yuv420p") -> MediaInfo:
    return replace(MEDIA, color_space=space, color_range=color_range, pixel_format=pixel_format)


def picture(pixel_format: str, space: int, color_range: int) -> av.VideoFrame:
    """A frame of soft colors, all within the range of any color coding."""
    y, x = np.mgrid[0:48, 0:64]
    rgb = np.stack([90 + x, 80 + y * 2, 190 - x - y], axis=-1).astype(np.uint8)
    made = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
        format=pixel_format,
        dst_colorspace={2: 5, 6: 5}.get(space, space),
        dst_color_range=2 if color_range == 2 else 1,
    )
    made.colorspace, made.color_range = space, color_range
    return made


WEIGHTS = {1: (0.2126, 0.0722), 4: (0.3, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}


def rgb(shown: av.VideoFrame) -> np.ndarray:
    """RGB by the formula, from 0 to 255; FFmpeg's own result differs by up to two."""
    red, blue = WEIGHTS.get(shown.colorspace, (0.299, 0.114))
    scale = 1 << shown.format.components[0].bits - 8
    full = shown.color_range == 2
    luma, *chroma = (plane.astype(float) for plane in plane_samples(shown))
    across, down = plane_subsampling(shown, 1)
    u, v = ((plane - 128 * scale).repeat(down, 0).repeat(across, 1) for plane in chroma)
    peak = 256 * scale - 1
    y = luma / peak if full else (luma - 16 * scale) / (219 * scale)
    u, v = (plane / (peak if full else 224 * scale) for plane in (u, v))
    r, b = y + 2 * (1 - red) * v, y + 2 * (1 - blue) * u
    return 255 * np.stack([r, (y - red * r - blue * b) / (1 - red - blue), b], axis=-1)


def as_ffmpeg_has_it(shown: av.VideoFrame) -> np.ndarray:
    return shown.reformat(format="rgb24", threads=1).to_ndarray().astype(float)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le"])
@pytest.mark.parametrize("after", [("bt709", "limited"), ("bt2020nc", "full"), (None, None)])
@pytest.mark.parametrize("before", [("bt709", 2), ("smpte170m", 1), ("smpte240m", 2), ("fcc", 1)])
def test_conversion_keeps_colors(
    pixel_format: str, before: tuple[str, int], after: tuple[str | None, str | None]
) -> None:
    given = picture(pixel_format, SPACES[before[0]], before[1])
    given.pts = 7
    media = told(*after, pixel_format)
    made = ColorNormalizer(media).normalize(given)
    assert (made.format.name, made.width, made.height, made.pts) == (pixel_format, 64, 48, 7)
    assert frame_coding(made, media_coding(media)) == media_coding(media)
    assert made.color_range == (2 if after[1] == "full" else 1)
    levels = np.abs(rgb(made) - rgb(given))
    assert levels.max() < (0.6 if "10" in pixel_format else 2.3)  # of 255, due to rounding
    assert levels.mean() < (0.2 if "10" in pixel_format else 0.7)


def test_normal_frames_are_not_converted() -> None:
    for media, given in (
        (told("bt709", "limited"), picture("yuv420p", 1, 1)),
        (told("bt709", "full"), picture("yuv420p", 2, 0)),  # it has no color properties
        (told(None, None), picture("yuv420p", 5, 1)),  # the defaults
        (told("bt2020c", "limited"), picture("yuv420p", 9, 1)),  # equivalent for FFmpeg
        (told(None, None, "gray"), av.VideoFrame(64, 48, "gray")),
        (told("rgb", "full", "gbrp"), av.VideoFrame(64, 48, "gbrp")),
    ):
        assert ColorNormalizer(media).is_normal(given)
        assert ColorNormalizer(media).normalize(given) is given


@pytest.mark.parametrize("form", [{}, {"size": (32, 24)}, {"pixel_format": "rgb48"}])
@pytest.mark.parametrize(("number", "equivalent"), [(3, 5), (10, 9), (22, 5), (236, 5)])
def test_matrices_that_ffmpeg_refuses(number: int, equivalent: int, form: dict[str, Any]) -> None:
    """Numbers without a meaning count as undeclared, which is BT.601."""
    given, usual = picture("yuv420p", 5, 1), picture("yuv420p", 5, 1)
    given.colorspace, usual.colorspace = number, equivalent
    media = told(None, "limited")
    found = PixelConverter(media, **form).convert(given)
    np.testing.assert_array_equal(found, PixelConverter(media, **form).convert(usual))


@pytest.mark.parametrize("number", [8, 14, 17])
def test_matrices_without_rgb_are_refused(number: int) -> None:
    given = picture("yuv420p", 5, 1)
    given.colorspace = number
    with pytest.raises(RefusedMediaError, match="cannot be converted to RGB"):
        PixelConverter(told(None, "limited")).convert(given)
    planes = PixelConverter(told(None, "limited"), pixel_format="yuv420p").convert(given)
    assert planes.size == 64 * 48 * 3 // 2
    made = PictureReformatter("yuv444p").convert(given)
    assert (made.format.name, made.colorspace) == ("yuv444p", number)


def test_gray_stays_gray_with_nearest_levels() -> None:
    given = av.VideoFrame(64, 48, "yuv420p")
    given.color_range, given.colorspace = 2, 1
    levels = np.arange(64 * 48).reshape(48, 64) % 256
    for plane, value in zip(plane_samples(given), (levels, 128, 128), strict=True):
        plane[...] = value
    luma, *chroma = plane_samples(ColorNormalizer(told("smpte170m", "limited")).normalize(given))
    assert np.array_equal(luma, np.rint(16 + levels * 219 / 255))
    assert all((plane == 128).all() for plane in chroma)


def test_chroma_location_is_kept() -> None:
    given = blank(64, 48, "yuv420p", "topleft", interlaced=False)
    for plane in plane_samples(given):
        plane[...] = 100
    given.color_range = 2
    made = ColorNormalizer(told(None, "limited")).normalize(given)
    assert frame_siting(made) == frame_siting(given) == "topleft"


def test_packed_formats_are_converted() -> None:
    given = picture("yuyv422", 1, 1)
    made = ColorNormalizer(told("smpte170m", "limited", "yuyv422")).normalize(given)
    assert made.colorspace != given.colorspace
    assert np.abs(as_ffmpeg_has_it(made) - as_ffmpeg_has_it(given)).mean() < 2


def test_explicit_range_overrides_the_format_name() -> None:
    given = picture("yuv420p", 1, 1)
    misnamed = av.VideoFrame(64, 48, "yuvj420p")
    for source, target in zip(plane_samples(given), plane_samples(misnamed), strict=True):
        target[...] = source
    misnamed.colorspace, misnamed.color_range = 1, 1
    assert not frame_coding(misnamed, media_coding(MEDIA)).is_full
    right = with_true_range_name(misnamed)
    assert (right.format.name, right.color_range) == ("yuv420p", 1)
    assert np.array_equal(as_ffmpeg_has_it(right), as_ffmpeg_has_it(given))
    assert with_true_range_name(given) is given


def test_frames_without_properties_are_converted_like_others() -> None:
    given, bare = picture("yuv420p", 1, 2), picture("yuv420p", 1, 2)
    bare.colorspace, bare.color_range = 2, 0
    converter = PixelConverter(told("bt709", "full"))
    assert np.array_equal(converter.convert(bare), converter.convert(given))


def test_gray_always_has_full_range() -> None:
    assert planes_range(told(None, None, "gray")) == "full"
    assert planes_range(told(None, "limited", "gray10le")) == "full"
    assert planes_range(told(None, None)) is None


# --------------------------------------------------------------------------------------------------
# Copied frames are converted like their originals


FORMS = ("yuv444p", "yuv420p", "rgb24", "rgb48le")


def first(name: str) -> av.VideoFrame:
    with av.open(str(FOLDER / name)) as container:
        return next(container.decode(video=0))


def noisy(picture: av.VideoFrame) -> av.VideoFrame:
    rng = np.random.default_rng(5)
    for plane in plane_bytes(picture):
        plane[...] = rng.integers(0, 3, plane.shape)
    return picture


def converted(picture: av.VideoFrame) -> list[int]:
    sizes = ((picture.width, picture.height), (30, 20), (picture.width * 2, picture.height))
    return [
        fingerprint(picture.reformat(width=width, height=height, format=form, threads=1))
        for form in FORMS
        for width, height in sizes
    ]


@pytest.mark.parametrize("name", ["traffic.mp4", "mjpeg.avi", "av1.mp4", "odd-size.webm"])
def test_copied_frame_is_converted_like_its_original(name: str) -> None:
    picture = first(name)
    for made in (
        blank_like(picture, picture.width, picture.height),
        blank(
            picture.width,
            picture.height,
            picture.format.name,
            frame_siting(picture),
            interlaced=picture.interlaced_frame,
        ),
    ):
        for plane, copy in zip(plane_bytes(picture), plane_bytes(made), strict=True):
            copy[...] = plane
        made.colorspace, made.color_range = picture.colorspace, picture.color_range
        made.color_trc, made.color_primaries = picture.color_trc, picture.color_primaries
        assert converted(made) == converted(picture)


def test_chroma_locations_differ() -> None:
    """Otherwise the tests below would prove nothing."""
    there = {siting: blank(64, 48, "yuv420p", siting, interlaced=False) for siting in SITINGS}
    results = {tuple(converted(noisy(picture))) for picture in there.values()}
    assert len(results) == 6  # an unspecified location counts as center


@pytest.mark.parametrize("interlaced", one_in(4, [False, True]))
@pytest.mark.parametrize("pixel_format", LOSSLESS_PIXEL_FORMATS)
def test_detected_siting_gives_the_same_conversion(pixel_format: str, interlaced: bool) -> None:
    for siting in SITINGS:
        picture = noisy(blank(64, 50, pixel_format, siting, interlaced=interlaced))
        wanted = converted(picture)
        found = frame_siting(picture)
        again = noisy(blank(64, 50, pixel_format, found, interlaced=interlaced))
        assert again.interlaced_frame is interlaced
        assert converted(again) == wanted
        assert frame_siting(again) == found


@pytest.mark.parametrize("siting", ["left", "topleft"])
def test_regions_equal_parts_of_the_whole(siting: str) -> None:
    """The chroma location affects pixels at the edges of regions."""
    media = MediaInfo("", "", None, 320, 240, "yuv420p", Fraction(1, 25), None)
    picture = noisy(blank(320, 240, "yuv420p", siting, interlaced=False))
    region = Rect(50, 34, 202, 150)
    whole = PixelConverter(media, pixel_format="yuv444p").convert(picture).reshape(3, 240, 320)
    part = PixelConverter(media, pixel_format="yuv444p", region=region).convert(picture)
    shown = part.reshape(3, region.height, region.width)
    assert np.array_equal(shown, whole[:, region.y1 : region.y2, region.x1 : region.x2])


def test_composed_tiles_keep_the_chroma_location() -> None:
    picture = noisy(blank(128, 96, "yuv420p", "left", interlaced=False))
    composer = TileComposer(Rect(0, 0, 128, 96))
    assert converted(composer.put(picture, Rect(0, 0, 128, 96))) == converted(picture)
