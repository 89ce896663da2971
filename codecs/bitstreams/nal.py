"""NAL units of H.264 and HEVC, the bits in them, and codec configuration records.

Records are avcC, hvcC, av1C, vpcC and esds, as MP4 and Matroska store them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Bytes after which a unit needs an emulation prevention byte (3).
_EMULATION = re.compile(rb"\0\0(?=[\0-\3])")


class BitstreamError(ValueError):
    """The bytes cannot be parsed."""


@dataclass(frozen=True, slots=True)
class BitString:
    """A piece of a bit string: the lowest `count` bits of `value`."""

    value: int
    count: int


class BitReader:
    """Reads fields of an unescaped payload, most significant bit first.

    Raises `BitstreamError` if the payload ends too early.
    """

    def __init__(self, payload: bytes) -> None:
        self._value = int.from_bytes(payload, "big")
        self._left = self._total = len(payload) * 8

    @property
    def position(self) -> int:
        """The number of bits read."""
        return self._total - self._left

    def bits(self, count: int) -> int:
        """Read an unsigned number of `count` bits."""
        self._left -= count
        if self._left < 0:
            raise BitstreamError("the unit is too short")
        return self._value >> self._left & ((1 << count) - 1)

    def flag(self) -> bool:
        """Read one bit."""
        return bool(self.bits(1))

    def golomb(self) -> int:
        """Read an unsigned Exp-Golomb number, ue(v)."""
        zeros = self._left - (self._value & ((1 << self._left) - 1)).bit_length()
        if zeros > 32:
            raise BitstreamError("an Exp-Golomb number is too long")
        return self.bits(2 * zeros + 1) - 1

    def signed_golomb(self) -> int:
        """Read a signed Exp-Golomb number, se(v)."""
        number = self.golomb()
        return (number + 1) // 2 if number & 1 else -(number // 2)

    def between(self, start: int, end: int) -> BitString:
        """Return the bits ``start <= position < end``, without moving the reader."""
        count = end - start
        return BitString(self._value >> (self._total - end) & ((1 << count) - 1), count)

    def rest(self) -> BitString:
        """Return the bits left before rbsp_trailing_bits (7.3.2.11)."""
        left = self._value & ((1 << self._left) - 1)
        if not left:
            raise BitstreamError("the unit has no stop bit")
        stop = (left & -left).bit_length()
        return BitString(left >> stop, self._left - stop)


class BitWriter:
    """Writes bit fields; the inverse of `BitReader`."""

    def __init__(self) -> None:
        self._value = 0
        self._count = 0

    def bits(self, count: int, value: int) -> None:
        """Write `value` in `count` bits."""
        self._value = self._value << count | value
        self._count += count

    def flag(self, value: bool) -> None:
        self.bits(1, int(value))

    def golomb(self, number: int) -> None:
        """Write an unsigned Exp-Golomb number, ue(v)."""
        self.bits(2 * (number + 1).bit_length() - 1, number + 1)

    def signed_golomb(self, number: int) -> None:
        """Write a signed Exp-Golomb number, se(v)."""
        self.golomb(2 * number - 1 if number > 0 else -2 * number)

    def append(self, bits: BitString) -> None:
        self.bits(bits.count, bits.value)

    def finished(self) -> bytes:
        """Return the bytes, ended by a one and zeros up to a byte boundary.

        This is rbsp_trailing_bits at the end of a payload, and byte_alignment after a slice header.
        """
        self.flag(True)
        self.bits(-self._count % 8, 0)
        return self._value.to_bytes(self._count // 8, "big")


def unescaped(unit: bytes) -> bytes:
    """Return `unit` without emulation prevention bytes."""
    return unit.replace(b"\0\0\3", b"\0\0")


def escaped(payload: bytes) -> bytes:
    """Return `payload` with emulation prevention bytes; its last byte must not be 0."""
    return _EMULATION.sub(b"\0\0\3", payload)


def escaped_offset(unit: bytes, plain: int) -> int:
    """Return the offset in `unit` at which the first `plain` bytes of ``unescaped(unit)`` end."""
    offset, at = plain, unit.find(b"\0\0\3", 0, plain)
    while 0 <= at < offset - 2:
        offset += 1
        at = unit.find(b"\0\0\3", at + 3, offset)
    return offset


START_CODE = b"\0\0\0\1"

H264_IDR, H264_SEI, H264_SPS, H264_PPS = 5, 6, 7, 8
HEVC_VPS, HEVC_SPS, HEVC_PPS = 32, 33, 34


def prefix_size(codec: str, extradata: bytes) -> int:
    """Return the bytes of length prefixes (1, 2 or 4), or 0 for start codes.

    An avcC or hvcC record begins with 1. Early writers of hvcC wrote 0, which is then not part of a
    start code.
    """
    if codec == "h264" and len(extradata) >= 7 and extradata[0] == 1:
        return (extradata[4] & 3) + 1
    if codec == "hevc" and len(extradata) >= 23 and extradata[:3] not in (b"\0\0\0", b"\0\0\1"):
        return (extradata[21] & 3) + 1
    return 0


def nal_units(packet: bytes, prefix: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each NAL unit in `packet`, without start codes and trailing zeros.

    Raises `BitstreamError` if the lengths do not fill the packet, or if there is no start code.
    """
    return _prefixed_units(packet, prefix) if prefix else _annexb_units(packet)


