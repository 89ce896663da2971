"""Decides whether a packet scan can be trusted without a full decode.

Checks known reasons for doubt, and decodes a few runs of packets as a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, DecoderOutput, PacketScan
from vfsd.codecs.pyav import decode
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag

MAX_CUT_PACKETS = 300
"""Most packets that an edit list may drop at the beginning."""
_DTS_CONTAINERS = ("asf", "mxf", "rm", "nut")
"""Containers that may store decoding times in place of display times."""
_FRAME_CONTAINERS = ("mp4", "mov", "matroska", "webm")
"""Containers whose packets always hold both fields of a picture."""


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
    if _has_odd_parameters(container, codec, stream.codec_context.extradata or b""):
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


def _has_odd_parameters(container: Container, codec: str, extradata: bytes) -> bool:
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
_ALIVE_PACKETS = 16
_MAX_RUN_PACKETS = 300
"""Longer runs are not decoded, except for the first one."""
_REPORTED_TRAITS = (PacketTrait.UNREFERENCED, PacketTrait.UNPACKED, PacketTrait.HIDDEN)

_FoundFrames = list[tuple[int, int, int]]
"""(packet of the picture, packet fed before it came out, fingerprint)"""


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
            if (packet.pts - start) % _ALIVE_PACKETS == 0:
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
