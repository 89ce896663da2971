"""The same light on two sensors: a gain and an offset for each colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.geometry import Picture

Mask = npt.NDArray[np.bool_]
"""height x width."""

MOST_GAIN = 2.0
"""With more, or less than one part in so many, the two do not show the same."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """Levels of the left picture from those of the right one: gain x level + offset."""

    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)
    offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def to_left(self, picture: Picture) -> Picture:
        levels = np.arange(256)[:, np.newaxis]
        return _looked_up(picture, levels * np.array(self.gains) + self.offsets)

    def to_right(self, picture: Picture) -> Picture:
        levels = np.arange(256)[:, np.newaxis]
        return _looked_up(picture, (levels - np.array(self.offsets)) / self.gains)


SAME = Exposure()


def exposure(pairs: Sequence[tuple[Picture, Picture, Mask]]) -> Exposure:
    """From (left picture, right one laid over it, where both are): means and deviations are made
    equal, which unlike least squares is the same from either side.

    `SAME` where there is next to nothing to see, or the gain is beyond `MOST_GAIN`.
    """
    seen = [(left[mask], right[mask]) for left, right, mask in pairs if mask.any()]
    if not seen:
        return SAME
    left = np.concatenate([one for one, _ in seen]).astype(np.float32)
    right = np.concatenate([one for _, one in seen]).astype(np.float32)
    spread = left.std(axis=0), right.std(axis=0)
    if min(spread[0].min(), spread[1].min()) < 1:
        return SAME
    gains = (spread[0] / spread[1]).astype(np.float64)
    if gains.max() > MOST_GAIN or gains.min() < 1 / MOST_GAIN:
        return SAME
    offsets = left.mean(axis=0) - gains * right.mean(axis=0)
    r, g, b = gains.tolist()
    x, y, z = offsets.tolist()
    return Exposure((r, g, b), (x, y, z))


def _looked_up(picture: Picture, levels: npt.NDArray[np.float64]) -> Picture:
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8).reshape(1, 256, 3)
    return np.asarray(cv2.LUT(picture, table), dtype=np.uint8)
