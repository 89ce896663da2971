"""Reads the packets of a stored frame table, and decodes them.

`PacketReader` reads by byte offset or through a demuxer that is kept open; `PacketDecoder` keeps
its decoders between reads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol, cast

import av
import numpy as np
from av.error import EOFError as DrainedError
from av.error import FFmpegError
from av.filter import Graph
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.decoding.demuxer import SeekingDemuxer
from vfsd.codecs.frames.color import (
    frame_coding,
    media_coding,
    set_decoder_colors,
    with_true_range_name,
)
from vfsd.codecs.frames.transforms import FirstSizeScaler
from vfsd.codecs.pyav import decode, decoder_context
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import NO_CROP_MARGINS, Access, CropMargins, MediaInfo
from vfsd.core.process_control import OwnerProcess, leak, reset_after_fork
from vfsd.disk.checksums import MediaFile, MediaSource
from vfsd.errors import DamagedFileError, IntegrityError

_PLAIN_CODECS = INTRA_CODECS | {"hevc", "vp8", "vp9", "av1"}
_CHUNK_PACKETS = 256
# The note of x264 begins in the first 4096 bytes.
_HEAD_BYTES = 4200
# Most bytes of one read, unless a packet is larger.
_READ_BYTES = 4 << 20
# A gap between two packets of up to this size is read along with them.
_GAP_BYTES = 64 << 10


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

        See `vfsd.codecs.pyav.decoder_context`.
        """
        if self._demuxer is None:
            context = decoder_context(self._media, threads=threads, strict=strict)
        else:
            context = self._demuxer.context(threads=threads, strict=strict)
        # Otherwise colors could differ where decoding starts in the middle of a file.
        set_decoder_colors(context, self._media)
        # A damaged first packet is skipped, since few decoders need it.
        with suppress(DamagedFileError):
            if self._demuxer is None and not self._needs_first_packet():
                return context
            for first in self.packets(0, 1):
                if needs_first_packet(self._media, bytes(first)):
                    with suppress(FFmpegError):
                        decode(context, first)
                    context.flush_buffers()
        return context

    def _needs_first_packet(self) -> bool:
        """Read as little of the first packet as tells that: a key packet may be large."""
        known = self._media.needs_first_packet
        if known is not None:
            return known
        return look_at_first_packet(self._source, self._media, self._table.columns(0, 1))

    def is_at_hand(self, first: int, end: int) -> bool:
        """Return whether packets ``first <= p < end`` can be read without a request to a server."""
        if self._demuxer is not None:
            return True  # it reads ahead anyway
        return all(
            self._source.cached(start, stop - start) == stop - start
            for start, stop in packet_ranges(self._table, first, end)
        )

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


