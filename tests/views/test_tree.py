"""What is below ``NAME@/``: names, sizes, errors, and that looking makes nothing."""

from __future__ import annotations

import json

import pytest

from sample_videos import CLIPS
from tests.views.conftest import Shelf
from vfsd.api.video import context_of
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.views import Views
from vfsd.views import views as views_module


def test_the_folder_and_what_it_lists(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    ino = video.info.ino
    assert shelf.views.list(ino, "") == [
        ("README.txt", False),
        ("explain", True),
        ("frames", True),
        ("info.json", False),
        ("layout", True),
        ("layout.png", False),
        ("objects", True),
        ("why", True),
    ]
    assert shelf.views.list(ino, "explain") == [("frames", True)]
    assert shelf.views.list(ino, "explain/frames") == []
    assert shelf.views.list(ino, "layout") == [(f"{second}.png", False) for second in range(4)]
    frames = shelf.views.list(ino, "frames")
    assert frames[0] == ("000000.png", False)
    assert frames[-1] == ("000119.png", False)
    assert len(frames) == len(video)
    for path in ("", "frames"):
        found = shelf.views.stat(ino, path)
        assert found.is_dir
        assert found.mtime_ns == video.info.modified_ns
    for path in ("info.json", "full.mp4", "frames/000007.png"):
        found = shelf.views.stat(ino, path)
        assert not found.is_dir
        assert found.size > 0
        assert found.mtime_ns == video.info.modified_ns


def test_very_many_frames_are_not_listed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_module, "MAX_LISTED", 119)
    ino = shelf.video("traffic.mp4").info.ino
    assert shelf.views.list(ino, "frames") == []
    assert shelf.size("traffic.mp4", "frames/000007.png") > 0


@pytest.mark.parametrize(
    "path",
    [
        "nonsense",
        "t=1-2.avi",
        "frames/x.png",
        "frames/1.gif",
        "frames/1.png/more",
        "other/full.mp4",
        "full.mp4/x",
        "info.json/x",
        "explain/full.mp4",
        "explain/nonsense.json",
        "explain/info.json.json",
        "explain/frames/x.png.json",
        "explain/other/full.mp4.json",
        "layout/x.png",
        "layout/1.jpg",
        "layout/1.png/more",
        "layout.png/more",
        "layout.jpg",
        "/",
    ],
)
def test_names_that_say_nothing_are_not_found(shelf: Shelf, path: str) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    with pytest.raises(NotFoundError):
        shelf.views.stat(ino, path)
    with pytest.raises(NotFoundError):
        shelf.views.open(ino, path)
    with pytest.raises(NotFoundError):
        shelf.views.list(ino, path)


def test_folders_and_inodes_that_are_none(shelf: Shelf) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    for path in ("", "frames", "layout", "explain", "explain/frames", "why", "why/frames"):
        with pytest.raises(NotFoundError):
            shelf.views.open(ino, path)
    for what in (shelf.views.stat, shelf.views.list, shelf.views.open):
        with pytest.raises(NotFoundError):
            what(999_999, "")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("t=100-200.mp4", OutOfRangeError),
        ("t=3.99-3.995.mp4", OutOfRangeError),
        ("frames=0-121.mp4", OutOfRangeError),
        ("roi=100x100+300+0.mp4", OutOfRangeError),
        ("roi=321x1+0+0.rgb", OutOfRangeError),
        ("frames/120.png", OutOfRangeError),
        ("frames/120.jpg", OutOfRangeError),
        ("layout/4.png", OutOfRangeError),
        ("explain/roi=100x100+300+0.mp4.json", OutOfRangeError),
        ("explain/frames/120.png.json", OutOfRangeError),
        ("explain/t=2-1.mp4.json", UsageError),
        ("t=2-1.mp4", UsageError),
        ("size=20000x2.mp4", UsageError),
    ],
)
def test_what_cannot_be_had_is_refused(
    shelf: Shelf, path: str, error: type[UsageError | OutOfRangeError]
) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    with pytest.raises(error):
        shelf.views.stat(ino, path)
    with pytest.raises(error):
        shelf.views.open(ino, path)


def test_sizes_are_told_without_reading_the_video(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("stat reads the video")

    sizes = {
        path: len(fresh.read("traffic.mp4", path))
        for path in (
            "full.mp4",
            "t=1.5-2.mkv",
            "fps=5.hevc",
            "full.rgb",
            "frames/7.png",
            "README.txt",
            "why/t=20-30.mp4",
            "why/frames/7.jpg",
            "layout.png",
            "layout/2.5.png",
            "explain/roi=64x64+0+0.mp4.json",
        )
    }
    for kind in (FrameDecoder, PacketReader):
        monkeypatch.setattr(kind, "__init__", refuse)
    monkeypatch.setattr("vfsd.views.transcode.encode_pictures", refuse)
    monkeypatch.setattr("vfsd.views.transcode.parameter_sets", refuse)
    views = Views(fresh.store.parts, fresh.store.tools)
    ino = fresh.video("traffic.mp4").info.ino
    assert len(views.list(ino, "frames")) == 120
    for path, size in sizes.items():
        assert views.stat(ino, path).size == size
        views.open(ino, path).close()
    views.close()


def test_info_tells_what_is_known(shelf: Shelf) -> None:
    for name in CLIPS:
        video = shelf.video(name)
        told = json.loads(shelf.read(name, "info.json"))
        assert told["name"] == name
        assert told["digest"] == video.info.digest
        assert told["frames"] == len(video)
        assert told["seconds"] == float(video.duration)
        assert (told["width"], told["height"]) == (video.width, video.height)
        assert told["groups"]["count"] == len(list(context_of(video).table.gops()))
        assert [stored["role"] for stored in told["stored"]] == ["original"]
    assert json.loads(shelf.read("open-gop.mov", "info.json"))["groups"]["open"] > 0
    assert json.loads(shelf.read("traffic.mp4", "info.json"))["groups"]["open"] == 0


def test_info_follows_what_users_attach(fresh: Shelf) -> None:
    before = fresh.read("traffic.mp4", "info.json")
    assert fresh.read("traffic.mp4", "info.json") == before
    info = fresh.video("traffic.mp4").info
    fresh.store.catalog.tag(info, "night")
    fresh.store.catalog.set_metadata(info, place="north gate")
    told = json.loads(fresh.read("traffic.mp4", "info.json"))
    assert told["tags"] == ["night"]
    assert told["metadata"] == {"place": "north gate"}
    assert fresh.size("traffic.mp4", "info.json") != len(before)
