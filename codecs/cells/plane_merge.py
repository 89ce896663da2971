"""Merges two overlapping pictures into three pieces, and restores them.

One picture is warped onto the other and matched in exposure, and every plane is cut at the seam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.overlap_geometry import (
    Homography,
    ImageSize,
    PixelArray,
    SeamCut,
    image_size,
    inverse_homography,
    resize_homography,
)

PixelMask = npt.NDArray[np.bool_]
"""height x width."""

MAX_GAIN = 2.0
"""Pictures with a larger ratio of gains, in either direction, show different scenes."""


@dataclass(frozen=True, slots=True)
class ExposureMatch:
    """Maps RGB levels of the right picture to those of the left one: gain x level + offset."""

    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)
    offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def to_left(self, picture: PixelArray) -> PixelArray:
        """Return a picture of the right camera in the exposure of the left one."""
        levels = np.arange(256)[:, np.newaxis]
        return _looked_up(picture, levels * np.array(self.gains) + self.offsets)

    def to_right(self, picture: PixelArray) -> PixelArray:
        """Return a picture of the left camera in the exposure of the right one."""
        levels = np.arange(256)[:, np.newaxis]
        return _looked_up(picture, (levels - np.array(self.offsets)) / self.gains)


SAME_EXPOSURE = ExposureMatch()


def match_exposure(pairs: Sequence[tuple[PixelArray, PixelArray, PixelMask]]) -> ExposureMatch:
    """Return the exposure match from (left picture, warped right picture, common pixels).

    Means and deviations are made equal. Unlike least squares, this is symmetric. Returns
    `SAME_EXPOSURE` if there is hardly any contrast, or if a gain exceeds `MAX_GAIN`.
    """
    common = [(left[mask], right[mask]) for left, right, mask in pairs if mask.any()]
    if not common:
        return SAME_EXPOSURE
    left = np.concatenate([one for one, _ in common]).astype(np.float32)
    right = np.concatenate([one for _, one in common]).astype(np.float32)
    spread = left.std(axis=0), right.std(axis=0)
    if min(spread[0].min(), spread[1].min()) < 1:
        return SAME_EXPOSURE
    gains = (spread[0] / spread[1]).astype(np.float64)
    if gains.max() > MAX_GAIN or gains.min() < 1 / MAX_GAIN:
        return SAME_EXPOSURE
    offsets = left.mean(axis=0) - gains * right.mean(axis=0)
    r, g, b = gains.tolist()
    x, y, z = offsets.tolist()
    return ExposureMatch((r, g, b), (x, y, z))


def _looked_up(picture: PixelArray, levels: npt.NDArray[np.float64]) -> PixelArray:
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8).reshape(1, 256, 3)
    return np.asarray(cv2.LUT(picture, table), dtype=np.uint8)


LOSSLESS_DECIBELS = 100.0
"""PSNR in dB of identical pictures."""

# Edge pixels of a warped picture that mix with the outside: the cubic filter reaches two pixels.
_EDGE_PIXELS = 2


def warp_with_mask(
    picture: PixelArray, matrix: Homography, size: ImageSize
) -> tuple[PixelArray, PixelMask]:
    """Return `picture` warped to `size` pixels, and a mask of complete pixels."""
    return warp_picture(picture, matrix, size), warp_mask(image_size(picture), matrix, size)


def warp_picture(picture: PixelArray, matrix: Homography, size: ImageSize) -> PixelArray:
    """Return `picture`, or a single plane, warped to `size` pixels.

    Outside, the edge is repeated, which encodes cheaply.
    """
    warped = cv2.warpPerspective(
        picture, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(warped, dtype=np.uint8)


def warp_mask(picture: ImageSize, matrix: Homography, size: ImageSize) -> PixelMask:
    """Return a mask of `size` pixels that a warped picture covers completely."""
    width, height = picture
    inside = np.zeros((height, width), np.uint8)
    inside[_EDGE_PIXELS : height - _EDGE_PIXELS, _EDGE_PIXELS : width - _EDGE_PIXELS] = 255
    mask = cv2.warpPerspective(inside, matrix, size, flags=cv2.INTER_NEAREST)
    return np.asarray(mask > 0)


def mean_square(one: PixelArray, other: PixelArray, mask: PixelMask | None = None) -> float:
    """Return the mean square difference, where `mask` is set if given.

    An empty mask gives the worst value.
    """
    difference = one.astype(np.float32) - other.astype(np.float32)
    squares = np.square(difference if mask is None else difference[mask])
    return float(squares.mean()) if squares.size else 255.0 * 255.0


def psnr_of_square(squares: float) -> float:
    """Return the PSNR of 8-bit samples by their mean square error; at most `LOSSLESS_DECIBELS`."""
    return (
        LOSSLESS_DECIBELS
        if squares <= 0
        else min(LOSSLESS_DECIBELS, 10 * math.log10(255 * 255 / squares))
    )


MergeFunction = Callable[[PixelArray, PixelArray, PixelMask], PixelArray]
"""Merges the left picture and the warped right one in the left exposure, given a mask of
the right.
"""


def keep_left(left: PixelArray, right: PixelArray, mask: PixelMask) -> PixelArray:
    """Return the left picture alone."""
    return left


def average_pair(left: PixelArray, right: PixelArray, mask: PixelMask) -> PixelArray:
    """Return the mean of both pictures where both are known."""
    both = cv2.addWeighted(left, 0.5, right, 0.5, 0)
    mask = mask if left.ndim == 2 else mask[:, :, np.newaxis]
    return np.where(mask, both, left).astype(np.uint8)


MERGES: Mapping[str, MergeFunction] = MappingProxyType(
    {"unprojected": keep_left, "mean": average_pair}
)
"""Merge functions by their stored name."""


PlaneArray = PixelArray
"""rows x columns of 8-bit samples."""
PlaneArrays = Sequence[PlaneArray]
Subsampling = tuple[int, int]
"""Columns and rows of pixels that share a sample of a plane."""

PIECE_NAMES = ("left", "middle", "right")
"""The order in a pack, so that the two pieces of either side are adjacent."""

# Deviation in levels below which noise dominates, so that gains are unreliable.
_FLAT_DEVIATION = 4.0
# Smaller differences in gain and offset are ignored.
_SAME_GAIN, _SAME_OFFSET = 0.01, 0.5


@dataclass(frozen=True, slots=True)
class PlaneExposure:
    """Maps samples of the right picture to those of the left one, by plane: gain x sample +
    offset.
    """

    gains: tuple[float, ...]
    offsets: tuple[float, ...]

    def to_left(self, number: int, plane: PlaneArray) -> PlaneArray:
        """Return a plane of the right camera in the exposure of the left one."""
        levels = np.arange(256) * self.gains[number] + self.offsets[number]
        return self._mapped(number, plane, levels)

    def to_right(self, number: int, plane: PlaneArray) -> PlaneArray:
        """Return a plane of the left camera in the exposure of the right one."""
        levels = (np.arange(256) - self.offsets[number]) / self.gains[number]
        return self._mapped(number, plane, levels)

    def _mapped(
        self, number: int, plane: PlaneArray, levels: npt.NDArray[np.floating[Any]]
    ) -> PlaneArray:
        if (self.gains[number], self.offsets[number]) == (1.0, 0.0):
            return plane
        table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        return np.asarray(cv2.LUT(np.ascontiguousarray(plane), table), dtype=np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class PlaneJoint:
    """How the pictures of two cameras are stored as three pieces.

    These are columns of the left picture before the seam, the common part, and columns of the right
    picture from the edge on.
    """

    cut: SeamCut
    light: PlaneExposure
    merge: str  #: one of `MERGES`
    #: Subsampling by plane; all sizes and offsets of the cut are multiples of it.
    shares: tuple[Subsampling, ...]
    turned: tuple[int, int] = (0, 0)
    """Clockwise rotation of the pictures of the left and the right video, in degrees."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The pieces that have columns, in the order of `PIECE_NAMES`."""
        has = {"left": self.cut.seam > 0, "right": self.cut.edge < self.cut.right[0]}
        return tuple(piece for piece in PIECE_NAMES if has.get(piece, True))

    @property
    def is_copy(self) -> bool:
        """Whether both pictures are identical."""
        same = self.cut.left == self.cut.right and np.array_equal(self.cut.matrix, np.eye(3))
        return bool(same and self.pieces == ("middle",))

    def to_record(self) -> dict[str, Any]:
        """Return a JSON object for `from_record`."""
        cut = self.cut
        return {
            "left": list(cut.left),
            "right": list(cut.right),
            "matrix": cut.matrix.ravel().tolist(),
            "seam": cut.seam,
            "edge": cut.edge,
            "origin": list(cut.origin),
            "middle": list(cut.middle),
            "gains": list(self.light.gains),
            "offsets": list(self.light.offsets),
            "merge": self.merge,
            "shares": [list(share) for share in self.shares],
            "turned": list(self.turned),
        }

    @classmethod
    def from_record(cls, found: Mapping[str, Any]) -> PlaneJoint:
        """Return the joint of a JSON object.

        Raises `ValueError`, `KeyError` or `TypeError` if it is invalid.
        """
        matrix = np.array(found["matrix"], np.float64).reshape(3, 3)
        if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
            raise ValueError("the homography must have an inverse")
        left, right, middle, origin = (
            _require_two(found[name]) for name in ("left", "right", "middle", "origin")
        )
        cut = SeamCut(left, right, matrix, int(found["seam"]), int(found["edge"]), origin, middle)
        place = cut.left_in_middle
        if not 0 <= cut.seam < left[0] or not 0 < cut.edge <= right[0]:
            raise ValueError("the cut is outside of the pictures")
        if min(place.x1, place.y1) < 0 or place.x2 > middle[0] or place.y2 > middle[1]:
            raise ValueError("the middle piece is too small")
        light = PlaneExposure(
            tuple(float(gain) for gain in found["gains"]),
            tuple(float(offset) for offset in found["offsets"]),
        )
        shares = tuple(_require_two(share) for share in found["shares"])
        if not len(light.gains) == len(light.offsets) == len(shares) or 0 in light.gains:
            raise ValueError("numbers of planes differ")
        turned = _require_two(found["turned"])
        if any(degrees not in (0, 90, 180, 270) for degrees in turned):
            raise ValueError("rotation must be 0, 90, 180 or 270 degrees")
        return cls(cut, light, str(found["merge"]), shares, turned)


