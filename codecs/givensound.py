"""Sound to be written beside pictures: packets of a file as they are, or samples to be encoded.

Times count from the first picture.  Of a file with pictures that is its own first picture, of any
other the first sample that is heard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.filter import Graph
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.sniff import HEAD_BYTES, sniff
from vfsd.codecs.source import Source, demuxed, discard_others, open_as
from vfsd.errors import RefusedMediaError, UsageError

Samples: TypeAlias = tuple[npt.NDArray[Any], int]
"""Samples x channels, or samples of one channel, int16, int32 or float (-1 to 1); and the rate."""

Sounding: TypeAlias = str | os.PathLike[str] | Samples
"""A file of which sound is taken, or samples."""


@dataclass(frozen=True, slots=True)
class SoundForm:
    """What sound is written."""

    given: Sounding
    codec: str | None  #: one of `SOUND_CODECS`; None: as it is, else aac


SOUND_CODECS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "aac": ("mp4", "mov", "matroska"),
        "flac": ("mp4", "matroska"),
        "opus": ("mp4", "matroska"),
        "pcm": ("mov", "matroska"),
    }
)
"""What sound is encoded in, and the containers that take it; flac and pcm keep every sample."""
_ENCODERS = {"aac": "aac", "flac": "flac", "opus": "libopus", "pcm": "pcm_s16le"}
_KEPT = {
    "mp4": frozenset({"aac", "mp3", "mp2", "ac3", "opus", "flac", "alac"}),
    "mov": frozenset({"aac", "mp3", "ac3", "alac", "pcm_s16le", "pcm_s24le"}),
    "matroska": frozenset(
        {"aac", "mp3", "mp2", "ac3", "eac3", "opus", "flac", "vorbis", "alac"}
        | {"pcm_s16le", "pcm_s24le", "pcm_f32le"}
    ),
}
"""Codecs whose packets are copied into each container."""
_OPUS_RATE = 48_000
_FORMATS = {"int16": "s16", "int32": "s32", "float32": "flt", "float64": "dbl"}
_LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
_AUDIO_FILES = (
    (rb"RIFF....WAVE|RF64", "wav"),
    (rb"fLaC", "flac"),
    (rb"OggS", "ogg"),
    (rb"\xff[\xf0\xf1\xf8\xf9]", "aac"),
    (rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]", "mp3"),
)
"""FFmpeg's demuxer of files that hold sound only, by their first bytes."""


class SoundFeed(Protocol):
    """Gives the packets of a stream as the pictures go on."""

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Those that may be written by then.  Raises `UsageError`."""

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """All that are left of what begins before the last picture ends."""

    def close(self) -> None:
        """Of what it reads."""


def sound_feed(form: SoundForm, container: str, output: OutputContainer) -> SoundFeed:
    """A stream in `output`, a file of the kind `container` that has no header yet.

    Raises `UsageError` for sound that cannot be read or written, `OSError`.
    """
    if form.codec is not None and container not in SOUND_CODECS.get(form.codec, ()):
        fitting = [name for name, containers in SOUND_CODECS.items() if container in containers]
        raise UsageError(
            f"sound is not written as {form.codec} in {container}",
            hint=f"one of {', '.join(fitting)}",
        )
    if isinstance(form.given, tuple):
        samples, rate = _checked(form.given)
        name = form.codec or "aac"
        return _EncodedSound(output, name, rate, samples.shape[1], _frames_of(samples, rate))
    file = _SoundFile(form.given)
    try:
        if form.codec is None and file.codec in _KEPT[container] and file.is_configured:
            return _CopiedSound(output, file, file.packets(is_cut=container == "matroska"))
        context = file.stream.codec_context
        name, rate = form.codec or "aac", context.sample_rate
        return _EncodedSound(output, name, rate, context.channels, file.frames(), file)
    except BaseException:
        file.close()
        raise


class _SoundFile:
    """The sound of a file, open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._source = Source(path)
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
        discard_others(self._opened, found)

    @property
    def is_configured(self) -> bool:
        """Whether nothing that decoders have to be told is in its packets only."""
        return self.codec != "aac" or bool(self.stream.codec_context.extradata)

    def packets(self, is_cut: bool) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """(when it begins, packet), from the first picture on.

        Unless `is_cut`, with the one before, of which nothing is heard.
        """
        last: int | None = None
        try:
            for packet in demuxed(self._opened, self.stream):
                if packet.pts is None or (last is not None and packet.pts <= last):
                    raise UsageError(
                        f"the packets of the sound of {self.name} do not tell when they begin",
                        hint="say in which codec it is to be encoded",
                    )
                last = packet.pts
                begin = packet.pts * packet.time_base - self._origin
                reach = 0 if is_cut else (packet.duration or 0) * packet.time_base
                if begin + reach >= 0:
                    yield begin, packet
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def frames(self) -> Iterator[av.AudioFrame]:
        """Decoded; pts in ticks from the first picture."""
        try:
            for frame in self._opened.decode(self.stream):
                assert frame.time_base is not None
                frame.pts = (frame.pts or 0) - round(self._origin / frame.time_base)
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
            return open_as(self._source, next(found, None) or sniff(head).demuxer)
        except RefusedMediaError as error:
            raise UsageError(f"{self.name} holds no sound that can be read: {error}") from error
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def _first_picture(self) -> Fraction:
        """Seconds on the file's timeline."""
        pictures = self._opened.streams.best("video")
        stream = self.stream if pictures is None else pictures
        start, base = stream.start_time, stream.time_base
        return Fraction(0) if start is None or base is None else start * base

    def _unreadable(self, error: FFmpegError) -> UsageError:
        return UsageError(f"the sound of {self.name} cannot be read: {error.strerror}")


