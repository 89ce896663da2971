"""Decodes chosen frames of a stored file.

Each frame is identified by the packet that it came from, so that damage and reordering cannot shift
frame numbers.

FFmpeg's decoders keep state across a flush, such as the colors of the last parameter sets, JPEG
tables and palettes, and may drop pictures when they start in mid-stream. Reads from any position
still give the same pixels:

- A decoder begins with the colors of the first picture. A picture of a used decoder that differs is
  decoded again by a fresh one: a used H.264 decoder behind a change of colors was 27 to 32 dB off.
  A key frame counts only if decoding from it gives the colors of decoding from the start.
- H.264 decoders run with ``strict`` compliance, which holds back the maximum delay, and are drained
  at the wanted frame.
- Side data that a decoder needs is part of the packet.
- Files with changing palettes are read by their demuxer, and their decoders are not reused. A JPEG
  stream that relies on earlier tables is decoded from end to end.
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

from vfsd.codecs.decoding.packet_decoder import (
    OnPassedFrame,
    PacketDecoder,
    PacketReader,
    StaleColorsError,
    StrictDecode,
)
from vfsd.codecs.frames.transforms import FirstSizeScaler
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.core.process_control import OwnerProcess
from vfsd.disk.checksums import MediaFile
from vfsd.errors import IntegrityError

EXTRA_PACKETS = 16
"""Packets to feed past the end of a run that is incomplete.

