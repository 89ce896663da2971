"""The codecs and containers in which video files can be written, and the pixel format that each
array format is stored in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from vfsd.codecs.audio.audio_input import AudioOptions
from vfsd.codecs.encoding.encoder import MAX_ENCODED_SIDE, NOMINAL_RATE
from vfsd.codecs.registry import SVT_AV1_LOW_DELAY
from vfsd.errors import UsageError

_TRUE_RATES = range(10, 241)
"""Rates that encoders are told; others change how fine they make pictures."""


_TEN = {f"yuv{shared}p10": f"yuv{shared}p10le" for shared in ("420", "422", "444")}
_TWELVE = {f"yuv{shared}p12": f"yuv{shared}p12le" for shared in ("420", "422", "444")}
_DEEP_NAMES = MappingProxyType({**_TEN, **_TWELVE})
_NONE: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileCodec:
    """A codec that files can be written in."""

    name: str  #: FFmpeg's name of the format; raw: bare samples
    containers: tuple[str, ...]
    quality: int | None  #: the rate factor where nothing is said; None: it has none
    rate_factors: range  #: from the finest to the coarsest
    options: Mapping[str, str]
    lossless: Mapping[str, str] | None  #: options instead of a rate factor; None: cannot be
    encoders: Mapping[str, str]  #: the encoder for each pixel format that it takes (FFmpeg's names)
    exact: Mapping[str, str]  #: lossless: how arrays of a pixel format are stored, every bit kept
    lossy: Mapping[str, str]  #: how arrays of a pixel format are stored otherwise
    is_intra: bool = False  #: all pictures are key pictures
    measured: bool = False  #: it can be written with a PSNR that is asked for
    names: Mapping[str, str] = field(default_factory=lambda: _DEEP_NAMES)
    """Pixel formats that it holds, by other names that they have."""
    narrower: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    """Where only some of `containers` hold a pixel format: those."""


_YUV = ("yuv420p", "yuv422p", "yuv444p", *_TEN.values())
_YUV_EXACT = {"yuv420p": "yuv420p", "yuv422p": "yuv422p", "yuv444p": "yuv444p", "nv12": "yuv420p"}
_YUV_EXACT_DEEP = {**_YUV_EXACT, **_TEN}
_ROUNDED = {twelve: _TEN[f"{twelve[:-1]}0"] for twelve in _TWELVE}
"""Where there are no more than ten bits."""
_SUBSAMPLED = dict.fromkeys(("rgb24", "bgr24", "gray"), "yuv420p")
_DEEP_LOSSY = dict.fromkeys(("rgb48", "gray16"), "yuv420p10le")
_JPEG_NAMES = {"yuv420p": "yuvj420p", "yuv422p": "yuvj422p", "yuv444p": "yuvj444p"}
"""JPEG's samples have full range, which FFmpeg tells by these names."""
# FFmpeg's muxers write rawvideo in formats without a code of their own, and then read another
# format back. Each value is a format that MOV or Matroska can name.
_RAW_EXACT = {
    "rgb24": "bgr24",  # FFmpeg reads other rows of rgb24 in mov than it writes, in some widths
    **{name: name for name in ("bgr24", "gray", "yuv420p", "yuv422p", "nv12")},
    "rgb48": "rgb48be",  # mov has codes for those whose higher byte comes first
    "gray16": "gray16be",
    "yuv444p": "vyu444",
}
# MP4 has no registered code for FFV1; FFmpeg writes `FFV1` with a `glbl` box and reads it.
_FFV1_EXACT = {
    "rgb24": "bgr0",
    "bgr24": "bgr0",
    "rgb48": "rgb48le",
    "gray": "gray",
    "gray16": "gray16le",
    **_YUV_EXACT_DEEP,
    **_TWELVE,
}

