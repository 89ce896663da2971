"""Small generated clips of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.core.model import MediaInfo


def pictures(count: int, width: int, height: int, *, seed: int = 1) -> list[av.VideoFrame]:
    """A drifting texture with noise, so that all frames differ."""
    chance = np.random.default_rng(seed)
    texture = chance.integers(0, 256, (height + count, width + count, 3), dtype=np.uint8)
    texture = (texture // 4 + np.arange(width + count, dtype=np.uint8)[:, np.newaxis]).astype(
        np.uint8
    )
    frames = []
    for at in range(count):
        picture = texture[at // 2 : at // 2 + height, at : at + width].copy()
        picture[at % height, :] = 255
        frames.append(av.VideoFrame.from_ndarray(picture, format="rgb24"))
    return frames


def make_clip(
    path: Path,
    codec: str,
    *,
    options: Mapping[str, str] | None = None,
    pixel_format: str = "yuv420p",
    frames: int = 40,
    width: int = 96,
    height: int = 64,
    rate: int | Fraction = 25,
    container: str | None = None,
) -> Path:
    """Encode `pictures` into a file; its suffix selects the container unless `container` does."""
    with av.open(str(path), "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, options=dict(options or {}))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.thread_count = 1
        for at, frame in enumerate(pictures(frames, width, height)):
            frame.pts, frame.time_base = at, 1 / Fraction(rate)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def remuxed(
    made: Path, path: Path, change: Callable[[int, bytes], bytes], is_key: Callable[[int], bool]
) -> Path:
    """A copy of a clip with replaced payloads and key flags, by packet number."""
    with av.open(str(made)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        for number, packet in enumerate(source.demux(old)):
            if packet.size:
                fresh = cast("Packet[VideoStream]", Packet(change(number, bytes(packet))))
                fresh.pts, fresh.dts, fresh.duration = packet.pts, packet.dts, packet.duration
                fresh.time_base, fresh.stream = packet.time_base, new
                fresh.is_keyframe = is_key(number)
                target.mux(fresh)
    return path


def media_of(
    width: int, height: int, pixel_format: str, rotation: int = 0, *, mirrored: bool = False
) -> MediaInfo:
    """The metadata of a video with these frames."""
    return MediaInfo(
        container="mp4",
        codec="h264",
        profile=None,
        width=width,
        height=height,
        pixel_format=pixel_format,
        time_base=Fraction(1, 30),
        average_rate=None,
        rotation=rotation,
        mirrored=mirrored,
    )
