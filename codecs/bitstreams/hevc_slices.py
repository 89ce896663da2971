"""Slice segment headers of HEVC: parsed, and written again for another position in another
picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams.bit_io import (
    BitReader,
    BitString,
    BitWriter,
    DamagedError,
    escaped,
    escaped_offset,
    unescaped,
)
from vfsd.codecs.bitstreams.hevc_parameter_sets import (
    PictureParameterSet,
    ReferenceSet,
    SequenceParameterSet,
    parse_reference_set,
    require,
)

_TRAIL, _TRAIL_REFERENCE, _IDR, _IDR_LAST = 0, 1, 19, 20
_FIRST_RESERVED = 32  #: NAL units from here on hold no slices
_HEADER_BITS = 16
_MAX_HEADER_BYTES = 160
"""Bytes.  Without entry points, lists of references are the longest part."""
_MAX_REFERENCES = 16
_B, _P, _I = 0, 1, 2

MAX_HEADER_GROWTH = 12
"""By how many bytes a header may grow: 18 bits of the address, 12 of an id, 12 of a quantiser, one
for entry points, up to a byte of alignment; and emulation prevention."""


@dataclass(frozen=True, slots=True)
class PictureFields:
    """What all slices of a picture have to agree on (7.4.7.1)."""

    kind: int  #: of the NAL unit
    keeps_no_earlier: bool  #: no_output_of_prior_pics_flag
    shown: bool
    order: int  #: slice_pic_order_cnt_lsb
    references: ReferenceSet


@dataclass(frozen=True, slots=True)
class SliceSegment:
    """A slice segment and what is in its header."""

    unit: bytes
    traits: PictureFields
    address: int  #: of the first coding tree block, in raster order
    picture_set: int  #: id
    before: BitString  #: between the address and the quantiser
    quantiser: int
    after: BitString  #: between the quantiser and the entry points
    data_at: int  #: where in the unit the data begin


def holds_slice(unit: bytes) -> bool:
    """Raises `DamagedError` for a unit without a header."""
    if len(unit) < 3:
        raise DamagedError("a unit is too short")
    return unit[0] >> 1 & 0x3F < _FIRST_RESERVED


def begins_picture(unit: bytes) -> bool:
    """Whether a unit that holds a slice holds the first of its picture."""
    return bool(unit[2] & 0x80)


class SliceHeaderSyntax:
    """How slices are read that belong to these parameter sets."""

    def __init__(self, sequence: SequenceParameterSet, picture: PictureParameterSet) -> None:
        self._sequence = sequence
        self._picture = picture
        across = -(-sequence.width // sequence.tree_block)
        down = -(-sequence.height // sequence.tree_block)
        self._blocks = across * down
        self._address_bits = (self._blocks - 1).bit_length()
        self._tiled = picture.tiles is not None or picture.uniform is not None

    def parse(self, unit: bytes) -> SliceSegment:
        """Raises `DamagedError`; `RefusedMediaError` for what cannot be moved."""
        sequence, picture = self._sequence, self._picture
        reader = BitReader(unescaped(unit[:_MAX_HEADER_BYTES]))
        header = reader.bits(_HEADER_BITS)
        require(header & 0x81FF == 1, "it has layers")
        kind = header >> 9
        is_idr = kind in (_IDR, _IDR_LAST)
        require(is_idr or kind in (_TRAIL, _TRAIL_REFERENCE), f"it has slices of kind {kind}")
        is_first = reader.flag()
        keeps_no_earlier = reader.flag() if is_idr else False
        picture_set = reader.golomb()
        if picture_set != picture.id:
            raise DamagedError("a slice refers to a parameter set that is not there")
        address = 0 if is_first else reader.bits(self._address_bits)
        if address >= self._blocks or is_first != (address == 0):
            raise DamagedError("the address of a slice is out of bounds")
        start = reader.position
        reader.bits(picture.extra_bits)
        slice_type = reader.golomb()
        if slice_type > _I or (is_idr and slice_type != _I):
            raise DamagedError("the type of a slice is out of bounds")
        shown = reader.flag() if picture.hides_pictures else True
        order = 0
        references: ReferenceSet = ()
        if not is_idr:
            order = reader.bits(sequence.order_bits)
            references = self._references(reader)
        offset = False
        if sequence.adaptive_offset:
            luma, chroma = reader.flag(), reader.flag()
            offset = luma or chroma
        if slice_type != _I:
            self._prediction(reader, slice_type, references)
        before = reader.between(start, reader.position)
        quantiser = picture.quantiser + reader.signed_golomb()
        start = reader.position
        self._filters(reader, offset)
        after = reader.between(start, reader.position)
        if self._tiled:
            require(reader.golomb() == 0, "a slice holds several tiles")
        if not reader.flag() or reader.bits(-reader.position % 8):
            raise DamagedError("the header of a slice does not end where it should")
        traits = PictureFields(kind, keeps_no_earlier, shown, order, references)
        data_at = escaped_offset(unit, reader.position // 8)
        if data_at >= len(unit):
            raise DamagedError("a slice has no data")
        return SliceSegment(unit, traits, address, picture_set, before, quantiser, after, data_at)

    def write(self, part: SliceSegment, address: int) -> bytes:
        """`part`, which was read with parameter sets like these, as a unit that begins at
        `address`."""
        writer = BitWriter()
        writer.bits(_HEADER_BITS, part.traits.kind << 9 | 1)
        writer.flag(address == 0)
        if part.traits.kind in (_IDR, _IDR_LAST):
            writer.flag(part.traits.keeps_no_earlier)
        writer.golomb(self._picture.id)
        if address:
            writer.bits(self._address_bits, address)
        writer.append(part.before)
        writer.signed_golomb(part.quantiser - self._picture.quantiser)
        writer.append(part.after)
        if self._tiled:
            writer.golomb(0)  # entry points
        return escaped(writer.finished()) + part.unit[part.data_at :]

    def _references(self, reader: BitReader) -> ReferenceSet:
        known = self._sequence.reference_sets
        if not reader.flag():
            return parse_reference_set(reader, len(known), known)
        index = reader.bits((len(known) - 1).bit_length()) if len(known) > 1 else 0
        if index >= len(known):
            raise DamagedError("a slice refers to a reference picture set that is not there")
        return known[index]

    def _prediction(self, reader: BitReader, slice_type: int, references: ReferenceSet) -> None:
        picture = self._picture
        first, second = picture.references
        if reader.flag():  # other numbers of references
            first = reader.golomb() + 1
            if slice_type == _B:
                second = reader.golomb() + 1
        if max(first, second) > _MAX_REFERENCES:
            raise DamagedError("there are too many reference pictures")
        used = sum(is_used for _, is_used in references)
        if not used:
            raise DamagedError("a slice is predicted from nothing")
        if picture.modifies_lists and used > 1:
            for count in (first, second) if slice_type == _B else (first,):
                if reader.flag():
                    reader.bits(count * (used - 1).bit_length())
        if slice_type == _B:
            reader.flag()
        if picture.cabac_init:
            reader.flag()
        reader.golomb()  # candidates for merging

    def _filters(self, reader: BitReader, offset: bool) -> None:
        picture = self._picture
        if picture.chroma_offsets:
            reader.signed_golomb()
            reader.signed_golomb()
        off = picture.filter_off
        if picture.filter_override and reader.flag():
            off = reader.flag()
            if not off:
                reader.signed_golomb()
                reader.signed_golomb()
        if picture.filter_across_slices and (offset or not off):
            reader.flag()
