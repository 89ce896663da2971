"""Writes a file with re-encoded pictures and copies of everything else.

All other streams, tags, chapters and headers stay as they were.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from io import BytesIO

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.sei_vui import with_sei_messages, with_vui_fields
from vfsd.codecs.decoding.demuxer import open_all_tracks, open_container
from vfsd.codecs.encoding.archive_encoder import (
    ArchiveCodec,
    ReencodedRun,
    archive_encoder_options,
    prepare_encoder,
)
from vfsd.codecs.encoding.copy_boxes import copy_boxes, copy_header_fields
from vfsd.codecs.encoding.encoder import NOMINAL_RATE
from vfsd.codecs.encoding.signalling import SeiReader, StreamSignalling, set_container_colors
from vfsd.codecs.inventory.side_data import IDENTITY_MATRIX, DisplayMatrix, file_display_matrix
from vfsd.codecs.pyav import open_encoder, open_output, tick_seconds
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo
from vfsd.disk.checksums import MediaFile, MediaSource
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.errors import IntegrityError, NoSpaceError, RefusedMediaError

# FFmpeg's muxer by container.
_MUXERS = {"mp4": "mp4", "mov": "mov", "matroska": "matroska", "webm": "webm"}
_BOXED = ("mp4", "mov")
# Codecs by container.
_CONTAINER_CODECS = {
    "mp4": ("h264", "hevc", "av1"),
    "mov": ("h264", "hevc"),
    "matroska": ("h264", "hevc", "av1"),
    "webm": ("av1",),
}
# Exceptions of PyAV for a stream that a muxer refuses.
_MUXER_ERRORS = (FFmpegError, ValueError, NotImplementedError)
# Tags that the muxer sets itself.
_FILE_TAGS = frozenset(("major_brand", "minor_version", "compatible_brands", "encoder"))
# Prefixes of stream tags that describe the old packets.
_PACKET_TAGS: tuple[str, ...] = (
    "BPS",
    "DURATION",
    "NUMBER_OF_",
    "_STATISTICS_",
    "encoder",
    "vendor_id",
)
_MUXER_TAGS: tuple[str, ...] = ("encoder",)


def require_remuxable(media: MediaInfo, codec: ArchiveCodec) -> None:
    """Raise `RefusedMediaError` if a file cannot be written with that codec."""
    if media.container not in _MUXERS:
        raise RefusedMediaError(
            f"{media.container} files cannot be re-encoded",
            hint=f"supported containers: {', '.join(_MUXERS)}",
        )
    if codec.name not in _CONTAINER_CODECS[media.container]:
        raise RefusedMediaError(f"{media.container} cannot hold {codec.name}")


class FileRemuxer:
    """A new file at `target` with re-encoded runs of frames; a context manager.

    All other streams of `source` are copied, with chapters and tags. The file is complete when
    `finish` has returned. Raises `RefusedMediaError` if a part of the file cannot be written,
    `NoSpaceError`.

    Args:
        source, target: paths of the original and of the new file
        media: description of the original
        codec: encoder of the runs
        pts: timestamps of all frames in ticks of `media`, in display order
        end_pts: tick at which the last frame ends
        siting: chroma location of the pictures
        signalling: color signalling of the original
    """

    def __init__(
        self,
        source: MediaFile,
        target: str | os.PathLike[str],
        media: MediaInfo,
        codec: ArchiveCodec,
        pts: Ints,
        end_pts: int,
        siting: str,
        signalling: StreamSignalling,
    ) -> None:
        require_remuxable(media, codec)
        self._codec = codec
        self._container = media.container
        self._target = target
        self._siting = siting
        self._signalling = signalling
        self._matrix = file_display_matrix(source, media)
        self._base = media.time_base
        self._pts = [int(each) for each in pts]
        self._ends = [*self._pts[1:], end_pts]
        self._configuration: bytes | None = None
        self._packets = 0
        self._source = MediaSource(source)
        self._messages = SeiReader(self._source, media, codec.name)
        self._described = open_container(self._source, media.container)
        self._reading = open_all_tracks(self._source, media.container)
        self._writing = open_output(
            os.fspath(target),
            format=_MUXERS[media.container],
            options=_options(media),
        )
        try:
            self._stream, self._copies = self._add_streams(media)
            self._writing.start_encoding()
        except _MUXER_ERRORS as error:
            refusal = _refusal(self._described, media, codec, error)
            self.close()
            raise refusal from error
        except BaseException:
            self.close()
            raise
        self._others = _other_packets(self._reading, media.stream_index)
        self._next = next(self._others, None)

    def add(self, first_frame: int, run: ReencodedRun) -> None:
        """Add the frames from `first_frame` on, which must follow the previous ones."""
        if self._configuration not in (None, run.configuration):
            raise IntegrityError(f"{self._codec.encoder} changed its parameter sets between runs")
        self._configuration = run.configuration
        for ordinal, coded in enumerate(run.packets):
            frame = first_frame + coded.shown
            messages = self._messages.at(self._pts[frame], is_key=coded.is_key)
            packet = Packet(with_sei_messages(self._codec.name, coded.payload, messages))
            packet.stream = self._stream
            packet.time_base = self._base
            packet.pts = self._pts[frame]
            packet.dts = self._decoding_time(first_frame + ordinal)
            packet.duration = max(0, self._ends[frame] - self._pts[frame])
            packet.is_keyframe = coded.is_key
            self._copy_until(packet.dts * self._base)
            self._mux(packet)

    def finish(self) -> None:
        """Write the rest of the other streams, and close the file."""
        self._copy_until(None)
        self.finish_here()

    def finish_here(self) -> None:
        """Close the file without later packets of other streams.

        Its headers are those of the whole file.
        """
        pictures = self._stream.index  # not available in PyAV 19 once the file is closed
        try:
            self._writing.close()
            if self._container in _BOXED:
                tracks = {number + 1: number for number in range(len(self._reading.streams))}
                copy_header_fields(self._source, self._target, tracks)
                copy_boxes(self._source, self._target, tracks, pictures)
        except (FFmpegError, OSError) as error:
            raise _write_error(error) from error

    def close(self) -> None:
        try:
            self._writing.close()
        except (FFmpegError, OSError):
            pass  # the incomplete file is discarded
        finally:
            self._messages.close()
            self._described.close()
            self._reading.close()
            self._source.close()

    def __enter__(self) -> FileRemuxer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_streams(self, media: MediaInfo) -> tuple[VideoStream, dict[int, Stream]]:
        """Return the video stream, and the copies of all others by their old index."""
        copies: dict[int, Stream] = {}
        pictures: VideoStream | None = None
        for old in self._described.streams:
            if old.index == media.stream_index:
                new: Stream = self._add_pictures(media)
                assert isinstance(new, VideoStream)
                pictures = new
                skipped = _PACKET_TAGS
            else:
                new = copies[old.index] = self._add_copy(old)
                skipped = _MUXER_TAGS
            new.metadata.update(_kept_tags(old.metadata, skipped))
            new.disposition = Disposition(old.disposition)
        assert pictures is not None
        tags = self._described.metadata
        self._writing.metadata.update({k: v for k, v in tags.items() if k not in _FILE_TAGS})
        chapters = self._described.chapters()
        # In MP4 and MOV, chapters are copied as tracks and boxes.
        if chapters and self._container not in _BOXED:
            self._writing.set_chapters(chapters)
        return pictures, copies

    def _add_copy(self, old: Stream) -> Stream:
        if old.type != "data" or self._container not in _BOXED:
            return self._writing.add_stream_from_template(old)
        # A kind of data that the muxer accepts; `copy_boxes` replaces the description later.
        with av.open(BytesIO(_data_stream_template()), format="mp4") as opened:
            new = self._writing.add_stream_from_template(opened.streams[0])
        new.time_base = old.time_base
        return new

    def _add_pictures(self, media: MediaInfo) -> VideoStream:
        # This encoder gets no pictures; it only provides the header.
        stream = self._writing.add_stream(
            self._codec.encoder,
            rate=media.average_rate or NOMINAL_RATE,
            options=archive_encoder_options(self._codec, media, self._codec.quality, self._siting),
        )
        assert isinstance(stream, VideoStream)
        prepare_encoder(stream.codec_context, media)
        stream.time_base = media.time_base
        if self._matrix != IDENTITY_MATRIX:
            # Rotation in degrees would lose mirroring, scale and offset.
            stream.set_display_matrix(self._matrix)
        open_encoder(stream.codec_context)
        sets = bytes(stream.codec_context.extradata or b"")
        extradata = with_vui_fields(
            self._codec.name, sets, self._signalling.fields(self._codec.name, media)
        )
        if extradata != sets:
            stream.codec_context.extradata = extradata
        set_container_colors(stream.codec_context, self._signalling)
        return stream

    def _decoding_time(self, packet: int) -> int:
        """Return the dts of a packet in ticks, early enough for every picture."""
        number = packet - self._codec.delay
        if number >= 0:
            return self._pts[number]
        step = self._pts[1] - self._pts[0] if len(self._pts) > 1 else 1
        return self._pts[0] + number * step

    def _copy_until(self, seconds: Fraction | None) -> None:
        """Write the packets of other streams up to that time; None: all of them."""
        while self._next is not None:
            packet = self._next
            if seconds is not None and _packet_seconds(packet) > seconds:
                return
            packet.stream = self._copies[packet.stream_index]
            self._mux(packet)
            self._next = next(self._others, None)

    def _mux(self, packet: Packet[Stream]) -> None:
        try:
            self._writing.mux_one(packet)
        except (FFmpegError, OSError) as error:
            old = self._reading.streams[packet.stream_index]  # both files have the same order
            raise _write_error(error, f"a packet of {_stream_title(old)}") from error


@cache
def _data_stream_template() -> bytes:
    """Return an MP4 file with one data stream. A mov muxer needs it as a template for data
    streams.
    """
    file = BytesIO()
    with open_output(file, format="mp4", options={}) as writing:
        stream = writing.add_data_stream("bin_data")
        stream.time_base = Fraction(1, 1000)
        packet = Packet(b"data")
        packet.stream, packet.time_base = stream, stream.time_base
        packet.pts = packet.dts = 0
        writing.mux_one(packet)
    return file.getvalue()


def require_same_matrix(
    source: MediaFile,
    media: MediaInfo,
    made: MediaFile,
    made_media: MediaInfo,
) -> None:
    """Raise `RefusedMediaError` if the display matrix of the new file differs."""
    before, after = file_display_matrix(source, media), file_display_matrix(made, made_media)
    if before != after:
        raise RefusedMediaError(
            f"the display matrix would become {_matrix_text(after)}; it is {_matrix_text(before)}",
            hint=f"{media.container} cannot store this matrix exactly",
        )


def _matrix_text(matrix: DisplayMatrix) -> str:
    return " ".join(map(str, matrix))


def _refusal(
    opened: InputContainer, media: MediaInfo, codec: ArchiveCodec, error: Exception
) -> RefusedMediaError:
    """Return the error that names the refused stream. FFmpeg does not say which, so each is
    tried.
    """
    what = getattr(error, "strerror", None) or error
    for stream in opened.streams:
        if stream.index != media.stream_index and not _can_be_copied(stream, media.container):
            return RefusedMediaError(
                f"{_stream_title(stream)} cannot be written into {media.container}: {what}",
                hint="make a copy without it, and re-encode that: "
                f"`ffmpeg -i FILE -map 0 -map -0:{stream.index} -c copy COPY`",
            )
    return RefusedMediaError(
        f"pictures of {media.width}x{media.height} in {media.pixel_format} cannot be written as "
        f"{codec.name} into {media.container}: {what}",
        hint="try another codec",
    )


def _can_be_copied(stream: Stream, container: str) -> bool:
    """Return whether the muxer accepts the header of a stream."""
    if stream.type == "data" and container == "mp4":
        return True
    with open_output(BytesIO(), format=_MUXERS[container], options={}) as writing:
        try:
            writing.add_stream_from_template(stream)
            writing.start_encoding()
        except _MUXER_ERRORS:
            return False
    return True


def _stream_title(stream: Stream) -> str:
    """Return index, kind and codec, with ffprobe's numbering."""
    context = stream.codec_context
    codec = "of an unknown codec" if context is None else context.codec.canonical_name
    return f"stream {stream.index} ({stream.type}, {codec})"


