"""Picks the muxer for a container (`muxer_for`), and converts packets for it (`PacketFormat`).

Packets of H.264 and HEVC are rewritten between start codes and length prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vfsd.codecs.bitstreams import codec_config, nal
from vfsd.codecs.containers.fmp4 import Fmp4Muxer
from vfsd.codecs.containers.matroska import MatroskaMuxer
from vfsd.codecs.containers.segment_muxer import (
    AudioPackets,
    AudioTrack,
    Muxer,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
)
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo

_START_CODE = nal.START_CODE
_SHORT_START_CODE = 3  # the shortest
_MAX_SLICES = 600
"""Most NAL units of a packet with short start codes or lengths.

HEVC allows 600 slices per picture at its highest level (H.265 table A.8). H.264 has no general
limit, but encoders write at most one per row of macroblocks: 270 at 8K. Parameter sets and the
first unit have long start codes.
"""

NAL_CODECS = ("h264", "hevc")


@dataclass(frozen=True, slots=True)
class PacketFormat:
    """How packets are rewritten; `configuration` goes into the header of the container."""

    codec: str
    configuration: bytes
    stored: int  #: bytes of the stored length prefixes; 0: start codes
    wanted: int  #: bytes of the written length prefixes; 0: start codes
    repeated: bytes = b""  #: parameter sets before each key picture, with start codes

    def bound(self, sizes: Ints, keys: Ints) -> Ints:
        """Return upper bounds for the sizes of rewritten packets by their stored sizes.

        `keys` is 1 for key packets. The bounds are exact if `is_exact`.
        """
        added = (self.wanted or len(_START_CODE)) - (self.stored or _SHORT_START_CODE)
        grown = sizes.copy()
        if self.stored != self.wanted and added > 0:
            smallest = (self.stored or _SHORT_START_CODE) + 1
            grown += added * np.minimum(sizes // smallest, _MAX_SLICES)
        return grown + keys * len(self.repeated)

    @property
    def is_exact(self) -> bool:
        """Whether `bound` gives exact sizes."""
        return self.stored == self.wanted or (self.stored == 4 and self.wanted == 0)

    def convert(self, packet: bytes, is_key: bool) -> bytes:
        """Return `packet` in the form of the container. Raises `nal.BitstreamError`."""
        if self.stored != self.wanted:
            packet = _with_prefixes(packet, self.stored, self.wanted)
        return self._with_sets(packet) if is_key and self.repeated else packet

    def _with_sets(self, packet: bytes) -> bytes:
        """Insert parameter sets. An access unit delimiter must stay the first unit."""
        start, end = next(nal.nal_units(packet, 0))
        delimiter = 9 if self.codec == "h264" else 35
        if nal.unit_type(self.codec, packet[start:end]) != delimiter:
            return self.repeated + packet
        return packet[:end] + self.repeated + packet[end:]


def container_packet_format(media: MediaInfo, largest: int) -> PacketFormat | None:
    """Return the format for MP4 and Matroska; None if the stream lacks the needed parameter sets.

    `largest` is the size of the largest packet.
    """
    if media.codec not in NAL_CODECS:
        return PacketFormat(media.codec, media.extradata, 0, 0)
    prefix = nal.prefix_size(media.codec, media.extradata)
    if prefix:
        return PacketFormat(media.codec, media.extradata, prefix, prefix)
    # A prefix of two bytes is never longer than a start code, so no packet grows.
    wanted = 2 if largest < 1 << 16 else 4
    try:
        sets = nal.parameter_sets(media.codec, media.extradata)
        record = codec_config.avcc if media.codec == "h264" else codec_config.hvcc
        return PacketFormat(media.codec, record(sets, wanted), 0, wanted)
    except nal.BitstreamError:
        return None


def stream_packet_format(media: MediaInfo) -> PacketFormat | None:
    """Return the format for elementary streams; None if parameter sets are not available."""
    try:
        sets = nal.parameter_sets(media.codec, media.extradata)
    except nal.BitstreamError:
        return None
    prefix = nal.prefix_size(media.codec, media.extradata)
    if prefix and not sets:
        return None
    return PacketFormat(media.codec, b"", prefix, 0, with_start_codes(sets))


def encoder_packet_format(
    codec: str, sets: tuple[bytes, ...], *, stream: bool, bits: int = 8
) -> PacketFormat:
    """Return the format for packets of our encoders, with start codes and without parameter sets.

    `sets` come from `vfsd.codecs.encoding.encoder.parameter_sets`; `bits` is per sample.
    """
    if codec not in NAL_CODECS:
        return PacketFormat(codec, _configuration(codec, sets, bits), 0, 0)
    if stream:
        return PacketFormat(codec, b"", 0, 0, with_start_codes(sets))
    record = codec_config.avcc if codec == "h264" else codec_config.hvcc
    return PacketFormat(codec, record(sets, 4), 0, 4)


def _configuration(codec: str, sets: tuple[bytes, ...], bits: int) -> bytes:
    if codec == "av1":
        return codec_config.av1c(sets[0], is_deep=bits > 8)
    return b"".join(sets)


def with_start_codes(units: tuple[bytes, ...]) -> bytes:
    """Return the units, each with a start code."""
    return b"".join(_START_CODE + unit for unit in units)


def _with_prefixes(packet: bytes, stored: int, wanted: int) -> bytes:
    parts = []
    for start, end in nal.nal_units(packet, stored):
        parts.append((end - start).to_bytes(wanted, "big") if wanted else _START_CODE)
        parts.append(packet[start:end])
    return b"".join(parts)


class ElementaryMuxer:
    """Elementary streams of H.264 and HEVC (Annex B): packets in sequence, without timestamps."""

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        return b""

    def index_size(self, segments: int) -> int:
        return 0

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        return np.zeros(len(starts), np.int64)

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        return np.zeros(len(cuts), np.int64)

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        return b"".join(payloads)  # zeros may follow a NAL unit as padding

    def trimmed(self, segment: bytes) -> bytes:
        return segment


def muxer_for(container: str, track: VideoTrack, sound: AudioTrack | None = None) -> Muxer:
    """Return the muxer for "mp4", "matroska", or an elementary stream (any other name)."""
    if container == "mp4":
        return Fmp4Muxer(track, sound)
    if container == "matroska":
        return MatroskaMuxer(track, sound)
    return ElementaryMuxer()
