"""Opens media files for demuxing (`MediaSource`, `Demuxer`) and configures decoder contexts for
their streams.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, NoReturn, TypeVar

import av.logging
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard, Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.containers.detect_container import container_of
from vfsd.codecs.pyav import MAX_PIXELS, configure_decoder, max_pixels, open_input
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import MediaInfo
from vfsd.disk.checksums import MediaSource
from vfsd.errors import DamagedFileError, IntegrityError

_Kind = TypeVar("_Kind", VideoStream, AudioStream)


MAX_STREAMS = 200
"""Most streams of an accepted file."""

_CHUNK_PACKETS = 256
# The demuxer reads on, rather than seeks, to a packet within this distance.
_NEAR_PACKETS = 64
# Packets before the wanted one that seeks target, in the order of attempts.
_SEEK_BACK = (0, 2, 4, 16, 64)
# Most packets to go back for one with a position of its own.
_MAX_SEEK_BACK = 512
# Consecutive packets that must match the table to identify the target of a seek.
_MATCHED_PACKETS = 3
_BUFFER_BYTES = 1 << 18
_OPEN_SECONDS = 60.0
_GENERATE_PTS = 1
_OPTIONS = {
    "protocol_whitelist": "file",
    "probesize": str(5 << 20),
    "analyzeduration": str(10_000_000),
    # One more than is accepted, to notice the excess: some demuxers drop further streams silently.
    "max_streams": str(MAX_STREAMS + 1),
    "max_pixels": str(MAX_PIXELS),
}


class _SourceStream:
    """A source as a file object for PyAV, with a position."""

    def __init__(self, source: MediaSource) -> None:
        self._source = source
        self._at = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._source.read_some(self._at, size)
        except DamagedFileError as error:
            self._source.interrupted_by = error
            return b""  # end of file for FFmpeg, which would retry after an error
        except BaseException as error:
            self._source.interrupted_by = error
            raise
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            offset += {os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}.get(whence, 0)
        except BaseException as error:
            self._source.interrupted_by = error
            raise
        if offset < 0:
            raise OSError("seek before the start of the file")
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at


def _open_nothing(url: str, flags: int, options: dict[str, Any]) -> NoReturn:
    raise PermissionError(f"a video may not open another file: {url}")


def open_container(source: MediaSource, container: str) -> InputContainer:
    """Return `source` opened by the demuxer of `container`; see `open_with_demuxer`.

    `container` is a name of `vfsd.codecs.containers.detect_container`.
    """
    return open_with_demuxer(source, container_of(container).demuxer)


def open_all_tracks(source: MediaSource, container: str) -> InputContainer:
    """Open as `open_container` does, with QuickTime chapter tracks as text streams.

    FFmpeg omits their packets otherwise. The container has no chapters then.
    """
    demuxer = container_of(container).demuxer
    extra = {"ignore_chapters": "1"} if demuxer == "mov" else {}
    return _open_input(source, demuxer, {**_OPTIONS, **extra})


def open_with_demuxer(source: MediaSource, demuxer: str) -> InputContainer:
    """Return `source` opened by FFmpeg's demuxer of that name. Raises `FFmpegError`.

    Timestamps are those of the file; missing ones are not generated.
    """
    return _open_input(source, demuxer, _OPTIONS)


def _open_input(source: MediaSource, demuxer: str, options: Mapping[str, str]) -> InputContainer:
    opened = open_input(
        _SourceStream(source),
        format=demuxer,
        options=options,
        buffer_size=_BUFFER_BYTES,
        timeout=(_OPEN_SECONDS, None),
        io_open=_open_nothing,
    )
    opened.flags &= ~_GENERATE_PTS
    return opened


def runs_out_of_streams(source: MediaSource, container: str) -> bool:
    """Return whether FFmpeg's error "out of memory" means that there are too many streams.

    Both have the same error number, and only the log distinguishes them. So the whole file is
    demuxed again.
    """
    with (
        capture_errors() as messages,
        suppress(FFmpegError, IndexError),  # IndexError as in `demux_packets`
        open_container(source, container) as opened,
    ):
        for _ in opened.demux():
            pass
    return any("max_streams" in message for _, _, message in messages)


LogMessage = tuple[int, str, str]
"""(level, name of the component, text)"""


@contextmanager
def capture_errors() -> Iterator[list[LogMessage]]:
    """Collect the errors that FFmpeg logs in this thread; the caller may remove entries."""
    av.logging.set_skip_repeated(False)  # otherwise repeats of an earlier file are logged here
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as messages:
            yield messages
    finally:
        av.logging.set_level(None)
        av.logging.set_skip_repeated(True)


def open_stream(
    source: MediaSource, container: str, stream_index: int
) -> tuple[InputContainer, VideoStream]:
    """Return the container and the video stream with that index; all other streams are discarded.

    Raises `IntegrityError` if the file no longer has it.
    """
    try:
        opened = open_container(source, container)
    except FFmpegError as error:
        source.check()
        raise IntegrityError(f"{source.name}: can no longer be opened: {error}") from error
    for stream in opened.streams:
        if stream.index == stream_index and isinstance(stream, VideoStream):
            discard_other_streams(opened, stream)
            return opened, stream
    opened.close()
    raise IntegrityError(f"{source.name}: video stream {stream_index} no longer exists")


def discard_other_streams(opened: InputContainer, kept: Stream) -> None:
    """Make the demuxer skip the payload of all streams but one."""
    for stream in opened.streams:
        if stream.index != kept.index:
            stream.discard = Discard.all


def demux_packets(opened: InputContainer, stream: _Kind) -> Iterator[Packet[_Kind]]:
    """Yield the packets of `stream` alone from the current position. Raises `FFmpegError`."""
    try:
        for packet in opened.demux(stream):
            # PyAV appends an empty packet without timestamps to flush a decoder.
            if packet.size or packet.pts is not None or packet.dts is not None:
                yield packet
    except IndexError:
        return  # raised by PyAV at the end of a file in which streams appeared later


def demux_until_error(opened: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Yield packets as `demux_packets` does, and stop at an error."""
    with suppress(FFmpegError):
        yield from demux_packets(opened, stream)


