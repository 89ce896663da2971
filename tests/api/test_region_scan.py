"""Full scans: every frame, limited to the regions that may contain objects."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from vfsd.api.bulk_reads import interests_around
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import DetectionColumns
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.labels.detectors import plan_chunks
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.tiling import Rect

CLIP = FOLDER / "traffic.mp4"
BOXES = ((40, 40, 60, 60), (200, 165, 230, 190))
"""Seen on frame 5, in the first second, of a video of 320x240 pixels."""


@pytest.fixture
def video(store: Store) -> Video:
    """A video with detections in its first two seconds, in every fifth frame."""
    made = store.ingest(CLIP)
    columns = DetectionColumns.of([5, 5], "motion", BOXES)
    made.labels.add(columns, "mog2", examined=range(0, 60, 5))
    return made


def seconds_of(video: Video) -> list[range]:
    first, second, *rest = video.tiles.sequences()
    assert rest, "the clip is longer than what was examined"
    return [first, second, *rest]


def test_only_examined_empty_frames_are_skipped(video: Video) -> None:
    first, second, *rest = seconds_of(video)
    scan = video.scan(roi="motion")
    areas = {one.frame: one for one in scan.areas(size=(65, 65))}
    assert sorted(areas) == [*first, *(frame for run in rest for frame in run)]
    assert len(scan) == len(areas) == len(video) - len(second)
    assert {areas[frame].rect for frame in first} == {Rect(40, 40, 230, 190)}
    assert {areas[frame].rect for run in rest for frame in run} == {video.original.media.frame_rect}
    assert {one.data.shape for one in areas.values()} == {(65, 65, 3)}
    assert [len(areas[frame].detections) for frame in first[4:7]] == [0, 2, 0]


@pytest.mark.thorough
def test_only_tiles_with_regions_are_decoded(video: Video) -> None:
    video.tiles.retile("uniform:3x4", span=(0, 1))
    scan = video.scan(roi="motion", frames=range(3, 9))
    tiles = list(scan.tiles())
    assert [tile.frame for tile in tiles] == sorted(2 * [*range(3, 9)])
    exact = video.read(psnr=math.inf).data
    for tile in tiles:
        rect = tile.rect
        assert sum(bool(rect.intersection(Rect(*box))) for box in BOXES) == 1
        whole = exact[tile.frame, rect.y1 : rect.y2, rect.x1 : rect.x2].astype(int)
        assert np.abs(whole - tile.data).mean() < 4
    (with_box, other) = (tile for tile in tiles if tile.frame == 5)
    assert with_box.detections[0].box == BOXES[0]
    assert other.detections[0].box == BOXES[1]
    batches = list(scan.batches(5, (32, 24), format="gray"))
    assert [batch.data.shape for batch in batches] == [
        (5, 24, 32, 1),
        (5, 24, 32, 1),
        (2, 24, 32, 1),
    ]


def test_padding_reaches_into_neighbouring_tiles(video: Video) -> None:
    video.tiles.retile("uniform:3x4", span=(0, 1))
    alone = list(video.scan(roi="motion", frames=range(1)).tiles())
    wider = list(video.scan(roi="motion", frames=range(1), padding=30).tiles())
    assert {one.rect for one in alone} < {one.rect for one in wider}


@pytest.mark.thorough
def test_scan_of_a_fixed_region(store: Store, video: Video) -> None:
    road = Rect(100, 100, 220, 180)
    video.tiles.retile("uniform:3x4")
    take_tiles(store)
    shown = list(video.scan(roi=road, span=(0.5, 1.5)).areas())
    assert [one.frame for one in shown] == [*video.frames_in((0.5, 1.5))]
    plain = video.read(span=(0.5, 1.5), region=road)
    assert math.isfinite(plain.psnr)
    assert np.array_equal(np.stack([one.data for one in shown]), plain.data)
    held = video.scan(roi=road, frames=range(1)).tiles()
    assert all(one.rect.intersection(road) for one in held)


def test_examined_frames_are_tracked_per_source(video: Video) -> None:
    video.labels.mark_examined(range(len(video)), "yolo")
    second = seconds_of(video)[1]
    assert len(video.scan(roi="motion")) == len(video) - len(second)
    assert len(video.scan(roi="motion", source="yolo")) == 0
    assert len(video.scan(roi="smoke")) == len(video)


def test_examined_video_without_boxes_is_skipped(store: Store) -> None:
    """This includes labels that no video has: a detector declares its labels."""
    still = store.write("still.mkv", np.zeros((50, 48, 64, 3), np.uint8), fps=25, codec="ffv1")
    assert len(still.scan(roi="motion")) == 50
    still.labels.detect(MotionDetector())
    assert len(still.scan(roi="motion")) == 0
    assert len(still.scan(roi="smoke")) == 50


def test_frames_by_steps(video: Video) -> None:
    whole = {crop.frame: crop for crop in video.scan(roi="motion").areas()}
    some = list(video.scan(roi="motion", frames=range(2, len(video), 5)).areas())
    assert [one.frame for one in some] == [one for one in whole if one >= 2 and one % 5 == 2]
    assert all(np.array_equal(one.data, whole[one.frame].data) for one in some)


def test_lookup_among_many_examined_runs_is_fast(store: Store) -> None:
    """A detector that examines every second frame leaves as many runs as frames."""
    count = 60_000
    runs = [range(frame, frame + 1) for frame in range(0, count, 2)]
    sequences = [range(frame, frame + 25) for frame in range(0, count, 25)]
    media = store.ingest(CLIP).original.media
    began = time.process_time()
    nothing = DetectionColumns.of([], [], [])
    found = interests_around(nothing, media, sequences, runs, padding=0)
    assert not any(one.regions for one in found)
    numbers = np.arange(0, count)
    kept = np.concatenate([chunk.kept for chunk in plan_chunks(numbers, range(count), runs, 1)])
    assert np.array_equal(kept, numbers[1::2])
    assert time.process_time() - began < 2


def test_conflicting_arguments(video: Video) -> None:
    with pytest.raises(UsageError, match="not both"):
        video.scan(roi="motion", span=(0, 1), frames=range(3))
    with pytest.raises(UsageError, match="ascend"):
        video.scan(roi="motion", frames=range(9, 3, -1))
    with pytest.raises(UsageError, match="with roi"):
        video.scan("car", roi="motion")  # type: ignore[call-overload]
    with pytest.raises(OutOfRangeError):
        video.scan(roi=Rect(0, 0, 9999, 9999))
