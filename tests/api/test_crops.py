"""Crops of given boxes: equal to single reads, in the given order, each GOP decoded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.decode_runs import record_runs, repeated_packets
from tests.support.selection import one_in
from vfsd.api import bulk_reads
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.core.frames import Crop
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.tiling import Rect

CLIPS = ("traffic.mp4", "portrait.mp4", "variable-rate.mp4", "odd-size.webm", "open-gop.mkv")
SIZES: tuple[Any, ...] = ("none", "40x24", 16, "0x32", "20x0")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "traffic.mp4")


@pytest.fixture(scope="module")
def long_gop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 300 frames whose only key frame is the first."""
    folder = tmp_path_factory.mktemp("long")
    rows = np.arange(64, dtype=np.int64)[:, None, None]
    pictures = (np.broadcast_to(rows + at, (64, 96, 3)).astype(np.uint8) for at in range(300))
    with Store.create(folder / "store") as store:
        store.write("long.mp4", pictures, fps=30, key_interval=300).save(folder / "long.mp4")
    return folder / "long.mp4"


def some_boxes(video: Video, count: int, seed: int = 1) -> list[tuple[int, Rect]]:
    """Boxes of any size on any frames, in any order; some twice."""
    draw = np.random.default_rng(seed)
    boxes = []
    for _ in range(count):
        x1, x2 = sorted(draw.choice(video.width + 1, 2, replace=False).tolist())
        y1, y2 = sorted(draw.choice(video.height + 1, 2, replace=False).tolist())
        boxes.append((int(draw.integers(len(video))), Rect(x1, y1, x2, y2)))
    return [*boxes, *boxes[: count // 4]]


def single_reads(video: Video, boxes: list[tuple[int, Rect]], **options: Any) -> list[Any]:
    return [video.read(frames=[frame], region=rect, **options).data[0] for frame, rect in boxes]


def assert_equal(crops: list[Crop], boxes: list[tuple[int, Rect]], want: list[Any]) -> None:
    assert [(crop.frame, crop.rect) for crop in crops] == boxes
    for crop, data in zip(crops, want, strict=True):
        assert np.array_equal(crop.data, data)


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
@pytest.mark.parametrize("size", one_in(2, SIZES))
def test_crops_equal_single_reads(store: Store, clip: str, size: Any) -> None:
    size = None if size == "none" else size
    video = store.ingest(FOLDER / clip, clip)
    boxes = some_boxes(video, 12)
    want = single_reads(video, boxes, size=size)
    assert_equal(video.crops(boxes, size=size), boxes, want)
    assert_equal(list(video.iterate_crops(iter(boxes), size=size, memory=20_000)), boxes, want)


@pytest.mark.parametrize("format", ["gray", "bgr24", "yuv444p"])
def test_formats(video: Video, format: str) -> None:
    boxes = some_boxes(video, 6)
    want = single_reads(video, boxes, format=format, size=(32, 32))
    assert_equal(
        video.crops(boxes, size=32 if format == "" else (32, 32), format=format), boxes, want
    )


def test_tiles_are_used(video: Video, monkeypatch: pytest.MonkeyPatch) -> None:
    video.tiles.retile("uniform:2x2", span=(1, 3))
    boxes = [(40, Rect(0, 0, 90, 60)), (100, Rect(8, 8, 40, 40)), (70, Rect(10, 10, 150, 110))]
    runs = record_runs(monkeypatch)
    found = video.crops(boxes)
    assert [run.start // 30 for run in runs] == [3]  # only frame 100 is outside the tiles
    monkeypatch.undo()
    want = single_reads(video, boxes, psnr=math.inf)
    for crop, (frame, rect), data in zip(found, boxes, want, strict=True):
        difference = crop.data.astype(int) - data
        assert (crop.frame, crop.rect) == (frame, rect)
        assert (difference**2).mean() < 40
    assert_equal(video.crops(boxes, psnr=math.inf), boxes, want)


def test_long_gop_is_decoded_once(
    store: Store, long_gop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = store.ingest(long_gop, "long.mp4")
    assert video.keyframes.tolist() == [0]
    boxes = [(frame, Rect(frame % 8, 0, 40, 30)) for frame in (290, 3, 150, 3, 70, 220, 149)]
    runs = record_runs(monkeypatch)
    found = video.crops(boxes)
    assert repeated_packets(runs) == []
    monkeypatch.undo()
    assert_equal(found, boxes, single_reads(video, boxes))


def test_ordered_boxes_of_a_long_list_decode_each_gop_once(
    store: Store, long_gop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = store.ingest(long_gop, "long.mp4")
    boxes = [(frame, Rect(0, 0, 40, 30)) for frame in range(0, 300, 7)]
    runs = record_runs(monkeypatch)
    found = list(video.iterate_crops(boxes, memory=5 * 40 * 30 * 3))
    assert len(runs) > 5
    assert repeated_packets(runs) == []
    monkeypatch.undo()
    assert_equal(found, boxes, single_reads(video, boxes))


def test_iterator_takes_boxes_as_needed_and_bounds_memory(
    video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_reads, "_BOXES_AT_ONCE", 4)
    windows: list[int] = []
    read = bulk_reads._in_given_order

    def counting(reader: Any, wants: Any, *rest: Any) -> Any:
        windows.append(sum(want.rect.area * 3 for want in wants))
        return read(reader, wants, *rest)

    monkeypatch.setattr(bulk_reads, "_in_given_order", counting)
    taken: list[int] = []

    def endless() -> Iterator[tuple[int, Rect]]:
        at = 0
        while True:
            taken.append(at)
            yield at % 120, Rect(0, 0, 20, 10)
            at += 7

    found = list(islice(video.iterate_crops(endless(), memory=6000), 25))
    assert [crop.frame for crop in found] == [at * 7 % 120 for at in range(25)]
    assert len(taken) <= 36
    assert max(windows) <= 6000


def test_boxes_may_be_fractional_and_reach_beyond_the_frame(video: Video) -> None:
    """The video has 320x240 pixels and 120 frames."""
    detection = Detection(7, "car", (10.5, 20.0, 30.2, 40.0))
    given: list[Any] = [
        detection,
        (7, (-50, -3.5, 20.5, 10)),
        (-1, "400x300+300+200"),
        (np.int64(5), np.array([1, 2, 3.5, 4])),
    ]
    found = video.crops(given)
    assert [crop.rect for crop in found] == [
        Rect(10, 20, 31, 40),
        Rect(0, 0, 21, 10),
        Rect(300, 200, 320, 240),
        Rect(1, 2, 4, 4),
    ]
    assert [crop.frame for crop in found] == [7, 7, 119, 5]
    assert [crop.detections for crop in found] == [(detection,), (), (), ()]
    assert video.crops([]) == []
    assert np.stack(video.crops(given, size=(8, 8))).shape == (4, 8, 8, 3)


@pytest.mark.parametrize(
    ("boxes", "error", "words"),
    [
        (5, UsageError, "boxes must be a list"),
        ("abc", UsageError, "boxes must be a list"),
        ([7], UsageError, "a crop must be"),
        ([(7, 1, 2, 3, 4)], UsageError, "a crop must be"),
        ([(7, "10x10")], UsageError, "region must be"),
        ([(7, (1, 2, 3))], UsageError, "region must be"),
        ([(7, (5, 5, 5, 9))], UsageError, "region must have an area"),
        ([(7, (math.nan, 5, 6, 9))], UsageError, "region must have an area"),
        ([(0.5, (1, 2, 3, 4))], UsageError, "whole numbers"),
        ([(120, (1, 2, 3, 4))], OutOfRangeError, "120"),
        ([(7, (400, 2, 500, 4))], OutOfRangeError, "within the frame of 320x240"),
    ],
)
def test_invalid_crops_are_refused(video: Video, boxes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        video.crops(boxes)
    with pytest.raises(error, match=words):
        list(video.iterate_crops(boxes))
