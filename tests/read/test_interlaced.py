"""Interlaced frames are scaled and converted alike from every source."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from sample_videos import FOLDER
from tests.support.clips import media_of
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.frames.color import SITINGS, InterlaceSetter, blank, blank_like
from vfsd.codecs.frames.planes import copy_picture, fingerprint, plane_samples
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.probing.probe import examine
from vfsd.core.pixel_array import Pixels
from vfsd.derive.tile_encoder import TileSettings
from vfsd.tiling import Rect

FRAMES = 20
FINE = TileSettings(psnr=50)


@pytest.fixture
def video(store: Store, tmp_path: Path) -> Video:
    """A video of 320x240 with rows that alternate between two fields."""
    path = tmp_path / "fields.mp4"
    write_fields(path, interlaced=True)
    video = store.ingest(path)
    assert video.original.media.interlaced
    return video


def write_fields(path: Path, *, interlaced: bool) -> None:
    with av.open(str(FOLDER / "traffic.mp4")) as container:
        moments = [frame.to_ndarray() for frame in container.decode(video=0)]
    told = f"interlaced={int(interlaced)}:keyint=10:bframes=0:qp=10"
    settings = {"x264-params": told, "flags": "+ildct+ilme"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 25, settings)
        stream.width, stream.height = 320, 240
        for number in range(FRAMES):
            woven = moments[number].copy()
            woven[1::2] = moments[number + 12][1::2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(woven, "yuv420p")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def least_psnr(video: Video, form: str, **view: object) -> float:
    """The lowest PSNR of any frame, for a read against the same read from the original."""
    found = video.read(format=form, **view)  # type: ignore[arg-type]
    assert any(source.segment is not None for source in video.explain(format=form, **view).sources)  # type: ignore[arg-type]
    exact = video.read(format=form, psnr=math.inf, **view)  # type: ignore[arg-type]
    rows = found.data.shape[1] if form[0] in "rg" else exact.data.shape[2] * 3 // 4  # of luma
    return min(
        _psnr(*pair) for pair in zip(found.data[:, :rows], exact.data[:, :rows], strict=True)
    )


def _psnr(data: Pixels, exact: Pixels) -> float:
    error = np.square(data.astype(float) - exact.astype(float)).mean()
    return 10 * math.log10(np.iinfo(exact.dtype).max ** 2 / max(error, 1e-9))


@pytest.mark.parametrize(
    "form", one_in(3, ["gray", "gray16", "yuv420p", "yuv444p", "nv12", "rgb24", "rgb48"])
)
def test_rendition_equals_the_scaled_original(store: Store, video: Video, form: str) -> None:
    video.renditions.make((160, 120), settings=FINE)
    take_tiles(store)
    for view in (
        {"size": (160, 120)},
        {"size": (80, 60)},
        {"size": (80, 60), "region": Rect(0, 0, 160, 120)},
    ):
        # Chroma is halved in resolution twice.
        assert least_psnr(video, form, **view) > (30 if "rgb" in form else 44), view


@pytest.mark.parametrize("form", one_in(3, ["gray", "yuv420p", "yuv444p", "rgb24", "rgb48"]))
def test_tiles_are_scaled_and_converted_like_the_original(
    store: Store, video: Video, form: str
) -> None:
    video.tiles.retile("uniform:2x2", settings=FINE)
    take_tiles(store)
    for view in ({}, {"size": (160, 120)}, {"size": (90, 70), "region": Rect(1, 3, 151, 201)}):
        assert least_psnr(video, form, **view) > 42, view


@pytest.mark.parametrize("order", one_in(2, [[True], [True, False], [False, True]]))
@pytest.mark.parametrize("codec", one_in(2, ["fast", "stitchable"]))
def test_reported_psnr_of_chroma_matches_the_original(
    store: Store, tmp_path: Path, order: list[bool], codec: str, kvazaar: None
) -> None:
    """This includes decoders that report some frames as interlaced and others not."""
    pieces = []
    for interlaced in order:
        write_fields(tmp_path / "piece.h264", interlaced=interlaced)
        pieces.append((tmp_path / "piece.h264").read_bytes())
    (tmp_path / "all.h264").write_bytes(b"".join(pieces))
    video = store.ingest(tmp_path / "all.h264")
    video.tiles.retile("uniform:1x1", settings=TileSettings(codec))
    take_tiles(store)
    for form in ("gray", "rgb24"):
        found, exact = (video.read(format=form, psnr=psnr) for psnr in (10, math.inf))
        errors = np.square(found.data.astype(float) - exact.data.astype(float))
        worst = 10 * math.log10(255**2 / errors.mean(axis=(1, 2)).max())
        assert found.psnr == pytest.approx(worst, abs=0.01)


@pytest.mark.parametrize("first", [True, False])
def test_all_frames_are_scaled_like_the_first(store: Store, tmp_path: Path, first: bool) -> None:
    path = tmp_path / "all.h264"
    with open(path, "wb") as both:
        for interlaced in (first, not first):
            write_fields(tmp_path / "piece.h264", interlaced=interlaced)
            both.write((tmp_path / "piece.h264").read_bytes())
    video = store.ingest(path)
    assert video.original.media.interlaced == first
    found = video.read(size=(160, 120), format="yuv420p", psnr=math.inf).data
    scanning = InterlaceSetter(interlaced=first)
    with av.open(str(path)) as container:
        pictures = list(container.decode(video=0))
        assert {one.interlaced_frame for one in pictures} == {True, False}
        for data, one in zip(found, pictures, strict=True):
            scaled = scanning.convert(one).reformat(160, 120, interpolation=Interpolation.AREA)
            assert np.array_equal(data, scaled.to_ndarray())


@pytest.mark.parametrize("form", one_in(3, ["rgb24", "bgr24", "rgb48"]))
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p"])
@pytest.mark.parametrize("height", one_in(2, [44, 46, 47, 49]))
def test_regions_of_odd_fields_equal_parts_of_the_frame(
    video: Video, height: int, pixel_format: str, form: str
) -> None:
    picture = blank(64, height, pixel_format, "left", interlaced=True)
    rng = np.random.default_rng(5)
    for plane in plane_samples(picture):
        plane[...] = rng.integers(16, 235, plane.shape)
    media = replace(video.original.media, width=64, height=height, pixel_format=pixel_format)
    whole = PixelConverter(media, pixel_format=form).convert(picture)
    for rect in (Rect(0, 0, 32, 16), Rect(5, 3, 40, 30), Rect(16, 20, 64, height)):
        part = PixelConverter(media, pixel_format=form, region=rect).convert(picture)
        assert np.array_equal(part, whole[rect.y1 : rect.y2, rect.x1 : rect.x2]), rect
    if form == "bgr24":
        rgb = PixelConverter(media, pixel_format="rgb24").convert(picture)
        assert np.array_equal(whole[..., ::-1], rgb)


def test_tiles_of_odd_fields_reach_their_reported_psnr(store: Store, tmp_path: Path) -> None:
    """Fields of 119 rows; all tiles have fewer."""
    video = store.ingest(write_odd_fields(tmp_path / "odd.mkv", "yuv422p"))
    assert video.original.media.interlaced
    video.tiles.retile("uniform:2x2", settings=TileSettings(quality=14))
    take_tiles(store)
    for form in ("rgb24", "bgr24"):
        assert video.explain(format=form, psnr=30).plan.tiled
        found, exact = (video.read(format=form, psnr=psnr) for psnr in (30, math.inf))
        errors = np.square(found.data.astype(float) - exact.data).mean(axis=(1, 2))
        assert 10 * math.log10(255**2 / errors.max()) >= found.psnr - 0.01


@pytest.mark.parametrize("form", one_in(3, ["rgb24", "yuv444p", "rgb48"]))
@pytest.mark.parametrize("size", [(160, 120), (240, 180), (320, 120)])
def test_scaling_uses_no_chroma_below_the_frame(
    store: Store, tmp_path: Path, size: tuple[int, int], form: str
) -> None:
    """The last pair of rows of a field, which shares chroma, may lack its second row."""
    path = write_odd_fields(tmp_path / "odd.mkv", "yuv420p")
    video = store.ingest(path)
    converter = PixelConverter(video.original.media, pixel_format=form, size=size)
    with av.open(str(path)) as container:
        picture = next(container.decode(video=0))
    copy = blank_like(picture, picture.width, picture.height)
    copy_picture(picture, copy)  # into memory with other data below
    assert np.array_equal(converter.convert(picture), converter.convert(copy))
    video.renditions.make((160, 120), settings=FINE)
    take_tiles(store)
    assert not video.explain(format=form, size=size).plan.tiled


def write_odd_fields(path: Path, pixel_format: str) -> Path:
    colours = np.array([[255, 0, 0], [0, 130, 0], [70, 70, 255], [255, 0, 255]], np.uint8)
    y, x = np.mgrid[:238, :320]
    with av.open(str(path), "w") as container:
        options = {"flags": "+ildct+ilme", "qscale": "2", "g": "10", "bf": "0"}
        stream = container.add_stream("mpeg2video", 25, options)
        stream.width, stream.height, stream.pix_fmt = 320, 238, pixel_format
        for number in range(10):
            stripes = colours[((x + 2 * number) // 13 + y // 9) % 4]
            picture = av.VideoFrame.from_ndarray(stripes, "rgb24").reformat(format=pixel_format)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def test_fields_cut_by_a_rendition_come_from_the_original(store: Store, video: Video) -> None:
    video.renditions.make((160, 120), settings=FINE)
    take_tiles(store)
    for size, region in (
        ((60, 45), Rect(0, 0, 240, 180)),  # the first field would have half a row more
        ((80, 60), Rect(0, 2, 160, 122)),  # and begin with a row of the second field
    ):
        sources = video.explain(size=size, region=region).sources
        assert all(source.segment is None for source in sources)


def test_all_pixel_formats_are_scaled_alike(video: Video) -> None:
    gray = video.read(size=(160, 120), format="gray16", psnr=math.inf).data[..., 0] / 257
    luma = video.read(size=(160, 120), format="yuv420p").data[:, :120].astype(float)
    assert _psnr((luma - 16) / 219 * 255, gray.clip(0, 255).astype(np.uint8)) > 45


def test_stills_and_views_are_scaled_field_by_field(video: Video) -> None:
    whole = video.read(frames=range(4), format="yuv420p").data[:, :240]
    shown = video.read(frames=range(4), format="yuv420p", size=(320, 120)).data[:, :120]
    with video.views.open("frames=0-4,size=320x120,pix=yuv420p.raw") as file:
        samples = np.frombuffer(file.read(), np.uint8).reshape(4, 180, 320)
    assert np.array_equal(samples[:, :120], shown)
    # Means of two rows of one field, not of two fields.
    fields = whole.reshape(4, 60, 2, 2, 320).astype(float).mean(axis=2)
    assert _psnr(shown, fields.reshape(4, 120, 320).round().astype(np.uint8)) > 40


@pytest.mark.parametrize("region", [Rect(0, 0, 64, 48), Rect(6, 4, 62, 36)])
@pytest.mark.parametrize(
    ("packed", "planar"),
    [
        *(("uyvy422", "yuv422p"), ("yuyv422", "yuv422p"), ("y210le", "yuv422p10le")),
        *(("rgb24", "gbrp"), ("bgra", "gbrp"), ("rgb48le", "gbrp16le"), ("ayuv", "yuv444p")),
    ],
)
def test_packed_frames_are_scaled_field_by_field(packed: str, planar: str, region: Rect) -> None:
    """The result equals that of planar samples, whether or not the frame is flagged as
    interlaced."""
    moments = np.zeros((48, 64, 3), np.uint8)
    moments[0::2, :30], moments[1::2, 20:] = (200, 90, 120), (80, 160, 210)
    picture = av.VideoFrame.from_ndarray(moments, "rgb24").reformat(format=packed)
    in_planes = picture.reformat(format=planar)
    for form in ("rgb24", "gray", "yuv420p"):
        for size in ((32, 16), (48, 40)):
            shown, right = (
                PixelConverter(
                    replace(media_of(64, 48, one.format.name), interlaced=True),
                    pixel_format=form,
                    region=region,
                    size=size,
                ).convert(one)
                for one in (picture, in_planes)
            )
            assert np.abs(shown.astype(int) - right).max() <= 1


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj422p", "yuv444p10le", "gray", "gray10le"])
@pytest.mark.parametrize("siting", SITINGS[:3])
def test_frames_report_the_interlacing_of_the_video(pixel_format: str, siting: str) -> None:
    rng = np.random.default_rng(3)
    told, untold = (blank(96, 64, pixel_format, siting, interlaced=so) for so in (True, False))
    for plane, same in zip(plane_samples(told), plane_samples(untold), strict=True):
        plane[...] = same[...] = rng.integers(0, 200, plane.shape)
    for known, wanted, other in ((True, told, untold), (False, untold, told)):
        scanning = InterlaceSetter(interlaced=known)
        assert scanning.convert(wanted) is wanted
        made = scanning.convert(other)
        assert made.interlaced_frame is known
        for form in ("rgb24", "yuv444p"):
            one, two = (p.reformat(48, 32, form, threads=1) for p in (made, wanted))
            assert fingerprint(one) == fingerprint(two)


def test_unaligned_region_keeps_the_chroma_of_its_field(video: Video) -> None:
    """Where a field has one color, its scaled chroma has one color as well."""
    picture = blank(64, 64, "yuv420p", "left", interlaced=True)
    for number, plane in enumerate(plane_samples(picture)):
        plane[0::2], plane[1::2] = (90, 160) if number else (100, 150)
    media = video.original.media
    for y in range(5):
        converter = PixelConverter(
            replace(media, width=64, height=64),
            pixel_format="yuv444p",
            region=Rect(1, y, 33, y + 32),
            size=(16, 16),
        )
        planes = converter.convert(picture).reshape(3, 16, 16)
        for plane, levels in zip(planes, ((100, 150), (90, 160), (90, 160)), strict=True):
            first, second = levels if y % 2 == 0 else levels[::-1]
            assert np.all(plane[0::2] == first), (y, plane[:, 0])
            assert np.all(plane[1::2] == second)


def test_lossless_views_do_not_claim_to_be_progressive(
    video: Video, store: Store, tmp_path: Path
) -> None:
    progressive = store.ingest(FOLDER / "traffic.mp4")
    for shown, scanning in ((video, b"I?"), (progressive, b"Ip")):
        with shown.views.open("frames=0-5.y4m") as file:
            data = file.read()
        assert scanning in data[: data.index(b"\n")].split()
        with av.open(io.BytesIO(data), "r", format="yuv4mpegpipe") as opened:
            pictures = [frame.to_ndarray() for frame in opened.decode(video=0)]
        assert np.array_equal(pictures, shown.read(frames=range(5), format="yuv420p").data)
        assert shown.views.explain("frames=0-5,codec=ffv1.mkv").lost is None
        path = tmp_path / "view.mkv"
        with shown.views.open("frames=0-5,codec=ffv1.mkv") as file:
            path.write_bytes(file.read())
        assert examine(path).media.interlaced == shown.original.media.interlaced
        told = shown.views.explain("frames=0-5,size=80x60,codec=ffv1.mkv").lost or ""
        assert ("interlaced" in told) == shown.original.media.interlaced