def _prefixed_units(packet: bytes, prefix: int) -> Iterator[tuple[int, int]]:
    at, end = 0, len(packet)
    while at < end:
        start = at + prefix
        at = start + int.from_bytes(packet[at:start], "big")
        if start >= end or at > end or at == start:
            raise BitstreamError("a length prefix exceeds the packet")
        yield start, at


def _annexb_units(packet: bytes) -> Iterator[tuple[int, int]]:
    code = packet.find(b"\0\0\1")
    if code < 0:
        raise BitstreamError("no start code")
    while code >= 0:
        start = code + 3
        code = packet.find(b"\0\0\1", start)
        end = len(packet) if code < 0 else code
        while end > start and packet[end - 1] == 0:
            end -= 1
        if end > start:
            yield start, end


def unit_type(codec: str, unit: bytes) -> int:
    """Return nal_unit_type (table 7-1 of both specifications)."""
    return unit[0] >> 1 & 0x3F if codec == "hevc" else unit[0] & 0x1F


def is_parameter_set(codec: str, kind: int) -> bool:
    """Return whether a unit of that type is a VPS, SPS or PPS."""
    if codec == "hevc":
        return HEVC_VPS <= kind <= HEVC_PPS
    return kind in (H264_SPS, H264_PPS)


def holds_slice(codec: str, kind: int) -> bool:
    """Return whether a unit of that type is a slice."""
    return kind < HEVC_VPS if codec == "hevc" else 1 <= kind <= H264_IDR


def parameter_sets(codec: str, extradata: bytes) -> tuple[bytes, ...]:
    """Return the parameter sets of a codec configuration, in order; empty if there are none.

    `extradata` is an avcC or hvcC record, or Annex B as in elementary and transport streams. Raises
    `BitstreamError`.
    """
    if not extradata:
        return ()
    if not prefix_size(codec, extradata):
        found = [extradata[a:b] for a, b in _annexb_units(extradata)]
        return tuple(u for u in found if is_parameter_set(codec, unit_type(codec, u)))
    return tuple(_hvcc_units(extradata) if codec == "hevc" else _avcc_units(extradata))


def _avcc_units(record: bytes) -> Iterator[bytes]:
    at, left = 6, record[5] & 0x1F
    while left:
        unit, at = _length_prefixed_units(record, at)
        yield unit
        left -= 1
    left, at = record[at] if at < len(record) else 0, at + 1
    while left:
        unit, at = _length_prefixed_units(record, at)
        yield unit
        left -= 1


