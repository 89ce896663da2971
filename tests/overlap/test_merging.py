"""A pair becomes three pieces, and both pictures come back."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from vfsd.codecs.joints.exposure import SAME, Exposure
from vfsd.codecs.joints.geometry import Matrix, inverse
from vfsd.codecs.joints.seam import Cut, cut
from vfsd.codecs.joints.stitch_planes import joined_left, joined_right, mean, split, unprojected
from vfsd.codecs.joints.warp import decibels, laid_over, mean_square

SIZE = (320, 240)
LIGHT = Exposure((1 / 1.05,) * 3, (4 / 1.05,) * 3)
"""Of the right one of `Cameras` to the left one."""


def cut_of(cameras: Cameras) -> Cut:
    found = cut(cameras.homography, SIZE, SIZE)
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_the_left_picture_comes_back_as_it_was(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=1)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    pieces = split(left, right, where, LIGHT, unprojected)
    np.testing.assert_array_equal(joined_left(pieces, where), left)
    again = joined_right(pieces, where, LIGHT)
    np.testing.assert_array_equal(again[:, where.edge :], right[:, where.edge :])
    # Both have noise of their own: 2 levels each, of which projecting takes some.
    assert decibels(mean_square(again, right)) > 38


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_the_mean_is_near_both(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=2)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    pieces = split(left, right, where, LIGHT, mean)
    first = decibels(mean_square(joined_left(pieces, where), left))
    second = decibels(mean_square(joined_right(pieces, where, LIGHT), right))
    assert min(first, second) > 42
    others = split(left, right, where, LIGHT, unprojected)
    assert second > decibels(mean_square(joined_right(others, where, LIGHT), right)) + 2


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
    for merge in (unprojected, mean):
        pieces = split(left, right, where, SAME, merge)
        np.testing.assert_array_equal(joined_left(pieces, where), left)
        np.testing.assert_array_equal(joined_right(pieces, where, SAME), right)


def test_what_is_above_and_below_the_left_picture_is_kept_too() -> None:
    """The right camera looks 20 pixels higher: its first rows are in no left picture."""
    matrix = np.array([[1, 0, 160], [0, 1, -20], [0, 0, 1]], np.float64)
    rng = np.random.default_rng(1)
    left, right = (rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(2))
    right[20:, :160] = left[:220, 160:]
    where = cut(matrix, SIZE, SIZE)
    assert where is not None
    pieces = split(left, right, where, SAME, unprojected)
    np.testing.assert_array_equal(joined_left(pieces, where), left)
    np.testing.assert_array_equal(joined_right(pieces, where, SAME), right)


def test_a_picture_within_the_left_one_needs_no_piece_of_its_own() -> None:
    matrix = np.array([[1, 0, 100], [0, 1, 50], [0, 0, 1]], np.float64)
    where = cut(matrix, SIZE, (160, 120))
    assert where is not None
    assert where.edge == 160
    rng = np.random.default_rng(1)
    left = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    right = left[50:170, 100:260]
    pieces = split(left, right, where, SAME, unprojected)
    assert pieces.right.shape[1] == 0
    np.testing.assert_array_equal(joined_right(pieces, where, SAME), right)


@pytest.mark.parametrize(
    "matrix",
    [
        inverse(Cameras().homography),  # the right one is on the left
        np.array([[1, 0, 400], [0, 1, 0], [0, 0, 1]], np.float64),  # nothing in common
        np.diag([-1.0, 1, 1]),
    ],
)
def test_what_columns_do_not_part_is_not_cut(matrix: Matrix) -> None:
    assert cut(matrix, SIZE, SIZE) is None


def test_exposure_there_and_back() -> None:
    levels = np.arange(20, 200, dtype=np.uint8).repeat(3).reshape(1, -1, 3)
    light = Exposure((1.2, 0.9, 1), (-10, 5, 0))
    again = light.to_right(light.to_left(levels))
    assert np.abs(again.astype(int) - levels).max() <= 1


def test_where_a_picture_is_laid_over_another() -> None:
    white = np.full((240, 320, 3), 255, np.uint8)
    laid, there = laid_over(white, np.array([[1, 0, 160], [0, 1, 0], [0, 0, 1.0]]), SIZE)
    assert not there[:, :160].any()
    assert there[5:-5, 165:].all()
    assert (laid[there] == 255).all()
