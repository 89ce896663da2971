"""One demuxer pass over the video packets of a file.

Collects the container's information on each packet, and predicts the output order of a decoder.
"""

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

from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS, inspector, settled_traits
from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import Container, max_packets
from vfsd.codecs.decoding.demuxer import demux_packets
from vfsd.core.frame_table_pages import Ints
from vfsd.disk.checksummed_file import MediaSource
from vfsd.errors import RefusedMediaError

ScanProgress = Callable[[int, int], None]

NO_TIMESTAMP = -(1 << 63)
"""Marks a timestamp that the container does not provide."""

HEAD_PACKETS = 12
_MAX_HEAD_PACKETS = 320

_MAX_TICK = 1 << 56
_PAYLOAD_SEARCH = 64
_LACE_SEARCH = 8 << 10
"""Most bytes before the first packet of a laced Matroska block (up to 256 frames)."""
_PROGRESS_PACKETS = 512


@dataclass(frozen=True)
class PacketScan:
    """The packets of one stream in decode order, one array element each."""

    pts: Ints  #: ticks, or `NO_TIMESTAMP`
    dts: Ints  #: ticks, or `NO_TIMESTAMP`
    duration: Ints  #: ticks; 0: unknown
    position: Ints  #: offset of the payload if `sliced`, else the demuxer's offset
    size: Ints
    traits: npt.NDArray[np.int64]  #: `PacketTrait`s; all 0 if `inspected` is False
    key: npt.NDArray[np.bool_]  #: the container flags it as a key packet
    discard: npt.NDArray[np.bool_]  #: the container says to drop its picture
    corrupt: npt.NDArray[np.bool_]  #: the demuxer flags it as damaged
    inspected: bool
    sliced: bool  #: every packet is contiguous in the file, at `position`
    reconfigured: bool  #: the codec configuration changes within the stream
    error: str | None  #: the error that ended the pass before the end of the file
    #: The first packets, up to `HEAD_PACKETS` that are neither empty nor discarded.
    head: tuple[Packet[VideoStream], ...]

    def __len__(self) -> int:
        return len(self.pts)


class PayloadLocator:
    """Checks whether packets are slices of the file, and finds where their payload starts."""

    def __init__(self, source: MediaSource, possible: bool) -> None:
        self._source = source
        self._offset = 0
        self._unit = self._end = -1  # of the last packet: its unit, and the end of its payload
        self.holds = possible

    def position(self, packet: Packet[Any], payload: bytes) -> int:
        """Return the offset of `payload`; the offset of the demuxer once `holds` is False."""
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
        """Return the offset directly after the last packet, if both are laced in one Matroska
        block.
        """
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


def scan_packets(
    source: MediaSource,
    container: Container,
    opened: InputContainer,
    stream: VideoStream,
    on_progress: ScanProgress | None,
    *,
    left_out: Collected[int] = (),
) -> PacketScan:
    """Demux all packets of `stream` of the freshly `opened` container, except at offsets
    `left_out`.

    Raises `RefusedMediaError` for an encrypted stream, and for an index with too many packets.
    """
    inspect = inspector(
        stream.codec_context.codec.canonical_name, stream.codec_context.extradata or b""
    )
    slices = PayloadLocator(source, container.sliced)
    columns = [array("q") for _ in range(7)]
    pts, dts, duration, position, size, traits, flags = columns
    total, reconfigured, error = source.size, False, None
    found = array("q")
    head: list[Packet[VideoStream]] = []
    shown = 0
    try:
        for packet in demux_packets(opened, stream):
            if packet.pos in left_out:
                continue
            payload = bytes(packet)
            key = packet.is_keyframe
            pts.append(_sane_tick(packet.pts))
            dts.append(_sane_tick(packet.dts))
            duration.append(max(0, min(packet.duration or 0, _MAX_TICK)))
            found.append(-1 if packet.pos is None else packet.pos)
            position.append(slices.position(packet, payload))
            size.append(len(payload))
            traits.append(inspect(payload, key) if inspect else 0)
            flags.append(key | packet.is_discard << 1 | packet.is_corrupt << 2)
            has_side_data = any(True for _ in packet.iter_sidedata())  # cheaper than by name
            if has_side_data and packet.has_sidedata("encryption_info"):
                raise RefusedMediaError("the video is encrypted")
            if len(pts) > max_packets(total):
                raise RefusedMediaError("the index lists more packets than the file can hold")
            if has_side_data and len(pts) > 1 and packet.has_sidedata("new_extradata"):
                reconfigured = True
            if payload and shown < HEAD_PACKETS and len(head) < _MAX_HEAD_PACKETS:
                head.append(packet)
                shown += not packet.is_discard
            if on_progress and len(pts) % _PROGRESS_PACKETS == 0:
                on_progress(min(total, max(0, found[-1])), total)
    except MemoryError:
        raise  # it is about the machine, not the file
    except FFmpegError as failure:
        error = str(failure)
    bits = _int_array(flags)
    return PacketScan(
        pts=_int_array(pts),
        dts=_int_array(dts),
        duration=_int_array(duration),
        position=_int_array(position) if slices.holds else _int_array(found),
        size=_int_array(size),
        traits=settled_traits(traits),
        key=(bits & 1) != 0,
        discard=(bits & 2) != 0,
        corrupt=(bits & 4) != 0,
        inspected=inspect is not None,
        sliced=slices.holds,
        reconfigured=reconfigured,
        error=error,
        head=tuple(head),
    )


