"""Slice segment headers of HEVC (ITU-T H.265, 7.3.6).

They are parsed, and written again for another position in another picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfsd.codecs.bitstreams.bit_io import (
    BitReader,
    BitstreamError,
    BitString,
    BitWriter,
    escaped,
    escaped_offset,
    unescaped,
)
from vfsd.codecs.bitstreams.hevc_parameter_sets import (
    PictureParameterSet,
    ReferenceSet,
    SequenceParameterSet,
    parse_reference_set,
    require_stitchable,
)

_TRAIL, _TRAIL_REFERENCE, _IDR, _IDR_LAST = 0, 1, 19, 20
_FIRST_RESERVED = 32  #: NAL units from here on hold no slices
_HEADER_BITS = 16
_MAX_HEADER_BYTES = 160
"""Most bytes of a header. Without entry points, reference lists are the longest part."""
_MAX_REFERENCES = 16
_B, _P, _I = 0, 1, 2

MAX_HEADER_GROWTH = 12
"""Largest growth of a header in bytes.

18 bits of address, 12 of an ID, 12 of slice_qp_delta, one for entry points, up to a byte of
alignment, and emulation prevention.
"""


@dataclass(frozen=True, slots=True)
class PictureFields:
    """The fields in which all slices of a picture must agree (7.4.7.1)."""

    kind: int  #: nal_unit_type
    keeps_no_earlier: bool  #: no_output_of_prior_pics_flag
    shown: bool  #: pic_output_flag
    order: int  #: slice_pic_order_cnt_lsb
    references: ReferenceSet


@dataclass(frozen=True, slots=True)
class SliceSegment:
    """A slice segment and the fields of its header."""

    unit: bytes
    traits: PictureFields
    address: int  #: slice_segment_address
    picture_set: int  #: PPS ID
    before: BitString  #: bits between the address and slice_qp_delta
    slice_qp: int  #: init_qp + slice_qp_delta
    after: BitString  #: bits between slice_qp_delta and the entry points
    data_at: int  #: offset of the data in the unit


def holds_slice(unit: bytes) -> bool:
    """Return whether a unit is a slice segment. Raises `BitstreamError` without a header."""
    if len(unit) < 3:
        raise BitstreamError("a unit is too short")
    return unit[0] >> 1 & 0x3F < _FIRST_RESERVED


def begins_picture(unit: bytes) -> bool:
    """Return whether a slice segment is the first of its picture."""
    return bool(unit[2] & 0x80)


class SliceHeaderSyntax:
    """Reads and writes slices that use these parameter sets."""

    def __init__(self, sequence: SequenceParameterSet, picture: PictureParameterSet) -> None:
        self._sequence = sequence
        self._picture = picture
        across = -(-sequence.width // sequence.tree_block)
        down = -(-sequence.height // sequence.tree_block)
        self._blocks = across * down
        self._address_bits = (self._blocks - 1).bit_length()
        self._tiled = picture.tiles is not None or picture.uniform is not None

    def parse(self, unit: bytes) -> SliceSegment:
        """Parse a slice. Raises `BitstreamError`; `RefusedMediaError` for one that cannot be
        moved.
        """
        sequence, picture = self._sequence, self._picture
        reader = BitReader(unescaped(unit[:_MAX_HEADER_BYTES]))
        header = reader.bits(_HEADER_BITS)
        require_stitchable(header & 0x81FF == 1, "it has several layers")
        kind = header >> 9
        is_idr = kind in (_IDR, _IDR_LAST)
        require_stitchable(
            is_idr or kind in (_TRAIL, _TRAIL_REFERENCE), f"it has slices of kind {kind}"
        )
        is_first = reader.flag()
        keeps_no_earlier = reader.flag() if is_idr else False
        picture_set = reader.golomb()
        if picture_set != picture.id:
            raise BitstreamError("a slice refers to a missing PPS")
        address = 0 if is_first else reader.bits(self._address_bits)
        if address >= self._blocks or is_first != (address == 0):
            raise BitstreamError("slice address out of range")
        start = reader.position
        reader.bits(picture.extra_bits)
        slice_type = reader.golomb()
        if slice_type > _I or (is_idr and slice_type != _I):
            raise BitstreamError("slice type out of range")
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
        slice_qp = picture.init_qp + reader.signed_golomb()
        start = reader.position
        self._filters(reader, offset)
        after = reader.between(start, reader.position)
        if self._tiled:
            require_stitchable(reader.golomb() == 0, "a slice holds several tiles")
        if not reader.flag() or reader.bits(-reader.position % 8):
            raise BitstreamError("a slice header has trailing bits")
        traits = PictureFields(kind, keeps_no_earlier, shown, order, references)
        data_at = escaped_offset(unit, reader.position // 8)
        if data_at >= len(unit):
            raise BitstreamError("a slice has no data")
        return SliceSegment(unit, traits, address, picture_set, before, slice_qp, after, data_at)

    def write(self, part: SliceSegment, address: int) -> bytes:
        """Return `part` as a unit that begins at `address`.

        `part` must have been read with equivalent parameter sets.
        """
        writer = BitWriter()
        writer.bits(_HEADER_BITS, part.traits.kind << 9 | 1)
        writer.flag(address == 0)
        if part.traits.kind in (_IDR, _IDR_LAST):
            writer.flag(part.traits.keeps_no_earlier)
        writer.golomb(self._picture.id)
        if address:
            writer.bits(self._address_bits, address)
        writer.append(part.before)
        writer.signed_golomb(part.slice_qp - self._picture.init_qp)
        writer.append(part.after)
        if self._tiled:
            writer.golomb(0)  # num_entry_point_offsets
        return escaped(writer.finished()) + part.unit[part.data_at :]

    def _references(self, reader: BitReader) -> ReferenceSet:
        known = self._sequence.reference_sets
        if not reader.flag():
            return parse_reference_set(reader, len(known), known)
        index = reader.bits((len(known) - 1).bit_length()) if len(known) > 1 else 0
        if index >= len(known):
            raise BitstreamError("a slice refers to a missing reference picture set")
        return known[index]

    def _prediction(self, reader: BitReader, slice_type: int, references: ReferenceSet) -> None:
        picture = self._picture
        first, second = picture.references
        if reader.flag():  # num_ref_idx_active_override_flag
            first = reader.golomb() + 1
            if slice_type == _B:
                second = reader.golomb() + 1
        if max(first, second) > _MAX_REFERENCES:
            raise BitstreamError("too many reference pictures")
        used = sum(is_used for _, is_used in references)
        if not used:
            raise BitstreamError("an inter slice has no reference pictures")
        if picture.modifies_lists and used > 1:
            for count in (first, second) if slice_type == _B else (first,):
                if reader.flag():
                    reader.bits(count * (used - 1).bit_length())
        if slice_type == _B:
            reader.flag()
        if picture.cabac_init:
            reader.flag()
        reader.golomb()  # five_minus_max_num_merge_cand

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