class _CopiedSound:
    """Packets as they are."""

    def __init__(
        self,
        output: OutputContainer,
        file: _SoundFile,
        packets: Iterator[tuple[Fraction, Packet[AudioStream]]],
    ) -> None:
        self._file = file
        self._stream = output.add_stream_from_template(file.stream)
        self._packets = packets
        self._next = next(self._packets, None)

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        while self._next is not None and self._next[0] < seconds:
            begin, packet = self._next
            packet.pts = packet.dts = round(begin / packet.time_base)
            packet.stream = self._stream
            yield cast("Packet[Stream]", packet)
            self._next = next(self._packets, None)

    finish = until

    def close(self) -> None:
        self._file.close()


class _EncodedSound:
    """Samples, cut where the pictures end."""

    def __init__(
        self,
        output: OutputContainer,
        codec: str,
        rate: int,
        channels: int,
        frames: Iterator[av.AudioFrame],
        file: _SoundFile | None = None,
    ) -> None:
        if channels not in _LAYOUTS:
            raise UsageError(f"sound of {channels} channels is not encoded")
        self._file = file
        self._rate = _OPUS_RATE if codec == "opus" else rate
        stream = output.add_stream(_ENCODERS[codec], rate=self._rate)
        assert isinstance(stream, AudioStream)
        self._stream = stream
        stream.layout = _LAYOUTS[channels]
        context = stream.codec_context
        if codec in ("flac", "pcm"):
            context.format = "s16"
        try:
            context.open()
        except FFmpegError as error:
            raise UsageError(
                f"sound of {rate} Hz cannot be encoded in {codec}: {error.strerror}"
            ) from error
        self._frames = _in_step(frames, context, self._rate)
        self._fifo = av.AudioFifo()
        self._given = 0  # samples that the encoder has
        self._got = 0  # and the fifo had

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        yield from self._encoded(int(seconds * self._rate))

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        yield from self._encoded(round(seconds * self._rate))
        yield from self._stream.encode(None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _encoded(self, samples: int) -> Iterator[Packet[Stream]]:
        while self._got < samples and (frame := next(self._frames, None)) is not None:
            self._got += frame.samples
            frame.pts = None
            self._fifo.write(frame)
        wanted = min(samples, self._got) - self._given
        cut = self._fifo.read(wanted) if wanted > 0 else None
        if cut is not None:
            cut.pts, cut.time_base = self._given, Fraction(1, self._rate)
            self._given += cut.samples
            yield from self._stream.encode(cut)


def _in_step(
    frames: Iterator[av.AudioFrame], context: AudioCodecContext, rate: int
) -> Iterator[av.AudioFrame]:
    """As the encoder takes them, from the first picture on, with silence where there are gaps."""
    graph: Graph | None = None
    for frame in frames:
        if graph is None:
            graph = _graph(frame, context, rate)
        graph.push(frame)
        yield from _pulled(graph)
    if graph is not None:
        graph.push(None)
        yield from _pulled(graph)


def _graph(frame: av.AudioFrame, context: AudioCodecContext, rate: int) -> Graph:
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


def _pulled(graph: Graph) -> Iterator[av.AudioFrame]:
    with suppress(BlockingIOError, EOFError):
        while True:
            frame = graph.pull()
            assert isinstance(frame, av.AudioFrame)
            yield frame


def _checked(given: Samples) -> tuple[npt.NDArray[Any], int]:
    """(samples x channels, rate)."""
    samples, rate = np.asarray(given[0]), int(given[1])
    if samples.ndim == 1:
        samples = samples[:, None]
    if samples.ndim != 2 or samples.dtype.name not in _FORMATS:
        raise UsageError(
            f"an array of {samples.ndim} dimensions of {samples.dtype} is no sound",
            hint="give samples x channels of int16, int32 or float32",
        )
    if rate <= 0:
        raise UsageError(f"{rate} is no rate of samples")
    return samples, rate


def _frames_of(samples: npt.NDArray[Any], rate: int) -> Iterator[av.AudioFrame]:
    """A second at a time."""
    channels = samples.shape[1]
    for first in range(0, len(samples), rate):
        part = np.ascontiguousarray(samples[first : first + rate]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(
            part, format=_FORMATS[samples.dtype.name], layout=_LAYOUTS[channels]
        )
        frame.sample_rate, frame.pts, frame.time_base = rate, first, Fraction(1, rate)
        yield frame
