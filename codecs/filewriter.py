"""Writing a video file from pictures, while they come.

Files are made for reading single frames: a key picture every second or so, after which nothing
refers to what was before it, and no B-frames, so that packets come in the order of the pictures.

mp4 and mov are written as fragments, each a few whole groups of pictures, and become an ordinary
file in place when they are finished, by FFmpeg's `hybrid_fragmented`: no packet moves.  Until then
whatever fragments are complete can be read (`vfsd.codecs.prefix`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from io import FileIO
from types import MappingProxyType

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.archive import ArchiveCodec, encoder_options
from vfsd.codecs.encode import LARGEST_SIDE, NOMINAL_RATE
from vfsd.codecs.givensound import SoundFeed, SoundForm, sound_feed
from vfsd.codecs.groupencoder import GROUP_CODECS, GroupEncoder, group_media
from vfsd.codecs.siting import SITINGS
from vfsd.errors import UsageError

MATROSKA_TICK = Fraction(1, 1000)
"""FFmpeg writes Matroska with times in milliseconds."""

_BUFFER_BYTES = 1 << 18
_FRAGMENT_MICROSECONDS = 500_000
"""A fragment ends with the first group of pictures that ends after so long."""
_SOUND_OPTIONS = {"max_interleave_delta": "1000000"}
"""Pictures wait a second at most for sound that has ended."""
_MOV_SOUND_OPTIONS = {"use_editlist": "1", "movie_timescale": "240000"}
"""What encoders put before the first sample is cut off, to a quarter of a sample."""
_TRUE_RATES = range(10, 241)
"""Rates that encoders are told; others change how fine they make pictures."""
_MOV_OPTIONS = {
    "movflags": "hybrid_fragmented+empty_moov+frag_keyframe+default_base_moof",
    "min_frag_duration": str(_FRAGMENT_MICROSECONDS),
}
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mp4": ("mp4", _MOV_OPTIONS),
        "mov": ("mov", _MOV_OPTIONS),
        "matroska": ("matroska", {}),
    }
)
GROWING_CONTAINERS = ("mp4", "mov")
"""Those that can be read while they are written."""


@dataclass(frozen=True, slots=True)
class FileCodec:
    """A codec that files can be written in."""

    name: str  #: FFmpeg's name of the format
    containers: tuple[str, ...]
    quality: int | None  #: the rate factor where nothing is said; None: it has none
    worst: int  #: the coarsest rate factor
    options: Mapping[str, str]
    lossless: Mapping[str, str] | None  #: options instead of a rate factor; None: cannot be
    encoders: Mapping[str, str]  #: the encoder for each pixel format that it takes (FFmpeg's names)
    exact: Mapping[str, str]  #: lossless: how arrays of a pixel format are stored, every bit kept
    lossy: Mapping[str, str]  #: how arrays of a pixel format are stored otherwise


_YUV = ("yuv420p", "yuv422p", "yuv444p", "yuv420p10le")
_OWN = {"yuv420p": "yuv420p", "yuv422p": "yuv422p", "yuv444p": "yuv444p", "nv12": "yuv420p"}
_OWN_DEEP = {**_OWN, "yuv420p10": "yuv420p10le"}
_SHARED = dict.fromkeys(("rgb24", "bgr24", "gray"), "yuv420p")
_DEEP = dict.fromkeys(("rgb48", "gray16"), "yuv420p10le")
_FFV1_EXACT = {
    "rgb24": "bgr0",
    "bgr24": "bgr0",
    "rgb48": "rgb48le",
    "gray": "gray",
    "gray16": "gray16le",
    **_OWN_DEEP,
}

FILE_CODECS: Mapping[str, FileCodec] = MappingProxyType(
    {
        codec.name: codec
        for codec in (
            FileCodec(
                "h264",
                ("mp4", "mov", "matroska"),
                20,
                51,
                {"preset": "veryfast", "x264-params": "bframes=0:open-gop=0"},
                {"qp": "0"},
                {**dict.fromkeys(_YUV, "libx264"), "rgb24": "libx264rgb"},
                {"rgb24": "rgb24", "bgr24": "rgb24", **_OWN_DEEP},
                {**_SHARED, **_DEEP, **_OWN_DEEP},
            ),
            FileCodec(
                "hevc",
                ("mp4", "mov", "matroska"),
                20,
                51,
                {"preset": "veryfast", "x265-params": "bframes=0:open-gop=0:log-level=none"},
                {"x265-params": "bframes=0:open-gop=0:log-level=none:lossless=1"},
                {**dict.fromkeys(_YUV, "libx265"), "gbrp": "libx265"},
                {"rgb24": "gbrp", "bgr24": "gbrp", **_OWN_DEEP},
                {**_SHARED, **_DEEP, **_OWN_DEEP},
            ),
            FileCodec(
                "av1",
                ("mp4", "matroska"),
                30,
                63,
                {"preset": "10", "svtav1-params": "pred-struct=1"},
                None,
                {"yuv420p": "libsvtav1", "yuv420p10le": "libsvtav1"},
                {},
                {**_SHARED, **_DEEP, "yuv420p": "yuv420p", "yuv420p10": "yuv420p10le"},
            ),
            FileCodec(
                "ffv1",
                ("mp4", "matroska"),
                None,
                0,
                {"level": "3", "slicecrc": "1"},
                {"level": "3", "slicecrc": "1"},
                dict.fromkeys(_FFV1_EXACT.values(), "ffv1"),
                _FFV1_EXACT,
                _FFV1_EXACT,
            ),
        )
    }
)
"""By name."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """What a file is written as; made by `file_form`, which checks it."""

    container: str  #: mp4, mov or matroska
    codec: FileCodec
    width: int
    height: int
    pixel_format: str  #: FFmpeg's name of the one that is encoded
    time_base: Fraction  #: seconds per tick
    rate: Fraction  #: frames per second, that the encoder is told
    key_interval: int  #: a key picture after so many pictures, or earlier
    quality: int | None  #: the rate factor; None: lossless
    colors: Mapping[str, str]  #: what the stream is to tell of them, as options of an encoder
    sample_aspect_ratio: Fraction | None = None
    psnr: float | None = None  #: dB of the worst picture, instead of `quality`
    sound: SoundForm | None = None  #: beside the pictures


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
    name = "yuv420p10le" if wanted == "yuv420p10" else wanted or fitting.get(given)
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


def require_size(pixel_format: str, width: int, height: int) -> None:
    """Raises `UsageError` for a size that cannot be encoded in that pixel format."""
    if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        raise UsageError(f"{width}x{height} is no size of a video: 1 to {LARGEST_SIDE} pixels are")
    shared = "420" in pixel_format or "422" in pixel_format
    if (width % 2 and shared) or (height % 2 and "420" in pixel_format):
        raise UsageError(
            f"{width}x{height} is odd, and {pixel_format} has one sample of colour for two pixels",
            hint="take the codec ffv1, the pixel format yuv444p, or frames of an even size",
        )


class FileWriter:
    """Encodes pictures into a file.  Not thread-safe.

    `file` is open for writing at any place, and stays the caller's.  Errors are `UsageError` where
    the encoder refuses, and `OSError` of the file.
    """

    def __init__(self, file: FileIO, form: FileForm) -> None:
        os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 tells of errors only, not of itself
        self._form = form
        self._pts: dict[int, int] = {}  # of the pictures that are in the encoder, by ordinal
        self._given = 0
        self._last = -1  # pts of the picture that came last
        self._step = 1  # ticks between the last two
        muxer, _ = _CONTAINERS[form.container]
        self._output = av.open(
            file,
            "w",
            format=muxer,
            options=_muxer_options(form),
            buffer_size=_BUFFER_BYTES,
        )
        try:
            self._sound: SoundFeed | None = None
            self._encode: Callable[[av.VideoFrame | None], list[Packet[VideoStream]]]
            if form.psnr is None:
                self._stream = self._added(form.codec.encoders[form.pixel_format], self._options())
                self._encode = self._stream.encode
            else:
                self._encode = self._add_groups(GROUP_CODECS[form.codec.name], form.psnr).encode
            if form.sound is not None:
                self._sound = sound_feed(form.sound, form.container, self._output)
        except BaseException:
            self._close()
            raise

    def put(self, picture: av.VideoFrame, pts: int) -> None:
        """The next picture, which is shown from tick `pts` on.

        Raises `UsageError` unless that is later than the one before, also in the file's own ticks.
        """
        if self._given and self._shown(pts) <= self._shown(self._last):
            raise UsageError(
                f"frame {self._given} is shown at {float(pts * self._form.time_base):.6f} s, not "
                f"after the one before it, at {float(self._last * self._form.time_base):.6f} s",
                hint="times have to ascend"
                + (", by a millisecond in Matroska" if self._is_matroska else ""),
            )
        if self._given:
            self._step = pts - self._last
        if self._sound is not None:
            for sounding in self._sound.until(pts * self._form.time_base):
                self._output.mux(sounding)
        picture.pts = self._given
        picture.time_base = 1 / self._form.rate
        picture.pict_type = 0  # else an encoder repeats what a decoder met
        self._pts[self._given] = self._last = pts
        self._given += 1
        for packet in self._encode(picture):
            self._mux(packet)

    def finish(self) -> None:
        """All pictures have come; afterwards the file is whole."""
        for packet in self._encode(None):
            self._mux(packet)
        if self._sound is not None:
            end = (self._last + self._step) * self._form.time_base
            for sounding in self._sound.finish(end):
                self._output.mux(sounding)
            self._sound.close()
        self._output.close()

    def abandon(self) -> None:
        """No more pictures will come, and nobody wants the file."""
        with suppress(FFmpegError, OSError, EOFError, ValueError):
            # SVT-AV1 complains of encoders that go without having been told.
            self._stream.encode(None)
        self._close()

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
        with suppress(FFmpegError, OSError, ValueError):
            self._output.close()

    @property
    def _is_matroska(self) -> bool:
        return self._form.container == "matroska"

    def _shown(self, pts: int) -> int:
        return round(pts * self._form.time_base / MATROSKA_TICK) if self._is_matroska else pts

    def _options(self) -> dict[str, str]:
        form = self._form
        lossless = form.quality is None
        options = form.codec.lossless if lossless else {"crf": str(form.quality)}
        assert options is not None
        return {**form.codec.options, **options, **form.colors}

    def _add_groups(self, codec: ArchiveCodec, psnr: float) -> GroupEncoder:
        form = self._form
        size = form.width, form.height
        media = group_media(
            codec, size, form.pixel_format, form.rate, form.colors, form.sample_aspect_ratio
        )
        # An encoder of its own, which is given nothing, makes the header.
        options = encoder_options(codec, media, codec.quality, SITINGS[0])
        self._stream = self._added(codec.encoder, options)
        return GroupEncoder(codec, media, psnr, form.key_interval)

    def _added(self, encoder: str, options: dict[str, str]) -> VideoStream:
        form = self._form
        stream = self._output.add_stream(encoder, rate=form.rate, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = form.width, form.height
        stream.pix_fmt = form.pixel_format
        stream.time_base = form.time_base
        context = stream.codec_context
        context.time_base = 1 / form.rate
        if form.sample_aspect_ratio is not None:
            context.sample_aspect_ratio = form.sample_aspect_ratio
        context.gop_size = 1 if form.codec.name == "ffv1" else form.key_interval
        try:
            context.open()
        except FFmpegError as error:
            raise UsageError(
                f"{form.width}x{form.height} in {form.pixel_format} cannot be encoded in "
                f"{form.codec.name}: {error.strerror}"
            ) from error
        return stream

    def _mux(self, packet: Packet[VideoStream]) -> None:
        assert packet.pts is not None
        packet.pts = packet.dts = self._pts.pop(packet.pts)
        packet.time_base = self._form.time_base
        # What a picture lasts follows from the next; of the last nothing else is known.
        packet.duration = self._step
        packet.stream = self._stream
        self._output.mux(packet)


def _muxer_options(form: FileForm) -> dict[str, str]:
    options = {"flush_packets": "1", **_CONTAINERS[form.container][1]}
    if form.sound is not None:
        options.update(_SOUND_OPTIONS)
        if form.container in GROWING_CONTAINERS:
            options.update(_MOV_SOUND_OPTIONS)
    return options


def told_rate(rate: Fraction | None) -> Fraction:
    """The rate that an encoder is told of pictures that come at `rate`, or at none."""
    return rate if rate is not None and int(rate) in _TRUE_RATES else NOMINAL_RATE
