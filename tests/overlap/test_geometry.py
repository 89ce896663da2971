"""Homographies: what is sane, what both cameras see, other sizes of the pictures."""

from __future__ import annotations

import numpy as np
import pytest

from vfsd.codecs.joints.overlap_geometry import (
    Homography,
    corner_displacement,
    inverse_homography,
    overlap_shares,
    project_points,
    projected_outline,
    resize_homography,
)

SIZE = (320, 240)


def shift(x: float, y: float = 0) -> Homography:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


def test_what_both_see_is_the_part_that_a_shift_leaves() -> None:
    assert overlap_shares(shift(80), SIZE, SIZE) == pytest.approx((0.75, 0.75))
    assert overlap_shares(shift(80, 60), SIZE, SIZE) == pytest.approx((0.75 * 0.75,) * 2)
    assert overlap_shares(shift(400), SIZE, SIZE) == (0, 0)


def test_a_picture_within_another_is_seen_as_a_whole() -> None:
    assert overlap_shares(shift(100, 50), SIZE, (160, 120)) == pytest.approx((0.25, 1))


@pytest.mark.parametrize(
    "matrix",
    [
        np.diag([-1.0, 1, 1]),  # mirrored
        np.diag([0.2, 0.2, 1]),  # a twenty-fifth of the pixels
        np.diag([5.0, 5, 1]),
        np.array([[1, 0, 0], [0, 1, 0], [-0.004, 0, 1]]),  # its right end is behind the camera
        np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]]),  # a line
        np.full((3, 3), np.nan),
    ],
)
def test_what_no_camera_sees_has_no_outline(matrix: Homography) -> None:
    assert projected_outline(matrix, SIZE) is None


def test_the_same_homography_between_larger_pictures() -> None:
    matrix = np.array([[1.02, 0.01, 80], [0.005, 0.99, -6], [2e-5, 1e-5, 1]])
    doubled = resize_homography(matrix, (SIZE, (640, 480)), (SIZE, (640, 480)))
    # The corner between four pixels is the same corner in either size.
    corners = np.array([[10.5, 20.5], [200.5, 7.5]])
    there = project_points(doubled, (corners + 0.5) * 2 - 0.5)
    np.testing.assert_allclose(there, (project_points(matrix, corners) + 0.5) * 2 - 0.5)


def test_a_copy_in_another_size_is_displaced_by_nothing() -> None:
    half = resize_homography(np.eye(3), (SIZE, SIZE), (SIZE, (160, 120)))
    assert corner_displacement(half, SIZE, (160, 120)) == pytest.approx(0, abs=1e-12)
    assert corner_displacement(shift(32), SIZE, SIZE) == pytest.approx(0.1)


def test_there_and_back() -> None:
    matrix = np.array([[1.02, 0.01, 80], [0.005, 0.99, -6], [2e-5, 1e-5, 1]])
    points = np.array([[3.0, 4], [310, 2]])
    np.testing.assert_allclose(
        project_points(inverse_homography(matrix), project_points(matrix, points)), points
    )
