"""Audio for a file that is being written: copied packets (`CopiedAudio`), encoded samples, or
samples that the caller pushes (`PushedAudio`). `open_audio_source` picks one and adds its
stream to the output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Protocol, TypeAlias, cast

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.filter import Graph
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.audio.sample_arrays import (
    CHANNEL_LAYOUTS,
    AudioArray,
    AudioSamples,
    SampleFramer,
    SoundFormat,
    framer_for,
)
from vfsd.codecs.containers.detect_container import HEAD_BYTES, detect_container
from vfsd.codecs.containers.file_timestamps import MAX_STEP
from vfsd.codecs.decoding.demuxer import (
    MediaSource,
    demux_packets,
    discard_other_streams,
    open_with_demuxer,
)
from vfsd.codecs.pyav import exact_fraction, tick_seconds
from vfsd.errors import RefusedMediaError, UsageError

_STORED_SAMPLE_FORMATS = {"u8": "s16", "s16": "s16", "s32": "s32", "flt": "flt", "dbl": "flt"}
"""In which format samples are kept that come in another; of `s32` 24 bits are."""
_PCM_ENCODERS = {"s16": "pcm_s16le", "s32": "pcm_s24le", "flt": "pcm_f32le"}
_ENCODERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "aac": ("aac", {}),
        "flac": ("flac", {"s16": "s16", "s32": "s32", "flt": "s32"}),
        "opus": ("libopus", {"s16": "s16", "s32": "flt", "flt": "flt"}),
    }
)
"""The encoder, and the format of samples that it is given, by the one that is to be kept."""
_OPUS_RATE = 48_000
_PCM_PACKET_SAMPLES = 1024
"""Samples in a packet of PCM: Matroska tells packets apart by milliseconds."""


class AudioEncoder:
    """A stream of sound in `output`, which has no header yet.  Not thread-safe.

    Samples have the times of the frames that bring them, from the first picture on; where there are
    gaps in what a file brings, there is silence.  Raises `UsageError` for what the codec (aac,
    flac, opus or pcm) does not take.
    """

    def __init__(
        self, output: OutputContainer, codec: str, rate: int, layout: str, kind: str
    ) -> None:
        """`kind` is FFmpeg's format of the samples that are to be kept, as far as `codec` can."""
        self.rate = _OPUS_RATE if codec == "opus" else rate  #: of what is written
        self.taken = 0  #: samples at that rate that have come so far
        kept = _STORED_SAMPLE_FORMATS.get(kind.removesuffix("p"), "s32")
        encoder, formats = (
            (_PCM_ENCODERS[kept], {kept: kept}) if codec == "pcm" else _ENCODERS[codec]
        )
        stream = output.add_stream(encoder, rate=self.rate)
        assert isinstance(stream, AudioStream)
        self._stream = stream
        self._block = _PCM_PACKET_SAMPLES if codec == "pcm" else 1
        stream.layout = layout
        self._context = stream.codec_context
        self._context.format = formats.get(kept, self._context.format.name)
        try:
            self._context.open()
        except FFmpegError as error:
            raise UsageError(
                f"sound of {rate} Hz in {layout} cannot be encoded in {codec}: {error.strerror}"
            ) from error
        self._graph: Graph | None = None
        self._fifo = av.AudioFifo()
        self._given = 0  # samples that the encoder has

    def take(self, frame: av.AudioFrame | None) -> None:
        """Samples that come next; None: no more will."""
        if self._graph is None:
            if frame is None:
                return
            self._graph = _resample_graph(frame, self._context, self.rate)
        self._graph.push(frame)
        for ready in _filtered_frames(self._graph):
            self.taken += ready.samples
            ready.pts = None
            self._fifo.write(ready)

    def packets(self, end: int) -> Iterator[Packet[Stream]]:
        """Those of samples before number `end`, as far as they have come."""
        wanted = min(end, self.taken) - self._given
        yield from self._encoded(wanted - wanted % self._block)

    def finish(self, end: int) -> Iterator[Packet[Stream]]:
        """All that are left, without the samples from number `end` on."""
        yield from self._encoded(min(end, self.taken) - self._given)
        yield from self._stream.encode(None)

    def _encoded(self, count: int) -> Iterator[Packet[Stream]]:
        step = count if self._block == 1 else self._block
        while count > 0 and (cut := self._fifo.read(min(step, count))) is not None:
            cut.pts, cut.time_base = self._given, Fraction(1, self.rate)
            self._given += cut.samples
            count -= cut.samples
            yield from self._stream.encode(cut)


