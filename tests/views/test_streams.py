"""Views of another video stream of a file, below ``NAME@/stream=N/``."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.video.stream import VideoStream

from tests.codecs.making import pictures
from tests.fs.driver import Driver, failing
from vfsd.api.store import Store
from vfsd.errors import NotFoundError
from vfsd.mount.fs import Filesystem
from vfsd.views import Views

FRAMES = (24, 30, 18)
SIZES = ((96, 64), (64, 48), (48, 96))


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    with closing(Views(store.parts, store.tools)) as opened:
        yield opened


def angles(path: Path, *, cover: bool = False) -> Path:
    """Three video streams of different lengths and sizes, with sound between them."""
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
    """What FFmpeg decodes of the stream with that number: the planes of each picture."""
    with av.open(str(path)) as opened:
        stream = next(one for one in opened.streams if one.index == index)
        assert isinstance(stream, VideoStream)
        return [one.to_ndarray(format="yuv420p").tobytes() for one in opened.decode(stream)]


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.ts"])
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
    """Their bytes and their number of frames are the same."""
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


def test_folders_show_streams_where_there_are_several(
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
