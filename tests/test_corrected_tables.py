"""Frame tables that a full decode corrects, while others read by the old one."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from vfsd.store import Store
from vfsd.video import Video

FRAMES = 120
HOLE = 49
"""The packet that shows nothing; every tenth is a key picture."""


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Each picture brighter than the one before; packets promise one more than there is."""
    path = tmp_path / "holes.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25, options={"g": "10", "bf": "0", "crf": "10"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(FRAMES):
            picture = np.full((48, 64, 3), 2 * number, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size]
        position = packets[HOLE].pos
    assert position is not None
    data = bytearray(path.read_bytes())
    data[position + 5 : position + 8] = b"\x98\x14\x80"  # a slice of no picture
    path.write_bytes(data)
    return path


def shades(video: Video, frames: range) -> list[int]:
    return [int(picture[24, 32, 0]) for picture in video.read(frames=frames).data]


def test_decoders_that_are_warm_do_not_count_by_the_old_table(store: Store, clip: Path) -> None:
    """It is corrected by another process, as the one of a mount that verifies."""
    video = store.ingest(clip, "a.mp4")
    assert len(video) == FRAMES
    video.read(frames=range(40))  # leaves a decoder
    with Store.open(store.parts.directory.root) as other:
        assert other["a.mp4"].verify()
        right = shades(other["a.mp4"], range(60, 115))
    again = store["a.mp4"]
    assert len(again) == FRAMES - 1
    assert shades(again, range(60, 115)) == right
    assert right[0] == pytest.approx(2 * 61, abs=2)


def test_a_read_that_finds_the_hole_is_right_beside_decoders_that_are_warm(
    store: Store, clip: Path
) -> None:
    video = store.ingest(clip, "a.mp4")
    video.read(frames=range(20))
    video.read(frames=range(100, 119))
    found = shades(video, range(30, 115))
    assert len(video) == FRAMES - 1
    assert found[0] == pytest.approx(60, abs=2)
    assert found[-1] == pytest.approx(2 * 115, abs=2)
