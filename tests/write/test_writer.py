"""Videos written from pixels and streams: the data read back, and the state after failures."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.selection import examples, one_in
from tests.support.writing import is_as_before, smooth
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.frames.planes import PIXEL_FORMATS, pixel_layout
from vfsd.core.model import Access
from vfsd.core.pixel_array import Pixels
from vfsd.disk.tempfiles import locked_directory
from vfsd.errors import (
    BusyError,
    ClosedError,
    CutOffError,
    ExistsError,
    HeldError,
    NoSpaceError,
    ReadOnlyError,
    RefusedMediaError,
    UsageError,
)
from vfsd.maintenance.fsck import collect, run

CLIP = FOLDER / "traffic.mp4"
BLACK = np.zeros((2, 48, 64, 3), np.uint8)


def noise(pixel_format: str, count: int, width: int, height: int, seed: int = 0) -> Pixels:
    layout = pixel_layout(pixel_format)
    top = 1023 if pixel_format == "yuv420p10" else np.iinfo(layout.dtype).max
    shape = (count, *layout.shape(width, height))
    return np.random.default_rng(seed).integers(0, top, shape, layout.dtype, endpoint=True)


def psnr(one: Pixels, other: Pixels) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


# ------------------------------------------------------------------------------------- pictures


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pixel_format=st.sampled_from(PIXEL_FORMATS),
    width=st.integers(8, 40).map(lambda half: 2 * half),
    height=st.integers(8, 30).map(lambda half: 2 * half),
    count=st.integers(1, 5),
    rate=st.sampled_from([Fraction(25), Fraction(30000, 1001), Fraction(1, 3), Fraction(240)]),
)
def test_ffv1_keeps_every_sample_and_every_time(
    store: Store, pixel_format: str, width: int, height: int, count: int, rate: Fraction
) -> None:
    data = noise(pixel_format, count, width, height)
    video = store.write("a.mp4", data, fps=rate, codec="ffv1", format=pixel_format, replace=True)
    back = video.read(format=pixel_format)
    assert np.array_equal(back.data, data)
    times = [(int(pts) - video.original.first_pts) * video.original.time_base for pts in back.pts]
    assert times == [number / rate for number in range(count)]
    assert video.duration == count / rate


@pytest.mark.parametrize("codec", one_in(3, ["h264", "hevc"]))
@pytest.mark.parametrize("pixel_format", ["rgb24", "bgr24", "yuv420p", "yuv444p", "yuv420p10"])
def test_lossless_is_lossless_in_h264_and_hevc(store: Store, codec: str, pixel_format: str) -> None:
    data = noise(pixel_format, 12, 64, 48)
    video = store.write("a.mp4", data, fps=25, codec=codec, format=pixel_format, lossless=True)
    assert video.original.media.codec == codec
    assert np.array_equal(video.read(format=pixel_format).data, data)


@pytest.mark.parametrize("codec", one_in(3, ["h264", "hevc", "av1"]))
@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_lossy_codecs_keep_high_psnr(store: Store, codec: str, ending: str) -> None:
    data = smooth(30, 160, 96)
    video = store.write(f"a.{ending}", data, fps=25, codec=codec)
    assert len(video) == 30
    assert psnr(video.read().data, data) > 38
    assert [number for number in video.keyframes if number == 25]  # a key frame each second
    finer = store.write(f"b.{ending}", data, fps=25, codec=codec, quality=8)
    assert psnr(finer.read().data, data) > psnr(video.read().data, data)


@pytest.mark.parametrize("ending", one_in(3, ["mp4", "mov", "mkv"]))
@pytest.mark.parametrize("pixel_format", ["rgb24", "bgr24", "gray", "yuv420p", "nv12", "yuv444p"])
def test_jpeg_frames_are_close_to_the_input(store: Store, ending: str, pixel_format: str) -> None:
    source = store.ingest(CLIP, "source.mp4").read(frames=range(12), format=pixel_format)
    video = store.write(f"a.{ending}", source, fps=25, codec="mjpeg", format=pixel_format)
    media = video.original.media
    assert (media.codec, media.color_range) == ("mjpeg", "full")
    assert len(video.keyframes) == 12
    assert psnr(video.read(format="rgb24").data, shown_as_rgb(store, pixel_format)) > 34
    finer = store.write(
        f"b.{ending}", source, fps=25, codec="mjpeg", format=pixel_format, quality=1
    )
    assert finer.info.size > video.info.size


def shown_as_rgb(store: Store, pixel_format: str) -> Pixels:
    """The frames of the source; gray is repeated in three channels."""
    source = store["source.mp4"]
    if pixel_format == "gray":
        return source.read(frames=range(12), format="gray").data.repeat(3, axis=-1)
    return source.read(frames=range(12)).data


def test_jpeg_keeps_full_range_yuv(store: Store) -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (48, 1))
    gray = np.full((24, 256), 128, np.uint8)
    data = np.concatenate((ramp, gray))[None]
    written = {
        color_range: store.write(
            f"{color_range}.mkv",
            data,
            fps=1,
            codec="mjpeg",
            format="yuv420p",
            quality=1,
            color_range=color_range,
        )
        for color_range in ("full", "limited")
    }
    luma = {name: video.read(format="gray").data[0, 0, :, 0] for name, video in written.items()}
    assert np.abs(luma["full"].astype(int) - ramp[0]).max() <= 2
    wanted = ((ramp[0] - 16.0) * 255 / 219).clip(0, 255)
    assert np.abs(luma["limited"] - wanted).max() <= 2


@pytest.mark.parametrize(
    ("pixel_format", "ending"),
    one_in(
        3,
        [
            ("rgb24", "mov"),
            ("bgr24", "mov"),
            ("gray", "mkv"),
            ("yuv420p", "mkv"),
            ("yuv422p", "mkv"),
            ("yuv444p", "mkv"),
            ("yuv444p", "mov"),
            ("nv12", "mkv"),
            ("rgb48", "mov"),
            ("gray16", "mov"),
        ],
    ),
)
def test_raw_video_is_unchanged(store: Store, pixel_format: str, ending: str) -> None:
    data = noise(pixel_format, 5, 38, 22)
    name = f"a.{ending}"
    video = store.write(name, data, fps=25, codec="raw", format=pixel_format, lossless=True)
    assert video.original.access is Access.EXTENT
    assert video.original.media.codec == "rawvideo"
    assert np.array_equal(video.read(format=pixel_format).data, data)
    assert np.array_equal(video[3].data, video.read().data[3])
    assert len(video.keyframes) == 5


@pytest.mark.parametrize("width", one_in(4, [60, 61, 62, 63]))
@pytest.mark.parametrize(
    ("pixel_format", "ending"),
    [("rgb24", "mov"), ("gray", "mkv"), ("yuv444p", "mkv"), ("rgb48", "mov"), ("gray16", "mov")],
)
def test_raw_video_of_any_width(store: Store, pixel_format: str, ending: str, width: int) -> None:
    """Rows in files are padded to two or four bytes, or not at all."""
    data = noise(pixel_format, 3, width, 47)
    video = store.write(f"a.{ending}", data, fps=25, codec="raw", format=pixel_format)
    assert np.array_equal(video.read(format=pixel_format).data, data)


@pytest.mark.parametrize("form", one_in(3, ["rgb24", "gray", "gray16", "yuv444p"]))
@pytest.mark.parametrize(
    ("pixel_format", "ending"), [("yuv444p", "mkv"), ("rgb48", "mov"), ("gray16", "mov")]
)
def test_raw_video_is_read_like_ffv1(
    store: Store, pixel_format: str, ending: str, form: str
) -> None:
    """The samples have another order than in FFV1, and the same meaning."""
    data = noise(pixel_format, 3, 64, 48)
    raw = store.write(f"a.{ending}", data, fps=25, codec="raw", format=pixel_format)
    other = store.write("b.mkv", data, fps=25, codec="ffv1", format=pixel_format)
    for region in (None, (8, 6, 48, 40)):
        found, wanted = (one.read(format=form, region=region).data for one in (raw, other))
        most = 0 if form in (pixel_format, "gray") else 2 << (8 if form == "gray16" else 0)
        assert np.abs(found.astype(int) - wanted).max() <= most, region


@pytest.mark.parametrize(
    ("pixel_format", "ending", "form"),
    one_in(
        3,
        [
            ("nv12", "mkv", "yuv420p"),
            ("yuv444p", "mov", "yuv444p"),
            ("rgb48", "mov", "rgb48"),
        ],
    ),
)
@pytest.mark.parametrize("region", [(4, 4, 20, 20), (5, 7, 21, 23)])
def test_regions_of_raw_video_are_scaled_like_others(
    store: Store, pixel_format: str, ending: str, form: str, region: tuple[int, int, int, int]
) -> None:
    data = noise(pixel_format, 2, 64, 48)
    raw = store.write(f"a.{ending}", data, fps=25, codec="raw", format=pixel_format)
    planar = "yuv420p" if pixel_format == "nv12" else pixel_format
    samples = raw.read(format=planar).data
    other = store.write("b.mkv", samples, fps=25, codec="ffv1", format=planar)
    found, wanted = (one.read(format=form, region=region, size=(8, 8)).data for one in (raw, other))
    assert np.abs(found.astype(int) - wanted).max() <= 1


def test_semi_planar_input_for_av1(store: Store) -> None:
    planar = store.ingest(CLIP, "source.mp4").read(frames=range(10), format="yuv420p")
    turns = store["source.mp4"].read(frames=range(10), format="nv12")
    one = store.write("a.mp4", planar, fps=25, format="yuv420p", codec="av1")
    other = store.write("b.mp4", turns, fps=25, format="nv12", codec="av1")
    assert np.array_equal(one.read(format="yuv420p").data, other.read(format="yuv420p").data)


def test_samples_of_luma_and_chroma_are_not_converted(store: Store) -> None:
    source = store.ingest(CLIP, "source.mp4").read(frames=range(10), format="yuv420p")
    video = store.write("a.mp4", source, fps=25, format="yuv420p", codec="h264", lossless=True)
    assert np.array_equal(video.read(format="yuv420p").data, source.data)


def test_written_frames_of_a_read_keep_their_times(store: Store) -> None:
    source = store.ingest(FOLDER / "variable-rate.mp4", "source.mp4")
    video = store.write(
        "a.mp4", source.iterate(frames=range(4, 30)), time_base=source.original.time_base
    )
    wanted = source.read(frames=range(4, 30))
    assert video.read().seconds == pytest.approx(wanted.seconds - wanted.seconds[0], abs=1e-9)
    assert video.original.first_pts == 0


def test_any_sequence_of_frames_with_explicit_times(store: Store) -> None:
    data = smooth(6, 64, 48)
    pts = [7, 8, 20, 21, 1000, 5000]
    parts = (part for part in (data[0], data[1:3], list(data[3:])))
    video = store.write("a.mp4", parts, time_base="0.001", pts=pts, codec="ffv1")
    back = video.read()
    assert np.array_equal(back.data, data)
    assert [round(second * 1000) + 7 for second in back.seconds] == pts


def test_gray_needs_no_axis_for_its_channel(store: Store) -> None:
    data = noise("gray", 3, 33, 17)
    video = store.write("a.mp4", data[..., 0], fps=5, format="gray", codec="ffv1")
    assert np.array_equal(video.read(format="gray").data, data)
    one = store.write("b.mp4", data[0, ..., 0], fps=5, format="gray", codec="ffv1")
    assert len(one) == 1


class Tensor:
    """An array of another library, which returns slices of the same type."""

    def __init__(self, data: Pixels) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Tensor]:
        return map(Tensor, self._data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        return np.array(self._data, dtype)


def test_array_likes_are_accepted(store: Store) -> None:
    data = smooth(6, 64, 48)
    video = store.write("a.mp4", [Tensor(data[:4]), Tensor(data[4])], fps=5, codec="ffv1")
    with store.writer("b.mp4", width=64, height=48, fps=5, codec="ffv1") as writer:
        assert writer.write(Tensor(data[:5])) == 5
    assert np.array_equal(video.read().data, data[:5])
    assert np.array_equal(writer.video.read().data, data[:5])
    part = store.write("c.mp4", video.seconds[0.4:1, 8:40, 16:48], fps=5, codec="ffv1")
    assert np.array_equal(part.read().data, data[2:5, 8:40, 16:48])


@pytest.mark.parametrize("given_as", [bytes, io.BytesIO, memoryview])
def test_raw_samples_are_split_into_frames(store: Store, given_as: type) -> None:
    data = noise("rgb24", 4, 32, 24)
    raw = given_as(data.tobytes())
    video = store.write("a.mp4", raw, size=(32, 24), fps=25, codec="ffv1")
    assert np.array_equal(video.read().data, data)


def test_pipe_input_in_pieces_of_any_size(store: Store) -> None:
    data = noise("rgb24", 40, 32, 24)
    code = "import sys; [sys.stdout.buffer.write(sys.stdin.buffer.read(777)) for _ in range(200)]"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(data.tobytes())
        process.stdin.close()
        video = store.write("a.mp4", process.stdout, size=(32, 24), fps=25, codec="ffv1")
    assert np.array_equal(video.read().data, data)


def test_players_can_read_written_videos(store: Store, tmp_path: Path) -> None:
    import cv2

    data = smooth(30, 160, 96)
    video = store.write("a.mp4", data, fps=25)
    capture = cv2.VideoCapture(str(store.parts.originals.path_of(video.original)))
    assert capture.get(cv2.CAP_PROP_FPS) == 25
    seen = []
    while (got := capture.read())[0]:
        seen.append(got[1][..., ::-1])
    assert psnr(np.stack(seen), data) > 38


# -------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("name", ["traffic.mp4", "transport.ts", "elementary.h264", "open-gop.mkv"])
def test_stream_is_copied(store: Store, name: str) -> None:
    original = (FOLDER / name).read_bytes()
    with open(FOLDER / name, "rb") as file:
        video = store.write(f"cam/{name}", file)
    assert store.parts.originals.path_of(video.original).read_bytes() == original
    assert video.info.digest == store.write(f"again-{name}", original).info.digest
    assert len(list(store.parts.objects.all_keys())) == 1
    assert is_as_before(store, sorted([f"again-{name}", f"cam/{name}"]))


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "what"),
    one_in(
        3,
        [
            ({"data": np.zeros((3, 48, 64, 3), np.uint8)}, "need times"),
            ({"data": np.zeros((3, 48, 64, 3), np.uint8), "fps": 25, "codec": "divx"}, "divx"),
            ({"data": np.zeros((3, 48, 64, 3), np.uint8), "fps": 25, "quality": 99}, "0 to 51"),
            ({"data": BLACK, "fps": 25, "codec": "mjpeg", "quality": 0}, "1 to 31"),
            (
                {"data": BLACK, "fps": 25, "codec": "mjpeg", "psnr": 40},
                "cannot be encoded to a given PSNR",
            ),
            ({"data": BLACK, "fps": 25, "codec": "mjpeg", "lossless": True}, "losslessly"),
            ({"data": BLACK, "fps": 25, "codec": "raw"}, "mp4 cannot hold raw"),
            (
                {"data": np.zeros((2, 72, 64), np.uint16), "fps": 25, "codec": "raw"}
                | {"format": "yuv420p10"},
                "raw cannot store yuv420p10",
            ),
            ({"data": BLACK, "fps": 25, "codec": "ffv1", "quality": 3}, "no quality"),
            ({"data": np.zeros((3, 48, 64, 3), np.uint8), "fps": 0}, "larger than 0"),
            ({"data": np.zeros((3, 48, 64, 4), np.uint8), "fps": 25}, "got 48 x 64 x 4"),
            ({"data": np.zeros((5, 3, 48, 64), np.uint8), "fps": 25}, "moveaxis"),
            ({"data": np.zeros((6, 48, 64), np.uint8), "fps": 25}, "format='gray'"),
            ({"data": np.zeros((48, 64), np.uint8), "fps": 25}, "format='gray'"),
            ({"data": np.zeros((48, 64, 4), np.uint8), "fps": 25}, "got 48 x 64 x 4"),
            ({"data": np.zeros((3, 48, 64, 3), np.float32), "fps": 25}, "uint8"),
            ({"data": np.zeros((3, 47, 64, 3), np.uint8), "fps": 25}, "must be even"),
            ({"data": [], "fps": 25}, "at least one picture"),
            ({"data": b"", "fps": 25, "size": (64, 48)}, "at least one picture"),
            ({"data": bytes(64 * 48 * 3 + 1), "fps": 25, "size": (64, 48)}, "1 bytes are left"),
            ({"data": bytes(64 * 48 * 3), "size": (64, 48)}, "a rate"),
            ({"data": b"", "codec": "hevc"}, "must come with size and fps"),
            (
                {"data": np.zeros((2, 48, 64, 3), np.uint8), "time_base": 1, "pts": [1]},
                "has no time",
            ),
            ({"data": np.zeros((2, 48, 64, 3), np.uint8), "time_base": 1, "pts": [1, 1]}, "ascend"),
            (
                {"data": np.zeros((1, 48, 64, 3), np.uint8), "time_base": 1, "pts": [1, 2]},
                "pts must have one time",
            ),
            ({"data": np.zeros((2, 48, 64, 3), np.uint8), "fps": 1, "time_base": 1}, "one of"),
            ({"data": "a.mp4", "fps": 25}, "pictures must be"),
            ({"data": BLACK, "time_base": 1, "pts": ["a", "b"]}, "pts"),
            ({"data": BLACK, "time_base": 1, "pts": [0.5, 1.5]}, "pts"),
            ({"data": BLACK, "time_base": 1, "pts": 0.5}, "pts"),
            ({"data": BLACK, "time_base": 1, "pts": [0, 2**70]}, "at most"),
            ({"data": BLACK, "time_base": 1, "pts": [0, 2**40]}, "at most"),
            ({"data": BLACK, "fps": 25, "size": (64,)}, "size must be"),
            ({"data": BLACK, "fps": 25, "key_interval": 2**40}, "key_interval must be"),
            ({"data": BLACK, "fps": 25, "key_interval": 2.5}, "whole number"),
            ({"data": BLACK, "fps": 25, "lossless": "x"}, "True or False"),
            ({"data": BLACK, "fps": 25, "quality": "x"}, "whole number"),
            ({"data": BLACK, "fps": 25, "psnr": "x"}, "dB"),
            ({"data": BLACK, "fps": 25, "sample_aspect_ratio": 0}, "4:3"),
            ({"data": BLACK, "fps": 25, "sample_aspect_ratio": Fraction(-4, 3)}, "4:3"),
            ({"data": BLACK, "fps": 25, "sample_aspect_ratio": "wide"}, "4:3"),
            ({"data": BLACK, "fps": 25, "sample_aspect_ratio": 1e300}, "4:3"),
            ({"data": bytes(100), "fps": 25, "size": (0, 0)}, "x"),
            ({"data": bytes(100), "fps": 25, "size": (-2, -2)}, "x"),
            ({"data": bytes(100), "fps": 25, "size": (2**40, 2**40)}, "x"),
            ({"data": bytes(100), "fps": 25, "size": (64,)}, "size must be"),
            ({"data": io.StringIO("text"), "fps": 25, "size": (64, 48)}, "rb"),
            ({"data": io.StringIO("text")}, "rb"),
            (
                {"data": np.zeros((2, 48, 64, 3), np.uint16), "format": "rgb48", "fps": 25}
                | {"lossless": True},
                "losslessly",
            ),
        ],
    ),
)
def test_conflicting_arguments_are_refused_and_leave_nothing(
    store: Store, arguments: dict[str, object], what: str
) -> None:
    with pytest.raises(UsageError) as raised:
        store.write("a.mp4", **arguments)  # type: ignore[arg-type]
    assert what in f"{raised.value} {raised.value.hint}"
    assert is_as_before(store, [])


class Generous(io.BytesIO):
    """Returns more than requested, without end."""

    def read(self, size: int | None = -1, /) -> bytes:
        return bytes((size or 0) + 1)


@pytest.mark.parametrize("form", [{"size": (64, 48), "fps": 25}, {}])
def test_file_that_returns_too_much_is_refused(store: Store, form: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the file gave"):
        store.write("a.mp4", Generous(), **form)
    assert is_as_before(store, [])


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_times_and_numbers_may_be_numpy_types(store: Store, kind: Any) -> None:
    data = smooth(5, 64, 48)
    pts = np.array([0, 1, 3, 6, 9], kind)
    video = store.write("a.mp4", data, time_base=Fraction(1, 25), pts=pts, key_interval=kind(2))
    assert video.read().seconds.tolist() == pytest.approx([0, 0.04, 0.12, 0.24, 0.36])
    assert video.keyframes.tolist() == [0, 2, 4]
    with store.writer("b.mp4", width=kind(64), height=kind(48), time_base=Fraction(1, 25)) as w:
        w.write(data[0], pts=pts[0])
        w.write(data[1:], pts=pts[1:])
    assert w.video.read().seconds.tolist() == video.read().seconds.tolist()
    again = video.read()
    copy = store.write("c.mp4", data, time_base=video.original.time_base, pts=again.pts)
    assert copy.read().seconds.tolist() == again.seconds.tolist()


@pytest.mark.parametrize("told", ["4:3", Fraction(4, 3), "4/3"])
def test_pixel_aspect_is_kept(store: Store, told: str | Fraction) -> None:
    video = store.write("a.mp4", smooth(3, 64, 48), fps=25, sample_aspect_ratio=told)
    assert video.original.media.sample_aspect_ratio == Fraction(4, 3)


def test_suffix_selects_the_container(store: Store) -> None:
    data = smooth(3, 64, 48)
    assert store.write("a.mov", data, fps=25).original.media.container == "mov"
    assert store.write("a.MKV", data, fps=25).original.media.container == "matroska"
    assert store.write("a", data, fps=25).original.media.container == "mp4"
    with pytest.raises(UsageError, match="avi"):
        store.write("a.avi", data, fps=25)
    with pytest.raises(UsageError, match="mov"):
        store.write("b.mov", data, fps=25, codec="ffv1")


def test_times_that_round_to_one_tick_are_refused(store: Store) -> None:
    data = smooth(3, 64, 48)
    assert len(store.write("a.mp4", data, fps=5000)) == 3
    with pytest.raises(UsageError, match=r"0\.0002"):
        store.write("a.mkv", data, fps=5000)
    assert is_as_before(store, ["a.mp4"])


def test_stream_that_is_not_a_video_is_refused(store: Store) -> None:
    with pytest.raises(RefusedMediaError):
        store.write("a.mp4", b"no video at all")
    assert is_as_before(store, [])


def test_existing_video_is_kept_without_replace(store: Store) -> None:
    first = store.write("a.mp4", smooth(3, 64, 48), fps=25)
    with pytest.raises(ExistsError):
        store.write("a.mp4", smooth(4, 64, 48), fps=25)
    with pytest.raises(ExistsError):
        store.write("a.mp4", CLIP.read_bytes())
    assert len(store["a.mp4"]) == 3
    with pytest.raises(ZeroDivisionError):
        store.write("a.mp4", (smooth(3 // (3 - i), 64, 48) for i in range(5)), fps=25, replace=True)
    assert store["a.mp4"].info == first.info
    store.write("a.mp4", smooth(4, 64, 48), fps=25, replace=True)
    assert len(store["a.mp4"]) == 4
    assert is_as_before(store, ["a.mp4"])


def test_read_only_store_refuses_writes(store: Store) -> None:
    with Store.open(store.path, read_only=True) as reading:
        with pytest.raises(ReadOnlyError):
            reading.write("a.mp4", smooth(3, 64, 48), fps=25)
        with pytest.raises(ReadOnlyError):
            reading.writer("a.mp4", width=64, height=48, fps=25)


# --------------------------------------------------------------------------------------- writer


def test_writer_publishes_at_the_end_of_its_block(store: Store) -> None:
    data = smooth(60, 64, 48)
    with store.writer("cam/a.mp4", width=64, height=48, fps=25, codec="ffv1") as writer:
        for at in range(0, 40, 8):
            writer.write(data[at : at + 8])
        assert "cam/a.mp4" not in store
        with pytest.raises(UsageError, match="not published before the end"):
            _ = writer.video
        for picture in data[40:]:
            writer.write(picture)
        assert writer.frames == 60
    assert np.array_equal(writer.video.read().data, data)
    assert is_as_before(store, ["cam/a.mp4"])
    with pytest.raises(UsageError, match="is finished"):
        writer.write(data)


def test_error_in_the_block_changes_nothing(store: Store) -> None:
    def interrupted() -> None:
        with store.writer("a.mp4", width=64, height=48, fps=25) as writer:
            writer.write(smooth(60, 64, 48))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert is_as_before(store, [])
    with (
        pytest.raises(UsageError, match="no picture"),
        store.writer("a", width=64, height=48, fps=1),
    ):
        pass
    assert is_as_before(store, [])


def test_second_writer_of_a_name_is_refused(store: Store) -> None:
    with store.writer("a.mp4", width=64, height=48, fps=25) as writer:
        with pytest.raises(BusyError, match=str(os.getpid())):
            store.write("a.mp4", smooth(3, 64, 48), fps=25)
        with Store.open(store.path) as other, pytest.raises(BusyError):
            other.writer("a.mp4", width=64, height=48, fps=25)
        store.write("b.mp4", smooth(3, 64, 48), fps=25)
        writer.write(smooth(3, 64, 48))
    assert is_as_before(store, ["a.mp4", "b.mp4"])


def test_stopped_process_does_not_block_writers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.disk.object_store._START_SECONDS", 0.1)
    with locked_directory(store.parts.directory.objects_tmp, fcntl.LOCK_EX):
        with pytest.raises(BusyError, match="starting a file") as caught:
            store.write("a.mp4", smooth(3, 64, 48), fps=25)
        assert "fuser" in str(caught.value.hint)
    store.write("a.mp4", smooth(3, 64, 48), fps=25)
    assert is_as_before(store, ["a.mp4"])


def test_name_taken_by_another_writer_is_kept(store: Store) -> None:
    writer = store.writer("a.mp4", width=64, height=48, fps=25)
    writer.write(smooth(3, 64, 48))
    store.ingest(CLIP, "a.mp4")
    with pytest.raises(ExistsError) as caught:
        writer.close()
    assert str(writer.unfinished.path) in caught.value.__notes__[0]
    assert len(store["a.mp4"]) == 120
    store.move("a.mp4", "b.mp4")
    writer.close()
    assert (len(store["a.mp4"]), len(store["b.mp4"])) == (3, 120)
    assert is_as_before(store, ["a.mp4", "b.mp4"])


def test_held_video_is_refused_before_reading_input(store: Store) -> None:
    store.ingest(CLIP, "a.mp4").policy.hold("case")
    with pytest.raises(HeldError, match="case"):
        store.writer("a.mp4", width=64, height=48, fps=25, replace=True)
    with CLIP.open("rb") as stream, pytest.raises(HeldError, match="case"):
        store.write("a.mp4", stream, replace=True)
    assert store.recordings() == []


def test_hold_during_a_write_keeps_the_recording(store: Store) -> None:
    store.ingest(CLIP, "a.mp4")
    writer = store.writer("a.mp4", width=64, height=48, fps=25, replace=True)
    writer.write(smooth(3, 64, 48))
    store["a.mp4"].policy.hold("case")
    with pytest.raises(HeldError, match="case"):
        writer.close()
    writer.leave()
    (one,) = store.recordings()
    assert (store.recover(one).name, len(store["a.mp4"])) == ("a-recovered.mp4", 120)


def test_store_closed_during_a_write_keeps_the_recording(store: Store) -> None:
    with Store.open(store.path) as other:
        writer = other.writer("a.mp4", width=64, height=48, fps=25)
        writer.write(smooth(3, 64, 48))
    with pytest.raises(ClosedError) as caught:
        writer.close()
    assert "close the writer" not in caught.value.__notes__[0]
    writer.leave()
    (one,) = store.recordings()
    assert len(store.recover(one)) == 3


@pytest.mark.parametrize(
    "error", [BusyError("locked"), NoSpaceError("full"), OSError(errno.EMFILE, "too many")]
)
def test_failed_publish_can_be_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    data = smooth(60, 64, 48)

    def failing(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("vfsd.write.write_video.ingest_own_file", failing)
    writer = store.writer("a.mp4", width=64, height=48, fps=25, codec="ffv1")
    with pytest.raises(type(error)) as caught, writer:
        writer.write(data)
    assert str(writer.unfinished.path) in caught.value.__notes__[0]
    with pytest.raises(type(error)):  # also repeatedly
        writer.close()
    with pytest.raises(UsageError, match="is finished"):
        writer.write(data)
    with pytest.raises(BusyError, match="is being written"):
        store.writer("a.mp4", width=64, height=48, fps=25)
    assert not collect(store.parts).files
    monkeypatch.undo()
    writer.close()
    assert np.array_equal(writer.video.read().data, data)
    assert is_as_before(store, ["a.mp4"])
    writer.close()
    writer.abandon()
    assert is_as_before(store, ["a.mp4"])


def test_failed_publish_can_be_abandoned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> NoReturn:
        raise BusyError("locked")

    monkeypatch.setattr("vfsd.write.write_video.ingest_own_file", failing)
    writer = store.writer("a.mp4", width=64, height=48, fps=25)
    writer.write(smooth(3, 64, 48))
    with pytest.raises(BusyError):
        writer.close()
    pid = os.fork()
    if not pid:  # a forked child publishes and removes nothing
        writer.close()
        writer.abandon()
        os._exit(0 if writer.unfinished.path.exists() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    writer.abandon()
    assert is_as_before(store, [])
    with pytest.raises(BusyError):  # and no writer object exists that could be closed
        store.write("a.mp4", smooth(3, 64, 48), fps=25)
    monkeypatch.undo()
    (left,) = store.recordings()
    assert len(store.recover(left)) == 3
    assert is_as_before(store, ["a.mp4"])


@pytest.mark.parametrize("as_stream", [True, False])
def test_publish_succeeds_despite_a_leftover_name(
    store: Store, monkeypatch: pytest.MonkeyPatch, as_stream: bool
) -> None:
    unlink = Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.parent == store.parts.directory.objects_tmp and "json" not in path.name:
            raise OSError(errno.EIO, "the disk fails")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", failing)
    if as_stream:
        store.write("a.mp4", CLIP.read_bytes())
    else:
        with store.writer("a.mp4", width=64, height=48, fps=25) as writer:
            writer.write(smooth(3, 64, 48))
        assert len(writer.video) == 3
    assert sorted(store) == ["a.mp4"]


_WRITER = """
    import resource, signal, sys
    import numpy as np
    from vfsd import Store
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Store.open(sys.argv[1]) as store:
        with store.writer("a.mp4", width=64, height=48, fps=25, codec="ffv1") as writer:
            if sys.argv[2] == "full":
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            while True:
                writer.write(np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8))
                print(writer.frames, flush=True)
