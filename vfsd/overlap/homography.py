"""Matches SIFT features of two pictures and fits homographies to them.

The constants are the criteria for trusting a homography.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.overlap_geometry import (
    Homography,
    ImageSize,
    PixelArray,
    PointArray,
    common_polygon,
    hull_area,
    inverse_homography,
    overlap_shares,
    polygon_area,
    project_points,
    projected_outline,
)

_MAX_FEATURES = 1000
"""Strongest features per picture: the cost of matching grows with the product of their numbers."""
_CONTRAST_THRESHOLD = 0.02
"""Half the value of Lowe and OpenCV.  Theirs found generated scenes of soft ground in 10 of 18
cases, this one in all.  Unrelated clips were found with neither.
"""
_RATIO = 0.75
"""Lowe's ratio test (0.8 in IJCV 2004): distance of the nearest to the second nearest
descriptor.
"""


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """SIFT key points and descriptors."""

    points: PointArray
    descriptors: npt.NDArray[np.float32]  #: n x 128

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False, slots=True)
class Matches:
    """Points of the left and right picture that look alike, row by row."""

    left: PointArray
    right: PointArray

    def __len__(self) -> int:
        return len(self.left)

    @classmethod
    def of(cls, some: Sequence[Matches]) -> Matches:
        """Concatenate the matches of several pairs of pictures; at least one."""
        return cls(
            np.concatenate([one.left for one in some]), np.concatenate([one.right for one in some])
        )

    def where(self, chosen: npt.NDArray[np.bool_]) -> Matches:
        return Matches(self.left[chosen], self.right[chosen])


def features_of(picture: PixelArray) -> Features:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    found, descriptors = cv2.SIFT.create(
        nfeatures=_MAX_FEATURES, contrastThreshold=_CONTRAST_THRESHOLD
    ).detectAndCompute(gray, None)
    if descriptors is None:
        return Features(np.zeros((0, 2)), np.zeros((0, 128), np.float32))
    points = np.array([point.pt for point in found], dtype=np.float64).reshape(-1, 2)
    return Features(points, np.asarray(descriptors, dtype=np.float32))


def match_features(left: Features, right: Features) -> Matches:
    """Return mutual nearest neighbours that pass the ratio test."""
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


MIN_MATCHES = 20
"""Distinct points that must fit: VSS's m.  348 pairs of unrelated clips had at most 8 over all
moments, 16 related ones at least 59.
"""
MIN_INLIER_SHARE = 0.3
"""Share of the matches that must fit.  Two webcams in one room had 0.65."""
MIN_SPREAD = 0.1
"""Share of the common area that the hull of the fitting points must cover.  Outside the hull, a
homography is only a guess.  Two webcams in one room had 0.15.
"""
MIN_COMMON_AREA = 0.1
"""Minimum common share of the picture that has more in common."""
TOLERANCE = 3 / 640
"""Tolerance as a share of the picture's width: three pixels at the examined size."""
MIN_AGREEING_SHARE = 0.8
"""Share of a moment's points that must fit the homography of all moments, within twice the
tolerance, for the cameras to count as fixed to each other.
"""


@dataclass(frozen=True, eq=False, slots=True)
class HomographyFit:
    """A homography with its fitting points."""

    matrix: Homography
    points: Matches  #: that fit `matrix`


def fit_homography(found: Matches, left: ImageSize, right: ImageSize) -> HomographyFit | None:
    """Return the homography that most points agree on; None if it cannot be trusted."""
    if len(found) < MIN_MATCHES:
        return None
    tolerance = TOLERANCE * max(left)
    estimate, chosen = cv2.findHomography(found.right, found.left, cv2.RANSAC, tolerance)
    if estimate is None or abs(np.linalg.det(estimate)) < 1e-9:
        return None
    matrix = np.asarray(estimate, dtype=np.float64)
    points = found.where(chosen.ravel().astype(bool))
    if (
        len(points) < MIN_INLIER_SHARE * len(found)
        or _distinct_points(points, tolerance) < MIN_MATCHES
    ):
        return None
    for way, here, there, seen in (
        (matrix, left, right, points.left),
        (inverse_homography(matrix), right, left, points.right),
    ):
        quad = projected_outline(way, there)
        if quad is None or hull_area(seen) < MIN_SPREAD * polygon_area(common_polygon(quad, here)):
            return None
    if max(overlap_shares(matrix, left, right)) < MIN_COMMON_AREA:
        return None
    return HomographyFit(matrix, points)


@dataclass(frozen=True, eq=False, slots=True)
class Alignment:
    """The homographies between two videos at the examined moments."""

    matrices: tuple[Homography, ...]  #: by moment; all equal if the cameras are fixed to each other
    fixed: bool

    def inverted(self) -> Alignment:
        """Return the alignment from the left picture to the right one."""
        return Alignment(tuple(map(inverse_homography, self.matrices)), self.fixed)


def align_videos(moments: Sequence[Matches], left: ImageSize, right: ImageSize) -> Alignment | None:
    """Return the alignment of two videos; None if no homographies can be trusted.

    One homography for all moments is tried first: it is determined by the points of all of them,
    even if each has few.  Otherwise the cameras move relative to each other.  Then at least two and
    half of the moments need a homography of their own; the others get that of the nearest moment.
    """
    together = _common_homography(moments, left, right)
    if together is not None:
        return Alignment((together.matrix,) * len(moments), True)
    fits = [fit_homography(found, left, right) for found in moments]
    known = sum(one is not None for one in fits)
    if known < 2 or 2 * known < len(moments):
        return None
    return Alignment(tuple(_nearest_fit(fits, at).matrix for at in range(len(fits))), False)


def _common_homography(
    moments: Sequence[Matches], left: ImageSize, right: ImageSize
) -> HomographyFit | None:
    """Return one homography for all moments, if it holds at each moment with enough points."""
    found = fit_homography(Matches.of(moments), left, right)
    if found is None:
        return None
    tolerance = 2 * TOLERANCE * max(left)
    for matches in moments:
        own = fit_homography(matches, left, right)
        if own is None:
            continue
        off = project_points(found.matrix, own.points.right) - own.points.left
        if (np.linalg.norm(off, axis=1) <= tolerance).mean() < MIN_AGREEING_SHARE:
            return None
    return found


def _distinct_points(points: Matches, tolerance: float) -> int:
    """Return the number of distinct points: a static point is found again at every moment."""
    cells = np.concatenate([points.left, points.right], axis=1) // (2 * tolerance)
    return len(np.unique(cells, axis=0))


def _nearest_fit(fits: Sequence[HomographyFit | None], at: int) -> HomographyFit:
    by_distance = sorted(range(len(fits)), key=lambda other: abs(other - at))
    return next(one for other in by_distance if (one := fits[other]) is not None)
