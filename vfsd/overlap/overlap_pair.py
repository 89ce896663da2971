"""Compares two videos: how they lie to each other, how well their pixels and motion agree, and how
many bytes they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.overlap_geometry import (
    Homography,
    ImageSize,
    PixelArray,
    SeamCut,
    corner_displacement,
    cut_at_seam,
    image_size,
    inverse_homography,
    overlap_shares,
    resize_homography,
)
from vfsd.codecs.joints.plane_merge import (
    ExposureMatch,
    PixelMask,
    exposure,
    mean_square,
    psnr_of_square,
    warp_with_mask,
)
from vfsd.overlap.homography import Alignment, Features, align_videos, match_features

_BLOCK = 8
"""Pixels of a side: means of blocks hardly have noise, and what moves is larger."""
_STILL = 1.0
"""Levels squared, of means of blocks between two moments: less is no movement but noise."""

_Means = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Where both see the same part of the world."""

    left: tuple[float, ...]  #: dB by moment: the right picture laid over the left one
    right: tuple[float, ...]  #: dB by moment: the left picture laid over the right one
    exposure: ExposureMatch
    movement: float | None
    """How far what moves is the same on both: 1 at the same time, 0 at times that have nothing to
    do with each other; None where nothing moves."""

    @property
    def psnr_left(self) -> float:
        """dB over all moments together."""
        return _pooled(self.left)

    @property
    def psnr_right(self) -> float:
        return _pooled(self.right)


def measure_agreement(
    left: Sequence[PixelArray], right: Sequence[PixelArray], alignment: Alignment
) -> Agreement:
    """Of pictures taken at the same moments."""
    size, other = image_size(left[0]), image_size(right[0])
    laid = [
        warp_with_mask(picture, matrix, size)
        for picture, matrix in zip(right, alignment.matrices, strict=True)
    ]
    light = exposure([(one, *over) for one, over in zip(left, laid, strict=True)])
    laid = [(light.to_left(picture), mask) for picture, mask in laid]
    forth = [
        psnr_of_square(mean_square(one, picture, mask))
        for one, (picture, mask) in zip(left, laid, strict=True)
    ]
    back = []
    for one, picture, matrix in zip(left, right, alignment.matrices, strict=True):
        over, mask = warp_with_mask(one, inverse_homography(matrix), other)
        back.append(psnr_of_square(mean_square(light.to_right(over), picture, mask)))
    return Agreement(tuple(forth), tuple(back), light, _movement(left, laid))


def _movement(
    left: Sequence[PixelArray], laid: Sequence[tuple[PixelArray, PixelMask]]
) -> float | None:
    """(O - S) / M.

    S is the variance over blocks of the difference of the two cameras at the same moment, O at
    different moments, and M that of one camera at different moments.  What is wrong with the
    projection is in both O and S; light that changes everywhere is in none of them.  At the same
    time, what has moved is in O and not in S: O = S + M.  At times that have nothing to do with
    each other it is in both alike: O = S.
    """
    means = [_block_means(picture) for picture in left]
    others = [(_block_means(picture), _complete_blocks(mask)) for picture, mask in laid]
    same = different = moved = 0.0
    for i, one in enumerate(means):
        for j, (other, there) in enumerate(others):
            mask = there & others[i][1]
            if i == j or not mask.any():
                continue
            different += _variance(one, other, mask)
            moved += _variance(one, means[j], mask)
            same += (_variance(one, others[i][0], mask) + _variance(means[j], other, mask)) / 2
    pairs = len(means) * (len(means) - 1)
    if not pairs or moved / pairs < _STILL:
        return None
    return (different - same) / moved


