"""Tracks in the headers of MP4 and Matroska: boxes, side data and audio entries.

`Muxer` is the interface of the muxers: a header, then segments that do not depend on each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.frames.color import ColorCodes
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, CropMargins

MIN_PADDING = 2
"""Least bytes of padding of a segment, if there are any."""

# The largest signed 64-bit number.
_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class VideoTrack:
    """The video track as the header describes it. Times are ticks of `time_base`."""

    codec: str  #: FFmpeg's name
    width: int  #: coded width
    height: int
    configuration: bytes  #: see `vfsd.codecs.containers.muxers`
    time_base: Fraction
    duration: int  #: of the whole track
    longest: int  #: longest segment, or longest time from decoding to display of a picture
    pixel_format: str = "yuv420p"
    reorder: int = 0  #: display delay in ticks, so that each picture is decoded in time
    rate: Fraction | None = None  #: frames per second if constant
    rotation: int = 0  #: clockwise degrees that turn a picture upright
    mirrored: bool = False  #: mirrored left to right before the rotation
    sample_aspect_ratio: Fraction | None = None
    sets_in_stream: bool = False  #: packets contain parameter sets, which change; HEVC only
    crop: CropMargins = NO_CROP_MARGINS  #: pixels that players crop
    colors: ColorCodes | None = None  #: for packets that may not signal colors
    #: Result of `vfsd.codecs.containers.tracks.container_side_data`.
    marks: StreamSideData | None = None

    @property
    def shown_width(self) -> int:
        """Width after the crop in pixels."""
        return self.width - self.crop[0] - self.crop[2]

    @property
    def shown_height(self) -> int:
        return self.height - self.crop[1] - self.crop[3]


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """The audio track as the header describes it."""

    codec: str  #: FFmpeg's name
    configuration: bytes  #: FFmpeg's extradata; for AC-3 the first bytes of a packet
    sample_rate: int  #: Hz; a tick is one sample
    channels: int
    bit_depth: int = 0  #: bits per PCM sample
    language: str | None = None  #: three letters
    matroska_codec: str = ""  #: see `vfsd.core.model.Sound`
    matroska_private: bytes = b""
    mp4_entry: bytes = b""


@dataclass(frozen=True, slots=True)
class AudioPackets:
    """The audio of one segment, one array element per packet; ticks of one sample from 0."""

    starts: Ints  #: ascending
    end: int  #: start of the packet after the last one
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """The packets of one segment in decode order, one array element each; ticks from 0."""

    shown: Ints  #: display times
    lasting: Ints  #: display durations
    decoded: Ints  #: ascending; ``shown + reorder >= decoded``
    end: int  #: decoding time of the packet after the last one
    keys: Ints  #: 1 for key packets, else 0

    def __len__(self) -> int:
        return len(self.shown)


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The segments of a whole file, one array element each."""

    sizes: Ints  #: bytes, padding included
    starts: Ints  #: ticks at which the first picture of each is shown
    starts_with_key: Ints  #: 1 or 0
    end: int  #: ticks


class Muxer(Protocol):
    """Writes one kind of container."""

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        """Return the bytes before the segments; with `index`, players can seek without reading.

        `spare` is 0 or at least 9: bytes of padding in the header.
        """

    def index_size(self, segments: int) -> int:
        """Return the bytes that an index adds to the header."""

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        """Return the bytes that each segment adds to its payloads.

        `shown` and `keys` cover all packets; `starts` has the first packet of each segment.
        """

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        """Return the bytes that audio adds to each segment, besides its payloads.

        `times` covers all audio packets; `cuts` has the first audio packet of each segment, which
        may be empty. `shown` and `starts` are as in `overheads`.
        """

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        """Return segment `ordinal` (from 0), without the zeros that pad it to `size`."""

    def trimmed(self, segment: bytes) -> bytes:
        """Return the result of `segment` without its padding."""


def overhead(muxer: Muxer, times: PacketTimes) -> int:
    """Return the bytes that a segment adds to its payloads."""
    return int(muxer.overheads(times.shown, times.keys, np.zeros(1, np.int64))[0])


