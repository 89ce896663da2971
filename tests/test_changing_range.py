"""A stream of which the levels of luma mean something else from one picture on."""

from __future__ import annotations

import math
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from vfsd.errors import UsageError
from vfsd.planned import TileSettings
from vfsd.store import Store
from vfsd.video import Video

FRAMES = 20
"""Of each part."""


def part(path: Path, *, full: bool) -> bytes:
    with av.open(str(path), "w", format="h264") as output:
        options = {"g": "10", "bf": "0", "x264-params": f"fullrange={'on' if full else 'off'}"}
        stream = output.add_stream("libx264", rate=25, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = 128, 96
        stream.pix_fmt = "yuvj420p" if full else "yuv420p"
        for number in range(FRAMES):
            picture = av.VideoFrame(128, 96, stream.pix_fmt)
            for plane, level in zip(picture.planes, (60 + number, 128, 128), strict=True):
                np.frombuffer(plane, np.uint8)[:] = level  # type: ignore[call-overload]
            output.mux(stream.encode(picture))
        output.mux(stream.encode(None))
    return path.read_bytes()


@pytest.fixture
def video(store: Store, tmp_path: Path) -> Video:
    """Limited range, then full range.  (The other way round FFmpeg takes all for full.)"""
    path = tmp_path / "both.h264"
    parts = [part(tmp_path / "part.h264", full=full) for full in (False, True)]
    path.write_bytes(b"".join(parts))
    return store.ingest(path)


def test_gray_is_that_of_each_picture(video: Video) -> None:
    frames = [5, FRAMES + 5, 6, FRAMES + 6]
    together = video.read(frames=frames, format="gray").data
    alone = [video.read(frames=[frame], format="gray").data[0] for frame in frames]
    assert [int(one[9, 9, 0]) for one in together] == [int(one[9, 9, 0]) for one in alone]
    assert int(together[0][9, 9, 0]) != int(together[1][9, 9, 0])


@pytest.mark.parametrize("codec", ["fast", "lossless"])
def test_it_is_not_tiled_or_rendered(video: Video, codec: str) -> None:
    video.budget.set("none")
    before = video.read(psnr=math.inf).data
    with pytest.raises(UsageError):
        video.retile("uniform:1x2", settings=TileSettings(codec))
    with pytest.raises(UsageError):
        video.render((64, 48), settings=TileSettings(codec))
    assert np.array_equal(video.read().data, before)
