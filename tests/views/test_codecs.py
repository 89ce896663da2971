"""Views in every codec: playback, and exactness of lossless views."""

from __future__ import annotations

import json
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from sample_videos import FOLDER, read_frame_number
from tests.codecs.test_pixel_converter import _noise as noise
from tests.support.clips import media_of
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import _ffprobe, psnr
from tests.views.test_transcode import numbers, shown
from vfsd.api.video import context_of
from vfsd.codecs.encoding.archive_encoder import frame_error
from vfsd.codecs.frames.planes import (
    LosslessLayout,
    fingerprint,
    lossless_layout,
    pixel_layout,
    plane_bytes,
)
from vfsd.core.model import psnr_from_error
from vfsd.core.output_formats import CODECS, CONTAINERS
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import IntegrityError, UsageError
from vfsd.views import Views

HELD = [
    (container, codec)
    for container, codecs in (("mp4", CONTAINERS["mp4"]), ("mkv", CONTAINERS["matroska"]))
    for codec in codecs
]
NEW = [(container, codec) for container, codec in HELD if codec in ("av1", "mjpeg", "ffv1")]


def path_of(container: str, codec: str) -> str:
    """A view that must be encoded."""
    return f"t=0.3-1.8,codec={codec}.{container}"


@pytest.mark.parametrize(("container", "codec"), one_in(2, NEW))
def test_all_frames_have_their_times(shelf: Shelf, container: str, codec: str) -> None:
    for name in ("traffic.mp4", "portrait.mp4"):
        data = shelf.read(name, path_of(container, codec))
        assert len(data) == shelf.size(name, path_of(container, codec))
        video = shelf.video(name)
        wanted = video.frames_in((0.3, min(Fraction("1.8"), video.duration)))
        assert numbers(data) == list(wanted)
        start = context_of(video).table.frame_pts(wanted.start)
        base = video.original.time_base
        for time, frame in zip(shown(data), wanted, strict=True):
            right = (context_of(video).table.frame_pts(frame) - start) * base
            assert abs(time - right) <= (0 if container == "mp4" else 1 / 20_000)


@pytest.mark.parametrize(("container", "codec"), one_in(5, NEW))
def test_frames_equal_read(shelf: Shelf, container: str, codec: str) -> None:
    for name in ("traffic.mp4", "open-gop.mkv", "mjpeg.avi"):
        video = shelf.video(name)
        path = f"frames=3-33,size={video.width // 4 * 2}x0,codec={codec}.{container}"
        frames = decoded(shelf.read(name, path))
        size = (frames[0].width, frames[0].height)
        wanted = video.read(frames=range(3, 33), size=size).data
        for frame, right in zip(frames, wanted, strict=True):
            assert psnr(frame.to_ndarray(format="rgb24"), right) > 31


@pytest.mark.parametrize(("container", "codec"), one_in(5, NEW))
def test_players_receive_the_true_properties(
    shelf: Shelf, tmp_path: Path, container: str, codec: str
) -> None:
    path = tmp_path / f"view.{container}"
    path.write_bytes(shelf.read("traffic.mp4", path_of(container, codec)))
    told = _ffprobe(path)
    assert told["stream"]["codec_name"] == codec
    assert int(told["stream"]["nb_read_frames"]) == 45
    # Audio lasts to the end of its last packet.
    assert float(told["format"]["duration"]) == pytest.approx(1.5, abs=0.03)
    if codec == "av1":
        return  # OpenCV's wheels cannot decode it without hardware
    captured = cv2.VideoCapture(str(path))
    for number in range(9, 54):
        read, picture = captured.read()
        assert read
        assert read_frame_number(picture[:, :, ::-1].astype(np.uint8)) == number
    assert not captured.read()[0]
    captured.release()


@pytest.mark.parametrize(("container", "codec"), one_in(5, NEW))
def test_seek_leads_to_the_right_frame(
    shelf: Shelf, tmp_path: Path, container: str, codec: str
) -> None:
    path = tmp_path / f"view.{container}"
    path.write_bytes(shelf.read("traffic.mp4", f"size=160x120,codec={codec}.{container}"))
    every = decoded(path.read_bytes())
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        for number in (100, 3, 61, 118, 40):
            opened.seek(every[number].pts or 0, stream=stream)
            frame = next(
                f for f in opened.decode(stream) if (f.pts or 0) >= (every[number].pts or 0)
            )
            np.testing.assert_array_equal(frame.to_ndarray(), every[number].to_ndarray())


