"""The grammar of view names: valid names, and rejection of all others."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.output_formats import CODECS, CONTAINERS, PIXEL_LAYOUTS, UNCOMPRESSED_LAYOUTS
from vfsd.core.view_request import (
    HIGHEST_RATE,
    View,
    ViewForm,
    ViewSpec,
    format_view_path,
    parse_still_name,
    parse_view_path,
)
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

MP4 = ViewForm("mp4")
RGB = ViewForm("raw", None, "rgb24")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("full.mkv", ViewSpec(View(), ViewForm("matroska"))),
        ("t=10-20.mp4", ViewSpec(View(span=(Fraction(10), Fraction(20))), MP4)),
        ("t=1.25-.mp4", ViewSpec(View(span=(Fraction(5, 4), None)), MP4)),
        ("t=1:00-1:02:03.5.mp4", ViewSpec(View(span=(Fraction(60), Fraction(7447, 2))), MP4)),
        ("frames=0-300.mp4", ViewSpec(View(frames=(0, 300, 1)), MP4)),
        ("frames=10--2.mp4", ViewSpec(View(frames=(10, None, 2)), MP4)),
        ("frames=10-50-5.y4m", ViewSpec(View(frames=(10, 50, 5)), ViewForm("y4m"))),
        (
            "roi=400x300+600+300,size=200x150,fps=5.h264",
            ViewSpec(
                View(region=Rect(600, 300, 1000, 600), fps=Fraction(5)),
                ViewForm("h264", "h264"),
                (200, 150),
            ),
        ),
        (
            "fps=30000:1001,codec=hevc.mp4",
            ViewSpec(View(fps=Fraction(30000, 1001)), ViewForm("mp4", "hevc")),
        ),
        ("size=640x0,pix=nv12.raw", ViewSpec(View(), ViewForm("raw", None, "nv12"), (640, 0))),
        ("full.rgb", ViewSpec(View(), RGB)),
        ("sound=no.mkv", ViewSpec(View(), ViewForm("matroska", sound=False))),
        ("full.yuv", ViewSpec(View(), ViewForm("raw", None, "yuv420p"))),
        ("codec=h264.h264", ViewSpec(View(), ViewForm("h264", "h264"))),
        ("psnr=45,codec=av1.mp4", ViewSpec(View(), ViewForm("mp4", "av1"), None, 45.0)),
        ("psnr=inf.rgb", ViewSpec(View(), RGB, None, math.inf)),
        (
            "codec=ffv1,pix=yuv444p.mkv",
            ViewSpec(View(), ViewForm("matroska", "ffv1", "yuv444p")),
        ),
        ("pix=yuv420p10.y4m", ViewSpec(View(), ViewForm("y4m", None, "yuv420p10"))),
        ("pix=rgb48.raw", ViewSpec(View(), ViewForm("raw", None, "rgb48"))),
    ],
)
def test_names(name: str, meant: ViewSpec) -> None:
    assert parse_view_path(name) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("320x180.rgb", ViewSpec(View(), RGB, (320, 180))),
        ("1280x720x640y360.rgb", ViewSpec(View(), RGB, (1280, 720), crop=Rect(0, 0, 640, 360))),
        (
            "1280x720s5e20x640y720.rgb",
            ViewSpec(
                View(span=(Fraction(5), Fraction(20))),
                RGB,
                (1280, 720),
                crop=Rect(0, 0, 640, 720),
            ),
        ),
        ("999x999r99.h264", ViewSpec(View(fps=Fraction(99)), ViewForm("h264", "h264"), (999, 999))),
        (
            "1920x1080r30fyuv420.hevc",
            ViewSpec(View(fps=Fraction(30)), ViewForm("hevc", "hevc", "yuv420p"), (1920, 1080)),
        ),
        (
            "960x540s0e60.h264",
            ViewSpec(View(span=(Fraction(0), Fraction(60))), ViewForm("h264", "h264"), (960, 540)),
        ),
        ("448x448r.raw", ViewSpec(View(), RGB, (448, 448))),
        ("256h.h264", ViewSpec(View(), ViewForm("h264", "h264"), (0, 256))),
        ("64x48x10-42y4-28.rgb", ViewSpec(View(), RGB, (64, 48), crop=Rect(10, 4, 42, 28))),
        ("64x48fyuv420p10.hevc", ViewSpec(View(), ViewForm("hevc", "hevc", "yuv420p10"), (64, 48))),
        ("64x48fyuv444.y4m", ViewSpec(View(), ViewForm("y4m", None, "yuv444p"), (64, 48))),
        ("64x48fgray.raw", ViewSpec(View(), ViewForm("raw", None, "gray"), (64, 48))),
    ],
)
def test_names_of_the_vfs_paper(name: str, meant: ViewSpec) -> None:
    assert parse_view_path(name) == meant


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".mp4",
        "mp4",
        "full",
        "full.MP4",
        "full.avi",
        "full.png",
        "full.mp4.txt",
        "xfull.mp4",
        "full,t=1-2.mp4",
        "t=1-2,.mp4",
        "t=1-2,t=3-4.mp4",
        "t=1.mp4",
        "t=-2.mp4",
        "t=1-2-3.mp4",
        "t=1..2-3.mp4",
        "t=::1-2.mp4",
        "t=1s-2s.mp4",
        "t= 1-2.mp4",
        "t=\u0661-\u0662.mp4",
        "frames=1.5-2.mp4",
        "frames=a-b.mp4",
        "roi=10x10.mp4",
        "roi=-1x10+0+0.mp4",
        "roi=everything.mp4",
        "size=10x.mp4",
        "fps=.mp4",
        "fps=5:0.mp4",
        "fps=30000/1001.mp4",
        "fps=fast.mp4",
        "codec=vp9.mp4",
        "codec=h264.hevc",
        "codec=h264.rgb",
        "pix=rgb24.mp4",
        "sound=no.h264",
        "sound=yes.mp4",
        "sound=no,pix=rgb24.raw",
        "pix=purple.raw",
        "pix=rgb24.y4m",
        "codec=mjpeg,pix=yuv420p10.mkv",
        "pix=yuv444p.mp4",
        "psnr=.mp4",
        "psnr=-3.mp4",
        "psnr=high.mp4",
        "speed=2.mp4",
        "1280x720 .rgb",
        "x1280x720.rgb",
        "1280x720s5.rgb",
        "1280x720x640.rgb",
        "1280x720fpurple.rgb",
        f"t=0-{'9' * 5000}.mp4",
        f"{'9' * 5000}x1.rgb",
        "t=1-2\n.mp4",
    ],
)
def test_invalid_view_names_are_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        parse_view_path(name)


@pytest.mark.parametrize(
    "name",
    [
        "t=20-10.mp4",
        "t=10-10.mp4",
        "frames=7-7.mp4",
        "frames=0-10-0.mp4",
        "roi=0x10+0+0.mp4",
        "fps=0.mp4",
        "size=0x0.mp4",
        "t=1-2,frames=3-4.mp4",
        "frames=0-10,fps=5.mp4",
        "64x48s9e3.rgb",
        "64x48x0y10.rgb",
        "64x48fyuv422.hevc",
    ],
)
def test_empty_request_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError):
        parse_view_path(name)


def test_names_of_frames() -> None:
    assert parse_still_name("000123.png") == (123, "png")
    assert parse_still_name("7.npy") == (7, "npy")
    for name in ("000123", "x1.png", "1.gif", "-1.png", "1.5.png", "1.png.png", "9" * 13 + ".png"):
        with pytest.raises(NotFoundError):
            parse_still_name(name)


def test_missing_dimension_follows_the_region() -> None:
    assert parse_view_path("size=640x0.mp4").resolve(1920, 1080).size == (640, 360)
    assert parse_view_path("256h.h264").resolve(640, 480).size == (342, 256)
    assert parse_view_path("roi=100x50+0+0,size=40x0.mp4").resolve(1920, 1080).size == (40, 20)
    assert parse_view_path("full.mp4").resolve(1920, 1080).size is None


@pytest.mark.parametrize(
    ("name", "of", "region"),
    [
        ("1280x720x640y360.rgb", (1920, 1080), "roi=960x540+0+0,size=640x360,pix=rgb24.raw"),
        ("1280x720x640y720.rgb", (1280, 720), "roi=640x720+0+0,pix=rgb24.raw"),
        ("960x540x480-960y0-54.h264", (1920, 1080), "roi=960x108+960+0,size=480x54.h264"),
        ("0x540x480y54.yuv", (1920, 1080), "roi=960x108+0+0,size=480x54,pix=yuv420p.raw"),
        ("1280x960r5s1e2x640y480.y4m", (640, 480), "t=1-2,roi=320x240+0+0,size=640x480,fps=5.y4m"),
    ],
)
def test_crops_of_the_vfs_paper_refer_to_the_scaled_frame(
    name: str, of: tuple[int, int], region: str
) -> None:
    """The output has the size of the crop, and shows that part of the scaled frame."""
    assert format_view_path(parse_view_path(name).without_crop(*of)) == region
    assert parse_view_path(name).resolve(*of) == parse_view_path(region).resolve(*of)


def test_crop_within_one_pixel_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="inside a pixel") as refused:
        parse_view_path("448x448x100y100.rgb").resolve(1920, 1080)
    assert refused.value.hint is not None
    assert "roi=429x241+0+0,size=100x100" in refused.value.hint


def test_crop_outside_the_scaled_frame_is_out_of_range() -> None:
    """This holds even if the unscaled frame has those pixels."""
    with pytest.raises(OutOfRangeError, match="320x180"):
        parse_view_path("320x180x640y360.rgb").resolve(1920, 1080)


_decimals = st.builds(
    lambda units, digits: Fraction(units, 10**digits),
    st.integers(0, 10**9 - 1),
    st.integers(0, 18),
)
_spans = st.tuples(_decimals, st.none() | _decimals).filter(
    lambda span: span[1] is None or span[1] > span[0]
)
_frames = st.tuples(
    st.integers(0, 10**6), st.none() | st.integers(10**6 + 1, 10**9 - 1), st.integers(1, 1000)
)
_regions = st.builds(
    lambda x, y, w, h: Rect(x, y, x + w, y + h),
    *(st.integers(0, 10**5),) * 2,
    *(st.integers(1, 10**5),) * 2,
)
_rates = st.one_of(
    _decimals,
    st.builds(Fraction, st.integers(1, 10**9 - 1), st.integers(1, 10**9 - 1)),
).filter(lambda rate: 0 < rate <= HIGHEST_RATE)
_sizes = st.tuples(*(st.integers(0, 10**5),) * 2).filter(any)
_encoded = [
    ViewForm(container, codec, layout)
    for container in ("mp4", "matroska")
    for codec in CONTAINERS[container]
    for layout in (None, *CODECS[codec])
]
_forms = st.one_of(
    st.builds(
        replace,
        st.sampled_from([*_encoded, ViewForm("mp4"), ViewForm("matroska")]),
        sound=st.booleans(),
    ),
    st.sampled_from([ViewForm("h264", "h264"), ViewForm("hevc", "hevc", "yuv420p10")]),
    st.builds(ViewForm, st.just("y4m"), st.none(), st.sampled_from([None, *UNCOMPRESSED_LAYOUTS])),
    st.builds(ViewForm, st.just("raw"), st.none(), st.sampled_from(PIXEL_LAYOUTS)),
)


@st.composite
def requests(draw: st.DrawFn) -> ViewSpec:
    by_frames = draw(st.booleans())
    view = View(
        span=None if by_frames else draw(st.none() | _spans),
        frames=draw(_frames) if by_frames else None,
        region=draw(st.none() | _regions),
        fps=None if by_frames else draw(st.none() | _rates),
    )
    psnr = st.none() | st.sampled_from([0.0, 36.5, 45.0, math.inf])
    return ViewSpec(view, draw(_forms), draw(st.none() | _sizes), draw(psnr))


@given(requests())
def test_requests_round_trip_through_names(request: ViewSpec) -> None:
    name = format_view_path(request)
    assert "/" not in name
    assert parse_view_path(name) == request


@given(_regions, _sizes, st.none() | _rates, _spans, st.sampled_from(PIXEL_LAYOUTS))
def test_crops_round_trip_through_names(
    crop: Rect,
    size: tuple[int, int],
    fps: Fraction | None,
    span: tuple[Fraction, Fraction | None],
    layout: str,
) -> None:
    fps = fps if fps is None else Fraction(round(fps * 1000) or 1, 1000)
    view = View(span=None if span[1] is None else span, fps=fps)
    request = ViewSpec(view, ViewForm("raw", None, layout), size, crop=crop)
    assert parse_view_path(format_view_path(request)) == request


@given(st.text(max_size=40))
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    for name in (text, f"{text}.mp4", f"t={text}.mp4", f"roi={text}.rgb", f"1x1{text}.rgb"):
        try:
            request = parse_view_path(name)
        except (NotFoundError, UsageError):
            continue
        assert parse_view_path(format_view_path(request)) == request