"""


def _writing(store: Store, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), str(store.path), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_leftovers_of_a_killed_writer_do_not_interfere(store: Store) -> None:
    store.write("b.mp4", smooth(3, 64, 48), fps=25)
    with _writing(store, "kill") as process:
        assert process.stdout
        while int(process.stdout.readline()) < 60:
            pass
        with pytest.raises(BusyError):
            store.write("a.mp4", smooth(3, 64, 48), fps=25)
        assert not collect(store.parts).files  # it is alive
        process.send_signal(signal.SIGKILL)
    assert sorted(store) == ["b.mp4"]
    found = run(store.parts)
    assert {finding.check for finding in found} == {"recordings"}
    store.write("a.mp4", smooth(3, 64, 48), fps=25)
    assert len(collect(store.parts, recording_days=0).files) == 2
    assert is_as_before(store, ["a.mp4", "b.mp4"])
    assert not run(store.parts, deep=True)


def test_file_size_limit_keeps_written_data(store: Store) -> None:
    with _writing(store, "full") as process:
        _, said = process.communicate()
    assert process.returncode == 1
    assert "File too large" in said
    assert "that was written" in said
    (one,) = store.recordings()
    assert len(store.recover(one)) > 3
    assert is_as_before(store, ["a.mp4"])


_STREAM = """
    import io, resource, signal, sys
    from vfsd import Store
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    class Stream(io.BytesIO):
        def read(self, size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
            return super().read(size)
    with Store.open(sys.argv[1]) as store:
        store.write("a.mp4", Stream(open(sys.argv[3], "rb").read()))
"""


@pytest.mark.parametrize("room", [0, 10_000])
def test_full_disk_does_not_report_a_stream_as_saved(store: Store, room: int) -> None:
    program = textwrap.dedent(_STREAM)
    command = [sys.executable, "-c", program, str(store.path), str(room), str(CLIP)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "File too large" in process.stderr
    assert ("not lost" in process.stderr) == bool(room)
    assert len(store.recordings()) == bool(room)
    assert {found.check for found in run(store.parts)} == ({"recordings"} if room else set())


def test_memory_is_independent_of_video_length(store: Store) -> None:
    picture = noise("rgb24", 1, 640, 360)[0]

    def write(count: int) -> int:
        with store.writer("a.mp4", width=640, height=360, fps=25, replace=True) as writer:
            for _ in range(count):
                writer.write(picture)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    first = write(100)
    assert write(400) - first < 60_000  # KiB; the frames have 270 MB


def test_video_can_be_rewritten_from_itself(store: Store) -> None:
    video: Video = store.ingest(CLIP, "a.mp4")
    small = store.write("a.mp4", video.iterate(size=(160, 120)), fps=video.fps, replace=True)
    assert (len(small), small.width, small.height) == (len(video), 160, 120)


class Dripping:
    """A stream that returns at most three bytes per read."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, most: int) -> bytes:
        return self._file.read(min(3, most))


def y4m(count: int = 6) -> bytes:
    """A file in full range with non-square pixels."""
    picture = np.arange(64 * 72, dtype=np.uint16).astype(np.uint8).tobytes()
    head = b"YUV4MPEG2 W64 H48 F10:1 Ip A4:3 C420mpeg2 XCOLORRANGE=FULL\n"
    return head + (b"FRAME\n" + picture) * count


@pytest.mark.parametrize("given_as", [bytes, bytearray, io.BytesIO, Dripping])
def test_yuv4mpeg2_input(store: Store, given_as: type) -> None:
    video = store.write("a.mp4", given_as(y4m()), lossless=True)
    media = video.original.media
    assert (media.codec, len(video), video.fps) == ("h264", 6, Fraction(10))
    assert (media.color_range, media.sample_aspect_ratio) == ("full", Fraction(4, 3))
    assert video.read(frames=range(1), format="yuv420p").data.tobytes() == y4m(1)[-64 * 72 :]
    faster = store.write("b.mp4", given_as(y4m()), fps=20)
    assert faster.fps == 20
    kept = store.write("c.y4m", given_as(y4m()))
    assert kept.original.media.container == "y4m"
    with pytest.raises(UsageError, match="has its own"):
        store.write("d.mp4", given_as(y4m()), fps=20, format="gray")
    with pytest.raises(UsageError, match="rate"):
        store.write("d.mp4", given_as(y4m().replace(b"F10:1", b"F0:0")))
    with pytest.raises(UsageError, match="interlaced") as error:
        store.write("d.mp4", given_as(y4m().replace(b"Ip", b"It")))
    assert "encoded stream" in str(error.value.hint)


def test_truncated_yuv4mpeg2_keeps_whole_frames(store: Store) -> None:
    with pytest.raises(CutOffError, match="frame 5"):
        store.write("a.mp4", io.BytesIO(y4m()[:-7]))
    (recording,) = store.recordings()
    assert len(store.recover(recording)) == 5
