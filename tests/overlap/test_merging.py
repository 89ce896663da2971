"""A pair becomes three pieces, and both pictures come back."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from vfsd.codecs.joints.overlap_geometry import Homography, SeamCut, cut_at_seam, inverse_homography
from vfsd.codecs.joints.plane_merge import (
    SAME_EXPOSURE,
    ExposureMatch,
    average_pair,
    keep_left,
    mean_square,
    psnr_of_square,
    restore_left,
    restore_right,
    split_pair,
    warp_with_mask,
)

SIZE = (320, 240)
LIGHT = ExposureMatch((1 / 1.05,) * 3, (4 / 1.05,) * 3)
"""Of the right one of `Cameras` to the left one."""


def cut_of(cameras: Cameras) -> SeamCut:
    found = cut_at_seam(cameras.homography, SIZE, SIZE)
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_the_left_picture_comes_back_as_it_was(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=1)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    pieces = split_pair(left, right, where, LIGHT, keep_left)
    np.testing.assert_array_equal(restore_left(pieces, where), left)
    again = restore_right(pieces, where, LIGHT)
    np.testing.assert_array_equal(again[:, where.edge :], right[:, where.edge :])
    # Both have noise of their own: 2 levels each, of which projecting takes some.
    assert psnr_of_square(mean_square(again, right)) > 38


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_the_mean_is_near_both(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=2)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    pieces = split_pair(left, right, where, LIGHT, average_pair)
    first = psnr_of_square(mean_square(restore_left(pieces, where), left))
    second = psnr_of_square(mean_square(restore_right(pieces, where, LIGHT), right))
    assert min(first, second) > 42
    others = split_pair(left, right, where, LIGHT, keep_left)
    assert second > psnr_of_square(mean_square(restore_right(others, where, LIGHT), right)) + 2


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_little_is_kept_twice(overlap: float) -> None:
    where = cut_of(Cameras(overlap=overlap))
    assert where.left_kept + where.right_kept == pytest.approx(2 - overlap, abs=0.04)


def test_side_by_side_nothing_is_kept_twice_and_everything_comes_back() -> None:
    """Without tilt, pieces are just columns, and no pixel is made up."""
    filmed = FilmedScene.of(Cameras(overlap=0.5, tilt=0, gain=1, bias=0, noise=0), seed=1)
    left, right = filmed.left(3), filmed.right(3)
    where = cut_of(filmed.cameras)
    assert (where.seam, where.edge, where.origin, where.middle) == (160, 160, (160, 0), (160, 240))
    for merge in (keep_left, average_pair):
        pieces = split_pair(left, right, where, SAME_EXPOSURE, merge)
        np.testing.assert_array_equal(restore_left(pieces, where), left)
        np.testing.assert_array_equal(restore_right(pieces, where, SAME_EXPOSURE), right)


def test_what_is_above_and_below_the_left_picture_is_kept_too() -> None:
    """The right camera looks 20 pixels higher: its first rows are in no left picture."""
    matrix = np.array([[1, 0, 160], [0, 1, -20], [0, 0, 1]], np.float64)
    rng = np.random.default_rng(1)
    left, right = (rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(2))
    right[20:, :160] = left[:220, 160:]
    where = cut_at_seam(matrix, SIZE, SIZE)
    assert where is not None
    pieces = split_pair(left, right, where, SAME_EXPOSURE, keep_left)
    np.testing.assert_array_equal(restore_left(pieces, where), left)
    np.testing.assert_array_equal(restore_right(pieces, where, SAME_EXPOSURE), right)


def test_a_picture_within_the_left_one_needs_no_piece_of_its_own() -> None:
    matrix = np.array([[1, 0, 100], [0, 1, 50], [0, 0, 1]], np.float64)
    where = cut_at_seam(matrix, SIZE, (160, 120))
    assert where is not None
    assert where.edge == 160
    rng = np.random.default_rng(1)
    left = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    right = left[50:170, 100:260]
    pieces = split_pair(left, right, where, SAME_EXPOSURE, keep_left)
    assert pieces.right.shape[1] == 0
    np.testing.assert_array_equal(restore_right(pieces, where, SAME_EXPOSURE), right)


@pytest.mark.parametrize(
    "matrix",
    [
        inverse_homography(Cameras().homography),  # the right one is on the left
        np.array([[1, 0, 400], [0, 1, 0], [0, 0, 1]], np.float64),  # nothing in common
        np.diag([-1.0, 1, 1]),
    ],
)
def test_what_columns_do_not_part_is_not_cut(matrix: Homography) -> None:
    assert cut_at_seam(matrix, SIZE, SIZE) is None


def test_exposure_there_and_back() -> None:
    levels = np.arange(20, 200, dtype=np.uint8).repeat(3).reshape(1, -1, 3)
    light = ExposureMatch((1.2, 0.9, 1), (-10, 5, 0))
    again = light.to_right(light.to_left(levels))
    assert np.abs(again.astype(int) - levels).max() <= 1


def test_where_a_picture_is_laid_over_another() -> None:
    white = np.full((240, 320, 3), 255, np.uint8)
    laid, there = warp_with_mask(white, np.array([[1, 0, 160], [0, 1, 0], [0, 0, 1.0]]), SIZE)
    assert not there[:, :160].any()
    assert there[5:-5, 165:].all()
    assert (laid[there] == 255).all()
