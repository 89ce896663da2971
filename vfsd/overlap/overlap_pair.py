"""Two videos that show the same place: how, how well, and how many bytes have it in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np

from vfsd.codecs.joints.geometry import (
    Matrix,
    Picture,
    Size,
    displacement,
    resized,
    shares,
    size_of,
)
from vfsd.codecs.joints.seam import Cut, cut
from vfsd.overlap.features import Features, matches
from vfsd.overlap.homography import Alignment, align
from vfsd.overlap.verify_overlap import Agreement, agreement

# Measured on each side before merging. The mean of two pictures is 6 dB nearer to each, so a limit
# after merging would accept 18 dB and show objects twice.
LIMIT = 24.0
"""dB of what either side shows, as the other one shows it: below, VSS gives a pair up."""
COPY = 30.0
"""dB of a copy: what VSS calls near-lossless."""
COPY_MOVES = 1.5 / 640
"""Widths of the picture that the corners of a copy may be off: about what a homography from
pictures of 640 pixels is exact to.  The same scene in two codecs had 0.0001."""
FINENESS = 0.8
"""Pixels of the left picture for one of the right, where both see the same: it is kept in the left
picture's, and not less finely than it was."""
# A fixed camera's recordings of two days agree in nearly all pixels; only what moves differs.
# Simultaneous pairs had 0.97 to 1.00, others -0.13 to 0.48.
SAME_TIME = 0.5
"""Of `Agreement.movement`: halfway between the same time and any other."""


class Verdict(StrEnum):
    """What can be done with two videos that show the same place."""

    SAME = "same"  #: their files have the very same bytes
    COPY = "copy"  #: one shows just what the other does
    JOIN = "join"  #: they agree at all moments that were looked at
    PARTLY = "partly"  #: they agree at some
    REFUSED = "refused"  #: the same place, but not the same pixels


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """What is looked at of one video."""

    size: Size  #: of the displayed frame
    duration: Fraction  #: seconds
    bytes: int  #: of its file
    pictures: Mapping[Fraction, Picture]  #: by seconds from its first frame; all of one size
    features: Mapping[Fraction, Features]  #: of these pictures


@dataclass(frozen=True, eq=False, slots=True)
class Overlap:
    """What two videos have in common.

    Homographies go from the right video to the left one, in pixels of displayed frames.
    """

    swapped: bool  #: the second of the two that were compared is the left one
    times: tuple[Fraction, ...]  #: the moments that were looked at, in seconds
    matrices: tuple[Matrix, ...]  #: at each of them
    fixed: bool  #: the same one holds at all of them
    shares: tuple[float, float]  #: of the left and the right frame, what the other one sees
    agreement: Agreement
    cut: Cut | None  #: of displayed frames, at the first moment; None: nothing to be saved by one
    verdict: Verdict
    why: str  #: it is refused, only partly good, or how far it is not known; else empty
    common: int
    """Bytes, about, of what both see, in the file that has it in fewer: what would be free if that
    were kept once and nothing else; 0 where it is."""


def compare(one: Moments, other: Moments) -> Overlap | None:
    """What two videos have in common, looked at when both were; None where that is nothing.

    Both timelines are taken to start at the same time.
    """
    times = tuple(time for time in one.pictures if time in other.pictures)
    if not times:
        return None
    shown = size_of(one.pictures[times[0]]), size_of(other.pictures[times[0]])
    found = align([matches(one.features[time], other.features[time]) for time in times], *shown)
    if found is None:
        return None
    first, second = _Way(one, other, found), _Way(other, one, found.turned())
    swapped = second.better_than(first)
    return _overlap(second if swapped else first, times, swapped)


