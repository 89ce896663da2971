"""Planes seen by two cameras: points from one picture to the other, and what both can see.

A homography is a 3x3 matrix that takes (x, y, 1) of the right picture to the left one, up to a
factor.  Points are the centres of pixels: a picture of w x h pixels spans -0.5 to w - 0.5.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""
Matrix = npt.NDArray[np.float64]
"""3 x 3."""
Points = npt.NDArray[np.float64]
"""n x 2: x, y."""
Size = tuple[int, int]
"""width, height."""


def size_of(picture: Picture) -> Size:
    height, width = picture.shape[:2]
    return width, height


def projected(matrix: Matrix, points: Points) -> Points:
    """Where a homography takes points."""
    moved = cv2.perspectiveTransform(points.reshape(-1, 1, 2), matrix)
    return np.asarray(moved, dtype=np.float64).reshape(-1, 2)


def corners(size: Size) -> Points:
    """The outer corners of a picture, clockwise from the left upper one."""
    width, height = size[0] - 0.5, size[1] - 0.5
    return np.array([[-0.5, -0.5], [width, -0.5], [width, height], [-0.5, height]])


def inverse(matrix: Matrix) -> Matrix:
    """From the left picture to the right one."""
    return _normalised(np.linalg.inv(matrix))


def outline(matrix: Matrix, right: Size) -> Points | None:
    """The corners of the right picture in the left one; None where a sane camera sees no picture.

    That is: a part of it would lie behind the camera, it would be mirrored, folded, or have less
    than a sixteenth or more than sixteen times as many pixels.
    """
    if not np.isfinite(matrix).all():
        return None
    points = corners(right)
    depth = points @ matrix[2, :2] + matrix[2, 2]
    if not (depth > 0.05 * depth.max()).all():
        return None
    quad = projected(matrix, points)
    following = np.roll(quad, -1, axis=0) - quad
    turns = _cross(following, np.roll(following, -1, axis=0))
    if not (turns > 0).all():  # clockwise, as the picture's own corners are
        return None
    scale = area(quad) / (right[0] * right[1])
    return quad if 1 / 16 <= scale <= 16 else None


def area(polygon: Points) -> float:
    """Square pixels."""
    return float(cv2.contourArea(polygon.astype(np.float32))) if len(polygon) > 2 else 0.0


def hull_area(points: Points) -> float:
    """Square pixels of the smallest convex polygon around points."""
    if len(points) < 3:
        return 0.0
    return area(cv2.convexHull(points.astype(np.float32)).reshape(-1, 2).astype(np.float64))


def common(quad: Points, left: Size) -> Points:
    """The polygon of the left picture that a convex one covers; empty where it covers nothing."""
    found, polygon = cv2.intersectConvexConvex(
        quad.astype(np.float32), corners(left).astype(np.float32)
    )
    if not found or polygon is None:
        return np.zeros((0, 2))
    return polygon.reshape(-1, 2).astype(np.float64)


def shares(matrix: Matrix, left: Size, right: Size) -> tuple[float, float]:
    """The parts of the left and of the right picture that the other one sees as well."""
    result = []
    for one, other, way in ((left, right, matrix), (right, left, inverse(matrix))):
        quad = outline(way, other)
        result.append(0.0 if quad is None else area(common(quad, one)) / (one[0] * one[1]))
    return min(result[0], 1.0), min(result[1], 1.0)


def resized(matrix: Matrix, left: tuple[Size, Size], right: tuple[Size, Size]) -> Matrix:
    """The same homography between pictures of other sizes; each side is (old size, new size)."""
    return _normalised(_resizing(*left) @ matrix @ inverse(_resizing(*right)))


def displacement(matrix: Matrix, left: Size, right: Size) -> float:
    """How far the corners of the right picture are from those of the left one, at most.

    In widths of the left picture; 0 where both show the same, if in another size.
    """
    quad = projected(matrix, corners(right))
    return float(np.linalg.norm(quad - corners(left), axis=1).max() / left[0])


def _resizing(old: Size, new: Size) -> Matrix:
    """From pixels of one size to those of another."""
    across, down = new[0] / old[0], new[1] / old[1]
    return np.array(
        [[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]], dtype=np.float64
    )


def _normalised(matrix: Any) -> Matrix:
    """The same homography with the factor that makes its last number 1."""
    return np.asarray(matrix / matrix[2, 2], dtype=np.float64)


def _cross(one: Any, other: Any) -> Any:
    return one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]
