"""`PixelConverter` with frames of every pixel format."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.error import FFmpegError
from av.video import format as video_formats

from tests.support.clips import media_of
from tests.support.selection import one_in
from vfsd.codecs.frames.planes import (
    PIXEL_FORMATS,
    copy_picture,
    fingerprint,
    holds_floats,
    is_croppable,
    is_planar,
    lossless_layout,
    pixel_layout,
    planar_format,
    plane_bytes,
    plane_samples,
    plane_subsampling,
    raw_layout,
)
from vfsd.codecs.frames.to_array import PixelConverter, RawPixelConverter
from vfsd.tiling import Rect

WIDTH, HEIGHT = 112, 80
ALL = Rect(0, 0, WIDTH, HEIGHT)
DOTTED = ("mono", "rgb4_", "bgr4_", "rgb8", "bgr8")
"""So few levels that FFmpeg makes patterns of dots."""
KILLING = ("yaf32be", "yaf32le")
"""FFmpeg ends the process that converts them."""


@cache
def _formats() -> tuple[str, ...]:
    """Formats that FFmpeg can convert to others."""
    return tuple(
        name
        for name in sorted(cast("Any", video_formats).names)
        if name not in KILLING and _is_convertible(name)
    )


def _is_convertible(name: str) -> bool:
    try:
        av.VideoFrame(WIDTH, HEIGHT, name).reformat(format="rgb24")
    except (FFmpegError, ValueError):
        return False
    return True


def _noise(name: str, width: int = WIDTH, height: int = HEIGHT) -> av.VideoFrame:
    picture = av.VideoFrame(width, height, name)
    chance = np.random.default_rng(1)
    for plane in picture.planes:
        plane.update(chance.bytes(plane.buffer_size))
    return picture


def _slope(name: str, box: Rect = ALL) -> av.VideoFrame:
    """A part of a frame with a gentle gradient if FFmpeg can make one, else other content."""
    y, x = np.mgrid[box.y1 : box.y2, box.x1 : box.x2]
    colours = np.stack([40 + x, 200 - x, 60 + y], axis=-1).astype(np.uint8)
    try:
        return av.VideoFrame.from_ndarray(colours, "rgb24").reformat(
            format=name, interpolation="BICUBIC", threads=1
        )
    except FFmpegError:
        picture = av.VideoFrame(box.width, box.height, name)
    order = ">" if name.endswith("be") else "<"
    level = np.array(150, np.uint8)
    if holds_floats(name):
        level = np.array(0.6, f"{order}f{4 if 'f32' in name else 2}")
    elif name.startswith("bayer") and "16" in name:
        level = np.array(40000, f"{order}u2")
    for plane in picture.planes:
        plane.update(level.tobytes() * (plane.buffer_size // level.nbytes))
    return picture


def _planes(data: npt.NDArray[Any], layout: str, width: int, height: int) -> list[Any]:
    """The output of `RawPixelConverter` by planes, each of rows x columns."""
    known = pixel_layout(layout)
    if known.channels:
        return [data]
    across, down = known.subsampled
    chroma = (height // down, width // across)
    pairs = 2 if known.interleaved else 1
    planes, at = [], 0
    for rows, columns in [(height, width), *[(chroma[0], chroma[1] * pairs)] * (2 // pairs)]:
        planes.append(data[at : at + rows * columns].reshape(rows, columns))
        at += rows * columns
    return planes


@pytest.mark.parametrize("layout", one_in(3, PIXEL_FORMATS))
def test_region_equals_part_of_the_whole_in_every_format(layout: str) -> None:
    box = Rect(34, 36, 62, 62)
    known = pixel_layout(layout)
    for name in _formats():
        media, picture = media_of(WIDTH, HEIGHT, name), _noise(name)
        whole = RawPixelConverter(media, pixel_format=layout).convert(picture)
        part = RawPixelConverter(media, pixel_format=layout, region=box).convert(picture)
        mine = _planes(part, layout, box.width, box.height)
        for number, plane in enumerate(_planes(whole, layout, WIDTH, HEIGHT)):
            across, down = known.subsampled if number else (1, 1)
            pairs = 2 if known.interleaved and number else 1
            rows = slice(box.y1 // down, box.y2 // down)
            columns = slice(box.x1 // across * pairs, box.x2 // across * pairs)
            assert np.array_equal(mine[number], plane[rows, columns]), name


def _levels(name: str, width: int, height: int) -> tuple[av.VideoFrame, list[npt.NDArray[Any]]]:
    """A planar frame, and the samples of each plane."""
    picture, chance = av.VideoFrame(width, height, name), np.random.default_rng(1)
    bits = picture.format.components[0].bits
    planes = plane_samples(picture)
    samples = [chance.integers(0, 1 << bits, plane.shape) for plane in planes]
    for plane, levels in zip(planes, samples, strict=True):
        plane[...] = levels
    return picture, samples


@pytest.mark.parametrize(("width", "height"), [(WIDTH, HEIGHT), (67, 45)])
@pytest.mark.parametrize("region", [None, Rect(16, 8, 64, 44), Rect(20, 12, 60, 40)])
def test_lossless_formats_keep_every_sample(width: int, height: int, region: Rect | None) -> None:
    for name in filter(is_planar, _formats()):
        media = media_of(width, height, name)
        kept = lossless_layout(media)
        if kept.lost not in (None, "transparency"):
            continue
        picture, samples = _levels(name, width, height)
        found = RawPixelConverter(media, pixel_format=kept.layout, region=region).convert(picture)
        area = region or media.frame_rect
        if kept.lost is not None:
            samples = samples[: raw_layout(kept.layout).planes]
        if raw_layout(kept.layout).channels:  # bgr0 or bgra
            cut = [plane[area.y1 : area.y2, area.x1 : area.x2] for plane in samples]
            expected = [cut[1], cut[0], cut[2], *cut[3:]]
            assert np.array_equal(found[..., : len(cut)], np.stack(expected, axis=-1)), name
            continue
        at = 0
        for number, plane in enumerate(samples):
            across, down = plane_subsampling(picture, number)
            rows = slice(area.y1 // down, -(-area.y2 // down))
            part = plane[rows, area.x1 // across : -(-area.x2 // across)]
            assert np.array_equal(found[at : at + part.size].reshape(part.shape), part), name
            at += part.size
        assert at == found.size, name


@pytest.mark.parametrize("layout", one_in(2, ["rgb24", "rgb48", "gray", "yuv444p"]))
def test_scaled_region_ignores_its_surroundings_in_every_format(layout: str) -> None:
    box = Rect(32, 32, 96, 64)
    for name in _formats():
        if name.startswith(DOTTED):
            continue
        picture, alone = _slope(name), _slope(name, box)
        found, right = (
            PixelConverter(
                media_of(shown.width, shown.height, name),
                pixel_format=layout,
                region=region,
                size=(40, 24),
            ).convert(shown)
            for shown, region in ((picture, box), (alone, None))
        )
        assert _error(found, right) < 0.008, name


@pytest.mark.parametrize("layout", ["rgb24", "gray", "yuv420p"])
def test_scaled_region_of_planes_uses_only_its_samples(layout: str) -> None:
    """This includes chroma shared by four pixels in a row."""
    box = Rect(32, 32, 96, 64)
    for name in filter(is_planar, _formats()):
        picture, alone = _noise(name), av.VideoFrame(box.width, box.height, name)
        planes = zip(plane_bytes(picture), plane_bytes(alone), strict=True)
        for number, (whole, part) in enumerate(planes):
            across, down = plane_subsampling(picture, number)
            wide = whole.shape[1] * across // WIDTH
            columns = slice(box.x1 // across * wide, box.x2 // across * wide)
            part[...] = whole[box.y1 // down : box.y2 // down, columns]
        found, right = (
            PixelConverter(
                media_of(shown.width, shown.height, name),
                pixel_format=layout,
                region=region,
                size=(40, 24),
            ).convert(shown)
            for shown, region in ((picture, box), (alone, None))
        )
        assert np.array_equal(found, right), name


def _error(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """The mean difference, relative to the highest level."""
    difference = np.abs(one.astype(float) - other.astype(float)).mean()
    return float(difference / np.iinfo(one.dtype).max)


@pytest.mark.parametrize(
    "layout", one_in(3, ["rgb24", "bgr24", "rgb48", "gray", "gray16", "yuv420p"])
)
def test_conversion_of_packed_formats_matches_planar(layout: str) -> None:
    """FFmpeg's own conversions between two formats are correct, or not used."""
    for name in _formats():
        planar = planar_format(name)
        if planar is None or name.startswith((*DOTTED, "grayf", "yaf")):
            continue
        picture = _slope(name)
        planes = picture.reformat(format=planar, interpolation="BICUBIC", threads=1)
        found, right = (
            PixelConverter(media_of(WIDTH, HEIGHT, shown.format.name), pixel_format=layout).convert(
                shown
            )
            for shown in (picture, planes)
        )
        assert _error(found, right) < 0.015, name


