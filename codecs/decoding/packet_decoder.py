"""Decodes packets to frames with decoders that are kept between reads: `PacketDecoder` feeds and
drains them, `Cropper` applies the crop of the container.
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
    """Not thread-safe."""

    def __init__(self, crop: CropMargins) -> None:
        """Pixels to be taken off each side, whole samples of colour."""
        self._crop = crop
        self._form: _FrameFormat | None = None
        self._graph: Graph | None = None

    def shown(self, picture: av.VideoFrame) -> av.VideoFrame:
        """What is left of a picture; the picture itself where nothing is cropped."""
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
        graph.threads = 1  # examining may start no thread
        source = graph.add_buffer(
            width=width, height=height, format=av.VideoFormat(pixel_format), time_base=Fraction(1)
        )
        size = f"{width - left - right}:{height - top - bottom}"
        crop = graph.add("crop", f"{size}:{left}:{top}:exact=1")
        # Planes that begin within others would be read beyond their end.
        copy = graph.add("copy")
        sink = graph.add("buffersink")
        source.link_to(crop)
        crop.link_to(copy)
        copy.link_to(sink)
        graph.configure()
        return graph


Packets = Iterable["Packet[VideoStream]"]
"""The pts of each is its index."""

OnPassedFrame = Callable[[int, av.VideoFrame], None]
"""Is given a packet and the picture that came out for it."""


class StrictDecode(Protocol):
    """`PacketDecoder.begin` or `PacketDecoder.go_on`."""

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
"""Pictures that a decoder keeps beside those it has yet to show; a guess for the memory's sake."""


class StaleColorsError(Exception):
    """A decoder may have kept what it was told of colours by packets that others do not follow."""


class _DecoderMode(NamedTuple):
    threads: int
    strict: bool  #: raises at damage, rather than conceal it


_CONCEALING = _DecoderMode(1, strict=False)


@dataclass(slots=True)
class _DecoderPosition:
    """Where a strict decoder stands that was neither drained nor reset."""

    first: int  #: packet it started from
    threads: int
    fed: int  #: one past the last packet it was fed
    inside: set[int] = field(default_factory=set)  #: fed, and whose picture has not come out

    def feed(self, packet: int) -> None:
        self.fed = packet + 1
        self.inside.add(packet)


