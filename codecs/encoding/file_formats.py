"""The codecs and containers of written video files.

`FILE_CODECS` lists the pixel formats in which each codec stores arrays.
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
"""Frame rates that encoders get. Others would change the quality of pictures."""


_TEN = {f"yuv{shared}p10": f"yuv{shared}p10le" for shared in ("420", "422", "444")}
_TWELVE = {f"yuv{shared}p12": f"yuv{shared}p12le" for shared in ("420", "422", "444")}
_DEEP_NAMES = MappingProxyType({**_TEN, **_TWELVE})
_NONE: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileCodec:
    """A codec in which files can be written."""

    name: str  #: FFmpeg's name of the codec; raw: uncompressed samples
    containers: tuple[str, ...]
    quality: int | None  #: default rate factor; None: the codec has none
    rate_factors: range  #: valid rate factors, from the finest to the coarsest
    options: Mapping[str, str]
    lossless: Mapping[str, str] | None  #: options of lossless encoding; None: always lossy
    encoders: Mapping[str, str]  #: FFmpeg's encoder by pixel format
    exact: Mapping[str, str]  #: pixel format of lossless storage by array format
    lossy: Mapping[str, str]  #: pixel format of lossy storage by array format
    is_intra: bool = False  #: every picture is a key picture
    measured: bool = False  #: supports a target PSNR
    names: Mapping[str, str] = field(default_factory=lambda: _DEEP_NAMES)
    """FFmpeg's names of pixel formats, by the names that users may give."""
    narrower: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    """Containers of a pixel format, if only some of `containers` hold it."""


_YUV = ("yuv420p", "yuv422p", "yuv444p", *_TEN.values())
_YUV_EXACT = {"yuv420p": "yuv420p", "yuv422p": "yuv422p", "yuv444p": "yuv444p", "nv12": "yuv420p"}
_YUV_EXACT_DEEP = {**_YUV_EXACT, **_TEN}
_ROUNDED = {twelve: _TEN[f"{twelve[:-1]}0"] for twelve in _TWELVE}
"""Twelve-bit formats rounded to ten bits, for codecs that have no more."""
_SUBSAMPLED = dict.fromkeys(("rgb24", "bgr24", "gray"), "yuv420p")
_DEEP_LOSSY = dict.fromkeys(("rgb48", "gray16"), "yuv420p10le")
_JPEG_NAMES = {"yuv420p": "yuvj420p", "yuv422p": "yuvj422p", "yuv444p": "yuvj444p"}
"""JPEG samples have full range; FFmpeg has separate names for it."""
# FFmpeg's muxers also write rawvideo in formats without a code of their own, and read another
# format back. Each value is a format that MOV or Matroska can name.
_RAW_EXACT = {
    "rgb24": "bgr24",  # for some widths, FFmpeg reads rgb24 rows in mov wrongly
    **{name: name for name in ("bgr24", "gray", "yuv420p", "yuv422p", "nv12")},
    "rgb48": "rgb48be",  # mov has codes for big-endian samples only
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
"""Codecs by name."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The checked options of a file to write; made by `file_form`."""

    container: str  #: mp4, mov or matroska
    codec: FileCodec
    width: int
    height: int
    pixel_format: str  #: FFmpeg's name of the one that is encoded
    time_base: Fraction  #: seconds per tick
    rate: Fraction  #: nominal frames per second for the encoder
    key_interval: int  #: most pictures from one key picture to the next
    quality: int | None  #: the rate factor, for JPEG the quantizer; None: lossless
    colors: Mapping[str, str]  #: colors that the stream declares, as options of an encoder
    sample_aspect_ratio: Fraction | None = None
    psnr: float | None = None  #: target in dB for the worst picture, instead of `quality`
    sound: AudioOptions | None = None  #: None: the file has no audio


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
    """Return FFmpeg's name of the pixel format in which arrays of format `given` are encoded.

    `wanted` overrides the best one. Raises `UsageError` if that is impossible, or if it is lossy
    while `lossless` is set.
    """
    if lossless and codec.lossless is None:
        raise UsageError(f"{codec.name} cannot be written losslessly", hint="use ffv1")
    fitting = codec.exact if lossless else codec.lossy
    name = codec.names.get(wanted, wanted) if wanted else fitting.get(given)
    if name is None:
        raise UsageError(
            f"{codec.name} cannot store {given}{' losslessly' if lossless else ''}",
            hint=f"{codec.name} stores {', '.join(fitting)}; ffv1 stores all formats",
        )
    if name not in codec.encoders:
        raise UsageError(
            f"{codec.name} does not support pixel format {name}",
            hint=f"use one of {', '.join(codec.encoders)}",
        )
    if lossless and codec.exact.get(given) != name:
        raise UsageError(f"{given} cannot be stored losslessly as {name}")
    return name


def require_container(codec: FileCodec, pixel_format: str, container: str) -> None:
    """Raise `UsageError` if the container cannot hold the codec in that pixel format."""
    containers = codec.narrower.get(pixel_format, codec.containers)
    if container not in containers:
        what = codec.name if containers == codec.containers else f"{codec.name} {pixel_format}"
        raise UsageError(f"{container} cannot hold {what}", hint=f"use {', '.join(containers)}")


def require_size(pixel_format: str, width: int, height: int) -> None:
    """Raise `UsageError` for a size that cannot be encoded in that pixel format."""
    if not (0 < width <= MAX_ENCODED_SIDE and 0 < height <= MAX_ENCODED_SIDE):
        raise UsageError(
            f"width and height must be 1 to {MAX_ENCODED_SIDE} pixels, got {width}x{height}"
        )
    shared = "420" in pixel_format or "422" in pixel_format
    if (width % 2 and shared) or (height % 2 and "420" in pixel_format):
        raise UsageError(
            f"size must be even for {pixel_format}, got {width}x{height}",
            hint="use codec ffv1, pixel format yuv444p, or frames of an even size",
        )


def nominal_rate(rate: Fraction | None) -> Fraction:
    """Return the rate that an encoder gets for pictures that come at `rate`; None: unknown."""
    return rate if rate is not None and int(rate) in _TRUE_RATES else NOMINAL_RATE
