"""Verdicts on pairs of videos."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene
from tests.overlap.making import AT, filmed_at, moments, pictures
from vfsd.overlap.homography import Alignment
from vfsd.overlap.overlap_pair import Overlap, Verdict, compare_videos, measure_agreement

LATER = tuple(index + 60 for index in AT)


def scene(overlap: float = 0.5) -> FilmedScene:
    return FilmedScene.of(Cameras(overlap=overlap), frames=120, seed=1)


def compared(filmed: FilmedScene) -> Overlap:
    left, right = pictures(filmed)
    found = compare_videos(moments(left), moments(right))
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.75])
def test_cameras_side_by_side_are_to_be_joined(overlap: float) -> None:
    found = compared(scene(overlap))
    assert (found.verdict, found.why) == (Verdict.JOIN, "")
    assert found.fixed
    assert not found.swapped
    assert found.shares == pytest.approx((overlap, overlap), abs=0.02)
    assert found.common_bytes == pytest.approx(overlap / 2 * 2_000_000, rel=0.05)
    assert found.agreement.exposure.gains == pytest.approx([1 / 1.05] * 3, abs=0.02)
    assert min(found.agreement.left + found.agreement.right) > 35
    assert found.agreement.movement == pytest.approx(1, abs=0.05)


def test_the_order_does_not_matter() -> None:
    left, right = pictures(scene())
    found = compare_videos(moments(right), moments(left))
    assert found is not None
    assert found.swapped
    assert found.verdict is Verdict.JOIN
    there = compared(scene())
    assert found.cut is not None
    assert there.cut is not None
    assert found.cut.seam == pytest.approx(there.cut.seam, abs=2)


def test_the_same_camera_later_is_refused() -> None:
    """The same place, nearly all of whose pixels are the same: only what moves tells."""
    filmed = scene()
    found = compare_videos(filmed_at(filmed.left), moments([filmed.left(index) for index in LATER]))
    assert found is not None
    assert found.verdict is Verdict.REFUSED
    assert found.agreement.movement is not None
    assert found.agreement.movement < 0.3
    assert found.common_bytes == 0


def test_where_nothing_moves_nothing_tells_the_time() -> None:
    still = FilmedScene.of(Cameras(), frames=120, density=0, seed=1)
    found = compared(still)
    assert found.agreement.movement is None
    assert found.verdict is Verdict.JOIN
    assert "without motion" in found.why


def test_light_that_changes_is_no_movement() -> None:
    still = FilmedScene.of(Cameras(noise=0), frames=120, density=0, seed=1)
    left, right = pictures(still)
    for at, picture in enumerate(left):
        picture[...] = np.clip(picture.astype(int) + 3 * at, 0, 255)
    identity = Alignment((still.cameras.homography,) * len(left), True)
    assert measure_agreement(left, right, identity).movement is None


def test_a_smaller_copy_is_a_copy() -> None:
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


def test_a_window_of_a_video_is_to_be_joined_with_it() -> None:
    left, _ = pictures(scene())
    window = [picture[40:200, 60:260].copy() for picture in left]
    found = compare_videos(moments(window), moments(left))
    assert found is not None
    assert found.verdict is Verdict.JOIN
    assert found.swapped
    assert found.shares == pytest.approx((200 * 160 / (320 * 240), 1), abs=0.01)


def test_pairs_that_agree_at_some_moments() -> None:
    left, right = pictures(scene(0.75))
    rng = np.random.default_rng(1)
    right[-1] = rng.integers(0, 256, right[-1].shape, dtype=np.uint8)
    found = compare_videos(moments(left), moments(right))
    assert found is not None
    assert found.verdict is Verdict.PARTLY
    assert found.why == "24 dB at 3 of 4 moments"


def test_a_place_that_looks_otherwise_is_refused() -> None:
    left, right = pictures(scene(0.75))
    found = compare_videos(moments(left), moments([255 - picture // 2 for picture in right]))
    assert found is None or found.verdict is Verdict.REFUSED
    shade = np.linspace(0, 90, 320).astype(np.uint8)[None, :, None]
    found = compare_videos(moments(left), moments([picture // 2 + shade for picture in right]))
    assert found is None or found.verdict is Verdict.REFUSED


def test_videos_without_a_moment_in_common() -> None:
    left, right = pictures(scene())
    assert compare_videos(moments(left), moments(right, LATER)) is None


def test_a_longer_video_counts_with_the_time_that_both_have() -> None:
    left, right = pictures(scene())
    longer = moments(left)
    longer = dataclasses.replace(longer, duration=longer.duration * 3, bytes=longer.bytes * 3)
    both = compare_videos(longer, moments(right))
    assert both is not None
    assert both.common_bytes == pytest.approx(0.25 * 2_000_000, rel=0.05)
