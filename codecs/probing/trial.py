"""Decoding a few runs of packets, to see whether a table that was read off packets holds.

Runs begin at the start of the file, where something new comes for the first time, in the middle
and at the last key packet; at the second one, decoding from there is compared with decoding
through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.packet_flag import Trait
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.probing.output_order import Output
from vfsd.codecs.probing.packet_scan import Scan
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag

_FEW_PACKETS = 12
_ALIVE_PACKETS = 16
_LONGEST = 300
"""Runs of more packets are left out, but for the first one."""
_NEW = (Trait.UNREFERENCED, Trait.UNPACKED, Trait.HIDDEN)

_Found = list[tuple[int, int, int]]
"""(packet of a picture, packet that it came out at, checksum)"""


class Trial:
    """The packets of a table, and what a decoder is thought to make of them."""

    def __init__(
        self,
        reader: PacketReader,
        columns: PacketColumns,
        scanned: Scan,
        output: Output,
        alive: Callable[[], None],
    ) -> None:
        """`alive` is called now and then, and may raise to cancel."""
        self._reader = reader
        self._alive = alive
        self._scanned = scanned
        self._output = output
        self._context: VideoCodecContext | None = None
        self._packets = len(columns)
        self._hidden = columns.flags & PacketFlag.HIDDEN != 0
        self._leading = columns.flags & PacketFlag.LEADING != 0
        self._keys = np.flatnonzero(columns.flags & PacketFlag.KEY)

    def agrees(self, first_prints: Sequence[int]) -> bool:
        """Whether each run gives the pictures that it should, when it should, and the first
        pictures of all have these checksums."""
        end = min(int(self._output.order[0]) + _FEW_PACKETS, self._packets)
        first = self._decoded(0, end)
        if not self._is_as_thought(0, end, first):
            return False
        prints = [print_ for packet, _, print_ in first if not self._hidden[packet]]
        if prints[: len(first_prints)] != list(first_prints)[: len(prints)]:
            return False
        runs = sorted(set(self._runs()))
        if not all(self._is_as_thought(*run, self._decoded(*run)) for run in runs):
            return False
        return self._second_key_agrees()

    def _runs(self) -> Iterator[tuple[int, int]]:
        """(key packet, end)"""
        for trait in _NEW:
            places = np.flatnonzero(self._scanned.traits & trait)
            if len(places):
                yield from self._around(int(places[0]))
        empty = np.flatnonzero(self._scanned.size == 0)
        if len(empty):
            yield from self._around(int(empty[0]))
        if len(self._keys):
            yield from self._around(int(self._keys[len(self._keys) // 2]))
            last = int(self._keys[-1])
            if self._packets - last <= _LONGEST:
                yield last, self._packets

    def _around(self, packet: int) -> Iterator[tuple[int, int]]:
        keys = self._keys[self._keys <= packet]
        start = int(keys[-1]) if len(keys) else 0
        if packet - start <= _LONGEST:
            yield start, min(packet + _FEW_PACKETS, self._packets)

    def _second_key_agrees(self) -> bool:
        """Whether pictures are the same where decoding starts at a key packet, and goes through."""
        keys = self._keys[self._keys > 0]
        if not len(keys) or keys[0] > _LONGEST:
            return True
        key = int(keys[0])
        end = min(key + _FEW_PACKETS, self._packets)
        through = {packet: print_ for packet, _, print_ in self._decoded(0, end)}
        alone = {packet: print_ for packet, _, print_ in self._decoded(key, end)}
        wanted = [p for p in range(key, end) if not self._hidden[p] and not self._leading[p]]
        return all(through.get(p) == alone.get(p) for p in wanted)

    def _is_as_thought(self, start: int, end: int, found: _Found) -> bool:
        order, fed = self._output.order, self._output.fed
        inside = (order >= start) & (order < end) & ((fed < end) | (end == self._packets))
        thought = list(zip(order[inside].tolist(), fed[inside].tolist(), strict=True))
        got = [(packet, at) for packet, at, _ in found if not self._hidden[packet]]
        if start:
            following = self._keys[self._keys > start][:1].tolist() or [self._packets]
            led = set((np.flatnonzero(self._leading[start : following[0]]) + start).tolist())
            thought = [one for one in thought if one[0] not in led]
            got = [one for one in got if one[0] not in led]
        return got == thought

    def _decoded(self, start: int, end: int) -> _Found:
        """What comes out; the decoder is drained where `end` is that of the file."""
        if self._context is None:
            self._context = self._reader.context()
        else:
            self._context.flush_buffers()
        found: _Found = []
        for packet in self._reader.packets(start, end):
            assert packet.pts is not None
            if (packet.pts - start) % _ALIVE_PACKETS == 0:
                self._alive()
            found += _given(self._context, packet, packet.pts)
        if end == self._packets:
            found += _given(self._context, None, end)
        return found


def _given(context: VideoCodecContext, packet: Packet[VideoStream] | None, at: int) -> _Found:
    try:
        frames = decode(context, packet)
    except MemoryError:
        raise
    except FFmpegError:
        return []
    return [(frame.pts, at, fingerprint(frame)) for frame in frames if frame.pts is not None]
