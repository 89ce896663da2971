"""Reads the packets of a stored frame table from the file.

Packets are read by byte offset, or through a demuxer that is kept open.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from typing import cast

from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.decoding.decoder_context import decoder_context
from vfsd.codecs.decoding.demuxer import SeekingDemuxer
from vfsd.codecs.frames.color import set_decoder_colors
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.disk.checksummed_file import MediaFile, MediaSource
from vfsd.errors import DamagedFileError, IntegrityError

_PLAIN_CODECS = INTRA_CODECS | {"hevc", "vp8", "vp9", "av1"}
_CHUNK_PACKETS = 256
_READ_BYTES = 4 << 20
"""Most bytes of one read, unless a packet is larger."""
_GAP_BYTES = 64 << 10
"""A gap between two packets of up to this size is read along with them."""


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
            None if access is Access.EXTENT else SeekingDemuxer(self._source, media, table)
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


def needs_first_packet(media: MediaInfo, first: bytes) -> bool:
    """Return whether a decoder that starts mid-stream must have seen the first packet, `first`.

    Some decoders work around bugs of the encoder, and only the first packet has its name and
    version. All codecs are taken to need it unless their decoders are known not to.
    """
    if media.codec == "h264":
        # Builds before 151 coded 4:4:4 wrongly, those before 34 direct prediction.
        build = nal.x264_build(first)
        return build is not None and build < (151 if "444" in media.pixel_format else 34)
    return media.codec not in _PLAIN_CODECS
