"""Layouts around what was seen in a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vfsd.codecs.frames.to_array import needed_margin
from vfsd.core.detections import DetectionColumns
from vfsd.core.model import MediaInfo
from vfsd.derive.tile_spec import PlannedSegment
from vfsd.tiling import LayoutRules, TileLayout, decoded_frames, decoded_pixels

ALPHA = 0.8
"""A segment is left untiled where tiles would save less than a fifth of the pixels (TASM, IV-B)."""

Partition = Callable[..., TileLayout]
"""`vfsd.tiling.fine` or `vfsd.tiling.coarse`."""


def layouts_around(
    columns: DetectionColumns,
    media: MediaInfo,
    sequences: Sequence[range],
    rules: LayoutRules,
    partition: Partition,
    *,
    padding: int = 0,
    alpha: float = ALPHA,
) -> list[PlannedSegment]:
    """A layout around the boxes of each of `sequences` in which that pays; by time.

    To be stored are the tiles that hold a part of a box.  `padding` is in pixels, around each box.
    A sequence is left out where nothing was seen, and where reading what was seen would decode more
    than `alpha` of the pixels it decodes untiled.
    """
    rows = columns.clipped(media.display_width, media.display_height).in_order()
    boxes = needed_corners(rows.boxes, media, padding)
    untiled = TileLayout.untiled(media.width, media.height)
    planned = []
    for frames in sequences:
        low, high = np.searchsorted(rows.frames, [frames.start, frames.stop])
        if low == high:
            continue
        mine, numbers = boxes[low:high], rows.frames[low:high]
        layout = partition(mine, media.width, media.height, rules)
        whole = decoded_pixels(untiled, mine, numbers, frames.start).pixels
        if (
            not layout.is_untiled
            and decoded_pixels(layout, mine, numbers, frames.start).pixels <= alpha * whole
        ):
            lengths = decoded_frames(layout, mine, numbers, frames.start)
            planned.append(PlannedSegment(frames, layout, tuple(np.flatnonzero(lengths).tolist())))
    return planned


def needed_corners(
    boxes: npt.NDArray[np.float64], media: MediaInfo, padding: int = 0
) -> npt.NDArray[np.int64]:
    """Boxes of the displayed frame, N x 4, with `padding`, on the stored picture.

    What converting a box looks at beyond it belongs to it: tiles without would be of no use.
    """
    margin = padding + needed_margin(media, "rgb24")
    size = (media.width, media.height, media.width, media.height)
    grown = in_picture_corners(boxes, media) + np.array((-margin, -margin, margin, margin))
    inside: npt.NDArray[np.int64] = grown.clip(0, size)
    return inside


def in_picture_corners(boxes: npt.NDArray[np.float64], media: MediaInfo) -> npt.NDArray[np.int64]:
    """Boxes of the displayed frame, N x 4, as whole pixels of the stored picture.

    What is touched belongs to them.
    """
    x1, y1 = np.floor(boxes[:, 0]), np.floor(boxes[:, 1])
    x2, y2 = np.ceil(boxes[:, 2]), np.ceil(boxes[:, 3])
    width, height = media.width, media.height
    x1, y1, x2, y2 = {
        0: (x1, y1, x2, y2),
        90: (y1, height - x2, y2, height - x1),
        180: (width - x2, height - y2, width - x1, height - y1),
        270: (width - y2, x1, width - y1, x2),
    }[media.rotation]
    if media.mirrored:
        x1, x2 = width - x2, width - x1
    return np.stack((x1, y1, x2, y2), axis=1).astype(np.int64)
