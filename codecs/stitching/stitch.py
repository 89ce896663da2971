"""Joins tiles into one HEVC stream without encoding.

Only parameter sets and slice headers change. `StreamHead` plans the parameter sets of a stream with
several layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.stitching.hevc_parameter_sets import (
    HIGHEST_LEVEL_IDC,
    MIN_COLUMN_WIDTH,
    MIN_ROW_HEIGHT,
    ConformanceWindow,
    TileGrid,
    require_stitchable,
)
from vfsd.codecs.stitching.hevc_tiles import (
    MAX_HEADER_GROWTH,
    STITCHABLE,
    ParameterSets,
    PictureFields,
    SliceHeaderSyntax,
    TileStream,
    refuse_damaged_streams,
    require_profile,
    slices_of,
)
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.tiling.layout import Rect

MAX_PICTURE_SETS = 64
"""Number of PPS IDs (H.265 7.4.3.3), and so of layouts with one header."""

_IDR = (19, 20)


@dataclass(frozen=True, slots=True)
class StitchedSegment:
    """A segment of a stitched stream."""

    rect: Rect  #: its part of the picture
    level_idc: int  #: 30 times the level
    is_conformant: bool
    """Whether it conforms to the Main profile (H.265 A.3.2) and to a level.

    Columns need at least 256 luma samples, rows 64; the last ones count as whole blocks. FFmpeg and
    libde265 also play other streams; hardware decoders may not.
    """
    parameter_sets: tuple[bytes, ...]  #: NAL units: VPS, SPS, PPS
    pictures: tuple[bytes, ...]  #: packets with start codes, without parameter sets

    @property
    def packets(self) -> tuple[bytes, ...]:
        """The pictures, with the parameter sets before the first.

        Such segments can follow each other in one stream with any layouts: an elementary stream,
        MPEG-TS, or MP4 with a sample entry of `hev1`.
        """
        sets = b"".join(nal.START_CODE + unit for unit in self.parameter_sets)
        return (sets + self.pictures[0], *self.pictures[1:])


class Stitcher:
    """Stitches tiles picture by picture.

    Tiles may be given in any order; they must form a grid. Only their rectangles and parameter sets
    are used. Without `level_idc`, the level is the lowest that allows size, rate, tiles and bit
    rate.

    Raises `UsageError` if the tiles do not fit together, `RefusedMediaError` if their streams
    cannot be stitched.

    Args:
        tiles: one stream for each tile
        profile: must be `STITCHABLE`
        picture_id: ID of the PPS; layouts that share `common_sets` need different ones
        level_idc: level of the stream; segments that share `common_sets` need the same one
        bits_per_second: bit rate of the stream; 0: unknown
    """

    def __init__(
        self,
        tiles: Sequence[TileStream],
        *,
        profile: str,
        picture_id: int = 0,
        level_idc: int | None = None,
        bits_per_second: int = 0,
    ) -> None:
        require_profile(profile)
        if not 0 <= picture_id < MAX_PICTURE_SETS:
            raise UsageError(f"picture_id must be 0 to {MAX_PICTURE_SETS - 1}, got {picture_id}")
        columns, rows = _tile_edges([tile.rect for tile in tiles])
        self.rect = Rect(columns[0], rows[0], columns[-1], rows[-1])
        with refuse_damaged_streams():
            used = {
                units: ParameterSets.parse(units) for units in {t.parameter_sets for t in tiles}
            }
        sets = [used[tile.parameter_sets] for tile in tiles]
        require_stitchable(
            all(one.is_like(sets[0]) for one in sets), "the tiles have different encoder settings"
        )
        block = sets[0].sequence.tree_block
        window = _hidden_window(tiles, sets, self.rect)
        for tile, one in zip(tiles, sets, strict=True):
            _check_tile(tile.rect, one, self.rect, window)
        width, height = self.rect.width + window.right, self.rect.height + window.bottom
        layout = TileGrid(_block_sizes(columns, block), _block_sizes(rows, block))
        level = sets[0].demand(width, height, layout, bits_per_second).lowest_level()
        if level_idc is None:
            level_idc = HIGHEST_LEVEL_IDC if level is None else level.idc
        self.level_idc = level_idc
        self.is_conformant = level is not None and level.idc <= level_idc
        if len(tiles) > 1:
            self.is_conformant &= min(layout.columns) * block >= MIN_COLUMN_WIDTH
            self.is_conformant &= min(layout.rows) * block >= MIN_ROW_HEIGHT
        stitched = sets[0].changed(
            width, height, window, layout, picture_id=picture_id, level_idc=level_idc
        )
        self.parameter_sets = stitched.write()
        self._target = SliceHeaderSyntax(stitched.sequence, stitched.picture)
        readers = {units: SliceHeaderSyntax(s.sequence, s.picture) for units, s in used.items()}
        across = sum(layout.columns)
        # Tiles are coded row by row, which is the order of the addresses of their first blocks.
        self._parts = sorted(
            (
                (
                    (tile.rect.y1 - self.rect.y1) // block * across
                    + (tile.rect.x1 - self.rect.x1) // block,
                    ordinal,
                    readers[tile.parameter_sets],
                )
                for ordinal, tile in enumerate(tiles)
            ),
            key=lambda part: part[0],
        )

    def picture(self, packets: Sequence[bytes]) -> bytes:
        """Return a picture of the stitched stream from one packet of each tile, in the order of
        `tiles`.

        Raises `RefusedMediaError` if they are pictures of different kinds.
        """
        written: list[bytes] = []
        traits: PictureFields | None = None
        with refuse_damaged_streams():
            for address, ordinal, reader in self._parts:
                units = slices_of(packets[ordinal])
                require_stitchable(len(units) == 1, "a tile must have one slice in each picture")
                part = reader.parse(units[0])
                require_stitchable(part.address == 0, "a slice must begin its picture")
                traits = traits or part.traits
                require_stitchable(
                    part.traits == traits, "the tiles are pictures of different kinds"
                )
                written += (nal.START_CODE, self._target.write(part, address))
        return b"".join(written)


def max_stitched_bytes(sizes: Sequence[int]) -> int:
    """Return the largest size of a picture stitched from packets of these sizes."""
    return sum(sizes) + len(sizes) * (MAX_HEADER_GROWTH + len(nal.START_CODE))


def stitch(
    tiles: Sequence[TileStream],
    *,
    profile: str,
    picture_id: int = 0,
    level_idc: int | None = None,
) -> StitchedSegment:
    """Stitch one segment from the tiles of a block of columns and rows. See `Stitcher`.

    The bit rate is that of the segment. Raises `UsageError` if the tiles do not fit together,
    `RefusedMediaError` if their streams cannot be stitched.
    """
    counts = {len(tile.pictures) for tile in tiles}
    if len(counts) != 1 or 0 in counts:
        raise UsageError("tiles of a segment must have the same number of pictures, at least one")
    stitcher = Stitcher(
        tiles,
        profile=profile,
        picture_id=picture_id,
        level_idc=level_idc,
        bits_per_second=_bit_rate(tiles),
    )
    pictures = tuple(
        stitcher.picture(packets)
        for packets in zip(*(tile.pictures for tile in tiles), strict=True)
    )
    kind = nal.unit_type("hevc", pictures[0][len(nal.START_CODE) :])
    require_stitchable(kind in _IDR, "a segment must begin with an IDR picture")
    return StitchedSegment(
        *(stitcher.rect, stitcher.level_idc, stitcher.is_conformant),
        *(stitcher.parameter_sets, pictures),
    )


def common_sets(segments: Iterable[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Return parameter sets for one header of all segments (`hvc1`), from those of each segment.

    Raises `UsageError` if segments differ in more than their layouts, or if two layouts share an
    ID.
    """
    shared: set[tuple[bytes, ...]] = set()
    pictures: dict[int, bytes] = {}
    for units in segments:
        shared.add(units[:-1])
        with refuse_damaged_streams():
            ordinal = ParameterSets.parse(units).picture.id
        if pictures.setdefault(ordinal, units[-1]) != units[-1]:
            raise UsageError(f"two layouts have the ID {ordinal}")
    if len(shared) != 1:
        raise UsageError("segments with one header must have one size, one level and one encoder")
    return (*shared.pop(), *(pictures[ordinal] for ordinal in sorted(pictures)))


