"""Compares two videos: fits a homography to matching SIFT features, and measures how well pixels
and motion agree.  The constants are the criteria for trusting a homography.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.overlap_geometry import (
    Homography,
    ImageSize,
    PixelArray,
    PointArray,
    SeamCut,
    common_polygon,
    corner_displacement,
    cut_at_seam,
    hull_area,
    image_size,
    inverse_homography,
    overlap_shares,
    polygon_area,
    project_points,
    projected_outline,
    resize_homography,
)
from vfsd.codecs.cells.plane_merge import (
    ExposureMatch,
    PixelMask,
    match_exposure,
    mean_square,
    psnr_of_square,
    warp_with_mask,
)

# Strongest features per picture: the cost of matching grows with the product of their numbers.
_MAX_FEATURES = 1000
# Half the value of Lowe and OpenCV. Theirs found generated scenes of soft ground in 10 of 18 cases,
# this one in all. Unrelated clips were found with neither.
_CONTRAST_THRESHOLD = 0.02
# Lowe's ratio test (0.8 in IJCV 2004): distance of the nearest to the second nearest descriptor.
_RATIO = 0.75

# 348 pairs of unrelated clips had at most 8 over all moments, 16 related ones at least 59.
MIN_MATCHES = 20
"""Distinct points that must fit: VSS's m."""
# Two webcams in one room had 0.65.
MIN_INLIER_SHARE = 0.3
"""Share of the matches that must fit."""
# Outside the hull, a homography is only a guess. Two webcams in one room had 0.15.
MIN_SPREAD = 0.1
"""Share of the common area that the hull of the fitting points must cover."""
MIN_COMMON_AREA = 0.1
"""Minimum common share of the picture that has more in common."""
TOLERANCE = 3 / 640
"""Tolerance as a share of the picture's width: three pixels at the examined size."""
MIN_AGREEING_SHARE = 0.8
"""Share of a moment's points that must fit the homography of all moments, within twice the
tolerance, for the cameras to count as fixed to each other.
"""

# Block size in pixels: block means have little noise, and moving objects are larger.
_BLOCK = 8
# Squared levels between block means of two moments: less is noise, not motion.
_STILL = 1.0

_Means = npt.NDArray[np.float32]

# Measured on each side before merging.  The mean of two pictures is 6 dB nearer to each, so a limit
# after merging would accept 18 dB and show objects twice.
MIN_PSNR = 24.0
"""Minimum dB of either side as shown by the other: below, VSS rejects a pair."""
COPY_PSNR = 30.0
"""Minimum dB of a copy: near-lossless in VSS."""
# It is about the accuracy of a homography from pictures of 640 pixels. The same scene in two codecs
# had 0.0001.
COPY_MAX_DISPLACEMENT = 1.5 / 640
"""Maximum displacement of the corners of a copy, as a share of the picture's width."""
# The area is stored with the pixels of the left one, and must not lose detail.
FINENESS = 0.8
"""Minimum pixels of the left picture per pixel of the right one in the common area."""
# Two recordings of a fixed camera on different days agree in nearly all pixels; only moving objects
# differ.  Simultaneous pairs had 0.97 to 1.00, others -0.13 to 0.48.
SAME_TIME = 0.5
"""Minimum of `Agreement.movement`: halfway between simultaneous and other recordings."""


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of two videos in their common area."""

    left: tuple[float, ...]  #: dB by moment: the right picture laid over the left one
    right: tuple[float, ...]  #: dB by moment: the left picture laid over the right one
    exposure: ExposureMatch
    movement: float | None
    """How far the motion in both is the same: 1 if simultaneous, 0 if unrelated; None without
    motion.
    """

    @property
    def psnr_left(self) -> float:
        """dB over all moments."""
        return _pooled(self.left)

    @property
    def psnr_right(self) -> float:
        return _pooled(self.right)


def measure_agreement(
    left: Sequence[PixelArray], right: Sequence[PixelArray], alignment: Alignment
) -> Agreement:
    """Measure the agreement of pictures taken at the same moments."""
    size, other = image_size(left[0]), image_size(right[0])
    laid = [
        warp_with_mask(picture, matrix, size)
        for picture, matrix in zip(right, alignment.matrices, strict=True)
    ]
    light = match_exposure([(one, *over) for one, over in zip(left, laid, strict=True)])
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
    """Return (O - S) / M.

    S is the variance over blocks of the difference of the two cameras at the same moment.  O is the
    same at different moments, and M that of one camera at different moments.  Errors of the
    projection are in both O and S; global changes of light are in none.  In simultaneous
    recordings, motion is in O and not in S, so O = S + M.  In unrelated ones, motion is in both, so
    O = S.
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
    """Return the blocks that are completely inside the mask."""
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


class Verdict(StrEnum):
    """Whether two videos of the same place can be joined."""

    SAME = "same"  #: their files have the same bytes
    COPY = "copy"  #: one shows exactly what the other does
    JOIN = "join"  #: they agree at all examined moments
    PARTLY = "partly"  #: they agree at some of them
    REFUSED = "refused"  #: the same place, but not the same pixels