def _resample_graph(frame: av.AudioFrame, context: AudioCodecContext, rate: int) -> Graph:
    """From frames like that one to what the encoder takes, with silence where there are gaps."""
    graph = Graph()
    source = graph.add_abuffer(
        format=frame.format.name,
        sample_rate=frame.sample_rate,
        layout=frame.layout.name,
        time_base=frame.time_base,
    )
    resample = graph.add("aresample", f"{rate}:async=1:first_pts=0")
    form = graph.add(
        "aformat",
        f"sample_fmts={context.format.name}:sample_rates={rate}"
        f":channel_layouts={context.layout.name}",
    )
    sink = graph.add("abuffersink")
    source.link_to(resample)
    resample.link_to(form)
    form.link_to(sink)
    graph.configure()
    return graph


def _filtered_frames(graph: Graph) -> Iterator[av.AudioFrame]:
    with suppress(BlockingIOError, EOFError):
        while True:
            frame = graph.pull()
            assert isinstance(frame, av.AudioFrame)
            yield frame


# Pictures must not wait for a microphone that stopped, so silence replaces samples that are late.
# Sound before its pictures waits: it may have to end with a last picture not yet known.
MAX_OFFSET_SECONDS = 10
"""Seconds by which sound and pictures may be ahead of each other."""
_MAX_TAIL_SECONDS = 1
"""Seconds of sound after the last picture that are left out without a word."""