def _tile_edges(rects: Sequence[Rect]) -> tuple[list[int], list[int]]:
    """Return the edges of the columns and of the rows that `rects` form."""
    if not rects:
        raise UsageError("at least one tile must be given")
    columns = [*sorted({rect.x1 for rect in rects}), max(rect.x2 for rect in rects)]
    rows = [*sorted({rect.y1 for rect in rects}), max(rect.y2 for rect in rects)]
    cells = sorted((x1, y1, x2, y2) for x1, x2 in pairwise(columns) for y1, y2 in pairwise(rows))
    if sorted((rect.x1, rect.y1, rect.x2, rect.y2) for rect in rects) != cells:
        raise UsageError(
            "the tiles must form a grid, got " + ", ".join(str(rect) for rect in rects),
            hint="give each tile of a block of columns and rows once",
        )
    return columns, rows


def _hidden_window(
    tiles: Sequence[TileStream], sets: Sequence[ParameterSets], whole: Rect
) -> ConformanceWindow:
    """Return the hidden part of the picture: that of the tile in its lower right corner."""
    corner = (whole.x2, whole.y2)
    found = (
        one.sequence.window
        for tile, one in zip(tiles, sets, strict=True)
        if (tile.rect.x2, tile.rect.y2) == corner
    )
    return next(found)


