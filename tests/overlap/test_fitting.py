"""Finding homographies: those of known cameras, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from sample_videos.scene import Scene
from tests.overlap.making import matched, pictures
from tests.selection import one_in
from vfsd.codecs.joints.overlap_geometry import inverse_homography, project_points
from vfsd.overlap.homography import Matches, align_videos, fit_homography

SIZE = (320, 240)
RNG = np.random.default_rng(7)


@pytest.mark.parametrize("overlap", one_in(4, [0.3, 0.5, 0.75]))
@pytest.mark.parametrize("seed", [1, 2])
def test_known_cameras_are_found(overlap: float, seed: int) -> None:
    cameras = Cameras(overlap=overlap)
    found = align_videos(matched(*pictures(FilmedScene.of(cameras, seed=seed))), SIZE, SIZE)
    assert found is not None
    assert found.fixed
    # Where both see something: outside, nothing tells.
    grid = np.stack(np.meshgrid([5.0, 120, 235], [5.0, 120, 235]), axis=-1).reshape(-1, 2)
    inside = project_points(cameras.homography, grid)[:, 0] < SIZE[0]
    off = project_points(found.matrices[0], grid) - project_points(cameras.homography, grid)
    assert np.linalg.norm(off[inside], axis=1).max() < 2


def test_different_scenes_have_none() -> None:
    scenes = [Scene(frames=60, seed=seed, numbered=False) for seed in (3, 4)]
    left, right = ([scene.frame(at) for at in (0, 12, 24, 48)] for scene in scenes)
    assert align_videos(matched(left, right), SIZE, SIZE) is None


def test_the_same_sign_in_the_corner_of_different_scenes_is_no_overlap() -> None:
    """Cameras of one make write the same into the same corner."""
    scenes = [Scene(frames=60, seed=seed, numbered=False) for seed in (3, 4)]
    sign = RNG.integers(0, 2, (8, 20)).repeat(4, axis=0).repeat(4, axis=1)[:, :, None] * 255
    shown = []
    for scene in scenes:
        shown.append([scene.frame(at) for at in (0, 12, 24, 48)])
        for picture in shown[-1]:
            picture[8:40, 8:88] = sign
    found = matched(*shown)
    assert min(map(len, found)) > 20  # there is something to be fooled by
    assert align_videos(found, SIZE, SIZE) is None


def points(matrix: np.ndarray, count: int = 60, *, wrong: int = 0) -> Matches:
    """Points all over the right picture, and where they are in the left one."""
    right = RNG.uniform((0, 0), SIZE, (count, 2))
    left = project_points(matrix, right)
    left[:wrong] = RNG.uniform((0, 0), SIZE, (wrong, 2))
    return Matches(left, right)


def test_some_points_may_be_wrong() -> None:
    matrix = Cameras().homography
    found = fit_homography(points(matrix, wrong=20), SIZE, SIZE)
    assert found is not None
    np.testing.assert_allclose(found.matrix, matrix, atol=1e-3, rtol=1e-3)
    assert fit_homography(points(matrix, wrong=50), SIZE, SIZE) is None


def test_a_mirror_image_is_not_believed() -> None:
    mirror = np.array([[-1, 0, 319], [0, 1, 0], [0, 0, 1]], np.float64)
    assert fit_homography(points(mirror), SIZE, SIZE) is None


def test_points_in_one_place_are_not_believed() -> None:
    right = RNG.uniform((100, 100), (140, 130), (60, 2))
    assert fit_homography(Matches(right + np.array([20, 0]), right), SIZE, SIZE) is None


def test_the_same_few_points_at_every_moment_do_not_become_many() -> None:
    few = points(Cameras().homography, 12)
    assert align_videos([few] * 5, SIZE, SIZE) is None


def test_cameras_that_move_against_each_other_have_one_a_moment() -> None:
    ways = [Cameras(overlap=overlap).homography for overlap in (0.5, 0.6, 0.7)]
    found = align_videos([points(way) for way in ways], SIZE, SIZE)
    assert found is not None
    assert not found.fixed
    for matrix, way in zip(found.matrices, ways, strict=True):
        np.testing.assert_allclose(matrix, way, atol=1e-3, rtol=1e-3)
    for matrix, way in zip(found.inverted().matrices, ways, strict=True):
        np.testing.assert_allclose(matrix, inverse_homography(way), atol=1e-3, rtol=1e-3)


def test_one_moment_among_many_is_not_enough() -> None:
    nothing = Matches(np.zeros((0, 2)), np.zeros((0, 2)))
    ways = [points(Cameras(overlap=overlap).homography) for overlap in (0.5, 0.7)]
    assert align_videos([*ways, nothing], SIZE, SIZE) is not None
    assert align_videos([*ways, nothing, nothing, nothing], SIZE, SIZE) is None
