"""Decodes packets to frames with decoders that are kept between reads.

`PacketDecoder` feeds and drains decoders; `Cropper` applies the crop of the container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol

import av
import numpy as np
from av.error import EOFError as DrainedError
from av.error import FFmpegError
from av.filter import Graph
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.frames.color import frame_coding, media_coding, with_true_range_name
from vfsd.codecs.frames.frame_transforms import FirstSizeScaler
from vfsd.codecs.pyav import decode
from vfsd.core.atfork import OwnerProcess, leak, reset_after_fork
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import NO_CROP_MARGINS, CropMargins, MediaInfo
from vfsd.errors import DamagedFileError

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
        made = self._graph.pull()
        assert isinstance(made, av.VideoFrame)
        made.pts = pts
        return made

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
_REFERENCES = 6
"""Estimate of the reference pictures that a decoder keeps, for `memory`."""


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
        """Drop inherited decoders after a fork; see `vfsd.core.atfork`."""
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
            came = self._with_packets(run, pictures, passing)
            self._place = run.place
            yield from came
            self.origin.require_same_process("a read")
        self._place = None
        cut_off = -1 if run.damage is None else self._cut_off(run.last)
        came = self._with_packets(run, run.drained(), passing)
        yield from (one for one in came if one[0] != cut_off)
        if run.damage is not None:
            raise run.damage

    def _with_packets(
        self, run: _DecodeFeed, pictures: list[av.VideoFrame], passing: OnPassedFrame | None
    ) -> list[tuple[int, av.VideoFrame]]:
        """Return (packet, picture) for each picture, scaled and cropped."""
        if self._first_size is not None:
            pictures = [self._first_size.convert(picture) for picture in pictures]
        shown = self._cropper.shown
        came = [
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
        for packet, picture in came:
            if run.place is None or packet not in run.place.inside:
                continue
            run.place.inside.remove(packet)
            if passing is not None:
                passing(packet, picture)
        return came

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
        keeps = self._media.pixel_format == "pal8" or self._media.codec == "mjpeg"
        if context is None or self._is_mixed or keeps:
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