MPEG-4's packed B-frames put two pictures into one packet, and the second one comes out later.
"""
_CHUNK_FRAMES = 512
_CHUNK_PACKETS = 512
# Most frames between decode order and display order of a frame.
_MAX_REORDER = 64
_MAX_HELD = 2 * _MAX_REORDER


@dataclass(frozen=True, slots=True)
class _RunRequest:
    """A run to decode, and how."""

    run: DecodeRun
    wanted: dict[int, int]  #: frame indices by packet, without those already yielded
    threads: int
    passing: OnPassedFrame | None
    before_packet: Callable[[], None] | None
    may_drain: bool


class _MissingFrameError(Exception):
    """The decoder did not return a frame."""

    def __init__(self, frame: int) -> None:
        super().__init__(frame)
        self.frame = frame


class FrameDecoder:
    """Decodes frames of one file. Not thread-safe, closable.

    `source` is a path, or an open file that stays the caller's and is only read with `pread`.
    Frames have the pts and time base of the table. They are as the codec stores them: not rotated,
    in the pixel format of the stream.

    On damage, decoding restarts one key packet earlier with one thread. It then conceals damage
    from the same pictures as a decode of the whole file. With several threads, several pictures are
    decoded at a time.

    `on_damage` is called whenever damage is about to be concealed, and for each corrupt picture.
    Colors come from packets, or else from `media`, wherever decoding starts. A forked child can
    only close an inherited decoder; decoding raises `UsageError` there.
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
        # Files with changing sizes are read in sequence, since copied packets would show them.
        is_sized = access is Access.SEQUENTIAL
        size = media.decoded_width, media.decoded_height
        first = FirstSizeScaler(*size, media.pixel_format) if is_sized else None
        self._decoder = PacketDecoder(self._reader, media, table, first, on_damage=on_damage)

    @property
    def origin(self) -> OwnerProcess:
        """The process that may decode."""
        return self._decoder.origin

    @property
    def memory(self) -> int:
        """Approximate bytes of the pictures that decoders keep."""
        return self._decoder.memory

    @property
    def fed(self) -> int:
        """One past the last packet fed, from which decoding can continue; 0 if it must
        start again.
        """
        return self._decoder.fed

    def lead(self, run: DecodeRun, *, threads: int = 1) -> int:
        """Return how many packets of `run` were already fed and need not be fed again."""
        return self._decoder.lead(run, threads)

    def decode(
        self,
        run: DecodeRun,
        *,
        threads: int = 1,
        passing: OnPassedFrame | None = None,
        before_packet: Callable[[], None] | None = None,
        may_drain: bool = False,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (frame index, frame) for the frames that `run` wants, in display order.

        Unreferenced packets of other frames are skipped. A decoder that is between the key packet
        and the first wanted packet continues from there (see `lead`). Raises `IntegrityError` with
        the frame number if the file does not yield a frame.

        Args:
            run: the packets to decode and the wanted frames
            threads: threads of the decoder
            passing: called with other pictures that are decoded on the way without doubt
            before_packet: called before each packet; may raise to cancel
            may_drain: read no packets after the run that are on a server; if the decoder holds
                frames back, it is drained, and cannot continue
        """
        request = _RunRequest(run, dict(run.wanted), threads, passing, before_packet, may_drain)
        try:
            yield from self._decode(request)
            return
        except StaleColorsError:
            pass  # from now on each run gets a new decoder
        yield from self._decode(request)

    def _decode(self, request: _RunRequest) -> Iterator[tuple[int, av.VideoFrame]]:
        for attempt in self._attempts(request):
            try:
                for packet, index, frame in attempt:
                    del request.wanted[packet]
                    yield index, frame
                return
            except (FFmpegError, _MissingFrameError):
                self._decoder.discard(request.threads)
        start = self._previous_key(request.run.first_packet)
        end = min(self._table.packets, request.run.end_packet + EXTRA_PACKETS)
        packet_of = {frame: packet for packet, frame in request.wanted.items()}
        for index, frame in self._conceal(start, end, iter([list(request.wanted.items())])):
            del request.wanted[packet_of[index]]
            yield index, frame

    def stream(
        self,
        first: int = 0,
        stop: int | None = None,
        *,
        threads: int = 1,
        before_packet: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (frame index, frame) for ``first <= i < stop`` (default: to the end), in order.

        Suited to long runs: the decoder is not drained between GOPs. Only unreferenced packets
        before the first frame are skipped. `before_packet` is called before each packet, and may
        raise to cancel. Raises `OutOfRangeError`, and `IntegrityError` with the number of a frame
        that the file does not yield.
        """
        left = range(first, len(self._table) if stop is None else stop)
        for _ in range(2):
            try:
                for index, frame in self._stream(left, threads, before_packet):
                    left = range(index + 1, left.stop)
                    yield index, frame
                return
            except StaleColorsError:
                continue  # from now on each run gets a new decoder

    def _stream(
        self, left: range, threads: int, before_packet: Callable[[], None] | None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        if not left:
            return
        end = self._packet_span(left)[1]
        for attempt in range(2):
            starts = self._strict_starts(self._packet_span(left)[0])
            if attempt >= len(starts):
                break
            try:
                skip = self._unneeded(starts[attempt], left)
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
        start = self._previous_key(self._packet_span(left)[0])
        end = min(self._table.packets, end + EXTRA_PACKETS)
        yield from self._conceal(start, end, _chunks(self._table, left))

    def survey(
        self, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (packet index, frame) of everything that packets ``first <= p < end`` decode to.

        Packets in `skip` are left out. Missing frames are not an error, and the pts of frames is
        undefined.
        """
        self._decoder.forget()  # the result must not depend on earlier runs
        return self._decoder.conceal(self._reader.packets(first, end, skip=skip))

    def close(self) -> None:
        self._decoder.forget()
        self._reader.close()

    def __enter__(self) -> FrameDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempts(self, request: _RunRequest) -> Iterator[Iterator[tuple[int, int, av.VideoFrame]]]:
        """Yield strict decodes of the frames still wanted, to be tried one after the other."""
        decoder = self._decoder
        if decoder.lead(request.run, request.threads):
            leading = self._leading(decoder.first)
            yield self._decode_strictly(decoder.resume, decoder.fed, leading, request)
        for start in self._strict_starts(request.run.first_packet):
            leading = self._leading(start)
            if request.may_drain and not self._is_tail_at_hand(request):
                yield self._decode_drained(start, leading, request)
            else:
                yield self._decode_strictly(decoder.begin, start, leading, request)

    def _decode_drained(
        self, start: int, leading: range, request: _RunRequest
    ) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """Decode without packets after the run, or with them if a frame is missing then."""
        begin = self._decoder.begin
        try:
            yield from self._decode_strictly(begin, start, leading, request, drain=True)
            return
        except _MissingFrameError:  # the second picture of a packet comes out later
            self._decoder.discard(request.threads)
        yield from self._decode_strictly(begin, start, leading, request)

    def _is_tail_at_hand(self, request: _RunRequest) -> bool:
        end = request.run.end_packet
        return self._reader.is_at_hand(end, self._pushed_out(end, request))

    def _pushed_out(self, end: int, request: _RunRequest) -> int:
        """Return one past the packets that push out all frames of the packets before `end`.

        Unlike draining, they let the decoder continue later.
        """
        more = 4 * (self._media.reorder_delay + request.threads)
        return min(self._table.packets, end + more)

    def _decode_strictly(
        self,
        decode: StrictDecode,
        first: int,
        leading: range,
        request: _RunRequest,
        *,
        drain: bool = False,
    ) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """Decode from packet `first` on; packets in `leading` may not be decodable."""
        wanted, passing = request.wanted, request.passing
        end = request.run.end_packet
        if not drain:  # feeding stops as soon as the frame is out
            end = self._pushed_out(max(first, end), request)
        # Packets after the last wanted one are not skipped: the next run may want them.
        skip = self._disposable(first, max(wanted, default=first)).difference(wanted)
        packets = self._reader.packets(first, end, skip=skip)
        if request.before_packet is not None:
            packets = _before_packets(packets, request.before_packet)

        def on_the_way(packet: int, picture: av.VideoFrame) -> None:
            if passing is not None and packet not in wanted and packet not in leading:
                passing(packet, picture)

        decoded = decode(packets, request.threads, ignored=leading, passing=on_the_way)
        return self._sorted(decoded, iter([list(wanted.items())]))

    def _unneeded(self, first: int, frames: range) -> set[int]:
        """Return the packets from `first` on that are not needed to decode all of `frames`."""
        head = self._table.packets_of(frames[:_MAX_REORDER]).tolist()
        return self._disposable(first, head[0]).difference(head)

    def _disposable(self, first: int, end: int) -> set[int]:
        """Return the packets in ``first <= p < end`` that no other packet refers to."""
        flags = self._table.columns(first, max(first, end)).flags
        return set((np.flatnonzero(flags & PacketFlag.DISPOSABLE) + first).tolist())

    def _strict_starts(self, key: int) -> list[int]:
        """Return the packets from which to try decoding, in order.

        Pictures after an open key picture may list earlier pictures as references without using
        them. A strict decoder treats that as damage unless it has seen them.
        """
        return [key, self._previous_key(key)] if key and self._leading(key) else [key]

    def _conceal(
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
                hint="`vfsd verify` decodes the whole file, and corrects a wrong frame table",
            ) from None

    def _packet_span(self, frames: range) -> tuple[int, int]:
        """Return the half-open interval of packets that decoding all of `frames` needs."""
        last = range(max(frames.start, frames.stop - _MAX_REORDER), frames.stop)
        end = max(self._table.decode_run(index).end_packet for index in last)
        return self._table.decode_run(frames.start).first_packet, end

    def _previous_key(self, key: int) -> int:
        """Return the key packet before `key`; 0 if there is none."""
        for first in range(key - 1, -1, -_CHUNK_PACKETS):
            low = max(0, first + 1 - _CHUNK_PACKETS)
            keys = np.flatnonzero(self._table.columns(low, first + 1).flags & PacketFlag.KEY)
            if len(keys):
                return low + int(keys[-1])
        return 0

    def _leading(self, key: int) -> range:
        """Return the leading packets of a key packet, which are not decodable from there."""
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
        """Yield (packet, frame index, frame with pts) for wanted frames, in the order of
        `wanted`.
        """
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
    """Sorts decoded frames into the order in which they are wanted.

    `chunks` are lists of (packet, frame index) in display order.
    """

    def __init__(self, chunks: Iterator[list[tuple[int, int]]]) -> None:
        self._chunks = chunks
        self._queue: deque[tuple[int, int]] = deque()
        self._wanted: set[int] = set()
        self._frames: dict[int, av.VideoFrame] = {}
        self._refill()

    @property
    def next_frame(self) -> int | None:
        """The next frame index; None at the end."""
        return self._queue[0][1] if self._queue else None

    @property
    def held(self) -> int:
        """The number of frames that wait for an earlier one."""
        return len(self._frames)

    def ready(self, packet: int, frame: av.VideoFrame) -> Iterator[tuple[int, int, av.VideoFrame]]:
        """Add the frame of a packet; yield (packet, frame index, frame) for all that are now in
        order.
        """
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
