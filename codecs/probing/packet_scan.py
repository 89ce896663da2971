"""One demuxer pass over the video packets of a file, and whether its result can be trusted.

`TrialDecode` decodes short runs of packets instead of the whole file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Container as Collected
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS, final_traits, inspector
from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import Container, max_packets
from vfsd.codecs.decoding.demuxer import demux_packets
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

ScanProgress = Callable[[int, int], None]

NO_TIMESTAMP = -(1 << 63)
"""Marks a timestamp that the container does not provide."""

HEAD_PACKETS = 12
_MAX_HEAD_PACKETS = 320

_MAX_TICK = 1 << 56
_PAYLOAD_SEARCH = 64
# Most bytes before the first packet of a laced Matroska block (up to 256 frames).
_LACE_SEARCH = 8 << 10
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
        data = self._source.read_at(found, len(payload) + _PAYLOAD_SEARCH)
        if data.startswith(payload, self._offset):
            return found + self._offset
        offset = data.find(payload)
        if offset < 0:
            data = self._source.read_at(found, len(payload) + _LACE_SEARCH)
            offset = data.find(payload)
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
        traits=final_traits(traits),
        key=(bits & 1) != 0,
        discard=(bits & 2) != 0,
        corrupt=(bits & 4) != 0,
        inspected=inspect is not None,
        sliced=slices.holds,
        reconfigured=reconfigured,
        error=error,
        head=tuple(head),
    )


def _sane_tick(tick: int | None) -> int:
    """Return the timestamp, or `NO_TIMESTAMP` if it is missing or absurdly large."""
    return NO_TIMESTAMP if tick is None or abs(tick) > _MAX_TICK else tick


def _int_array(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64).copy() if values else np.empty(0, np.int64)


# Codecs whose decoders may delay a picture until the next reference picture.
_DELAYING_CODECS = frozenset({"mpeg1video", "mpeg2video", "mpeg4"})
# Codecs whose decoders return nothing before the first key picture.
_KEY_START_CODECS = frozenset({"mpeg1video", "mpeg2video"})
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
        return [
            _predicted_output(scanned, packets, is_reference, delays) for delays in (True, False)
        ]
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
    delays: bool,
) -> DecoderOutput:
    fed = packets.copy()
    if delays:
        references = packets[is_reference]
        fed[is_reference] = np.append(references[1:], len(scanned))[: len(references)]
    # A delayed picture comes out before the picture of the packet that pushes it out.
    ranks = np.lexsort((packets, fed))
    kept = ranks[~scanned.discard[packets[ranks]]]
    return DecoderOutput(packets[kept], fed[kept])


MAX_CUT_PACKETS = 300
"""Most packets that an edit list may drop at the beginning."""
# Containers that may store decoding times in place of display times.
_DTS_CONTAINERS = ("asf", "mxf", "rm", "nut")
# Containers whose packets always hold both fields of a picture.
_FRAME_CONTAINERS = ("mp4", "mov", "matroska", "webm")


def packet_scan_problem(stream: VideoStream, scanned: PacketScan) -> str:
    """Return why these packets give no frame table; empty if they do."""
    codec = stream.codec_context.codec.canonical_name
    traits = scanned.traits
    if not scanned.inspected:
        return f"packets of {codec} are not parsed"
    if scanned.error or scanned.corrupt.any():
        return "the container is damaged"
    if (traits[scanned.size > 0] & PacketTrait.DAMAGED != 0).any():
        return "a packet is damaged"
    if scanned.discard.any() and not _is_single_cut(scanned):
        return "an edit list with more than one cut"
    if scanned.reconfigured or (traits & PacketTrait.FOREIGN != 0).any():
        return "the codec configuration changes within the stream"
    if (traits & PacketTrait.ODD != 0).any():
        return "key pictures that may not be exact"
    return ""


def timestamp_order_problem(container: Container, stream: VideoStream, scanned: PacketScan) -> str:
    """Return why display order does not follow the timestamps; empty if it does.

    The packets must have passed `packet_scan_problem`.
    """
    codec = stream.codec_context.codec.canonical_name
    if not scanned.size.all():
        return "a packet is damaged"
    if not scanned.traits[0] & PacketTrait.STARTS:
        return "the stream does not start with a key picture"
    if (scanned.pts == NO_TIMESTAMP).any():
        return "some pictures have no timestamp"
    if not container.timed and not (codec in INTRA_CODECS and (np.diff(scanned.pts) > 0).all()):
        return f"{container.name} files have no display times"
    is_reordered = stream.codec_context.reorder_depth > 0
    if container.name in _DTS_CONTAINERS and is_reordered and (scanned.pts == scanned.dts).all():
        return "timestamps may be decoding times"
    if _has_unusual_parameters(container, codec, stream.codec_context.extradata or b""):
        return "fields or hidden pictures may have packets of their own"
    if not _keys_separate_frames(scanned):
        return "timestamps contradict the key pictures"
    return ""


def _is_single_cut(scanned: PacketScan) -> bool:
    """Return whether an edit list drops pictures without repeating or reordering any.

    The part cut off at the beginning must be short enough for a trial decode.
    """
    kept = np.flatnonzero(~scanned.discard)
    return bool(
        len(kept)
        and kept[0] <= MAX_CUT_PACKETS
        and len(np.unique(scanned.position)) == len(scanned)
        and (scanned.dts != NO_TIMESTAMP).all()
        and (np.diff(scanned.dts) > 0).all()
    )


def _has_unusual_parameters(container: Container, codec: str, extradata: bytes) -> bool:
    try:
        for unit in nal.parameter_sets(codec, extradata) if codec in ("h264", "hevc") else ():
            kind = nal.unit_type(codec, unit)
            if codec == "hevc" and kind == nal.HEVC_PPS and nal.hevc_pps_hides_pictures(unit):
                return True
            if codec == "h264" and kind == nal.H264_SPS and container.name not in _FRAME_CONTAINERS:
                return nal.parse_h264_sps(unit).has_fields
    except nal.BitstreamError:
        return True
    return False


def _keys_separate_frames(scanned: PacketScan) -> bool:
    """Return whether timestamps are unique and cross key pictures only as their kind allows."""
    is_shown = (scanned.traits & PacketTrait.HIDDEN == 0) & ~scanned.discard
    pts, traits = scanned.pts[is_shown], scanned.traits[is_shown]
    if len(np.unique(pts)) < len(pts):
        return False
    keys = np.flatnonzero(traits & PacketTrait.STARTS)
    before = np.maximum.accumulate(pts)
    after = np.minimum.accumulate(pts[::-1])[::-1]
    resets = keys[traits[keys] & PacketTrait.RESETS != 0]
    return bool(
        (before[keys] == pts[keys]).all()
        and (after[resets] == pts[resets]).all()
        and (after[keys[1:]] > pts[keys[:-1]]).all()
    )


_RUN_PACKETS = 12
_TRIAL_PROGRESS_PACKETS = 16
# Longer runs are not decoded, except for the first one.
_MAX_RUN_PACKETS = 300
_REPORTED_TRAITS = (PacketTrait.UNREFERENCED, PacketTrait.UNPACKED, PacketTrait.HIDDEN)

# (packet of the picture, packet fed before it came out, fingerprint).
_FoundFrames = list[tuple[int, int, int]]


class TrialDecode:
    """Decodes a few runs of packets, and compares them with the predicted output."""

    def __init__(
        self,
        reader: PacketReader,
        columns: PacketColumns,
        scanned: PacketScan,
        output: DecoderOutput,
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

    def matches(self, first_fingerprints: Sequence[int]) -> bool:
        """Return whether each run gives the predicted pictures at the predicted times.

        The first pictures of the file must also have the fingerprints `first_fingerprints`.
        """
        end = min(int(self._output.order[0]) + _RUN_PACKETS, self._packets)
        first = self._decoded(0, end)
        if not self._is_as_predicted(0, end, first):
            return False
        prints = [crc for packet, _, crc in first if not self._hidden[packet]]
        if prints[: len(first_fingerprints)] != list(first_fingerprints)[: len(prints)]:
            return False
        runs = sorted(set(self._runs()))
        if not all(self._is_as_predicted(*run, self._decoded(*run)) for run in runs):
            return False
        return self._second_key_matches()

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield (key packet, end) of the runs to decode."""
        for trait in _REPORTED_TRAITS:
            places = np.flatnonzero(self._scanned.traits & trait)
            if len(places):
                yield from self._around(int(places[0]))
        empty = np.flatnonzero(self._scanned.size == 0)
        if len(empty):
            yield from self._around(int(empty[0]))
        if len(self._keys):
            yield from self._around(int(self._keys[len(self._keys) // 2]))
            last = int(self._keys[-1])
            if self._packets - last <= _MAX_RUN_PACKETS:
                yield last, self._packets

    def _around(self, packet: int) -> Iterator[tuple[int, int]]:
        keys = self._keys[self._keys <= packet]
        start = int(keys[-1]) if len(keys) else 0
        if packet - start <= _MAX_RUN_PACKETS:
            yield start, min(packet + _RUN_PACKETS, self._packets)

    def _second_key_matches(self) -> bool:
        """Return whether pictures after the second key packet are the same when decoding starts
        there.
        """
        keys = self._keys[self._keys > 0]
        if not len(keys) or keys[0] > _MAX_RUN_PACKETS:
            return True
        key = int(keys[0])
        end = min(key + _RUN_PACKETS, self._packets)
        through = {packet: crc for packet, _, crc in self._decoded(0, end)}
        alone = {packet: crc for packet, _, crc in self._decoded(key, end)}
        wanted = [p for p in range(key, end) if not self._hidden[p] and not self._leading[p]]
        return all(through.get(p) == alone.get(p) for p in wanted)

    def _is_as_predicted(self, start: int, end: int, found: _FoundFrames) -> bool:
        order, fed = self._output.order, self._output.fed
        inside = (order >= start) & (order < end) & ((fed < end) | (end == self._packets))
        predicted = list(zip(order[inside].tolist(), fed[inside].tolist(), strict=True))
        got = [(packet, at) for packet, at, _ in found if not self._hidden[packet]]
        if start:
            following = self._keys[self._keys > start][:1].tolist() or [self._packets]
            led = set((np.flatnonzero(self._leading[start : following[0]]) + start).tolist())
            predicted = [one for one in predicted if one[0] not in led]
            got = [one for one in got if one[0] not in led]
        return got == predicted

    def _decoded(self, start: int, end: int) -> _FoundFrames:
        """Decode a half-open run of packets; the decoder is drained at the end of the file."""
        if self._context is None:
            self._context = self._reader.context()
        else:
            self._context.flush_buffers()
        found: _FoundFrames = []
        for packet in self._reader.packets(start, end):
            assert packet.pts is not None
            if (packet.pts - start) % _TRIAL_PROGRESS_PACKETS == 0:
                self._alive()
            found += _decoded_frames(self._context, packet, packet.pts)
        if end == self._packets:
            found += _decoded_frames(self._context, None, end)
        return found


def _decoded_frames(
    context: VideoCodecContext, packet: Packet[VideoStream] | None, at: int
) -> _FoundFrames:
    try:
        frames = decode(context, packet)
    except MemoryError:
        raise
    except FFmpegError:
        return []
    return [(frame.pts, at, fingerprint(frame)) for frame in frames if frame.pts is not None]
