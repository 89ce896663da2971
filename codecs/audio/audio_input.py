"""Audio for a file that is being written.

It is copied (`CopiedAudio`), encoded, or pushed by the caller (`PushedAudio`). `open_audio_source`
picks one and adds its stream to the output.
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

from vfsd.codecs.audio.samples import (
    CHANNEL_LAYOUTS,
    AudioArray,
    AudioFormat,
    AudioSamples,
    SampleFramer,
    framer_for,
)
from vfsd.codecs.containers.detect_container import HEAD_BYTES, detect_container
from vfsd.codecs.containers.file_timestamps import MAX_STEP
from vfsd.codecs.decoding.demuxer import demux_packets, discard_other_streams, open_with_demuxer
from vfsd.codecs.pyav import exact_fraction, tick_seconds
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError, UsageError

# Stored sample format by that of the input; of `s32`, 24 bits are stored.
_STORED_SAMPLE_FORMATS = {"u8": "s16", "s16": "s16", "s32": "s32", "flt": "flt", "dbl": "flt"}
_PCM_ENCODERS = {"s16": "pcm_s16le", "s32": "pcm_s24le", "flt": "pcm_f32le"}
# (encoder, its sample format by the format to keep) by codec.
_ENCODERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "aac": ("aac", {}),
        "flac": ("flac", {"s16": "s16", "s32": "s32", "flt": "s32"}),
        "opus": ("libopus", {"s16": "s16", "s32": "flt", "flt": "flt"}),
    }
)
_OPUS_RATE = 48_000
# Samples per PCM packet, since Matroska's timestamps are milliseconds.
_PCM_PACKET_SAMPLES = 1024


class AudioEncoder:
    """An encoded audio stream in `output`, which has no header yet. Not thread-safe.

    Samples keep the timestamps of their frames, from the first picture on. Gaps in a file become
    silence. Raises `UsageError` if the codec (aac, flac, opus or pcm) does not support the samples.
    """

    def __init__(
        self, output: OutputContainer, codec: str, rate: int, layout: str, kind: str
    ) -> None:
        """`kind` is FFmpeg's sample format to keep, as far as `codec` can."""
        self.rate = _OPUS_RATE if codec == "opus" else rate  #: sample rate of the stream
        self.taken = 0  #: samples at that rate that were added so far
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
                f"audio of {rate} Hz in {layout} cannot be encoded in {codec}: {error.strerror}"
            ) from error
        self._graph: Graph | None = None
        self._fifo = av.AudioFifo()
        self._received = 0  # samples passed to the encoder

    def push(self, frame: av.AudioFrame | None) -> None:
        """Add samples; None: no more will come."""
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
        """Yield packets of samples before number `end`, as far as they were added."""
        wanted = min(end, self.taken) - self._received
        yield from self._encoded(wanted - wanted % self._block)

    def finish(self, end: int) -> Iterator[Packet[Stream]]:
        """Yield the remaining packets, without samples from number `end` on."""
        yield from self._encoded(min(end, self.taken) - self._received)
        yield from self._stream.encode(None)

    def _encoded(self, count: int) -> Iterator[Packet[Stream]]:
        step = count if self._block == 1 else self._block
        while count > 0 and (cut := self._fifo.read(min(step, count))) is not None:
            cut.pts, cut.time_base = self._received, Fraction(1, self.rate)
            self._received += cut.samples
            count -= cut.samples
            yield from self._stream.encode(cut)


def _resample_graph(frame: av.AudioFrame, context: AudioCodecContext, rate: int) -> Graph:
    """Return a filter from frames like `frame` to the format of the encoder, with gaps as
    silence.
    """
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
# Audio ahead of its pictures waits, since it may have to end with a last picture not yet known.
MAX_OFFSET_SECONDS = 10
"""Largest lead of audio over pictures, or of pictures over audio, in seconds."""
# Seconds of audio after the last picture that are dropped silently.
_MAX_TAIL_SECONDS = 1


