"""How far the tiles of a SOT are decoded, for any run of its frames, told without counting anew."""

from __future__ import annotations

import numpy as np

from vfsd.tiling.decode_work import touches
from vfsd.tiling.layout import TileLayout
from vfsd.tiling.wanted_boxes import Ints, Wanted


class Reach:
    """The boxes of one label in a SOT, as they lie in the tiles of a layout."""

    def __init__(self, layout: TileLayout, corners: Ints, frames: Ints, sot: range) -> None:
        wanted = Wanted.of(corners, frames, sot.start)
        tile, box = touches(layout, wanted)
        reached = np.zeros((len(sot) + 1, layout.count), np.int32)
        lengths = wanted.lengths[box]
        np.maximum.at(reached, (lengths, tile), lengths)
        # Row k: what is decoded of each tile to see the boxes on the first k frames.
        self._reached = np.maximum.accumulate(reached, axis=0)

    def lengths(self, start: int, stop: int) -> Ints:
        """Frames that are decoded of each tile to see the boxes on frames ``start <= f < stop``.

        Frames count from the start of the SOT.
        """
        row = self._reached[stop]
        return np.where(row > start, row, 0).astype(np.int64)