def test_byte_order_makes_no_difference() -> None:
    for name in _formats():
        twin = f"{name[:-2]}le"
        if not name.endswith("be") or twin not in _formats():
            continue
        picture = _slope(name)
        other = av.VideoFrame(WIDTH, HEIGHT, twin)
        bits = max(component.bits for component in picture.format.components)
        wide = "u4" if bits > 16 else "u2"
        for plane, copy in zip(picture.planes, other.planes, strict=True):
            copy.update(np.frombuffer(bytes(plane), f">{wide}").astype(f"<{wide}").tobytes())
        for layout in PIXEL_FORMATS:
            one, two = (
                PixelConverter(
                    media_of(WIDTH, HEIGHT, shown.format.name), pixel_format=layout
                ).convert(shown)
                for shown in (picture, other)
            )
            assert np.array_equal(one, two), (name, layout)


@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kind", ["grayf", "yaf"])
def test_float_gray_ranges_from_0_to_1(kind: str, bits: int, order: str) -> None:
    name = f"{kind}{bits}{order}"
    picture = av.VideoFrame(64, 48, name)
    levels = np.linspace(-0.5, 1.5, 64 * 48).reshape(48, 64)
    levels[0, :2] = np.inf, np.nan
    shown = levels[..., np.newaxis]
    if kind == "yaf":
        shown = np.concatenate([shown, np.full_like(shown, 0.3)], axis=-1)
    samples = shown.astype(f"{'<' if order == 'le' else '>'}f{bits // 8}")
    picture.planes[0].update(samples.tobytes())
    levels[0, :2] = 1, 0
    for layout, highest in (("gray", 255), ("gray16", 65535), ("rgb24", 255), ("yuv444p", 255)):
        converter = PixelConverter(media_of(64, 48, name), pixel_format=layout)
        found = converter.convert(picture)[:48].reshape(48, 64, -1)[..., 0]
        error = np.abs(found - levels.clip(0, 1) * highest).max()
        assert error <= highest * (0.0005 if layout == "gray16" else 0.006), layout
        region = Rect(3, 5, 40, 41)
        part = PixelConverter(media_of(64, 48, name), pixel_format=layout, region=region)
        found = found[region.y1 : region.y2, region.x1 : region.x2]
        assert np.array_equal(part.convert(picture)[:36].reshape(36, 37, -1)[..., 0], found)


