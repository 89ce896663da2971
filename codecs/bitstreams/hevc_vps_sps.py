"""Parameter sets of HEVC for videos and sequences, read as far as stitching needs it, and written.

What is read is the syntax of ITU-T H.265, 7.3.2 and annex E.2.1; names follow it.  What stays the
same is kept as the bits that it is.  A set with anything that is not known to stay right in a
picture of another size is refused, not guessed at.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import (
    BitReader,
    Bits,
    BitWriter,
    DamagedError,
    escaped,
    unescaped,
)
from vfsd.errors import RefusedMediaError

HEADER_BITS = 16  #: of each NAL unit
_MAIN = 1
_MOST_SHORT_TERM_SETS = 64
_MOST_REFERENCES = 16
LARGEST_SIDE = 16888  #: of any level: sqrt(8 * 35651584) luma samples

ReferenceSet = tuple[tuple[int, bool], ...]
"""Short-term reference pictures: how much later each is shown than the current picture, and
whether the current one uses it."""


def require(condition: bool, what: str) -> None:
    """Raises `RefusedMediaError` unless the stream has the property that stitching needs."""
    if not condition:
        raise RefusedMediaError(f"this HEVC stream cannot be stitched: {what}")


@dataclass(frozen=True, slots=True)
class Window:
    """The conformance window: how much of a coded picture is not shown, luma samples."""

    right: int = 0
    bottom: int = 0


# ------------------------------------------------------------------------- video parameter sets


@dataclass(frozen=True, slots=True)
class VideoSet:
    """A video parameter set (7.3.2.1)."""

    head: Bits  #: up to general_level_idc
    level_idc: int
    tail: Bits

    @classmethod
    def parse(cls, unit: bytes) -> VideoSet:
        reader = payload_of(unit, nal.HEVC_VPS)
        reader.bits(4 + 2)  # its id; flags of the base layer
        layers, sublayers = reader.bits(6), reader.bits(3)
        require(layers == 0, "it has layers")
        reader.bits(1 + 16)
        _profile(reader)
        head = reader.between(0, reader.position)
        level_idc = reader.bits(8)
        tail_at = reader.position
        _sublayers(reader, sublayers)
        _buffers(reader, sublayers)
        require(reader.bits(6) == reader.golomb() == 0, "it has layers")
        if reader.flag():  # timing
            reader.bits(64)
            if reader.flag():
                reader.golomb()
            require(reader.golomb() == 0, "it describes a buffer")
        require(not reader.flag(), "its video parameter set is extended")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise DamagedError("the video parameter set does not end where it should")
        return cls(head, level_idc, tail)

    def is_like(self, other: VideoSet) -> bool:
        return (self.head, self.tail) == (other.head, other.tail)

    def write(self) -> bytes:
        writer = BitWriter()
        writer.append(self.head)
        writer.bits(8, self.level_idc)
        writer.append(self.tail)
        return escaped(writer.finished())


# ---------------------------------------------------------------------- sequence parameter sets


@dataclass(frozen=True, slots=True)
class SequenceSet:
    """A sequence parameter set (7.3.2.2): 4:2:0, 8 bits.

    Of what it leaves out, nothing is in use: temporal motion vector prediction, long-term
    references, lists of scaling factors, extensions.
    """

    head: Bits  #: up to general_level_idc
    level_idc: int
    middle: Bits  #: up to the size
    width: int  #: of the coded picture, luma samples
    height: int
    window: Window
    tail: Bits  #: behind the conformance window
    order_bits: int  #: of slice_pic_order_cnt_lsb
    buffers: int  #: sps_max_dec_pic_buffering
    coding_block: int  #: the smallest, luma samples
    tree_block: int  #: side of a coding tree block, luma samples
    adaptive_offset: bool
    reference_sets: tuple[ReferenceSet, ...]
    rate: Fraction | None  #: pictures a second, where it tells

    @classmethod
    def parse(cls, unit: bytes) -> SequenceSet:
        reader = payload_of(unit, nal.HEVC_SPS)
        reader.bits(4)
        sublayers = reader.bits(3)
        reader.flag()
        _profile(reader)
        head = reader.between(0, reader.position)
        level_idc = reader.bits(8)
        middle_at = reader.position
        _sublayers(reader, sublayers)
        require(reader.golomb() == 0, "it has several sequence parameter sets")
        require(reader.golomb() == 1, "its chroma is not 4:2:0")
        middle = reader.between(middle_at, reader.position)
        width, height = reader.golomb(), reader.golomb()
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
            raise DamagedError("the size is out of bounds")
        window = _window(reader, width, height)
        tail_at = reader.position
        require(reader.golomb() == reader.golomb() == 0, "it has more than 8 bits a sample")
        order_bits = reader.golomb() + 4
        buffers = _buffers(reader, sublayers)
        coding_log = reader.golomb() + 3
        tree_log = coding_log + reader.golomb()
        if not (tree_log <= 6 and order_bits <= 16 and buffers <= _MOST_REFERENCES):
            raise DamagedError("the sequence parameter set is out of bounds")
        if width % (1 << coding_log) or height % (1 << coding_log):
            raise DamagedError("the size must be a multiple of the smallest block's")
        for _ in range(4):  # sizes and depths of transform blocks
            reader.golomb()
        if reader.flag():
            require(not reader.flag(), "it has scaling lists")
        reader.flag()  # asymmetric motion partitions
        adaptive_offset = reader.flag()
        if reader.flag():  # samples may be coded as they are
            reader.bits(8)
            reader.golomb()
            reader.golomb()
            reader.flag()
        sets = _reference_sets(reader)
        require(not reader.flag(), "it has long-term references")
        require(not reader.flag(), "it predicts motion from other pictures")
        reader.flag()  # strong intra smoothing
        rate = _usability(reader) if reader.flag() else None
        require(not reader.flag(), "its sequence parameter set is extended")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise DamagedError("the sequence parameter set does not end where it should")
        return cls(
            *(head, level_idc, middle, width, height, window, tail, order_bits, buffers),
            *(1 << coding_log, 1 << tree_log, adaptive_offset, sets, rate),
        )

    def is_like(self, other: SequenceSet) -> bool:
        """Whether slices of pictures of the one can be decoded with the other, sizes apart."""
        return (self.head, self.middle, self.tail) == (other.head, other.middle, other.tail)

    def resized(self, width: int, height: int, window: Window, level_idc: int) -> SequenceSet:
        return dataclasses.replace(
            self, width=width, height=height, window=window, level_idc=level_idc
        )

    def write(self) -> bytes:
        writer = BitWriter()
        writer.append(self.head)
        writer.bits(8, self.level_idc)
        writer.append(self.middle)
        writer.golomb(self.width)
        writer.golomb(self.height)
        writer.flag(self.window != Window())
        if self.window != Window():
            for samples in (0, self.window.right, 0, self.window.bottom):
                writer.golomb(samples // 2)  # units of a chroma sample
        writer.append(self.tail)
        return escaped(writer.finished())


def payload_of(unit: bytes, kind: int) -> BitReader:
    """Behind the header of a parameter set of that kind.  Raises `DamagedError`,
    `RefusedMediaError`."""
    if len(unit) < 3 or nal.unit_type("hevc", unit) != kind:
        raise DamagedError("a parameter set is of another kind or empty")
    reader = BitReader(unescaped(unit))
    require(reader.bits(HEADER_BITS) & 0x1FF == 1, "it has layers")
    return reader


def _profile(reader: BitReader) -> None:
    """profile_tier_level without the level (7.3.3)."""
    reader.bits(2)
    require(not reader.flag(), "it is of the High tier")
    require(reader.bits(5) == _MAIN, "it is not of the Main profile")
    reader.bits(32 + 48)


def _sublayers(reader: BitReader, sublayers: int) -> None:
    """What profile_tier_level says behind the level: nothing of any of the sub-layers."""
    if sublayers:
        require(reader.bits(2 * sublayers) == 0, "it describes sub-layers")
        reader.bits(2 * (8 - sublayers))


def _buffers(reader: BitReader, sublayers: int) -> int:
    """How many decoded pictures are kept at most, the current one among them."""
    buffers = 0
    for _ in range(sublayers + 1 if reader.flag() else 1):
        buffers = reader.golomb() + 1
        require(reader.golomb() == 0, "its pictures are reordered")
        reader.golomb()  # latency
    return buffers


def _window(reader: BitReader, width: int, height: int) -> Window:
    if not reader.flag():
        return Window()
    left, right, top, bottom = (2 * reader.golomb() for _ in range(4))
    require(left == top == 0, "its pictures are cut at the left or the top")
    if right >= width or bottom >= height:
        raise DamagedError("the conformance window is empty")
    return Window(right, bottom)


def _reference_sets(reader: BitReader) -> tuple[ReferenceSet, ...]:
    count = reader.golomb()
    if count > _MOST_SHORT_TERM_SETS:
        raise DamagedError("there are too many reference picture sets")
    sets: list[ReferenceSet] = []
    for index in range(count):
        sets.append(parse_reference_set(reader, index, sets))
    return tuple(sets)


def parse_reference_set(
    reader: BitReader, index: int, known: list[ReferenceSet] | tuple[ReferenceSet, ...]
) -> ReferenceSet:
    """st_ref_pic_set(index) (7.3.7, 7.4.8); in a slice header, `index` is the number of `known`."""
    if index and reader.flag():
        require(False, "a reference picture set is told by another")
    earlier, later = reader.golomb(), reader.golomb()
    if earlier + later > _MOST_REFERENCES:
        raise DamagedError("there are too many reference pictures")
    found = []
    for count, sign in ((earlier, -1), (later, 1)):
        distance = 0
        for _ in range(count):
            distance += sign * (reader.golomb() + 1)
            found.append((distance, reader.flag()))
    return tuple(found)


def _usability(reader: BitReader) -> Fraction | None:
    """vui_parameters: the rate, where it is told (E.2.1)."""
    if reader.flag() and reader.bits(8) == 255:  # aspect ratio of samples
        reader.bits(32)
    if reader.flag():  # overscan
        reader.flag()
    if reader.flag():  # video signal
        reader.bits(4)
        if reader.flag():
            reader.bits(24)
    if reader.flag():  # place of chroma samples
        reader.golomb()
        reader.golomb()
    reader.flag()
    require(reader.bits(2) == 0, "it has fields")
    require(not reader.flag(), "it has a default display window")
    rate = None
    if reader.flag():
        ticks, scale = reader.bits(32), reader.bits(32)
        rate = Fraction(scale, ticks) if ticks and scale else None
        if reader.flag():
            reader.golomb()
        require(not reader.flag(), "it describes a buffer")
    require(not reader.flag(), "it restricts its bitstream")
    return rate