def scaled_ticks(ticks: Ints, factor: Fraction) -> Ints:
    """Return `ticks` times `factor`, rounded to the nearest whole number; exact for all 64-bit
    values.
    """
    over, under = factor.numerator, factor.denominator
    highest = int(np.abs(ticks).max(initial=0))
    if max((2 * over + 1) * under, (highest // under + 2) * over) > _MAX_INT64:
        # Slow, but numpy would overflow silently for rates with so many digits.
        numbers = ((2 * tick * over + under) // (2 * under) for tick in ticks.tolist())
        return np.fromiter(numbers, np.int64, len(ticks))
    whole, part = np.divmod(ticks, under)
    nearest: Ints = whole * over + (2 * part * over + under) // (2 * under)
    return nearest


MASTERING_DISPLAY = "mastering display"
"""The content of an mdcv box: 24 bytes in hexadecimal digits.

Chromaticities of green, blue, red and white in 1/50000, then most and least cd/m² in 1/10000.
"""
CONTENT_LIGHT = "content light level"
"""The content of a clli box, MaxCLL and MaxFALL: 4 bytes in hexadecimal digits."""
STEREO = "stereo 3D mode"
"""``mono``, ``side by side`` or ``top and bottom``; also the last two with ``, right eye
first``.
"""
SPHERICAL = "spherical projection"
"""``equirectangular``, then yaw, pitch, roll in 1/65536 degrees, and four bounds (top, bottom,
left, right) in 1/2**32."""
DOVI = "Dolby Vision configuration"
"""The record of 24 bytes in hexadecimal digits."""
FIELD_ORDER = "field order"
"""``top field first`` or ``bottom field first``, for interlaced pictures."""
IN_PACKETS = "in packets"
"""Key of a comma-separated list: names of the side data that packets contain."""

OTHER = "-"
"""The value of side data that is present but cannot be written."""

_STEREO_BOX = {"mono": 0, "top and bottom": 1, "side by side": 2}
_STEREO_MODE = {
    "mono": 0,
    "side by side": 1,
    "top and bottom": 3,
    "side by side, right eye first": 11,
    "top and bottom, right eye first": 2,
}
_FIELD_BOX = {"top field first": b"\2\1", "bottom field first": b"\2\6"}
_FIELD_ORDER = {"top field first": 1, "bottom field first": 6}
_INTERLACED = 1
_DOVI_BYTES = 24

StreamSideData = Mapping[str, str]


def side_data_names(side_data: StreamSideData | None) -> list[str]:
    """Return the names of all side data, in alphabetical order."""
    return sorted(set(side_data or {}) - {IN_PACKETS})


def packet_side_data(side_data: StreamSideData | None) -> frozenset[str]:
    """Return the names of side data that packets contain, and so do copies of packets."""
    names = (side_data or {}).get(IN_PACKETS, "")
    return frozenset(name for name in names.split(",") if name)


def container_side_data(container: str, side_data: StreamSideData | None) -> dict[str, str]:
    """Return the side data that a header of `container` (mp4, matroska or another) can hold."""
    if container == "mp4":
        return {name: value for name, value in (side_data or {}).items() if _boxes(name, value)}
    if container == "matroska":
        return {
            name: value for name, value in (side_data or {}).items() if _is_element(name, value)
        }
    return {}


def side_data_boxes(side_data: StreamSideData | None) -> bytes:
    """Return the side data boxes of a visual sample entry."""
    return b"".join(_boxes(name, value) for name, value in (side_data or {}).items())


def _boxes(name: str, value: str) -> bytes:
    if value == OTHER:
        return b""
    if name == MASTERING_DISPLAY:
        return make_box(b"mdcv", bytes.fromhex(value))
    if name == CONTENT_LIGHT:
        return make_box(b"clli", bytes.fromhex(value))
    if name == STEREO and value in _STEREO_BOX:
        return make_full_box(b"st3d", 0, 0, bytes((_STEREO_BOX[value],)))
    if name == SPHERICAL:
        pose, bounds = _projection(value)
        projection = make_full_box(b"equi", 0, 0, struct.pack(">4I", *bounds))
        header = make_full_box(b"prhd", 0, 0, struct.pack(">3i", *pose))
        maker = make_full_box(b"svhd", 0, 0, b"vfsd\0")
        return make_box(b"sv3d", maker, make_box(b"proj", header, projection))
    if name == DOVI:
        record = bytes.fromhex(value)
        return make_box(_dovi_kind(record), record)
    if name == FIELD_ORDER and value in _FIELD_BOX:
        return make_box(b"fiel", _FIELD_BOX[value])
    return b""


def _projection(value: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    numbers = tuple(map(int, value.split()[1:]))
    return numbers[:3], numbers[3:7]


def _dovi_kind(record: bytes) -> bytes:
    """Return the box kind for a record by its profile (Dolby Vision Streams in ISOBMFF, 3.2).

    Raises `ValueError` for bytes that are not a record.
    """
    if not is_dovi_record(record):
        raise ValueError(f"a Dolby Vision record must have {_DOVI_BYTES} bytes, got {len(record)}")
    profile = record[2] >> 1
    return b"dvcC" if profile <= 7 else b"dvvC" if profile <= 10 else b"dvwC"


def _is_element(name: str, value: str) -> bool:
    if value == OTHER:
        return False
    is_valid = {STEREO: value in _STEREO_MODE, FIELD_ORDER: value in _FIELD_ORDER}
    return is_valid.get(name, name in (MASTERING_DISPLAY, CONTENT_LIGHT, SPHERICAL, DOVI))


def side_data_track_elements(side_data: StreamSideData | None) -> list[tuple[str, bytes]]:
    """Return (identifier, content) of elements for a TrackEntry."""
    if DOVI not in (side_data or {}):
        return []
    record = bytes.fromhex((side_data or {})[DOVI])
    kind, extra = _element("41e7", _dovi_kind(record)), _element("41ed", record)
    return [("41e4", kind + extra)]


def side_data_video_elements(side_data: StreamSideData | None) -> list[tuple[str, bytes]]:
    """Return (identifier, content) of elements for the Video element of a track."""
    entries = side_data or {}
    found: list[tuple[str, bytes]] = []
    if entries.get(FIELD_ORDER) in _FIELD_ORDER:
        found += [
            ("9a", bytes((_INTERLACED,))),
            ("9d", bytes((_FIELD_ORDER[entries[FIELD_ORDER]],))),
        ]
    if entries.get(STEREO) in _STEREO_MODE:
        found.append(("53b8", bytes((_STEREO_MODE[entries[STEREO]],))))
    if SPHERICAL in entries:
        pose, bounds = _projection(entries[SPHERICAL])
        private = struct.pack(">I4I", 0, *bounds)
        angles = zip(("7673", "7674", "7675"), pose, strict=True)
        parts = [_element(name, struct.pack(">d", angle / 65536)) for name, angle in angles]
        content = _element("7671", b"\1") + _element("7672", private) + b"".join(parts)
        found.append(("7670", content))
    return found


def side_data_colour_elements(side_data: StreamSideData | None) -> bytes:
    """Return elements for a Colour element, besides the color codes."""
    entries = side_data or {}
    content = b""
    if CONTENT_LIGHT in entries:
        highest, average = struct.unpack(">HH", bytes.fromhex(entries[CONTENT_LIGHT]))
        content += _element("55bc", struct.pack(">H", highest))
        content += _element("55bd", struct.pack(">H", average))
    if MASTERING_DISPLAY in entries:
        *points, highest, lowest = struct.unpack(">8H2I", bytes.fromhex(entries[MASTERING_DISPLAY]))
        # An mdcv box begins with green; Matroska begins with red.
        order = ("55d3", "55d4", "55d5", "55d6", "55d1", "55d2", "55d7", "55d8")
        parts = [
            _element(name, struct.pack(">d", point / 50_000))
            for name, point in zip(order, points, strict=True)
        ]
        parts.append(_element("55d9", struct.pack(">d", highest / 10_000)))
        parts.append(_element("55da", struct.pack(">d", lowest / 10_000)))
        content += _element("55d0", b"".join(parts))
    return content


def _element(identifier: str, body: bytes) -> bytes:
    return bytes.fromhex(identifier) + (1 << 56 | len(body)).to_bytes(8, "big") + body


def is_dovi_record(record: bytes) -> bool:
    """Return whether bytes have the size of a Dolby Vision configuration record."""
    return len(record) == _DOVI_BYTES


def make_box(kind: bytes, *contents: bytes) -> bytes:
    """Return a box."""
    body = b"".join(contents)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def make_full_box(kind: bytes, version: int, flags: int, body: bytes) -> bytes:
    """Return a FullBox."""
    return make_box(kind, struct.pack(">I", version << 24 | flags), body)


def media_box(
    timescale: int,
    handler: bytes,
    name: bytes,
    header: bytes,
    entry: bytes,
    language: str | None = None,
) -> bytes:
    """Return the mdia box of a track with all samples in fragments.

    `header` is the vmhd or smhd box, `entry` the sample entry for stsd.
    """
    nothing = struct.pack(">I", 0)
    fields = struct.pack(">4IHH", 0, 0, timescale, 0, _language(language), 0)
    return make_box(
        b"mdia",
        make_full_box(b"mdhd", 0, 0, fields),
        make_full_box(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, handler) + name + b"\0"),
        make_box(
            b"minf",
            header,
            make_box(
                b"dinf",
                make_full_box(
                    b"dref", 0, 0, struct.pack(">I", 1) + make_full_box(b"url ", 0, 1, b"")
                ),
            ),
            make_box(
                b"stbl",
                make_full_box(b"stsd", 0, 0, struct.pack(">I", 1) + entry),
                make_full_box(b"stts", 0, 0, nothing),
                make_full_box(b"stsc", 0, 0, nothing),
                make_full_box(b"stsz", 0, 0, nothing + nothing),
                make_full_box(b"stco", 0, 0, nothing),
            ),
        ),
    )


def _language(code: str | None) -> int:
    """Return a packed ISO 639-2 code of three letters; "und" for anything else."""
    known = code if code and len(code) == 3 and code.isascii() and code.islower() else "und"
    first, second, third = (ord(letter) - 0x60 for letter in known)
    return first << 10 | second << 5 | third


def parse_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, body) of each box.

    A box that is cut off has all remaining bytes. Ends at bytes that are not a box.
    """
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1 and at + 16 <= len(data):
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = len(data) - at
        if size < head:
            return
        yield kind, data[at + head : at + size]
        at += size


def find_box(data: bytes, *path: bytes) -> bytes | None:
    """Return the body of the first box at a path of kinds; None if there is none."""
    for kind in path:
        found = next((body for name, body in parse_boxes(data) if name == kind), None)
        if found is None:
            return None
        data = found
    return data


# ObjectTypeIndication (ISO/IEC 14496-1, 7.2.6.6).
_MP4_OBJECT_TYPES = {"aac": 0x40, "mp3": 0x6B, "mp2": 0x6B}
# MP3 and MP2 of up to this sample rate are of ISO/IEC 13818-3, with another type.
_LOW_RATE, _LOW_RATE_TYPE = 24_000, 0x69
_MP4_ENTRIES = {"opus": b"Opus", "flac": b"fLaC", "ac3": b"ac-3", "alac": b"alac"}
_MATROSKA_IDS = {
    "aac": "A_AAC",
    "mp3": "A_MPEG/L3",
    "mp2": "A_MPEG/L2",
    "ac3": "A_AC3",
    "eac3": "A_EAC3",
    "opus": "A_OPUS",
    "flac": "A_FLAC",
    "vorbis": "A_VORBIS",
    "alac": "A_ALAC",
    "pcm_u8": "A_PCM/INT/LIT",
    "pcm_s16le": "A_PCM/INT/LIT",
    "pcm_s24le": "A_PCM/INT/LIT",
    "pcm_s32le": "A_PCM/INT/LIT",
    "pcm_f32le": "A_PCM/FLOAT/IEEE",
}
# Codecs whose packets in Matroska differ from those of FFmpeg's demuxers.
_CHANGED_IN_MATROSKA = frozenset({"wavpack", "cook", "sipr", "atrac3", "ra_288"})
_OPUS_RATE = 48000
_STREAMINFO_BYTES = 34
_ALAC_BYTES = 36  # a box: size, kind, version and flags, and the 24 bytes of the configuration
_MAX_ENTRY_RATE = 1 << 16


def takes_audio(container: str, track: AudioTrack) -> bool:
    """Return whether packets of that codec can be copied into "mp4" or "matroska"."""
    if container not in ("mp4", "matroska"):
        return False
    if container == "matroska" and track.codec not in _MATROSKA_IDS:
        return bool(track.matroska_codec) and track.codec not in _CHANGED_IN_MATROSKA
    if container == "mp4" and track.mp4_entry:
        return track.sample_rate < _MAX_ENTRY_RATE
    is_known = {
        "flac": len(track.configuration) == _STREAMINFO_BYTES,
        "alac": len(track.configuration) == _ALAC_BYTES,
        "opus": track.configuration[:8] == b"OpusHead" and track.sample_rate == _OPUS_RATE,
        "ac3": track.configuration[:2] == b"\x0b\x77",
    }.get(track.codec, True)
    if container == "matroska":
        return is_known and track.codec in _MATROSKA_IDS
    has_entry = track.codec in _MP4_OBJECT_TYPES or track.codec in _MP4_ENTRIES
    return is_known and has_entry and track.sample_rate < _MAX_ENTRY_RATE


def audio_trak(track: AudioTrack) -> bytes:
    """Return the trak box of the audio track, which has ID 2."""
    unity = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    header = struct.pack(">5I8x4H", 0, 0, 2, 0, 0, 0, 0, 1 << 8, 0) + unity + bytes(8)
    smhd = make_full_box(b"smhd", 0, 0, bytes(4))
    return make_box(
        b"trak",
        make_full_box(b"tkhd", 0, 3, header),
        media_box(track.sample_rate, b"soun", b"sound", smhd, _sample_entry(track), track.language),
    )


def _sample_entry(track: AudioTrack) -> bytes:
    if track.mp4_entry:
        return track.mp4_entry
    fields = struct.pack(
        ">6xH8xHH4xI", 1, track.channels, track.bit_depth or 16, track.sample_rate << 16
    )
    object_type = _MP4_OBJECT_TYPES.get(track.codec)
    if object_type is not None:
        if track.codec != "aac" and track.sample_rate <= _LOW_RATE:
            object_type = _LOW_RATE_TYPE
        described = nal.esds(track.configuration, object_type, nal.AUDIO_STREAM)
        return make_box(b"mp4a", fields, make_box(b"esds", described))
    return make_box(_MP4_ENTRIES[track.codec], fields, _codec_box(track))


def _codec_box(track: AudioTrack) -> bytes:
    configuration = track.configuration
    if track.codec == "opus":
        # RFC 7845, 5.1, in big-endian order; "Encapsulation of Opus in ISOBMFF", 4.3.2.
        rate, gain = struct.unpack_from("<Ih", configuration, 12)
        return make_box(
            b"dOps", struct.pack(">BBHIh", 0, configuration[9], 0, rate, gain) + configuration[18:]
        )
    if track.codec == "flac":
        return make_full_box(
            b"dfLa", 0, 0, struct.pack(">I", 0x8000_0000 | len(configuration)) + configuration
        )
    if track.codec == "ac3":
        return make_box(b"dac3", _dac3(configuration))
    return configuration  # alac: the configuration is a complete box


def _dac3(head: bytes) -> bytes:
    """Return the AC3SpecificBox (ETSI TS 102 366, F.4) from the first bytes of a frame (4.3)."""
    rate, frame = head[4] >> 6, head[4] & 0x3F
    bits = int.from_bytes(head[5:9], "big")
    stream, mode, channels = bits >> 27, bits >> 24 & 7, bits >> 21 & 7
    at = 21  # bits left
    if channels & 1 and channels != 1:
        at -= 2  # cmixlev
    if channels & 4:
        at -= 2  # surmixlev
    if channels == 2:
        at -= 2  # dsurmod
    low = bits >> at - 1 & 1
    fields = rate << 22 | stream << 17 | mode << 14 | channels << 11 | low << 10 | frame >> 1 << 5
    return fields.to_bytes(3, "big")


def matroska_codec(track: AudioTrack) -> tuple[str, bytes]:
    """Return (CodecID, CodecPrivate); the latter may be empty."""
    if track.codec not in _MATROSKA_IDS:
        return track.matroska_codec, track.matroska_private
    configuration = track.configuration
    if track.codec == "flac":
        configuration = (
            b"fLaC" + struct.pack(">I", 0x8000_0000 | len(configuration)) + configuration
        )
    elif track.codec == "alac":
        configuration = configuration[12:]
    elif track.codec == "opus":
        configuration = configuration[:10] + bytes(2) + configuration[12:]
    elif track.codec not in ("aac", "vorbis"):
        configuration = b""
    return _MATROSKA_IDS[track.codec], configuration
