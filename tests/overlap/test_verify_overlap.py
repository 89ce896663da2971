"""Verdicts on pairs of videos.

Homography estimation: known cameras are found, unrelated ones are not.
"""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from sample_videos.scene import Scene
from tests.support.camera_pairs import AT, filmed_at, matched, moments, pictures
from tests.support.selection import one_in
from vfsd.codecs.cells.overlap_geometry import inverse_homography, project_points
from vfsd.overlap.overlap_pair import (
    Alignment,
    Matches,
    Overlap,
    Verdict,
    align_videos,
    compare_videos,
    fit_homography,
    measure_agreement,
)

LATER = tuple(index + 60 for index in AT)


def scene(overlap: float = 0.5) -> FilmedScene:
    return FilmedScene.of(Cameras(overlap=overlap), frames=120, seed=1)


def compared(filmed: FilmedScene) -> Overlap:
    left, right = pictures(filmed)
    found = compare_videos(moments(left), moments(right))
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_adjacent_cameras_can_be_joined(overlap: float) -> None:
    found = compared(scene(overlap))
    assert (found.verdict, found.why) == (Verdict.JOIN, "")
    assert found.fixed
    assert not found.swapped
    assert found.shares == pytest.approx((overlap, overlap), abs=0.02)
    assert found.common_bytes == pytest.approx(overlap / 2 * 2_000_000, rel=0.05)
    assert found.agreement.exposure.gains == pytest.approx([1 / 1.05] * 3, abs=0.02)
    assert min(found.agreement.left + found.agreement.right) > 35
    assert found.agreement.movement == pytest.approx(1, abs=0.05)


def test_order_does_not_matter() -> None:
    left, right = pictures(scene())
    found = compare_videos(moments(right), moments(left))
    assert found is not None
    assert found.swapped
    assert found.verdict is Verdict.JOIN
    there = compared(scene())
    assert found.cut is not None
    assert there.cut is not None
    assert found.cut.seam == pytest.approx(there.cut.seam, abs=2)


def test_same_camera_later_is_rejected() -> None:
    """Nearly all pixels are equal, so only moving objects show the difference."""
    filmed = scene()
    found = compare_videos(filmed_at(filmed.left), moments([filmed.left(index) for index in LATER]))
    assert found is not None
    assert found.verdict is Verdict.REFUSED
    assert found.agreement.movement is not None
    assert found.agreement.movement < 0.3
    assert found.common_bytes == 0


def test_still_scenes_cannot_be_aligned_in_time() -> None:
    still = FilmedScene.of(Cameras(), frames=120, density=0, seed=1)
    found = compared(still)
    assert found.agreement.movement is None
    assert found.verdict is Verdict.JOIN
    assert "without motion" in found.why


def test_changing_light_is_not_motion() -> None:
    still = FilmedScene.of(Cameras(noise=0), frames=120, density=0, seed=1)
    left, right = pictures(still)
    for at, picture in enumerate(left):
        picture[...] = np.clip(picture.astype(int) + 3 * at, 0, 255)
    identity = Alignment((still.cameras.homography,) * len(left), True)
    assert measure_agreement(left, right, identity).movement is None


def test_smaller_copy_is_a_copy() -> None:
    left, _ = pictures(scene())
    small = [
        np.asarray(cv2.resize(picture, (240, 180), interpolation=cv2.INTER_AREA), np.uint8)
        for picture in left
    ]
    for order in ((left, small), (small, left)):
        found = compare_videos(*(moments(shown, bytes=shown[0].size) for shown in order))
        assert found is not None
        assert found.verdict is Verdict.COPY
        assert found.swapped == (order[0] is small)
        assert found.common_bytes == small[0].size


def test_cropped_video_can_be_joined_with_its_source() -> None:
    left, _ = pictures(scene())
    window = [picture[40:200, 60:260].copy() for picture in left]
    found = compare_videos(moments(window), moments(left))
    assert found is not None
    assert found.verdict is Verdict.JOIN
    assert found.swapped
    assert found.shares == pytest.approx((200 * 160 / (320 * 240), 1), abs=0.01)


def test_pairs_that_match_at_some_moments() -> None:
    left, right = pictures(scene(0.75))
    rng = np.random.default_rng(1)
    right[-1] = rng.integers(0, 256, right[-1].shape, dtype=np.uint8)
    found = compare_videos(moments(left), moments(right))
    assert found is not None
    assert found.verdict is Verdict.PARTLY
    assert found.why == "24 dB at 3 of 4 moments"