class SeekingDemuxer:
    """A container that is kept open, and the index of the packet that it returns next."""

    def __init__(self, source: MediaSource, media: MediaInfo, table: FrameTable) -> None:
        self._source = source
        self._media = media
        self._table = table
        self._opened: InputContainer | None = None
        self._stream: VideoStream | None = None
        self._next = 0
        self._packets: Iterator[Packet[VideoStream]] = iter(())

    def read(
        self, first: int, end: int, *, seek: bool
    ) -> Iterator[tuple[int, Packet[VideoStream]]]:
        self._approach(first, seek)
        start = upto = self._next
        sizes: list[int] = []  # of the packets from `start` up to `upto`
        while self._next < end:
            index = self._next
            if index >= upto:
                start, upto = index, min(end, index + _CHUNK_PACKETS)
                sizes = self._table.columns(start, upto).size.tolist()
            packet = next(self._packets, None)
            if packet is None:
                self._raise_interruption()
                raise IntegrityError(f"{self._source.name}: file ends before packet {index}")
            self._next = index + 1
            if packet.size != sizes[index - start]:
                self._raise_interruption()
                self.close()
                raise IntegrityError(f"{self._source.name}: packet {index} has changed")
            if index >= first:
                yield index, packet

    def context(self, *, threads: int, strict: bool) -> VideoCodecContext:
        """Return the decoder that FFmpeg itself sets up for the stream."""
        opened, stream = open_stream(self._source, self._media.container, self._media.stream_index)
        context = stream.codec_context
        configure_decoder(context, threads=threads, strict=strict, pixels=max_pixels(self._media))
        opened.close()
        return context

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = self._stream = None
        self._next = 0

    def _raise_interruption(self) -> None:
        """Raise the read error that FFmpeg treated as the end of the file."""
        error, self._source.interrupted_by = self._source.interrupted_by, None
        if error is not None:
            self.close()
            raise error

    def _restart(self) -> None:
        self.close()
        self._source.interrupted_by = None
        self._opened, self._stream = open_stream(
            self._source, self._media.container, self._media.stream_index
        )
        self._packets = demux_until_error(self._opened, self._stream)

    def _approach(self, first: int, seek: bool) -> None:
        """Move to `first` or to a packet before it."""
        reach = _NEAR_PACKETS if seek else self._table.packets
        if self._opened is None:
            self._restart()
        if self._next <= first <= self._next + reach:
            return
        if not seek or not any(self._seek_to(at, first) for at in self._landmarks(first)):
            self._restart()

    def _landmarks(self, first: int) -> Iterator[int]:
        """Yield packets at or before `first` that a seek may target, best first.

        If the container cuts packets out of larger units, several packets share a position or have
        none. A packet may also begin in the unit before, so that the seek must go further back.
        """
        low = max(1, first - _MAX_SEEK_BACK)
        located = np.flatnonzero(self._table.columns(low, first + 1).position >= 0) + low
        aims = np.searchsorted(located, first - np.array(_SEEK_BACK), side="right") - 1
        yield from dict.fromkeys(located[aims[aims >= 0]].tolist())

    def _seek_to(self, start: int, first: int) -> bool:
        """Seek to the position of packet `start`, and identify the packet that the demuxer returns.

        The first packet may be the rest of an earlier one. So position and size of several packets
        in a row must match the table. Returns False if the seek fails, or leads past `first`.
        """
        assert self._opened is not None
        assert self._stream is not None
        end = min(first + _MATCHED_PACKETS, self._table.packets)
        columns = self._table.columns(start, end)
        rows = list(zip(columns.position.tolist(), columns.size.tolist(), strict=True))
        try:
            self._source.interrupted_by = None
            self._opened.seek(rows[0][0], unsupported_byte_offset=True, stream=self._stream)
        except FFmpegError:
            return False
        self._packets = demux_until_error(self._opened, self._stream)
        met = list(_until_located(self._packets))
        found = [(-1 if packet.pos is None else packet.pos, packet.size) for packet in met]
        for skipped in range(len(found)):
            tail = found[skipped : skipped + _MATCHED_PACKETS]
            if all(position < 0 for position, _ in tail):
                continue  # sizes alone may repeat
            for row in range(first - start + 1):
                if rows[row : row + len(tail)] == tail and len(tail) == _MATCHED_PACKETS:
                    self._packets = chain(met[skipped:], self._packets)
                    self._next = start + row
                    return True
        return False


def _until_located(packets: Iterator[Packet[VideoStream]]) -> Iterator[Packet[VideoStream]]:
    """Yield packets until some follow the second one that has a position of its own.

    The first packet may be the rest of one that began before.
    """
    located, last = 0, 2 * _MATCHED_PACKETS - 1
    for number, packet in enumerate(islice(packets, _MAX_SEEK_BACK)):
        yield packet
        located += packet.pos is not None
        if located < 2:
            last = max(last, number + _MATCHED_PACKETS)
        elif number >= last:
            return
