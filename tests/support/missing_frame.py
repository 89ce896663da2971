"""A video with one packet that shows no frame, so that a full decode corrects the count."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream

FRAMES = 120
"""The number of packets."""
HOLE = 49
"""The packet without a frame; every tenth packet is a key picture."""


def make_clip(path: Path) -> Path:
    """A clip of 64x48 in which each frame is brighter than the previous one."""
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
