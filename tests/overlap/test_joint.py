"""Joining coded pictures plane by plane."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from vfsd.codecs.joints.overlap_geometry import PixelArray, cut_at_seam, image_size
from vfsd.codecs.joints.plane_merge import (
    PlaneArray,
    PlaneExposure,
    PlaneJoint,
    PlaneMerger,
    is_divisible,
    match_plane_exposure,
    plane_mean_squares,
    psnr_of_square,
)

SHARES = ((1, 1), (2, 2), (2, 2))
CAMERAS = Cameras(overlap=0.6, noise=1.0)
FILMED = FilmedScene.of(CAMERAS, frames=4, seed=3)


def coded(picture: PixelArray) -> list[PlaneArray]:
    """4:2:0."""
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
def test_both_pictures_come_back(merge: str) -> None:
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


def test_without_its_light_the_right_one_is_worse() -> None:
    bright = Cameras(overlap=0.6, noise=1.0, gain=1.0, bias=12.0)
    filmed = FilmedScene.of(bright, frames=2, seed=3)
    left, right = coded(filmed.left(1)), coded(filmed.right(1))
    joint = joint_of(left, right, "unprojected")
    dark = PlaneJoint(joint.cut, PlaneExposure((1.0,) * 3, (0.0,) * 3), joint.merge, SHARES)
    good, bad = (put_together(one, left, right)[1] for one in (joint, dark))
    assert worst(good, right) > worst(bad, right) + 2


def test_a_joint_is_the_same_after_json() -> None:
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
def test_what_is_no_joint_is_refused(change: dict[str, object]) -> None:
    joint = joint_of(coded(FILMED.left(0)), coded(FILMED.right(0)), "mean")
    with pytest.raises((ValueError, KeyError, TypeError)):
        PlaneJoint.from_record({**joint.to_record(), **change})


def test_a_copy_is_one_picture() -> None:
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


def test_sides_have_to_hold_whole_samples() -> None:
    assert is_divisible((320, 240), SHARES)
    assert not is_divisible((321, 240), SHARES)
    assert not is_divisible((320, 241), ((1, 1),))
