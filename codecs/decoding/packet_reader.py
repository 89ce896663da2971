"""Reads the packets of a stored frame table from the file.

Packets are read by byte offset, or through a demuxer that is kept open.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import cast

import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.decoding.decoder_context import (
    configure_decoder,
    decoder_context,
    max_pixels,
    needs_first_packet,
)
from vfsd.codecs.decoding.demuxer import MediaFile, MediaSource, demux_until_error, open_stream
from vfsd.codecs.frames.color import set_decoder_colors
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.errors import DamagedFileError, IntegrityError

_CHUNK_PACKETS = 256
_READ_BYTES = 4 << 20
"""Most bytes of one read, unless a packet is larger."""
_GAP_BYTES = 64 << 10
"""A gap between two packets of up to this size is read along with them."""
_NEAR_PACKETS = 64
"""The demuxer reads on, rather than seeks, to a packet within this distance."""
_SEEK_BACK = (0, 2, 4, 16, 64)
"""Packets before the wanted one that seeks target, in the order of attempts."""
_MAX_SEEK_BACK = 512
"""Most packets to go back for one with a position of its own."""
_MATCHED_PACKETS = 3
"""Consecutive packets that must match the table to identify the target of a seek."""


class PacketReader:
    """The packets of one file. Not thread-safe; closable, and a context manager.

    `source` is a path, or a descriptor that stays the caller's. It is only read with `pread`, so
    that several readers may share it.
    """

    def __init__(
        self,
        source: MediaFile,
        media: MediaInfo,
        access: Access,
        table: FrameTable,
    ) -> None:
        self._source = MediaSource(source)
        self._media = media
        self._table = table
        self._demuxer = (
            None if access is Access.EXTENT else _SeekingDemuxer(self._source, media, table)
        )
        self._seeks = access is Access.DEMUX

    def read(
        self, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (packet index, payload) for packets ``first <= p < end`` not in `skip`, in order.

        Raises `IntegrityError` if the file does not match the table, `OSError` if it cannot be
        read.
        """
        if self._demuxer is None:
            for index, payload, _ in self._slices(first, end, skip):
                yield index, payload
        else:
            for index, packet in self._demuxer.read(first, end, seek=self._seeks):
                if index not in skip:
                    yield index, bytes(packet)

    def packets(
        self, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[Packet[VideoStream]]:
        """Yield packets for a decoder, as `read` does; the pts of each is its index.

        Empty packets, which mean a repeated picture in some containers, are omitted.
        """
        if self._demuxer is None:
            for index, payload, is_key in self._slices(first, end, skip):
                if payload:
                    yield _new_packet(index, payload, is_key)
        else:
            for index, packet in self._demuxer.read(first, end, seek=self._seeks):
                if index not in skip and packet.size:
                    packet.pts = packet.dts = index
                    yield packet

    def context(self, *, threads: int = 1, strict: bool = False) -> VideoCodecContext:
        """Return a decoder for these packets, ready for any key packet.

        See `vfsd.codecs.decoding.decoder_context.decoder_context`.
        """
        if self._demuxer is None:
            context = decoder_context(self._media, threads=threads, strict=strict)
        else:
            context = self._demuxer.context(threads=threads, strict=strict)
        # Otherwise colors could differ where decoding starts in the middle of a file.
        set_decoder_colors(context, self._media)
        # A damaged first packet is skipped, since few decoders need it.
        with suppress(DamagedFileError):
            for first in self.packets(0, 1):
                if needs_first_packet(self._media, bytes(first)):
                    with suppress(FFmpegError):
                        decode(context, first)
                    context.flush_buffers()
        return context

    def close(self) -> None:
        if self._demuxer is not None:
            self._demuxer.close()
        self._source.close()

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slices(
        self, first: int, end: int, skip: Container[int]
    ) -> Iterator[tuple[int, bytes, bool]]:
        """Yield (packet index, payload, whether it is a key packet)."""
        for start in range(first, end, _CHUNK_PACKETS):
            upto = min(end, start + _CHUNK_PACKETS)
            wanted = [index for index in range(start, upto) if index not in skip]
            columns = self._table.columns(start, upto)
            for group in _groups(wanted, start, columns):
                try:
                    data = self._read_group(group, start, columns)
                except IntegrityError:
                    if len(group) == 1:
                        raise
                else:
                    yield from data
                    continue
                for index in group:  # packets before the damage are still readable
                    yield from self._read_group([index], start, columns)

    def _read_group(
        self, group: list[int], start: int, columns: PacketColumns
    ) -> list[tuple[int, bytes, bool]]:
        rows = [index - start for index in group]
        keys = (columns.flags[rows] & PacketFlag.KEY != 0).tolist()
        positions = columns.position[rows].tolist()
        sizes = columns.size[rows].tolist()
        base = positions[0]
        data = memoryview(self._source.read_at(base, positions[-1] + sizes[-1] - base))
        packets = []
        for index, position, size, is_key in zip(group, positions, sizes, keys, strict=True):
            payload = bytes(data[position - base : position - base + size])
            if len(payload) < size:
                raise IntegrityError(
                    f"{self._source.name}: packet {index} ({size} bytes at {position}) lies "
                    f"beyond the end of the file"
                )
            packets.append((index, payload, is_key))
        return packets


def _groups(wanted: list[int], start: int, columns: PacketColumns) -> Iterator[list[int]]:
    """Yield runs of packets that one read fetches: close to each other, in ascending order."""
    group: list[int] = []
    base = last_end = 0
    for index in wanted:
        position = int(columns.position[index - start])
        end = position + int(columns.size[index - start])
        if group and not (
            last_end <= position <= last_end + _GAP_BYTES and end - base <= _READ_BYTES
        ):
            yield group
            group = []
        if not group:
            base = position
        group.append(index)
        last_end = end
    if group:
        yield group


def _new_packet(index: int, payload: bytes, is_key: bool) -> Packet[VideoStream]:
    packet = cast("Packet[VideoStream]", Packet(len(payload)))
    packet.update(payload)  # a copy, with the padding that decoders rely on
    packet.pts = packet.dts = index
    packet.is_keyframe = is_key  # the PNG decoder treats all others as differences
    return packet


class _SeekingDemuxer:
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
        known = np.flatnonzero(self._table.columns(low, first + 1).position >= 0) + low
        aims = np.searchsorted(known, first - np.array(_SEEK_BACK), side="right") - 1
        yield from dict.fromkeys(known[aims[aims >= 0]].tolist())

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
        seen = [(-1 if packet.pos is None else packet.pos, packet.size) for packet in met]
        for skipped in range(len(seen)):
            tail = seen[skipped : skipped + _MATCHED_PACKETS]
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
    known, last = 0, 2 * _MATCHED_PACKETS - 1
    for number, packet in enumerate(islice(packets, _MAX_SEEK_BACK)):
        yield packet
        known += packet.pos is not None
        if known < 2:
            last = max(last, number + _MATCHED_PACKETS)
        elif number >= last:
            return
