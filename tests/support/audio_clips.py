"""Small generated clips with audio."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.video.stream import VideoStream

from tests.support.clips import pictures

RATE = 48_000
_BLOCK = 1920  # samples per frame at 25 fps


def make_talking(
    path: Path,
    codec: str,
    *,
    frames: int = 75,
    group: int = 15,
    rate: int = 25,
    late: Fraction = Fraction(0),
    video_codec: str = "libx264",
    options: dict[str, str] | None = None,
) -> Path:
    """A clip with B-frames, and audio that never repeats and starts `late` seconds later.

    `options` are those of the muxer.
    """
    with av.open(str(path), "w", options=options or {}) as output:
        video = output.add_stream(video_codec, rate=rate, options={"g": str(group), "bf": "2"})
        assert isinstance(video, VideoStream)
        video.width, video.height, video.pix_fmt, video.thread_count = 96, 64, "yuv420p", 1
        audio = output.add_stream(codec, rate=RATE)
        assert isinstance(audio, AudioStream)
        audio.layout = "mono"
        for at, frame in enumerate(pictures(frames, 96, 64)):
            frame.pts, frame.time_base = at, Fraction(1, rate)
            output.mux(video.encode(frame))
            for block in range(at * 25 // rate, (at + 1) * 25 // rate):
                output.mux(audio.encode(_block(block, round(late * RATE), audio.format.name)))
        output.mux(video.encode(None))
        output.mux(audio.encode(None))
    return path


def make_pausing(path: Path, clip: Path, at: Fraction, pause: int) -> Path:
    """A Matroska `clip` of `make_talking` with a pause of `pause` seconds at second `at`."""
    with av.open(str(clip)) as opened, av.open(str(path), "w", format="matroska") as output:
        streams = {
            stream.index: output.add_stream_from_template(stream) for stream in opened.streams
        }
        found = [packet for packet in opened.demux() if packet.pts is not None]
        for packet in found:
            assert packet.pts is not None
            late = pause if packet.pts * packet.time_base >= at else 0
            packet.pts += int(late / packet.time_base)
        for index, stream in streams.items():
            mine = [packet for packet in found if packet.stream_index == index]
            times = sorted(packet.pts or 0 for packet in mine)
            # Each frame is decoded when the frame two positions earlier is displayed.
            delay = 2 if stream.type == "video" else 0
            step = times[1] - times[0]
            early = [times[0] - step * number for number in range(delay, 0, -1)]
            for packet, time in zip(mine, early + times, strict=False):
                packet.dts = time
        for packet in sorted(found, key=lambda packet: (packet.dts or 0) * packet.time_base):
            packet.stream = streams[packet.stream_index]
            output.mux(packet)
    return path


def _block(number: int, offset: int, form: str) -> av.AudioFrame:
    """A rising tone."""
    at = np.arange(number * _BLOCK, (number + 1) * _BLOCK) / RATE
    tone = 0.4 * np.sin(2 * np.pi * (200 + 150 * at) * at)
    samples = tone.astype(np.float32)[np.newaxis]
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate, frame.pts = RATE, number * _BLOCK + offset
    frame.time_base = Fraction(1, RATE)
    (converted,) = av.AudioResampler(format=form, layout="mono", rate=RATE).resample(frame)
    converted.pts, converted.time_base = frame.pts, frame.time_base
    return converted
