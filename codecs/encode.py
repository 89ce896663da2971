"""Encoding runs of pictures that decode on their own, the same bytes every time.

x264 and x265 with one thread, no B-frames and one key picture at the front: packets come in the
order of the pictures, one each, so that the i-th packet is shown when the i-th picture is and
whoever writes them down gives them their times.  The parameter sets depend on the settings but
not on the quality or the pictures: runs of different quality go into one file behind one header.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from vfsd.codecs import bits, nal
from vfsd.errors import UsageError
from vfsd.model import MediaInfo

Picture = av.VideoFrame | npt.NDArray[Any]
"""A frame in yuv420p, or its planes one below the other as an array of bytes."""

LARGEST_SIDE = 16384
SMALLEST_SIDE = {"h264": 2, "hevc": 16}
WORST_QUALITY = 51
"""The coarsest quantiser of both codecs."""

_X264 = (
    "bframes=0:keyint=infinite:scenecut=0:open-gop=0:rc-lookahead=0"
    ":mbtree=0"  # its results differ from run to run where AVX-512 is used
    ":stitchable=1"  # the picture parameter set does not tell the quality
    ":threads=1:lookahead-threads=1:sliced-threads=0"
)
_X265 = (
    "bframes=0:keyint=-1:scenecut=0:open-gop=0:rc-lookahead=1"
    ":repeat-headers=0:info=0:log-level=none:pools=none:frame-threads=1:wpp=0"
)
_ENCODERS = {
    "h264": ("libx264", {"preset": "veryfast", "x264-params": _X264}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": _X265}),
}
_UNKNOWN_TO_ENCODERS = ("ebu3213",)
_MATRIX_OF_RGB = "smpte170m"
_H264_SEI = 6
NOMINAL_RATE = Fraction(25)
"""What encoders are told: they make pictures finer that are shown for longer, and a low rate would
take many times the bytes.  The true rate is written into the parameter sets afterwards."""
_TICKS_PER_PICTURE = {"h264": 2, "hevc": 1}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How to encode.  Colours are named as in `MediaInfo`; None: not told."""

    codec: str  #: "h264" or "hevc"
    width: int  #: even
    height: int  #: even
    quality: int  #: constant rate factor, 0 (best) to `WORST_QUALITY`
    rate: Fraction  #: frames per second, as the stream claims; times are the container's business
    sample_aspect_ratio: Fraction | None = None
    color_range: str | None = None
    color_space: str | None = None
    color_primaries: str | None = None
    color_transfer: str | None = None
    profile: str | None = None  #: H.264: baseline, main or high; None: as it comes
    number: int = 0  #: H.264: that of the parameter sets, below 32

    def with_colors_of(self, media: MediaInfo) -> EncoderSettings:
        """For pictures of `media` as `PixelConverter` makes them yuv420p."""
        return dataclasses.replace(
            self,
            color_range=media.color_range,
            color_space=_MATRIX_OF_RGB if media.color_space == "rgb" else media.color_space,
            color_primaries=media.color_primaries,
            color_transfer=media.color_transfer,
        )


def require_encodable(codec: str, width: int, height: int) -> None:
    """Raises `UsageError` for sizes that the encoder does not take."""
    if min(width, height) < SMALLEST_SIDE[codec] or max(width, height) > LARGEST_SIDE:
        raise UsageError(
            f"{width}x{height} cannot be encoded in {codec}: sides of {SMALLEST_SIDE[codec]} to "
            f"{LARGEST_SIDE} pixels can"
        )


def parameter_sets(settings: EncoderSettings) -> tuple[bytes, ...]:
    """The NAL units that go into the header; equal for settings that differ in quality only."""
    sets = nal.parameter_sets(settings.codec, _opened(settings).extradata or b"")
    return tuple(_retimed(settings.codec, unit, settings.rate) for unit in sets)


def encode(settings: EncoderSettings, pictures: Iterable[Picture]) -> Iterator[bytes]:
    """The packets of `pictures`, one each, with start codes and without parameter sets.

    The first is a key packet, the only one.  Raises `UsageError` where the encoder refuses.
    """
    context = _opened(settings)
    count = given = 0
    for count, picture in enumerate(pictures, start=1):
        for packet in context.encode(_frame(picture, count - 1, context)):
            yield _payload(settings, bytes(packet), given)
            given += 1
    for packet in context.encode(None) if count else ():
        yield _payload(settings, bytes(packet), given)
        given += 1


def _opened(settings: EncoderSettings) -> VideoCodecContext:
    require_encodable(settings.codec, settings.width, settings.height)
    name, options = _ENCODERS[settings.codec]
    context = av.CodecContext.create(name, "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height = settings.width, settings.height
    context.pix_fmt = "yuv420p"
    context.framerate = NOMINAL_RATE
    context.time_base = 1 / NOMINAL_RATE
    context.thread_count = 1
    if settings.sample_aspect_ratio is not None:
        context.sample_aspect_ratio = settings.sample_aspect_ratio
    context.options = {
        "crf": str(settings.quality),
        "flags": "+global_header+cgop",
        **color_options(settings),
        **options,
        **_beside_another(settings),
    }
    try:
        context.open()
    except FFmpegError as error:
        raise UsageError(
            f"{settings.width}x{settings.height} at {settings.rate} frames per second cannot be "
            f"encoded in {settings.codec}: {error.strerror}"
        ) from error
    return context


def _beside_another(settings: EncoderSettings) -> dict[str, str]:
    """Options for packets that stand in one file with those of another encoder."""
    options = {}
    if settings.profile is not None:
        options["profile"] = settings.profile
    if settings.number:
        options["x264-params"] = f"{_X264}:sps-id={settings.number}"
    return options


def _retimed(codec: str, unit: bytes, rate: Fraction) -> bytes:
    """A parameter set that tells the nominal rate (as ticks a second), with `rate` instead."""
    ticks = _TICKS_PER_PICTURE[codec]
    nominal = NOMINAL_RATE.denominator << 32 | NOMINAL_RATE.numerator * ticks
    told = rate.denominator << 32 | rate.numerator * ticks
    payload = bits.unescaped(unit)
    value = int.from_bytes(payload, "big")
    for shift in range(len(payload) * 8 - 64 + 1):
        if value >> shift & (1 << 64) - 1 == nominal:
            value ^= (nominal ^ told) << shift
            return bits.escaped(value.to_bytes(len(payload), "big"))
    return unit


def color_options(colors: EncoderSettings | MediaInfo) -> dict[str, str]:
    """What an encoder is to be told of colours, as options."""
    told = {
        "color_range": colors.color_range,
        "colorspace": colors.color_space,
        "color_primaries": colors.color_primaries,
        "color_trc": colors.color_transfer,
    }
    return {key: name for key, name in told.items() if name and name not in _UNKNOWN_TO_ENCODERS}


def _frame(picture: Picture, ordinal: int, context: VideoCodecContext) -> av.VideoFrame:
    if isinstance(picture, np.ndarray):
        picture = av.VideoFrame.from_ndarray(picture, format="yuv420p")
    picture.pts = ordinal
    picture.time_base = context.time_base
    picture.pict_type = 0  # else an encoder repeats what the decoder met
    return picture


def _payload(settings: EncoderSettings, packet: bytes, ordinal: int) -> bytes:
    """Without what x264 tells of itself in front of the first picture."""
    if settings.codec != "h264" or ordinal:
        return packet
    kept = (packet[a:b] for a, b in nal.units(packet, 0) if packet[a] & 0x1F != _H264_SEI)
    return b"".join(nal.START_CODE + unit for unit in kept)
