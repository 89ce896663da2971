"""Moving objects are found, still ones are not, and results are deterministic."""

from __future__ import annotations

import pytest

from sample_videos import FOLDER
from sample_videos.scene import Scene
from sample_videos.truth import GroundTruth
from tests.support.detector_frames import covered, frames_of
from tests.support.selection import one_in
from vfsd import Rect, Store
from vfsd.errors import UsageError
from vfsd.labels.detectors import FrameRequest, fit_size, scale_rect_outward
from vfsd.labels.detectors.motion import MotionDetector, motion_regions


def test_most_moving_objects_are_found(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    assert video.labels.detect(MotionDetector()) == len(video.labels.query("motion"))
    truth = GroundTruth.load(FOLDER / "traffic.mp4")
    hits = [
        covered((box.x1, box.y1, box.x2, box.y2), video.labels.query(frames=[frame])) >= 0.5
        for frame in range(0, len(video), 5)
        for box in truth.boxes[frame]
    ]
    assert sum(hits) >= 0.8 * len(hits), sum(hits) / len(hits)
    assert [one.frames for one in video.labels.examined()] == [range(len(video))]


@pytest.mark.parametrize("noise", one_in(3, [0, 2, 5]))
def test_still_scene_has_no_boxes(noise: float) -> None:
    still = Scene(320, 240, frames=60, density=0, noise=noise, numbered=False)
    shown = frames_of(still)
    assert list(MotionDetector().detect(shown, 320, 240)) == [(at, []) for at in range(60)]
    assert motion_regions(shown, 320, 240) == []


def test_detection_is_deterministic() -> None:
    shown = frames_of(Scene(320, 240, frames=40, density=0.15, seed=1))
    first, second = (list(MotionDetector().detect(shown, 640, 480)) for _ in range(2))
    assert first == second
    assert any(found for _, found in first)
    for _, found in first:
        for one in found:
            assert one.box[0] % 2 == one.box[1] % 2 == 0  # scaled to half the size
            assert one.clipped(640, 480) == one


@pytest.mark.thorough
def test_regions_contain_every_box_and_are_disjoint() -> None:
    shown = frames_of(Scene(320, 240, frames=60, density=0.1, seed=8, numbered=False))
    regions = motion_regions(shown, 320, 240)
    assert regions == motion_regions(shown, 320, 240)
    for _, found in MotionDetector().detect(shown, 320, 240):
        for one in found:
            rect = one.rect(320, 240)
            assert rect is not None
            assert any(region.contains(rect) for region in regions)
    for at, region in enumerate(regions):
        assert Rect(0, 0, 320, 240).contains(region)
        assert not any(region.intersection(other) for other in regions[at + 1 :])
    assert 0 < sum(region.area for region in regions) < 320 * 240


def test_context_reveals_objects_that_stand_still() -> None:
    empty = frames_of(Scene(320, 240, frames=60, density=0, seed=8, numbered=False))
    street = Scene(320, 240, frames=60, density=0.1, seed=8, numbered=False)
    run = frames_of(street)[:5]
    (x1, y1, x2, y2) = next(
        (box.x1, box.y1, box.x2, box.y2) for box in street.boxes(0) if box.x2 - box.x1 > 20
    )
    spot = ((x1 + x2) // 2, (y1 + y2) // 2)

    def hit(regions: list[Rect]) -> bool:
        return any(r.x1 <= spot[0] < r.x2 and r.y1 <= spot[1] < r.y2 for r in regions)

    assert not hit(motion_regions(run, 320, 240))
    assert hit(motion_regions(run, 320, 240, context=empty))


def test_invalid_requests_are_refused() -> None:
    small, large = (frames_of(Scene(64 * k, 48 * k, frames=2, numbered=False)) for k in (2, 4))
    with pytest.raises(UsageError):
        motion_regions([*small, *large], 256, 192)
    assert motion_regions([], 10, 10) == motion_regions([], 10, 10, context=small) == []
    for wrong in ({"every": 0}, {"every": "x"}, {"block": 1}, {"threshold": 0}, {"longest": 0}):
        with pytest.raises(UsageError):
            MotionDetector(**wrong)
    with pytest.raises(UsageError):
        FrameRequest(block=0)


def test_boxes_are_rounded_outward() -> None:
    assert fit_size(1920, 1080, 480) == (480, 270)
    assert fit_size(1080, 1920, 480) == (270, 480)
    assert fit_size(320, 240, 480) == (320, 240)
    assert fit_size(5000, 1, 480) == (480, 1)
    assert scale_rect_outward((0, 0, 7, 3), (7, 3), (1000, 1001)) == Rect(0, 0, 1000, 1001)
    assert scale_rect_outward((1, 1, 2, 2), (3, 3), (10, 10)) == Rect(3, 3, 7, 7)
    with pytest.raises(UsageError):
        fit_size(1, 1, 0)
