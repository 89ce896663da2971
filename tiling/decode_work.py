"""The work of a read: pixels P and tiles T of TASM's cost model, beta * P + gamma * T.

`WantedBoxes` holds the boxes of one SOT as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vfsd.errors import UsageError
from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import TileLayout

Ints = npt.NDArray[np.int64]

Boxes = Sequence[Rect] | npt.NDArray[np.integer[Any]]
"""Rectangles, or an array of shape (N, 4) of x1, y1, x2, y2 in pixels, half-open.

Boxes in an array may extend outside the picture, as those of detectors do.
"""

FrameNumbers = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class WantedBoxes:
    """Boxes to read from one SOT (a run of frames that share a layout).

    With frame numbers, all boxes are one read.  A tile is decoded once, from the first frame of the
    SOT to the last frame that needs it.  Without them, every box is a separate read of the first
    frame.
    """

    corners: Ints  #: (N, 4): x1, y1, x2, y2
    lengths: Ints  #: (N,): frames decoded of a tile to reach each box
    together: bool  #: one read, not N

    @classmethod
    def of(cls, boxes: Boxes, frames: FrameNumbers | None, first_frame: int) -> WantedBoxes:
        """Build from boxes and their frames.

        Raises `UsageError` for an empty box, other shapes or types of arrays, and a frame before
        `first_frame`.
        """
        corners = _corners(boxes)
        if frames is None:
            return cls(corners, np.ones(len(corners), np.int64), False)
        numbers = np.asarray(frames, np.int64) if len(frames) else np.zeros(0, np.int64)
        if numbers.shape != (len(corners),):
            raise UsageError(
                f"frames must be one for each of {len(corners)} boxes, got {len(numbers)}"
            )
        if len(numbers) and numbers.min() < first_frame:
            raise UsageError(
                f"frames must be at least {first_frame}, the first of the SOT, got {numbers.min()}"
            )
        return cls(corners, numbers - first_frame + 1, True)

    def within(self, width: int, height: int, padding: int = 0) -> WantedBoxes:
        """Return the boxes enlarged by `padding` pixels on each side and clipped to the picture.

        Boxes outside the picture are dropped.  Raises `UsageError` for a negative `padding`.
        """
        if padding < 0:
            raise UsageError(f"padding must be 0 or more, got {padding}")
        inside = (
            (self.corners[:, :2] < (width, height)).all(axis=1)
            & (self.corners[:, 2:] > 0).all(axis=1)
        )  # fmt: skip
        grown = self.corners[inside] + (-padding, -padding, padding, padding)
        size = (width, height, width, height)
        return WantedBoxes(grown.clip(0, size), self.lengths[inside], self.together)


def _corners(boxes: Boxes) -> Ints:
    if isinstance(boxes, np.ndarray):
        if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "iu":
            raise UsageError(
                f"boxes must be integers of shape (N, 4), got {boxes.dtype} {boxes.shape}"
            )
        corners = boxes.astype(np.int64)
    else:
        flat = [corner for box in boxes for corner in (box.x1, box.y1, box.x2, box.y2)]
        corners = np.array(flat, np.int64).reshape(-1, 4)
    empty = (corners[:, :2] >= corners[:, 2:]).any(axis=1)
    if empty.any():
        raise UsageError(f"a box must have at least one pixel, got {corners[empty][0].tolist()}")
    return corners


TILE_COST = 300_000
"""Pixels that take as long to decode as starting a tile: gamma / beta.

Measured with H.264 tiles of 30 frames on one core: 0.28 ms per tile and GOP, 0.94 ns per pixel.  It
includes the tile's packets, so it is paid once per tile and SOT, not per frame.
"""


class Decoded(NamedTuple):
    """The work of one or more reads."""

    pixels: int  #: TASM's P: sum over all runs of decoded frames times tile area
    tiles: int  #: TASM's T: number of runs, each through one tile from the start of the SOT

    def cost(self, tile_cost: int = TILE_COST) -> int:
        """Return the cost in pixels."""
        return self.pixels + tile_cost * self.tiles


def decoded_pixels(
    layout: TileLayout,
    boxes: Boxes,
    frames: FrameNumbers | None = None,
    first_frame: int = 0,
) -> Decoded:
    """Return the work of reading `boxes` from one SOT with this `layout`.

    With `frames`, the frame of each box, all boxes are one read.  A tile that any box touches is
    decoded from `first_frame`, the start of the SOT, to the last frame on which a box touches it.
    That is (last - first_frame + 1) times its area.  This is the rule of TASM's estimator, except
    that a tile counts once for T and not once per frame, see `TILE_COST`.

    Without `frames`, every box is a separate read, which decodes one frame of the tiles that it
    touches.

    Areas outside the picture cost nothing.  Raises `UsageError` as `WantedBoxes.of` does.
    """
    wanted = WantedBoxes.of(boxes, frames, first_frame)
    tile, box = intersecting_pairs(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    if wanted.together:
        np.maximum.at(lengths, tile, wanted.lengths[box])
        tiles = int(np.count_nonzero(lengths))
    else:
        np.add.at(lengths, tile, wanted.lengths[box])
        tiles = len(box)
    return Decoded(int(lengths @ tile_areas(layout)), tiles)


def decoded_frames(
    layout: TileLayout, boxes: Boxes, frames: FrameNumbers, first_frame: int
) -> Ints:
    """Return the number of frames that one read of `boxes` decodes of each tile of a SOT.

    Same rule and errors as `decoded_pixels`.
    """
    wanted = WantedBoxes.of(boxes, frames, first_frame)
    tile, box = intersecting_pairs(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    np.maximum.at(lengths, tile, wanted.lengths[box])
    return lengths


def tile_areas(layout: TileLayout) -> Ints:
    """Return the pixels of each tile."""
    return np.outer(layout.heights, layout.widths).ravel()


def intersecting_pairs(layout: TileLayout, wanted: WantedBoxes) -> tuple[Ints, Ints]:
    """Return (tile numbers, box numbers) for all pairs of a box and a tile that it touches."""
    x1, y1, x2, y2 = wanted.corners.T
    left, columns = _part_spans(layout.column_edges, x1, x2)
    top, rows = _part_spans(layout.row_edges, y1, y2)
    touched = columns * rows
    box = np.repeat(np.arange(len(touched)), touched)
    # Index among the tiles of one box.
    nth = np.arange(len(box)) - np.repeat(np.cumsum(touched) - touched, touched)
    tile = (top[box] + nth // columns[box]) * layout.columns + left[box] + nth % columns[box]
    return tile, box


def _part_spans(edges: tuple[int, ...], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the first part between `edges` that each range touches, and the number of parts."""
    # Called a million times by policies: `clip` takes several times as long as these two calls.
    bounds = np.array(edges)
    first = np.maximum(bounds.searchsorted(start, side="right"), 1) - 1
    after = np.minimum(bounds.searchsorted(end, side="left"), len(edges) - 1)
    return first, np.maximum(after - first, 0)