@dataclass(frozen=True, eq=False, slots=True)
class VideoSamples:
    """The examined pictures of one video."""

    size: ImageSize  #: of the displayed frame
    duration: Fraction  #: seconds
    bytes: int  #: of its file
    pictures: Mapping[Fraction, PixelArray]  #: by seconds from its first frame; all of one size
    features: Mapping[Fraction, Features]  #: of these pictures


@dataclass(frozen=True, eq=False, slots=True)
class Overlap:
    """The relation of two videos.

    Homographies map the right video to the left one, in pixels of displayed frames.
    """

    swapped: bool  #: the second of the compared videos is the left one
    times: tuple[Fraction, ...]  #: examined moments in seconds
    matrices: tuple[Homography, ...]  #: at each of them
    fixed: bool  #: the same one holds at all of them
    shares: tuple[float, float]  #: share of the left and the right frame that the other one sees
    agreement: Agreement
    cut: SeamCut | None
    """Of displayed frames, at the first moment; None: a cut would save nothing."""
    verdict: Verdict
    why: str  #: why it is refused or only partly good, or what is uncertain; else empty
    common_bytes: int
    """Approximate bytes of the common area, in the file with fewer of them.  This much would be
    saved by storing it once; 0 if it is stored once already.
    """


def compare_videos(one: VideoSamples, other: VideoSamples) -> Overlap | None:
    """Compare two videos at common moments; None if they do not show the same place.

    Both timelines are assumed to start at the same time.
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
    first, second = _OrderedPair(one, other, found), _OrderedPair(other, one, found.inverted())
    swapped = second.is_better_than(first)
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
            cut_at_seam(first, left.size, right.size)
            if is_fine_enough(first, left.size, right.size)
            else None
        )
        self.common_bytes = self._common_bytes(first)

    def is_better_than(self, other: _OrderedPair) -> bool:
        """Return whether this order stores fewer pixels.

        Ties are won by more of the left picture before the seam, and then by the larger left
        picture.
        """
        if self.cut is None or other.cut is None:
            return self.cut is not None
        if max(self.stored_pixels, other.stored_pixels) > 1.02 * min(
            self.stored_pixels, other.stored_pixels
        ):
            return self.stored_pixels < other.stored_pixels
        mine, its = pixel_count(self.left.size), pixel_count(other.left.size)
        return (self.cut.seam, mine) > (other.cut.seam, its)

    @property
    def stored_pixels(self) -> float:
        """Pixels of all pieces; without a cut, of both pictures."""
        left, right = pixel_count(self.left.size), pixel_count(self.right.size)
        if self.cut is None:
            return left + right
        return self.cut.left_kept * left + self.cut.right_kept * right

    def _common_bytes(self, matrix: Homography) -> float:
        """Return the approximate bytes that storing the common area once saves, in the common time.

        The area is stored with the bytes of the file in which it takes more.
        """
        common = min(self.left.duration, self.right.duration)
        left = self.left.bytes * float(common / self.left.duration)
        right = self.right.bytes * float(common / self.right.duration)
        if self.cut is None or self.stored_pixels >= pixel_count(self.left.size) + pixel_count(
            self.right.size
        ):
            return 0.0
        if self.is_copy:
            return min(left, right)
        both = overlap_shares(matrix, self.left.size, self.right.size)
        # The part of it beyond the edge of the right picture is stored twice.
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
        round(way.common_bytes * part),
    )


def _verdict(way: _OrderedPair, seen: Agreement, good: list[bool]) -> tuple[Verdict, str]:
    psnr = min(seen.psnr_left, seen.psnr_right)
    if not any(good):
        return Verdict.REFUSED, f"{psnr:.1f} dB, less than {MIN_PSNR:g} at every moment"
    if seen.movement is not None and seen.movement < SAME_TIME:
        return Verdict.REFUSED, "different motion: not recorded at the same time"
    if way.common_bytes <= 0:
        return Verdict.REFUSED, "storing the common area once would save nothing"
    if all(good):
        verdict = Verdict.COPY if way.is_copy and psnr >= COPY_PSNR else Verdict.JOIN
        return (
            verdict,
            "without motion, the time cannot be verified" if seen.movement is None else "",
        )
    return Verdict.PARTLY, f"{MIN_PSNR:g} dB at {sum(good)} of {len(good)} moments"


def is_fine_enough(matrix: Homography, left: ImageSize, right: ImageSize) -> bool:
    """Return whether the left picture shows the common area with about as many pixels as the right.

    `matrix` maps the right picture to the left one.
    """
    left_share, right_share = overlap_shares(matrix, left, right)
    return left_share * pixel_count(left) >= FINENESS * right_share * pixel_count(right)


def pixel_count(size: ImageSize) -> int:
    """Return width times height."""
    return size[0] * size[1]