def _block_means(picture: PixelArray) -> _Means:
    width, height = image_size(picture)
    size = max(1, width // _BLOCK), max(1, height // _BLOCK)
    return np.asarray(
        cv2.resize(picture.astype(np.float32), size, interpolation=cv2.INTER_AREA), np.float32
    )


def _complete_blocks(mask: PixelMask) -> PixelMask:
    """Blocks that are all there."""
    height, width = mask.shape
    size = max(1, width // _BLOCK), max(1, height // _BLOCK)
    whole: PixelMask = (
        cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.999
    )
    return whole


def _variance(one: _Means, other: _Means, mask: PixelMask) -> float:
    return float((one[mask] - other[mask]).var(axis=0).mean())


def _pooled(values: Sequence[float]) -> float:
    return psnr_of_square(float(np.mean([255 * 255 / 10 ** (value / 10) for value in values])))


# Measured on each side before merging. The mean of two pictures is 6 dB nearer to each, so a limit
# after merging would accept 18 dB and show objects twice.
MIN_PSNR = 24.0
"""dB of what either side shows, as the other one shows it: below, VSS gives a pair up."""
COPY_PSNR = 30.0
"""dB of a copy: what VSS calls near-lossless."""
COPY_MAX_DISPLACEMENT = 1.5 / 640
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
class VideoSamples:
    """What is looked at of one video."""

    size: ImageSize  #: of the displayed frame
    duration: Fraction  #: seconds
    bytes: int  #: of its file
    pictures: Mapping[Fraction, PixelArray]  #: by seconds from its first frame; all of one size
    features: Mapping[Fraction, Features]  #: of these pictures


@dataclass(frozen=True, eq=False, slots=True)
class Overlap:
    """What two videos have in common.

    Homographies go from the right video to the left one, in pixels of displayed frames.
    """

    swapped: bool  #: the second of the two that were compared is the left one
    times: tuple[Fraction, ...]  #: the moments that were looked at, in seconds
    matrices: tuple[Homography, ...]  #: at each of them
    fixed: bool  #: the same one holds at all of them
    shares: tuple[float, float]  #: of the left and the right frame, what the other one sees
    agreement: Agreement
    cut: (
        SeamCut | None
    )  #: of displayed frames, at the first moment; None: nothing to be saved by one
    verdict: Verdict
    why: str  #: it is refused, only partly good, or how far it is not known; else empty
    common: int
    """Bytes, about, of what both see, in the file that has it in fewer: what would be free if that
    were kept once and nothing else; 0 where it is."""


def compare_videos(one: VideoSamples, other: VideoSamples) -> Overlap | None:
    """What two videos have in common, looked at when both were; None where that is nothing.

    Both timelines are taken to start at the same time.
    """
    times = tuple(time for time in one.pictures if time in other.pictures)
    if not times:
        return None
    shown = image_size(one.pictures[times[0]]), image_size(other.pictures[times[0]])
    found = align_videos(
        [match_features(one.features[time], other.features[time]) for time in times], *shown
    )
    if found is None:
        return None
    first, second = _OrderedPair(one, other, found), _OrderedPair(other, one, found.turned())
    swapped = second.better_than(first)
    return _overlap(second if swapped else first, times, swapped)


class _OrderedPair:
    """A pair in one of its two orders."""

    def __init__(self, left: VideoSamples, right: VideoSamples, alignment: Alignment) -> None:
        self.left, self.right, self.alignment = left, right, alignment
        time = next(time for time in left.pictures if time in right.pictures)
        sides = (
            (image_size(left.pictures[time]), left.size),
            (image_size(right.pictures[time]), right.size),
        )
        self.matrices = tuple(resize_homography(matrix, *sides) for matrix in alignment.matrices)
        first = self.matrices[0]
        moves = max(corner_displacement(matrix, left.size, right.size) for matrix in self.matrices)
        self.is_copy = moves <= COPY_MAX_DISPLACEMENT
        self.cut = (
            cut_at_seam(first, left.size, right.size) if self._is_fine_enough(first) else None
        )
        self.common = self._common(first)

    def better_than(self, other: _OrderedPair) -> bool:
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

    def _is_fine_enough(self, matrix: Homography) -> bool:
        """Whether the left picture has about as many pixels of the same thing as the right one."""
        left, right = overlap_shares(matrix, self.left.size, self.right.size)
        return left * _pixels(self.left.size) >= FINENESS * right * _pixels(self.right.size)

    def _common(self, matrix: Homography) -> float:
        """Bytes, about, in the time that both have: what both see is kept once, with the bytes that
        it takes in the file in which it takes more."""
        common = min(self.left.duration, self.right.duration)
        left = self.left.bytes * float(common / self.left.duration)
        right = self.right.bytes * float(common / self.right.duration)
        if self.cut is None or self.kept >= _pixels(self.left.size) + _pixels(self.right.size):
            return 0.0
        if self.is_copy:
            return min(left, right)
        both = overlap_shares(matrix, self.left.size, self.right.size)
        # What of it the right picture has beyond its edge is kept twice.
        once = min(1.0, self.cut.edge / self.right.size[0] / both[1]) if both[1] else 0.0
        return once * min(both[0] * left, both[1] * right)


def _overlap(way: _OrderedPair, times: tuple[Fraction, ...], swapped: bool) -> Overlap:
    left, right = way.left, way.right
    seen = measure_agreement(
        [left.pictures[time] for time in times],
        [right.pictures[time] for time in times],
        way.alignment,
    )
    good = [min(pair) >= MIN_PSNR for pair in zip(seen.left, seen.right, strict=True)]
    verdict, why = _verdict(way, seen, good)
    part = 0.0 if verdict is Verdict.REFUSED else sum(good) / len(good)
    both = np.mean(
        [overlap_shares(matrix, left.size, right.size) for matrix in way.matrices], axis=0
    )
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


def _verdict(way: _OrderedPair, seen: Agreement, good: list[bool]) -> tuple[Verdict, str]:
    psnr = min(seen.psnr_left, seen.psnr_right)
    if not any(good):
        return Verdict.REFUSED, f"{psnr:.1f} dB, and less than {MIN_PSNR:g} at every moment"
    if seen.movement is not None and seen.movement < SAME_TIME:
        return Verdict.REFUSED, "what moves is not the same: other times"
    if way.common <= 0:
        return Verdict.REFUSED, "nothing of them can be kept once"
    if all(good):
        verdict = Verdict.COPY if way.is_copy and psnr >= COPY_PSNR else Verdict.JOIN
        return verdict, "nothing moves that tells the time" if seen.movement is None else ""
    return Verdict.PARTLY, f"{MIN_PSNR:g} dB at {sum(good)} of {len(good)} moments"


def _pixels(size: ImageSize) -> int:
    return size[0] * size[1]