def _hvcc_units(record: bytes) -> Iterator[bytes]:
    at = 23
    for _ in range(record[22]):
        if at + 3 > len(record):
            raise BitstreamError("the hvcC record is too short")
        kind = record[at] & 0x3F
        left, at = int.from_bytes(record[at + 1 : at + 3], "big"), at + 3
        while left:
            unit, at = _length_prefixed_units(record, at)
            if is_parameter_set("hevc", kind):
                yield unit
            left -= 1


def _length_prefixed_units(record: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + int.from_bytes(record[at:start], "big")
    if start > len(record) or end > len(record) or end == start:
        raise BitstreamError("the codec configuration is too short")
    return record[start:end], end


@dataclass(frozen=True, slots=True)
class SpsFields:
    """The fields of a sequence parameter set that describe pictures."""

    profile_bytes: bytes  #: H.264: profile, constraints, level; HEVC: the general profile, 12 bytes
    chroma_format: int  #: 0 gray, 1 4:2:0, 2 4:2:2, 3 4:4:4
    luma_depth: int  #: bits
    chroma_depth: int
    has_fields: bool  #: H.264: pictures may be coded as two fields
    sublayers: int = 1  #: HEVC: temporal sub-layers
    nested: bool = False  #: HEVC: sps_temporal_id_nesting_flag


_H264_HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))


def parse_h264_sps(unit: bytes) -> SpsFields:
    """Parse an SPS with its NAL header (H.264 7.3.2.1.1). Raises `BitstreamError`."""
    return read_h264_sps(unit)[0]


def read_h264_sps(unit: bytes) -> tuple[SpsFields, BitReader]:
    """Parse an SPS as `parse_h264_sps` does; also return a reader after frame_mbs_only_flag."""
    if len(unit) < 5:
        raise BitstreamError("the sequence parameter set is too short")
    reader = BitReader(unescaped(unit)[4:])
    reader.golomb()  # seq_parameter_set_id
    samples = read_h264_sample_format(reader, unit[1])
    skip_picture_order(reader)
    reader.golomb()  # max_num_ref_frames
    reader.flag()  # gaps_in_frame_num_value_allowed_flag
    reader.golomb()  # pic_width_in_mbs_minus1
    reader.golomb()  # pic_height_in_map_units_minus1
    has_fields = not reader.flag()
    found = SpsFields(
        unit[1:4], samples.chroma_format, samples.luma_depth, samples.chroma_depth, has_fields
    )
    return found, reader


@dataclass(frozen=True, slots=True)
class H264SampleFormat:
    """The sample format in an H.264 SPS."""

    chroma_format: int = 1  #: as in `SpsFields`
    luma_depth: int = 8  #: bits
    chroma_depth: int = 8
    separate_planes: bool = False  #: separate_colour_plane_flag


def read_h264_sample_format(reader: BitReader, profile: int) -> H264SampleFormat:
    """Read the sample format of an H.264 SPS of that profile, after its ID."""
    if profile not in _H264_HIGH_PROFILES:
        return H264SampleFormat()
    chroma = reader.golomb()
    separate = chroma == 3 and reader.flag()
    luma_depth, chroma_depth = 8 + reader.golomb(), 8 + reader.golomb()
    reader.flag()  # qpprime_y_zero_transform_bypass_flag
    if reader.flag():
        skip_scaling_lists(reader, 8 if chroma != 3 else 12)
    return H264SampleFormat(chroma, luma_depth, chroma_depth, separate)


def skip_scaling_lists(reader: BitReader, lists: int) -> None:
    """Skip the scaling lists of an H.264 SPS, after seq_scaling_matrix_present_flag."""
    for ordinal in range(lists):
        if not reader.flag():
            continue
        last = following = 8
        for _ in range(16 if ordinal < 6 else 64):
            if following:
                following = (last + reader.signed_golomb()) % 256
            last = following or last


