"""Videos that keep their quality only in regions with detected objects."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.maintenance.test_age import ager, put, run
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import Detection, Source
from vfsd.core.retention_policy import Action
from vfsd.derive.reencode import RoiAreas, find_roi_areas
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import ForbiddenError, OutdatedError
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.maintenance import fsck

NAME = "traffic.mp4"
SECOND = 90_000
RULES = "original=replaceable,psnr=34,codec=h264,decay-after=30d,keep=car|truck"


def label(video: Video) -> None:
    """A small box that crosses the frame."""
    boxes = [
        Detection(number, "car", (40.0 + number, 100.0, 80.0 + number, 130.0))
        for number in range(len(video))
    ]
    video.labels.add(boxes, "me", examined=range(len(video)))


def luma(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    with av.open(str(path)) as opened:
        pictures = [frame.to_ndarray(format="yuv420p")[:240] for frame in opened.decode(video=0)]
    return np.stack(pictures).astype(float)


@pytest.mark.thorough
def test_quality_is_kept_inside_regions_only(store: Store) -> None:
    video = put(store, NAME, 31, RULES)
    label(video)
    video.tiles.retile("uniform:2x2", span=(0, 1))
    areas = find_roi_areas(store.catalog, video.info, context_of(video).table, "car|truck")
    mask = np.stack(
        [
            np.zeros((240, 320), bool) if one is None else one > 0
            for one in map(areas.mask, range(120))
        ]
    )
    plain = store.ingest(FOLDER / NAME, "plain.mp4")
    plain.policy.set("original=replaceable,psnr=34")
    smaller = plain.policy.replace_original(codec="h264")
    (entry,) = run(store)
    again = store[NAME]
    assert entry.action is Action.DECAYED
    assert entry.new_size == again.info.size < smaller.new_size
    old, new = luma(FOLDER / NAME), luma(store.parts.originals.path_of(again.original))
    assert old.shape == new.shape
    inside = [
        np.square(a[m] - b[m]).mean() for a, b, m in zip(old, new, mask, strict=True) if m.any()
    ]
    psnr = 10 * np.log10(255**2 / max(inside))
    details = entry.details or {}
    assert psnr >= details["inside"] - 0.01 >= 34 - 0.01
    outside = 10 * np.log10(255**2 / np.square(old - new)[~mask].mean())
    assert details["outside"] - 0.5 <= outside < 34
    assert again.original.psnr <= 34  # reads report the PSNR of whole frames
    assert again.read(frames=range(3), format="yuv420p").psnr == pytest.approx(again.original.psnr)
    assert store.catalog.segments(again.info) == []
    assert len(list(again.labels.query("car"))) == 120
    assert run(store) == []
    assert fsck.run(store.parts, deep=True) == []
    assert fsck.collect(store.parts, dry_run=True).objects == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE physical_videos SET packets = packets + 1 WHERE role = 'original'",
        "UPDATE physical_videos SET parameters = '{}' WHERE role = 'original'",
        "DELETE FROM physical_videos WHERE role = 'original'",
    ],
)
def test_reindexed_video_does_not_decay_again(store: Store, change: str) -> None:
    video = put(store, NAME, 31, RULES)
    label(video)
    (entry,) = run(store)
    assert entry.action is Action.DECAYED
    with closing(sqlite3.connect(store.path / CATALOG)) as raw, raw:
        raw.execute("UPDATE frame_pages SET data = zeroblob(length(data))")
        raw.execute(change)
    with Store.open(store.path) as again:
        fsck.run(again.parts, repair=True)
        assert len(again[NAME].read()) == 120
        assert not ager(again).plan().due


def test_unexamined_video_does_not_decay(store: Store) -> None:
    video = put(store, NAME, 31, RULES)
    label(store.ingest(FOLDER / NAME, "other.mp4"))
    video.labels.mark_examined(range(0, 60), "me")
    with pytest.raises(ForbiddenError, match="from frame 60 on"):
        run(store)
    assert store[NAME].info.digest == video.info.digest
    video.labels.mark_examined(range(60, 120, 10), "me")
    (entry,) = run(store)
    assert (entry.action, (entry.details or {})["boxes"]) == (Action.DECAYED, 0)


@pytest.mark.thorough
def test_withdrawn_decay_rule_is_not_applied(store: Store) -> None:
    """Permission to replace is not enough: the age rule was withdrawn."""
    video = put(store, NAME, 31, RULES)
    label(video)
    mine = ager(store)
    (due,) = mine.plan().due

    def change(what: str, done: int, total: int) -> None:
        if what == "comparing" and done == total:
            store[NAME].policy.set("original=replaceable,psnr=34,codec=h264")

    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(due, change)
    assert store[NAME].info.digest == video.info.digest


def test_examination_for_other_labels_does_not_count(store: Store) -> None:
    """Finding no person says nothing about motion."""
    video = put(store, NAME, 31, RULES)
    video.labels.detect(MotionDetector())
    for labels in ("person", "motion & person"):
        with pytest.raises(ForbiddenError, match=r"examined for person from frame 0 on"):
            video.policy.decay(labels, codec="h264")
    assert store[NAME].info.digest == video.info.digest
    video.labels.mark_examined(range(120), Source("people", parameters={"label": "person"}))
    done = video.policy.decay("person", codec="h264")
    assert done.new_size < done.size


def test_gaps_are_measured_in_seconds(store: Store) -> None:
    """Many frames in one moment, then one every other second: two per second on average, but
    with gaps."""
    pts = [*range(30), *range(60, 600, 60)]
    pictures = np.zeros((len(pts), 48, 64, 3), np.uint8)
    video = store.write("a.mp4", pictures, time_base=Fraction(1, 30), pts=pts)
    video.labels.add([Detection(0, "car", (0.0, 0.0, 9.0, 9.0))], "me")
    video.labels.mark_examined([0, 15, *range(29, len(pts))], "me")
    assert (
        find_roi_areas(store.catalog, video.info, context_of(video).table, "car").mask(15)
        is not None
    )
    video.labels.remove(source="me")
    video.labels.add([Detection(0, "car", (0.0, 0.0, 9.0, 9.0))], "me")
    video.labels.mark_examined([*range(30), *range(31, len(pts))], "me")
    with pytest.raises(ForbiddenError, match="from frame 30 on"):
        find_roi_areas(store.catalog, video.info, context_of(video).table, "car")


@pytest.mark.thorough
def test_labels_added_during_decay_are_not_lost(store: Store) -> None:
    video = put(store, NAME, 31, RULES)
    label(video)
    late = Detection(60, "truck", (100.0, 10.0, 150.0, 60.0))

    def see(what: str, done: int, total: int) -> None:
        if what == "comparing" and done == total:
            store[NAME].labels.add([late], "others")

    with pytest.raises(OutdatedError, match="the boxes of"):
        video.policy.decay("car|truck", codec="h264", on_progress=see)
    assert store[NAME].info.digest == video.info.digest
    done = video.policy.decay("car|truck", codec="h264")
    assert done.new_size < done.size


def test_kept_areas_are_padded_boxes(store: Store) -> None:
    video = store.ingest(FOLDER / "portrait.mp4")
    media = video.original.media
    assert media.rotation == 90
    # Half a second is three frames at first, and later less than one.
    appear = [number * SECOND // 7 for number in range(11)]
    appear += [appear[10] + number * SECOND for number in range(1, 5)]
    shown = np.array([round(tick / SECOND / media.time_base) for tick in appear])
    boxes = np.array([[30.0, 50.0, 40.0, 60.0]])
    for kept, frames in (
        (5, range(1, 10)),
        (9, range(5, 11)),
        (10, range(6, 12)),
        (12, range(11, 14)),
    ):
        areas = RoiAreas(media, np.array([kept]), boxes, shown)
        assert [at for at in range(14) if areas.mask(at) is not None] == list(frames)
    areas = RoiAreas(media, np.array([10]), boxes, shown)
    for frame in (7, 10, 11):
        mask = areas.mask(frame)
        assert mask is not None
        assert mask.shape == (media.height, media.width)
        # Rotated upright, the box with a margin of 16 pixels is covered, and little else.
        upright = np.rot90(mask, -1)
        assert upright[34:76, 14:56].all()
        assert np.count_nonzero(mask) <= (42 + 30) ** 2
