"""Homographies from points that look the same, and whether to believe them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vfsd.overlap.features import Matches
from vfsd.overlap.geometry import (
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

LEAST = 20
"""Points that fit: VSS's m (section 5.1).  Among 360 pairs of clips that have nothing in common, at
most 6 of 28 fitted; among those that overlap, at least 46."""
LEAST_SHARE = 0.3
"""Of points that look the same, those that fit.  Two webcams of one room had 0.57."""
LEAST_SPREAD = 0.1
"""Of the area that both pictures see, the part within the points that fit.  Two webcams had 0.15
to 0.21; one piece of furniture that two walks through a house pass, 0.02 to 0.05, and a homography
from points that lie so close together is a guess everywhere else."""
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
    error: float  #: of them, pixels of the left picture, root mean square


def fit(found: Matches, left: Size, right: Size) -> Fit | None:
    """The homography that most points agree on; None where it is not to be believed."""
    if len(found) < LEAST:
        return None
    tolerance = TOLERANCE * max(left)
    estimate, chosen = cv2.findHomography(found.right, found.left, cv2.RANSAC, tolerance)
    if estimate is None or abs(np.linalg.det(estimate)) < 1e-9:
        return None
    fitting = chosen.ravel().astype(bool)
    if fitting.sum() < max(LEAST, LEAST_SHARE * len(found)):
        return None
    points = Matches(found.left[fitting], found.right[fitting])
    matrix = np.asarray(estimate, dtype=np.float64)
    for way, here, there, seen in (
        (matrix, left, right, points.left),
        (inverse(matrix), right, left, points.right),
    ):
        quad = outline(way, there)
        if quad is None or hull_area(seen) < LEAST_SPREAD * area(common(quad, here)):
            return None
    if max(shares(matrix, left, right)) < LEAST_COMMON:
        return None
    off = np.linalg.norm(projected(matrix, points.right) - points.left, axis=1)
    return Fit(matrix, points, float(np.sqrt(np.square(off).mean())))


@dataclass(frozen=True, eq=False, slots=True)
class Alignment:
    """How two videos lie to each other, at the moments that were looked at."""

    matrices: tuple[Matrix, ...]  #: by moment; the same one where they are fixed to each other
    known: tuple[bool, ...]  #: by moment: whether its own points tell
    fixed: bool

    def turned(self) -> Alignment:
        """From the left picture to the right one."""
        return Alignment(tuple(map(inverse, self.matrices)), self.known, self.fixed)


def align(moments: Iterable[Matches], count: int, left: Size, right: Size) -> Alignment | None:
    """None unless half of the `count` moments, and two where there are as many, have a homography.

    Where cameras move against each other, a moment without one has that of its neighbour.
    """
    fits: list[Fit | None] = []
    missed = 0
    for found in moments:
        fits.append(fit(found, left, right))
        missed += fits[-1] is None
        if 2 * missed > count or count - missed < min(2, count):
            return None
    known = tuple(one is not None for one in fits)
    together = _together(fits, left, right)
    if together is not None:
        return Alignment((together.matrix,) * len(fits), known, True)
    matrices = [one.matrix if one is not None else None for one in fits]
    return Alignment(tuple(_nearest(matrices, at) for at in range(len(matrices))), known, False)


def _together(fits: Sequence[Fit | None], left: Size, right: Size) -> Fit | None:
    """One homography for all moments, if it holds at each."""
    points = [one.points for one in fits if one is not None]
    whole = fit(
        Matches(
            np.concatenate([one.left for one in points]),
            np.concatenate([one.right for one in points]),
        ),
        left,
        right,
    )
    if whole is None:
        return None
    tolerance = 2 * TOLERANCE * max(left)
    for one in points:
        off = np.linalg.norm(projected(whole.matrix, one.right) - one.left, axis=1)
        if (off <= tolerance).mean() < HOLDS:
            return None
    return whole


def _nearest(matrices: Sequence[Matrix | None], at: int) -> Matrix:
    by_distance = sorted(range(len(matrices)), key=lambda other: abs(other - at))
    return next(found for other in by_distance if (found := matrices[other]) is not None)
