"""What a read decodes: the pixels P and the tiles T of TASM's cost model, beta * P + gamma * T.

TASM: A Tile-Based Storage Manager for Video Analytics (ICDE 2021), section IV-A.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vfsd.tiling.layout import TileLayout
from vfsd.tiling.wanted_boxes import Boxes, FrameNumbers, Ints, Wanted

TILE_COST = 300_000
"""Pixels that take as long to decode as it takes to start on a tile: gamma / beta.

Measured with H.264 tiles of 30 frames on one core: 0.28 ms per tile and group of pictures, 0.94 ns
per pixel.  It holds the tile's packets too, so it is paid once per tile and SOT, not per frame.
"""


class Decoded(NamedTuple):
    """What one or more reads decode."""

    pixels: int  #: TASM's P: over all runs, frames decoded times area of the tile
    tiles: int  #: TASM's T: runs, each through one tile from the start of the SOT

    def cost(self, tile_cost: int = TILE_COST) -> int:
        """In pixels."""
        return self.pixels + tile_cost * self.tiles


def decoded_pixels(
    layout: TileLayout,
    boxes: Boxes,
    frames: FrameNumbers | None = None,
    first_frame: int = 0,
) -> Decoded:
    """What it takes to read `boxes` from one SOT of this `layout`.

    With `frames`, the frame that each box is on, all of them are one read.  A tile that any box
    touches is decoded from `first_frame`, where the SOT begins, to the last frame on which a box
    touches it: last - first_frame + 1 times its area.  This is the rule of TASM's estimator, but
    that a tile counts once for T and not once per frame, see `TILE_COST`.

    Without `frames`, every box is a read of its own, which decodes one frame of the tiles it
    touches.

    What lies outside the picture costs nothing.  Raises `UsageError` as `Wanted.of` does.
    """
    wanted = Wanted.of(boxes, frames, first_frame)
    tile, box = touches(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    if wanted.together:
        np.maximum.at(lengths, tile, wanted.lengths[box])
        tiles = int(np.count_nonzero(lengths))
    else:
        np.add.at(lengths, tile, wanted.lengths[box])
        tiles = len(box)
    return Decoded(int(lengths @ areas(layout)), tiles)


def decoded_frames(
    layout: TileLayout, boxes: Boxes, frames: FrameNumbers, first_frame: int
) -> Ints:
    """How many frames one read of `boxes` decodes of each tile of a SOT; 0 where it needs none.

    The rule is that of `decoded_pixels`, and so is what is raised.
    """
    wanted = Wanted.of(boxes, frames, first_frame)
    tile, box = touches(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    np.maximum.at(lengths, tile, wanted.lengths[box])
    return lengths


def areas(layout: TileLayout) -> Ints:
    """Pixels of each tile."""
    return np.outer(layout.heights, layout.widths).ravel()


def touches(layout: TileLayout, wanted: Wanted) -> tuple[Ints, Ints]:
    """Tile and box, by number, of each pair of a box and a tile it touches."""
    x1, y1, x2, y2 = wanted.corners.T
    left, columns = _spans(layout.column_edges, x1, x2)
    top, rows = _spans(layout.row_edges, y1, y2)
    touched = columns * rows
    box = np.repeat(np.arange(len(touched)), touched)
    # Counts the tiles of one box.
    nth = np.arange(len(box)) - np.repeat(np.cumsum(touched) - touched, touched)
    tile = (top[box] + nth // columns[box]) * layout.columns + left[box] + nth % columns[box]
    return tile, box


def _spans(edges: tuple[int, ...], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The first of the parts between `edges` that each range touches, and how many it touches."""
    # Policies ask this a million times: `clip` takes several times as long as what it is made of.
    bounds = np.array(edges)
    first = np.maximum(bounds.searchsorted(start, side="right"), 1) - 1
    after = np.minimum(bounds.searchsorted(end, side="left"), len(edges) - 1)
    return first, np.maximum(after - first, 0)
