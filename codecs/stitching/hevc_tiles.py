"""HEVC tiles as streams of their own (`TileStream`), and their extraction from a tiled stream.

Slice segment headers (ITU-T H.265, 7.3.6) are parsed and written again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import (
    BitReader,
    BitstreamError,
    BitString,
    BitWriter,
    escaped,
    escaped_offset,
    unescaped,
)
from vfsd.codecs.stitching.hevc_parameter_sets import (
    HIGHEST_LEVEL_IDC,
    ConformanceWindow,
    LevelRequirements,
    PictureParameterSet,
    ReferenceSet,
    SequenceParameterSet,
    TileGrid,
    VideoParameterSet,
    parse_reference_set,
    require_stitchable,
)
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.tiling.layout import Rect

_TRAIL, _TRAIL_REFERENCE, _IDR, _IDR_LAST = 0, 1, 19, 20
_FIRST_RESERVED = 32  #: NAL units from here on hold no slices
_HEADER_BITS = 16
# Most bytes of a header. Without entry points, reference lists are the longest part.
_MAX_HEADER_BYTES = 160
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
        stored = self._sequence.reference_sets
        if not reader.flag():
            return parse_reference_set(reader, len(stored), stored)
        index = reader.bits((len(stored) - 1).bit_length()) if len(stored) > 1 else 0
        if index >= len(stored):
            raise BitstreamError("a slice refers to a missing reference picture set")
        return stored[index]

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


STITCHABLE = "stitchable"
"""The profile of streams with motion vectors that stay within their tile.

