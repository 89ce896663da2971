"""Reads the audio packets that the packet table of a file lists.

`AudioUnitReader` reassembles packets from containers that split them (MPEG-TS, MPEG-PS, AVI); all
others are read by byte offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice

import numpy as np
from av.audio.stream import AudioStream
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet

from vfsd.codecs.decoding.demuxer import demux_packets, discard_other_streams, open_container
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.pyav import exact_fraction
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Access, MediaInfo, Sound
from vfsd.disk.checksummed_file import MediaFile, MediaSource
from vfsd.errors import IntegrityError

SPLITTING_CONTAINERS = frozenset({"mpegts", "mpegps", "avi"})
"""Containers whose audio is always read through the demuxer, which seeks to a unit."""

_SEEK_BACK_UNITS = (2, 8, 32)
"""Units before the wanted packet that seeks target, in the order of attempts."""
_SEARCHED_PACKETS = 256
"""Packets before the wanted one in which these units are searched."""
_MATCHED_UNITS = 3
"""Consecutive packets that must match the table to identify the target of a seek."""
_MATCH_WINDOW = 64
"""Packets after a seek in which the match is searched."""
_NEAR = 64
"""The demuxer reads on, rather than seeks, to a packet within this distance."""
_ADTS_FIXED = 0xF0
"""Mask of the fourth byte of an ADTS header (ISO/IEC 14496-3, 1.A.2.2): the fixed part."""


@dataclass(frozen=True, slots=True)
class AudioUnit:
    """An audio packet; times are ticks of its stream."""

    pts: int | None
    duration: int
    position: int  #: offset of the unit in which it begins; -1: unknown
    payload: bytes
    form: bytes  #: equal for packets that are decoded in the same way
    configuration: bytes  #: from the ADTS header of the first packet


class AudioUnits:
    """Iterates over whole packets of a stream, from the current position of its container."""

    def __init__(
        self,
        opened: InputContainer,
        stream: AudioStream,
        *,
        head: list[Packet[AudioStream]] | None = None,
        most: int = 0,
    ) -> None:
        """The first `most` packets are added to `head` as the demuxer returns them."""
        self._opened = opened
        self._stream = stream
        self._head, self._most = head, most
        is_filtered = has_adts_headers(stream)
        self._filter = BitStreamFilterContext("aac_adtstoasc", stream) if is_filtered else None

    @property
    def stream(self) -> AudioStream:
        """The audio stream."""
        return self._stream

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick."""
        return exact_fraction(self._stream.time_base) or Fraction(1)

    def __iter__(self) -> Iterator[AudioUnit]:
        """Yield packets. Raises `FFmpegError`."""
        return self._packets(is_cut=False)

    def after_seek(self) -> Iterator[AudioUnit]:
        """Yield packets, without the rest of an earlier one; an error ends them."""
        with suppress(FFmpegError):
            yield from self._packets(is_cut=True)

    def _packets(self, is_cut: bool) -> Iterator[AudioUnit]:
        position = -1
        for packet in demux_packets(self._opened, self._stream):
            if self._head is not None and len(self._head) < self._most:
                self._head.append(packet)
            if packet.pos is not None:
                position = packet.pos
            pts, duration = packet.pts, max(0, packet.duration or 0)
            form = self._form(packet)
            try:
                payload, configuration = self._bare(packet)
            except FFmpegError:
                if is_cut:
                    continue
                raise
            yield AudioUnit(pts, duration, position, payload, form, configuration)

    def _form(self, packet: Packet[AudioStream]) -> bytes:
        if self._filter is None:
            changed = packet.has_sidedata("new_extradata")
            return bytes(packet.get_sidedata("new_extradata")) if changed else b""
        head = bytes(packet)[:4]
        return head[:3] + bytes(byte & _ADTS_FIXED for byte in head[3:])

    def _bare(self, packet: Packet[AudioStream]) -> tuple[bytes, bytes]:
        """Return (payload without ADTS header, configuration from the header)."""
        if self._filter is None:
            return bytes(packet), b""
        (bare,) = self._filter.filter(packet)
        reported = bare.has_sidedata("new_extradata")
        return bytes(bare), bytes(bare.get_sidedata("new_extradata")) if reported else b""


def has_adts_headers(stream: AudioStream) -> bool:
    """Return whether each packet begins with its configuration (AAC with ADTS headers)."""
    context = stream.codec_context
    return context.codec.canonical_name == "aac" and not context.extradata


