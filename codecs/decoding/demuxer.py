"""Opens stored files for FFmpeg.

`MediaSource` reads by `pread`. It is passed to one named demuxer, which cannot open other files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn, TypeVar

import av
import av.logging
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard, Stream
from av.video.stream import VideoStream

from vfsd.codecs.containers.detect_container import container_of
from vfsd.codecs.pyav import open_input
from vfsd.disk.checksummed_file import ChecksummedFile, StoredFile
from vfsd.errors import DamagedFileError, IntegrityError

_Kind = TypeVar("_Kind", VideoStream, AudioStream)


class OpenFile(NamedTuple):
    """A descriptor with the size of its file, for a process that must not call fstat on it.

    FUSE refuses fstat to all users except the one who mounted it, unless mounted with allow_other.
    """

    fd: int
    size: int  #: bytes


MediaFile = str | os.PathLike[str] | int | OpenFile | ChecksummedFile
"""A path, a descriptor, or an open file."""

MAX_PIXELS = 1 << 27
"""Most pixels of a picture that decoders accept: 16384 x 8192."""

MAX_STREAMS = 200
"""Most streams of an accepted file."""

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


class MediaSource:
    """A file that is read at given offsets.

    Opens and closes a path; a descriptor or another open file stays the caller's. Reads use `pread`
    only, so several sources may share a descriptor. Data of a `StoredFile` or `ChecksummedFile` is
    checked against its checksums.
    """

    def __init__(self, file: MediaFile) -> None:
        self._owned = isinstance(file, (str, os.PathLike))
        self._summed: ChecksummedFile | None = None
        self._given: OpenFile | None = None
        if isinstance(file, (StoredFile, ChecksummedFile)):
            self._summed = file.open() if isinstance(file, StoredFile) else file
            self.fd, self.name = self._summed.fd, self._summed.name
        elif isinstance(file, OpenFile):
            self._given = file
            self.fd, self.name = file.fd, f"descriptor {file.fd}"
        elif isinstance(file, int):
            self.fd, self.name = file, f"descriptor {file}"
        else:
            self.fd, self.name = os.open(file, os.O_RDONLY | os.O_CLOEXEC), os.fspath(file)
        self.interrupted_by: BaseException | None = None

    @property
    def shared(self) -> int | OpenFile | ChecksummedFile:
        """The open file, from which other sources can be made as long as this one is open."""
        if self._summed is not None:
            return self._summed
        return self.fd if self._given is None else self._given

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._given.size if self._given is not None else os.fstat(self.fd).st_size

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on; fewer only at the end of the file."""
        data = self.read_some(position, size)
        while len(data) < size:
            more = self.read_some(position + len(data), size - len(data))
            if not more:
                break
            data += more
        return data

    def read_some(self, position: int, size: int) -> bytes:
        """Return 1 to `size` bytes from `position` on; empty at the end of the file.

        Raises `DamagedFileError` if the first byte is damaged.
        """
        if self._summed is not None:
            return self._summed.read_some(position, size)
        return os.pread(self.fd, size, position)

    def check(self) -> None:
        """Raise the error that interrupted a read inside FFmpeg, which may have ignored it."""
        if self.interrupted_by is not None:
            raise self.interrupted_by

    def close(self) -> None:
        if self._owned and self._summed is not None:
            self._summed.close()
        elif self._owned and self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> MediaSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    reported = {"ignore_chapters": "1"} if demuxer == "mov" else {}
    return _open_input(source, demuxer, {**_OPTIONS, **reported})


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
        capture_errors() as reported,
        suppress(FFmpegError, IndexError),  # IndexError as in `demux_packets`
        open_container(source, container) as opened,
    ):
        for _ in opened.demux():
            pass
    return any("max_streams" in message for _, _, message in reported)


LogMessage = tuple[int, str, str]
"""(level, name of the component, text)"""


@contextmanager
def capture_errors() -> Iterator[list[LogMessage]]:
    """Collect the errors that FFmpeg logs in this thread; the caller may remove entries."""
    av.logging.set_skip_repeated(False)  # otherwise repeats of an earlier file are logged here
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as reported:
            yield reported
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