FILE_CODECS: Mapping[str, FileCodec] = MappingProxyType(
    {
        codec.name: codec
        for codec in (
            FileCodec(
                "h264",
                ("mp4", "mov", "matroska"),
                20,
                range(52),
                {"preset": "veryfast", "x264-params": "bframes=0:open-gop=0"},
                {"qp": "0"},
                {**dict.fromkeys(_YUV, "libx264"), "rgb24": "libx264rgb"},
                {"rgb24": "rgb24", "bgr24": "rgb24", **_YUV_EXACT_DEEP},
                {**_SUBSAMPLED, **_DEEP_LOSSY, **_YUV_EXACT_DEEP, **_ROUNDED},
                measured=True,
            ),
            FileCodec(
                "hevc",
                ("mp4", "mov", "matroska"),
                20,
                range(52),
                {"preset": "veryfast", "x265-params": "bframes=0:open-gop=0:log-level=none"},
                {"x265-params": "bframes=0:open-gop=0:log-level=none:lossless=1"},
                {**dict.fromkeys((*_YUV, *_TWELVE.values()), "libx265"), "gbrp": "libx265"},
                {"rgb24": "gbrp", "bgr24": "gbrp", **_YUV_EXACT_DEEP, **_TWELVE},
                {**_SUBSAMPLED, **_DEEP_LOSSY, **_YUV_EXACT_DEEP, **_TWELVE},
                measured=True,
            ),
            FileCodec(
                "av1",
                ("mp4", "matroska"),
                30,
                range(64),
                {"preset": "9", "svtav1-params": SVT_AV1_LOW_DELAY},
                None,
                {"yuv420p": "libsvtav1", "yuv420p10le": "libsvtav1"},
                {},
                {
                    **{**_SUBSAMPLED, **_DEEP_LOSSY, "nv12": "yuv420p"},
                    **{"yuv420p": "yuv420p", "yuv420p10": "yuv420p10le"},
                },
                measured=True,
            ),
            FileCodec(
                "ffv1",
                ("mp4", "matroska"),
                None,
                range(0),
                {"level": "3", "slicecrc": "1"},
                {"level": "3", "slicecrc": "1"},
                dict.fromkeys(_FFV1_EXACT.values(), "ffv1"),
                _FFV1_EXACT,
                _FFV1_EXACT,
                is_intra=True,
            ),
            FileCodec(
                "mjpeg",
                ("mp4", "mov", "matroska"),
                3,
                range(1, 32),
                {"huffman": "optimal"},
                None,
                dict.fromkeys(_JPEG_NAMES.values(), "mjpeg"),
                {},
                {**dict.fromkeys(("rgb24", "bgr24", "gray", "nv12"), "yuvj420p"), **_JPEG_NAMES},
                is_intra=True,
                names=_JPEG_NAMES,
            ),
            FileCodec(
                "raw",
                ("mov", "matroska"),
                None,
                range(0),
                {},
                {},
                dict.fromkeys(_RAW_EXACT.values(), "rawvideo"),
                _RAW_EXACT,
                _RAW_EXACT,
                is_intra=True,
                names=_RAW_EXACT,
                narrower={
                    **dict.fromkeys(("bgr24", "rgb48be", "gray16be"), ("mov",)),
                    **dict.fromkeys(("gray", "yuv420p", "yuv422p", "nv12"), ("matroska",)),
                },
            ),
        )
    }
)
"""By name."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What a file is written as; made by `file_form`, which checks it."""

    container: str  #: mp4, mov or matroska
    codec: FileCodec
    width: int
    height: int
    pixel_format: str  #: FFmpeg's name of the one that is encoded
    time_base: Fraction  #: seconds per tick
    rate: Fraction  #: frames per second, that the encoder is told
    key_interval: int  #: a key picture after so many pictures, or earlier
    quality: int | None  #: the rate factor, of JPEG the quantiser; None: lossless
    colors: Mapping[str, str]  #: what the stream is to tell of them, as options of an encoder
    sample_aspect_ratio: Fraction | None = None
    psnr: float | None = None  #: dB of the worst picture, instead of `quality`
    sound: AudioOptions | None = None  #: beside the pictures


COLOR_RANGES = ("limited", "full")
COLOR_SPACES = ("bt709", "smpte170m", "bt470bg", "bt2020nc")
BT709 = MappingProxyType(
    {
        "colorspace": "bt709",
        "color_primaries": "bt709",
        "color_trc": "bt709",
        "color_range": "limited",
    }
)


def stored_format(codec: FileCodec, given: str, wanted: str | None, lossless: bool) -> str:
    """The pixel format in which arrays in the format `given` are encoded, in FFmpeg's name.

    `wanted`: that one, instead of the one that suits best.  Raises `UsageError` where that cannot
    be, or not without loss although it must.
    """
    if lossless and codec.lossless is None:
        raise UsageError(f"{codec.name} is not written without loss", hint="take ffv1")
    fitting = codec.exact if lossless else codec.lossy
    name = codec.names.get(wanted, wanted) if wanted else fitting.get(given)
    if name is None:
        raise UsageError(
            f"{given} does not go into {codec.name}{' without loss' if lossless else ''}",
            hint=f"it takes {', '.join(fitting)}; ffv1 takes all",
        )
    if name not in codec.encoders:
        raise UsageError(
            f"{codec.name} does not hold {name}", hint=f"it holds {', '.join(codec.encoders)}"
        )
    if lossless and codec.exact.get(given) != name:
        raise UsageError(f"{given} is not the same any more once it is {name}")
    return name


def require_container(codec: FileCodec, pixel_format: str, container: str) -> None:
    """Raises `UsageError` where pictures in that format cannot go into that container."""
    containers = codec.narrower.get(pixel_format, codec.containers)
    if container not in containers:
        what = codec.name if containers == codec.containers else f"{codec.name} {pixel_format}"
        raise UsageError(
            f"{what} does not go into {container}", hint=f"it goes into {', '.join(containers)}"
        )


def require_size(pixel_format: str, width: int, height: int) -> None:
    """Raises `UsageError` for a size that cannot be encoded in that pixel format."""
    if not (0 < width <= MAX_ENCODED_SIDE and 0 < height <= MAX_ENCODED_SIDE):
        raise UsageError(
            f"width and height must be 1 to {MAX_ENCODED_SIDE} pixels, got {width}x{height}"
        )
    shared = "420" in pixel_format or "422" in pixel_format
    if (width % 2 and shared) or (height % 2 and "420" in pixel_format):
        raise UsageError(
            f"{width}x{height} is odd, and {pixel_format} has one sample of colour for two pixels",
            hint="take the codec ffv1, the pixel format yuv444p, or frames of an even size",
        )


def nominal_rate(rate: Fraction | None) -> Fraction:
    """The rate that an encoder is told of pictures that come at `rate`, or at none."""
    return rate if rate is not None and int(rate) in _TRUE_RATES else NOMINAL_RATE
