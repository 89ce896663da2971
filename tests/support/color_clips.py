"""Files with a change of the color coding at one frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

Rgb = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 128, 96
RATE = 25
_NUMBERS = {"bt709": 1, "smpte170m": 6}


@dataclass(frozen=True, slots=True)
class Coding:
    """The color coding of a part of a stream.

    A field that is None is not signalled, and the samples are then limited range or BT.601.
    """

    range: str | None = None  #: tv or pc
    matrix: str | None = None  #: bt709 or smpte170m

    @property
    def number(self) -> int:
        """FFmpeg's number of the color matrix."""
        return _NUMBERS[self.matrix or "smpte170m"]


UNTOLD = Coding()
LIMITED_709 = Coding("tv", "bt709")
LIMITED_601 = Coding("tv", "smpte170m")
FULL_UNTOLD = Coding("pc")
FULL_709 = Coding("pc", "bt709")
FULL_601 = Coding("pc", "smpte170m")


def shown(number: int) -> Rgb:
    """The picture of frame `number`: colors, never gray, that change slowly across it."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = [40 + x * 1.4, 30 + y * 1.5 + number % 50, 220 - (x + y) * 0.7 - number % 50]
    return np.stack(planes, axis=-1).astype(np.uint8)


def coded(pixels: Rgb, coding: Coding, pixel_format: str = "yuv420p") -> av.VideoFrame:
    """A picture in the color coding `coding`, without attributes that say so."""
    full = coding.range == "pc"
    made = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
        format="yuv420p", dst_colorspace=coding.number, dst_color_range=2 if full else 1
    )
    bare = av.VideoFrame(made.width, made.height, pixel_format)
    for source, target in zip(made.planes, bare.planes, strict=True):
        target.update(bytes(source))
    return bare


_FINE = {"crf": "8", "g": "10"}


def _h264(coding: Coding) -> tuple[str, str, dict[str, str]]:
    told = {"range": coding.range, "colormatrix": coding.matrix}
    parameters = ":".join(f"{key}={value}" for key, value in told.items() if value)
    pixel_format = "yuvj420p" if coding.range == "pc" else "yuv420p"
    return (
        "libx264",
        pixel_format,
        {**_FINE, "bf": "0", **({"x264-params": parameters} if parameters else {})},
    )


def _hevc(coding: Coding) -> tuple[str, str, dict[str, str]]:
    told = {
        "range": {"pc": "full", "tv": "limited"}.get(coding.range or ""),
        "colormatrix": coding.matrix,
    }
    parameters = "".join(f":{key}={value}" for key, value in told.items() if value)
    return (
        "libx265",
        "yuv420p",
        {"crf": "8", "x265-params": f"log-level=none:keyint=10{parameters}"},
    )


_ENCODERS: dict[str, Callable[[Coding], tuple[str, str, dict[str, str]]]] = {
    "h264": _h264,
    "hevc": _hevc,
}


def encoded(
    path: Path,
    encoder: str,
    frames: Sequence[av.VideoFrame],
    options: Mapping[str, str] | None = None,
    *,
    format: str | None = None,
    told: Mapping[str, int] | None = None,
) -> Path:
    """A file of frames; `told`: attributes of the encoder's context, which the container repeats.

    The container is `format`, or as `path` ends.
    """
    with av.open(str(path), "w", format=format) as output:
        stream = output.add_stream(encoder, rate=RATE, options=dict(options or {}))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = frames[0].width, frames[0].height
        stream.pix_fmt = frames[0].format.name
        for name, value in (told or {}).items():
            setattr(stream.codec_context, name, value)
        for number, frame in enumerate(frames):
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def part(path: Path, coding: Coding, pictures: Sequence[Rgb], codec: str = "h264") -> Path:
    """An elementary stream of `codec` whose packets signal `coding`."""
    encoder, pixel_format, options = _ENCODERS[codec](coding)
    frames = [coded(pixels, coding, pixel_format) for pixels in pictures]
    return encoded(path, encoder, frames, options, format=None if path.suffix else codec)


def concatenated(
    path: Path, codings: Sequence[Coding], pictures: Sequence[Rgb], codec: str = "h264"
) -> Path:
    """One stream in which each coding has an equal share of the pictures.

    The suffix of `path` selects a container or an elementary stream.
    """
    each = len(pictures) // len(codings)
    runs = [pictures[at : at + each] for at in range(0, len(pictures), each)]
    bare = path.with_suffix("") if path.suffix != f".{codec}" else path
    data = b"".join(
        part(path.with_name(f"part{number}"), coding, run, codec).read_bytes()
        for number, (coding, run) in enumerate(zip(codings, runs, strict=True))
    )
    bare.write_bytes(data)
    if bare != path:
        _put_into(path, bare, codec)
    return path


def _put_into(path: Path, bare: Path, codec: str) -> None:
    with av.open(str(bare), format=codec) as source, av.open(str(path), "w") as output:
        stored = source.streams.video[0]
        stream = output.add_stream_from_template(stored)
        assert stored.time_base is not None
        ticks = 0
        for packet in source.demux(stored):
            if packet.size:
                packet.stream = stream
                packet.pts = packet.dts = ticks
                packet.time_base = stored.time_base
                packet.duration = round(1 / (RATE * stored.time_base))
                ticks += packet.duration
                output.mux(packet)
