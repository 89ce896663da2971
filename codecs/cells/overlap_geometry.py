"""Homographies between the pictures of two cameras, and the cut of both at a seam.

A `SeamCut` divides two overlapping pictures into left, middle and right pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.tiling import Rect

PixelArray = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""
Homography = npt.NDArray[np.float64]
"""3 x 3."""
PointArray = npt.NDArray[np.float64]
"""n x 2: x, y."""
ImageSize = tuple[int, int]
"""width, height."""


def image_size(picture: PixelArray) -> ImageSize:
    """Return (width, height) of a picture."""
    height, width = picture.shape[:2]
    return width, height


def project_points(matrix: Homography, points: PointArray) -> PointArray:
    """Return the points mapped by a homography."""
    moved = cv2.perspectiveTransform(points.reshape(-1, 1, 2), matrix)
    return np.asarray(moved, dtype=np.float64).reshape(-1, 2)


def image_corners(size: ImageSize) -> PointArray:
    """Return the outer corners of a picture, clockwise from the upper left one."""
    width, height = size[0] - 0.5, size[1] - 0.5
    return np.array([[-0.5, -0.5], [width, -0.5], [width, height], [-0.5, height]])


def inverse_homography(matrix: Homography) -> Homography:
    """Return the inverse, which maps the left picture to the right one."""
    return _normalised(np.linalg.inv(matrix))


def projected_outline(matrix: Homography, right: ImageSize) -> PointArray | None:
    """Return the corners of the right picture within the left one; None if implausible.

    It is implausible if a part is behind the camera, if it is mirrored or folded, or if its area
    changes by more than a factor of 16.
    """
    if not np.isfinite(matrix).all():
        return None
    points = image_corners(right)
    depth = points @ matrix[2, :2] + matrix[2, 2]
    if not (depth > 0.05 * depth.max()).all():
        return None
    quad = project_points(matrix, points)
    following = np.roll(quad, -1, axis=0) - quad
    turns = _cross(following, np.roll(following, -1, axis=0))
    if not (turns > 0).all():  # clockwise, as the picture's own corners are
        return None
    scale = polygon_area(quad) / (right[0] * right[1])
    return quad if 1 / 16 <= scale <= 16 else None


def polygon_area(polygon: PointArray) -> float:
    """Return the area of a polygon in square pixels."""
    return float(cv2.contourArea(polygon.astype(np.float32))) if len(polygon) > 2 else 0.0


def hull_area(points: PointArray) -> float:
    """Return the area of the convex hull of points in square pixels."""
    if len(points) < 3:
        return 0.0
    return polygon_area(cv2.convexHull(points.astype(np.float32)).reshape(-1, 2).astype(np.float64))


def common_polygon(quad: PointArray, left: ImageSize) -> PointArray:
    """Return the intersection of a convex polygon and the left picture; empty if there is none."""
    found, polygon = cv2.intersectConvexConvex(
        quad.astype(np.float32), image_corners(left).astype(np.float32)
    )
    if not found or polygon is None:
        return np.zeros((0, 2))
    return polygon.reshape(-1, 2).astype(np.float64)


def overlap_shares(matrix: Homography, left: ImageSize, right: ImageSize) -> tuple[float, float]:
    """Return the fractions of the left and of the right picture that the other one also shows."""
    result = []
    for one, other, way in ((left, right, matrix), (right, left, inverse_homography(matrix))):
        quad = projected_outline(way, other)
        result.append(
            0.0 if quad is None else polygon_area(common_polygon(quad, one)) / (one[0] * one[1])
        )
    return min(result[0], 1.0), min(result[1], 1.0)


def resize_homography(
    matrix: Homography, left: tuple[ImageSize, ImageSize], right: tuple[ImageSize, ImageSize]
) -> Homography:
    """Return the homography for pictures of other sizes; each side is (old size, new size)."""
    return _normalised(_resizing(*left) @ matrix @ inverse_homography(_resizing(*right)))


def corner_displacement(matrix: Homography, left: ImageSize, right: ImageSize) -> float:
    """Return the largest distance between corners of both pictures, in widths of the left one.

    0 means that both show the same, in any size.
    """
    quad = project_points(matrix, image_corners(right))
    return float(np.linalg.norm(quad - image_corners(left), axis=1).max() / left[0])


def _resizing(old: ImageSize, new: ImageSize) -> Homography:
    """Return the homography from pixels of one size to those of another."""
    across, down = new[0] / old[0], new[1] / old[1]
    return np.array(
        [[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]], dtype=np.float64
    )


def _normalised(matrix: Any) -> Homography:
    """Return the same homography scaled so that its last number is 1."""
    return np.asarray(matrix / matrix[2, 2], dtype=np.float64)


def _cross(one: Any, other: Any) -> Any:
    return one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]


MIN_OVERLAP_COLUMNS = 32
"""Fewest columns of a piece; a narrower one costs more than it saves."""
# Rounding error of a homography in pixels.
_EXACT = 1e-6


@dataclass(frozen=True, eq=False, slots=True)
class SeamCut:
    """How two pictures are divided into three pieces."""

    left: ImageSize
    right: ImageSize
    matrix: Homography  #: from the right picture to the left one
    seam: int  #: the left piece is columns 0 to seam - 1 of the left picture; may be 0
    edge: int  #: the right piece is the right picture's columns from here on; may be its width
    origin: tuple[int, int]  #: x, y of the middle's first pixel in the left picture, or before it
    middle: ImageSize

    @property
    def to_middle(self) -> Homography:
        """The homography from the right picture to the middle piece."""
        x, y = self.origin
        shift: Homography = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]], np.float64)
        return shift @ self.matrix

    @property
    def left_in_middle(self) -> Rect:
        """The left picture from the seam on, in pixels of the middle piece."""
        x, y = self.origin
        return Rect(self.seam - x, -y, self.left[0] - x, self.left[1] - y)

    @property
    def left_kept(self) -> float:
        """Pixels of the left and the middle piece, as a fraction of a left picture."""
        width, height = self.left
        return (self.seam * height + self.middle[0] * self.middle[1]) / (width * height)

    @property
    def right_kept(self) -> float:
        """Pixels of the right piece, as a fraction of a right picture."""
        return 1 - self.edge / self.right[0]


def cut_at_seam(matrix: Homography, left: ImageSize, right: ImageSize) -> SeamCut | None:
    """Return the cut with the largest middle piece. Sizes are even, except those of the pictures.

    None if the right picture begins to the left of the left one, or has no columns within it.
    """
    quad = projected_outline(matrix, right)
    polygon = np.zeros((0, 2)) if quad is None else common_polygon(quad, left)
    edge = _right_edge(matrix, left, right) if len(polygon) else 0
    if edge < MIN_OVERLAP_COLUMNS:
        return None
    seam = _even_down(max(0.0, polygon[:, 0].min() + 0.5))
    if seam < MIN_OVERLAP_COLUMNS:
        seam = 0
    taken = project_points(matrix, _outer_centres(edge, right[1]))
    low, high = taken.min(axis=0), taken.max(axis=0)
    x, y = min(seam, _even_down(low[0])), min(0, _even_down(low[1]))
    if x < -MIN_OVERLAP_COLUMNS:
        return None
    bottom = max(left[1], math.ceil(high[1] - _EXACT) + 1)
    return SeamCut(
        left, right, matrix, seam, edge, (x, y), (_even_up(left[0] - x), _even_up(bottom - y))
    )


def _right_edge(matrix: Homography, left: ImageSize, right: ImageSize) -> int:
    """Return how many columns of the right picture are within the left one, or to its left."""
    width, height = right
    last = left[0] - 1
    if (project_points(matrix, _outer_centres(width, height))[:, 0] <= last).all():
        return width
    # The left picture's last column is a line in the right one, so its ends are enough.
    a, b, c = matrix[0] - last * matrix[2]
    if a <= 0:
        return 0
    found = min(-(b * y + c) / a for y in (0, height - 1))
    edge = _even_down(min(width, math.floor(found) + 1))
    return edge if edge <= width - MIN_OVERLAP_COLUMNS else _even_down(width - MIN_OVERLAP_COLUMNS)


def _outer_centres(columns: int, rows: int) -> PointArray:
    """Return the centers of the corner pixels of the first columns."""
    return np.array([[0, 0], [columns - 1, 0], [columns - 1, rows - 1], [0, rows - 1]], np.float64)


def _even_down(value: float) -> int:
    return math.floor((value + _EXACT) / 2) * 2


def _even_up(value: int) -> int:
    return value + value % 2