def skip_picture_order(reader: BitReader) -> None:
    """Skip log2_max_frame_num_minus4 and the picture order count fields of an H.264 SPS."""
    reader.golomb()  # log2_max_frame_num_minus4
    skip_display_order(reader)


def skip_display_order(reader: BitReader) -> None:
    """Skip the picture order count fields of an H.264 SPS."""
    order_type = reader.golomb()
    if order_type == 0:
        reader.golomb()
    elif order_type == 1:
        reader.flag()
        reader.signed_golomb()
        reader.signed_golomb()
        for _ in range(min(reader.golomb(), 256)):
            reader.signed_golomb()


def parse_hevc_sps(unit: bytes) -> SpsFields:
    """Parse an SPS with its NAL header (H.265 7.3.2.2). Raises `BitstreamError`."""
    return read_hevc_sps(unit)[0]


def read_hevc_sps(unit: bytes) -> tuple[SpsFields, BitReader]:
    """Parse an SPS as `parse_hevc_sps` does; also return a reader after bit_depth_chroma_minus8."""
    if len(unit) < 15:
        raise BitstreamError("the sequence parameter set is too short")
    reader = BitReader(unescaped(unit)[2:])
    reader.bits(4)  # sps_video_parameter_set_id
    sublayers = reader.bits(3) + 1
    nested = reader.flag()
    profile = bytes(reader.bits(8) for _ in range(12))
    present = [(reader.flag(), reader.flag()) for _ in range(sublayers - 1)]
    if sublayers > 1:
        reader.bits(2 * (9 - sublayers))
    for has_profile, has_level in present:
        reader.bits(88 * has_profile + 8 * has_level)
    reader.golomb()  # sps_seq_parameter_set_id
    chroma = reader.golomb()
    if chroma == 3:
        reader.flag()
    reader.golomb()  # width
    reader.golomb()  # height
    if reader.flag():  # conformance window
        for _ in range(4):
            reader.golomb()
    luma_depth, chroma_depth = 8 + reader.golomb(), 8 + reader.golomb()
    found = SpsFields(profile, chroma, luma_depth, chroma_depth, False, sublayers, nested)
    return found, reader


def hevc_pps_hides_pictures(unit: bytes) -> bool:
    """Return output_flag_present_flag of a PPS: slices may mark pictures as not shown."""
    reader = BitReader(unescaped(unit)[2:])
    reader.golomb()
    reader.golomb()
    reader.flag()  # dependent_slice_segments_enabled_flag
    return reader.flag()


def h264_recovery_is_exact(sei: bytes) -> bool:
    """Return whether an SEI unit has a recovery point of 0 frames with exact_match_flag (D.1.8)."""
    payload = unescaped(sei)[1:]
    at = 0
    while at + 2 <= len(payload) and payload[at] != 0x80:
        kind = size = 0
        while at < len(payload) and payload[at] == 0xFF:
            kind, at = kind + 255, at + 1
        if at >= len(payload):
            return False
        kind, at = kind + payload[at], at + 1
        while at < len(payload) and payload[at] == 0xFF:
            size, at = size + 255, at + 1
        if at >= len(payload):
            return False
        size, at = size + payload[at], at + 1
        if kind == 6:
            try:
                reader = BitReader(payload[at : at + size])
                return reader.golomb() == 0 and reader.flag() and not reader.flag()
            except BitstreamError:
                return False
        at += size
    return False


_X264_SEI = bytes.fromhex("dc45e9bde6d948b7962cd820d923eeef") + b"x264 - core "


def x264_build(packet: bytes) -> int | None:
    """Return the build number that x264 writes into the first packet; None for other encoders."""
    found = packet.find(_X264_SEI, 0, 4096)
    if found < 0:
        return None
    digits = packet[found + len(_X264_SEI) :][:8].split()[:1]
    return int(digits[0]) if digits and digits[0].isdigit() else None


