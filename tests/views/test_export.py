"""Views without a mount: written to files, and read as files.

Single frames as files.
"""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from sample_videos import CLIPS
from tests.support.selection import one_in
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import _ffprobe, psnr
from vfsd.core.output_formats import CONTAINERS
from vfsd.core.view_request import parse_view_path
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError
from vfsd.views.rendered_view import TextView
from vfsd.views.view_resolver import RecentViews

NAMES = ["full.mp4", "t=1.5-3,size=64x48.mkv", "fps=5.y4m", "full.rgb", "roi=32x32+5+5.hevc"]


@pytest.mark.parametrize("name", NAMES)
def test_opened_view_equals_the_mounted_file(shelf: Shelf, name: str) -> None:
    wanted = shelf.read("traffic.mp4", name)
    with shelf.video("traffic.mp4").views.open(name) as file:
        assert file.read() == wanted
        assert file.seek(0, os.SEEK_END) == file.tell() == len(wanted)
        file.seek(-1000, os.SEEK_END)
        assert file.read(100) == wanted[-1000:-900]
        file.seek(7)
        assert file.read(9) == wanted[7:16]
        with pytest.raises(ValueError, match="cannot seek"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()


@pytest.mark.parametrize(
    ("video", "name"),
    [
        ("traffic.mp4", "fps=5.y4m"),
        ("traffic.mp4", "t=1-1.5,roi=33x31+5+5.rgb"),
        ("traffic.mp4", "t=1-1.5,size=160x120,pix=nv12.yuv"),
        ("portrait.mp4", "t=0-0.5.y4m"),
        ("portrait.mp4", "t=0-0.5,pix=yuv420p10.y4m"),
    ],
)
def test_saved_raw_view_equals_the_mounted_file(
    shelf: Shelf, tmp_path: Path, video: str, name: str
) -> None:
    path = tmp_path / "saved"
    size = shelf.video(video).views.save(path, parse_view_path(name))
    assert path.read_bytes() == shelf.read(video, name)
    assert size == path.stat().st_size > 0


def test_libraries_accept_an_opened_view(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    with video.views.open("frames=3-23,codec=av1.mp4") as file, av.open(file, mode="r") as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 20


@pytest.mark.parametrize(
    "name",
    one_in(
        3,
        [
            *("info.json", "layout.png", "layout/1.png", "explain/t=0-1.mp4.json"),
            *("frames/000003.jpg", "frames/000003.png", "frames/000003.npy"),
            "explain/frames/000003.png.json",
            "objects/car/000003-0.jpg",
        ],
    ),
)
def test_all_view_files_can_be_read_in_python(fresh: Shelf, name: str) -> None:
    video = fresh.video("traffic.mp4")
    video.labels.add_box(3, "car", (10, 20, 60, 70), source="me")
    wanted = fresh.read("traffic.mp4", name)
    with video.views.open(name) as file:
        assert file.read() == wanted
        assert file.seek(0, os.SEEK_END) == len(wanted) > 0


def test_invalid_view_names_are_refused(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    name: Any
    for name, error in (
        ("frames/999999.png", OutOfRangeError),
        *((folder, NotFoundError) for folder in ("", "frames", "layout", "explain", "objects")),
        *((none, UsageError) for none in (None, 3, b"full.mp4")),
        ("full.avi", NotFoundError),
        ("t=9-5.mp4", UsageError),
        ("t=90-95.mp4", OutOfRangeError),
    ):
        with pytest.raises(error):
            video.views.open(name)


def times(data: bytes) -> list[float]:
    return [float(frame.time or 0) for frame in decoded(data)]


@pytest.mark.parametrize(
    ("suffix", "codec"),
    one_in(
        4,
        [
            *(("mp4", codec) for codec in CONTAINERS["mp4"]),
            *(("mkv", codec) for codec in CONTAINERS["matroska"]),
            ("h264", None),
        ],
    ),
)
def test_saved_files_have_equal_frames_without_padding(
    shelf: Shelf, tmp_path: Path, suffix: str, codec: str | None
) -> None:
    path = tmp_path / f"saved.{suffix}"
    video = shelf.video("traffic.mp4")
    size = video.save(path, span=(0.3, 2.8), size=(160, 0), codec=codec)
    saved = path.read_bytes()
    chosen = f",codec={codec}" if codec else ""
    mounted = shelf.read("traffic.mp4", f"t=0.3-2.8,size=160x0{chosen}.{suffix}")
    assert size == len(saved) < len(mounted)
    assert [f.to_ndarray().tobytes() for f in decoded(saved)] == [
        f.to_ndarray().tobytes() for f in decoded(mounted)
    ]
    if suffix != "h264":
        assert times(saved) == times(mounted)
        told = _ffprobe(path)
        assert int(told["stream"]["nb_read_frames"]) == 75
        assert float(told["format"]["duration"]) == pytest.approx(2.5, abs=0.03)  # and its audio


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_saved_files_are_seekable(shelf: Shelf, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"saved.{suffix}"
    shelf.video("traffic.mp4").save(path, size=(160, 120))
    every = decoded(path.read_bytes())
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        for number in (100, 3, 61, 118):
            opened.seek(every[number].pts or 0, stream=stream)
            frame = next(f for f in opened.decode(stream) if f.pts == every[number].pts)
            np.testing.assert_array_equal(frame.to_ndarray(), every[number].to_ndarray())


def test_saved_copies_and_raw_pixels_equal_mounted_files(shelf: Shelf, tmp_path: Path) -> None:
    video = shelf.video("traffic.mp4")
    done: list[int] = []
    assert video.save(tmp_path / "a.mp4", on_progress=done.append) == sum(done)
    assert (tmp_path / "a.mp4").read_bytes() == shelf.read("traffic.mp4", "full.mp4")
    video.save(tmp_path / "a.raw", span=(1, 2), region=(0, 0, 80, 60), format="gray16")
    assert (tmp_path / "a.raw").read_bytes() == shelf.read(
        "traffic.mp4", "t=1-2,roi=80x60+0+0,pix=gray16.raw"
    )


def test_save_is_atomic(shelf: Shelf, tmp_path: Path) -> None:
    video = shelf.video("traffic.mp4")
    path = tmp_path / "a.mp4"

    def give_up(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        video.save(path, size=(64, 48), on_progress=give_up)
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"mine")
    with pytest.raises(ExistsError):
        video.save(path, size=(64, 48))
    with pytest.raises(OutOfRangeError):
        video.save(path, span=(70, 80), replace=True)
    assert path.read_bytes() == b"mine"
    video.save(path, size=(64, 48), replace=True)
    assert len(decoded(path.read_bytes())) == len(video)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


def test_arguments_unsupported_by_the_extension_are_refused(shelf: Shelf, tmp_path: Path) -> None:
    video = shelf.video("traffic.mp4")
    for name, more in (
        ("a.avi", {}),
        ("a", {}),
        ("a.h264", {"codec": "ffv1"}),
        ("a.mp4", {"format": "rgb24"}),
        ("a.rgb", {"codec": "h264"}),
        ("a.mkv", {"codec": "vp9"}),
    ):
        with pytest.raises(UsageError):
            video.save(tmp_path / name, **more)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_pipe_output_equals_the_mounted_file(shelf: Shelf, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    got = io.BytesIO()

    def take() -> None:
        with open(pipe, "rb") as file:
            got.write(file.read())

    reader = threading.Thread(target=take)
    reader.start()
    shelf.video("traffic.mp4").views.save(pipe, parse_view_path("size=64x48.mp4"))
    reader.join()
    assert got.getvalue() == shelf.read("traffic.mp4", "size=64x48.mp4")


# --------------------------------------------------------------------------------------------------
# Single frames as files


@pytest.mark.parametrize("name", one_in(4, CLIPS))
def test_stills_show_the_displayed_frame(shelf: Shelf, name: str) -> None:
    video = shelf.video(name)
    for index in (0, 17, len(video) - 1):
        right = video[index].data
        array = np.load(io.BytesIO(shelf.read(name, f"frames/{index:06}.npy")))
        assert array.dtype == np.uint8
        assert np.array_equal(array, right)
        png = _picture(shelf.read(name, f"frames/{index:06}.png"))
        assert np.array_equal(png, right)
        assert psnr(_picture(shelf.read(name, f"frames/{index}.jpg")), right) > 30


def test_jpeg_is_made_when_its_size_is_requested(fresh: Shelf) -> None:
    size = fresh.size("traffic.mp4", "frames/5.jpg")
    assert size == len(fresh.read("traffic.mp4", "frames/5.jpg"))
    assert len(list(fresh.store.parts.directory.cache.rglob("*"))) > 0


def _picture(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    return np.asarray(decoded, np.uint8)[:, :, ::-1]


def test_only_recent_stills_are_cached() -> None:
    recent = RecentViews[int]()
    for number in range(50_000):
        recent.put(number, TextView(b""))
    assert recent.get(0) is None
    assert recent.get(49_999) is not None
