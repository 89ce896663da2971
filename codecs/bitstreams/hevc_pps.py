"""Picture parameter sets of HEVC, and the tiles that they tell; see `hevc_sets` beside this."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, Bits, BitWriter, DamagedError, escaped
from vfsd.codecs.bitstreams.hevc_vps_sps import HEADER_BITS, SequenceSet, payload_of, require

_NEUTRAL_QUANTISER = 26  #: which init_qp_minus26 counts from


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of tiles, in coding tree blocks."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PictureSet:
    """A picture parameter set (7.3.2.3).

    Of what it leaves out, nothing is in use: dependent slices, wavefronts, weighted prediction,
    lists of scaling factors, extensions, filters across tiles.
    """

    head: Bits  #: between the ids and the quantiser
    quantiser: int  #: of slices that do not differ
    middle: Bits  #: up to the tiles
    uniform: tuple[int, int] | None  #: columns and rows of tiles that are all about as large
    tiles: Tiles | None  #: without the last column and row; None: uniform, or none
    tail: Bits  #: behind them
    id: int
    hides_pictures: bool
    extra_bits: int  #: of slice headers
    cabac_init: bool
    references: tuple[int, int]  #: of each list, unless a slice tells otherwise
    chroma_offsets: bool
    filter_across_slices: bool
    filter_override: bool
    filter_off: bool
    modifies_lists: bool

    @classmethod
    def parse(cls, unit: bytes) -> PictureSet:
        reader = payload_of(unit, nal.HEVC_PPS)
        ordinal, sequence = reader.golomb(), reader.golomb()
        require(sequence == 0, "it has several sequence parameter sets")
        if ordinal > 63:
            raise DamagedError("the id is out of bounds")
        head_at = reader.position
        require(not reader.flag(), "it has dependent slices")
        hides_pictures, extra_bits = reader.flag(), reader.bits(3)
        reader.flag()  # signs are hidden
        cabac_init = reader.flag()
        references = (reader.golomb() + 1, reader.golomb() + 1)
        head = reader.between(head_at, reader.position)
        quantiser = _NEUTRAL_QUANTISER + reader.signed_golomb()
        middle_at = reader.position
        reader.bits(2)  # constrained intra prediction, transform skip
        if reader.flag():
            reader.golomb()  # depth of quantiser groups
        reader.signed_golomb()
        reader.signed_golomb()
        chroma_offsets = reader.flag()
        require(reader.bits(2) == 0, "it weights predictions")
        reader.flag()  # lossless blocks
        middle = reader.between(middle_at, reader.position)
        tiled = reader.flag()
        require(not reader.flag(), "it has wavefronts")
        uniform, tiles = _tiles(reader) if tiled else (None, None)
        tail_at = reader.position
        filter_across_slices = reader.flag()
        override = off = False
        if reader.flag():
            override, off = reader.flag(), reader.flag()
            if not off:
                reader.signed_golomb()
                reader.signed_golomb()
        require(not reader.flag(), "it has scaling lists")
        modifies_lists = reader.flag()
        reader.golomb()  # level of parallel merging
        require(not reader.flag(), "its slice headers are extended")
        require(not reader.flag(), "its picture parameter set is extended")
        tail = reader.between(tail_at, reader.position)
        if reader.rest().count:
            raise DamagedError("the picture parameter set does not end where it should")
        return cls(
            *(head, quantiser, middle, uniform, tiles, tail, ordinal, hides_pictures, extra_bits),
            *(cabac_init, references, chroma_offsets, filter_across_slices, override, off),
            modifies_lists,
        )

    def is_like(self, other: PictureSet) -> bool:
        """Whether slices of the one can be decoded with the other, once their quantisers are told
        anew."""
        return (self.head, self.middle, self.tail) == (other.head, other.middle, other.tail)

    def tiles_of(self, sequence: SequenceSet) -> Tiles:
        """Those that pictures of `sequence` have (6.5.1).  Raises `DamagedError`."""
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
            raise DamagedError("the tiles do not fit into the picture")
        return Tiles(columns, rows)

    def tiled(self, tiles: Tiles, ordinal: int) -> PictureSet:
        """The same, with other tiles (all columns and rows told), another id, and a quantiser that
        says nothing of the slices': sets are the same for all qualities."""
        is_one = len(tiles.columns) == len(tiles.rows) == 1
        told = None if is_one else Tiles(tiles.columns[:-1], tiles.rows[:-1])
        return dataclasses.replace(
            self, uniform=None, tiles=told, id=ordinal, quantiser=_NEUTRAL_QUANTISER
        )

    def write(self) -> bytes:
        """Raises `ValueError` for uniform tiles, which we never write."""
        if self.uniform is not None:
            raise ValueError("tiles have to be told")
        writer = BitWriter()
        writer.bits(HEADER_BITS, nal.HEVC_PPS << 9 | 1)
        writer.golomb(self.id)
        writer.golomb(0)
        writer.append(self.head)
        writer.signed_golomb(self.quantiser - _NEUTRAL_QUANTISER)
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


def _tiles(reader: BitReader) -> tuple[tuple[int, int] | None, Tiles | None]:
    columns, rows = reader.golomb() + 1, reader.golomb() + 1
    if not (columns <= 20 and rows <= 22 and columns * rows > 1):
        raise DamagedError("the number of tiles is out of bounds")
    uniform, tiles = None, None
    if reader.flag():
        uniform = (columns, rows)
    else:
        widths = tuple(reader.golomb() + 1 for _ in range(columns - 1))
        tiles = Tiles(widths, tuple(reader.golomb() + 1 for _ in range(rows - 1)))
    require(not reader.flag(), "it filters across tiles")
    return uniform, tiles