_SEQUENCE_HEADER, _TEMPORAL_DELIMITER = 1, 2
# seq_level_idx from which seq_tier is present (AV1, 5.5.1).
_HIGH_TIER_LEVEL = 8


def obu_units(packet: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, start, end) of each OBU, header included (AV1, 5.3). Raises `BitstreamError`."""
    at = 0
    while at < len(packet):
        start, head = at, packet[at]
        at += 1 + (head >> 2 & 1)
        if not head & 2:  # obu_has_size_field is 0: the last OBU
            yield head >> 3 & 15, start, len(packet)
            return
        size = shift = 0
        while True:
            if at >= len(packet) or shift > 28:
                raise BitstreamError("an OBU does not fit")
            byte = packet[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
        if at > len(packet):
            raise BitstreamError("an OBU does not fit")
        yield head >> 3 & 15, start, at


def without_temporal_delimiter(packet: bytes) -> bytes:
    """Return a temporal unit without its delimiter, as containers store it."""
    return b"".join(packet[a:b] for kind, a, b in obu_units(packet) if kind != _TEMPORAL_DELIMITER)


def av1_sequence_header(packet: bytes) -> bytes:
    """Return the first sequence header of a temporal unit. Raises `BitstreamError` without one."""
    for kind, start, end in obu_units(packet):
        if kind == _SEQUENCE_HEADER:
            return packet[start:end]
    raise BitstreamError("no sequence header")


def av1c(header: bytes, *, is_deep: bool) -> bytes:
    """Return the av1C record of a 4:2:0 stream with this sequence header (AV1 in ISOBMFF, 2.3.3).

    `is_deep`: samples have 10 bits, not 8. Raises `BitstreamError`.
    """
    ((_, _, end),) = obu_units(header)
    reader = BitReader(header[2:end])  # header and size of so small an OBU take two bytes
    profile = reader.bits(3)
    reader.flag()  # still_picture
    tier = 0
    if reader.flag():
        level = reader.bits(5)
    else:
        if reader.flag():
            raise BitstreamError("timing_info is not supported")
        reader.flag()  # initial_display_delay_present_flag
        reader.bits(5)  # operating_points_cnt_minus_1
        reader.bits(12)  # operating_point_idc
        level = reader.bits(5)
        tier = reader.bits(1) if level >= _HIGH_TIER_LEVEL else 0
    subsampled = 0b1100
    return bytes((0x81, profile << 5 | level, tier << 7 | is_deep << 6 | subsampled, 0)) + header


# Profiles whose avcC record includes the chroma format (ISO/IEC 14496-15, 5.3.3.1.2).
_EXTENDED_H264_PROFILES = frozenset((100, 110, 122, 144, 244))

# The level for vpcC, which VP9 streams do not signal: enough for 4096x2176 at 60 Hz.
_VP9_LEVEL = 50
_VP9_PIXELS = {"yuv420p": (0, 8, 1), "yuv422p": (1, 8, 2), "yuv444p": (1, 8, 3)}
_UNSPECIFIED = 2


def avcc(sets: tuple[bytes, ...], prefix: int) -> bytes:
    """Return an AVCDecoderConfigurationRecord (ISO/IEC 14496-15, 5.3.3.1) of parameter sets.

    It declares the highest profile and level of all sets, and the constraints that all share.
    `prefix` is the size of length prefixes in packets. Raises `nal.BitstreamError` if a set is
    missing or damaged.
    """
    sequences = [unit for unit in sets if unit_type("h264", unit) == H264_SPS]
    pictures = [unit for unit in sets if unit_type("h264", unit) == H264_PPS]
    if not sequences or not pictures or len(sequences) > 31 or len(pictures) > 255:
        raise BitstreamError("no usable parameter sets")
    parsed = [parse_h264_sps(unit) for unit in sequences]
    highest = max(parsed, key=lambda each: each.profile_bytes[0])
    constraints, level = 0xFF, 0
    for each in parsed:
        constraints &= each.profile_bytes[1]
        level = max(level, each.profile_bytes[2])
    profile = highest.profile_bytes[0]
    record = bytearray((1, profile, constraints, level, 0xFC | prefix - 1))
    record.append(0xE0 | len(sequences))
    record += b"".join(_length_prefixed(unit) for unit in sequences)
    record.append(len(pictures))
    record += b"".join(_length_prefixed(unit) for unit in pictures)
    if profile in _EXTENDED_H264_PROFILES:
        record += bytes((0xFC | highest.chroma_format,))
        record += bytes((0xF8 | highest.luma_depth - 8, 0xF8 | highest.chroma_depth - 8, 0))
    return bytes(record)


def hvcc(sets: tuple[bytes, ...], prefix: int, *, is_complete: bool = True) -> bytes:
    """Return an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15, 8.3.3.1); see `avcc`.

    Unless `is_complete`, packets may contain further parameter sets.
    """
    kinds = (HEVC_VPS, HEVC_SPS, HEVC_PPS)
    arrays = [[unit for unit in sets if unit_type("hevc", unit) == kind] for kind in kinds]
    if not all(arrays):
        raise BitstreamError("no usable parameter sets")
    # If there are several, the SPS with the highest profile and level.
    parsed = [parse_hevc_sps(unit) for unit in arrays[1]]
    highest = max(parsed, key=lambda each: (each.profile_bytes[0] & 0x1F, each.profile_bytes[-1]))
    record = bytearray(b"\x01" + highest.profile_bytes + b"\xf0\x00\xfc")
    record += bytes((0xFC | highest.chroma_format, 0xF8 | highest.luma_depth - 8))
    record += bytes((0xF8 | highest.chroma_depth - 8, 0, 0))
    record.append(highest.sublayers << 3 | highest.nested << 2 | prefix - 1)
    record.append(len(arrays))
    for kind, units in zip(kinds, arrays, strict=True):
        record += struct.pack(">BH", is_complete << 7 | kind, len(units))
        record += b"".join(_length_prefixed(unit) for unit in units)
    return bytes(record)


def vpcc(pixel_format: str) -> bytes | None:
    """Return the content of a vpcC box for VP9; None for unsupported pixel formats.

    Colors and other data of the packets are left unspecified.
    """
    pixels = _VP9_PIXELS.get(pixel_format)
    if pixels is None:
        return None
    profile, depth, chroma = pixels
    fields = (profile, _VP9_LEVEL, depth << 4 | chroma << 1) + (_UNSPECIFIED,) * 3
    return b"\x01\0\0\0" + bytes(fields) + b"\0\0"


VISUAL_STREAM, AUDIO_STREAM = 0x11, 0x15
"""streamType of an esds box, with the reserved bit that is always set."""

MPEG4_OBJECT, JPEG_OBJECT = 0x20, 0x6C
"""Object types of ISO/IEC 14496-1, table 5."""


def esds(configuration: bytes, object_type: int, kind: int = VISUAL_STREAM) -> bytes:
    """Return the content of an esds box for that object type (ISO/IEC 14496-1, 7.2.6)."""
    decoder = struct.pack(">BBHBII", object_type, kind, 0, 0, 0, 0)
    if configuration:
        decoder += _descriptor(5, configuration)
    stream = struct.pack(">HB", 1, 0) + _descriptor(4, decoder) + _descriptor(6, b"\x02")
    return b"\0\0\0\0" + _descriptor(3, stream)


def _length_prefixed(unit: bytes) -> bytes:
    return struct.pack(">H", len(unit)) + unit


def _descriptor(tag: int, body: bytes) -> bytes:
    size = len(body)
    digits = bytes(0x80 | size >> shift & 0x7F for shift in (21, 14, 7))
    return bytes((tag,)) + digits + bytes((size & 0x7F,)) + body
