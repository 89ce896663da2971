"""How a scene is coded, and which containers can hold it that way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Encoding:
    """Settings of a file.  The container follows from the file's suffix.

    The defaults of `crf` and `preset` depend on the codec and favour speed.
    """

    codec: str = "h264"  #: h264, hevc, vp9, av1, mpeg4 or mjpeg
    gop: int = 30  #: frames from one key frame to the next; no meaning for mjpeg
    bframes: int = 2  #: in a row at most; av1: 0 means no reordering; not for vp9, mjpeg
    closed_gop: bool = True  #: may be False for h264, hevc and mpeg4
    crf: int | None = None  #: in the codec's own scale: lower is better
    preset: str | None = None  #: x264's or x265's name, libvpx's cpu-used, SVT-AV1's number
    pixel_format: str = "yuv420p"
    variable_rate: bool = False  #: frames follow each other in irregular steps
    audio: bool = False  #: with a mono sine sweep
    faststart: bool = False  #: mp4, mov: the index stands before the media data
    fragmented: bool = False  #: mp4, mov: a fragment for each GOP
    rotation: int = 0  #: clockwise degrees that a player turns the coded picture
    start: Fraction = Fraction(0)
    """Seconds at which frame 0 is shown, rounded to a frame where the rate is constant.  An edit
    list hides frames below zero.  mp4 and mov only."""
    threads: int = 1  #: of the encoder; some codecs give other bytes with another number

    @property
    def encoder(self) -> str:
        """FFmpeg's name of the encoder."""
        return _CODERS[self.codec].name

    def options(self) -> dict[str, str]:
        """The encoder's private options."""
        coder = _CODERS[self.codec]
        crf = str(coder.crf if self.crf is None else self.crf)
        return coder.options(self, crf, self.preset or coder.preset)


@dataclass(frozen=True, slots=True)
class Container:
    """Features of a file format."""

    format: str  #: FFmpeg's name of the muxer
    codecs: frozenset[str]
    audio_encoder: str | None = None
    timestamps: bool = True  #: of any step; else frames are merely counted
    edit_lists: bool = False  #: and fragments, and a choice of where the index stands
    rotation: bool = False


@dataclass(frozen=True, slots=True)
class _Coder:
    name: str
    crf: int
    preset: str
    options: Callable[[Encoding, str, str], dict[str, str]]


def _x264(encoding: Encoding, crf: str, preset: str) -> dict[str, str]:
    # Without mbtree: its AVX-512 code gives other bytes from one run to the next.
    parameters = (
        f"keyint={encoding.gop}:min-keyint={encoding.gop}:scenecut=0:bframes={encoding.bframes}"
        f":open-gop={int(not encoding.closed_gop)}:mbtree=0"
    )
    return {"crf": crf, "preset": preset, "x264-params": parameters}


def _x265(encoding: Encoding, crf: str, preset: str) -> dict[str, str]:
    pools = "none" if encoding.threads == 1 else str(encoding.threads)
    parameters = (
        f"keyint={encoding.gop}:min-keyint={encoding.gop}:scenecut=0:bframes={encoding.bframes}"
        f":open-gop={int(not encoding.closed_gop)}:pools={pools}:frame-threads=1:log-level=error"
    )
    return {"crf": crf, "preset": preset, "x265-params": parameters}


def _vp9(encoding: Encoding, crf: str, preset: str) -> dict[str, str]:
    return {
        "crf": crf,
        "b": "0",
        "deadline": "good",
        "cpu-used": preset,
        "row-mt": str(int(encoding.threads > 1)),
        "keyint_min": str(encoding.gop),
    }


def _av1(encoding: Encoding, crf: str, preset: str) -> dict[str, str]:
    prediction = 2 if encoding.bframes else 1  # random access, or low delay
    parameters = f"lp={encoding.threads}:pred-struct={prediction}"
    return {"crf": crf, "preset": preset, "svtav1-params": parameters}


def _mpeg4(encoding: Encoding, crf: str, _preset: str) -> dict[str, str]:
    closed = {"flags": "+cgop"} if encoding.closed_gop else {}
    never = "1000000000"  # of all frames, those at a change of scene would become key frames
    return {"qmin": crf, "qmax": crf, "bf": str(encoding.bframes), "sc_threshold": never, **closed}


def _mjpeg(_encoding: Encoding, crf: str, _preset: str) -> dict[str, str]:
    return {"qmin": crf, "qmax": crf}


_CODERS: Mapping[str, _Coder] = MappingProxyType(
    {
        "h264": _Coder("libx264", 26, "veryfast", _x264),
        "hevc": _Coder("libx265", 28, "veryfast", _x265),
        "vp9": _Coder("libvpx-vp9", 36, "5", _vp9),
        "av1": _Coder("libsvtav1", 40, "10", _av1),
        "mpeg4": _Coder("mpeg4", 6, "", _mpeg4),
        "mjpeg": _Coder("mjpeg", 8, "", _mjpeg),
    }
)

CODECS = tuple(_CODERS)

CONTAINERS: Mapping[str, Container] = MappingProxyType(
    {
        ".mp4": Container("mp4", frozenset(CODECS), "aac", edit_lists=True, rotation=True),
        ".mov": Container(
            "mov", frozenset(CODECS) - {"vp9", "av1"}, "aac", edit_lists=True, rotation=True
        ),
        ".mkv": Container("matroska", frozenset(CODECS), "libopus", rotation=True),
        ".webm": Container("webm", frozenset({"vp9", "av1"}), "libopus"),
        ".avi": Container(
            "avi", frozenset({"h264", "mpeg4", "mjpeg"}), "libmp3lame", timestamps=False
        ),
        ".ts": Container("mpegts", frozenset({"h264", "hevc", "mpeg4"}), "aac"),
        ".h264": Container("h264", frozenset({"h264"}), timestamps=False),
        ".hevc": Container("hevc", frozenset({"hevc"}), timestamps=False),
    }
)
"""By the suffix of the file's name."""


def container_for(encoding: Encoding, path: Path) -> Container:
    """The container that `path` asks for by its suffix.

    Raises `ValueError` where `encoding` contradicts itself or the container cannot hold it.
    """
    container = CONTAINERS.get(path.suffix)
    if container is None:
        raise ValueError(f"{path.name} must end in one of {', '.join(CONTAINERS)}")
    complaints = {
        f"there is no codec {encoding.codec}": encoding.codec not in CODECS,
        f"{encoding.codec} does not fit": encoding.codec not in container.codecs,
        f"{encoding.codec} has no open GOPs": (
            not encoding.closed_gop and encoding.codec not in ("h264", "hevc", "mpeg4")
        ),
        f"a GOP of {encoding.gop} frames is too short": encoding.gop < 1,
        "B-frames need timestamps": (
            container.format == "avi" and encoding.codec != "mjpeg" and encoding.bframes > 0
        ),
        "a variable rate needs timestamps": encoding.variable_rate and not container.timestamps,
        "there is no place for audio": encoding.audio and container.audio_encoder is None,
        "there are no fragments": encoding.fragmented and not container.edit_lists,
        "the index has one place only": encoding.faststart and not container.edit_lists,
        "fragments have no single index": encoding.faststart and encoding.fragmented,
        "there are no edit lists": encoding.start != 0
        and (encoding.fragmented or not container.edit_lists),
        "a rotation is 0, 90, 180 or 270": encoding.rotation not in (0, 90, 180, 270),
        "there is no place for a rotation": encoding.rotation != 0 and not container.rotation,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise ValueError(f"{path.name}: {complaint}")
    return container