class PushedAudio:
    """A stream of sound that is pushed.  Not thread-safe.

    What comes earlier than its pictures waits for them, `MAX_OFFSET_SECONDS` seconds of it; where
    pictures are as far ahead, there is silence in the place of what has not come.
    """

    def __init__(self, output: OutputContainer, codec: str, told: SoundFormat) -> None:
        """Raises `UsageError`."""
        self._form = SampleFramer(told)
        self._encoder = AudioEncoder(
            output, codec, self._form.rate, self._form.layout, self._form.kind
        )
        self._end = 0  # the number of the sample that is to come next
        self._missed: int | None = None  # the first for which there is silence, while none came

    @property
    def is_prompt(self) -> bool:
        """There is, if only of silence."""
        return True

    @property
    def rate(self) -> int:
        """Samples in a second."""
        return self._form.rate

    def push(self, given: AudioArray | AudioSamples, first: int | None, shown: Fraction) -> int:
        """Samples that come next, or from number `first` on; how many there are now.

        `shown` is for how many seconds there are pictures.  Raises `UsageError`, and takes nothing
        then, for samples of another form, that come too late, or are too far ahead.
        """
        samples = self._form.checked(given)
        if first is None:
            if self._missed is not None:
                raise UsageError(
                    f"sound from {self._told(self._missed)} on is too late: pictures were "
                    f"{MAX_OFFSET_SECONDS} s ahead of it, "
                    f"and up to {self._told(self._end)} it is silent",
                    hint="say where it goes on, with first",
                )
            first = self._end
        if first < self._end:
            raise UsageError(
                f"sound from {self._told(first)} on is too late: up to {self._told(self._end)} "
                "there is some"
            )
        end = first + len(samples)
        if end > (shown + MAX_OFFSET_SECONDS) * self.rate:
            raise UsageError(
                f"sound up to {self._told(end)} for pictures up to {float(shown):.3f} s is more "
                f"than {MAX_OFFSET_SECONDS} s ahead",
                hint="write pictures first, or repeat the last one",
            )
        for frame in self._form.silence(self._end, first):
            self._encoder.take(frame)
        for frame in self._form.frames(samples, first):
            self._encoder.take(frame)
        self._end, self._missed = end, None
        return end

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = int((seconds - MAX_OFFSET_SECONDS) * self.rate)
        if end > self._end and self._missed is None:
            self._missed = self._end
        for frame in self._form.silence(self._end, end):
            self._encoder.take(frame)
            self._end += frame.samples
            yield from self._packets(seconds)
        yield from self._packets(seconds)

    def require_end(self, shown: Fraction) -> None:
        """Raises `UsageError` where much is left after pictures of `shown` seconds."""
        if self._end > (shown + _MAX_TAIL_SECONDS) * self.rate:
            raise UsageError(
                f"there is sound up to {self._told(self._end)}, and pictures up to "
                f"{float(shown):.3f} s",
                hint="write pictures for it, or repeat the last one",
            )

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        self._encoder.take(None)
        yield from self._encoder.finish(round(seconds * self._encoder.rate))

    def close(self) -> None:
        """There is nothing open."""

    def _packets(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        return self._encoder.packets(int(seconds * self._encoder.rate))

    def _told(self, sample: int) -> str:
        return f"{sample / self.rate:.3f} s"


_AUDIO_FILES = (
    (rb"RIFF....WAVE|RF64", "wav"),
    (rb"riff\x2e\x91\xcf\x11", "w64"),
    (rb"FORM....AIF[FC]", "aiff"),
    (rb"caff", "caf"),
    (rb"fLaC", "flac"),
    (rb"OggS", "ogg"),
    (rb"\xff[\xf0\xf1\xf8\xf9]", "aac"),
    (rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]", "mp3"),
)
"""FFmpeg's demuxer of files that hold sound only, by their first bytes."""
_PROMPT_SECONDS = 10
"""Seconds: files wait with their first fragment for sound that begins by then."""


class AudioFile:
    """The sound of a file, open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._source = MediaSource(path)
        try:
            self._opened = self._open()
            found = self._opened.streams.best("audio")
        except BaseException:
            self._source.close()
            raise
        if not isinstance(found, AudioStream):
            self.close()
            raise UsageError(f"{self.name} has no sound")
        self.stream = found
        self.codec = str(found.codec_context.codec.canonical_name)
        self._origin = self._first_picture()
        discard_other_streams(self._opened, found)

    @property
    def is_configured(self) -> bool:
        """Whether nothing that decoders have to be told is in its packets only."""
        return self.codec != "aac" or bool(self.stream.codec_context.extradata)

    @property
    def rate(self) -> int:
        """Samples of each channel in a second."""
        return self.stream.codec_context.sample_rate

    @property
    def layout(self) -> str:
        """Of what its sound is encoded in.  Raises `UsageError`."""
        channels = self.stream.codec_context.channels
        if channels not in CHANNEL_LAYOUTS:
            raise UsageError(f"sound of {channels} channels is not encoded")
        return CHANNEL_LAYOUTS[channels]

    @property
    def kind(self) -> str:
        """FFmpeg's format of the samples that are worth keeping."""
        context = self.stream.codec_context
        return context.format.name if context.codec.lossless else "s16"

    def packets(self, is_cut: bool) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """(when it begins, packet), from the first picture on.

        Unless `is_cut`, with the one before, of which nothing is heard.
        """
        last: int | None = None
        try:
            for packet in demux_packets(self._opened, self.stream):
                if packet.pts is None or (last is not None and packet.pts <= last):
                    raise UsageError(
                        f"the packets of the sound of {self.name} do not tell when they begin",
                        hint="say in which codec it is to be encoded",
                    )
                last = packet.pts
                begin = packet.pts * tick_seconds(packet) - self._origin
                reach = 0 if is_cut else (packet.duration or 0) * tick_seconds(packet)
                if begin + reach >= 0:
                    yield begin, packet
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def near(
        self, packets: Iterator[tuple[Fraction, Packet[AudioStream]]]
    ) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """`packets` as they are, for mp4 and mov.

        Raises `UsageError` for one that is so late that FFmpeg's muxer would move it.
        """
        last: Fraction | None = None
        for begin, packet in packets:
            if last is not None and (begin - last) * self.rate > MAX_STEP:
                raise UsageError(
                    f"the sound of {self.name} is missing from {float(last):.3f} s to "
                    f"{float(begin):.3f} s, for longer than mp4 and mov can tell",
                    hint="say in which codec it is to be encoded, with silence where it is "
                    "missing, or let the name end in .mkv",
                )
            last = begin
            yield begin, packet

    def frames(self) -> Iterator[av.AudioFrame]:
        """Decoded; pts in ticks from the first picture."""
        try:
            for frame in self._opened.decode(self.stream):
                frame.pts = (frame.pts or 0) - round(self._origin / tick_seconds(frame))
                yield frame
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        self._opened.close()
        self._source.close()

    def _open(self) -> InputContainer:
        head = self._source.read_at(0, HEAD_BYTES)
        found = (kind for magic, kind in _AUDIO_FILES if re.match(magic, head, re.DOTALL))
        try:
            return open_with_demuxer(
                self._source, next(found, None) or detect_container(head).demuxer
            )
        except RefusedMediaError as error:
            raise UsageError(f"the sound of {self.name} cannot be read: {error}") from error
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def _first_picture(self) -> Fraction:
        """Seconds on the file's timeline."""
        pictures = self._opened.streams.best("video")
        stream = self.stream if pictures is None else pictures
        start, base = stream.start_time, exact_fraction(stream.time_base)
        return Fraction(0) if start is None or base is None else start * base

    def _unreadable(self, error: FFmpegError) -> UsageError:
        return UsageError(f"the sound of {self.name} cannot be read: {error.strerror}")


class CopiedAudio:
    """Packets as they are."""

    def __init__(
        self,
        output: OutputContainer,
        file: AudioFile,
        packets: Iterator[tuple[Fraction, Packet[AudioStream]]],
    ) -> None:
        self._file = file
        self._stream = output.add_stream_from_template(file.stream)
        self._packets = packets
        self._next = next(self._packets, None)
        self.is_prompt = self._next is not None and self._next[0] < _PROMPT_SECONDS

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        while self._next is not None and self._next[0] < seconds:
            begin, packet = self._next
            packet.pts = packet.dts = round(begin / tick_seconds(packet))
            packet.stream = self._stream
            yield cast("Packet[Stream]", packet)
            self._next = next(self._packets, None)

    finish = until

    def close(self) -> None:
        self._file.close()


AudioInput: TypeAlias = str | os.PathLike[str] | AudioSamples | SoundFormat
"""A file of which sound is taken, samples, or what samples are like that will come in pieces."""


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What sound is written."""

    given: AudioInput
    codec: str | None  #: one of `SOUND_CODECS`; None: as it is, else aac


AUDIO_CODECS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "aac": ("mp4", "mov", "matroska"),
        "flac": ("mp4", "matroska"),
        "opus": ("mp4", "matroska"),
        "pcm": ("mov", "matroska"),
    }
)
"""What sound is encoded in, and the containers that take it; flac and pcm keep every sample."""
_COPIED_CODECS = {
    "mp4": frozenset({"aac", "mp3", "mp2", "ac3", "opus", "flac", "alac"}),
    "mov": frozenset(
        {"aac", "mp3", "ac3", "alac", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le"}
    ),
    "matroska": frozenset(
        {"aac", "mp3", "mp2", "ac3", "eac3", "opus", "flac", "vorbis", "alac"}
        | {"pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le"}
    ),
}
"""Codecs whose packets are copied into each container."""


class AudioPacketSource(Protocol):
    """Gives the packets of a stream as the pictures go on."""

    @property
    def is_prompt(self) -> bool:
        """Whether there is a packet among the first seconds, whatever comes."""

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Those that may be written by then.  Raises `UsageError`."""

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """All that are left of what begins before the last picture ends."""

    def close(self) -> None:
        """Of what it reads."""


def open_audio_source(
    form: AudioOptions, container: str, output: OutputContainer
) -> AudioPacketSource:
    """A stream in `output`, a file of the kind `container` that has no header yet.

    Of a `SoundFormat` that is `PushedAudio`.  Raises `UsageError` for sound that cannot be read or
    written, `OSError`.
    """
    if form.codec is not None and container not in AUDIO_CODECS.get(form.codec, ()):
        fitting = [name for name, containers in AUDIO_CODECS.items() if container in containers]
        raise UsageError(
            f"sound is not written as {form.codec} in {container}",
            hint=f"one of {', '.join(fitting)}",
        )
    codec = form.codec or "aac"
    if isinstance(form.given, SoundFormat):
        return PushedAudio(output, codec, form.given)
    if isinstance(form.given, tuple):
        told, samples = framer_for(form.given)
        encoder = AudioEncoder(output, codec, told.rate, told.layout, told.kind)
        return _EncodedAudio(encoder, told.frames(samples, 0))
    file = AudioFile(form.given)
    try:
        if form.codec is None and file.codec in _COPIED_CODECS[container] and file.is_configured:
            if container == "matroska":
                return CopiedAudio(output, file, file.packets(is_cut=True))
            return CopiedAudio(output, file, file.near(file.packets(is_cut=False)))
        encoder = AudioEncoder(output, codec, file.rate, file.layout, file.kind)
        return _EncodedAudio(encoder, file.frames(), file)
    except BaseException:
        file.close()
        raise


class _EncodedAudio:
    """Samples that are there, or can be decoded; cut where the pictures end."""

    def __init__(
        self,
        encoder: AudioEncoder,
        frames: Iterator[av.AudioFrame],
        file: AudioFile | None = None,
    ) -> None:
        self._encoder = encoder
        self._frames: Iterator[av.AudioFrame] | None = frames
        self._file = file
        self._take(1)
        self.is_prompt = encoder.taken > 0

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = int(seconds * self._encoder.rate)
        self._take(end)
        yield from self._encoder.packets(end)

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = round(seconds * self._encoder.rate)
        self._take(end)
        yield from self._encoder.finish(end)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _take(self, end: int) -> None:
        while self._encoder.taken < end and self._frames is not None:
            frame = next(self._frames, None)
            self._encoder.take(frame)
            if frame is None:
                self._frames = None
