"""Parameter sets for streams of two encoders in one file.

H.264 sets take over the VUI of the source; HEVC sets and slices get ids that the source does not
use.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams import bit_io, nal
from vfsd.codecs.bitstreams.bit_io import BitReader, BitString, BitWriter, DamagedError

_MACROBLOCK = 16
_HIGH = 100
_PROFILES = {66: "baseline", 77: "main", _HIGH: "high"}
"""Whose pictures are 4:2:0 of 8 bits, by the names that x264 has for them."""
_EXTENDED_RATIO = 255
_MAX_MOTION = 16
"""As far as motion vectors may reach: the highest value, which limits nothing."""
_MAX_CPBS = 32


@dataclass(frozen=True, slots=True)
class H264Sequence:
    """What a sequence parameter set says."""

    profile: int
    constraints: int
    level: int
    number: int  #: by which picture parameter sets refer to it
    macroblocks: tuple[int, int]  #: columns and rows
    crop: tuple[int, int, int, int]  #: left, right, top, bottom, in pairs of pixels
    references: int  #: frames that it lets pictures refer to
    #: everything from the number on, up to the flag that usability information follows
    head: BitString
    looks: BitString | None  #: that information, from the aspect ratio to the timing; None: none
    reorder: int | None  #: frames that may have to be held back; None: not told
    buffered: int | None  #: frames that a decoder may have to hold; None: not told

    @property
    def profile_name(self) -> str | None:
        """None for one whose pictures may be more than 4:2:0 of 8 bits."""
        return _PROFILES.get(self.profile)

    def is_plain(self, width: int, height: int) -> bool:
        """Whether its pictures are width x height, as x264 would say it."""
        columns, rows = -(-width // _MACROBLOCK), -(-height // _MACROBLOCK)
        right, bottom = columns * _MACROBLOCK - width, rows * _MACROBLOCK - height
        return self.macroblocks == (columns, rows) and self.crop == (0, right // 2, 0, bottom // 2)


def parse_h264_sequence(unit: bytes) -> H264Sequence | None:
    """A sequence parameter set, with its NAL header, of frames in 4:2:0 of 8 bits.

    None for pictures of another kind, and for fields.  Raises `DamagedError`.
    """
    reader = BitReader(bit_io.unescaped(unit)[1:])
    profile, constraints, level = reader.bits(8), reader.bits(8), reader.bits(8)
    if profile not in _PROFILES:
        return None
    start = reader.position
    number = reader.golomb()
    if profile == _HIGH:
        chroma, luma_depth, chroma_depth = reader.golomb(), reader.golomb(), reader.golomb()
        if (chroma, luma_depth, chroma_depth) != (1, 0, 0):
            return None
        reader.flag()  # lossless bypass
        if reader.flag():
            nal.skip_scaling_lists(reader, 8)
    nal.skip_picture_order(reader)
    references = reader.golomb()
    reader.flag()  # gaps allowed
    columns, rows = reader.golomb() + 1, reader.golomb() + 1
    if not reader.flag():
        return None
    reader.flag()  # direct prediction of 8x8
    crop = (0, 0, 0, 0)
    if reader.flag():
        crop = (reader.golomb(), reader.golomb(), reader.golomb(), reader.golomb())
    head = reader.between(start, reader.position)
    looks = reorder = buffered = None
    if reader.flag():
        looks, reorder, buffered = _read_vui(reader)
    return H264Sequence(
        profile, constraints, level, number, (columns, rows), crop, references, head, looks,
        reorder, buffered,
    )  # fmt: skip


def with_source_vui(unit: bytes, source: H264Sequence, reorder: int) -> bytes:
    """A set of our own encoder, which tells the looks of `source`, and that `reorder` frames may
    have to be held back.

    It claims the higher level of both.  Raises `DamagedError`.
    """
    own = parse_h264_sequence(unit)
    if own is None:
        raise bit_io.DamagedError("a sequence parameter set of another kind")
    writer = BitWriter()
    writer.bits(8, own.profile)
    writer.bits(8, own.constraints)
    writer.bits(8, max(own.level, source.level))
    writer.append(own.head)
    writer.flag(True)  # usability information follows
    writer.append(source.looks or BitString(0, 5))
    writer.bits(3, 0)  # no buffering in either kind of stream, no structure of pictures
    writer.flag(True)  # restrictions of the stream
    writer.flag(True)  # motion vectors over the edges
    writer.golomb(0)
    writer.golomb(0)
    writer.golomb(_MAX_MOTION)
    writer.golomb(_MAX_MOTION)
    writer.golomb(reorder)
    writer.golomb(max(own.references, reorder, source.buffered or source.references))
    return unit[:1] + bit_io.escaped(writer.finished())


def _read_vui(reader: BitReader) -> tuple[BitString, int | None, int | None]:
    """Annex E.1.1: the part on looks, frames held back, frames held."""
    start = reader.position
    if reader.flag() and reader.bits(8) == _EXTENDED_RATIO:
        reader.bits(32)
    if reader.flag():
        reader.flag()  # overscan
    if reader.flag():
        reader.bits(4)  # video format, full range
        if reader.flag():
            reader.bits(24)  # colours
    if reader.flag():
        reader.golomb()  # where chroma samples lie
        reader.golomb()
    if reader.flag():
        reader.bits(65)  # timing
    looks = reader.between(start, reader.position)
    buffers = [_skip_hrd(reader) for _ in range(2)]
    if any(buffers):
        reader.flag()  # low delay
    reader.flag()  # structure of pictures
    if not reader.flag():
        return looks, None, None
    reader.flag()  # motion vectors over the edges
    for _ in range(4):
        reader.golomb()
    return looks, reader.golomb(), reader.golomb()


def _skip_hrd(reader: BitReader) -> bool:
    """Annex E.1.2; False where there is nothing."""
    if not reader.flag():
        return False
    count = reader.golomb() + 1
    if count > _MAX_CPBS:
        raise bit_io.DamagedError("too many buffers")
    reader.bits(8)
    for _ in range(count):
        reader.golomb()
        reader.golomb()
        reader.flag()
    reader.bits(20)
    return True


IDR_W_RADL, IDR_N_LP, CRA_NUT = 19, 20, 21
BLA_TYPES = (16, 17, 18)  #: BLA pictures, with and without others that may precede them
_BLA_N_LP = 18  #: a BLA picture that no other precedes on the screen
_FIRST_RANDOM_ACCESS, _LAST_RANDOM_ACCESS = 16, 23
_FIRST_WITHOUT_SLICE = 32
_HEADER_BITS = 16
_FIRST_PPS_ID = 15
"""As an Exp-Golomb number, 0 is one bit and 15 to 30 are nine: put in its place, all that follows
moves by a whole byte, and stays as aligned as it was."""
_MAX_IDS = 16  #: of video and of sequence parameter sets
_MAIN, _MAIN10 = 1, 2
_BLOCKS = (8, 16, 32)  #: that x265 has


@dataclass(frozen=True, slots=True)
class HevcSequence:
    """What a sequence parameter set says."""

    number: int
    video_number: int  #: that of the video parameter set
    profile: int
    is_high_tier: bool
    chroma_format: int
    depth: int  #: bits of a luma sample; 0: chroma has another depth
    size: tuple[int, int]  #: of the coded picture, luma samples
    window: tuple[int, int, int, int]  #: not shown: left, right, top, bottom, luma samples
    reorder: int  #: frames that may have to be held back

    def block_of(self, width: int, height: int) -> int | None:
        """The smallest coding block with which x265 codes pictures of width x height in the same
        size: they are filled up at the right and the bottom to whole blocks.

        None where it does not, and for other pictures than 4:2:0 of 8 bits.
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
    """A sequence parameter set with its NAL header.  Raises `DamagedError`."""
    reader = BitReader(bit_io.unescaped(unit))
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
    reader.golomb()  # bits of the order of pictures
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
    """Of profile_tier_level (7.3.3), what stands behind the level."""
    told = [(reader.flag(), reader.flag()) for _ in range(sublayers)]
    if sublayers:
        reader.bits(2 * (8 - sublayers))
    for has_profile, has_level in told:
        reader.bits(88 * has_profile + 8 * has_level)