def _sane_tick(reported: int | None) -> int:
    """Return the timestamp, or `NO_TIMESTAMP` if it is missing or absurdly large."""
    return NO_TIMESTAMP if reported is None or abs(reported) > _MAX_TICK else reported


def _int_array(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)


_DELAYING_CODECS = frozenset({"mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders may delay a picture until the next reference picture."""
_KEY_START_CODECS = frozenset({"mpeg1video", "mpeg2video"})
"""Codecs whose decoders return nothing before the first key picture."""
_IMMEDIATE_CODECS = INTRA_CODECS | {"ffv1", "theora", "vp8", "vp9"}
_IMMEDIATE_CODECS |= {"flv1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"}
"""Codecs whose decoders return a picture for each packet at once."""
TIMESTAMP_ORDER_CODECS = INTRA_CODECS | {"h264", "hevc", "vp8", "vp9", "av1"}
"""Codecs whose display order follows timestamps, if these can be trusted."""


@dataclass(frozen=True)
class DecoderOutput:
    """The output of a decoder, one array element for each picture."""

    order: Ints  #: the packet of each frame, in output order
    fed: Ints  #: the packet fed just before; past the last packet: the decoder was drained


def predict_output(codec: str, scanned: PacketScan) -> list[DecoderOutput]:
    """Return the possible outputs of a decode of all packets. A trial decode must choose.

    Empty if the behaviour of the codec's decoder is unknown.
    """
    if codec in _DELAYING_CODECS:
        packets, is_reference = _shown_packets(codec, scanned)
        return [_predicted_output(scanned, packets, is_reference, held) for held in (True, False)]
    if codec in _IMMEDIATE_CODECS:
        packets = np.flatnonzero((scanned.size > 0) & (scanned.traits & PacketTrait.HIDDEN == 0))
        packets = packets[~scanned.discard[packets]]
        return [DecoderOutput(packets, packets)]
    return []


def _shown_packets(
    codec: str, scanned: PacketScan
) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return (packets that show a picture, mask of those that others refer to)."""
    traits = scanned.traits
    is_shown = (scanned.size > 0) & (traits & PacketTrait.HIDDEN == 0)
    starts = traits & PacketTrait.STARTS != 0
    key = np.maximum.accumulate(np.where(starts, np.arange(len(traits)), -1))
    first = int(np.argmax(starts)) if starts.any() else 0
    if codec in _KEY_START_CODECS:
        is_shown &= key >= 0
    # Leading pictures of the first key picture refer to a missing one.
    is_shown &= (traits & PacketTrait.LEADING == 0) | (key > first)
    packets = np.flatnonzero(is_shown)
    return packets, traits[packets] & (PacketTrait.UNREFERENCED | PacketTrait.UNPACKED) == 0


def _predicted_output(
    scanned: PacketScan,
    packets: Ints,
    is_reference: np.ndarray[tuple[int], np.dtype[np.bool_]],
    held: bool,
) -> DecoderOutput:
    fed = packets.copy()
    if held:
        references = packets[is_reference]
        fed[is_reference] = np.append(references[1:], len(scanned))[: len(references)]
    # A delayed picture comes out before the picture of the packet that pushes it out.
    ranks = np.lexsort((packets, fed))
    kept = ranks[~scanned.discard[packets[ranks]]]
    return DecoderOutput(packets[kept], fed[kept])
