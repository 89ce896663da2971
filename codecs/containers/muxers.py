"""Muxes packets: `muxer_for` picks the muxer, `PacketFormat` converts packets for it.

`Fmp4Muxer` writes fragmented MP4 (ISO/IEC 14496-12).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.matroska import MatroskaMuxer
from vfsd.codecs.containers.tracks import (
    AudioPackets,
    AudioTrack,
    Muxer,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
    audio_trak,
    make_box,
    make_full_box,
    media_box,
    overhead,
    scaled_ticks,
    side_data_boxes,
)
from vfsd.codecs.frames.color import ColorCodes
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, MediaInfo
from vfsd.errors import UsageError

_START_CODE = nal.START_CODE
_SHORT_START_CODE = 3  # the shortest
# Most NAL units of a packet with short start codes or lengths. HEVC allows 600 slices per picture
# at its highest level (H.265 table A.8). H.264 has no general limit, but encoders write at most
# one per row of macroblocks: 270 at 8K. Parameter sets and the first unit have long start codes.
_MAX_SLICES = 600

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
        record = nal.avcc if media.codec == "h264" else nal.hvcc
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
    record = nal.avcc if codec == "h264" else nal.hvcc
    return PacketFormat(codec, record(sets, 4), 0, 4)


def _configuration(codec: str, sets: tuple[bytes, ...], bits: int) -> bytes:
    if codec == "av1":
        return nal.av1c(sets[0], is_deep=bits > 8)
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


_ENTRIES = {
    "h264": (b"avc1", b"avcC"),
    "hevc": (b"hvc1", b"hvcC"),
    "av1": (b"av01", b"av1C"),
    "vp9": (b"vp09", b"vpcC"),
    "mpeg4": (b"mp4v", b"esds"),
    "mjpeg": (b"mp4v", b"esds"),
    "ffv1": (b"FFV1", b"glbl"),  # FFmpeg's mapping; there is no standard
}
MP4_CODECS = frozenset(_ENTRIES)

# Sample flags (ISO/IEC 14496-12, 8.8.3.1).
_KEY_SAMPLE = 0x0200_0000  # sample_depends_on = 2
_OTHER_SAMPLE = 0x0101_0000  # sample_depends_on = 1, sample_is_non_sync_sample
_SAMPLE = np.dtype([("duration", ">u4"), ("size", ">u4"), ("flags", ">u4"), ("shift", ">i4")])
# Bytes of a segment's boxes: moof 8, mfhd 16, traf 8, tfhd 16, tfdt 20, trun 20, mdat 8.
_FIXED_BYTES = 96
# Offsets of fields in a segment: mfhd follows the head of moof, and tfdt those of traf and tfhd.
_ORDINAL_AT = 8 + 12
_FIRST_TRAF = 8 + 16
_TIME_IN_TRAF = 8 + 16 + 12
_AUDIO_SAMPLE = np.dtype([("duration", ">u4"), ("size", ">u4")])
# Additional bytes of a segment with audio: traf 8, tfhd 16, tfdt 20, trun 20.
_AUDIO_BYTES = 64
# Durations of samples and segments have 32 bits, and some players treat the top bit as a sign.
_MAX_TICKS = 1 << 31
_DEFAULT_TIMESCALE = 90_000
# Coarser timescales than a millisecond are refused.
_MIN_TIMESCALE = 1000

_MATRICES = {
    0: (1, 0, 0, 1),
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
}


class Fmp4Muxer:
    """Fragmented MP4 with one video track and an optional audio track; implements `Muxer`."""

    def __init__(self, track: VideoTrack, sound: AudioTrack | None = None) -> None:
        """Raises `UsageError` if a sample would last too long."""
        self._track = track
        self._sound = sound
        self._timescale = _timescale(track)
        self._factor = track.time_base * self._timescale

    @property
    def timescale(self) -> int:
        """Ticks per second in the file."""
        return self._timescale

    def moved(self, segment: bytes, ordinal: int, ticks: int, samples: int) -> bytes:
        """Return a result of `segment` as segment `ordinal` of a file in which it comes later.

        Pictures are moved by `ticks` of the track, and sound by `samples`.
        """
        data = bytearray(segment)
        struct.pack_into(">I", data, _ORDINAL_AT, ordinal + 1)
        _add(data, _FIRST_TRAF + _TIME_IN_TRAF, self._one(ticks))
        second = _FIRST_TRAF + int.from_bytes(data[_FIRST_TRAF : _FIRST_TRAF + 4], "big")
        if second < int.from_bytes(data[:4], "big"):
            _add(data, second + _TIME_IN_TRAF, samples)
        return bytes(data)

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        brands = b"iso6" + struct.pack(">I", 0x200) + b"iso6iso5iso2mp41"
        head = make_box(b"ftyp", brands) + self._movie(spare)
        return head + (b"" if index is None else self._sidx(index))

    def index_size(self, segments: int) -> int:
        return 40 + 12 * segments

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        counts = np.diff(np.append(starts, len(shown)))
        return _FIXED_BYTES + _SAMPLE.itemsize * counts

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        counts = np.diff(np.append(cuts, len(times)))
        sizes: Ints = np.where(counts, _AUDIO_BYTES + _AUDIO_SAMPLE.itemsize * counts, 0)
        return sizes

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        decoded = self._scaled(np.append(times.decoded, times.end))
        samples = np.empty(len(times), _SAMPLE)
        samples["duration"] = np.diff(decoded)
        samples["size"] = [len(payload) for payload in payloads]
        samples["flags"] = np.where(times.keys, _KEY_SAMPLE, _OTHER_SAMPLE)
        samples["shift"] = self._scaled(times.shown + self._track.reorder) - decoded[:-1]
        before = overhead(self, times)
        sounds: Sequence[bytes] = ()
        second = b""
        if sound is not None and sound.payloads:
            sounds = sound.payloads
            before += _AUDIO_BYTES + _AUDIO_SAMPLE.itemsize * len(sounds)
            second = _audio_traf(sound, before + sum(map(len, payloads)))
        moof = make_box(
            b"moof",
            make_full_box(b"mfhd", 0, 0, struct.pack(">I", ordinal + 1)),
            make_box(
                b"traf",
                make_full_box(b"tfhd", 0, 0x020000, struct.pack(">I", 1)),  # offsets from the moof
                make_full_box(b"tfdt", 1, 0, struct.pack(">Q", int(decoded[0]))),
                make_full_box(
                    b"trun",
                    1,
                    0x000F01,  # the offset of the data; all four fields of each sample
                    struct.pack(">Ii", len(times), before) + samples.tobytes(),
                ),
            ),
            second,
        )
        # Padding goes into the mdat box: FFmpeg's seeking fails if other boxes stand between
        # segments.
        mdat = struct.pack(">I4s", size - len(moof), b"mdat")
        return b"".join((moof, mdat, *payloads, *sounds))

    def trimmed(self, segment: bytes) -> bytes:
        head = int.from_bytes(segment[:4], "big")
        size = struct.pack(">I", len(segment) - head)
        return segment[:head] + size + segment[head + 4 :]

    def _scaled(self, ticks: Ints) -> Ints:
        factor = self._factor
        if factor.denominator == 1:
            return ticks * factor.numerator
        return scaled_ticks(ticks, factor)

    def _one(self, tick: int) -> int:
        return round(tick * self._factor)

    def _movie(self, spare: int) -> bytes:
        track = self._track
        end = self._one(track.duration)
        a, b, c, d = _MATRICES[track.rotation]
        if track.mirrored:
            a, b = -a, -b
        # The translation moves the rotated picture to non-negative coordinates.
        width, height = track.shown_width, track.shown_height
        x = width * (a < 0) + height * (c < 0)
        y = width * (b < 0) + height * (d < 0)
        a, b, c, d, x, y = (value << 16 for value in (a, b, c, d, x, y))
        matrix = struct.pack(">9i", a, b, 0, c, d, 0, x, y, 1 << 30)
        unity = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
        shown_width = round(width * (track.sample_aspect_ratio or 1))
        movie_header = struct.pack(">4I", 0, 0, self._timescale, 0)
        movie_header += struct.pack(">IHH8x", 1 << 16, 1 << 8, 0) + unity + bytes(24)
        track_header = struct.pack(">5I8x4H", 0, 0, 1, 0, 0, 0, 0, 0, 0) + matrix
        track_header += struct.pack(">II", shown_width << 16 & 0xFFFFFFFF, height << 16)
        return make_box(
            b"moov",
            make_full_box(b"mvhd", 0, 0, movie_header + struct.pack(">I", 3 if self._sound else 2)),
            make_box(
                b"trak",
                make_full_box(b"tkhd", 0, 3, track_header),
                self._edits(),
                self._media(),
            ),
            audio_trak(self._sound) if self._sound else b"",
            make_box(
                b"mvex",
                make_full_box(b"mehd", 1, 0, struct.pack(">Q", end)),
                make_full_box(b"trex", 0, 0, struct.pack(">5I", 1, 1, 0, 0, 0)),
                make_full_box(b"trex", 0, 0, struct.pack(">5I", 2, 1, 0, 0, _KEY_SAMPLE))
                if self._sound
                else b"",
            ),
            make_box(b"free", bytes(spare - 8)) if spare else b"",
        )

    def _edits(self) -> bytes:
        """Return an edit list that starts display at the first picture, after the reorder delay."""
        if not self._track.reorder:
            return b""
        edit = struct.pack(">QqHH", 0, self._one(self._track.reorder), 1, 0)
        return make_box(b"edts", make_full_box(b"elst", 1, 0, struct.pack(">I", 1) + edit))

    def _media(self) -> bytes:
        return media_box(
            self._timescale,
            b"vide",
            b"video",
            make_full_box(b"vmhd", 0, 1, bytes(8)),
            self._entry(),
        )

    def _entry(self) -> bytes:
        track = self._track
        kind, record = _ENTRIES[track.codec]
        if track.sets_in_stream:
            kind = b"hev1"
        contents = track.configuration
        if track.codec == "vp9":
            contents = nal.vpcc(track.pixel_format) or b""
        elif track.codec == "mpeg4":
            contents = nal.esds(track.configuration, nal.MPEG4_OBJECT)
        elif track.codec == "mjpeg":
            contents = nal.esds(b"", nal.JPEG_OBJECT)
        ratio = track.sample_aspect_ratio
        if ratio is None and track.crop != NO_CROP_MARGINS:
            ratio = Fraction(1)  # otherwise FFmpeg uses the cropped size of the tkhd box
        aspect = b""
        if ratio is not None:  # also for square pixels: the stream may signal another ratio
            aspect = make_box(b"pasp", struct.pack(">II", ratio.numerator, ratio.denominator))
        aperture = b"" if track.crop == NO_CROP_MARGINS else _clean_aperture(track)
        colors = b"" if track.colors is None else _colr_box(track.colors)
        fields = struct.pack(
            ">6xH16xHHIIIH32xHh",
            1,  # data_reference_index: this file
            track.width,
            track.height,
            72 << 16,  # horizresolution (the value of the template)
            72 << 16,
            0,
            1,  # frame_count
            24,  # depth
            -1,
        )
        codec_box = make_box(record, contents) if contents or track.codec != "ffv1" else b""
        return make_box(
            kind, fields, codec_box, aperture, aspect, colors, side_data_boxes(track.marks)
        )

    def _sidx(self, index: SegmentIndex) -> bytes:
        starts = self._scaled(np.append(index.starts, index.end))
        entries = np.empty((len(index.sizes), 3), ">u4")
        entries[:, 0] = index.sizes
        entries[:, 1] = np.diff(starts)
        # starts_with_SAP and SAP_type 1 (8.16.3).
        entries[:, 2] = np.where(index.starts_with_key, 0x9000_0000, 0)
        fields = struct.pack(">IIQQHH", 1, self._timescale, int(starts[0]), 0, 0, len(index.sizes))
        return make_full_box(b"sidx", 1, 0, fields + entries.tobytes())


def _add(data: bytearray, at: int, amount: int) -> None:
    """Add to a number of 64 bits."""
    (before,) = struct.unpack_from(">Q", data, at)
    struct.pack_into(">Q", data, at, before + amount)


def _clean_aperture(track: VideoTrack) -> bytes:
    """Return a clap box: the displayed size, and the offset of its center."""
    left, top, right, bottom = track.crop
    size = struct.pack(">4I", track.shown_width, 1, track.shown_height, 1)
    return make_box(b"clap", size, struct.pack(">iIiI", left - right, 2, top - bottom, 2))


def _colr_box(colors: ColorCodes) -> bytes:
    is_full = bool(colors.is_full_range) << 7
    codes = struct.pack(">HHHB", colors.primaries, colors.transfer, colors.matrix, is_full)
    return make_box(b"colr", b"nclx", codes)


def _timescale(track: VideoTrack) -> int:
    """Return ticks per second such that every duration fits in 31 bits.

    Raises `UsageError` if that would be too coarse.
    """
    base = track.time_base
    if base.denominator < _MAX_TICKS and track.longest * base.numerator < _MAX_TICKS:
        return base.denominator  # times are exact
    seconds = track.longest * base
    # Minus two, since both ends of a duration are rounded.
    fitting = int((_MAX_TICKS - 2) / seconds)
    if fitting < _MIN_TIMESCALE:
        raise UsageError(
            f"the view has a gap of {float(seconds):.0f} s: mp4 allows at most "
            f"{_MAX_TICKS // _MIN_TIMESCALE} s",
            hint="use mkv, which has no such limit, or time ranges without the gap",
        )
    return min(_DEFAULT_TIMESCALE, fitting)


def _audio_traf(sound: AudioPackets, before: int) -> bytes:
    """Return the audio traf box; `before` is the offset of its first packet in the moof box."""
    samples = np.empty(len(sound.starts), _AUDIO_SAMPLE)
    samples["duration"] = np.diff(np.append(sound.starts, sound.end))
    samples["size"] = [len(payload) for payload in sound.payloads]
    return make_box(
        b"traf",
        make_full_box(b"tfhd", 0, 0x020000, struct.pack(">I", 2)),
        make_full_box(b"tfdt", 1, 0, struct.pack(">Q", int(sound.starts[0]))),
        make_full_box(
            b"trun",
            1,
            0x000301,  # the offset of the data; duration and size of each sample
            struct.pack(">Ii", len(samples), before) + samples.tobytes(),
        ),
    )