def free_parameter_set_id(sets: tuple[bytes, ...]) -> int | None:
    """One that `with_parameter_set_id` may give to sets beside these; None where all are taken.

    Raises `DamagedError`.
    """
    used = set()
    for unit in sets:
        kind, reader = nal.unit_type("hevc", unit), BitReader(bit_io.unescaped(unit))
        reader.bits(_HEADER_BITS)
        if kind == nal.HEVC_VPS:
            used.add(reader.bits(4))
        elif kind == nal.HEVC_SPS:
            used.add(parse_hevc_sequence(unit).number)
        elif kind == nal.HEVC_PPS:
            used.add(reader.golomb() - _FIRST_PPS_ID)
    return next((n for n in reversed(range(1, _MAX_IDS)) if n not in used), None)


def with_parameter_set_id(unit: bytes, number: int) -> bytes:
    """A parameter set of number 0, of whatever kind, with that number and references to it.

    `number` is below 16; picture parameter sets get 15 more.  Raises `DamagedError`.
    """
    kind = nal.unit_type("hevc", unit)
    payload = bit_io.unescaped(unit)
    reader, writer = BitReader(payload), BitWriter()
    writer.bits(_HEADER_BITS, reader.bits(_HEADER_BITS))
    if kind == nal.HEVC_PPS:
        if (reader.golomb(), reader.golomb()) != (0, 0):
            raise DamagedError("a picture parameter set has a number already")
        writer.golomb(_FIRST_PPS_ID + number)
        writer.golomb(number)
    else:
        if reader.bits(4):
            raise DamagedError("a parameter set refers to another video parameter set")
        writer.bits(4, number)
        if kind == nal.HEVC_SPS:
            start = reader.position
            sublayers = reader.bits(3)
            reader.bits(1 + 88 + 8)
            _skip_sublayers(reader, sublayers)
            writer.append(reader.between(start, reader.position))
            if reader.golomb():
                raise DamagedError("a sequence parameter set has a number already")
            writer.golomb(number)
    writer.append(reader.rest())
    return bit_io.escaped(writer.finished())


