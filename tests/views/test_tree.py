"""The tree below ``NAME@/``: names, sizes, errors, and that lookups render nothing.  Views of
another video stream of a file, below ``NAME@/stream=N/``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.video.stream import VideoStream

from sample_videos import CLIPS
from tests.support.clips import pictures
from tests.support.fs_driver import Driver, failing
from tests.support.selection import one_in
from tests.views.conftest import Shelf
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.mount.fs import Filesystem
from vfsd.views import Views
from vfsd.views import views as views_module


def test_folder_listing(shelf: Shelf) -> None:
    video = shelf.video("traffic.mp4")
    ino = video.info.ino
    assert shelf.views.list(ino, "") == [
        ("README.txt", False),
        ("explain", True),
        ("frames", True),
        ("info.json", False),
        ("layout", True),
        ("layout.png", False),
        ("moments", True),
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
def test_invalid_names_are_not_found(shelf: Shelf, path: str) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    with pytest.raises(NotFoundError):
        shelf.views.stat(ino, path)
    with pytest.raises(NotFoundError):
        shelf.views.open(ino, path)
    with pytest.raises(NotFoundError):
        shelf.views.list(ino, path)


def test_unknown_folders_and_inodes(shelf: Shelf) -> None:
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
def test_invalid_views_are_refused(
    shelf: Shelf, path: str, error: type[UsageError | OutOfRangeError]
) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    with pytest.raises(error):
        shelf.views.stat(ino, path)
    with pytest.raises(error):
        shelf.views.open(ino, path)


def test_stat_does_not_read_the_video(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_info_shows_properties(shelf: Shelf) -> None:
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


def test_info_shows_tags_and_metadata(fresh: Shelf) -> None:
    before = fresh.read("traffic.mp4", "info.json")
    assert fresh.read("traffic.mp4", "info.json") == before
    info = fresh.video("traffic.mp4").info
    fresh.store.catalog.tag(info, "night")
    fresh.store.catalog.set_metadata(info, place="north gate")
    told = json.loads(fresh.read("traffic.mp4", "info.json"))
    assert told["tags"] == ["night"]
    assert told["metadata"] == {"place": "north gate"}
    assert fresh.size("traffic.mp4", "info.json") != len(before)


# --------------------------------------------------------------------------------------------------
# Views of another video stream of a file, below ``NAME@/stream=N/``


FRAMES = (24, 30, 18)
SIZES = ((96, 64), (64, 48), (48, 96))


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    with closing(Views(store.parts, store.tools)) as opened:
        yield opened


def angles(path: Path, *, cover: bool = False) -> Path:
    """Three video streams of different lengths and sizes, with audio between them."""
    with av.open(str(path), "w") as output:
        streams = []
        for number, (width, height) in enumerate(SIZES):
            codec = "mpeg2video" if number == 2 else "libx264"
            stream = output.add_stream(codec, rate=25, options={"g": "12", "bf": "2"})
            assert isinstance(stream, VideoStream)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.thread_count = 1
            streams.append(stream)
            if number == 0:
                sound = output.add_stream("aac", rate=48000, layout="mono")
        if cover:
            still = output.add_stream("mjpeg", rate=1)
            assert isinstance(still, VideoStream)
            still.width, still.height, still.pix_fmt = 32, 32, "yuvj420p"
            still.disposition = av.stream.Disposition.attached_pic
            picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")
            output.mux(still.encode(picture))
            output.mux(still.encode(None))
        for number, stream in enumerate(streams):
            for at, frame in enumerate(pictures(FRAMES[number], *SIZES[number], seed=number + 1)):
                frame.pts, frame.time_base = at, Fraction(1, 25)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        for at in range(20):
            tone = np.sin(np.arange(at * 1024, (at + 1) * 1024) / 9).astype(np.float32)
            samples = av.AudioFrame.from_ndarray(tone[np.newaxis], "fltp", "mono")
            samples.sample_rate, samples.pts = 48000, at * 1024
            output.mux(sound.encode(samples))
        output.mux(sound.encode(None))
    return path


def shown(path: Path, index: int) -> list[bytes]:
    """The output of FFmpeg for the stream with that index: the planes of each frame."""
    with av.open(str(path)) as opened:
        stream = next(one for one in opened.streams if one.index == index)
        assert isinstance(stream, VideoStream)
        return [one.to_ndarray(format="yuv420p").tobytes() for one in opened.decode(stream)]


@pytest.mark.parametrize("name", one_in(3, ["a.mkv", "a.mp4", "a.ts"]))
def test_views_of_each_stream_are_exact(store: Store, tmp_path: Path, name: str) -> None:
    path = angles(tmp_path / name)
    video = store.ingest(path, name)
    with av.open(str(path)) as opened:
        numbers = [stream.index for stream in opened.streams.video]
    assert len(numbers) == 3
    for number in numbers:
        expected = shown(path, number)
        single = store.ingest(path, f"only-{number}-{name}", stream=number)
        for view in ("full.yuv", "t=0.2-0.6.yuv", "frames/000007.png"):
            with (
                video.views.open(f"stream={number}/{view}") as file,
                single.views.open(view) as alone,
            ):
                data = file.read()
                assert data == alone.read()
            if view == "full.yuv":
                assert data == b"".join(expected)
            if view == "t=0.2-0.6.yuv":
                assert data == b"".join(expected[5:15])
        with (
            video.views.open(f"stream={number}/full.mkv") as file,
            av.open(io.BytesIO(file.read()), "r") as it,
        ):
            assert [one.to_ndarray().tobytes() for one in it.decode(video=0)] == expected


def test_two_streams_of_one_file_share_no_view(store: Store, views: Views, tmp_path: Path) -> None:
    """Both streams have the same bytes and the same number of frames."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as output:
        for _ in range(2):
            stream = output.add_stream("ffv1", rate=25)
            assert isinstance(stream, VideoStream)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number, stream in enumerate(output.streams.video):
            for at, frame in enumerate(pictures(5, 64, 48, seed=number + 1)):
                frame.pts = at
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    for number in (0, 1):
        store.ingest(path, f"{number}.mkv", stream=number)
    it = Driver(Filesystem(store.parts, views=views))
    for number in (0, 1):
        expected = b"".join(shown(path, number))
        assert it.read(f"/{number}.mkv@/full.yuv") == expected
        assert it.read(f"/{1 - number}.mkv@/stream={number}/full.yuv") == expected
    it.fs.close()


