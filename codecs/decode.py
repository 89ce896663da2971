"""Decoding chosen frames of a stored file, each told apart by the packet it came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

import av
import numpy as np
from av.error import EOFError as DrainedError
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.colors import coding_of, told_coding, well_named
from vfsd.codecs.packets import PacketReader
from vfsd.codecs.source import File
from vfsd.errors import DamagedFileError, IntegrityError
from vfsd.forks import Origin, at_fork, keep_for_good
from vfsd.framepages import PacketFlag
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.model import Access, MediaInfo

EXTRA_PACKETS = 16
"""Fed past the end of a run that did not yield all: MPEG-4's packed B-frames put two pictures in
one packet, and the second comes out with a later one."""
_CHUNK_FRAMES = 512
_CHUNK_PACKETS = 512
_MAX_REORDER = 64
"""No frame is decoded after more frames that are shown later."""
_MAX_HELD = 2 * _MAX_REORDER
_MAX_DRAIN_ERRORS = 64
_REFERENCES = 6
"""Pictures that a decoder keeps beside those it has yet to show; a guess for the memory's sake."""


Passing = Callable[[int, av.VideoFrame], None]
"""Is given a packet and the picture that came out for it."""


@dataclass(slots=True)
class _Place:
    """Where a strict decoder stands that was neither drained nor reset."""

    first: int  #: packet it started from
    fed: int  #: one past the last packet it was fed
    inside: set[int]  #: packets that it was fed and whose picture has not come out
    threads: int


class _StaleError(Exception):
    """A decoder may have kept what it was told of colours by packets that others do not follow."""


class _MissingError(Exception):
    """A frame did not come out of the decoder."""

    def __init__(self, frame: int) -> None:
        super().__init__(frame)
        self.frame = frame


