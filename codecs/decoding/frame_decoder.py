"""Decodes chosen frames of a stored file.

Each frame is identified by the packet that it came from, so that damage and reordering cannot shift
frame numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.decoding.demuxer import MediaFile
from vfsd.codecs.decoding.packet_decoder import (
    OnPassedFrame,
    PacketDecoder,
    StaleColorsError,
    StrictDecode,
)
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.frames.frame_transforms import FirstSizeScaler
from vfsd.core.atfork import OwnerProcess
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.errors import IntegrityError

EXTRA_PACKETS = 16
"""Fed past the end of a run that did not yield all: MPEG-4's packed B-frames put two pictures in
one packet, and the second comes out with a later one."""
_CHUNK_FRAMES = 512
_CHUNK_PACKETS = 512
_MAX_REORDER = 64
"""No frame is decoded after more frames that are shown later."""
_MAX_HELD = 2 * _MAX_REORDER


@dataclass(frozen=True, slots=True)
class _RunRequest:
    """What is to be decoded for one run, and how."""

    run: DecodeRun
    wanted: dict[int, int]  #: of the run, without what has been given: frames by packet
    threads: int
    passing: OnPassedFrame | None
    before_packet: Callable[[], None] | None


class _MissingFrameError(Exception):
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

    `on_damage` is called whenever damage is about to be concealed, or a picture shows some.

    What samples mean is what packets say, or else `media`, wherever decoding starts.

    In a forked child an inherited one can only be closed; to decode raises `UsageError` there.
    """

    def __init__(
        self,
        source: MediaFile,
        media: MediaInfo,
        access: Access,
        table: FrameTable,
        *,
        on_damage: Callable[[], None] | None = None,
    ) -> None:
        self._on_damage = on_damage
        self._reader = PacketReader(source, media, access, table)
        self._media = media
        self._table = table
        # Where sizes may change on the way, packets are not copied, and so read in sequence.
        is_sized = access is Access.SEQUENTIAL
        size = media.decoded_width, media.decoded_height
        first = FirstSizeScaler(*size, media.pixel_format) if is_sized else None
        self._decoder = PacketDecoder(self._reader, media, table, first, on_damage=on_damage)

    @property
    def origin(self) -> OwnerProcess:
        return self._decoder.origin

    @property
    def memory(self) -> int:
        """About how many bytes the pictures take that it keeps."""
        return self._decoder.memory

    @property
    def fed(self) -> int:
        """One past the last packet that it can go on from; 0 where it must start anew."""
        return self._decoder.fed

    def lead(self, run: DecodeRun, *, threads: int = 1) -> int:
        """How many packets of `run` need not be fed again, as the decoder stands beyond them."""
        return self._decoder.lead(run, threads)

    def decode(
        self,
        run: DecodeRun,
        *,
        threads: int = 1,
        passing: OnPassedFrame | None = None,
        before_packet: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """(frame index, frame) of the frames that `run` wants, in display order.

        Packets that nothing refers to are left out where their own frame is not wanted.  A
        decoder that stands between the key packet and the first wanted one goes on from there
        (see `lead`).  What else is decoded on the way, and is as good as what is wanted, is handed
        to `passing`.  `before_packet` is called ahead of each packet, and may raise.  Raises
        `IntegrityError` naming the frame when the file does not yield it.
        """
        wish = _RunRequest(run, dict(run.wanted), threads, passing, before_packet)
        try:
            yield from self._decode(wish)
            return
        except StaleColorsError:
            pass  # from now on each run has a decoder of its own
        yield from self._decode(wish)

    def _decode(self, wish: _RunRequest) -> Iterator[tuple[int, av.VideoFrame]]:
        for attempt in self._attempts(wish):
            try:
                for packet, index, frame in attempt:
                    del wish.wanted[packet]
                    yield index, frame
                return
            except (FFmpegError, _MissingFrameError):
                self._decoder.discard(wish.threads)
        start = self._earlier(wish.run.first_packet)
        end = min(self._table.packets, wish.run.end_packet + EXTRA_PACKETS)
        packet_of = {frame: packet for packet, frame in wish.wanted.items()}
        for index, frame in self._concealing(start, end, iter([list(wish.wanted.items())])):
            del wish.wanted[packet_of[index]]
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
            except StaleColorsError:
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
                    packets = _before_packets(packets, before_packet)
                ignored = self._leading(starts[attempt])
                decoded = self._decoder.begin(packets, threads, ignored=ignored)
                for _, index, frame in self._sorted(decoded, _chunks(self._table, left)):
                    left = range(index + 1, left.stop)
                    yield index, frame
                return
            except (FFmpegError, _MissingFrameError):
                self._decoder.discard(threads)
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
        self._decoder.forget()  # what an earlier run left in a decoder must not count
        return self._decoder.conceal(self._reader.packets(first, end, skip=skip))

    def close(self) -> None:
        self._decoder.forget()
        self._reader.close()

    def __enter__(self) -> FrameDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempts(self, wish: _RunRequest) -> Iterator[Iterator[tuple[int, int, av.VideoFrame]]]:
        """Strict decodes of what is wanted still, to be tried one after the other."""
        decoder = self._decoder
        if decoder.lead(wish.run, wish.threads):
            leading = self._leading(decoder.first)
            yield self._strictly(decoder.go_on, decoder.fed, leading, wish)
        for start in self._strict_starts(wish.run.first_packet):
            yield self._strictly(decoder.begin, start, self._leading(start), wish)

    def _strictly(
        self, decode: StrictDecode, first: int, leading: range, wish: _RunRequest
    ) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """From packet `first` on; those in `leading` cannot be decoded, or not well."""
        wanted, passing = wish.wanted, wish.passing
        # A few packets more push the last frame out, and leave the decoder fit to go on, which
        # draining would not.  No more are fed than that takes.
        end = max(first, wish.run.end_packet) + 4 * (self._media.reorder_delay + wish.threads)
        end = min(self._table.packets, end)
        # Those take none out: their pictures may be wanted next.
        skip = self._disposable(first, max(wanted, default=first)).difference(wanted)
        packets = self._reader.packets(first, end, skip=skip)
        if wish.before_packet is not None:
            packets = _before_packets(packets, wish.before_packet)

        def on_the_way(packet: int, picture: av.VideoFrame) -> None:
            if passing is not None and packet not in wanted and packet not in leading:
                passing(packet, picture)

        decoded = decode(packets, wish.threads, ignored=leading, passing=on_the_way)
        return self._sorted(decoded, iter([list(wanted.items())]))

    def _needless(self, first: int, frames: range) -> set[int]:
        """The packets from `first` on which need not be decoded to have `frames`, all of them."""
        head = self._table.packets_of(frames[:_MAX_REORDER]).tolist()
        return self._disposable(first, head[0]).difference(head)

    def _disposable(self, first: int, end: int) -> set[int]:
        """Of the packets ``first <= p < end`` those that no other needs."""
        flags = self._table.columns(first, max(first, end)).flags
        return set((np.flatnonzero(flags & PacketFlag.DISPOSABLE) + first).tolist())

    def _strict_starts(self, key: int) -> list[int]:
        """Where to start decoding, one attempt after the other.

        What follows an open key picture may name pictures before it among its references without
        using them, which a strict decoder takes for damage unless it has seen them.
        """
        return [key, self._earlier(key)] if key and self._leading(key) else [key]

    def _concealing(
        self, start: int, end: int, wanted: Iterator[list[tuple[int, int]]]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        if self._on_damage is not None:
            self._on_damage()
        decoded = self._decoder.conceal(self._reader.packets(start, end))
        try:
            for _, index, frame in self._sorted(decoded, wanted):
                yield index, frame
        except _MissingFrameError as missing:
            raise IntegrityError(
                f"frame {missing.frame} cannot be decoded: the file is damaged",
                hint="`vfsd verify` decodes all of it, and corrects what is known of it if that is "
                "what is wrong",
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
        expected = _ExpectedFrames(wanted)
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
            raise _MissingFrameError(expected.next_frame)


class _ExpectedFrames:
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


def _before_packets(
    packets: Iterator[Packet[VideoStream]], before: Callable[[], None]
) -> Iterator[Packet[VideoStream]]:
    for packet in packets:
        before()
        yield packet


def _chunks(table: FrameTable, frames: range) -> Iterator[list[tuple[int, int]]]:
    for start in range(frames.start, frames.stop, _CHUNK_FRAMES):
        part = range(start, min(frames.stop, start + _CHUNK_FRAMES))
        yield list(zip(table.packets_of(part).tolist(), part, strict=True))