class AudioUnitReader:
    """Reads audio packets of a table through the demuxer. Not thread-safe; closable.

    The positions of `table` are those of `AudioUnit`s.
    """

    def __init__(
        self, source: MediaFile, container: str, stream_index: int, table: FrameTable
    ) -> None:
        self._source = MediaSource(source)
        self._container = container
        self._stream_index = stream_index
        self._table = table
        self._opened: InputContainer | None = None
        self._units: AudioUnits | None = None
        self._packets: Iterator[AudioUnit] = iter(())
        self._next = 0

    def read(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the packets ``first <= p < end``.

        Raises `IntegrityError` if the file does not match the table, `OSError`.
        """
        self._approach(first)
        sizes = self._table.columns(self._next, max(end, self._next)).size.tolist()
        for number, size in enumerate(sizes, self._next):
            packet = self._following()
            if packet is None or len(packet.payload) != size:
                self._close_container()
                raise IntegrityError(
                    f"{self._source.name}: audio packet {number} is no longer in its place"
                )
            self._next = number + 1
            if number >= first:
                yield number, packet.payload

    def _following(self) -> AudioUnit | None:
        """Return the next packet. Raises `DamagedFileError`, which FFmpeg treats as end of file."""
        try:
            packet = next((one for one in self._packets if one.payload), None)
        except FFmpegError:
            packet = None
        error, self._source.interrupted_by = self._source.interrupted_by, None
        if error is not None:
            self._close_container()
            raise error
        return packet

    def close(self) -> None:
        self._close_container()
        self._source.close()

    def _close_container(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = self._units = None
        self._packets = iter(())

    def _approach(self, first: int) -> None:
        """Move to `first` or to a packet before it."""
        if self._units is not None and self._next <= first <= self._next + _NEAR:
            return
        if first <= _NEAR or not self._seek_before(first):
            self._close_container()
            self._packets = iter(self._opened_units())
            self._next = 0

    def _opened_units(self) -> AudioUnits:
        self._source.interrupted_by = None
        if self._units is not None:
            return self._units
        try:
            self._opened = open_container(self._source, self._container)
        except FFmpegError as error:
            self._source.check()
            raise IntegrityError(
                f"{self._source.name}: can no longer be opened: {error}"
            ) from error
        for stream in self._opened.streams.audio:
            if stream.index == self._stream_index:
                discard_other_streams(self._opened, stream)
                self._units = AudioUnits(self._opened, stream)
                return self._units
        self._close_container()
        raise IntegrityError(
            f"{self._source.name}: audio stream {self._stream_index} no longer exists"
        )

    def _seek_before(self, first: int) -> bool:
        """Return whether a seek has led to `first`, or to a packet before it."""
        if self._container in SPLITTING_CONTAINERS:
            return any(self._seek(first, back) for back in _SEEK_BACK_UNITS)
        return any(self._seek_time(first, back) for back in _SEEK_BACK_UNITS)

    def _seek_time(self, first: int, back: int) -> bool:
        """Seek to the time of the packet `back` packets before `first`; return False if that fails.

        Timestamps may be missing, or shared by several packets. So the first packet of a timestamp
        and those after it must match the table.
        """
        low = max(0, first - _SEARCHED_PACKETS)
        columns = self._table.columns(low, min(first + _MATCHED_UNITS, self._table.packets))
        rows = {pts: row for row, pts in enumerate(columns.pts.tolist())}
        sizes = columns.size.tolist()
        units = self._opened_units()
        assert self._opened is not None
        scale = units.time_base / self._table.time_base
        aim = int(int(columns.pts[max(0, first - low - back)]) / scale)
        try:
            self._opened.seek(aim, stream=units.stream)
        except FFmpegError:
            return False
        following = (packet for packet in units.after_seek() if packet.payload)
        met = list(islice(following, _MATCH_WINDOW))
        for skipped in range(1, len(met) - _MATCHED_UNITS + 1):
            pts, before = met[skipped].pts, met[skipped - 1].pts
            row = rows.get(round(pts * scale)) if pts is not None and pts != before else None
            if row is None or row > first - low:
                continue
            run = [len(packet.payload) for packet in met[skipped : skipped + _MATCHED_UNITS]]
            if sizes[row : row + _MATCHED_UNITS] == run:
                self._packets = chain(met[skipped:], following)
                self._next = low + row
                return True
        return False

    def _seek(self, first: int, back: int) -> bool:
        """Seek to the unit `back` units before that of `first`; return False if that fails.

        The first packet there may be the rest of an earlier one. So the first packet of a later
        unit and those after it must match the table.
        """
        low = max(0, first - _SEARCHED_PACKETS)
        columns = self._table.columns(low, min(first + _MATCHED_UNITS, self._table.packets))
        positions = columns.position[: first - low + 1]
        begun = np.unique(positions[positions >= 0])
        if len(begun) <= back:
            return False
        rows = list(zip(columns.position.tolist(), columns.size.tolist(), strict=True))
        units = self._opened_units()
        assert self._opened is not None
        try:
            self._opened.seek(int(begun[-1 - back]), unsupported_byte_offset=True)
        except FFmpegError:
            return False
        following = units.after_seek()
        met = list(islice(following, _MATCH_WINDOW))
        seen = [(packet.position, len(packet.payload)) for packet in met]
        for skipped in range(1, len(seen) - _MATCHED_UNITS + 1):
            run = seen[skipped : skipped + _MATCHED_UNITS]
            if run[0][0] != seen[skipped - 1][0] and run[0] in rows:
                row = rows.index(run[0])
                if row <= first - low and rows[row : row + _MATCHED_UNITS] == run:
                    self._packets = chain(met[skipped:], following)
                    self._next = low + row
                    return True
        return False


AudioPacketReader = PacketReader | AudioUnitReader
"""Both have ``read(first, end)`` and ``close()``."""


def audio_packet_reader(
    source: MediaFile, media: MediaInfo, sound: Sound, table: FrameTable
) -> AudioPacketReader:
    """Return a reader of the packets of `table`, which belong to `sound`. Raises `OSError`."""
    if sound.access is Access.DEMUX:
        return AudioUnitReader(source, media.container, sound.stream_index, table)
    return PacketReader(source, media, Access.EXTENT, table)
