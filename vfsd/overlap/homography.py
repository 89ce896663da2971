"""Homographies from points that look the same, and whether to believe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vfsd.codecs.joints.geometry import (
    Matrix,
    Size,
    area,
    common,
    hull_area,
    inverse,
    outline,
    projected,
    shares,
)
from vfsd.overlap.features import Matches

LEAST = 20
"""Different points that fit: VSS's m.  Of 348 pairs of clips that have nothing in
common, all moments together had 8 at most; of 16 that have, 59 at least."""
LEAST_SHARE = 0.3
"""Of points that look the same, those that fit.  Two webcams in one room had 0.65."""
LEAST_SPREAD = 0.1
"""Of the area that both pictures see, the part within the points that fit: from points that lie
close together, a homography is a guess everywhere else.  Two webcams in one room had 0.15."""
LEAST_COMMON = 0.1
"""Of the picture that has more of its area in common, how much it has."""
TOLERANCE = 3 / 640
"""Widths of a picture that a point may be off: three pixels of the size that is looked at."""
HOLDS = 0.8
"""Of a moment's points, those that have to fit the homography of all moments together, within twice
the tolerance, for the cameras to count as fixed to each other."""


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """A homography, and what speaks for it."""

    matrix: Matrix
    points: Matches  #: that fit


def fit(found: Matches, left: Size, right: Size) -> Fit | None:
    """The homography that most points agree on; None where it is not to be believed."""
    if len(found) < LEAST:
        return None
    tolerance = TOLERANCE * max(left)
    estimate, chosen = cv2.findHomography(found.right, found.left, cv2.RANSAC, tolerance)
    if estimate is None or abs(np.linalg.det(estimate)) < 1e-9:
        return None
    matrix = np.asarray(estimate, dtype=np.float64)
    points = found.where(chosen.ravel().astype(bool))
    if len(points) < LEAST_SHARE * len(found) or _places(points, tolerance) < LEAST:
        return None
    for way, here, there, seen in (
        (matrix, left, right, points.left),
        (inverse(matrix), right, left, points.right),
    ):
        quad = outline(way, there)
        if quad is None or hull_area(seen) < LEAST_SPREAD * area(common(quad, here)):
            return None
    if max(shares(matrix, left, right)) < LEAST_COMMON:
        return None
    return Fit(matrix, points)


@dataclass(frozen=True, eq=False, slots=True)
class Alignment:
    """How two videos lie to each other, at the moments that were looked at."""

    matrices: tuple[Matrix, ...]  #: by moment; the same one where they are fixed to each other
    fixed: bool

    def turned(self) -> Alignment:
        """From the left picture to the right one."""
        return Alignment(tuple(map(inverse, self.matrices)), self.fixed)


def align(moments: Sequence[Matches], left: Size, right: Size) -> Alignment | None:
    """None where no homographies are to be believed.

    One for all moments is looked for first: points of all of them tell it even where each has few.
    Where there is none, the cameras move against each other, and half of the moments, at least two,
    need one of their own; the others have that of their neighbour.
    """
    together = _together(moments, left, right)
    if together is not None:
        return Alignment((together.matrix,) * len(moments), True)
    fits = [fit(found, left, right) for found in moments]
    known = sum(one is not None for one in fits)
    if known < 2 or 2 * known < len(moments):
        return None
    return Alignment(tuple(_nearest(fits, at).matrix for at in range(len(fits))), False)


def _together(moments: Sequence[Matches], left: Size, right: Size) -> Fit | None:
    """One homography for all moments, if it holds at each that has points to tell."""
    found = fit(Matches.of(moments), left, right)
    if found is None:
        return None
    tolerance = 2 * TOLERANCE * max(left)
    for matches in moments:
        own = fit(matches, left, right)
        if own is None:
            continue
        off = projected(found.matrix, own.points.right) - own.points.left
        if (np.linalg.norm(off, axis=1) <= tolerance).mean() < HOLDS:
            return None
    return found


def _places(points: Matches, tolerance: float) -> int:
    """How many different ones there are: what stands still is found again at every moment."""
    cells = np.concatenate([points.left, points.right], axis=1) // (2 * tolerance)
    return len(np.unique(cells, axis=0))


def _nearest(fits: Sequence[Fit | None], at: int) -> Fit:
    by_distance = sorted(range(len(fits)), key=lambda other: abs(other - at))
    return next(one for other in by_distance if (one := fits[other]) is not None)