class PlaneMerger:
    """Makes pieces from pictures, and pictures from pieces. Thread-safe."""

    def __init__(self, joint: PlaneJoint) -> None:
        self.joint = joint
        self._cuts = [_plane_cut(joint.cut, share) for share in joint.shares]
        self._back = [inverse_homography(cut.to_middle) for cut in self._cuts]
        self._is_still = bool(np.array_equal(joint.cut.to_middle, np.eye(3)))
        self._seen: list[PixelMask] | None = None

    def middle(self, left: PlaneArrays, right: PlaneArrays) -> list[PlaneArray]:
        """Return the common part of whole pictures, in pixels and exposure of the left camera."""
        merge = MERGES[self.joint.merge]
        result = []
        for number, cut in enumerate(self._cuts):
            lit = self.joint.light.to_left(number, right[number])
            warped = self._projected(lit, number)
            place = cut.left_in_middle
            rows, columns = slice(place.y1, place.y2), slice(place.x1, place.x2)
            warped[rows, columns] = merge(
                left[number][:, cut.seam :],
                warped[rows, columns].copy(),
                self._masks()[number][rows, columns],
            )
            result.append(warped)
        return result

    def left(self, piece: PlaneArrays | None, middle: PlaneArrays, out: PlaneArrays) -> None:
        """Fill `out` with the left picture; `piece` is None if it has no columns."""
        for number, cut in enumerate(self._cuts):
            if piece is not None:
                out[number][:, : cut.seam] = piece[number]
            place = cut.left_in_middle
            out[number][:, cut.seam :] = middle[number][place.y1 : place.y2, place.x1 : place.x2]

    def right(self, middle: PlaneArrays, piece: PlaneArrays | None, out: PlaneArrays) -> None:
        """Fill `out` with the right picture; `piece` is None if it has no columns."""
        for number, cut in enumerate(self._cuts):
            size = cut.edge, cut.right[1]
            if self._is_still:
                warped = middle[number][: size[1], : size[0]]
            else:
                warped = warp_picture(
                    np.ascontiguousarray(middle[number]), self._back[number], size
                )
            out[number][:, : cut.edge] = self.joint.light.to_right(number, warped)
            if piece is not None:
                out[number][:, cut.edge :] = piece[number]

    def _projected(self, plane: PlaneArray, number: int) -> PlaneArray:
        cut = self._cuts[number]
        if self._is_still and cut.middle == cut.right:
            return plane.copy()
        return warp_picture(np.ascontiguousarray(plane), cut.to_middle, cut.middle)

    def _masks(self) -> list[PixelMask]:
        if self._seen is None:
            self._seen = [warp_mask(cut.right, cut.to_middle, cut.middle) for cut in self._cuts]
        return self._seen