Headers do not signal this, and without it pictures would drift unnoticed. The encoder
(`vfsd.codecs.stitching.kvazaar`) guarantees it, and callers of the stitcher must state it.
"""

# nal_unit_type (H.265 table 7-1) of AUD, EOS, EOB, FD and SEI. SEI may describe the old picture.
_DROPPED_UNITS = frozenset((35, 36, 37, 38, 39, 40))


@dataclass(frozen=True, slots=True)
class TileStream:
    """One tile of one segment: a stream that decodes on its own.

    The first picture is an IDR picture; decode order is display order.
    """

    rect: Rect  #: its part of the picture
    parameter_sets: tuple[bytes, ...]  #: NAL units: VPS, SPS, PPS
    pictures: tuple[bytes, ...] = ()  #: packets with start codes; empty if only sets are known


@dataclass(frozen=True, slots=True)
class ParameterSets:
    """The VPS, SPS and PPS of one stream."""

    video: VideoParameterSet
    sequence: SequenceParameterSet
    picture: PictureParameterSet

    @classmethod
    def parse(cls, units: tuple[bytes, ...]) -> ParameterSets:
        """Parse the units (VPS, SPS, PPS).

        Raises `BitstreamError`, and `RefusedMediaError` for streams that cannot be stitched.
        """
        kinds = [nal.unit_type("hevc", unit) if unit else None for unit in units]
        if kinds != [nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS]:
            raise BitstreamError("the stream must have one VPS, SPS and PPS")
        video, sequence, picture = units
        return cls(
            VideoParameterSet.parse(video),
            SequenceParameterSet.parse(sequence),
            PictureParameterSet.parse(picture),
        )

    def is_like(self, other: ParameterSets) -> bool:
        """Return whether pictures of both may be tiles of one picture."""
        return (
            self.video.is_like(other.video)
            and self.sequence.is_like(other.sequence)
            and self.picture.is_like(other.picture)
        )

    def demand(
        self, width: int, height: int, tiles: TileGrid, bits_per_second: int = 0
    ) -> LevelRequirements:
        """Return the level requirements of pictures of that coded size with these settings."""
        return LevelRequirements(
            *(width, height, len(tiles.columns), len(tiles.rows)),
            *(self.sequence.buffers, self.sequence.rate, bits_per_second),
        )

    def changed(
        self,
        width: int,
        height: int,
        window: ConformanceWindow,
        tiles: TileGrid,
        *,
        picture_id: int = 0,
        level_idc: int | None = None,
    ) -> ParameterSets:
        """Return parameter sets for another coded size and other tiles.

        Without `level_idc`, the level is the lowest that allows them at any bit rate.
        """
        if level_idc is None:
            level = self.demand(width, height, tiles).lowest_level()
            level_idc = HIGHEST_LEVEL_IDC if level is None else level.idc
        return ParameterSets(
            dataclasses.replace(self.video, level_idc=level_idc),
            self.sequence.resized(width, height, window, level_idc),
            self.picture.tiled(tiles, picture_id),
        )

    def write(self) -> tuple[bytes, ...]:
        """Return the three NAL units."""
        return self.video.write(), self.sequence.write(), self.picture.write()


def slices_of(packet: bytes) -> list[bytes]:
    """Return the slice units of `packet`.

    Raises `BitstreamError`, and `RefusedMediaError` for other units that matter.
    """
    found = []
    for start, end in nal.nal_units(packet, 0):
        unit = packet[start:end]
        if holds_slice(unit):
            found.append(unit)
        elif nal.unit_type("hevc", unit) not in _DROPPED_UNITS:
            raise RefusedMediaError("a packet holds units other than slices")
    return found


def require_profile(profile: str) -> None:
    """Raise `RefusedMediaError` unless motion vectors are known to stay within their tile."""
    if profile != STITCHABLE:
        raise RefusedMediaError(
            f"streams of profile {profile!r} cannot be stitched: motion vectors may leave the tile"
        )


@contextmanager
def refuse_damaged_streams() -> Iterator[None]:
    """Convert `BitstreamError` to `RefusedMediaError`."""
    try:
        yield
    except BitstreamError as error:
        raise RefusedMediaError(f"this HEVC stream is damaged: {error}") from error


def extract_tiles(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], *, profile: str
) -> list[TileStream]:
    """Return every tile, row by row.

    `pictures` are packets with start codes and without parameter sets. Each tile must be one slice.
    Raises `RefusedMediaError` if the stream cannot be split.
    """
    require_profile(profile)
    with refuse_damaged_streams():
        sets = ParameterSets.parse(parameter_sets)
        tiles = _TileExtractor(sets)
        units = [slices_of(packet) for packet in pictures]
        return [tiles.extract(index, units) for index in range(len(tiles))]


def extract_tile(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], index: int, *, profile: str
) -> TileStream:
    """Return tile `index`, counted row by row from 0; see `extract_tiles`.

    Raises `UsageError` if it does not exist.
    """
    require_profile(profile)
    with refuse_damaged_streams():
        tiles = _TileExtractor(ParameterSets.parse(parameter_sets))
        if not 0 <= index < len(tiles):
            raise UsageError(f"tile {index} does not exist: the picture has {len(tiles)}")
        return tiles.extract(index, [slices_of(packet) for packet in pictures])


class _TileExtractor:
    """Extracts tiles from pictures with these parameter sets."""

    def __init__(self, sets: ParameterSets) -> None:
        self._sets = sets
        self._layout = sets.picture.tiles_of(sets.sequence)
        self._reader = SliceHeaderSyntax(sets.sequence, sets.picture)

    def __len__(self) -> int:
        return len(self._layout.columns) * len(self._layout.rows)

    def extract(self, index: int, units: Sequence[Sequence[bytes]]) -> TileStream:
        """Return tile `index`; `units` are the slices of each picture."""
        row, column = divmod(index, len(self._layout.columns))
        x, y = sum(self._layout.columns[:column]), sum(self._layout.rows[:row])
        address = y * sum(self._layout.columns) + x
        rect, sets = self._alone(row, column)
        writer = SliceHeaderSyntax(sets.sequence, sets.picture)
        pictures = []
        for found in units:
            if len(found) != len(self):
                raise BitstreamError("a picture must have one slice for each tile")
            part = self._reader.parse(found[index])
            if part.address != address:
                raise BitstreamError("a slice does not begin at its tile")
            pictures.append(nal.START_CODE + writer.write(part, 0))
        return TileStream(rect, sets.write(), tuple(pictures))

    def _alone(self, row: int, column: int) -> tuple[Rect, ParameterSets]:
        """Return the rectangle of a tile, and the parameter sets of its stream."""
        sequence, layout = self._sets.sequence, self._layout
        block = sequence.tree_block
        x1, y1 = sum(layout.columns[:column]) * block, sum(layout.rows[:row]) * block
        x2 = min(x1 + layout.columns[column] * block, sequence.width)
        y2 = min(y1 + layout.rows[row] * block, sequence.height)
        hidden = ConformanceWindow(
            max(0, x2 - (sequence.width - sequence.window.right)),
            max(0, y2 - (sequence.height - sequence.window.bottom)),
        )
        if hidden.right >= x2 - x1 or hidden.bottom >= y2 - y1:
            raise BitstreamError("a tile shows nothing")
        one = TileGrid((layout.columns[column],), (layout.rows[row],))
        sets = self._sets.changed(x2 - x1, y2 - y1, hidden, one)
        return Rect(x1, y1, x2 - hidden.right, y2 - hidden.bottom), sets