def pictures_index(path: MediaFile, media: MediaInfo, codec: str) -> int:
    """Return the index of the pictures' stream in a file that `FileRemuxer` wrote.

    `media` describes the original.  Of several streams in that codec, it is the one at the
    original's index, because both files have their streams in the same order.
    """
    with MediaSource(path) as source, open_container(source, media.container) as opened:
        found = [
            stream.index
            for stream in opened.streams.video
            if stream.codec_context is not None
            and stream.codec_context.codec.canonical_name == codec
        ]
    if len(found) == 1:
        return found[0]
    if media.stream_index in found:
        return media.stream_index
    raise IntegrityError(f"the new file has no {codec} stream {media.stream_index}")


def _options(media: MediaInfo) -> dict[str, str]:
    if media.container not in _BOXED:
        return {}
    found = {"movflags": "+faststart", "write_tmcd": "0"}
    if media.time_base.numerator == 1:
        found["video_track_timescale"] = str(media.time_base.denominator)
        # Edit lists, which say when a stream starts, count in these ticks.
        found["movie_timescale"] = str(media.time_base.denominator)
    return found


def _other_packets(opened: InputContainer, stream_index: int) -> Iterator[Packet[Stream]]:
    others = [stream for stream in opened.streams if stream.index != stream_index]
    if not others:
        return
    for packet in opened.demux(others):
        if packet.size or packet.pts is not None or packet.dts is not None:
            yield packet


def _packet_seconds(packet: Packet[Stream]) -> Fraction:
    ticks = packet.pts if packet.dts is None else packet.dts
    return Fraction(0) if ticks is None else ticks * tick_seconds(packet)


def _kept_tags(tags: dict[str, str], skipped: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in tags.items() if not key.startswith(skipped)}


def _write_error(error: FFmpegError | OSError, part: str = "the new file") -> Exception:
    """Return the error to raise if a packet or the end of the file could not be written."""
    what = error.strerror or str(error)
    if error.errno in NO_SPACE:
        return NoSpaceError(f"no room for the new file: {what}")
    if error.errno in (errno.EINVAL, errno.ERANGE):
        return RefusedMediaError(f"{part} cannot be written: {what}")
    return IntegrityError(f"the new file could not be written: {what}")
