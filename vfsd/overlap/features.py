"""Points of a picture that can be found again in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.geometry import Picture, Points

_MOST = 1000
"""Of a picture, the strongest: comparing two pictures takes the product of their numbers."""
_CONTRAST = 0.02
"""Half of what Lowe has, and OpenCV: with his, generated scenes of soft ground were found in 10 of
18 cases, with this one in all; clips with nothing in common were not found with either."""
_RATIO = 0.75
"""Lowe's ratio (IJCV 2004 has 0.8): the nearest descriptor is that much nearer than the next."""


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """SIFT's key points and descriptors."""

    points: Points
    descriptors: npt.NDArray[np.float32]  #: n x 128

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False, slots=True)
class Matches:
    """Points of the left and right picture that look the same, row by row."""

    left: Points
    right: Points

    def __len__(self) -> int:
        return len(self.left)

    @classmethod
    def of(cls, some: Sequence[Matches]) -> Matches:
        """Of several pairs of pictures together, of which there is one at least."""
        return cls(
            np.concatenate([one.left for one in some]), np.concatenate([one.right for one in some])
        )

    def where(self, chosen: npt.NDArray[np.bool_]) -> Matches:
        return Matches(self.left[chosen], self.right[chosen])


def features_of(picture: Picture) -> Features:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    found, descriptors = cv2.SIFT.create(
        nfeatures=_MOST, contrastThreshold=_CONTRAST
    ).detectAndCompute(gray, None)
    if descriptors is None:
        return Features(np.zeros((0, 2)), np.zeros((0, 128), np.float32))
    points = np.array([point.pt for point in found], dtype=np.float64).reshape(-1, 2)
    return Features(points, np.asarray(descriptors, dtype=np.float32))


def matches(left: Features, right: Features) -> Matches:
    """Pairs of points each of which is the other's nearest, and by far."""
    if len(left) < 2 or len(right) < 2:
        return Matches(np.zeros((0, 2)), np.zeros((0, 2)))
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    back = np.array(
        [m[0].trainIdx for m in matcher.knnMatch(right.descriptors, left.descriptors, k=1)]
    )
    kept = [
        nearest
        for nearest, second in matcher.knnMatch(left.descriptors, right.descriptors, k=2)
        if nearest.distance < _RATIO * second.distance
        and back[nearest.trainIdx] == nearest.queryIdx
    ]
    return Matches(
        left.points[[match.queryIdx for match in kept]],
        right.points[[match.trainIdx for match in kept]],
    )
