"""The clips that are kept in this folder, each with a trait that readers of video trip over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from sample_videos.encoding import Encoding
from sample_videos.scene import Scene

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Clip:
    """How one file is made."""

    trait: str  #: what it is there for
    scene: Scene
    encoding: Encoding


CLIPS: Mapping[str, Clip] = MappingProxyType(
    {
        "traffic.mp4": Clip(
            "H.264 with B-frames, closed GOPs, AAC; the index stands behind the media data",
            Scene(frames=120, density=0.15, seed=1),
            Encoding(audio=True),
        ),
        "open-gop.mov": Clip(
            "H.264 with open GOPs; the index stands before the media data",
            Scene(frames=90, seed=2, rate=Fraction(25)),
            Encoding(gop=24, closed_gop=False, faststart=True),
        ),
        "open-gop.mkv": Clip(
            "HEVC with open GOPs; 29.97 frames per second in a clock of milliseconds",
            Scene(frames=90, seed=3, rate=Fraction(30000, 1001)),
            Encoding("hevc", gop=24, bframes=3, closed_gop=False),
        ),
        "variable-rate.mkv": Clip(
            "H.264 with B-frames in irregular steps; Opus",
            Scene(frames=80, seed=4, pan=12),
            Encoding(gop=20, variable_rate=True, audio=True),
        ),
        "variable-rate.mp4": Clip(
            "HEVC in irregular steps, in a fine clock",
            Scene(frames=60, seed=5),
            Encoding("hevc", gop=15, variable_rate=True),
        ),
        "odd-size.webm": Clip(
            "VP9 with odd dimensions; Opus",
            Scene(321, 243, frames=60, seed=6),
            Encoding("vp9", gop=20, audio=True),
        ),
        "av1.mp4": Clip(
            "AV1 with hidden frames that others refer to",
            Scene(frames=60, seed=7),
            Encoding("av1", gop=20),
        ),
        "mpeg4.avi": Clip(
            "MPEG-4 part 2 and MP3; frames are counted, not timed",
            Scene(frames=50, seed=8, rate=Fraction(25)),
            Encoding("mpeg4", gop=12, bframes=0, audio=True),
        ),
        "mjpeg.avi": Clip(
            "Motion JPEG, full range: every frame is a key frame; from day to night and back",
            Scene(160, 120, frames=40, seed=9, rate=Fraction(10), drift=0.6),
            Encoding("mjpeg"),
        ),
        "transport.ts": Clip(
            "H.264 and AAC in an MPEG transport stream; the clock does not start at zero",
            Scene(frames=60, seed=10, rate=Fraction(50)),
            Encoding(gop=25, audio=True),
        ),
        "elementary.h264": Clip(
            "a bare H.264 stream with B-frames: no container, no timestamps",
            Scene(frames=60, seed=11, rate=Fraction(25)),
            Encoding(gop=20),
        ),
        "fragmented.mp4": Clip(
            "H.264 and AAC in fragments, the index spread over the file",
            Scene(frames=60, seed=12),
            Encoding(gop=15, audio=True, fragmented=True),
        ),
        "edit-list.mp4": Clip(
            "an edit list hides the first seven frames, in the middle of a GOP",
            Scene(frames=60, seed=13),
            Encoding(gop=20, start=Fraction(-7, 30)),
        ),
        "late-start.mp4": Clip(
            "an edit list shows the first frame half a second after the sound began",
            Scene(frames=45, seed=14),
            Encoding(gop=15, audio=True, start=Fraction(1, 2)),
        ),
        "portrait.mp4": Clip(
            "coded lying on its side: to be turned clockwise by a quarter before it is shown",
            Scene(240, 320, frames=45, seed=15),
            Encoding(gop=15, rotation=90),
        ),
    }
)
"""By file name."""
