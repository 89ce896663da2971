"""Joining coded frames plane by plane.

Homographies: plausibility, the overlap of both cameras, other frame sizes.

A pair becomes three pieces, and both frames can be restored.
"""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from vfsd.codecs.cells.overlap_geometry import (
    Homography,
    PixelArray,
    SeamCut,
    corner_displacement,
    cut_at_seam,
    image_size,
    inverse_homography,
    overlap_shares,
    project_points,
    projected_outline,
    resize_homography,
)
from vfsd.codecs.cells.plane_merge import (
    MERGES,
    ExposureMatch,
    PlaneArray,
    PlaneExposure,
    PlaneJoint,
    PlaneMerger,
    is_divisible,
    match_plane_exposure,
    mean_square,
    plane_mean_squares,
    psnr_of_square,
    warp_with_mask,
)

SHARES = ((1, 1), (2, 2), (2, 2))
CAMERAS = Cameras(overlap=0.6, noise=1.0)
FILMED = FilmedScene.of(CAMERAS, frames=4, seed=3)


def coded(picture: PixelArray) -> list[PlaneArray]:
    """Frames in 4:2:0."""
    width, height = image_size(picture)
    flat = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420), np.uint8).reshape(-1)
    luma, chroma = width * height, width * height // 4
    return [
        flat[:luma].reshape(height, width),
        flat[luma : luma + chroma].reshape(height // 2, width // 2),
        flat[luma + chroma :].reshape(height // 2, width // 2),
    ]


def blank(planes: list[PlaneArray]) -> list[PlaneArray]:
    return [np.zeros_like(plane) for plane in planes]


def joint_of(left: list[PlaneArray], right: list[PlaneArray], merge: str) -> PlaneJoint:
    found = cut_at_seam(CAMERAS.homography, (CAMERAS.width, CAMERAS.height), image_size(right[0]))
    assert found is not None
    return PlaneJoint(found, match_plane_exposure([(left, right)], found, SHARES), merge, SHARES)


def put_together(
    joint: PlaneJoint, left: list[PlaneArray], right: list[PlaneArray]
) -> tuple[list[PlaneArray], list[PlaneArray]]:
    weaver = PlaneMerger(joint)
    middle = weaver.middle(left, right)
    seam, edge = joint.cut.seam, joint.cut.edge
    pieces = (
        [p[:, : seam // a] for p, (a, _) in zip(left, SHARES, strict=True)],
        [p[:, edge // a :] for p, (a, _) in zip(right, SHARES, strict=True)],
    )
    shown = blank(left), blank(right)
    weaver.left(pieces[0], middle, shown[0])
    weaver.right(middle, pieces[1], shown[1])
    return shown


def worst(shown: list[PlaneArray], seen: list[PlaneArray]) -> float:
    return psnr_of_square(max(plane_mean_squares(shown, seen)))


@pytest.mark.parametrize("merge", ["mean", "unprojected"])
def test_both_frames_are_restored(merge: str) -> None:
    left, right = coded(FILMED.left(1)), coded(FILMED.right(1))
    joint = joint_of(left, right, merge)
    assert joint.pieces == ("left", "middle", "right")
    shown = put_together(joint, left, right)
    assert worst(shown[0], left) > 36
    assert worst(shown[1], right) > 33
    if merge == "unprojected":
        assert all(map(np.array_equal, shown[0], left))
    for plane, picture, (across, _) in zip(shown[1], right, SHARES, strict=True):
        edge = joint.cut.edge // across
        assert np.array_equal(plane[:, edge:], picture[:, edge:])


def test_exposure_improves_the_right_frame() -> None:
    bright = Cameras(overlap=0.6, noise=1.0, gain=1.0, bias=12.0)
    filmed = FilmedScene.of(bright, frames=2, seed=3)
    left, right = coded(filmed.left(1)), coded(filmed.right(1))
    joint = joint_of(left, right, "unprojected")
    dark = PlaneJoint(joint.cut, PlaneExposure((1.0,) * 3, (0.0,) * 3), joint.merge, SHARES)
    good, bad = (put_together(one, left, right)[1] for one in (joint, dark))
    assert worst(good, right) > worst(bad, right) + 2


def test_joint_survives_json() -> None:
    left, right = coded(FILMED.left(0)), coded(FILMED.right(0))
    joint = joint_of(left, right, "mean")
    again = PlaneJoint.from_record(json.loads(json.dumps(joint.to_record())))
    assert again.to_record() == joint.to_record()
    one, other = put_together(joint, left, right), put_together(again, left, right)
    for mine, its in zip(one, other, strict=True):
        assert all(map(np.array_equal, mine, its))


@pytest.mark.parametrize(
    "change",
    [
        {"matrix": [1.0] * 9},
        {"matrix": [1.0] * 8},
        {"seam": -2},
        {"edge": 100000},
        {"middle": [16, 16]},
        {"gains": [1.0, 0.0, 1.0]},
        {"offsets": [1.0]},
        {"left": None},
    ],
)
def test_invalid_joint_records_are_refused(change: dict[str, object]) -> None:
    joint = joint_of(coded(FILMED.left(0)), coded(FILMED.right(0)), "mean")
    with pytest.raises((ValueError, KeyError, TypeError)):
        PlaneJoint.from_record({**joint.to_record(), **change})


def test_copy_is_stored_once() -> None:
    left = coded(FILMED.left(2))
    found = cut_at_seam(np.eye(3), CAMERAS_SIZE, CAMERAS_SIZE)
    assert found is not None
    brighter = [np.clip(left[0].astype(int) + 9, 0, 255).astype(np.uint8), *left[1:]]
    joint = PlaneJoint(
        found, match_plane_exposure([(left, brighter)], found, SHARES), "unprojected", SHARES
    )
    assert joint.is_copy
    assert joint.pieces == ("middle",)
    weaver = PlaneMerger(joint)
    middle = weaver.middle(left, brighter)
    assert all(map(np.array_equal, middle, left))
    shown = blank(brighter)
    weaver.right(middle, None, shown)
    assert worst(shown, brighter) > 48


CAMERAS_SIZE = (CAMERAS.width, CAMERAS.height)


def test_sides_must_be_multiples_of_chroma_samples() -> None:
    assert is_divisible((320, 240), SHARES)
    assert not is_divisible((321, 240), SHARES)
    assert not is_divisible((320, 241), ((1, 1),))


# --------------------------------------------------------------------------------------------------
# Homographies: plausibility, the overlap of both cameras, other frame sizes


SIZE = (320, 240)


def shift(x: float, y: float = 0) -> Homography:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


def test_overlap_share_of_a_shift() -> None:
    assert overlap_shares(shift(80), SIZE, SIZE) == pytest.approx((0.75, 0.75))
    assert overlap_shares(shift(80, 60), SIZE, SIZE) == pytest.approx((0.75 * 0.75,) * 2)
    assert overlap_shares(shift(400), SIZE, SIZE) == (0, 0)


def test_contained_frame_overlaps_entirely() -> None:
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
def test_area_behind_the_camera_is_refused(matrix: Homography) -> None:
    assert projected_outline(matrix, SIZE) is None


def test_homography_scales_with_the_frames() -> None:
    matrix = np.array([[1.02, 0.01, 80], [0.005, 0.99, -6], [2e-5, 1e-5, 1]])
    doubled = resize_homography(matrix, (SIZE, (640, 480)), (SIZE, (640, 480)))
    # The corner between four pixels is the same corner in either size.
    corners = np.array([[10.5, 20.5], [200.5, 7.5]])
    there = project_points(doubled, (corners + 0.5) * 2 - 0.5)
    np.testing.assert_allclose(there, (project_points(matrix, corners) + 0.5) * 2 - 0.5)


def test_scaled_copy_has_no_displacement() -> None:
    half = resize_homography(np.eye(3), (SIZE, SIZE), (SIZE, (160, 120)))
    assert corner_displacement(half, SIZE, (160, 120)) == pytest.approx(0, abs=1e-12)
    assert corner_displacement(shift(32), SIZE, SIZE) == pytest.approx(0.1)


def test_forward_and_backward_projection() -> None:
    matrix = np.array([[1.02, 0.01, 80], [0.005, 0.99, -6], [2e-5, 1e-5, 1]])
    points = np.array([[3.0, 4], [310, 2]])
    np.testing.assert_allclose(
        project_points(inverse_homography(matrix), project_points(matrix, points)), points
    )


# --------------------------------------------------------------------------------------------------
# A pair becomes three pieces, and both frames can be restored


LIGHT = PlaneExposure((1 / 1.05,) * 3, (4 / 1.05,) * 3)
"""Exposure of the right camera of `Cameras` relative to the left one."""
SAME = PlaneExposure((1.0,) * 3, (0.0,) * 3)


def restored(
    left: PixelArray, right: PixelArray, where: SeamCut, light: PlaneExposure, merge: str
) -> tuple[PixelArray, PixelArray]:
    """Both pictures from the pieces of a pair."""
    merger = PlaneMerger(PlaneJoint(where, light, merge, ((1, 1),) * 3))
    lefts, rights = planes_of(left), planes_of(right)
    middle = merger.middle(lefts, rights)
    again = np.empty_like(left), np.empty_like(right)
    merger.left([plane[:, : where.seam] for plane in lefts], middle, planes_of(again[0]))
    merger.right(middle, [plane[:, where.edge :] for plane in rights], planes_of(again[1]))
    return again


def planes_of(picture: PixelArray) -> list[PixelArray]:
    return [picture[:, :, number] for number in range(3)]


def cut_of(cameras: Cameras) -> SeamCut:
    found = cut_at_seam(cameras.homography, SIZE, SIZE)
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_left_frame_is_restored_exactly(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=1)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    same, again = restored(left, right, where, LIGHT, "unprojected")
    np.testing.assert_array_equal(same, left)
    np.testing.assert_array_equal(again[:, where.edge :], right[:, where.edge :])
    # Both have independent noise of 2 levels; projection removes some of it.
    assert psnr_of_square(mean_square(again, right)) > 38


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_mean_is_close_to_both(overlap: float) -> None:
    filmed = FilmedScene.of(Cameras(overlap=overlap), seed=2)
    left, right = filmed.left(7), filmed.right(7)
    where = cut_of(filmed.cameras)
    lefts, rights = restored(left, right, where, LIGHT, "mean")
    first = psnr_of_square(mean_square(lefts, left))
    second = psnr_of_square(mean_square(rights, right))
    assert min(first, second) > 42
    _, projected = restored(left, right, where, LIGHT, "unprojected")
    assert second > psnr_of_square(mean_square(projected, right)) + 2


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_few_pixels_are_stored_twice(overlap: float) -> None:
    where = cut_of(Cameras(overlap=overlap))
    assert where.left_kept + where.right_kept == pytest.approx(2 - overlap, abs=0.04)


def test_untilted_pair_stores_no_pixel_twice() -> None:
    """Without tilt, pieces are plain columns, and all frames are restored."""
    filmed = FilmedScene.of(Cameras(overlap=0.5, tilt=0, gain=1, bias=0, noise=0), seed=1)
    left, right = filmed.left(3), filmed.right(3)
    where = cut_of(filmed.cameras)
    assert (where.seam, where.edge, where.origin, where.middle) == (160, 160, (160, 0), (160, 240))
    for merge in MERGES:
        lefts, rights = restored(left, right, where, SAME, merge)
        np.testing.assert_array_equal(lefts, left)
        np.testing.assert_array_equal(rights, right)


def test_rows_outside_of_the_left_frame_are_kept() -> None:
    """The right camera is aimed 20 pixels higher, so its first rows are missing in the left
    frame."""
    matrix = np.array([[1, 0, 160], [0, 1, -20], [0, 0, 1]], np.float64)
    rng = np.random.default_rng(1)
    left, right = (rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(2))
    right[20:, :160] = left[:220, 160:]
    where = cut_at_seam(matrix, SIZE, SIZE)
    assert where is not None
    lefts, rights = restored(left, right, where, SAME, "unprojected")
    np.testing.assert_array_equal(lefts, left)
    np.testing.assert_array_equal(rights, right)


def test_contained_frame_needs_no_right_piece() -> None:
    matrix = np.array([[1, 0, 100], [0, 1, 50], [0, 0, 1]], np.float64)
    where = cut_at_seam(matrix, SIZE, (160, 120))
    assert where is not None
    assert where.edge == 160
    rng = np.random.default_rng(1)
    left = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    right = left[50:170, 100:260]
    _, again = restored(left, right, where, SAME, "unprojected")
    np.testing.assert_array_equal(again, right)


@pytest.mark.parametrize(
    "matrix",
    [
        inverse_homography(Cameras().homography),  # the right one is on the left
        np.array([[1, 0, 400], [0, 1, 0], [0, 0, 1]], np.float64),  # nothing in common
        np.diag([-1.0, 1, 1]),
    ],
)
def test_no_cut_without_a_vertical_seam(matrix: Homography) -> None:
    assert cut_at_seam(matrix, SIZE, SIZE) is None


def test_exposure_round_trip() -> None:
    levels = np.arange(20, 200, dtype=np.uint8).repeat(3).reshape(1, -1, 3)
    light = ExposureMatch((1.2, 0.9, 1), (-10, 5, 0))
    again = light.to_right(light.to_left(levels))
    assert np.abs(again.astype(int) - levels).max() <= 1


def test_placement_of_an_overlaid_frame() -> None:
    white = np.full((240, 320, 3), 255, np.uint8)
    laid, there = warp_with_mask(white, np.array([[1, 0, 160], [0, 1, 0], [0, 0, 1.0]]), SIZE)
    assert not there[:, :160].any()
    assert there[5:-5, 165:].all()
    assert (laid[there] == 255).all()