def _check_tile(rect: Rect, sets: ParameterSets, whole: Rect, window: ConformanceWindow) -> None:
    sequence, picture = sets.sequence, sets.picture
    require_stitchable(picture.tiles is None and picture.uniform is None, "a tile is itself tiled")
    shown = (sequence.width - sequence.window.right, sequence.height - sequence.window.bottom)
    if shown != (rect.width, rect.height):
        raise UsageError(f"the stream of tile {rect} shows {shown[0]}x{shown[1]} pixels")
    right, bottom = rect.x2 == whole.x2, rect.y2 == whole.y2
    wanted = ConformanceWindow(window.right if right else 0, window.bottom if bottom else 0)
    block = sequence.tree_block
    if (not right and rect.width % block) or (not bottom and rect.height % block):
        raise UsageError(f"tile {rect} must have inner edges at multiples of {block} pixels")
    require_stitchable(
        sequence.window == wanted, f"tile {rect} hides other pixels than its neighbours"
    )


def _block_sizes(edges: Sequence[int], block: int) -> tuple[int, ...]:
    return tuple(-(-(end - start) // block) for start, end in pairwise(edges))


def _bit_rate(tiles: Sequence[TileStream]) -> int:
    """Return bits per second; 0 if the streams do not signal their frame rate."""
    with refuse_damaged_streams():
        rate = ParameterSets.parse(tiles[0].parameter_sets).sequence.rate
    if rate is None:
        return 0
    bits = 8 * sum(len(packet) for tile in tiles for packet in tile.pictures)
    return ceil(bits * rate / len(tiles[0].pictures))


TileEdges = tuple[tuple[int, ...], tuple[int, ...]]
"""Edges of the columns and of the rows of a block of tiles, in luma samples from its corner.

The outer edges are included. All but the last are multiples of a coding tree block.
"""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The parameter sets of a stream, and the PPS IDs of its layouts."""

    shared: tuple[bytes, ...]  #: NAL units for a header that serves all segments
    parameter_sets: Mapping[TileEdges, tuple[bytes, ...]]  #: NAL units for each layout: three
    picture_ids: Mapping[TileEdges, int]
    level_idc: int

    def stitcher(self, grid: TileEdges, tiles: Sequence[TileStream]) -> Stitcher:
        """Return a stitcher for segments in that layout.

        Raises `RefusedMediaError` if these tiles need other parameter sets, or cannot be stitched.
        """
        stitcher = Stitcher(
            tiles,
            profile=STITCHABLE,
            picture_id=self.picture_ids[grid],
            level_idc=self.level_idc,
        )
        with refuse_damaged_streams():
            own, other = (
                ParameterSets.parse(self.parameter_sets[grid]),
                ParameterSets.parse(stitcher.parameter_sets),
            )
        sizes = [(sets.sequence.width, sets.sequence.height) for sets in (own, other)]
        alike = own.is_like(other) and own.picture == other.picture and sizes[0] == sizes[1]
        if not alike:
            raise RefusedMediaError("the encoder settings of the tiles changed")
        return stitcher


def stream_head(
    samples: Iterable[tuple[bytes, ...]],
    shown: tuple[int, int],
    grids: Iterable[TileEdges],
    *,
    in_stream: bool,
    bits_per_second: int,
) -> StreamHead:
    """Return the head of a stream that shows blocks of tiles.

    Raises `RefusedMediaError` if the tiles cannot be stitched.

    Args:
        samples: parameter sets of at least one tile from each encoder run
        shown: (width, height) that is shown; the rest is cropped at the right and the bottom
        grids: the layouts of the stream
        in_stream: parameter sets precede each segment, so layouts need no IDs of their own;
            otherwise there may be `MAX_PICTURE_SETS` layouts
        bits_per_second: bit rate of the stream
    """
    with refuse_damaged_streams():
        first, *others = [ParameterSets.parse(units) for units in samples]
    require_stitchable(
        all(first.is_like(other) for other in others), "the tiles have different encoder settings"
    )
    layouts = sorted(set(grids))
    ids = {grid: 0 if in_stream else number for number, grid in enumerate(layouts)}
    require_stitchable(max(ids.values()) < MAX_PICTURE_SETS, "the stream has too many layouts")
    block, grain = first.sequence.tree_block, first.sequence.coding_block
    width, height = (-(-layouts[0][axis][-1] // grain) * grain for axis in (0, 1))
    window = ConformanceWindow(width - shown[0], height - shown[1])
    tiles = {
        grid: TileGrid(*(_edges_in_blocks(edges, block) for edges in grid)) for grid in layouts
    }
    levels = [
        first.demand(width, height, one, bits_per_second).lowest_level() for one in tiles.values()
    ]
    level_idc = max(HIGHEST_LEVEL_IDC if level is None else level.idc for level in levels)
    sets = {
        grid: first.changed(
            *(width, height, window, tiles[grid]), picture_id=ids[grid], level_idc=level_idc
        ).write()
        for grid in layouts
    }
    pictures = {ids[grid]: units[-1] for grid, units in reversed(sets.items())}
    shared = (*sets[layouts[0]][:-1], *(pictures[number] for number in sorted(pictures)))
    return StreamHead(shared, sets, ids, level_idc)


def _edges_in_blocks(edges: Sequence[int], block: int) -> tuple[int, ...]:
    return tuple(-(-(end - start) // block) for start, end in pairwise(edges))