def match_plane_exposure(
    pairs: Sequence[tuple[PlaneArrays, PlaneArrays]], cut: SeamCut, shares: Sequence[Subsampling]
) -> PlaneExposure:
    """Return the exposure match of pairs of whole pictures, by plane.

    Means and deviations of the common part are made equal, as in `match_exposure`.
    """
    gains: list[float] = []
    offsets: list[float] = []
    for number, share in enumerate(shares):
        plane_cut = _plane_cut(cut, share)
        mask = warp_mask(plane_cut.right, plane_cut.matrix, plane_cut.left)
        left = np.concatenate([one[number][mask] for one, _ in pairs]).astype(np.float32)
        right = np.concatenate(
            [
                warp_picture(np.ascontiguousarray(other[number]), plane_cut.matrix, plane_cut.left)[
                    mask
                ]
                for _, other in pairs
            ]
        ).astype(np.float32)
        gain, offset = _plane_gain_offset(left, right, gains[0] if gains else 1.0)
        gains.append(gain)
        offsets.append(offset)
    return PlaneExposure(tuple(gains), tuple(offsets))


def _plane_gain_offset(
    left: npt.NDArray[np.float32], right: npt.NDArray[np.float32], otherwise: float
) -> tuple[float, float]:
    """Return (gain, offset) of one plane; `otherwise` is the gain of a flat plane."""
    if not len(left):
        return 1.0, 0.0
    spread = float(left.std()), float(right.std())
    gain = spread[0] / spread[1] if min(spread) >= _FLAT_DEVIATION else otherwise
    if not 1 / MAX_GAIN <= gain <= MAX_GAIN:
        return 1.0, 0.0
    if abs(gain - 1) < _SAME_GAIN:
        gain = 1.0
    offset = float(left.mean()) - gain * float(right.mean())
    return (1.0, 0.0) if gain == 1.0 and abs(offset) < _SAME_OFFSET else (gain, offset)


