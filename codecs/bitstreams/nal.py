"""NAL units of H.264 and HEVC.

Splits packets into units, reads parameter sets from codec configurations, and reads the few SPS and
SEI fields that other modules need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vfsd.codecs.bitstreams.bit_io import BitReader, unescaped
from vfsd.codecs.bitstreams.bit_io import BitstreamError as BitstreamError

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
