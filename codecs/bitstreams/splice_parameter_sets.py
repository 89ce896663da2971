"""Parameter sets for streams of two encoders in one file.

H.264 sets take over the VUI of the source. HEVC sets and slices get IDs that the source does not
use.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError, BitString, BitWriter
from vfsd.codecs.bitstreams.sei_vui import read_hrd, skip_display_fields

_MACROBLOCK = 16
_HIGH = 100
# profile_idc with 4:2:0 of 8 bits only, and x264's names.
_PROFILES = {66: "baseline", 77: "main", _HIGH: "high"}
# The highest log2_max_mv_length, which does not limit motion vectors.
_MAX_MOTION = 16


@dataclass(frozen=True, slots=True)
class H264Sequence:
    """The fields of an H.264 SPS that matter for splicing."""

    profile: int
    constraints: int
    level: int
    number: int  #: seq_parameter_set_id
    macroblocks: tuple[int, int]  #: columns and rows
    crop: tuple[int, int, int, int]  #: left, right, top, bottom, in pairs of pixels
    references: int  #: max_num_ref_frames
    prefix_bits: BitString  #: bits from the ID up to vui_parameters_present_flag
    vui_bits: BitString | None  #: VUI bits from the aspect ratio to the timing; None: no VUI
    reorder: int | None  #: max_num_reorder_frames; None: unspecified
    buffered: int | None  #: max_dec_frame_buffering; None: unspecified

    @property
    def profile_name(self) -> str | None:
        """x264's name of the profile; None if it may exceed 4:2:0 of 8 bits."""
        return _PROFILES.get(self.profile)

    def is_plain(self, width: int, height: int) -> bool:
        """Return whether its pictures are width x height, cropped as x264 does."""
        columns, rows = -(-width // _MACROBLOCK), -(-height // _MACROBLOCK)
        right, bottom = columns * _MACROBLOCK - width, rows * _MACROBLOCK - height
        return self.macroblocks == (columns, rows) and self.crop == (0, right // 2, 0, bottom // 2)


def parse_h264_sequence(unit: bytes) -> H264Sequence | None:
    """Parse an SPS with its NAL header, of progressive 4:2:0 of 8 bits.

    None for any other kind of pictures. Raises `BitstreamError`.
    """
    reader = BitReader(nal.unescaped(unit)[1:])
    profile, constraints, level = reader.bits(8), reader.bits(8), reader.bits(8)
    if profile not in _PROFILES:
        return None
    start = reader.position
    number = reader.golomb()
    if profile == _HIGH:
        chroma, luma_depth, chroma_depth = reader.golomb(), reader.golomb(), reader.golomb()
        if (chroma, luma_depth, chroma_depth) != (1, 0, 0):
            return None
        reader.flag()  # qpprime_y_zero_transform_bypass_flag
        if reader.flag():
            nal.skip_scaling_lists(reader, 8)
    nal.skip_picture_order(reader)
    references = reader.golomb()
    reader.flag()  # gaps_in_frame_num_value_allowed_flag
    columns, rows = reader.golomb() + 1, reader.golomb() + 1
    if not reader.flag():
        return None
    reader.flag()  # direct_8x8_inference_flag
    crop = (0, 0, 0, 0)
    if reader.flag():
        crop = (reader.golomb(), reader.golomb(), reader.golomb(), reader.golomb())
    prefix_bits = reader.between(start, reader.position)
    vui_bits = reorder = buffered = None
    if reader.flag():
        vui_bits, reorder, buffered = _read_vui(reader)
    return H264Sequence(
        profile, constraints, level, number, (columns, rows), crop, references, prefix_bits,
        vui_bits, reorder, buffered,
    )  # fmt: skip


def with_source_vui(unit: bytes, source: H264Sequence, reorder: int) -> bytes:
    """Return an SPS of our encoder with the VUI of `source` and max_num_reorder_frames `reorder`.

    It declares the higher level of both. Raises `BitstreamError`.
    """
    own = parse_h264_sequence(unit)
    if own is None:
        raise nal.BitstreamError("unsupported SPS")
    writer = BitWriter()
    writer.bits(8, own.profile)
    writer.bits(8, own.constraints)
    writer.bits(8, max(own.level, source.level))
    writer.append(own.prefix_bits)
    writer.flag(True)  # vui_parameters_present_flag
    writer.append(source.vui_bits or BitString(0, 5))
    writer.bits(3, 0)  # no NAL and VCL HRD parameters, pic_struct_present_flag
    writer.flag(True)  # bitstream_restriction_flag
    writer.flag(True)  # motion_vectors_over_pic_boundaries_flag
    writer.golomb(0)
    writer.golomb(0)
    writer.golomb(_MAX_MOTION)
    writer.golomb(_MAX_MOTION)
    writer.golomb(reorder)
    writer.golomb(max(own.references, reorder, source.buffered or source.references))
    return unit[:1] + nal.escaped(writer.finished())


def _read_vui(reader: BitReader) -> tuple[BitString, int | None, int | None]:
    """Return (VUI up to timing, max_num_reorder_frames, max_dec_frame_buffering) (E.1.1)."""
    start = reader.position
    skip_display_fields(reader)
    if reader.flag():
        reader.bits(65)  # timing info
    vui_bits = reader.between(start, reader.position)
    if [read_hrd(reader) for _ in range(2) if reader.flag()]:
        reader.flag()  # low_delay_hrd_flag
    reader.flag()  # pic_struct_present_flag
    if not reader.flag():
        return vui_bits, None, None
    reader.flag()  # motion_vectors_over_pic_boundaries_flag
    for _ in range(4):
        reader.golomb()
    return vui_bits, reader.golomb(), reader.golomb()


IDR_W_RADL, IDR_N_LP, CRA_NUT = 19, 20, 21
BLA_TYPES = (16, 17, 18)  #: BLA_W_LP, BLA_W_RADL, BLA_N_LP (H.265 table 7-1)
_BLA_N_LP = 18  #: a BLA picture without leading pictures
_FIRST_RANDOM_ACCESS, _LAST_RANDOM_ACCESS = 16, 23
_FIRST_WITHOUT_SLICE = 32
_HEADER_BITS = 16
# As Exp-Golomb numbers, 0 takes one bit and 15 to 30 take nine. Replacing one by the other moves
# all that follows by a whole byte, so the alignment stays the same.
_FIRST_PPS_ID = 15
_MAX_IDS = 16  #: number of VPS IDs and of SPS IDs
_MAIN, _MAIN10 = 1, 2
_BLOCKS = (8, 16, 32)  #: smallest coding blocks that x265 supports


@dataclass(frozen=True, slots=True)
class HevcSequence:
    """The fields of an HEVC SPS that matter for splicing."""

    number: int  #: SPS ID
    video_number: int  #: VPS ID
    profile: int
    is_high_tier: bool
    chroma_format: int
    depth: int  #: bits per luma sample; 0: chroma has another depth
    size: tuple[int, int]  #: coded (width, height) in luma samples
    window: tuple[int, int, int, int]  #: cropped left, right, top, bottom, in luma samples
    reorder: int  #: sps_max_num_reorder_pics

    def block_of(self, width: int, height: int) -> int | None:
        """Return the smallest coding block for x265 that gives the same coded size.

        Pictures of width x height are padded at the right and the bottom to whole blocks. None if
        no block size fits, and for anything except 4:2:0 of 8 bits.
        """
        if (
            self.profile not in (_MAIN, _MAIN10)
            or self.is_high_tier
            or (self.chroma_format, self.depth) != (1, 8)
            or self.window != (0, self.size[0] - width, 0, self.size[1] - height)
        ):
            return None
        for block in _BLOCKS:
            if self.size == tuple(-(-side // block) * block for side in (width, height)):
                return block
        return None


def parse_hevc_sequence(unit: bytes) -> HevcSequence:
    """Parse an SPS with its NAL header. Raises `BitstreamError`."""
    reader = BitReader(nal.unescaped(unit))
    reader.bits(_HEADER_BITS)
    video_number, sublayers = reader.bits(4), reader.bits(3)
    reader.flag()
    reader.bits(2)
    is_high_tier, profile = reader.flag(), reader.bits(5)
    reader.bits(32 + 48 + 8)
    _skip_sublayers(reader, sublayers)
    number, chroma_format = reader.golomb(), reader.golomb()
    if chroma_format == 3:
        reader.flag()
    size = reader.golomb(), reader.golomb()
    window = (0, 0, 0, 0)
    if reader.flag():
        left, right, top, bottom = (reader.golomb() for _ in range(4))
        across, down = 2 if chroma_format in (1, 2) else 1, 2 if chroma_format == 1 else 1
        window = (across * left, across * right, down * top, down * bottom)
    luma, chroma = 8 + reader.golomb(), 8 + reader.golomb()
    reader.golomb()  # log2_max_pic_order_cnt_lsb_minus4
    reorder = 0
    for _ in range(sublayers + 1 if reader.flag() else 1):
        reader.golomb()
        reorder = reader.golomb()
        reader.golomb()
    return HevcSequence(
        number, video_number, profile, is_high_tier, chroma_format, luma if luma == chroma else 0,
        size, window, reorder,
    )  # fmt: skip


def _skip_sublayers(reader: BitReader, sublayers: int) -> None:
    """Skip the end of profile_tier_level (7.3.3), after the level."""
    present = [(reader.flag(), reader.flag()) for _ in range(sublayers)]
    if sublayers:
        reader.bits(2 * (8 - sublayers))
    for has_profile, has_level in present:
        reader.bits(88 * has_profile + 8 * has_level)


def free_parameter_set_id(sets: tuple[bytes, ...]) -> int | None:
    """Return an ID for `with_parameter_set_id` that these sets do not use; None if all are used.

    Raises `BitstreamError`.
    """
    used = set()
    for unit in sets:
        kind, reader = nal.unit_type("hevc", unit), BitReader(nal.unescaped(unit))
        reader.bits(_HEADER_BITS)
        if kind == nal.HEVC_VPS:
            used.add(reader.bits(4))
        elif kind == nal.HEVC_SPS:
            used.add(parse_hevc_sequence(unit).number)
        elif kind == nal.HEVC_PPS:
            used.add(reader.golomb() - _FIRST_PPS_ID)
    return next((n for n in reversed(range(1, _MAX_IDS)) if n not in used), None)


def with_parameter_set_id(unit: bytes, number: int) -> bytes:
    """Return a parameter set of ID 0 with another ID, and with references to it.

    `number` is below 16; a PPS gets 15 more. Raises `BitstreamError`.
    """
    kind = nal.unit_type("hevc", unit)
    payload = nal.unescaped(unit)
    reader, writer = BitReader(payload), BitWriter()
    writer.bits(_HEADER_BITS, reader.bits(_HEADER_BITS))
    if kind == nal.HEVC_PPS:
        if (reader.golomb(), reader.golomb()) != (0, 0):
            raise BitstreamError("the PPS or its SPS does not have ID 0")
        writer.golomb(_FIRST_PPS_ID + number)
        writer.golomb(number)
    else:
        if reader.bits(4):
            raise BitstreamError("the VPS ID is not 0")
        writer.bits(4, number)
        if kind == nal.HEVC_SPS:
            start = reader.position
            sublayers = reader.bits(3)
            reader.bits(1 + 88 + 8)
            _skip_sublayers(reader, sublayers)
            writer.append(reader.between(start, reader.position))
            if reader.golomb():
                raise BitstreamError("the SPS ID is not 0")
            writer.golomb(number)
    writer.append(reader.rest())
    return nal.escaped(writer.finished())


def with_pps_id(unit: bytes, number: int) -> bytes:
    """Return a slice of PPS 0 that refers to the PPS from `with_parameter_set_id`.

    Other units stay unchanged. Raises `BitstreamError`.
    """
    kind = nal.unit_type("hevc", unit)
    if kind >= _FIRST_WITHOUT_SLICE:
        return unit
    payload = nal.unescaped(unit)
    if len(payload) < 4:
        raise BitstreamError("a slice is too short")
    before = 2 if _FIRST_RANDOM_ACCESS <= kind <= _LAST_RANDOM_ACCESS else 1
    byte, after = payload[2], 7 - before
    if not byte >> after & 1:
        raise BitstreamError("the PPS ID of a slice is not 0")
    value = byte >> after + 1
    value = value << 9 | _FIRST_PPS_ID + number + 1
    value = value << after | byte & (1 << after) - 1
    return nal.escaped(payload[:2] + value.to_bytes(2, "big") + payload[3:])


def as_idr_packet(packet: bytes, prefix: int) -> bytes:
    """Return a key packet marked as BLA_N_LP: no picture after it is shown before it.

    Decoders then start again at it, and first show all earlier pictures (8.1.3, C.5.2.2). `prefix`
    is as in `nal.nal_units`. Raises `BitstreamError`.
    """
    changed = bytearray(packet)
    for start, end in nal.nal_units(packet, prefix):
        kind = nal.unit_type("hevc", packet[start:end])
        if kind in (CRA_NUT, *BLA_TYPES):
            changed[start] = packet[start] & 0x81 | _BLA_N_LP << 1
    return bytes(changed)
