"""HEVC parameter sets (VPS, SPS, PPS), parsed as far as stitching needs them, and written again.

Includes the level limits of ITU-T H.265 annex A.4. Clauses in this module refer to H.265.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import (
    BitReader,
    BitstreamError,
    BitString,
    BitWriter,
    escaped,
    unescaped,
)
from vfsd.codecs.bitstreams.sei_vui import skip_display_fields
from vfsd.errors import RefusedMediaError

# CpbNalFactor and BrNalFactor of the Main profile (table A.10): bits per unit of the tables.
_NAL_FACTOR = 1100
_MAX_BUFFERS = 16
_BUFFERS_AT_FULL_SIZE = 6

MIN_COLUMN_WIDTH, MIN_ROW_HEIGHT = 256, 64
"""The smallest tiles of the Main profile in luma samples (A.3.2)."""


@dataclass(frozen=True, slots=True)
class HevcLevel:
    """A row of tables A.8 and A.9."""

    idc: int  #: general_level_idc: 30 times the level
    samples: int  #: MaxLumaPs
    units: int  #: MaxCPB and MaxBR of the Main tier, in units of 1100 bits (per second)
    slices: int  #: MaxSliceSegmentsPerPicture
    rows: int  #: MaxTileRows
    columns: int  #: MaxTileCols
    samples_per_second: int  #: MaxLumaSr

    def buffers(self, samples: int) -> int:
        """Return MaxDpbSize for pictures of `samples` luma samples (A.4.2)."""
        for shrunk in (4, 2):
            if samples * shrunk <= self.samples:
                return min(shrunk * _BUFFERS_AT_FULL_SIZE, _MAX_BUFFERS)
        at_least_a_quarter_smaller = samples * 4 <= self.samples * 3
        return 4 * _BUFFERS_AT_FULL_SIZE // 3 if at_least_a_quarter_smaller else 6


HEVC_LEVELS = (
    HevcLevel(30, 36864, 128, 16, 1, 1, 552960),
    HevcLevel(60, 122880, 1500, 16, 1, 1, 3686400),
    HevcLevel(63, 245760, 3000, 20, 1, 1, 7372800),
    HevcLevel(90, 552960, 6000, 30, 2, 2, 16588800),
    HevcLevel(93, 983040, 10000, 40, 3, 3, 33177600),
    HevcLevel(120, 2228224, 12000, 75, 5, 5, 66846720),
    HevcLevel(123, 2228224, 20000, 75, 5, 5, 133693440),
    HevcLevel(150, 8912896, 25000, 200, 11, 10, 267386880),
    HevcLevel(153, 8912896, 40000, 200, 11, 10, 534773760),
    HevcLevel(156, 8912896, 60000, 200, 11, 10, 1069547520),
    HevcLevel(180, 35651584, 60000, 600, 22, 20, 1069547520),
    HevcLevel(183, 35651584, 120000, 600, 22, 20, 2139095040),
    HevcLevel(186, 35651584, 240000, 600, 22, 20, 4278190080),
)
HIGHEST_LEVEL_IDC = HEVC_LEVELS[-1].idc


@dataclass(frozen=True, slots=True)
class LevelRequirements:
    """The demands of a stream on its decoder."""

    width: int  #: coded width
    height: int
    columns: int  #: of tiles
    rows: int
    buffers: int  #: decoded pictures that are kept, including the current one
    rate: Fraction | None = None  #: pictures per second, if signalled
    bits_per_second: int = 0  #: 0: unknown

    def lowest_level(self) -> HevcLevel | None:
        """Return the lowest sufficient level; None if there is none."""
        return next((level for level in HEVC_LEVELS if self._fits(level)), None)

    def _fits(self, level: HevcLevel) -> bool:
        samples = self.width * self.height
        return (
            samples <= level.samples
            and max(self.width, self.height) ** 2 <= 8 * level.samples
            and self.columns <= level.columns
            and self.rows <= level.rows
            and self.columns * self.rows <= level.slices
            and samples * (self.rate or 0) <= level.samples_per_second
            and self.bits_per_second <= level.units * _NAL_FACTOR
            and self.buffers <= level.buffers(samples)
        )


HEADER_BITS = 16  #: of a NAL unit header (7.3.1.2)
_MAIN = 1
_MAX_SHORT_TERM_SETS = 64
_MAX_REFERENCES = 16
MAX_HEVC_SIDE = 16888  #: largest side of any level: sqrt(8 * MaxLumaPs) luma samples (A.4.1)

ReferenceSet = tuple[tuple[int, bool], ...]
"""Short-term reference pictures: (display order relative to the current picture, whether used)."""


def require_stitchable(condition: bool, what: str) -> None:
    """Raise `RefusedMediaError` unless `condition` holds; `what` is the reason."""
    if not condition:
        raise RefusedMediaError(f"this HEVC stream cannot be stitched: {what}")


@dataclass(frozen=True, slots=True)
class ConformanceWindow:
    """The part of a coded picture that is cropped, in luma samples."""

    right: int = 0
    bottom: int = 0


@dataclass(frozen=True, slots=True)
class VideoParameterSet:
    """A video parameter set (7.3.2.1)."""

    head: BitString  #: bits up to general_level_idc
    level_idc: int
    tail: BitString  #: bits after general_level_idc

    @classmethod
    def parse(cls, unit: bytes) -> VideoParameterSet:
        reader = payload_of(unit, nal.HEVC_VPS)
        reader.bits(4 + 2)  # vps_video_parameter_set_id, base layer flags
        layers, sublayers = reader.bits(6), reader.bits(3)
        require_stitchable(layers == 0, "it has several layers")
        reader.bits(1 + 16)
        _read_profile(reader)
        head = reader.between(0, reader.position)
        level_idc = reader.bits(8)
        tail_at = reader.position
        _require_no_sublayer_fields(reader, sublayers)
        _read_buffers(reader, sublayers)
        require_stitchable(reader.bits(6) == reader.golomb() == 0, "it has layers")
        if reader.flag():  # vps_timing_info_present_flag
            reader.bits(64)
            if reader.flag():
                reader.golomb()
            require_stitchable(reader.golomb() == 0, "it has HRD parameters")
        require_stitchable(not reader.flag(), "it has a VPS extension")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise BitstreamError("the VPS has trailing bits")
        return cls(head, level_idc, tail)

    def is_like(self, other: VideoParameterSet) -> bool:
        """Return whether both are equal except for the level."""
        return (self.head, self.tail) == (other.head, other.tail)

    def write(self) -> bytes:
        writer = BitWriter()
        writer.append(self.head)
        writer.bits(8, self.level_idc)
        writer.append(self.tail)
        return escaped(writer.finished())


@dataclass(frozen=True, slots=True)
class SequenceParameterSet:
    """A sequence parameter set (7.3.2.2): 4:2:0, 8 bits.

    Tools without a field are not in use: temporal motion vector prediction, long-term references,
    scaling lists, extensions.
    """

    head: BitString  #: bits up to general_level_idc
    level_idc: int
    middle: BitString  #: bits up to the size
    width: int  #: coded width in luma samples
    height: int
    window: ConformanceWindow
    tail: BitString  #: bits after the conformance window
    order_bits: int  #: bits of slice_pic_order_cnt_lsb
    buffers: int  #: sps_max_dec_pic_buffering
    coding_block: int  #: MinCbSizeY, luma samples
    tree_block: int  #: CtbSizeY, luma samples
    adaptive_offset: bool  #: sample_adaptive_offset_enabled_flag
    reference_sets: tuple[ReferenceSet, ...]
    rate: Fraction | None  #: pictures per second, if signalled

    @classmethod
    def parse(cls, unit: bytes) -> SequenceParameterSet:
        reader = payload_of(unit, nal.HEVC_SPS)
        reader.bits(4)
        sublayers = reader.bits(3)
        reader.flag()
        _read_profile(reader)
        head = reader.between(0, reader.position)
        level_idc = reader.bits(8)
        middle_at = reader.position
        _require_no_sublayer_fields(reader, sublayers)
        require_stitchable(reader.golomb() == 0, "it has several sequence parameter sets")
        require_stitchable(reader.golomb() == 1, "chroma is not 4:2:0")
        middle = reader.between(middle_at, reader.position)
        width, height = reader.golomb(), reader.golomb()
        if not (0 < width <= MAX_HEVC_SIDE and 0 < height <= MAX_HEVC_SIDE):
            raise BitstreamError("picture size out of range")
        window = _read_window(reader, width, height)
        tail_at = reader.position
        require_stitchable(
            reader.golomb() == reader.golomb() == 0, "it has more than 8 bits per sample"
        )
        order_bits = reader.golomb() + 4
        buffers = _read_buffers(reader, sublayers)
        coding_log = reader.golomb() + 3
        tree_log = coding_log + reader.golomb()
        if not (tree_log <= 6 and order_bits <= 16 and buffers <= _MAX_REFERENCES):
            raise BitstreamError("SPS fields out of range")
        if width % (1 << coding_log) or height % (1 << coding_log):
            raise BitstreamError("picture size must be a multiple of the smallest coding block")
        for _ in range(4):  # sizes and depths of transform blocks
            reader.golomb()
        if reader.flag():
            require_stitchable(not reader.flag(), "it has scaling lists")
        reader.flag()  # amp_enabled_flag
        adaptive_offset = reader.flag()
        if reader.flag():  # pcm_enabled_flag
            reader.bits(8)
            reader.golomb()
            reader.golomb()
            reader.flag()
        sets = _read_reference_sets(reader)
        require_stitchable(not reader.flag(), "it has long-term references")
        require_stitchable(not reader.flag(), "it uses temporal motion vector prediction")
        reader.flag()  # strong_intra_smoothing_enabled_flag
        rate = _read_vui(reader) if reader.flag() else None
        require_stitchable(not reader.flag(), "it has an SPS extension")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise BitstreamError("the SPS has trailing bits")
        return cls(
            *(head, level_idc, middle, width, height, window, tail, order_bits, buffers),
            *(1 << coding_log, 1 << tree_log, adaptive_offset, sets, rate),
        )

    def is_like(self, other: SequenceParameterSet) -> bool:
        """Return whether slices for one can be decoded with the other, apart from the size."""
        return (self.head, self.middle, self.tail) == (other.head, other.middle, other.tail)

    def resized(
        self, width: int, height: int, window: ConformanceWindow, level_idc: int
    ) -> SequenceParameterSet:
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
        writer.flag(self.window != ConformanceWindow())
        if self.window != ConformanceWindow():
            for samples in (0, self.window.right, 0, self.window.bottom):
                writer.golomb(samples // 2)  # in chroma samples
        writer.append(self.tail)
        return escaped(writer.finished())


def payload_of(unit: bytes, kind: int) -> BitReader:
    """Return a reader after the header of a parameter set of that kind.

    Raises `BitstreamError`, `RefusedMediaError`.
    """
    if len(unit) < 3 or nal.unit_type("hevc", unit) != kind:
        raise BitstreamError("a parameter set is empty or of the wrong kind")
    reader = BitReader(unescaped(unit))
    require_stitchable(reader.bits(HEADER_BITS) & 0x1FF == 1, "it has layers")
    return reader


def _read_profile(reader: BitReader) -> None:
    """Read profile_tier_level without the level (7.3.3)."""
    reader.bits(2)
    require_stitchable(not reader.flag(), "it has the High tier")
    require_stitchable(reader.bits(5) == _MAIN, "it does not have the Main profile")
    reader.bits(32 + 48)


def _require_no_sublayer_fields(reader: BitReader, sublayers: int) -> None:
    """Read the end of profile_tier_level (7.3.3), which must not describe sub-layers."""
    if sublayers:
        require_stitchable(reader.bits(2 * sublayers) == 0, "it describes sub-layers")
        reader.bits(2 * (8 - sublayers))


def _read_buffers(reader: BitReader, sublayers: int) -> int:
    """Return the most decoded pictures that are kept, including the current one."""
    buffers = 0
    for _ in range(sublayers + 1 if reader.flag() else 1):
        buffers = reader.golomb() + 1
        require_stitchable(reader.golomb() == 0, "pictures are reordered")
        reader.golomb()  # sps_max_latency_increase_plus1
    return buffers


def _read_window(reader: BitReader, width: int, height: int) -> ConformanceWindow:
    if not reader.flag():
        return ConformanceWindow()
    left, right, top, bottom = (2 * reader.golomb() for _ in range(4))
    require_stitchable(left == top == 0, "pictures are cropped at the left or the top")
    if right >= width or bottom >= height:
        raise BitstreamError("the conformance window is empty")
    return ConformanceWindow(right, bottom)


def _read_reference_sets(reader: BitReader) -> tuple[ReferenceSet, ...]:
    count = reader.golomb()
    if count > _MAX_SHORT_TERM_SETS:
        raise BitstreamError("too many reference picture sets")
    sets: list[ReferenceSet] = []
    for index in range(count):
        sets.append(parse_reference_set(reader, index, sets))
    return tuple(sets)


def parse_reference_set(
    reader: BitReader, index: int, known: list[ReferenceSet] | tuple[ReferenceSet, ...]
) -> ReferenceSet:
    """Parse st_ref_pic_set(index) (7.3.7, 7.4.8). In a slice header, `index` is the length of
    `known`.
    """
    if index and reader.flag():
        require_stitchable(False, "a reference picture set is predicted from another")
    earlier, later = reader.golomb(), reader.golomb()
    if earlier + later > _MAX_REFERENCES:
        raise BitstreamError("too many reference pictures")
    found = []
    for count, sign in ((earlier, -1), (later, 1)):
        distance = 0
        for _ in range(count):
            distance += sign * (reader.golomb() + 1)
            found.append((distance, reader.flag()))
    return tuple(found)


def _read_vui(reader: BitReader) -> Fraction | None:
    """Parse vui_parameters (E.2.1); return the frame rate, or None."""
    skip_display_fields(reader)
    reader.flag()
    require_stitchable(reader.bits(2) == 0, "it has fields")
    require_stitchable(not reader.flag(), "it has a default display window")
    rate = None
    if reader.flag():
        ticks, scale = reader.bits(32), reader.bits(32)
        rate = Fraction(scale, ticks) if ticks and scale else None
        if reader.flag():
            reader.golomb()
        require_stitchable(not reader.flag(), "it has HRD parameters")
    require_stitchable(not reader.flag(), "it has bitstream restrictions")
    return rate


_NEUTRAL_QP = 26  #: base of init_qp_minus26


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Sizes of tiles in coding tree blocks."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PictureParameterSet:
    """A picture parameter set (7.3.2.3).

    Tools without a field are not in use: dependent slices, wavefronts, weighted prediction, scaling
    lists, extensions, filters across tiles.
    """

    head: BitString  #: bits between the IDs and init_qp_minus26
    init_qp: int  #: init_qp_minus26 + 26
    middle: BitString  #: bits up to the tiles
    uniform: tuple[int, int] | None  #: columns and rows of uniformly spaced tiles
    tiles: TileGrid | None  #: without the last column and row; None: uniform, or none
    tail: BitString  #: bits after the tiles
    id: int
    hides_pictures: bool  #: output_flag_present_flag
    extra_bits: int  #: num_extra_slice_header_bits
    cabac_init: bool  #: cabac_init_present_flag
    references: tuple[int, int]  #: default active references of list 0 and list 1
    chroma_offsets: bool  #: pps_slice_chroma_qp_offsets_present_flag
    filter_across_slices: bool  #: pps_loop_filter_across_slices_enabled_flag
    filter_override: bool  #: deblocking_filter_override_enabled_flag
    filter_off: bool  #: pps_deblocking_filter_disabled_flag
    modifies_lists: bool  #: lists_modification_present_flag

    @classmethod
    def parse(cls, unit: bytes) -> PictureParameterSet:
        reader = payload_of(unit, nal.HEVC_PPS)
        ordinal, sequence = reader.golomb(), reader.golomb()
        require_stitchable(sequence == 0, "it has several sequence parameter sets")
        if ordinal > 63:
            raise BitstreamError("PPS ID out of range")
        head_at = reader.position
        require_stitchable(not reader.flag(), "it has dependent slices")
        hides_pictures, extra_bits = reader.flag(), reader.bits(3)
        reader.flag()  # sign_data_hiding_enabled_flag
        cabac_init = reader.flag()
        references = (reader.golomb() + 1, reader.golomb() + 1)
        head = reader.between(head_at, reader.position)
        init_qp = _NEUTRAL_QP + reader.signed_golomb()
        middle_at = reader.position
        reader.bits(2)  # constrained intra prediction, transform skip
        if reader.flag():
            reader.golomb()  # diff_cu_qp_delta_depth
        reader.signed_golomb()
        reader.signed_golomb()
        chroma_offsets = reader.flag()
        require_stitchable(reader.bits(2) == 0, "it uses weighted prediction")
        reader.flag()  # transquant_bypass_enabled_flag
        middle = reader.between(middle_at, reader.position)
        tiled = reader.flag()
        require_stitchable(not reader.flag(), "it has wavefronts")
        uniform, tiles = _read_tile_grid(reader) if tiled else (None, None)
        tail_at = reader.position
        filter_across_slices = reader.flag()
        override = off = False
        if reader.flag():
            override, off = reader.flag(), reader.flag()
            if not off:
                reader.signed_golomb()
                reader.signed_golomb()
        require_stitchable(not reader.flag(), "it has scaling lists")
        modifies_lists = reader.flag()
        reader.golomb()  # log2_parallel_merge_level_minus2
        require_stitchable(not reader.flag(), "it has slice header extensions")
        require_stitchable(not reader.flag(), "it has a PPS extension")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise BitstreamError("the PPS has trailing bits")
        return cls(
            *(head, init_qp, middle, uniform, tiles, tail, ordinal, hides_pictures, extra_bits),
            *(cabac_init, references, chroma_offsets, filter_across_slices, override, off),
            modifies_lists,
        )

    def is_like(self, other: PictureParameterSet) -> bool:
        """Return whether slices for one can be decoded with the other, once slice_qp_delta is
        rewritten.
        """
        return (self.head, self.middle, self.tail) == (other.head, other.middle, other.tail)

    def tiles_of(self, sequence: SequenceParameterSet) -> TileGrid:
        """Return the tiles of pictures of `sequence` (6.5.1). Raises `BitstreamError`."""
        across = -(-sequence.width // sequence.tree_block)
        down = -(-sequence.height // sequence.tree_block)
        if self.uniform is not None:
            columns, rows = (
                tuple((i + 1) * size // count - i * size // count for i in range(count))
                for size, count in zip((across, down), self.uniform, strict=True)
            )
        elif self.tiles is not None:
            columns = (*self.tiles.columns, across - sum(self.tiles.columns))
            rows = (*self.tiles.rows, down - sum(self.tiles.rows))
        else:
            columns, rows = (across,), (down,)
        if min(*columns, *rows) < 1:
            raise BitstreamError("the tiles do not fit in the picture")
        return TileGrid(columns, rows)

    def tiled(self, tiles: TileGrid, ordinal: int) -> PictureParameterSet:
        """Return the set with other tiles and another ID.

        `tiles` lists all columns and rows. init_qp becomes neutral, so that sets are equal for all
        qualities.
        """
        is_one = len(tiles.columns) == len(tiles.rows) == 1
        grid = None if is_one else TileGrid(tiles.columns[:-1], tiles.rows[:-1])
        return dataclasses.replace(self, uniform=None, tiles=grid, id=ordinal, init_qp=_NEUTRAL_QP)

    def write(self) -> bytes:
        """Return the NAL unit. Raises `ValueError` for uniform tiles, which are never written."""
        if self.uniform is not None:
            raise ValueError("uniform tiles cannot be written")
        writer = BitWriter()
        writer.bits(HEADER_BITS, nal.HEVC_PPS << 9 | 1)
        writer.golomb(self.id)
        writer.golomb(0)
        writer.append(self.head)
        writer.signed_golomb(self.init_qp - _NEUTRAL_QP)
        writer.append(self.middle)
        writer.flag(self.tiles is not None)
        writer.flag(False)  # wavefronts
        if self.tiles is not None:
            writer.golomb(len(self.tiles.columns))
            writer.golomb(len(self.tiles.rows))
            writer.flag(False)  # uniform
            for size in (*self.tiles.columns, *self.tiles.rows):
                writer.golomb(size - 1)
            writer.flag(False)  # filters across tiles
        writer.append(self.tail)
        return escaped(writer.finished())


def _read_tile_grid(reader: BitReader) -> tuple[tuple[int, int] | None, TileGrid | None]:
    columns, rows = reader.golomb() + 1, reader.golomb() + 1
    if not (columns <= 20 and rows <= 22 and columns * rows > 1):
        raise BitstreamError("number of tiles out of range")
    uniform, tiles = None, None
    if reader.flag():
        uniform = (columns, rows)
    else:
        widths = tuple(reader.golomb() + 1 for _ in range(columns - 1))
        tiles = TileGrid(widths, tuple(reader.golomb() + 1 for _ in range(rows - 1)))
    require_stitchable(not reader.flag(), "it filters across tiles")
    return uniform, tiles