def with_pps_id(unit: bytes, number: int) -> bytes:
    """A slice of the picture parameter set 0, with that which `with_parameter_set_id` has made of
    it.

    Other units stay as they are.  Raises `DamagedError`.
    """
    kind = nal.unit_type("hevc", unit)
    if kind >= _FIRST_WITHOUT_SLICE:
        return unit
    payload = bit_io.unescaped(unit)
    if len(payload) < 4:
        raise DamagedError("a slice is too short")
    before = 2 if _FIRST_RANDOM_ACCESS <= kind <= _LAST_RANDOM_ACCESS else 1
    told, after = payload[2], 7 - before
    if not told >> after & 1:
        raise DamagedError("a slice refers to another picture parameter set")
    value = told >> after + 1
    value = value << 9 | _FIRST_PPS_ID + number + 1
    value = value << after | told & (1 << after) - 1
    return bit_io.escaped(payload[:2] + value.to_bytes(2, "big") + payload[3:])


def as_idr_packet(packet: bytes, prefix: int) -> bytes:
    """A key packet whose picture may follow others on the screen, marked as one that none does.

    Decoders then begin anew with it, whatever came before, and show all of that first (8.1.3,
    C.5.2.2).  `prefix` is as in `nal.units`.  Raises `DamagedError`.
    """
    changed = bytearray(packet)
    for start, end in nal.nal_units(packet, prefix):
        kind = nal.unit_type("hevc", packet[start:end])
        if kind in (CRA_NUT, *BLA_TYPES):
            changed[start] = packet[start] & 0x81 | _BLA_N_LP << 1
    return bytes(changed)
