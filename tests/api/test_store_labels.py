"""Boxes of many videos: `Store.detections`, by brute force over the videos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.detections import Source
from vfsd.errors import NotFoundError, OutOfRangeError, UnknownLabelWarning, UsageError
from vfsd.maintenance import fsck

NAMES = ("cam1/a.mp4", "cam1/b.mkv", "cam2/c.mp4")
BOX = (10, 20, 60, 50)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as store:
        for name, clip in zip(NAMES, ("traffic.mp4", "open-gop.mkv", "traffic.mp4"), strict=True):
            video = store.ingest(FOLDER / clip, name)
            last = len(video) - 1
            video.labels.add_box(0, "car", BOX, 0.5, 1, source=Source("net", "v8"))
            video.labels.add_box(last, "truck", BOX, source=Source("net", "v8"))
            video.labels.add([(0, "red", BOX), (5, "car", (100, 100, 120, 140))], "anna")
        yield store


CASES: list[dict[str, Any]] = [
    {},
    {"labels": "car"},
    {"labels": "car & not red"},
    {"labels": "car|truck", "source": "net"},
    {"labels": "car", "region": (90, 90, 200, 200)},
    {"labels": "car", "span": (0, 0.1)},
    {"min_confidence": 0.4},
    {"names": "cam1/*"},
    {"names": ["cam2/c.mp4", "cam1/a.mp4"], "labels": "car|red"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_are_those_of_each_video(store: Store, case: dict[str, Any]) -> None:
    names = case.get("names", list(NAMES))
    rest = {key: value for key, value in case.items() if key != "names"}
    expected = [
        (video.name, box) for video in store.named(names) for box in video.labels.query(**rest)
    ]
    found = store.detections(**case)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert bool(found) == bool(expected)
    counted = Counter((box.label, box.source, name) for name, box in expected)
    every = found.counts(["label", "source", "video"])
    assert {one[:3]: one.boxes for one in every} == counted
    by_label = {one.label: one.boxes for one in found.counts(["label"])}
    assert by_label == Counter(box.label for _, box in expected)
    assert all(one.source is not None and one.video is None for one in found.counts())


def test_spans_and_names_outside(store: Store) -> None:
    with pytest.raises(OutOfRangeError):
        list(store.detections(span=(1000, 1001)))
    with pytest.raises(NotFoundError):
        list(store.detections(names="cam9/*"))
    with pytest.raises(UsageError, match="by must be"):
        store.detections().counts(["frame"])
    with pytest.raises(UsageError, match="confidence must be"):
        store.detections(min_confidence="high")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.detections(regoin=BOX)  # type: ignore[call-arg]
    with pytest.warns(UnknownLabelWarning, match="lorry"):
        assert not store.detections("lorry")


def test_counts_follow_videos(store: Store) -> None:
    store.remove("cam1/a.mp4")
    assert sum(one.boxes for one in store.detections().counts()) == 8
    store.move("cam2/c.mp4", "cam3/d.mp4")
    names = [one.video for one in store.detections("truck").counts(["video"])]
    assert sorted(map(str, names)) == ["cam1/b.mkv", "cam3/d.mp4"]


def test_fsck_repairs_counts(store: Store) -> None:
    with store.catalog.writing() as change:
        video = store["cam2/c.mp4"].info
        label = change.detections.known_labels(["car"])["car"]
        change.box_counts.add(video.id, change.detections.known_sources("anna")[0], {label: 7})
    (found,) = fsck.run(store.parts)
    assert (found.check, found.repaired) == ("boxes", False)
    assert "cam2/c.mp4" in found.message
    assert [one.repaired for one in fsck.run(store.parts, repair=True)] == [True]
    assert fsck.run(store.parts) == []
