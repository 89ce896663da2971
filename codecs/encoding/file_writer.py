"""Writes video files from frames and audio that the caller passes piece by piece.

`FileFormat` says which codecs and pixel formats a container takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from io import FileIO
from types import MappingProxyType
from typing import cast

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.audio.audio_input import (
    AudioOptions,
    AudioPacketSource,
    PushedAudio,
    open_audio_source,
)
from vfsd.codecs.audio.samples import AudioArray, AudioSamples
from vfsd.codecs.containers.file_timestamps import FileTimestamps
from vfsd.codecs.encoding.archive_encoder import (
    ARCHIVE_CODECS,
    ArchiveCodec,
    ReencodedRun,
    archive_encoder_options,
    coarsest_run,
    encode_run,
)
from vfsd.codecs.encoding.encoder import MAX_ENCODED_SIDE, NOMINAL_RATE
from vfsd.codecs.frames.color import SITINGS
from vfsd.codecs.pyav import SVT_AV1_LOW_DELAY, open_encoder, open_output
from vfsd.core.model import MediaInfo, error_from_psnr
from vfsd.errors import UsageError

# Frame rates that encoders get. Others would change the quality of pictures.
_TRUE_RATES = range(10, 241)


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
# Twelve-bit formats rounded to ten bits, for codecs that have no more.
_ROUNDED = {twelve: _TEN[f"{twelve[:-1]}0"] for twelve in _TWELVE}
_SUBSAMPLED = dict.fromkeys(("rgb24", "bgr24", "gray"), "yuv420p")
_DEEP_LOSSY = dict.fromkeys(("rgb48", "gray16"), "yuv420p10le")
# JPEG samples have full range; FFmpeg has separate names for it.
_JPEG_NAMES = {"yuv420p": "yuvj420p", "yuv422p": "yuvj422p", "yuv444p": "yuvj444p"}
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


# Most bytes of pictures in a waiting GOP. Two pictures are always allowed.
_MAX_HELD_BYTES = 256 << 20

_X264 = "bframes=0:open-gop=0:keyint=infinite:scenecut=0:stitchable=1"
_X265 = "bframes=0:open-gop=0:keyint=-1:scenecut=0:repeat-headers=0:info=0:log-level=none"
GOP_CODECS: Mapping[str, ArchiveCodec] = MappingProxyType(
    {
        name: replace(
            ARCHIVE_CODECS[name],
            options={**options, "flags": ARCHIVE_CODECS[name].options["flags"]},
            delay=0,
        )
        for name, options in (
            ("h264", {"preset": "veryfast", "x264-params": _X264}),
            ("hevc", {"preset": "veryfast", "x265-params": _X265}),
            ("av1", {"preset": "9", "svtav1-params": f"{SVT_AV1_LOW_DELAY}:keyint=-1:scd=0"}),
        )
    }
)
"""Codecs for a target PSNR, by name."""


class GopEncoder:
    """Encodes pictures to packets GOP by GOP, each as coarsely as the target PSNR allows.

    Offers `encode` as PyAV's encoders do. Not thread-safe.
    """

    def __init__(
        self, codec: ArchiveCodec, media: MediaInfo, psnr: float, key_interval: int
    ) -> None:
        """`psnr` is the least PSNR in dB of the worst plane of the worst picture."""
        self._codec = codec
        self._media = media
        self._psnr = psnr
        self._longest = key_interval
        self._quality = codec.quality
        self._waiting: list[av.VideoFrame] = []
        self._received = 0

    @property
    def is_between_groups(self) -> bool:
        return not self._waiting

    def encode(self, picture: av.VideoFrame | None) -> list[Packet[VideoStream]]:
        """Add a picture (None: flush) and return the packets that are complete.

        Their pts are the ordinals of the pictures. Raises `UsageError` if the codec cannot reach
        the PSNR. The GOP gives no packets then, and the next GOP takes its ordinals.
        """
        if picture is not None:
            self._waiting.append(picture)
            each = sum(plane.buffer_size for plane in picture.planes)
            if len(self._waiting) < min(self._longest, max(2, _MAX_HELD_BYTES // each)):
                return []
        if not self._waiting:
            return []
        pictures, self._waiting = self._waiting, []
        run, first = self._coarsest(pictures), self._received
        self._received += len(pictures)
        return [
            _new_packet(coded.payload, first + coded.shown, coded.is_key) for coded in run.packets
        ]

    def _coarsest(self, pictures: list[av.VideoFrame]) -> ReencodedRun:
        def encode(quality: int) -> ReencodedRun:
            return encode_run(self._codec, self._media, quality, pictures)

        found = coarsest_run(self._codec, self._quality, error_from_psnr(self._psnr), encode)
        if found is None:
            last = self._received + len(pictures) - 1
            raise UsageError(
                f"{self._codec.name} cannot encode frames {self._received} to {last} with "
                f"{self._psnr:g} dB",
                hint="use a lower PSNR, or write losslessly",
            )
        run, self._quality = found
        return run


def gop_media_info(
    codec: ArchiveCodec,
    size: tuple[int, int],
    pixel_format: str,
    rate: Fraction,
    colors: Mapping[str, str],
    sample_aspect_ratio: Fraction | None,
) -> MediaInfo:
    """Return the description of the pictures for the GOP encoder; `colors` are encoder options."""
    return MediaInfo(
        container="",
        codec=codec.name,
        profile=None,
        width=size[0],
        height=size[1],
        pixel_format=pixel_format,
        time_base=1 / rate,
        average_rate=rate,
        sample_aspect_ratio=sample_aspect_ratio,
        color_range=colors.get("color_range"),
        color_space=colors.get("colorspace"),
        color_primaries=colors.get("color_primaries"),
        color_transfer=colors.get("color_trc"),
    )


def _new_packet(payload: bytes, ordinal: int, is_key: bool) -> Packet[VideoStream]:
    packet = cast("Packet[VideoStream]", Packet(payload))
    packet.pts = packet.dts = ordinal
    packet.is_keyframe = is_key
    return packet


_BUFFER_BYTES = 1 << 18
# A fragment ends at the first end of a GOP after this time.
_FRAGMENT_MICROSECONDS = 500_000
# The muxer holds pictures back for at most a second while audio is missing.
_AUDIO_OPTIONS = {"max_interleave_delta": "1000000"}
_MOV_OPTIONS = {
    "movflags": "hybrid_fragmented+empty_moov+frag_keyframe+default_base_moof",
    "min_frag_duration": str(_FRAGMENT_MICROSECONDS),
}
# Without an edit list AAC starts 21 ms late. Edit lists count in ticks of the movie: with the usual
# milliseconds, MP3 was 47 samples off.
# Cuts the encoder delay off the beginning, exact to a quarter of a sample.
_MOV_AUDIO_OPTIONS = {"use_editlist": "1", "movie_timescale": "240000"}
# FFmpeg writes no edit list into a header that precedes all packets. Audio of growing files was
# late then: AAC by 1024 samples, Opus by 312.
# Delays the moov box until each stream has a packet, so that it can hold edit lists.
_TIMED_MOVIE = {"movflags": _MOV_OPTIONS["movflags"].replace("empty_moov", "delay_moov")}
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mp4": ("mp4", _MOV_OPTIONS),
        "mov": ("mov", _MOV_OPTIONS),
        "matroska": ("matroska", {}),
    }
)
GROWING_CONTAINERS = ("mp4", "mov")
"""Containers that can be read while they are written."""


class FileWriter:
    """Encodes pictures into a file. Not thread-safe.

    `file` must be open for writing and seekable; the caller owns it. Raises `UsageError` if the
    encoder or the container refuses the input, and `OSError` for the file.
    """

    def __init__(self, file: FileIO, form: FileOptions) -> None:
        self._form = form
        #: Timestamps of the pictures so far.
        self.times = FileTimestamps(form.container, form.time_base)
        # Ticks of the file by ordinal, for pictures that are in the encoder.
        self._pts: dict[int, int] = {}
        self._received = 0
        self._last = -1  # pts of the last picture
        self._step = 1  # ticks between the last two pictures
        self._groups: GopEncoder | None = None
        # (_received, _last, _step) before the current GOP, to drop the GOP if it fails.
        self._before_group = (0, -1, 1)
        self._sound_until = 0  # audio may be written up to the picture with this pts
        muxer, _ = _CONTAINERS[form.container]
        self._output = open_output(
            file,
            format=muxer,
            options=_muxer_options(form),
            buffer_size=_BUFFER_BYTES,
        )
        try:
            self._sound: AudioPacketSource | None = None
            self._encode: Callable[[av.VideoFrame | None], list[Packet[VideoStream]]]
            if form.psnr is None:
                self._stream = self._added(form.codec.encoders[form.pixel_format], self._options())
                self._encode = self._stream.encode
            else:
                self._groups = self._add_groups(GOP_CODECS[form.codec.name], form.psnr)
                self._encode = self._groups.encode
            if form.sound is not None:
                self._sound = open_audio_source(form.sound, form.container, self._output)
                if self._sound.is_prompt and form.container in GROWING_CONTAINERS:
                    self._output.options.update(_TIMED_MOVIE)
        except BaseException:
            self._close()
            raise

    @property
    def frames(self) -> int:
        """The number of pictures in the finished file."""
        return self._received

    def put(self, picture: av.VideoFrame, pts: int) -> None:
        """Add a picture that is shown from tick `pts` on.

        Raises `UsageError` if `pts` is not later than the last one in the ticks of the file, or if
        the container cannot represent it. With a target PSNR, it is also raised if a GOP cannot
        reach it: that GOP is dropped (see `frames`), and writing can go on.
        """
        self.times.require(pts)
        if self._groups is None:
            self._sound_until = pts
        elif self._groups.is_between_groups:
            self._before_group = self._received, self._last, self._step
            # Only up to the first picture of a GOP: a failed GOP is dropped, but not its audio.
            self._sound_until = pts
        if self._received:
            self._step = pts - self._last
        self._mux_sound(self._sound_until * self._form.time_base)
        picture.pts = self._received
        picture.time_base = 1 / self._form.rate
        picture.pict_type = 0  # otherwise the encoder repeats the decoded picture type
        self._pts[self._received] = self.times.in_file(pts)
        self._last = pts
        self._received += 1
        self.times.add(pts)
        self._encode_and_mux(picture)

    def put_sound(self, samples: AudioArray | AudioSamples, first: int | None = None) -> int:
        """Add audio samples; return the number of samples per channel so far.

        `first` is the number of the first sample (None: append). Raises `UsageError` unless the
        file was opened for pushed audio, and as `PushedAudio.push` does.
        """
        if not isinstance(self._sound, PushedAudio):
            how = "with complete audio" if self._sound is not None else "without audio"
            raise UsageError(
                f"audio cannot be added: the file was opened {how}",
                hint="open it with sound=AudioFormat(rate, layout, dtype)",
            )
        count = self._sound.push(samples, first, self._end)
        if self._received:
            self._mux_sound(self._sound_until * self._form.time_base)
        return count

    def require_end(self) -> None:
        """Raise `UsageError` if the pictures end long before the audio."""
        if isinstance(self._sound, PushedAudio):
            self._sound.require_end(self._end)

    def finish(self) -> None:
        """Write the rest of the file and close it.

        Raises `UsageError` as `put` does.
        """
        self._encode_and_mux(None)
        with _refusing_input():
            if self._sound is not None:
                for sounding in self._sound.finish(self._end):
                    self._output.mux(sounding)
                self._sound.close()
            self._output.close()

    def abandon(self) -> None:
        """Close the encoders without completing the file."""
        with suppress(FFmpegError, OSError, EOFError, ValueError):
            # SVT-AV1 prints a warning if an encoder is closed without being flushed.
            self._stream.encode(None)
        self._close()

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
        with suppress(FFmpegError, OSError, ValueError):
            self._output.close()

    @property
    def _end(self) -> Fraction:
        """Seconds when the last picture ends, as far as is known."""
        return (self._last + self._step) * self._form.time_base if self._received else Fraction(0)

    def _options(self) -> dict[str, str]:
        form = self._form
        if form.quality is None:
            options = form.codec.lossless
            assert options is not None
        elif form.codec.name == "mjpeg":
            options = {"qmin": str(form.quality), "qmax": str(form.quality)}
        else:
            options = {"crf": str(form.quality)}
        return {**form.codec.options, **options, **form.colors}

    def _add_groups(self, codec: ArchiveCodec, psnr: float) -> GopEncoder:
        form = self._form
        size = form.width, form.height
        media = gop_media_info(
            codec, size, form.pixel_format, form.rate, form.colors, form.sample_aspect_ratio
        )
        # This encoder gets no pictures; it only provides the header.
        options = archive_encoder_options(codec, media, codec.quality, SITINGS[0])
        self._stream = self._added(codec.encoder, options)
        return GopEncoder(codec, media, psnr, form.key_interval)

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
        context.gop_size = 1 if form.codec.is_intra else form.key_interval
        try:
            open_encoder(context)
        except FFmpegError as error:
            raise UsageError(
                f"{form.width}x{form.height} in {form.pixel_format} cannot be encoded in "
                f"{form.codec.name}: {error.strerror}"
            ) from error
        return stream

    def _encode_and_mux(self, picture: av.VideoFrame | None) -> None:
        try:
            with _refusing_input():
                for packet in self._encode(picture):
                    if self._groups is not None:
                        self._mux_sound(self._time_of(packet))
                    self._mux(packet)
        except UsageError:
            if self._groups is not None:
                self._received, self._last, self._step = self._before_group
                self._pts.clear()
                self.times.take_back(self._received, self._last)
            raise

    def _mux_sound(self, seconds: Fraction) -> None:
        """Write the audio packets that belong before the picture at `seconds`."""
        if self._sound is not None:
            with _refusing_input():
                for sounding in self._sound.packets_until(seconds):
                    self._output.mux(sounding)

    def _time_of(self, packet: Packet[VideoStream]) -> Fraction:
        """Return the display time of a packet's picture in seconds, rounded to ticks of the
        file.
        """
        assert packet.pts is not None
        return self._pts[packet.pts] * self.times.tick

    def _mux(self, packet: Packet[VideoStream]) -> None:
        assert packet.pts is not None
        packet.pts = packet.dts = self._pts.pop(packet.pts)
        packet.time_base = self.times.tick
        # The next picture determines the duration; only the last one needs an estimate. Readers
        # would replace a duration of 0.
        packet.duration = max(1, self.times.in_file(self._step))
        packet.stream = self._stream
        self._output.mux(packet)


@contextmanager
def _refusing_input() -> Iterator[None]:
    """Convert FFmpeg's errors about the input to `UsageError`; errors of the file pass through."""
    try:
        yield
    except FFmpegError as error:
        if isinstance(error, (OSError, MemoryError)):
            raise
        raise UsageError(f"FFmpeg cannot write this input: {error.strerror}") from error


def _muxer_options(form: FileOptions) -> dict[str, str]:
    options = {"flush_packets": "1", **_CONTAINERS[form.container][1]}
    if form.sound is not None:
        options.update(_AUDIO_OPTIONS)
        if form.container in GROWING_CONTAINERS:
            options.update(_MOV_AUDIO_OPTIONS)
    return options