class PacketDecoder:
    """What comes out of decoders that are fed the packets of one file.  Not thread-safe.

    A strict decoder raises `FFmpegError` at damage, and can go on where it was left; the other one
    conceals what it can, has one thread, and starts anew each time.  Both give (packet index,
    picture) in the order in which pictures come out.  Where the file is cut off or cannot be read,
    `DamagedFileError` comes after all pictures before.  Raises `UsageError` in a forked child.
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
        """`first_size`: pictures of other sizes are brought to that; else they come as they are.

        `on_damage` is called where a picture comes out that FFmpeg flags as corrupt.  Pictures
        that lead the first one are left out: what they refer to was never fed.
        """
        self._on_damage = on_damage
        self._reader = reader
        self._media = media
        self._table = table
        self._contexts: dict[_DecoderMode, VideoCodecContext] = {}
        self._flushed: set[_DecoderMode] = set()  # of these, those that were used before
        self._told = media_coding(media)
        self._first_size = first_size
        self._is_mixed = False  # pictures mean something else than `media` tells
        self._place: _DecoderPosition | None = None
        self._cropper = Cropper(media.crop)
        self.origin = OwnerProcess()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        # To free one waits for its threads, which did not come along through the fork.
        for context in self._contexts.values():
            leak(context)

    @property
    def memory(self) -> int:
        """About how many bytes the pictures take that are kept."""
        deep = 2 if self._media.bit_depth > 8 else 1
        threads = max((kind.threads for kind in self._contexts), default=1)
        kept = _REFERENCES + self._media.reorder_delay + threads - 1
        return self._media.width * self._media.height * 3 // 2 * deep * kept

    @property
    def first(self) -> int:
        """The packet from which it has come to where it stands; 0 where it must start anew."""
        return self._place.first if self._place else 0

    @property
    def fed(self) -> int:
        """One past the last packet that it can go on from; 0 where it must start anew."""
        return self._place.fed if self._place else 0

    def lead(self, run: DecodeRun, threads: int) -> int:
        """How many packets of `run` need not be fed again, as the decoder stands beyond them."""
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
        """What a strict decoder gives, from a key packet on.

        Errors of the packets in `ignored` are no damage.  What comes out is handed to `passing`,
        too.  Raises `StaleColorsError` when it has to be begun once more.
        """
        self.origin.require_same_process("a read")
        self._place = None
        kind = _DecoderMode(threads, strict=True)
        run = _DecodeFeed(self._fresh_context(kind), kind, ignored)
        yield from self._decoded(run, packets, passing)

    def go_on(
        self,
        packets: Packets,
        threads: int,
        *,
        ignored: range,
        passing: OnPassedFrame | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """As `begin`, from the packet on up to which that decoder was `fed`."""
        self.origin.require_same_process("a read")
        place, self._place = self._place, None
        kind = _DecoderMode(threads, strict=True)
        run = _DecodeFeed(self._contexts[kind], kind, ignored, place)
        yield from self._decoded(run, packets, passing)

    def conceal(self, packets: Packets) -> Iterator[tuple[int, av.VideoFrame]]:
        """What a concealing decoder gives, from a key packet on."""
        self.origin.require_same_process("a read")
        self._place = None
        run = _DecodeFeed(self._fresh_context(_CONCEALING), _CONCEALING)
        yield from self._decoded(run, packets, None)

    def discard(self, threads: int) -> None:
        """Forget a strict decoder that met with damage."""
        self._contexts.pop(_DecoderMode(threads, strict=True), None)
        self._place = None

    def forget(self) -> None:
        """Go on with new decoders only."""
        self._contexts.clear()
        self._place = None

    def _decoded(
        self, run: _DecodeFeed, packets: Packets, passing: OnPassedFrame | None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        for pictures in run.pictures(packets):
            came = self._recognised(run, pictures, passing)
            self._place = run.place
            yield from came
            self.origin.require_same_process("a read")
        self._place = None
        cut_off = -1 if run.damage is None else self._cut_off(run.last)
        came = self._recognised(run, run.drained(), passing)
        yield from (one for one in came if one[0] != cut_off)
        if run.damage is not None:
            raise run.damage

    def _recognised(
        self, run: _DecodeFeed, pictures: list[av.VideoFrame], passing: OnPassedFrame | None
    ) -> list[tuple[int, av.VideoFrame]]:
        """Each with the packet that it came from."""
        if self._first_size is not None:
            pictures = [self._first_size.convert(picture) for picture in pictures]
        shown = self._cropper.shown
        came = [
            (one.pts, shown(with_true_range_name(one))) for one in pictures if one.pts is not None
        ]
        if not self._is_mixed and any(map(self._means_else, pictures)):
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

    def _means_else(self, picture: av.VideoFrame) -> bool:
        """Whether its samples mean something else than is told of all.

        Packets need not tell: a decoder goes on with what it was told last, and to flush it does
        not make it forget.
        """
        return frame_coding(picture, self._told) != self._told

    def _cut_off(self, last: int) -> int:
        """The packet whose picture is not whole when packet `last` is the last that can be read;
        -1: none."""
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
        # Palettes and JPEG's tables outlast a reset, and would be those of other pictures.
        keeps = self._media.pixel_format == "pal8" or self._media.codec == "mjpeg"
        if context is None or self._is_mixed or keeps:
            context = self._reader.context(threads=kind.threads, strict=kind.strict)
            self._contexts[kind] = context
            self._flushed.discard(kind)
            return context
        context.flush_buffers()
        self._flushed.add(kind)
        if self._media.codec == "h264":
            # Else a stream that does not tell its reordering loses frames in mid-stream.
            context.reorder_depth = self._media.reorder_delay
        return context


@dataclass(slots=True)
class _DecodeFeed:
    """Packets on their way through a decoder."""

    context: VideoCodecContext
    kind: _DecoderMode
    ignored: range = range(0)  #: packets whose errors are no damage
    place: _DecoderPosition | None = None  #: of a strict decoder, once it was fed
    last: int = -1  #: packet that was fed
    damage: DamagedFileError | None = None  #: for which there are no more packets

    def pictures(self, packets: Packets) -> Iterator[list[av.VideoFrame]]:
        """What comes out packet by packet, up to the end or `damage`."""
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
        """What is left in the decoder."""
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
        """Pictures that wait for no more packets come before the error that ends these."""
        try:
            yield from packets
        except DamagedFileError as error:
            self.damage = error