@pytest.mark.parametrize("ending", one_in(3, ["mkv", "mp4"]))
@pytest.mark.parametrize("name", ["traffic.mp4", "open-gop.mkv"])
def test_lossless_views_equal_ffmpeg(shelf: Shelf, tmp_path: Path, name: str, ending: str) -> None:
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        pytest.skip("ffmpeg is not installed")
    path = tmp_path / f"view.{ending}"
    path.write_bytes(shelf.read(name, f"codec=ffv1.{ending}"))

    def raw(file: Path) -> bytes:
        command = [ffmpeg, "-v", "error", "-i", file, "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]
        return subprocess.run(command, capture_output=True, check=True).stdout  # type: ignore[arg-type]

    assert raw(path) == raw(FOLDER / name)


@pytest.mark.parametrize("layout", one_in(3, CODECS["ffv1"]))
def test_lossless_views_equal_raw_views(shelf: Shelf, layout: str) -> None:
    asked = "t=0.5-1,roi=101x75+33+21"
    for name in ("traffic.mp4", "open-gop.mkv"):
        raw = shelf.read(name, f"{asked},pix={layout}.raw")
        pictures = decoded(shelf.read(name, f"{asked},codec=ffv1,pix={layout}.mkv"))
        flat = [plane.tobytes() for p in pictures for plane in plane_bytes(p)]
        assert b"".join(flat) == raw


KEPT = (
    *("yuv420p", "yuv422p", "yuv444p", "yuv440p", "yuv411p", "yuv410p", "gray", "bgr0"),
    *("yuv420p10le", "yuv422p10le", "yuv444p10le", "yuv444p12le", "yuv422p16le"),
    *("gray10le", "gbrp10le"),
)


@pytest.mark.parametrize("pixel_format", one_in(5, KEPT))
@pytest.mark.parametrize("size", [(64, 48), (101, 75)])
def test_lossless_views_keep_every_sample(
    tmp_path: Path, pixel_format: str, size: tuple[int, int]
) -> None:
    """The reserved size suffices for noise over the whole range of levels."""
    source = tmp_path / "a.mkv"
    _make_noise(source, pixel_format, size)
    pictures = decoded(source.read_bytes())
    with new_store(tmp_path / "store") as store:
        store.ingest(source)
        shelf = Shelf(store, Views(store.parts, store.tools))
        shown = decoded(shelf.read("a.mkv", "fps=10,codec=ffv1.mkv"))
        told = json.loads(shelf.read("a.mkv", "explain/fps=10,codec=ffv1.mkv.json"))
        shelf.views.close()
    assert shown[0].format.name == pixel_format
    samples = slice(None) if pixel_format != "bgr0" else np.arange(4 * size[0]) % 4 < 3
    for one, other in zip(shown, pictures, strict=True):
        for plane, right in zip(plane_bytes(one), plane_bytes(other), strict=True):
            assert np.array_equal(plane[:, samples], right[:, samples])
    assert (told["made"], told["lost"]) == ("encoded", None)


@pytest.mark.parametrize(
    ("pixel_format", "size", "codec"),
    one_in(
        4,
        [
            ("yuv422p10le", None, "fast"),
            ("gray10le", (64, 64), "lossless"),
            ("rgb24", (64, 64), "lossless"),
            ("gbrp10le", (64, 64), "lossless"),
        ],
    ),
)
def test_lossless_views_of_tiles_reach_the_requested_psnr(
    tmp_path: Path, pixel_format: str, size: tuple[int, int] | None, codec: str
) -> None:
    """This includes pixel formats that no array has; without a requested PSNR, every sample is
    exact."""
    source = tmp_path / "a.mkv"
    _make_gradient(source, pixel_format)
    with new_store(tmp_path / "store") as store:
        video = store.ingest(source)
        video.budget.set("1G")
        settings = TileSettings(codec)
        if size is None:
            video.tiles.retile("uniform:1x1", settings=settings)
        else:
            video.renditions.make(size, settings=settings)
        take_tiles(store)
        scaled = "" if size is None else f",size={size[0]}x{size[1]}"
        shelf = Shelf(store, Views(store.parts, store.tools))
        exact = decoded(shelf.read("a.mkv", f"fps=10{scaled},psnr=inf,codec=ffv1.mkv"))
        for asked in ("", ",psnr=30"):
            path = f"fps=10{scaled}{asked},codec=ffv1.mkv"
            told = json.loads(shelf.read("a.mkv", f"explain/{path}.json"))
            shown = decoded(shelf.read("a.mkv", path))
            worst = min(map(_least_psnr, shown, exact))
            assert worst >= (told["psnr"] or 100) - 0.01
            assert not asked or worst >= 30
            sources = {source["source"] for source in told["sources"]}
            assert sources == {"tiles" if told["psnr"] is not None else "original"}
            if not asked:
                assert (sources, told["lost"]) == ({"original"}, None)
                assert list(map(fingerprint, shown)) == list(map(fingerprint, exact))
            elif sources == {"tiles"}:
                assert told["lost"].startswith("it is made from tiles that do not have exactly")
        shelf.views.close()


def test_container_tags_are_written_to_views(shelf: Shelf) -> None:
    video = shelf.video("mjpeg.avi")
    (frame, *_) = decoded(shelf.read("mjpeg.avi", "frames=0-2,codec=ffv1.mkv"))
    assert video.original.media.color_range == "full"
    assert (frame.color_range, frame.colorspace) == (2, 5)


@pytest.mark.parametrize("codec", one_in(3, ["h264", "hevc", "av1", "ffv1"]))
def test_ten_bits_are_kept_on_request(tmp_path: Path, codec: str) -> None:
    deep = tmp_path / "deep.mkv"
    _make_ramp(deep)
    with new_store(tmp_path / "store") as store:
        store.ingest(deep, "deep.mkv")
        shelf = Shelf(store, Views(store.parts, store.tools))
        wanted = store["deep.mkv"].read(format="yuv420p10").data
        frames = decoded(shelf.read("deep.mkv", f"fps=10,codec={codec},pix=yuv420p10.mkv"))
        assert frames[0].format.name == "yuv420p10le"
        levels = frames[0].to_ndarray()[:128].astype(int)
        assert np.abs(levels - wanted[0][:128]).mean() < 2
        assert len(np.unique(levels)) > 256
        plain = decoded(shelf.read("deep.mkv", f"fps=10,codec={codec}.mkv"))
        assert plain[0].format.name == ("yuv420p10le" if codec == "ffv1" else "yuv420p")
        shelf.views.close()


def test_copy_has_the_requested_pixel_format(tmp_path: Path) -> None:
    deep = tmp_path / "deep.mkv"
    _make_ramp(deep)
    with new_store(tmp_path / "store") as store:
        store.ingest(deep, "deep.mkv")
        shelf = Shelf(store, Views(store.parts, store.tools))
        for path, layout in (
            ("full.mkv", "yuv420p10le"),
            ("codec=ffv1.mkv", "yuv420p10le"),
            ("codec=ffv1,pix=yuv420p10.mkv", "yuv420p10le"),
            ("codec=ffv1,pix=yuv420p.mkv", "yuv420p"),
        ):
            assert decoded(shelf.read("deep.mkv", path))[0].format.name == layout
        shelf.views.close()


@pytest.mark.parametrize(
    ("source", "layout", "lost"),
    one_in(
        3,
        [
            ("yuvj422p", "yuv422p", None),
            ("nv12", "yuv420p", None),
            ("p010le", "yuv420p10", None),
            ("rgb24", "bgr0", None),
            ("gbrp", "bgr0", None),
            ("rgb48le", "gbrp16le", None),
            ("rgb48be", "gbrp16le", None),
            ("gray16be", "gray16le", None),
            ("yuv420p10be", "yuv420p10", None),
            ("vyu444", "yuv444p", None),
            ("gray", "gray8", None),
            ("yuva444p10le", "yuva444p10le", None),
            ("bgra", "bgra", None),
            ("ya8", "gray8", "transparency"),
            ("pal8", "bgr0", None),
            ("gbrpf32le", "yuv420p", "FFV1 does not support pixel format gbrpf32le"),
            ("gbrp12msble", "yuv420p", "FFV1 does not support pixel format gbrp12msble"),
            ("xyz12le", "yuv420p", "FFV1 does not support pixel format xyz12le"),
        ],
    ),
)
def test_nearest_pixel_format_is_used(source: str, layout: str, lost: str | None) -> None:
    assert lossless_layout(media_of(64, 48, source)) == LosslessLayout(layout, lost)


def test_colour_loss_of_a_rotation_is_reported(tmp_path: Path) -> None:
    assert lossless_layout(media_of(64, 48, "yuv420p", 90)) == LosslessLayout("yuv420p")
    found = lossless_layout(media_of(64, 48, "yuv422p10le", 270))
    assert found.layout == "yuv444p10le"
    assert found.lost is not None


def test_loss_of_another_pixel_format_is_reported(shelf: Shelf) -> None:
    path = "explain/t=0-1,codec=ffv1,pix=yuv444p.mkv.json"
    assert json.loads(shelf.read("traffic.mp4", path))["lost"].startswith("its pixels are yuv420p")
    assert json.loads(shelf.read("traffic.mp4", "explain/full.yuv.json"))["lost"] is None


@pytest.mark.parametrize("pixel_format", one_in(4, ["bgr0", "gray16le", "yuv420p", "yuv444p10le"]))
def test_ffv1_in_mp4_is_copied_and_encoded(tmp_path: Path, pixel_format: str) -> None:
    """A file that already has FFV1 in mp4; from other containers it is copied into mp4 on
    request."""

    def samples(picture: av.VideoFrame) -> bytes:
        planes = b"".join(plane.tobytes() for plane in plane_bytes(picture))
        # The fourth byte of a pixel is undefined.
        return planes if pixel_format != "bgr0" else picture.to_ndarray(format="rgb24").tobytes()

    for name in ("a.mp4", "a.mkv"):
        _make_noise(tmp_path / name, pixel_format, (64, 48))
    with new_store(tmp_path / "store") as store:
        shelf = Shelf(store, Views(store.parts, store.tools))
        for name in ("a.mp4", "a.mkv"):
            store.ingest(tmp_path / name, name)
            exact = list(map(samples, decoded((tmp_path / name).read_bytes())))
            for path, made in (
                ("full.mp4", "copied" if name == "a.mp4" else "encoded"),
                ("codec=ffv1.mp4", "copied"),
                ("codec=ffv1.mkv", "copied"),
                ("size=64x48,fps=10,codec=ffv1.mp4", "encoded"),
            ):
                told = json.loads(shelf.read(name, f"explain/{path}.json"))
                assert told["made"] == made, path
                shown = list(map(samples, decoded(shelf.read(name, path))))
                assert (shown == exact) == (path != "full.mp4" or made == "copied"), path
        why = json.loads(shelf.read("a.mkv", "explain/full.mp4.json"))["why"]
        assert why == ("few players support ffv1 in mp4; with codec=ffv1, or as mkv, it is copied")
        told = json.loads(shelf.read("a.mkv", "explain/full.h264.json"))
        assert told["why"] == "it is requested in h264 and stored in ffv1"
        shelf.views.close()


def _make_noise(path: Path, pixel_format: str, size: tuple[int, int]) -> None:
    """Ten lossless frames."""
    with av.open(str(path), "w") as made:
        stream = made.add_stream("ffv1", rate=10)
        (stream.width, stream.height), stream.pix_fmt = size, pixel_format
        stream.thread_count = 1
        for number in range(10):
            made.mux(stream.encode(noise(*size, pixel_format, seed=number)))
        made.mux(stream.encode(None))


def _make_gradient(path: Path, pixel_format: str) -> None:
    """Ten frames of 128x128."""
    across, down = np.meshgrid(np.arange(128), np.arange(128))
    with av.open(str(path), "w") as made:
        stream = made.add_stream("libx264rgb" if pixel_format == "rgb24" else "ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 128, 128, pixel_format
        for number in range(10):
            levels = np.dstack((across, down, across + down - 2 * number)) % 256
            picture = av.VideoFrame.from_ndarray(levels.astype(np.uint8), "rgb24")
            made.mux(stream.encode(picture.reformat(format=pixel_format)))
        made.mux(stream.encode(None))


def _least_psnr(one: av.VideoFrame, other: av.VideoFrame) -> float:
    """PSNR in dB of the worst plane; 100 if all are equal."""
    error = frame_error(one, other) if one.format.is_planar else 0.0
    return min(100.0, psnr_from_error(error))


def _make_ramp(path: Path) -> None:
    """Ten lossless 10-bit frames in which each sample has a different level."""
    with av.open(str(path), "w") as made:
        stream = made.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 256, 128, "yuv420p10le"
        for number in range(10):
            samples = np.full((192, 256), 512, np.uint16)
            samples[:128] = np.add.outer(np.arange(128) * 2, np.arange(256) * 2) + 64 + number
            frame = av.VideoFrame.from_ndarray(samples, format="yuv420p10le")
            made.mux(stream.encode(frame))
        made.mux(stream.encode(None))


def test_noise_fits_into_the_reserved_size_of_lossless_views(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    with new_store(tmp_path / "store") as store:
        shelf = Shelf(store, Views(store.parts, store.tools))
        for width, height in ((16, 16), (66, 50), (320, 240)):
            path = tmp_path / f"{width}.mkv"
            with av.open(str(path), "w") as made:
                stream = made.add_stream("ffv1", rate=10)
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                for high in (256, 2, 256, 256):
                    samples = random.integers(0, high, (height * 3 // 2, width), np.uint8)
                    samples *= 255 // (high - 1)
                    frame = av.VideoFrame.from_ndarray(samples, format="yuv420p")
                    made.mux(stream.encode(frame))
                made.mux(stream.encode(None))
            store.ingest(path, path.name)
            wanted = store[path.name].read(format="yuv420p").data
            frames = decoded(shelf.read(path.name, "fps=10,codec=ffv1.mkv"))
            for frame, right in zip(frames, wanted, strict=True):
                np.testing.assert_array_equal(frame.to_ndarray(), right)
        shelf.views.close()


def test_lossless_views_are_never_coarsened(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is too small must raise an error instead."""
    monkeypatch.setattr("vfsd.views.view_slots._LOSSLESS_SPARE_BITS", -8)
    with pytest.raises(IntegrityError, match="noise"):
        fresh.read("traffic.mp4", "frames=0-9,codec=ffv1.mkv")


def test_jpeg_becomes_mp4_on_request_only(shelf: Shelf) -> None:
    for path, codec in (("full.mp4", "h264"), ("codec=mjpeg.mp4", "mjpeg")):
        file = shelf.read("mjpeg.avi", path)
        assert (b"avc1" if codec == "h264" else b"mp4v") in file[:2000]


def test_sizes_unsupported_by_a_codec_are_refused(shelf: Shelf) -> None:
    for codec in ("av1", "ffv1"):
        with pytest.raises(UsageError, match=r"must be 16 to 16384 pixels|must be even"):
            shelf.size("traffic.mp4", f"roi=8x8+0+0,codec={codec}.mkv")
    assert shelf.size("traffic.mp4", "roi=2x2+0+0,codec=mjpeg.mkv") > 0


def test_views_are_deterministic(shelf: Shelf, fresh: Shelf) -> None:
    for container, codec in NEW:
        path = path_of(container, codec)
        assert shelf.read("traffic.mp4", path) == fresh.read("traffic.mp4", path)


@pytest.mark.parametrize(
    ("pixel_format", "ending"), one_in(3, [("yuv444p", "mkv"), ("rgb48", "mov"), ("gray16", "mov")])
)
def test_lossless_views_of_raw_video_keep_every_sample(
    tmp_path: Path, pixel_format: str, ending: str
) -> None:
    layout = pixel_layout(pixel_format)
    data = np.random.default_rng(2).integers(0, 255, (5, *layout.shape(64, 48)), layout.dtype)
    with new_store(tmp_path / "store") as store:
        store.write(f"a.{ending}", data, fps=25, codec="raw", format=pixel_format)
        shelf = Shelf(store, Views(store.parts, store.tools))
        told = json.loads(shelf.read(f"a.{ending}", "explain/codec=ffv1.mkv.json"))
        assert told["lost"] is None
        kept = store.write("b.mkv", shelf.read(f"a.{ending}", "codec=ffv1.mkv"))
        assert np.array_equal(kept.read(format=pixel_format).data, data)
        shelf.views.close()