class FrameDecoder:
    """Decoded frames of one file.  Not thread-safe: one user at a time; closable.

    `source` is a path, or an open file that stays the caller's and is only read with `pread`.
    Frames have the pts of the table and its time base.  They come as the codec stores them: not
    turned upright, in the stream's own pixel format.

    Damage is noticed, whereupon decoding starts again a key packet earlier with one thread, and
    conceals it from the same pictures as a decode of the whole file would.  Threads other than one
    decode several pictures at a time.

    What samples mean is what packets say, or else `media`, wherever decoding starts.

    In a forked child an inherited one can only be closed; to decode raises `UsageError` there.
    """

    def __init__(
        self,
        source: File,
        media: MediaInfo,
        access: Access,
        table: FrameTable,
    ) -> None:
        self._reader = PacketReader(source, media, access, table)
        self._media = media
        self._table = table
        self._contexts: dict[tuple[int, bool], VideoCodecContext] = {}  # by threads and strictness
        self._flushed: set[tuple[int, bool]] = set()  # of these, those that were used before
        self._told = told_coding(media)
        self._is_mixed = False  # pictures mean something else than `media` tells
        self._place: _Place | None = None
        self.origin = Origin()
        at_fork(self)

    def begin_anew(self) -> None:
        """See `vfsd.forks`."""
        # To free one waits for its threads, which did not come along through the fork.
        for context in self._contexts.values():
            keep_for_good(context)

    @property
    def memory(self) -> int:
        """About how many bytes the pictures take that it keeps."""
        deep = 2 if self._media.bit_depth > 8 else 1
        threads = max((threads for threads, _ in self._contexts), default=1)
        kept = _REFERENCES + self._media.reorder_delay + threads - 1
        return self._media.width * self._media.height * 3 // 2 * deep * kept

    @property
    def fed(self) -> int:
        """One past the last packet that it can go on from; 0 where it must start anew."""
        return self._place.fed if self._place else 0

    def lead(self, run: DecodeRun, *, threads: int = 1) -> int:
        """How many packets of `run` need not be fed again, as the decoder stands beyond them."""
        place = self._place
        if place is None or place.threads != threads:
            return 0
        if not place.first <= run.first_packet < place.fed:
            return 0
        if any(packet < place.fed and packet not in place.inside for packet in run.wanted):
            return 0
        return place.fed - run.first_packet

    def decode(
        self,
        run: DecodeRun,
        *,
        threads: int = 1,
        passing: Passing | None = None,
        before_packet: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """(frame index, frame) of the frames that `run` wants, in display order.

        Packets that nothing refers to are left out where their own frame is not wanted.  A
        decoder that stands between the key packet and the first wanted one goes on from there
        (see `lead`).  What else is decoded on the way, and is as good as what is wanted, is handed
        to `passing`.  `before_packet` is called ahead of each packet, and may raise.  Raises
        `IntegrityError` naming the frame when the file does not yield it.
        """
        wanted = dict(run.wanted)
        try:
            yield from self._decode(run, wanted, threads, passing, before_packet)
            return
        except _StaleError:
            pass  # from now on each run has a decoder of its own
        yield from self._decode(run, wanted, threads, passing, before_packet)

    def _decode(
        self,
        run: DecodeRun,
        wanted: dict[int, int],
        threads: int,
        passing: Passing | None,
        before_packet: Callable[[], None] | None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """What is `wanted` of a run; what has been given is taken out."""
        if self.lead(run, threads=threads):
            assert self._place is not None
            try:
                for packet, index, frame in self._strictly(
                    self._place.fed,
                    run.end_packet,
                    wanted,
                    threads,
                    passing,
                    before_packet,
                    goes_on=True,
                ):
                    del wanted[packet]
                    yield index, frame
                return
            except (FFmpegError, _MissingError):
                self._discard(threads)
        for start in self._strict_starts(run.first_packet):
            try:
                for packet, index, frame in self._strictly(
                    start, run.end_packet, wanted, threads, passing, before_packet
                ):
                    del wanted[packet]
                    yield index, frame
                return
            except (FFmpegError, _MissingError):
                self._discard(threads)
        start = self._earlier(run.first_packet)
        end = min(self._table.packets, run.end_packet + EXTRA_PACKETS)
        packet_of = {frame: packet for packet, frame in wanted.items()}
        for index, frame in self._concealing(start, end, iter([list(wanted.items())])):
            del wanted[packet_of[index]]
            yield index, frame

    def stream(
        self,
        first: int = 0,
        stop: int | None = None,
        *,
        threads: int = 1,
        before_packet: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """(frame index, frame) of the frames ``first <= i < stop`` (default: to the end), in order.

        For long runs: the decoder is not drained between groups of pictures, and nothing is left
        out but what nothing refers to on the way to the first frame.
        `before_packet` is called ahead of each, of frames that are only decoded for others too; it
        may raise.
        Raises `OutOfRangeError`, and `IntegrityError` naming the frame that the file does not
        yield.
        """
        left = range(first, len(self._table) if stop is None else stop)
        for _ in range(2):
            try:
                for index, frame in self._stream(left, threads, before_packet):
                    left = range(index + 1, left.stop)
                    yield index, frame
                return
            except _StaleError:
                continue  # from now on each run has a decoder of its own

    def _stream(
        self, left: range, threads: int, before_packet: Callable[[], None] | None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        if not left:
            return
        end = self._reach(left)[1]
        for attempt in range(2):
            starts = self._strict_starts(self._reach(left)[0])
            if attempt >= len(starts):
                break
            try:
                skip = self._needless(starts[attempt], left)
                packets = self._reader.packets(starts[attempt], end, skip=skip)
                if before_packet is not None:
                    packets = _announced(packets, before_packet)
                ignored = self._leading(starts[attempt])
                decoded = self._decoded(packets, threads, strict=True, ignored=ignored)
                for _, index, frame in self._sorted(decoded, _chunks(self._table, left)):
                    left = range(index + 1, left.stop)
                    yield index, frame
                return
            except (FFmpegError, _MissingError):
                self._discard(threads)
        start = self._earlier(self._reach(left)[0])
        end = min(self._table.packets, end + EXTRA_PACKETS)
        yield from self._concealing(start, end, _chunks(self._table, left))

    def survey(
        self, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """(packet index, frame) of all that decoding ``first <= p < end`` yields, as it comes.

        Packets in `skip` are left out.  Nothing missed is an error, and the pts of the frames mean
        nothing.
        """
        self._contexts.clear()  # what an earlier run left in a decoder must not count
        return self._decoded(self._reader.packets(first, end, skip=skip), 1, strict=False)

    def close(self) -> None:
        self._contexts.clear()
        self._place = None
        self._reader.close()

    def __enter__(self) -> FrameDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _strictly(
        self,
        first: int,
        end: int,
        wanted: dict[int, int],
        threads: int,
        passing: Passing | None,
        before_packet: Callable[[], None] | None,
        *,
        goes_on: bool = False,
    ) -> Iterator[tuple[int, int, av.VideoFrame]]:
        # A few packets more push the last frame out, and leave the decoder fit to go on, which
        # draining would not.  No more are fed than that takes.
        end = max(first, end) + 4 * (self._media.reorder_delay + threads)
        end = min(self._table.packets, end)
        # Those take none out: their pictures may be wanted next.
        skip = self._disposable(first, max(wanted, default=first)).difference(wanted)
        packets = self._reader.packets(first, end, skip=skip)
        if before_packet is not None:
            packets = _announced(packets, before_packet)
        decoded = self._decoded(
            packets,
            threads,
            strict=True,
            ignored=self._leading(self._place.first if goes_on and self._place else first),
            passing=passing,
            wanted=wanted,
            goes_on=goes_on,
        )
        return self._sorted(decoded, iter([list(wanted.items())]))

    def _needless(self, first: int, frames: range) -> set[int]:
        """The packets from `first` on which need not be decoded to have `frames`, all of them."""
        head = self._table.packets_of(frames[:_MAX_REORDER]).tolist()
        return self._disposable(first, head[0]).difference(head)

    def _disposable(self, first: int, end: int) -> set[int]:
        """Of the packets ``first <= p < end`` those that no other needs."""
        flags = self._table.columns(first, max(first, end)).flags
        return set((np.flatnonzero(flags & PacketFlag.DISPOSABLE) + first).tolist())

    def _discard(self, threads: int) -> None:
        """Forget a strict decoder that met with damage."""
        self._contexts.pop((threads, True), None)
        self._place = None

    def _strict_starts(self, key: int) -> list[int]:
        """Where to start decoding, one attempt after the other.

        What follows an open key picture may name pictures before it among its references without
        using them, which a strict decoder takes for damage unless it has seen them.
        """
        return [key, self._earlier(key)] if key and self._leading(key) else [key]

    def _concealing(
        self, start: int, end: int, wanted: Iterator[list[tuple[int, int]]]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        decoded = self._decoded(self._reader.packets(start, end), 1, strict=False)
        try:
            for _, index, frame in self._sorted(decoded, wanted):
                yield index, frame
        except _MissingError as missing:
            raise IntegrityError(
                f"frame {missing.frame} cannot be decoded: the file is damaged"
            ) from None

    def _reach(self, frames: range) -> tuple[int, int]:
        """The packets ``first <= p < end`` that a decode of all of `frames` takes."""
        last = range(max(frames.start, frames.stop - _MAX_REORDER), frames.stop)
        end = max(self._table.decode_run(index).end_packet for index in last)
        return self._table.decode_run(frames.start).first_packet, end

    def _earlier(self, key: int) -> int:
        """The key packet before `key`."""
        for first in range(key - 1, -1, -_CHUNK_PACKETS):
            low = max(0, first + 1 - _CHUNK_PACKETS)
            keys = np.flatnonzero(self._table.columns(low, first + 1).flags & PacketFlag.KEY)
            if len(keys):
                return low + int(keys[-1])
        return 0

    def _leading(self, key: int) -> range:
        """The packets that lead a key packet, and cannot be decoded starting there."""
        end = min(self._table.packets, key + _MAX_REORDER)
        flags = self._table.columns(key, end).flags
        keys = np.flatnonzero(flags[1:] & PacketFlag.KEY)
        leading = np.flatnonzero(flags[: keys[0] + 1 if len(keys) else None] & PacketFlag.LEADING)
        return range(key, key + int(leading[-1]) + 1) if len(leading) else range(0)

    def _sorted(
        self,
        decoded: Iterator[tuple[int, av.VideoFrame]],
        wanted: Iterator[list[tuple[int, int]]],
    ) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """(packet, frame index, stamped frame) of what is wanted, in the order of `wanted`."""
        expected = _Expected(wanted)
        for packet, frame in decoded:
            for source, index, ready in expected.ready(packet, frame):
                ready.pts = self._table.frame_pts(index)
                ready.time_base = self._media.time_base
                yield source, index, ready
            if expected.next_frame is None:
                return
            if expected.held > _MAX_HELD:
                break
        if expected.next_frame is not None:
            raise _MissingError(expected.next_frame)

    def _decoded(
        self,
        packets: Iterable[Packet[VideoStream]],
        threads: int,
        *,
        strict: bool,
        ignored: range = range(0),
        passing: Passing | None = None,
        wanted: Container[int] = (),
        goes_on: bool = False,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """(packet index, frame) in the order in which they come out of a decoder.

        It is reset first unless it `goes_on`.  Errors of the packets in `ignored` are no damage,
        and their pictures not handed to `passing`; nor is what is `wanted`.
        """
        self.origin.require_own("a read")
        place, self._place = self._place, None
        if goes_on:
            context = self._contexts[threads, strict]
        else:
            context = self._fresh_context(threads, strict)
            place = None

        def came_out(frames: list[av.VideoFrame]) -> list[tuple[int, av.VideoFrame]]:
            came = [(frame.pts, well_named(frame)) for frame in frames if frame.pts is not None]
            if not self._is_mixed and any(map(self._means_else, frames)):
                self._is_mixed = True
                if (threads, strict) in self._flushed:
                    raise _StaleError
            for packet, frame in came:
                if place is None or packet not in place.inside:
                    continue
                place.inside.remove(packet)
                if passing and packet not in wanted and packet not in ignored:
                    passing(packet, frame)
            return came

        damage: DamagedFileError | None = None
        last = -1
        for packet in _until_damage(packets):
            if isinstance(packet, DamagedFileError):
                damage = packet
                break
            last = last if packet.pts is None else packet.pts
            try:
                frames = context.decode(packet)
            except FFmpegError:
                if strict and packet.pts not in ignored:
                    raise
                continue
            if strict and packet.pts is not None:
                place = place or _Place(packet.pts, packet.pts, set(), threads)
                place.fed = packet.pts + 1
                place.inside.add(packet.pts)
            came = came_out(frames)
            self._place = place
            yield from came
            self.origin.require_own("a read")
        self._place = None
        cut_off = -1 if damage is None else self._cut_off(last)
        for _ in range(_MAX_DRAIN_ERRORS):
            try:
                frames = context.decode(None)
            except DrainedError:
                break
            except FFmpegError:
                if strict and damage is None:
                    raise
                continue
            yield from (came for came in came_out(frames) if came[0] != cut_off)
            break
        if damage is not None:
            raise damage

    def _means_else(self, picture: av.VideoFrame) -> bool:
        """Whether its samples mean something else than is told of all.

        Packets need not tell: a decoder goes on with what it was told last, and to flush it does
        not make it forget.
        """
        return coding_of(picture, self._told) != self._told

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

    def _fresh_context(self, threads: int, strict: bool) -> VideoCodecContext:
        context = self._contexts.get((threads, strict))
        # A palette outlasts a reset, and would be that of other pictures.
        if context is None or self._is_mixed or self._media.pixel_format == "pal8":
            context = self._reader.context(threads=threads, strict=strict)
            self._contexts[threads, strict] = context
            self._flushed.discard((threads, strict))
            return context
        context.flush_buffers()
        self._flushed.add((threads, strict))
        if self._media.codec == "h264":
            # Else a stream that does not tell its reordering loses frames in mid-stream.
            context.reorder_depth = self._media.reorder_delay
        return context


class _Expected:
    """Puts frames, as a decoder gives them, into the order in which they are wanted.

    `chunks` are (packet, frame index) lists, in display order.
    """

    def __init__(self, chunks: Iterator[list[tuple[int, int]]]) -> None:
        self._chunks = chunks
        self._queue: deque[tuple[int, int]] = deque()
        self._wanted: set[int] = set()
        self._frames: dict[int, av.VideoFrame] = {}
        self._refill()

    @property
    def next_frame(self) -> int | None:
        """The frame that comes next; None when all have been."""
        return self._queue[0][1] if self._queue else None

    @property
    def held(self) -> int:
        """Frames that wait for an earlier one."""
        return len(self._frames)

    def ready(self, packet: int, frame: av.VideoFrame) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """Take the frame of a packet; give (packet, frame index, frame) of all whose turn it is."""
        if packet not in self._wanted:
            return
        self._frames[packet] = frame
        while self._queue and self._queue[0][0] in self._frames:
            packet, index = self._queue.popleft()
            self._wanted.discard(packet)
            if len(self._queue) < _CHUNK_FRAMES:
                self._refill()
            yield packet, index, self._frames.pop(packet)

    def _refill(self) -> None:
        for chunk in self._chunks:
            self._queue.extend(chunk)
            self._wanted.update(packet for packet, _ in chunk)
            if len(self._queue) >= _CHUNK_FRAMES:
                break


def _until_damage(
    packets: Iterable[Packet[VideoStream]],
) -> Iterator[Packet[VideoStream] | DamagedFileError]:
    """What can be read, and the error that ends it: pictures that wait for no more come first."""
    try:
        yield from packets
    except DamagedFileError as error:
        yield error


def _announced(
    packets: Iterator[Packet[VideoStream]], before: Callable[[], None]
) -> Iterator[Packet[VideoStream]]:
    for packet in packets:
        before()
        yield packet


def _chunks(table: FrameTable, frames: range) -> Iterator[list[tuple[int, int]]]:
    for start in range(frames.start, frames.stop, _CHUNK_FRAMES):
        part = range(start, min(frames.stop, start + _CHUNK_FRAMES))
        yield list(zip(table.packets_of(part).tolist(), part, strict=True))
