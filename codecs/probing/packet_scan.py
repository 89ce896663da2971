"""One pass of the demuxer over a file: what the container says of every packet of the video."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Container as Collected
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.packet_flags import inspector, settled
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.demuxer import Source, demuxed
from vfsd.core.frame_table_pages import Ints
from vfsd.errors import RefusedMediaError

Progress = Callable[[int, int], None]

NONE = -(1 << 63)
"""Stands for a time stamp that the container does not give."""

HEAD_PACKETS = 12
_MOST_HEAD_PACKETS = 320

_FARTHEST = 1 << 56
_PAYLOAD_SEARCH = 64
_LACE_SEARCH = 8 << 10
"""Bytes ahead of the first packet of a Matroska block that holds up to 256 of them."""
_SPARE_PACKETS = 10_000
_LEAST_BYTES = 4
"""An index that lists more than `_SPARE_PACKETS` packets of fewer bytes on average is made up."""
_PROGRESS_PACKETS = 512


@dataclass(frozen=True)
class Scan:
    """The packets of one stream in decode order, one array element each."""

    pts: Ints  #: ticks, or `NONE`
    dts: Ints  #: ticks, or `NONE`
    duration: Ints  #: ticks; 0: unknown
    position: Ints  #: of the payload where `sliced`, else where the demuxer found the packet
    size: Ints
    traits: npt.NDArray[np.int64]  #: `Trait`s; all 0 where `inspected` is False
    key: npt.NDArray[np.bool_]  #: the container calls it a key packet
    discard: npt.NDArray[np.bool_]  #: the container wants its picture dropped
    corrupt: npt.NDArray[np.bool_]  #: the demuxer found it damaged
    inspected: bool
    sliced: bool  #: every packet lies in the file in one piece, at `position`
    reconfigured: bool  #: the codec configuration changes on the way
    error: str | None  #: what ended the pass before the end of the file
    head: tuple[
        Packet[VideoStream], ...
    ]  #: the first, up to `HEAD_PACKETS` that are not empty or discarded

    def __len__(self) -> int:
        return len(self.pts)


class Slices:
    """Finds out whether packets are slices of the file, and where their payload starts."""

    def __init__(self, source: Source, possible: bool) -> None:
        self._source = source
        self._offset = 0
        self._unit = self._end = -1  # of the packet before: its unit, and where its payload ends
        self.holds = possible

    def position(self, packet: Packet[Any], payload: bytes) -> int:
        """Where `payload` lies; the demuxer's own figure once `holds` is False."""
        found = -1 if packet.pos is None else packet.pos
        if not self.holds:
            return found
        if found < 0:
            self.holds = False
            return found
        at = self._laced(found, payload)
        if at is None:
            at = self._found(found, payload)
        if at is None:
            self.holds = False
            return found
        self._unit, self._end = found, at + len(payload)
        return at

    def _laced(self, found: int, payload: bytes) -> int | None:
        """A block of Matroska may hold several packets, one directly after the other."""
        if found != self._unit:
            return None
        follows = self._source.read_at(self._end, len(payload)) == payload
        return self._end if follows else None

    def _found(self, found: int, payload: bytes) -> int | None:
        near = self._source.read_at(found, len(payload) + _PAYLOAD_SEARCH)
        if near.startswith(payload, self._offset):
            return found + self._offset
        offset = near.find(payload)
        if offset < 0:
            near = self._source.read_at(found, len(payload) + _LACE_SEARCH)
            offset = near.find(payload)
        if offset < 0:
            return None
        if offset < _PAYLOAD_SEARCH:
            self._offset = offset
        return found + offset


def scan(
    source: Source,
    container: Container,
    opened: InputContainer,
    stream: VideoStream,
    on_progress: Progress | None,
    *,
    left_out: Collected[int] = (),
) -> Scan:
    """Demux all packets of `stream` of the freshly `opened` container, but for those at the places
    `left_out`.

    Raises `RefusedMediaError` for an encrypted stream, and for an index that is made up.
    """
    inspect = inspector(
        stream.codec_context.codec.canonical_name, stream.codec_context.extradata or b""
    )
    slices = Slices(source, container.sliced)
    columns = [array("q") for _ in range(7)]
    pts, dts, duration, position, size, traits, flags = columns
    total, reconfigured, error = source.size, False, None
    found = array("q")
    head: list[Packet[VideoStream]] = []
    shown = 0
    try:
        for packet in demuxed(opened, stream):
            if packet.pos in left_out:
                continue
            payload = bytes(packet)
            key = packet.is_keyframe
            pts.append(_tick(packet.pts))
            dts.append(_tick(packet.dts))
            duration.append(max(0, min(packet.duration or 0, _FARTHEST)))
            found.append(-1 if packet.pos is None else packet.pos)
            position.append(slices.position(packet, payload))
            size.append(len(payload))
            traits.append(inspect(payload, key) if inspect else 0)
            flags.append(key | packet.is_discard << 1 | packet.is_corrupt << 2)
            has_side_data = any(True for _ in packet.iter_sidedata())  # names cost more to compare
            if has_side_data and packet.has_sidedata("encryption_info"):
                raise RefusedMediaError("the video is encrypted")
            if len(pts) > most_packets(total):
                raise RefusedMediaError("its index lists more packets than the file can hold")
            if has_side_data and len(pts) > 1 and packet.has_sidedata("new_extradata"):
                reconfigured = True
            if payload and shown < HEAD_PACKETS and len(head) < _MOST_HEAD_PACKETS:
                head.append(packet)
                shown += not packet.is_discard
            if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
                on_progress(min(total, max(0, found[-1])), total)
    except MemoryError:
        raise  # it tells of the machine, not of the file
    except FFmpegError as failure:
        error = str(failure)
    bits = _ints(flags)
    return Scan(
        pts=_ints(pts),
        dts=_ints(dts),
        duration=_ints(duration),
        position=_ints(position) if slices.holds else _ints(found),
        size=_ints(size),
        traits=settled(traits),
        key=(bits & 1) != 0,
        discard=(bits & 2) != 0,
        corrupt=(bits & 4) != 0,
        inspected=inspect is not None,
        sliced=slices.holds,
        reconfigured=reconfigured,
        error=error,
        head=tuple(head),
    )


def most_packets(size: int) -> int:
    """How many packets a file of `size` bytes may list."""
    return _SPARE_PACKETS + size // _LEAST_BYTES


def _tick(told: int | None) -> int:
    """Time stamps far beyond all that a clock can show are damage."""
    return NONE if told is None or abs(told) > _FARTHEST else told


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)
