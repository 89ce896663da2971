"""Pictures of our own are converted as the pictures that they are like."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.selection import one_in
from vfsd.codecs.cells.lossless import LOSSLESS_PIXEL_FORMATS
from vfsd.codecs.frames.chroma_siting import SITINGS, blank, blank_like, frame_siting
from vfsd.codecs.frames.frame_transforms import TileComposer
from vfsd.codecs.frames.planes import fingerprint, plane_bytes
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.core.model import MediaInfo
from vfsd.tiling import Rect

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
def test_a_copy_is_converted_as_the_picture_is(name: str) -> None:
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


def test_chroma_lies_elsewhere() -> None:
    """Else these tests would show nothing."""
    there = {siting: blank(64, 48, "yuv420p", siting, interlaced=False) for siting in SITINGS}
    results = {tuple(converted(noisy(picture))) for picture in there.values()}
    assert len(results) == 6  # what is not told is taken for the center


@pytest.mark.parametrize("interlaced", one_in(4, [False, True]))
@pytest.mark.parametrize("pixel_format", LOSSLESS_PIXEL_FORMATS)
def test_what_is_found_makes_the_same(pixel_format: str, interlaced: bool) -> None:
    for siting in SITINGS:
        picture = noisy(blank(64, 50, pixel_format, siting, interlaced=interlaced))
        wanted = converted(picture)
        found = frame_siting(picture)
        again = noisy(blank(64, 50, pixel_format, found, interlaced=interlaced))
        assert again.interlaced_frame is interlaced
        assert converted(again) == wanted
        assert frame_siting(again) == found


@pytest.mark.parametrize("siting", ["left", "topleft"])
def test_regions_are_parts_of_the_whole(siting: str) -> None:
    """Where chroma lies decides about pixels at their edges."""
    media = MediaInfo("", "", None, 320, 240, "yuv420p", Fraction(1, 25), None)
    picture = noisy(blank(320, 240, "yuv420p", siting, interlaced=False))
    region = Rect(50, 34, 202, 150)
    whole = PixelConverter(media, pixel_format="yuv444p").convert(picture).reshape(3, 240, 320)
    part = PixelConverter(media, pixel_format="yuv444p", region=region).convert(picture)
    shown = part.reshape(3, region.height, region.width)
    assert np.array_equal(shown, whole[:, region.y1 : region.y2, region.x1 : region.x2])


def test_tiles_are_put_together_with_chroma_where_it_lies() -> None:
    picture = noisy(blank(128, 96, "yuv420p", "left", interlaced=False))
    composer = TileComposer(Rect(0, 0, 128, 96))
    assert converted(composer.put(picture, Rect(0, 0, 128, 96))) == converted(picture)