def test_stream_folders_exist_for_several_streams(
    store: Store, views: Views, tmp_path: Path
) -> None:
    path = angles(tmp_path / "a.mp4", cover=True)
    video = store.ingest(path, "a.mkv")
    it = Driver(Filesystem(store.parts, views=views))
    with av.open(str(path)) as opened:
        numbers = [stream.index for stream in opened.streams.video][:3]
    own = video.original.media.stream_index
    listed = {name for name in it.names("/a.mkv@") if name.startswith("stream=")}
    assert listed == {f"stream={number}" for number in numbers if number != own}
    other = next(number for number in numbers if number != own)
    assert sorted(it.names(f"/a.mkv@/stream={other}")) == sorted(
        ["README.txt", "explain", "frames", "info.json", "why"]
    )
    count = FRAMES[numbers.index(other)]
    assert len(it.names(f"/a.mkv@/stream={other}/frames")) == count
    still = it.read(f"/a.mkv@/stream={other}/frames/000003.png")
    picture = cv2.imdecode(np.frombuffer(still, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    height, width, _ = picture.shape
    assert (width, height) == SIZES[numbers.index(other)]
    for wrong in ("stream=9", "stream=1/full.mkv", f"stream={other}/objects", "stream=x"):
        assert failing(it.fs.getattr, f"/a.mkv@/{wrong}") == "ENOENT"
    with pytest.raises(NotFoundError, match="no video stream 9"):
        video.views.open("stream=9/full.mkv")
    explained = video.views.explain(f"stream={other}/full.mkv")
    assert explained.frames == count
    it.fs.close()
