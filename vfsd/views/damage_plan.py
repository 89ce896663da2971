"""What views do without that is known to be damaged: planned around, before anything is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table_pages import Ints, PacketColumns
from vfsd.core.view_request import View
from vfsd.read.plan import plan_frames
from vfsd.views.source import Footage

Mask = npt.NDArray[np.bool_]


def shown_by_tiles(footage: Footage, frames: Ints) -> Mask:
    """Which of `frames` the original is known to have lost, while tiles show them.

    Packets of these are no use to anybody; what only the original has is copied all the same, as
    far as it can be read.
    """
    none = np.zeros(len(frames), bool)
    tiles = footage.tiles
    if tiles is None or not tiles.unreadable or not tiles.stored:
        return none
    lost = np.logical_or.reduce(
        [(frames >= one.start) & (frames < one.stop) for one in tiles.unreadable]
    )
    if not lost.any():
        return none
    plan = plan_frames(
        frames[lost],
        View(),
        footage.physical,
        footage.table,
        pixel_format="yuv420p",  # of which encoded views are made
        tiles=tiles,
    )
    return np.isin(frames, [frame for run in plan.tiled for frame in run.frames])


def longest_stretch(damaged: Mask) -> range:
    """The longest run of places that are not damaged, the first of several; may be empty."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], damaged, [True])).astype(np.int8)))
    runs = [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return max(runs, key=len, default=range(0))


def are_whole(columns: PacketColumns, damage: Sequence[range]) -> Mask:
    """Which packets have none of the bytes in `damage`."""
    whole = np.ones(len(columns), bool)
    for one in damage:
        whole &= (columns.position >= one.stop) | (columns.position + columns.size <= one.start)
    return whole