def rotated_planes(planes: PlaneArrays, degrees: int) -> list[PlaneArray]:
    """Return views of planes that are rotated clockwise; writing to them changes the planes."""
    return [np.rot90(plane, -degrees // 90) for plane in planes]


def plane_mean_squares(original: PlaneArrays, decoded: PlaneArrays) -> list[float]:
    """Return the mean square error of each plane."""
    return [
        float(cv2.norm(np.ascontiguousarray(one), np.ascontiguousarray(other), cv2.NORM_L2SQR))
        / other.size
        for one, other in zip(original, decoded, strict=True)
    ]


def is_divisible(size: ImageSize, shares: Sequence[Subsampling]) -> bool:
    """Return whether pictures of that size have even sides, and whole samples in every plane."""
    return all(size[0] % max(2, a) == 0 and size[1] % max(2, d) == 0 for a, d in shares)


def _plane_cut(cut: SeamCut, share: Subsampling) -> SeamCut:
    """Return the same cut in samples of a plane."""
    across, down = share
    if share == (1, 1):
        return cut

    def less(size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // across, size[1] // down

    left, right = less(cut.left), less(cut.right)
    matrix = resize_homography(cut.matrix, (cut.left, left), (cut.right, right))
    if np.array_equal(cut.matrix, np.eye(3)):
        matrix = np.eye(3)
    return SeamCut(
        left,
        right,
        matrix,
        cut.seam // across,
        cut.edge // across,
        less(cut.origin),
        less(cut.middle),
    )


def _require_two(found: Sequence[Any]) -> tuple[int, int]:
    first, second = found
    return int(first), int(second)
