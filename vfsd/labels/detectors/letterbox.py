"""A frame in the fixed picture that a model takes, with grey bars, and boxes back out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_GREY = 114
"""Of the bars, as in all of Ultralytics' models, which were trained with it."""


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Where a frame of width x height pixels lies in a picture: scaled, in the middle."""

    width: int
    height: int
    picture: tuple[int, int]  #: width x height

    @property
    def shown(self) -> tuple[int, int]:
        """The size that the frame is scaled to, in whole pixels."""
        across, down = self.picture
        scale = min(across / self.width, down / self.height)
        return (
            min(across, max(1, round(self.width * scale))),
            min(down, max(1, round(self.height * scale))),
        )

    @property
    def corner(self) -> tuple[int, int]:
        """Where its upper left pixel lies."""
        return (self.picture[0] - self.shown[0]) // 2, (self.picture[1] - self.shown[1]) // 2

    def place(self, frame: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """The picture with a frame (H x W x 3, of the size `shown`) in it."""
        (left, top), (across, down) = self.corner, self.picture
        made = np.full((down, across, 3), _GREY, np.uint8)
        made[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        return made

    def back(self, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """N x 4 corners in the picture, in pixels of the frame.

        Each direction has its own scale, that of the whole pixels: the two differ a little.
        """
        scale = np.array(
            [self.width / self.shown[0], self.height / self.shown[1]] * 2, dtype=np.float64
        )
        moved: npt.NDArray[np.float64] = (boxes - np.array(self.corner * 2)) * scale
        return moved
