"""Boxes that somebody wants to read, as arrays, and how far a tile is decoded for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.errors import UsageError
from vfsd.tiling.geometry import Rect

Ints = npt.NDArray[np.int64]

Boxes = Sequence[Rect] | npt.NDArray[np.integer[Any]]
"""Rectangles, or an array of shape (N, 4) of x1, y1, x2, y2 in pixels, half-open.

The boxes of an array may reach outside the picture, as those of detectors do.
"""

FrameNumbers = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Boxes to be read from one SOT (a run of frames that share a layout).

    With frame numbers, all boxes are one read, and a tile is decoded once, from the first frame
    of the SOT to the last one on which it is wanted.  Without, every box is a read of its own,
    of the first frame.
    """

    corners: Ints  #: (N, 4): x1, y1, x2, y2
    lengths: Ints  #: (N,): frames that are decoded of a tile to reach each box
    together: bool  #: one read, not N

    @classmethod
    def of(cls, boxes: Boxes, frames: FrameNumbers | None, first_frame: int) -> Wanted:
        """Raises `UsageError` for a box that holds no pixel, arrays of other shapes or kinds, and
        a frame before `first_frame`."""
        corners = _corners(boxes)
        if frames is None:
            return cls(corners, np.ones(len(corners), np.int64), False)
        numbers = np.asarray(frames, np.int64) if len(frames) else np.zeros(0, np.int64)
        if numbers.shape != (len(corners),):
            raise UsageError(f"{len(corners)} boxes need as many frame numbers, not {len(numbers)}")
        if len(numbers) and numbers.min() < first_frame:
            raise UsageError(
                f"frame {numbers.min()} is before frame {first_frame}, the first of those tiled"
            )
        return cls(corners, numbers - first_frame + 1, True)

    def within(self, width: int, height: int, padding: int = 0) -> Wanted:
        """The boxes enlarged by `padding` pixels on each side, and only what of them lies in the
        picture; boxes that lie outside are left out.

        Raises `UsageError` when `padding` is negative.
        """
        if padding < 0:
            raise UsageError(f"boxes cannot be enlarged by {padding} pixels")
        inside = (
            (self.corners[:, :2] < (width, height)).all(axis=1)
            & (self.corners[:, 2:] > 0).all(axis=1)
        )  # fmt: skip
        grown = self.corners[inside] + (-padding, -padding, padding, padding)
        size = (width, height, width, height)
        return Wanted(grown.clip(0, size), self.lengths[inside], self.together)


def _corners(boxes: Boxes) -> Ints:
    if isinstance(boxes, np.ndarray):
        if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "iu":
            raise UsageError(
                f"boxes are integers in an array of shape (N, 4), not {boxes.dtype} {boxes.shape}"
            )
        corners = boxes.astype(np.int64)
    else:
        flat = [corner for box in boxes for corner in (box.x1, box.y1, box.x2, box.y2)]
        corners = np.array(flat, np.int64).reshape(-1, 4)
    empty = (corners[:, :2] >= corners[:, 2:]).any(axis=1)
    if empty.any():
        raise UsageError(f"a box must have at least one pixel, got {corners[empty][0].tolist()}")
    return corners