def packet_ranges(table: FrameTable, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open byte ranges that a `PacketReader` reads for ``first <= p < end``."""
    for start in range(first, end, _CHUNK_PACKETS):
        upto = min(end, start + _CHUNK_PACKETS)
        columns = table.columns(start, upto)
        for group in _groups(list(range(start, upto)), start, columns):
            last = group[-1] - start
            stop = int(columns.position[last] + columns.size[last])
            yield int(columns.position[group[0] - start]), stop


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


def look_at_first_packet(source: MediaSource, media: MediaInfo, columns: PacketColumns) -> bool:
    """Return `needs_first_packet` for a file with packets at offsets. Raises `OSError`."""
    if media.codec in _PLAIN_CODECS:
        return False
    size = min(int(columns.size[0]), _HEAD_BYTES)
    return needs_first_packet(media, source.read_at(int(columns.position[0]), size))


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


_FrameFormat = tuple[int, int, str]


class Cropper:
    """Crops pictures by the margins of the container. Not thread-safe."""

    def __init__(self, crop: CropMargins) -> None:
        """`crop` is in pixels for each side, multiples of a chroma sample."""
        self._crop = crop
        self._form: _FrameFormat | None = None
        self._graph: Graph | None = None

    def shown(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return the cropped picture; the picture itself if nothing is cropped."""
        if self._crop == NO_CROP_MARGINS:
            return picture
        form = (picture.width, picture.height, picture.format.name)
        if self._graph is None or form != self._form:
            self._graph, self._form = self._new_graph(form), form
        pts = picture.pts
        self._graph.push(picture)
        cropped = self._graph.pull()
        assert isinstance(cropped, av.VideoFrame)
        cropped.pts = pts
        return cropped

    def _new_graph(self, form: _FrameFormat) -> Graph:
        left, top, right, bottom = self._crop
        width, height, pixel_format = form
        graph = Graph()
        graph.threads = 1  # the sandbox of an examination forbids threads
        source = graph.add_buffer(
            width=width, height=height, format=av.VideoFormat(pixel_format), time_base=Fraction(1)
        )
        size = f"{width - left - right}:{height - top - bottom}"
        crop = graph.add("crop", f"{size}:{left}:{top}:exact=1")
        # A cropped plane begins within its buffer; readers of whole rows would pass its end.
        copy = graph.add("copy")
        sink = graph.add("buffersink")
        source.link_to(crop)
        crop.link_to(copy)
        copy.link_to(sink)
        graph.configure()
        return graph


Packets = Iterable["Packet[VideoStream]"]
"""Packets whose pts is their index in the table."""

OnPassedFrame = Callable[[int, av.VideoFrame], None]
"""Called with a packet index and its picture."""


class StrictDecode(Protocol):
    """The signature of `PacketDecoder.begin` and `PacketDecoder.resume`."""

    def __call__(
        self,
        packets: Packets,
        threads: int,
        /,
        *,
        ignored: range,
        passing: OnPassedFrame | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]: ...


_MAX_DRAIN_ERRORS = 64
# Estimate of the reference pictures that a decoder keeps, for `memory`.
_REFERENCES = 6


class StaleColorsError(Exception):
    """A reused decoder may have applied the color metadata of earlier packets."""


class _DecoderMode(NamedTuple):
    threads: int
    strict: bool  #: damage raises an error, rather than being concealed


_CONCEALING = _DecoderMode(1, strict=False)


@dataclass(slots=True)
class _DecoderPosition:
    """The position of a strict decoder that was neither drained nor reset."""

    first: int  #: the packet from which it started
    threads: int
    fed: int  #: one past the last packet fed
    inside: set[int] = field(default_factory=set)  #: packets fed without a picture so far

    def feed(self, packet: int) -> None:
        self.fed = packet + 1
        self.inside.add(packet)


class PacketDecoder:
    """Decodes packets of one file with decoders that are kept. Not thread-safe.

    A strict decoder raises `FFmpegError` at damage, and can continue from its position. A
    concealing decoder hides damage where possible, has one thread, and starts again each time. Both
    yield (packet index, picture) in output order. If the file is cut off or unreadable,
    `DamagedFileError` is raised after all earlier pictures. Raises `UsageError` in a forked child.
    """

    def __init__(
        self,
        reader: PacketReader,
        media: MediaInfo,
        table: FrameTable,
        first_size: FirstSizeScaler | None = None,
        *,
        on_damage: Callable[[], None] | None = None,
    ) -> None:
        """With `first_size`, pictures of other sizes are scaled to it.

        `on_damage` is called for each picture that FFmpeg flags as corrupt. Leading pictures of the
        first key packet are not reported, since their references were never fed.
        """
        self._on_damage = on_damage
        self._reader = reader
        self._media = media
        self._table = table
        self._contexts: dict[_DecoderMode, VideoCodecContext] = {}
        self._flushed: set[_DecoderMode] = set()  # decoders that were used and flushed
        self._coding = media_coding(media)
        self._first_size = first_size
        self._is_mixed = False  # some pictures have other colors than `media` declares
        self._place: _DecoderPosition | None = None
        self._cropper = Cropper(media.crop)
        self.origin = OwnerProcess()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Drop inherited decoders after a fork; see `vfsd.core.process_control`."""
        # Freeing a decoder would wait for its threads, which do not exist in the child.
        for context in self._contexts.values():
            leak(context)

    @property
    def memory(self) -> int:
        """Approximate bytes of the pictures that decoders keep."""
        deep = 2 if self._media.bit_depth > 8 else 1
        threads = max((kind.threads for kind in self._contexts), default=1)
        kept = _REFERENCES + self._media.reorder_delay + threads - 1
        return self._media.width * self._media.height * 3 // 2 * deep * kept

    @property
    def first(self) -> int:
        """The key packet from which the strict decoder started; 0 if it must start again."""
        return self._place.first if self._place else 0

    @property
    def fed(self) -> int:
        """One past the last packet fed, from which decoding can continue; 0 if it must
        start again.
        """
        return self._place.fed if self._place else 0

    def lead(self, run: DecodeRun, threads: int) -> int:
        """Return how many packets of `run` were already fed and need not be fed again."""
        place = self._place
        if place is None or place.threads != threads:
            return 0
        if not place.first <= run.first_packet < place.fed:
            return 0
        if any(packet < place.fed and packet not in place.inside for packet in run.wanted):
            return 0
        return place.fed - run.first_packet

    def begin(
        self,
        packets: Packets,
        threads: int,
        *,
        ignored: range,
        passing: OnPassedFrame | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode strictly from a key packet on.

        Errors of packets in `ignored` are not damage. Every picture is also passed to `passing`.
        Raises `StaleColorsError` if the decode must be started once more.
        """
        self.origin.require_same_process("a read")
        self._place = None
        kind = _DecoderMode(threads, strict=True)
        run = _DecodeFeed(self._fresh_context(kind), kind, ignored)
        yield from self._decoded(run, packets, passing)

    def resume(
        self,
        packets: Packets,
        threads: int,
        *,
        ignored: range,
        passing: OnPassedFrame | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode as `begin` does, and continue from the packet `fed`."""
        self.origin.require_same_process("a read")
        place, self._place = self._place, None
        kind = _DecoderMode(threads, strict=True)
        run = _DecodeFeed(self._contexts[kind], kind, ignored, place)
        yield from self._decoded(run, packets, passing)

    def conceal(self, packets: Packets) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode with concealment from a key packet on."""
        self.origin.require_same_process("a read")
        self._place = None
        run = _DecodeFeed(self._fresh_context(_CONCEALING), _CONCEALING)
        yield from self._decoded(run, packets, None)

    def discard(self, threads: int) -> None:
        """Drop a strict decoder that reported damage."""
        self._contexts.pop(_DecoderMode(threads, strict=True), None)
        self._place = None

    def forget(self) -> None:
        """Drop all decoders."""
        self._contexts.clear()
        self._place = None

    def _decoded(
        self, run: _DecodeFeed, packets: Packets, passing: OnPassedFrame | None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        for pictures in run.pictures(packets):
            decoded = self._with_packets(run, pictures, passing)
            self._place = run.place
            yield from decoded
            self.origin.require_same_process("a read")
        self._place = None
        cut_off = -1 if run.damage is None else self._cut_off(run.last)
        decoded = self._with_packets(run, run.drained(), passing)
        yield from (one for one in decoded if one[0] != cut_off)
        if run.damage is not None:
            raise run.damage

    def _with_packets(
        self, run: _DecodeFeed, pictures: list[av.VideoFrame], passing: OnPassedFrame | None
    ) -> list[tuple[int, av.VideoFrame]]:
        """Return (packet, picture) for each picture, scaled and cropped."""
        if self._first_size is not None:
            pictures = [self._first_size.convert(picture) for picture in pictures]
        shown = self._cropper.shown
        decoded = [
            (one.pts, shown(with_true_range_name(one))) for one in pictures if one.pts is not None
        ]
        if not self._is_mixed and any(map(self._has_other_colors, pictures)):
            self._is_mixed = True
            if run.kind in self._flushed:
                raise StaleColorsError
        if self._on_damage is not None and any(
            one.is_corrupt and one.pts not in run.ignored for one in pictures
        ):
            self._on_damage()
        for packet, picture in decoded:
            if run.place is None or packet not in run.place.inside:
                continue
            run.place.inside.remove(packet)
            if passing is not None:
                passing(packet, picture)
        return decoded

    def _has_other_colors(self, picture: av.VideoFrame) -> bool:
        """Return whether the samples have another range or matrix than `media` declares.

        Packets need not signal colors. A decoder keeps the last ones, and flushing does not reset
        them.
        """
        return frame_coding(picture, self._coding) != self._coding

    def _cut_off(self, last: int) -> int:
        """Return the packet with an incomplete picture if `last` is the last readable packet; else
        -1.
        """
        following = last + 1
        if last < 0 or following >= self._table.packets:
            return -1
        flags = self._table.columns(max(0, last - 2), following + 1).flags
        if not flags[-1] & PacketFlag.HIDDEN:
            return -1
        shown = np.flatnonzero(flags[:-1] & PacketFlag.HIDDEN == 0)
        return max(0, last - 2) + int(shown[-1]) if len(shown) else -1

    def _fresh_context(self, kind: _DecoderMode) -> VideoCodecContext:
        context = self._contexts.get(kind)
        # Palettes and JPEG tables survive a flush, and would belong to other pictures.
        survives_flush = self._media.pixel_format == "pal8" or self._media.codec == "mjpeg"
        if context is None or self._is_mixed or survives_flush:
            context = self._reader.context(threads=kind.threads, strict=kind.strict)
            self._contexts[kind] = context
            self._flushed.discard(kind)
            return context
        context.flush_buffers()
        self._flushed.add(kind)
        if self._media.codec == "h264":
            # Otherwise a stream that does not signal its reordering loses frames mid-stream.
            context.reorder_depth = self._media.reorder_delay
        return context


@dataclass(slots=True)
class _DecodeFeed:
    """One pass of packets through a decoder."""

    context: VideoCodecContext
    kind: _DecoderMode
    ignored: range = range(0)  #: packets with errors that are not damage
    place: _DecoderPosition | None = None  #: position of a strict decoder, once fed
    last: int = -1  #: last packet fed
    damage: DamagedFileError | None = None  #: the error that ended the packets

    def pictures(self, packets: Packets) -> Iterator[list[av.VideoFrame]]:
        """Yield the output of each packet, up to the end or `damage`."""
        for packet in self._readable(packets):
            if packet.pts is not None:
                self.last = packet.pts
            try:
                pictures = decode(self.context, packet)
            except FFmpegError:
                if self.kind.strict and packet.pts not in self.ignored:
                    raise
                continue
            if self.kind.strict and packet.pts is not None:
                self.place = self.place or _DecoderPosition(
                    packet.pts, self.kind.threads, packet.pts
                )
                self.place.feed(packet.pts)
            yield pictures

    def drained(self) -> list[av.VideoFrame]:
        """Return the pictures that remain in the decoder."""
        for _ in range(_MAX_DRAIN_ERRORS):
            try:
                return decode(self.context, None)
            except DrainedError:
                break
            except FFmpegError:
                if self.kind.strict and self.damage is None:
                    raise
        return []

    def _readable(self, packets: Packets) -> Iterator[Packet[VideoStream]]:
        """Yield packets. A `DamagedFileError` is kept, so that pictures before it come out
        first.
        """
        try:
            yield from packets
        except DamagedFileError as error:
            self.damage = error
