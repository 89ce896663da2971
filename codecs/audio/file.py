"""Sound that is taken of a file, as it is or decoded.

Times count from the first picture.  Of a file with pictures that is its own first picture, of any
other the first sample that is heard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import av
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.audio.samples import LAYOUTS
from vfsd.codecs.containers.detect_container import HEAD_BYTES, sniff
from vfsd.codecs.containers.timestamps import LONGEST_STEP
from vfsd.codecs.decoding.demuxer import Source, demuxed, discard_others, open_as
from vfsd.codecs.pyav import exact, tick_of
from vfsd.errors import RefusedMediaError, UsageError

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
_PROMPT = 10
"""Seconds: files wait with their first fragment for sound that begins by then."""


class SoundFile:
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

    @property
    def rate(self) -> int:
        """Samples of each channel in a second."""
        return self.stream.codec_context.sample_rate

    @property
    def layout(self) -> str:
        """Of what its sound is encoded in.  Raises `UsageError`."""
        channels = self.stream.codec_context.channels
        if channels not in LAYOUTS:
            raise UsageError(f"sound of {channels} channels is not encoded")
        return LAYOUTS[channels]

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
            for packet in demuxed(self._opened, self.stream):
                if packet.pts is None or (last is not None and packet.pts <= last):
                    raise UsageError(
                        f"the packets of the sound of {self.name} do not tell when they begin",
                        hint="say in which codec it is to be encoded",
                    )
                last = packet.pts
                begin = packet.pts * tick_of(packet) - self._origin
                reach = 0 if is_cut else (packet.duration or 0) * tick_of(packet)
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
            if last is not None and (begin - last) * self.rate > LONGEST_STEP:
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
                frame.pts = (frame.pts or 0) - round(self._origin / tick_of(frame))
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
            raise UsageError(f"the sound of {self.name} cannot be read: {error}") from error
        except FFmpegError as error:
            raise self._unreadable(error) from error

    def _first_picture(self) -> Fraction:
        """Seconds on the file's timeline."""
        pictures = self._opened.streams.best("video")
        stream = self.stream if pictures is None else pictures
        start, base = stream.start_time, exact(stream.time_base)
        return Fraction(0) if start is None or base is None else start * base

    def _unreadable(self, error: FFmpegError) -> UsageError:
        return UsageError(f"the sound of {self.name} cannot be read: {error.strerror}")


class CopiedSound:
    """Packets as they are."""

    def __init__(
        self,
        output: OutputContainer,
        file: SoundFile,
        packets: Iterator[tuple[Fraction, Packet[AudioStream]]],
    ) -> None:
        self._file = file
        self._stream = output.add_stream_from_template(file.stream)
        self._packets = packets
        self._next = next(self._packets, None)
        self.is_prompt = self._next is not None and self._next[0] < _PROMPT

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        while self._next is not None and self._next[0] < seconds:
            begin, packet = self._next
            packet.pts = packet.dts = round(begin / tick_of(packet))
            packet.stream = self._stream
            yield cast("Packet[Stream]", packet)
            self._next = next(self._packets, None)

    finish = until

    def close(self) -> None:
        self._file.close()
