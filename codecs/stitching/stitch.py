"""Tiles become one HEVC stream, and nothing is encoded: parameter sets and slice headers change.

Each tile of a picture is one slice of the stitched one.  Neither prediction nor filters cross the
edges of tiles, which are to a decoder what the edges of the picture were when the tile was alone:
so the pictures are those of the tiles, to the last bit.  What that takes is checked where headers
tell it (see `vfsd.codecs.bitstreams.hevc_vps_sps`), and taken from the profile where they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.hevc_levels import HIGHEST, LOWEST_ROW, NARROWEST_COLUMN
from vfsd.codecs.bitstreams.hevc_pps import Tiles
from vfsd.codecs.bitstreams.hevc_slices import MOST_GROWTH, PictureTraits, SliceSyntax
from vfsd.codecs.bitstreams.hevc_vps_sps import Window, require
from vfsd.codecs.stitching.hevc_tiles import (
    Sets,
    TileStream,
    refusing_damage,
    require_profile,
    slices_of,
)
from vfsd.errors import UsageError
from vfsd.tiling.geometry import Rect

MOST_PICTURE_SETS = 64
"""Ids of picture parameter sets: as many layouts fit behind one header."""

_IDR = (19, 20)


@dataclass(frozen=True, slots=True)
class Stitched:
    """A segment of one stream."""

    rect: Rect  #: what it shows of the picture
    level_idc: int  #: 30 times the level
    is_conformant: bool
    """Whether it is what the Main profile allows: columns of 256 luma samples at least, rows of 64
    (the last ones count as if they were whole blocks), and some level allows the rest.  FFmpeg and
    libde265 play it all the same; decoders in hardware need not."""
    parameter_sets: tuple[bytes, ...]  #: NAL units: video, sequence, picture
    pictures: tuple[bytes, ...]  #: packets with start codes, without parameter sets

    @property
    def packets(self) -> tuple[bytes, ...]:
        """The pictures, the first with the parameter sets in front of it.

        Segments in this form follow each other in one stream, whatever their layouts: an
        elementary stream, MPEG-TS, or MP4 with a sample entry that allows it (`hev1`).
        """
        sets = b"".join(nal.START_CODE + unit for unit in self.parameter_sets)
        return (sets + self.pictures[0], *self.pictures[1:])


class Stitcher:
    """Stitches picture by picture.

    Of `tiles`, only places and parameter sets are looked at; they may come in any order and have
    to fill a rectangle, column by column and row by row.  Segments whose sequence parameter sets
    are to be the same (`common_sets`) are given one `level_idc`, and layouts of their own
    `picture_id`.  Otherwise the level is the lowest that the size, the rate that the stream tells,
    the tiles and `bits_per_second` (0: not known) allow.

    Raises `UsageError` where the tiles do not fit together, `RefusedMediaError` where their streams
    cannot be stitched.
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
        if not 0 <= picture_id < MOST_PICTURE_SETS:
            raise UsageError(f"picture_id must be 0 to {MOST_PICTURE_SETS - 1}, got {picture_id}")
        columns, rows = _grid([tile.rect for tile in tiles])
        self.rect = Rect(columns[0], rows[0], columns[-1], rows[-1])
        with refusing_damage():
            known = {units: Sets.parse(units) for units in {t.parameter_sets for t in tiles}}
        sets = [known[tile.parameter_sets] for tile in tiles]
        require(all(one.is_like(sets[0]) for one in sets), "its tiles were made differently")
        block = sets[0].sequence.tree_block
        window = _window(tiles, sets, self.rect)
        for tile, one in zip(tiles, sets, strict=True):
            _check_tile(tile.rect, one, self.rect, window)
        width, height = self.rect.width + window.right, self.rect.height + window.bottom
        layout = Tiles(_in_blocks(columns, block), _in_blocks(rows, block))
        level = sets[0].demand(width, height, layout, bits_per_second).lowest_level()
        if level_idc is None:
            level_idc = HIGHEST if level is None else level.idc
        self.level_idc = level_idc
        self.is_conformant = level is not None and level.idc <= level_idc
        if len(tiles) > 1:
            self.is_conformant &= min(layout.columns) * block >= NARROWEST_COLUMN
            self.is_conformant &= min(layout.rows) * block >= LOWEST_ROW
        stitched = sets[0].changed(
            width, height, window, layout, picture_id=picture_id, level_idc=level_idc
        )
        self.parameter_sets = stitched.write()
        self._target = SliceSyntax(stitched.sequence, stitched.picture)
        readers = {units: SliceSyntax(s.sequence, s.picture) for units, s in known.items()}
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
        """One picture of the stitched stream, from one packet a tile, in the order of the tiles.

        Raises `RefusedMediaError` where they are not of the same kind of picture.
        """
        written: list[bytes] = []
        traits: PictureTraits | None = None
        with refusing_damage():
            for address, ordinal, reader in self._parts:
                units = slices_of(packets[ordinal])
                require(len(units) == 1, "a tile has not one slice in each picture")
                part = reader.parse(units[0])
                require(part.address == 0, "a slice does not begin its picture")
                traits = traits or part.traits
                require(part.traits == traits, "its tiles are pictures of different kinds")
                written += (nal.START_CODE, self._target.write(part, address))
        return b"".join(written)


