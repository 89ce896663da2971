"""Scans: the pixels of labelled objects, and the tiles around them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER, GroundTruth
from tests.support.composed_tiles import Composed, take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import DetectionColumns
from vfsd.core.frames import to_coded_rect
from vfsd.core.view_request import View
from vfsd.errors import (
    OutOfRangeError,
    ShortSpanWarning,
    UnknownLabelWarning,
    UsageError,
)
from vfsd.tiling import Rect, coarse_layout

CLIPS = ("traffic.mp4", "portrait.mp4", "variable-rate.mp4", "odd-size.webm")


def labelled(store: Store, clip: str, name: str | None = None) -> Video:
    """A sample video with its known boxes."""
    video = store.ingest(FOLDER / clip, name or clip)
    truth = GroundTruth.load(FOLDER / clip)
    rows = [
        (frame, box.label, (box.x1, box.y1, box.x2, box.y2), box.track)
        for frame, boxes in enumerate(truth.boxes)
        for box in boxes
    ]
    columns = DetectionColumns.of(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        tracks=[row[3] for row in rows],
    )
    video.labels.add(columns, "truth", examined=range(len(video)))
    return video


def some_label(video: Video) -> str:
    return max(video.labels.summary(), key=lambda one: one.boxes).label


@pytest.mark.parametrize("clip", one_in(4, CLIPS))
@pytest.mark.parametrize("tiled", [False, True])
def test_crops_equal_parts_of_full_frames(store: Store, clip: str, tiled: bool) -> None:
    video = labelled(store, clip)
    if tiled:
        video.tiles.retile("uniform:2x3", span=(0, video.duration * 2 / 3))
    scan = video.scan()
    crops = list(scan.crops())
    assert len(crops) == len(scan) > 20
    assert [crop.frame for crop in crops] == sorted(crop.frame for crop in crops)
    exact = video.read(psnr=math.inf)
    errors = []
    for crop in crops:
        rect, (detection,) = crop.rect, crop.detections
        assert rect == detection.rect(video.width, video.height)
        assert crop.seconds == exact.seconds[crop.frame]
        whole = exact.data[crop.frame, rect.y1 : rect.y2, rect.x1 : rect.x2]
        errors.append(np.abs(whole.astype(int) - crop.data).mean())
    # Small sharp objects lose more in chroma than in luma; 40 dB hold for luma only.
    assert (np.mean(errors) < 4 and max(errors) < 15) if tiled else max(errors) == 0


@pytest.mark.parametrize("clip", one_in(4, CLIPS))
@pytest.mark.parametrize("size", one_in(2, [(None,), ((33, 20),)]))
def test_crops_from_tiles_equal_composed_tiles(
    store: Store, clip: str, size: tuple[int, int] | None
) -> None:
    """Bit for bit, also for boxes across several tiles and for segments with different layouts."""
    video = labelled(store, clip)
    half = video.duration / 2
    video.tiles.retile("uniform:2x3", span=(0, half))
    video.tiles.retile(video.tiles.around(some_label(video), span=(half, None), alpha=1.0))
    take_tiles(store)
    composed = Composed(store, video)
    tiled = [crop for crop in video.scan().crops(size=size) if crop.frame in composed.pictures]
    assert len(tiled) > 10
    from_tiles = 0
    for crop in tiled:
        view = View(region=crop.rect, size=size)
        is_tile = np.array_equal(crop.data, composed.convert(crop.frame, view, "rgb24"))
        from_tiles += is_tile
        # Where tiles hold only a part of the region, the rest may come from the original.
        assert is_tile or not composed.segments[crop.frame].is_whole
        assert is_tile or np.array_equal(crop.data, composed.original(crop.frame, view, "rgb24"))
    assert from_tiles > 10


def test_a_predicate_on_labels_time_region_and_track(store: Store) -> None:
    video = labelled(store, "traffic.mp4")
    label = some_label(video)
    region = Rect(0, 0, 160, 120)
    crops = list(video.scan(label, span=(1, 2), region=region).crops())
    expected = list(video.labels.query(label, span=(1, 2), region=region))
    assert [crop.detections[0] for crop in crops] == expected
    track = expected[0].track
    assert {crop.detections[0].track for crop in video.scan(track=track).crops()} == {track}
    with pytest.warns(UnknownLabelWarning):
        assert list(video.scan("no such label").crops()) == []


def test_batches_have_one_size(store: Store) -> None:
    video = labelled(store, "traffic.mp4")
    batches = list(video.scan().batches(7, (48, 32), format="bgr24"))
    assert {batch.data.shape[1:] for batch in batches} == {(32, 48, 3)}
    assert [len(batch.crops) for batch in batches[:-1]] == [7] * (len(batches) - 1)
    crops = [crop for batch in batches for crop in batch.crops]
    assert len(crops) == len(video.scan())
    rect = crops[0].rect
    alone = video.frames([crops[0].frame], region=rect, size=(48, 32), format="bgr24")
    assert np.array_equal(batches[0].data[0], alone.data[0])
    for nonsense in ((16,), (16.0, 16), (65536, 2), (0, 0)):
        with pytest.raises(UsageError):
            next(video.scan().crops(size=nonsense))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="count must be at least 1, got 0"):
        next(video.scan().batches(0, (8, 8)))


def test_frames_and_tiles_contain_the_boxes(store: Store) -> None:
    video = labelled(store, "traffic.mp4")
    label = some_label(video)
    video.tiles.retile(video.tiles.around(label, alpha=1.0))
    scan = video.scan(label)
    frames = list(scan.frames())
    assert [one.frame for one in frames] == video.labels.query(label).frames().tolist()
    assert frames[0].data.shape == (video.height, video.width, 3)
    held: dict[int, list[Rect]] = {one.frame: [] for one in frames}
    for tile in scan.tiles():
        held[tile.frame].append(tile.rect)
        assert tile.data.shape == (tile.rect.height, tile.rect.width, 3)
    for crop in scan.crops():
        parts = [crop.rect.intersection(rect) for rect in held[crop.frame]]
        assert sum(part.area for part in parts if part) == crop.rect.area


def test_span_after_the_end_is_refused_like_in_a_read(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.labels.add_box(3, "car", (0, 0, 9, 9), source="me")
    what: dict[str, Any]
    for what in ({"roi": (0, 0, 9, 9)}, {"roi": "car"}, {"labels": "car"}, {}):
        with pytest.raises(OutOfRangeError, match="before the end of the video"):
            video.scan(**what, span=(5, 6))
    assert len(video.scan("car", span=(0, 1))) == 1
    with pytest.warns(ShortSpanWarning, match=r"ends at 9\.000 s, but the video at 4\.000 s"):
        assert len(video.scan("car", span=(1, 9))) == 0
    with pytest.warns(ShortSpanWarning):
        assert len(video.scan(roi=(0, 0, 9, 9), span=(3, 6))) == 30


def test_spans_are_runs_of_frames(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    numbers = [3, 4, 5, 9, 30]
    columns = DetectionColumns.of(numbers, ["car"] * 4 + ["dog"], [(0, 0, 9, 9)] * 5)
    video.labels.add(columns, "me")
    spans = video.scan().spans()
    assert [(one.frames, one.labels, one.boxes) for one in spans] == [
        (range(3, 6), ("car",), 3),
        (range(9, 10), ("car",), 1),
        (range(30, 31), ("dog",), 1),
    ]
    assert spans[0].seconds == pytest.approx((3 / 30, 6 / 30))
    assert [one.frames for one in video.scan().spans(gap=3)] == [range(3, 10), range(30, 31)]


def test_boxes_of_one_encoding_apply_to_another(store: Store) -> None:
    first = labelled(store, "traffic.mp4")
    other = store.ingest(FOLDER / "traffic.mp4", "again.mp4")
    other.tiles.retile("uniform:2x2")
    crops = list(other.scan(seen_in=first).crops())
    assert len(crops) == len(first.scan())
    with pytest.raises(UsageError, match="other frames"):
        other.scan(seen_in=labelled(store, "portrait.mp4"))


def test_layouts_around_boxes_cut_no_box(store: Store) -> None:
    for clip in CLIPS[:2]:
        video = labelled(store, clip)
        media = video.original.media
        label = some_label(video)
        for planned in (
            video.tiles.around(label),
            video.tiles.around(label, partition=coarse_layout, padding=4),
        ):
            for plan in planned:
                assert not plan.layout.is_untiled
                inside = video.labels.query(label, frames=plan.frames)
                assert inside
                for detection in inside:
                    rect = detection.rect(video.width, video.height)
                    assert rect is not None
                    assert not plan.layout.cuts(to_coded_rect(rect, media))
    with pytest.warns(UnknownLabelWarning):
        assert video.tiles.around("no such label") == []


def test_scan_falls_back_from_missing_tiles(store: Store) -> None:
    video = labelled(store, "traffic.mp4")
    exact = [crop.data for crop in video.scan(psnr=math.inf).crops()]
    for segment in video.tiles.retile("uniform:3x4"):
        store.parts.objects.path(segment.object_key).unlink()
    for crop, whole in zip(video.scan().crops(), exact, strict=True):
        assert np.array_equal(crop.data, whole)


def test_abandoned_scan_leaves_nothing_running(store: Store) -> None:
    video = labelled(store, "traffic.mp4")
    crops = video.scan().crops()
    next(crops)
    del crops
    assert len(list(video.scan().crops())) == len(video.scan())
