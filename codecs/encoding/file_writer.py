"""Writes a video file while its pictures arrive.

With a target PSNR, `GopEncoder` holds one GOP back and searches its CRF before any packet is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from io import FileIO
from types import MappingProxyType
from typing import cast

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.audio.audio_input import AudioPacketSource, PushedAudio, open_audio_source
from vfsd.codecs.audio.sample_arrays import AudioArray, AudioSamples
from vfsd.codecs.containers.file_timestamps import FileTimestamps
from vfsd.codecs.encoding.archive_encoder import (
    ARCHIVE_CODECS,
    ArchiveCodec,
    ReencodedRun,
    archive_encoder_options,
    coarsest_run,
    encode_run,
)
from vfsd.codecs.encoding.file_formats import FileOptions
from vfsd.codecs.frames.chroma_siting import SITINGS
from vfsd.codecs.pyav import open_output
from vfsd.codecs.registry import SVT_AV1_LOW_DELAY, open_encoder
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import error_from_psnr
from vfsd.errors import UsageError

_MAX_HELD_BYTES = 256 << 20
"""Pictures that wait for the end of their group take up no more, unless two do."""

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
"""By name."""


class GopEncoder:
    """Takes pictures and gives packets, as encoders of PyAV do.  Not thread-safe."""

    def __init__(
        self, codec: ArchiveCodec, media: MediaInfo, psnr: float, key_interval: int
    ) -> None:
        """`psnr` in dB, of the worst plane of the worst picture, see `fidelity` beside this."""
        self._codec = codec
        self._media = media
        self._psnr = psnr
        self._longest = key_interval
        self._quality = codec.quality
        self._waiting: list[av.VideoFrame] = []
        self._given = 0

    @property
    def is_between_groups(self) -> bool:
        return not self._waiting

    def encode(self, picture: av.VideoFrame | None) -> list[Packet[VideoStream]]:
        """Packets that are complete by now; None: all that are left.

        Their pts are the pictures' ordinals.  Raises `UsageError` where the codec is not as good as
        it has to be: nothing has come of that group then, and the next takes its ordinals.
        """
        if picture is not None:
            self._waiting.append(picture)
            each = sum(plane.buffer_size for plane in picture.planes)
            if len(self._waiting) < min(self._longest, max(2, _MAX_HELD_BYTES // each)):
                return []
        if not self._waiting:
            return []
        pictures, self._waiting = self._waiting, []
        run, first = self._coarsest(pictures), self._given
        self._given += len(pictures)
        return [
            _new_packet(coded.payload, first + coded.shown, coded.is_key) for coded in run.packets
        ]

    def _coarsest(self, pictures: list[av.VideoFrame]) -> ReencodedRun:
        def encode(quality: int) -> ReencodedRun:
            return encode_run(self._codec, self._media, quality, pictures)

        found = coarsest_run(self._codec, self._quality, error_from_psnr(self._psnr), encode)
        if found is None:
            last = self._given + len(pictures) - 1
            raise UsageError(
                f"{self._codec.name} does not give frames {self._given} to {last} the "
                f"{self._psnr:g} dB that are asked for",
                hint="ask for less, or write without loss",
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
    """What the encoder of groups is told; `colors` are options of encoders."""
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
_FRAGMENT_MICROSECONDS = 500_000
"""A fragment ends with the first group of pictures that ends after so long."""
_SOUND_OPTIONS = {"max_interleave_delta": "1000000"}
"""Pictures wait a second at most for sound that has ended, or comes later."""
_MOV_OPTIONS = {
    "movflags": "hybrid_fragmented+empty_moov+frag_keyframe+default_base_moof",
    "min_frag_duration": str(_FRAGMENT_MICROSECONDS),
}
# Without an edit list AAC starts 21 ms late. Edit lists count in ticks of the movie: with the usual
# milliseconds MP3 was 47 samples off.
_MOV_SOUND_OPTIONS = {"use_editlist": "1", "movie_timescale": "240000"}
"""What encoders put before the first sample is cut off, to a quarter of a sample."""
# FFmpeg writes no edit list into a header that precedes all times. Sound of growing files was late
# then: AAC by 1024 samples, Opus by 312.
_TIMED_MOVIE = {"movflags": _MOV_OPTIONS["movflags"].replace("empty_moov", "delay_moov")}
"""The first fragment waits for a packet of each stream, so that its movie box has that, too."""
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mp4": ("mp4", _MOV_OPTIONS),
        "mov": ("mov", _MOV_OPTIONS),
        "matroska": ("matroska", {}),
    }
)
GROWING_CONTAINERS = ("mp4", "mov")
"""Those that can be read while they are written."""


class FileWriter:
    """Encodes pictures into a file.  Not thread-safe.

    `file` is open for writing at any place, and stays the caller's.  Errors are `UsageError` where
    the encoder or the container refuses, and `OSError` of the file.
    """

    def __init__(self, file: FileIO, form: FileOptions) -> None:
        self._form = form
        self.times = FileTimestamps(
            form.container, form.time_base
        )  #: of the pictures that were given
        self._pts: dict[int, int] = {}  # of pictures that are in the encoder, in the file's ticks
        self._given = 0
        self._last = -1  # pts of the picture that came last
        self._step = 1  # ticks between the last two
        self._groups: GopEncoder | None = None
        self._before_group = (0, -1, 1)  # these three, before the first picture of its group
        self._sound_until = 0  # pts of the last picture whose sound may be in the file by now
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
        """Pictures that the file has, or will have when it is finished."""
        return self._given

    def put(self, picture: av.VideoFrame, pts: int) -> None:
        """The next picture, which is shown from tick `pts` on.

        Raises `UsageError` unless that is later than the one before, also in the file's own ticks,
        and the container can tell it; and where the pictures of a group cannot be as good as the
        form says: none of these is in the file then (see `frames`), which may go on without them.
        """
        self.times.require(pts)
        if self._groups is None:
            self._sound_until = pts
        elif self._groups.is_between_groups:
            self._before_group = self._given, self._last, self._step
            self._sound_until = pts  # the others may be taken back, and sound in the file stays
        if self._given:
            self._step = pts - self._last
        self._mux_sound(self._sound_until * self._form.time_base)
        picture.pts = self._given
        picture.time_base = 1 / self._form.rate
        picture.pict_type = 0  # else an encoder repeats what a decoder met
        self._pts[self._given] = self.times.in_file(pts)
        self._last = pts
        self._given += 1
        self.times.add(pts)
        self._encode_and_mux(picture)

    def put_sound(self, samples: AudioArray | AudioSamples, first: int | None = None) -> int:
        """The next piece of sound, or that which begins with sample number `first`; how many
        samples of each channel there are now.

        Raises `UsageError` unless the form says that sound comes in pieces, and see `PushedAudio`.
        """
        if not isinstance(self._sound, PushedAudio):
            how = "with all of its sound" if self._sound is not None else "without sound"
            raise UsageError(
                f"it was opened {how}, and not for pieces of it",
                hint="open it with sound=SoundFormat(rate, layout, dtype)",
            )
        count = self._sound.push(samples, first, self._end)
        if self._given:
            self._mux_sound(self._sound_until * self._form.time_base)
        return count

    def require_end(self) -> None:
        """Raises `UsageError` where the pictures have ended long before their sound."""
        if isinstance(self._sound, PushedAudio):
            self._sound.require_end(self._end)

    def finish(self) -> None:
        """All pictures have come; afterwards the file is whole.

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
    def _end(self) -> Fraction:
        """When the last picture stops being shown, as far as is known; seconds."""
        return (self._last + self._step) * self._form.time_base if self._given else Fraction(0)

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
        # An encoder of its own, which is given nothing, makes the header.
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
                self._given, self._last, self._step = self._before_group
                self._pts.clear()
                self.times.take_back(self._given, self._last)
            raise

    def _mux_sound(self, seconds: Fraction) -> None:
        """What belongs before the picture of that time."""
        if self._sound is not None:
            with _refusing_input():
                for sounding in self._sound.until(seconds):
                    self._output.mux(sounding)

    def _time_of(self, packet: Packet[VideoStream]) -> Fraction:
        """When its picture is shown, to a tick of the file; seconds."""
        assert packet.pts is not None
        return self._pts[packet.pts] * self.times.tick

    def _mux(self, packet: Packet[VideoStream]) -> None:
        assert packet.pts is not None
        packet.pts = packet.dts = self._pts.pop(packet.pts)
        packet.time_base = self.times.tick
        # What a picture lasts follows from the next; of the last nothing else is known.
        # One of no length would be given another by whoever reads it.
        packet.duration = max(1, self.times.in_file(self._step))
        packet.stream = self._stream
        self._output.mux(packet)


@contextmanager
def _refusing_input() -> Iterator[None]:
    """What FFmpeg does not take is the caller's to change; errors of the file are not."""
    try:
        yield
    except FFmpegError as error:
        if isinstance(error, (OSError, MemoryError)):
            raise
        raise UsageError(f"this cannot be written: {error.strerror}") from error


def _muxer_options(form: FileOptions) -> dict[str, str]:
    options = {"flush_packets": "1", **_CONTAINERS[form.container][1]}
    if form.sound is not None:
        options.update(_SOUND_OPTIONS)
        if form.container in GROWING_CONTAINERS:
            options.update(_MOV_SOUND_OPTIONS)
    return options
