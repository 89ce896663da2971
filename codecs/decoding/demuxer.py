"""Opens stored files for FFmpeg.

`MediaSource` reads by `pread`; one named demuxer gets it, and can open nothing else.
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
    """A descriptor that was handed over, with the size of its file.

    For who may read it, but not ask for that: FUSE tells nobody but the user who has mounted it,
    unless it was mounted with allow_other.
    """

    fd: int
    size: int  #: bytes


MediaFile = str | os.PathLike[str] | int | OpenFile | ChecksummedFile
"""A path, a descriptor, or a file that is open."""

MAX_PIXELS = 1 << 27
"""Pictures of more pixels than this are refused by the decoders: 16384 x 8192."""

MAX_STREAMS = 200
"""A file with more streams is no video."""

_BUFFER_BYTES = 1 << 18
_OPEN_SECONDS = 60.0
_GENERATE_PTS = 1
_OPTIONS = {
    "protocol_whitelist": "file",
    "probesize": str(5 << 20),
    "analyzeduration": str(10_000_000),
    # One more than may be: of any others some demuxers say nothing.
    "max_streams": str(MAX_STREAMS + 1),
    "max_pixels": str(MAX_PIXELS),
}


class MediaSource:
    """A file that is read at given offsets.

    Made of a path, which it opens and closes, or of a descriptor or another open file, which stay
    the caller's: since only `pread` is used, these may serve several sources at a time.  What is
    read of a `StoredFile` or `ChecksummedFile` is compared with its sums.
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
        """What other sources can be made of; open as long as this one is."""
        if self._summed is not None:
            return self._summed
        return self.fd if self._given is None else self._given

    @property
    def size(self) -> int:
        """Bytes."""
        return self._given.size if self._given is not None else os.fstat(self.fd).st_size

    def read_at(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only at the end of the file."""
        data = self.read_some(position, size)
        while len(data) < size:
            more = self.read_some(position + len(data), size - len(data))
            if not more:
                break
            data += more
        return data

    def read_some(self, position: int, size: int) -> bytes:
        """As `read_at`, or fewer, but one at least where there is one.

        Raises `DamagedFileError` where that one is damaged.
        """
        if self._summed is not None:
            return self._summed.read_some(position, size)
        return os.pread(self.fd, size, position)

    def check(self) -> None:
        """Raise what interrupted a read in the middle of FFmpeg, which may have taken no notice."""
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
    """A source as the file object that PyAV wants, with a position of its own."""

    def __init__(self, source: MediaSource) -> None:
        self._source = source
        self._at = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._source.read_some(self._at, size)
        except DamagedFileError as error:
            self._source.interrupted_by = error
            return b""  # to FFmpeg that is the end; it would try an error again and again
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
    """`source` demuxed as what `vfsd.codecs.containers.detect_container` calls `container`; see
    `open_with_demuxer`."""
    return open_with_demuxer(source, container_of(container).demuxer)


def open_all_tracks(source: MediaSource, container: str) -> InputContainer:
    """As `open_container`, with tracks of QuickTime chapters as streams of text, whose packets
    FFmpeg leaves out otherwise; no chapters then."""
    demuxer = container_of(container).demuxer
    told = {"ignore_chapters": "1"} if demuxer == "mov" else {}
    return _open_input(source, demuxer, {**_OPTIONS, **told})


def open_with_demuxer(source: MediaSource, demuxer: str) -> InputContainer:
    """`source` taken apart by FFmpeg's demuxer of that name.

    Time stamps are those of the file: missing ones are not made up.  Raises `FFmpegError`.
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
    """Whether FFmpeg, when it says that memory ran out, means that there are too many streams.

    It gives both the same number, and tells them apart in its log only; so all of it is demuxed
    once more.
    """
    with (
        capture_errors() as told,
        suppress(FFmpegError, IndexError),  # the latter as in `demuxed`
        open_container(source, container) as opened,
    ):
        for _ in opened.demux():
            pass
    return any("max_streams" in message for _, _, message in told)


LogMessage = tuple[int, str, str]
"""Level, name of what reports it, and text."""


@contextmanager
def capture_errors() -> Iterator[list[LogMessage]]:
    """The errors that FFmpeg reports in this thread meanwhile; the caller may take them out."""
    av.logging.set_skip_repeated(False)  # else what was left of another file is told with this one
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as told:
            yield told
    finally:
        av.logging.set_level(None)
        av.logging.set_skip_repeated(True)


def open_stream(
    source: MediaSource, container: str, stream_index: int
) -> tuple[InputContainer, VideoStream]:
    """The container, and the video stream of that index; all other streams are discarded.

    Raises `IntegrityError` when the file no longer has it.
    """
    try:
        opened = open_container(source, container)
    except FFmpegError as error:
        source.check()
        raise IntegrityError(f"{source.name}: cannot be opened any more: {error}") from error
    for stream in opened.streams:
        if stream.index == stream_index and isinstance(stream, VideoStream):
            discard_other_streams(opened, stream)
            return opened, stream
    opened.close()
    raise IntegrityError(f"{source.name}: video stream {stream_index} is gone")


def discard_other_streams(opened: InputContainer, kept: Stream) -> None:
    """Let the demuxer skip the payload of every stream but one."""
    for stream in opened.streams:
        if stream.index != kept.index:
            stream.discard = Discard.all


def demux_packets(opened: InputContainer, stream: _Kind) -> Iterator[Packet[_Kind]]:
    """The packets of `stream` from where `opened` stands, and no other.  Raises `FFmpegError`."""
    try:
        for packet in opened.demux(stream):
            # An empty one without any time is what PyAV appends to flush a decoder.
            if packet.size or packet.pts is not None or packet.dts is not None:
                yield packet
    except IndexError:
        return  # PyAV, at the end of a file in which streams turned up on the way


def demux_until_error(opened: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """As `demuxed`; an error is the end."""
    with suppress(FFmpegError):
        yield from demux_packets(opened, stream)
