"""What stands before a stitched stream whose layout changes, known before a tile of it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vfsd.codecs.bitstreams.hevc_levels import HIGHEST
from vfsd.codecs.bitstreams.hevc_pps import Tiles
from vfsd.codecs.bitstreams.hevc_vps_sps import Window, require
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, Sets, TileStream, refusing_damage
from vfsd.codecs.stitching.stitch import MOST_PICTURE_SETS, Stitcher
from vfsd.errors import RefusedMediaError

Grid = tuple[tuple[int, ...], tuple[int, ...]]
"""Edges of the columns and of the rows of a block of tiles, the outer ones included: luma samples
from the block's corner.  All but the last are multiples of a coding tree block."""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The parameter sets of a stream, and what its pictures have to say to refer to them."""

    shared: tuple[bytes, ...]  #: NAL units for a header that serves all segments
    parameter_sets: Mapping[Grid, tuple[bytes, ...]]  #: NAL units for each layout: three
    picture_ids: Mapping[Grid, int]
    level_idc: int

    def stitcher(self, grid: Grid, tiles: Sequence[TileStream]) -> Stitcher:
        """For segments in that layout.

        Raises `RefusedMediaError` where these tiles need another head, or cannot be stitched.
        """
        stitcher = Stitcher(
            tiles,
            profile=STITCHABLE,
            picture_id=self.picture_ids[grid],
            level_idc=self.level_idc,
        )
        with refusing_damage():
            mine, theirs = (
                Sets.parse(self.parameter_sets[grid]),
                Sets.parse(stitcher.parameter_sets),
            )
        sizes = [(sets.sequence.width, sets.sequence.height) for sets in (mine, theirs)]
        alike = mine.is_like(theirs) and mine.picture == theirs.picture and sizes[0] == sizes[1]
        if not alike:
            raise RefusedMediaError("these tiles were made otherwise than those before them")
        return stitcher


def stream_head(
    samples: Iterable[tuple[bytes, ...]],
    shown: tuple[int, int],
    grids: Iterable[Grid],
    *,
    in_stream: bool,
    bits_per_second: int,
) -> StreamHead:
    """The head of a stream that shows `shown` (width, height) samples of blocks of tiles.

    `samples` are the parameter sets of one tile at least of everybody who made tiles of it; what is
    not shown lies at the right and at the bottom.  With `in_stream` the sets of each segment stand
    in front of it, and layouts need no ids of their own; without, they are `MOST_PICTURE_SETS` at
    most.

    Raises `RefusedMediaError` where the tiles cannot be stitched.
    """
    with refusing_damage():
        first, *others = [Sets.parse(units) for units in samples]
    require(all(first.is_like(other) for other in others), "its tiles were made differently")
    layouts = sorted(set(grids))
    ids = {grid: 0 if in_stream else number for number, grid in enumerate(layouts)}
    require(max(ids.values()) < MOST_PICTURE_SETS, "it has too many layouts")
    block, grain = first.sequence.tree_block, first.sequence.coding_block
    width, height = (-(-layouts[0][axis][-1] // grain) * grain for axis in (0, 1))
    window = Window(width - shown[0], height - shown[1])
    tiles = {grid: Tiles(*(_blocks(edges, block) for edges in grid)) for grid in layouts}
    levels = [
        first.demand(width, height, one, bits_per_second).lowest_level() for one in tiles.values()
    ]
    level_idc = max(HIGHEST if level is None else level.idc for level in levels)
    sets = {
        grid: first.changed(
            *(width, height, window, tiles[grid]), picture_id=ids[grid], level_idc=level_idc
        ).write()
        for grid in layouts
    }
    pictures = {ids[grid]: units[-1] for grid, units in reversed(sets.items())}
    shared = (*sets[layouts[0]][:-1], *(pictures[number] for number in sorted(pictures)))
    return StreamHead(shared, sets, ids, level_idc)


def _blocks(edges: Sequence[int], block: int) -> tuple[int, ...]:
    return tuple(-(-(end - start) // block) for start, end in pairwise(edges))