def test_rows_have_no_padding() -> None:
    """This includes an odd number of columns."""
    for name in _formats():
        if name.startswith("bayer"):
            continue  # FFmpeg leaves an odd row of it as it finds it
        picture = _noise(name, 49, 33)
        copy = av.VideoFrame(49, 33, name)
        for plane in copy.planes:
            plane.update(bytes(plane.buffer_size))
        copy_picture(picture, copy)
        assert fingerprint(copy) == fingerprint(picture), name
        one, two = (shown.reformat(format="gbrp", threads=1) for shown in (picture, copy))
        assert fingerprint(one) == fingerprint(two), name


def test_croppable_formats_have_unshared_samples() -> None:
    cropped = {name for name in _formats() if is_croppable(name)}
    assert {"gray", "gray16be", "yuv420p", "yuva444p12le", "gbrap", "yuv440p10le"} <= cropped
    others = {"pal8", "monob", "monow", "grayf32le", "grayf16le", "gbrpf32le", "nv12", "yuv411p"}
    assert not others & cropped
    assert [
        planar_format(name) for name in ("p010le", "rgba", "ya16be", "y210le", "pal8", "gray")
    ] == [*("yuv420p10le", "gbrp", "gray16le", "yuv422p10le", "gbrp", None)]
    assert [planar_format(name) for name in ("yuv411p", "uyyvyy411", "monob")] == [
        *(None, "yuv411p", "gbrp")
    ]


@pytest.mark.parametrize("height", [4, 7, 8, 14, 16, 24])
@pytest.mark.parametrize("size", [None, (31, 8), (31, 14), (33, 16)])
def test_sixteen_bits_at_odd_width_match_eight_bits(
    height: int, size: tuple[int, int] | None
) -> None:
    """This includes very few rows of chroma."""
    colour = np.full((height, 67, 3), [48, 96, 192], np.uint8)
    for name in ("yuv420p", "yuv420p10le", "yuv440p", "yuv410p", "nv12", "p010be", "yuv422p"):
        picture = av.VideoFrame.from_ndarray(colour, "rgb24").reformat(
            format=name, interpolation="BICUBIC", threads=1
        )
        media = media_of(67, height, name)
        eight, deep = (
            PixelConverter(media, pixel_format=layout, size=size).convert(picture).astype(int)
            for layout in ("rgb24", "rgb48")
        )
        assert np.abs(deep - 257 * eight).max() < 1000, name
