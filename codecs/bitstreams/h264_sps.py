"""Sequence parameter sets of H.264: what ours must have in common with those of another stream.

Where packets of an encoder of ours stand beside those of another one, decoders must have no reason
to set themselves up anew on the way: pictures have the same size, and all that a set tells of their
looks (ITU-T H.264, annex E) is told in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams import bit_io, nal
from vfsd.codecs.bitstreams.bit_io import BitReader, Bits, BitWriter

_MACROBLOCK = 16
_HIGH = 100
_PROFILES = {66: "baseline", 77: "main", _HIGH: "high"}
"""Whose pictures are 4:2:0 of 8 bits, by the names that x264 has for them."""
_EXTENDED_RATIO = 255
_MOST_MOTION = 16
"""As far as motion vectors may reach: the highest value, which limits nothing."""
_MOST_CPBS = 32


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a sequence parameter set says."""

    profile: int
    constraints: int
    level: int
    number: int  #: by which picture parameter sets refer to it
    macroblocks: tuple[int, int]  #: columns and rows
    crop: tuple[int, int, int, int]  #: left, right, top, bottom, in pairs of pixels
    references: int  #: frames that it lets pictures refer to
    head: Bits  #: everything from the number on, up to the flag that usability information follows
    looks: Bits | None  #: that information, from the aspect ratio to the timing; None: none
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


def parse(unit: bytes) -> Sequence | None:
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
        looks, reorder, buffered = _usability(reader)
    return Sequence(
        profile, constraints, level, number, (columns, rows), crop, references, head, looks,
        reorder, buffered,
    )  # fmt: skip


def dressed(unit: bytes, source: Sequence, reorder: int) -> bytes:
    """A set of our own encoder, which tells the looks of `source`, and that `reorder` frames may
    have to be held back.

    It claims the higher level of both.  Raises `DamagedError`.
    """
    own = parse(unit)
    if own is None:
        raise bit_io.DamagedError("a sequence parameter set of another kind")
    writer = BitWriter()
    writer.bits(8, own.profile)
    writer.bits(8, own.constraints)
    writer.bits(8, max(own.level, source.level))
    writer.append(own.head)
    writer.flag(True)  # usability information follows
    writer.append(source.looks or Bits(0, 5))
    writer.bits(3, 0)  # no buffering in either kind of stream, no structure of pictures
    writer.flag(True)  # restrictions of the stream
    writer.flag(True)  # motion vectors over the edges
    writer.golomb(0)
    writer.golomb(0)
    writer.golomb(_MOST_MOTION)
    writer.golomb(_MOST_MOTION)
    writer.golomb(reorder)
    writer.golomb(max(own.references, reorder, source.buffered or source.references))
    return unit[:1] + bit_io.escaped(writer.finished())


def _usability(reader: BitReader) -> tuple[Bits, int | None, int | None]:
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
    buffers = [_skip_buffering(reader) for _ in range(2)]
    if any(buffers):
        reader.flag()  # low delay
    reader.flag()  # structure of pictures
    if not reader.flag():
        return looks, None, None
    reader.flag()  # motion vectors over the edges
    for _ in range(4):
        reader.golomb()
    return looks, reader.golomb(), reader.golomb()


def _skip_buffering(reader: BitReader) -> bool:
    """Annex E.1.2; False where there is nothing."""
    if not reader.flag():
        return False
    count = reader.golomb() + 1
    if count > _MOST_CPBS:
        raise bit_io.DamagedError("too many buffers")
    reader.bits(8)
    for _ in range(count):
        reader.golomb()
        reader.golomb()
        reader.flag()
    reader.bits(20)
    return True