def most_bytes(sizes: Sequence[int]) -> int:
    """The most that a stitched picture takes whose packets have these sizes."""
    return sum(sizes) + len(sizes) * (MOST_GROWTH + len(nal.START_CODE))


def stitch(
    tiles: Sequence[TileStream],
    *,
    profile: str,
    picture_id: int = 0,
    level_idc: int | None = None,
) -> Stitched:
    """One segment from the tiles of a segment: of all of the picture, or of any block of columns
    and rows of it.  See `Stitcher`; the bit rate is that of the segment.

    Raises `UsageError` where the tiles do not fit together, `RefusedMediaError` where their streams
    cannot be stitched.
    """
    counts = {len(tile.pictures) for tile in tiles}
    if len(counts) != 1 or 0 in counts:
        raise UsageError("tiles of one segment have the same number of pictures, at least one")
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
    require(kind in _IDR, "a segment does not begin with an IDR picture")
    return Stitched(
        *(stitcher.rect, stitcher.level_idc, stitcher.is_conformant),
        *(stitcher.parameter_sets, pictures),
    )


def common_sets(segments: Iterable[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Parameter sets for a header that serves all segments (`hvc1`), given those of each.

    Raises `UsageError` where segments differ in more than their layouts, or where two layouts have
    the same id.
    """
    shared: set[tuple[bytes, ...]] = set()
    pictures: dict[int, bytes] = {}
    for units in segments:
        shared.add(units[:-1])
        with refusing_damage():
            ordinal = Sets.parse(units).picture.id
        if pictures.setdefault(ordinal, units[-1]) != units[-1]:
            raise UsageError(f"two layouts have the id {ordinal}")
    if len(shared) != 1:
        raise UsageError("segments behind one header have one size, one level and one encoder")
    return (*shared.pop(), *(pictures[ordinal] for ordinal in sorted(pictures)))


def _grid(rects: Sequence[Rect]) -> tuple[list[int], list[int]]:
    """The edges of the columns and rows that `rects` make."""
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


def _window(tiles: Sequence[TileStream], sets: Sequence[Sets], whole: Rect) -> Window:
    """What is not shown of the picture: that of the tile in its lower right corner."""
    corner = (whole.x2, whole.y2)
    found = (
        one.sequence.window
        for tile, one in zip(tiles, sets, strict=True)
        if (tile.rect.x2, tile.rect.y2) == corner
    )
    return next(found)


def _check_tile(rect: Rect, sets: Sets, whole: Rect, window: Window) -> None:
    sequence, picture = sets.sequence, sets.picture
    require(picture.tiles is None and picture.uniform is None, "a tile is tiled itself")
    shown = (sequence.width - sequence.window.right, sequence.height - sequence.window.bottom)
    if shown != (rect.width, rect.height):
        raise UsageError(f"the stream of tile {rect} shows {shown[0]}x{shown[1]} pixels")
    right, bottom = rect.x2 == whole.x2, rect.y2 == whole.y2
    wanted = Window(window.right if right else 0, window.bottom if bottom else 0)
    block = sequence.tree_block
    if (not right and rect.width % block) or (not bottom and rect.height % block):
        raise UsageError(f"tile {rect} must have inner edges at multiples of {block} pixels")
    require(sequence.window == wanted, f"tile {rect} hides other pixels than its neighbours")


def _in_blocks(edges: Sequence[int], block: int) -> tuple[int, ...]:
    return tuple(-(-(end - start) // block) for start, end in pairwise(edges))


def _bit_rate(tiles: Sequence[TileStream]) -> int:
    """Bits a second; 0 where the streams do not tell their rate."""
    with refusing_damage():
        rate = Sets.parse(tiles[0].parameter_sets).sequence.rate
    if rate is None:
        return 0
    bits = 8 * sum(len(packet) for tile in tiles for packet in tile.pictures)
    return ceil(bits * rate / len(tiles[0].pictures))