class PushedAudio:
    """An audio stream that the caller pushes. Not thread-safe.

    Audio that precedes its pictures is held back, up to `MAX_OFFSET_SECONDS`. Where pictures are
    that far ahead, silence replaces the missing audio.
    """

    def __init__(self, output: OutputContainer, codec: str, form: AudioFormat) -> None:
        """Raises `UsageError` for an unsupported format."""
        self._form = SampleFramer(form)
        self._encoder = AudioEncoder(
            output, codec, self._form.rate, self._form.layout, self._form.kind
        )
        self._end = 0  # number of the next sample
        self._missed: int | None = None  # first sample that silence replaced since the last push

    @property
    def is_prompt(self) -> bool:
        """Always true, since silence replaces missing audio."""
        return True

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self._form.rate

    def push(self, given: AudioArray | AudioSamples, first: int | None, shown: Fraction) -> int:
        """Add samples from number `first` on (None: append); return the number of samples so far.

        `shown` is the duration of the pictures in seconds. Raises `UsageError`, and adds nothing,
        for samples of another format, too late, or too far ahead.
        """
        samples = self._form.checked(given)
        if first is None:
            if self._missed is not None:
                raise UsageError(
                    f"audio from {self._time_text(self._missed)} on is too late: pictures were "
                    f"{MAX_OFFSET_SECONDS} s ahead, "
                    f"and silence was written up to {self._time_text(self._end)}",
                    hint="give the number of the next sample as first",
                )
            first = self._end
        if first < self._end:
            raise UsageError(
                f"audio from {self._time_text(first)} on is too late: it was written up to "
                f"{self._time_text(self._end)}"
            )
        end = first + len(samples)
        if end > (shown + MAX_OFFSET_SECONDS) * self.rate:
            raise UsageError(
                f"audio up to {self._time_text(end)} for pictures up to {float(shown):.3f} s is "
                f"more than {MAX_OFFSET_SECONDS} s ahead",
                hint="write pictures first, or repeat the last one",
            )
        for frame in self._form.silence(self._end, first):
            self._encoder.push(frame)
        for frame in self._form.frames(samples, first):
            self._encoder.push(frame)
        self._end, self._missed = end, None
        return end

    def packets_until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Yield the packets that may be written before the picture at `seconds`. Raises
        `UsageError`.
        """
        end = int((seconds - MAX_OFFSET_SECONDS) * self.rate)
        if end > self._end and self._missed is None:
            self._missed = self._end
        for frame in self._form.silence(self._end, end):
            self._encoder.push(frame)
            self._end += frame.samples
            yield from self._packets(seconds)
        yield from self._packets(seconds)

    def require_end(self, shown: Fraction) -> None:
        """Raise `UsageError` if much audio remains after pictures of `shown` seconds."""
        if self._end > (shown + _MAX_TAIL_SECONDS) * self.rate:
            raise UsageError(
                f"audio ends at {self._time_text(self._end)}, and pictures end at "
                f"{float(shown):.3f} s",
                hint="write more pictures, or repeat the last one",
            )

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Yield the remaining packets up to `seconds`."""
        self._encoder.push(None)
        yield from self._encoder.finish(round(seconds * self._encoder.rate))

    def close(self) -> None:
        """Do nothing: there are no open files."""

    def _packets(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        return self._encoder.packets(int(seconds * self._encoder.rate))

    def _time_text(self, sample: int) -> str:
        return f"{sample / self.rate:.3f} s"


# FFmpeg's demuxer of audio files by their first bytes.
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
# Seconds: the first fragment waits for audio that begins earlier.
_PROMPT_SECONDS = 10


class AudioFile:
    """The audio of an open file."""

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
            raise UsageError(f"{self.name} has no audio")
        self.stream = found
        self.codec = str(found.codec_context.codec.canonical_name)
        self._origin = self._first_picture()
        discard_other_streams(self._opened, found)

    @property
    def is_configured(self) -> bool:
        """Whether decoders need no configuration from within packets."""
        return self.codec != "aac" or bool(self.stream.codec_context.extradata)

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.stream.codec_context.sample_rate

    @property
    def layout(self) -> str:
        """The channel layout for encoding. Raises `UsageError`."""
        channels = self.stream.codec_context.channels
        if channels not in CHANNEL_LAYOUTS:
            raise UsageError(
                f"audio must have one of {tuple(CHANNEL_LAYOUTS)} channels, got {channels}"
            )
        return CHANNEL_LAYOUTS[channels]

    @property
    def kind(self) -> str:
        """FFmpeg's sample format that is worth keeping."""
        context = self.stream.codec_context
        return context.format.name if context.codec.lossless else "s16"

    def packets(self, is_cut: bool) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """Yield (start in seconds, packet), from the first picture on.

        Unless `is_cut`, this includes the packet before, which is not heard.
        """
        last: int | None = None
        try:
            for packet in demux_packets(self._opened, self.stream):
                if packet.pts is None or (last is not None and packet.pts <= last):
                    raise UsageError(
                        f"audio packets of {self.name} have no ascending timestamps",
                        hint="give a codec, so that the audio is encoded again",
                    )
                last = packet.pts
                begin = packet.pts * tick_seconds(packet) - self._origin
                reach = 0 if is_cut else (packet.duration or 0) * tick_seconds(packet)
                if begin + reach >= 0:
                    yield begin, packet
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def with_checked_gaps(
        self, packets: Iterator[tuple[Fraction, Packet[AudioStream]]]
    ) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """Yield `packets` unchanged, for mp4 and mov.

        Raises `UsageError` for a packet that is so late that FFmpeg's muxer would move it.
        """
        last: Fraction | None = None
        for begin, packet in packets:
            if last is not None and (begin - last) * self.rate > MAX_STEP:
                raise UsageError(
                    f"the audio of {self.name} is missing from {float(last):.3f} s to "
                    f"{float(begin):.3f} s, which is longer than mp4 and mov allow",
                    hint="give a codec, which encodes the gap as silence, or write .mkv",
                )
            last = begin
            yield begin, packet

    def frames(self) -> Iterator[av.AudioFrame]:
        """Yield decoded frames; pts are ticks from the first picture."""
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
            raise UsageError(f"the audio of {self.name} cannot be read: {error}") from error
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def _first_picture(self) -> Fraction:
        """Return the start of the pictures, or else of the audio, in seconds of the file's
        timeline.
        """
        pictures = self._opened.streams.best("video")
        stream = self.stream if pictures is None else pictures
        start, base = stream.start_time, exact_fraction(stream.time_base)
        return Fraction(0) if start is None or base is None else start * base

    def _unreadable(self, error: FFmpegError) -> UsageError:
        return UsageError(f"the audio of {self.name} cannot be read: {error.strerror}")


class CopiedAudio:
    """An audio stream of copied packets."""

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

    def packets_until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Yield the packets before `seconds`."""
        while self._next is not None and self._next[0] < seconds:
            begin, packet = self._next
            packet.pts = packet.dts = round(begin / tick_seconds(packet))
            packet.stream = self._stream
            yield cast("Packet[Stream]", packet)
            self._next = next(self._packets, None)

    finish = packets_until

    def close(self) -> None:
        self._file.close()


AudioInput: TypeAlias = str | os.PathLike[str] | AudioSamples | AudioFormat
"""A file with audio, samples, or the format of samples that will be pushed."""


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """The audio of a file to write."""

    given: AudioInput
    codec: str | None  #: one of `AUDIO_CODECS`; None: copied if possible, else aac


AUDIO_CODECS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "aac": ("mp4", "mov", "matroska"),
        "flac": ("mp4", "matroska"),
        "opus": ("mp4", "matroska"),
        "pcm": ("mov", "matroska"),
    }
)
"""Containers by audio codec; flac and pcm are lossless."""
# Codecs whose packets can be copied, by container.
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


class AudioPacketSource(Protocol):
    """Yields the packets of an audio stream in step with the pictures."""

    @property
    def is_prompt(self) -> bool:
        """Whether there is certainly a packet among the first seconds."""

    def packets_until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Yield the packets that may be written before the picture at `seconds`. Raises
        `UsageError`.
        """

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Yield the remaining packets that begin before `seconds`, the end of the pictures."""

    def close(self) -> None:
        """Close the files that it reads."""


def open_audio_source(
    form: AudioOptions, container: str, output: OutputContainer
) -> AudioPacketSource:
    """Add an audio stream to `output`, a file of kind `container` without a header.

    A `AudioFormat` gives `PushedAudio`. Raises `UsageError` for audio that cannot be read or
    written, `OSError`.
    """
    if form.codec is not None and container not in AUDIO_CODECS.get(form.codec, ()):
        fitting = [name for name, containers in AUDIO_CODECS.items() if container in containers]
        raise UsageError(
            f"audio codec in {container} must be one of {', '.join(fitting)}, got {form.codec}",
        )
    codec = form.codec or "aac"
    if isinstance(form.given, AudioFormat):
        return PushedAudio(output, codec, form.given)
    if isinstance(form.given, tuple):
        framer, samples = framer_for(form.given)
        encoder = AudioEncoder(output, codec, framer.rate, framer.layout, framer.kind)
        return _EncodedAudio(encoder, framer.frames(samples, 0))
    file = AudioFile(form.given)
    try:
        if form.codec is None and file.codec in _COPIED_CODECS[container] and file.is_configured:
            if container == "matroska":
                return CopiedAudio(output, file, file.packets(is_cut=True))
            return CopiedAudio(output, file, file.with_checked_gaps(file.packets(is_cut=False)))
        encoder = AudioEncoder(output, codec, file.rate, file.layout, file.kind)
        return _EncodedAudio(encoder, file.frames(), file)
    except BaseException:
        file.close()
        raise


class _EncodedAudio:
    """Encodes samples of an array or a file; cut at the end of the pictures."""

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

    def packets_until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
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
            self._encoder.push(frame)
            if frame is None:
                self._frames = None