def test_different_place_is_rejected() -> None:
    left, right = pictures(scene(0.75))
    found = compare_videos(moments(left), moments([255 - picture // 2 for picture in right]))
    assert found is None or found.verdict is Verdict.REFUSED
    shade = np.linspace(0, 90, 320).astype(np.uint8)[None, :, None]
    found = compare_videos(moments(left), moments([picture // 2 + shade for picture in right]))
    assert found is None or found.verdict is Verdict.REFUSED


def test_videos_without_common_moments() -> None:
    left, right = pictures(scene())
    assert compare_videos(moments(left), moments(right, LATER)) is None


def test_only_the_common_time_counts() -> None:
    left, right = pictures(scene())
    longer = moments(left)
    longer = dataclasses.replace(longer, duration=longer.duration * 3, bytes=longer.bytes * 3)
    both = compare_videos(longer, moments(right))
    assert both is not None
    assert both.common_bytes == pytest.approx(0.25 * 2_000_000, rel=0.05)


# --------------------------------------------------------------------------------------------------
# Homography estimation: known cameras are found, unrelated ones are not


SIZE = (320, 240)
RNG = np.random.default_rng(7)


@pytest.mark.parametrize("overlap", one_in(4, [0.3, 0.5, 0.75]))
@pytest.mark.parametrize("seed", [1, 2])
def test_known_cameras_are_found(overlap: float, seed: int) -> None:
    cameras = Cameras(overlap=overlap)
    found = align_videos(matched(*pictures(FilmedScene.of(cameras, seed=seed))), SIZE, SIZE)
    assert found is not None
    assert found.fixed
    # Only the overlap counts: nothing is known outside of it.
    grid = np.stack(np.meshgrid([5.0, 120, 235], [5.0, 120, 235]), axis=-1).reshape(-1, 2)
    inside = project_points(cameras.homography, grid)[:, 0] < SIZE[0]
    off = project_points(found.matrices[0], grid) - project_points(cameras.homography, grid)
    assert np.linalg.norm(off[inside], axis=1).max() < 2


def test_different_scenes_do_not_align() -> None:
    scenes = [Scene(frames=60, seed=seed, numbered=False) for seed in (3, 4)]
    left, right = ([scene.frame(at) for at in (0, 12, 24, 48)] for scene in scenes)
    assert align_videos(matched(left, right), SIZE, SIZE) is None


def test_same_overlay_in_different_scenes_is_not_an_overlap() -> None:
    """Cameras of one make write the same text into the same corner."""
    scenes = [Scene(frames=60, seed=seed, numbered=False) for seed in (3, 4)]
    sign = RNG.integers(0, 2, (8, 20)).repeat(4, axis=0).repeat(4, axis=1)[:, :, None] * 255
    shown = []
    for scene in scenes:
        shown.append([scene.frame(at) for at in (0, 12, 24, 48)])
        for picture in shown[-1]:
            picture[8:40, 8:88] = sign
    found = matched(*shown)
    assert min(map(len, found)) > 20  # the overlay alone would match
    assert align_videos(found, SIZE, SIZE) is None


def points(matrix: np.ndarray, count: int = 60, *, wrong: int = 0) -> Matches:
    """Points all over the right frame, and their positions in the left frame."""
    right = RNG.uniform((0, 0), SIZE, (count, 2))
    left = project_points(matrix, right)
    left[:wrong] = RNG.uniform((0, 0), SIZE, (wrong, 2))
    return Matches(left, right)


def test_outliers_are_ignored() -> None:
    matrix = Cameras().homography
    found = fit_homography(points(matrix, wrong=20), SIZE, SIZE)
    assert found is not None
    np.testing.assert_allclose(found.matrix, matrix, atol=1e-3, rtol=1e-3)
    assert fit_homography(points(matrix, wrong=50), SIZE, SIZE) is None


def test_mirror_image_is_rejected() -> None:
    mirror = np.array([[-1, 0, 319], [0, 1, 0], [0, 0, 1]], np.float64)
    assert fit_homography(points(mirror), SIZE, SIZE) is None


def test_clustered_points_are_rejected() -> None:
    right = RNG.uniform((100, 100), (140, 130), (60, 2))
    assert fit_homography(Matches(right + np.array([20, 0]), right), SIZE, SIZE) is None


def test_repeated_points_do_not_accumulate() -> None:
    few = points(Cameras().homography, 12)
    assert align_videos([few] * 5, SIZE, SIZE) is None


def test_moving_cameras_have_one_homography_per_moment() -> None:
    ways = [Cameras(overlap=overlap).homography for overlap in (0.5, 0.6, 0.7)]
    found = align_videos([points(way) for way in ways], SIZE, SIZE)
    assert found is not None
    assert not found.fixed
    for matrix, way in zip(found.matrices, ways, strict=True):
        np.testing.assert_allclose(matrix, way, atol=1e-3, rtol=1e-3)
    for matrix, way in zip(found.inverted().matrices, ways, strict=True):
        np.testing.assert_allclose(matrix, inverse_homography(way), atol=1e-3, rtol=1e-3)


def test_one_moment_is_not_enough() -> None:
    nothing = Matches(np.zeros((0, 2)), np.zeros((0, 2)))
    ways = [points(Cameras(overlap=overlap).homography) for overlap in (0.5, 0.7)]
    assert align_videos([*ways, nothing], SIZE, SIZE) is not None
    assert align_videos([*ways, nothing, nothing, nothing], SIZE, SIZE) is None