class _Way:
    """A pair in one of its two orders."""

    def __init__(self, left: Moments, right: Moments, alignment: Alignment) -> None:
        self.left, self.right, self.alignment = left, right, alignment
        time = next(time for time in left.pictures if time in right.pictures)
        sides = (
            (size_of(left.pictures[time]), left.size),
            (size_of(right.pictures[time]), right.size),
        )
        self.matrices = tuple(resized(matrix, *sides) for matrix in alignment.matrices)
        first = self.matrices[0]
        moves = max(displacement(matrix, left.size, right.size) for matrix in self.matrices)
        self.is_copy = moves <= COPY_MOVES
        self.cut = cut(first, left.size, right.size) if self._is_fine_enough(first) else None
        self.common = self._common(first)

    def better_than(self, other: _Way) -> bool:
        """Whether fewer pixels are kept; of two that keep as many, the one with more of its left
        picture before the seam, or with the larger left picture."""
        if self.cut is None or other.cut is None:
            return self.cut is not None
        if max(self.kept, other.kept) > 1.02 * min(self.kept, other.kept):
            return self.kept < other.kept
        mine, its = _pixels(self.left.size), _pixels(other.left.size)
        return (self.cut.seam, mine) > (other.cut.seam, its)

    @property
    def kept(self) -> float:
        """Pixels of all pieces together; of both pictures, where they are not cut."""
        left, right = _pixels(self.left.size), _pixels(self.right.size)
        if self.cut is None:
            return left + right
        return self.cut.left_kept * left + self.cut.right_kept * right

    def _is_fine_enough(self, matrix: Matrix) -> bool:
        """Whether the left picture has about as many pixels of the same thing as the right one."""
        left, right = shares(matrix, self.left.size, self.right.size)
        return left * _pixels(self.left.size) >= FINENESS * right * _pixels(self.right.size)

    def _common(self, matrix: Matrix) -> float:
        """Bytes, about, in the time that both have: what both see is kept once, with the bytes that
        it takes in the file in which it takes more."""
        common = min(self.left.duration, self.right.duration)
        left = self.left.bytes * float(common / self.left.duration)
        right = self.right.bytes * float(common / self.right.duration)
        if self.cut is None or self.kept >= _pixels(self.left.size) + _pixels(self.right.size):
            return 0.0
        if self.is_copy:
            return min(left, right)
        both = shares(matrix, self.left.size, self.right.size)
        # What of it the right picture has beyond its edge is kept twice.
        once = min(1.0, self.cut.edge / self.right.size[0] / both[1]) if both[1] else 0.0
        return once * min(both[0] * left, both[1] * right)


def _overlap(way: _Way, times: tuple[Fraction, ...], swapped: bool) -> Overlap:
    left, right = way.left, way.right
    seen = agreement(
        [left.pictures[time] for time in times],
        [right.pictures[time] for time in times],
        way.alignment,
    )
    good = [min(pair) >= LIMIT for pair in zip(seen.left, seen.right, strict=True)]
    verdict, why = _judged(way, seen, good)
    part = 0.0 if verdict is Verdict.REFUSED else sum(good) / len(good)
    both = np.mean([shares(matrix, left.size, right.size) for matrix in way.matrices], axis=0)
    return Overlap(
        swapped,
        times,
        way.matrices,
        way.alignment.fixed,
        (float(both[0]), float(both[1])),
        seen,
        way.cut,
        verdict,
        why,
        round(way.common * part),
    )


def _judged(way: _Way, seen: Agreement, good: list[bool]) -> tuple[Verdict, str]:
    psnr = min(seen.psnr_left, seen.psnr_right)
    if not any(good):
        return Verdict.REFUSED, f"{psnr:.1f} dB, and less than {LIMIT:g} at every moment"
    if seen.movement is not None and seen.movement < SAME_TIME:
        return Verdict.REFUSED, "what moves is not the same: other times"
    if way.common <= 0:
        return Verdict.REFUSED, "nothing of them can be kept once"
    if all(good):
        verdict = Verdict.COPY if way.is_copy and psnr >= COPY else Verdict.JOIN
        return verdict, "nothing moves that tells the time" if seen.movement is None else ""
    return Verdict.PARTLY, f"{LIMIT:g} dB at {sum(good)} of {len(good)} moments"


def _pixels(size: Size) -> int:
    return size[0] * size[1]
