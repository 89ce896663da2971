"""Codec configuration records of MP4 and Matroska headers: avcC, hvcC, av1C, vpcC and esds.

Also splits AV1 packets into OBUs, which av1C is made from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, BitstreamError

_SEQUENCE_HEADER, _TEMPORAL_DELIMITER = 1, 2
_HIGH_TIER_LEVEL = 8
"""seq_level_idx from which seq_tier is present (AV1, 5.5.1)."""


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


_EXTENDED_H264_PROFILES = frozenset((100, 110, 122, 144, 244))
"""Profiles whose avcC record includes the chroma format (ISO/IEC 14496-15, 5.3.3.1.2)."""

_VP9_LEVEL = 50
"""The level for vpcC, which VP9 streams do not signal: enough for 4096x2176 at 60 Hz."""
_VP9_PIXELS = {"yuv420p": (0, 8, 1), "yuv422p": (1, 8, 2), "yuv444p": (1, 8, 3)}
_UNSPECIFIED = 2


def avcc(sets: tuple[bytes, ...], prefix: int) -> bytes:
    """Return an AVCDecoderConfigurationRecord (ISO/IEC 14496-15, 5.3.3.1) of parameter sets.

    It declares the highest profile and level of all sets, and the constraints that all share.
    `prefix` is the size of length prefixes in packets. Raises `nal.BitstreamError` if a set is
    missing or damaged.
    """
    sequences = [unit for unit in sets if nal.unit_type("h264", unit) == nal.H264_SPS]
    pictures = [unit for unit in sets if nal.unit_type("h264", unit) == nal.H264_PPS]
    if not sequences or not pictures or len(sequences) > 31 or len(pictures) > 255:
        raise nal.BitstreamError("no usable parameter sets")
    all_reported = [nal.parse_h264_sps(unit) for unit in sequences]
    reported = max(all_reported, key=lambda each: each.profile_bytes[0])
    constraints, level = 0xFF, 0
    for each in all_reported:
        constraints &= each.profile_bytes[1]
        level = max(level, each.profile_bytes[2])
    profile = reported.profile_bytes[0]
    record = bytearray((1, profile, constraints, level, 0xFC | prefix - 1))
    record.append(0xE0 | len(sequences))
    record += b"".join(_length_prefixed(unit) for unit in sequences)
    record.append(len(pictures))
    record += b"".join(_length_prefixed(unit) for unit in pictures)
    if profile in _EXTENDED_H264_PROFILES:
        record += bytes((0xFC | reported.chroma_format,))
        record += bytes((0xF8 | reported.luma_depth - 8, 0xF8 | reported.chroma_depth - 8, 0))
    return bytes(record)


def hvcc(sets: tuple[bytes, ...], prefix: int, *, is_complete: bool = True) -> bytes:
    """Return an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15, 8.3.3.1); see `avcc`.

    Unless `is_complete`, packets may contain further parameter sets.
    """
    kinds = (nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS)
    arrays = [[unit for unit in sets if nal.unit_type("hevc", unit) == kind] for kind in kinds]
    if not all(arrays):
        raise nal.BitstreamError("no usable parameter sets")
    # If there are several, the SPS with the highest profile and level.
    all_reported = [nal.parse_hevc_sps(unit) for unit in arrays[1]]
    reported = max(
        all_reported, key=lambda each: (each.profile_bytes[0] & 0x1F, each.profile_bytes[-1])
    )
    record = bytearray(b"\x01" + reported.profile_bytes + b"\xf0\x00\xfc")
    record += bytes((0xFC | reported.chroma_format, 0xF8 | reported.luma_depth - 8))
    record += bytes((0xF8 | reported.chroma_depth - 8, 0, 0))
    record.append(reported.sublayers << 3 | reported.nested << 2 | prefix - 1)
    record.append(len(arrays))
    for kind, units in zip(kinds, arrays, strict=True):
        record += struct.pack(">BH", is_complete << 7 | kind, len(units))
        record += b"".join(_length_prefixed(unit) for unit in units)
    return bytes(record)


def vpcc(pixel_format: str) -> bytes | None:
    """Return the content of a vpcC box for VP9; None for unsupported pixel formats.

    Colors and other data of the packets are left unspecified.
    """
    reported = _VP9_PIXELS.get(pixel_format)
    if reported is None:
        return None
    profile, depth, chroma = reported
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
