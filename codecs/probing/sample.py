"""A small video with a subtitle stream, made on the spot: can this installation examine it?"""

from __future__ import annotations

import io
from fractions import Fraction

import av

_FRAMES = 5
_RATE = Fraction(25)
_WIDTH, _HEIGHT = 64, 64
_ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name
Style: Default

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
"""FFmpeg opens no encoder of subtitles without one."""


def sample_video() -> bytes:
    """A Matroska file of `_FRAMES` frames of MPEG-4 video, 64x64, and one line of SubRip.

    Raises what PyAV raises where it does not work.
    """
    made = io.BytesIO()
    with av.open(made, "w", format="matroska") as container:
        pictures = container.add_stream("mpeg4", rate=_RATE)
        pictures.width, pictures.height, pictures.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        words = container.add_stream("subrip")
        words.codec_context.subtitle_header = _ASS_HEADER
        for number in range(_FRAMES):
            frame = av.VideoFrame(_WIDTH, _HEIGHT, "yuv420p")
            frame.pts, frame.time_base = number, 1 / _RATE
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            container.mux(pictures.encode(frame))
        container.mux(pictures.encode())
        line = av.Packet(b"sample")
        line.stream, line.time_base = words, Fraction(1, 1000)
        line.pts = line.dts = 0
        line.duration = 100
        container.mux(line)
    return made.getvalue()
