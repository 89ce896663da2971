"""Which views are blocks of whole tiles, one segment after the other.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.codecs.stitching.stitchheads import Grid
from vfsd.core.model import Segment
from vfsd.read.tile_planner import Good
from vfsd.tiling import Rect
from vfsd.views.timeline import Showing


@dataclass(frozen=True, slots=True)
class TileBlock:
    """Tiles of one segment that make a rectangle, and how many of its frames are shown."""

    segment: Segment
    tiles: tuple[int, ...]  #: row by row
    rects: tuple[Rect, ...]  #: of their pictures, made even, from the block's corner
    grid: Grid
    frames: int  #: from the segment's first

    @property
    def is_whole(self) -> bool:
        """Whether all of the segment's frames are shown."""
        return self.frames == len(self.segment.frames)

    @property
    def places(self) -> list[int]:
        """Which cells of the pack the tiles are."""
        return [self.segment.place(tile) for tile in self.tiles]

    @property
    def size(self) -> int:
        """Bytes of the cells, with all frames of the segment."""
        return sum(self.segment.cell(tile).size for tile in self.tiles)


def tile_blocks(
    area: Rect, showing: Showing, segments: Sequence[Segment], good: Good
) -> list[TileBlock] | None:
    """The tiles that are `area`, of the stored picture, of all frames of a view, in turn.

    Each frame of the view comes once, and they follow each other.  The view has to begin where a
    segment does, and may end anywhere.  None where some frame has no `good` tiles that can be
    stitched, or some edge of the area is none of tiles.
    """
    first, stop = int(showing.frames[0]), int(showing.frames[-1]) + 1
    chosen = _chain(first, stop, segments)
    if chosen is None:
        return None
    blocks = []
    for segment in chosen:
        block = _block(area, segment, min(stop, segment.end_frame) - segment.first_frame)
        if block is None or not good(segment, block.tiles):
            return None
        blocks.append(block)
    return blocks


def _chain(first: int, stop: int, segments: Sequence[Segment]) -> list[Segment] | None:
    """Segments that follow each other from frame `first` on, up to `stop` or beyond."""
    begin: dict[int, Segment] = {}
    for segment in sorted(segments, key=lambda segment: segment.id):  # the newest stays
        if segment.profile == STITCHABLE:
            begin[segment.first_frame] = segment
    chain = []
    while first < stop:
        following = begin.get(first)
        if following is None:
            return None
        chain.append(following)
        first = following.end_frame
    return chain


def _block(area: Rect, segment: Segment, frames: int) -> TileBlock | None:
    layout = segment.layout
    columns, rows = layout.column_edges, layout.row_edges
    if not (area.x1 in columns and area.x2 in columns and area.y1 in rows and area.y2 in rows):
        return None
    tiles = tuple(layout.covering(area))
    if not segment.holds(tiles):
        return None
    grid = (_even(columns, area.x1, area.x2), _even(rows, area.y1, area.y2))
    return TileBlock(segment, tiles, tuple(_rects(grid)), grid, frames)


def _even(edges: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Those of an area, from its own; the picture's own edge may be odd, that of a cell is not."""
    inside = (edge - start for edge in edges if start <= edge <= end)
    return tuple(edge + edge % 2 for edge in inside)


def _rects(grid: Grid) -> Iterator[Rect]:
    columns, rows = grid
    for y1, y2 in pairwise(rows):
        for x1, x2 in pairwise(columns):
            yield Rect(x1, y1, x2, y2)
