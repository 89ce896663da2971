"""HEVC of two encoders in one file: numbers of parameter sets that differ, and key pictures that
decoders begin with.

Names follow ITU-T H.265, 7.3.1.2 (NAL unit headers), 7.3.2 (parameter sets) and 7.3.6 (slices).
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams import bit_io, nal
from vfsd.codecs.bitstreams.bit_io import BitReader, BitWriter, DamagedError

IDR, IDR_ALONE, CRA = 19, 20, 21
BROKEN_LINKS = (16, 17, 18)  #: BLA pictures, with and without others that may precede them
_ALONE = 18  #: a BLA picture that no other precedes on the screen
_FIRST_RANDOM_ACCESS, _LAST_RANDOM_ACCESS = 16, 23
_FIRST_WITHOUT_SLICE = 32
_HEADER_BITS = 16
_PICTURE_SETS_FROM = 15
"""As an Exp-Golomb number, 0 is one bit and 15 to 30 are nine: put in its place, all that follows
moves by a whole byte, and stays as aligned as it was."""
_MOST_NUMBERS = 16  #: of video and of sequence parameter sets
_MAIN, _MAIN10 = 1, 2
_BLOCKS = (8, 16, 32)  #: that x265 has


@dataclass(frozen=True, slots=True)
class Sequence:
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


def parse_sequence(unit: bytes) -> Sequence:
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
    return Sequence(
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


def free_number(sets: tuple[bytes, ...]) -> int | None:
    """One that `renumbered_set` may give to sets beside these; None where all are taken.

    Raises `DamagedError`.
    """
    used = set()
    for unit in sets:
        kind, reader = nal.unit_type("hevc", unit), BitReader(bit_io.unescaped(unit))
        reader.bits(_HEADER_BITS)
        if kind == nal.HEVC_VPS:
            used.add(reader.bits(4))
        elif kind == nal.HEVC_SPS:
            used.add(parse_sequence(unit).number)
        elif kind == nal.HEVC_PPS:
            used.add(reader.golomb() - _PICTURE_SETS_FROM)
    return next((n for n in reversed(range(1, _MOST_NUMBERS)) if n not in used), None)


def renumbered_set(unit: bytes, number: int) -> bytes:
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
        writer.golomb(_PICTURE_SETS_FROM + number)
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


def renumbered_slice(unit: bytes, number: int) -> bytes:
    """A slice of the picture parameter set 0, with that which `renumbered_set` has made of it.

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
    value = value << 9 | _PICTURE_SETS_FROM + number + 1
    value = value << after | told & (1 << after) - 1
    return bit_io.escaped(payload[:2] + value.to_bytes(2, "big") + payload[3:])


def without_preceding(packet: bytes, prefix: int) -> bytes:
    """A key packet whose picture may follow others on the screen, marked as one that none does.

    Decoders then begin anew with it, whatever came before, and show all of that first (8.1.3,
    C.5.2.2).  `prefix` is as in `nal.units`.  Raises `DamagedError`.
    """
    changed = bytearray(packet)
    for start, end in nal.units(packet, prefix):
        kind = nal.unit_type("hevc", packet[start:end])
        if kind in (CRA, *BROKEN_LINKS):
            changed[start] = packet[start] & 0x81 | _ALONE << 1
    return bytes(changed)
