"""Boxes as objects of supervision and FiftyOne."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vfsd.api.video import Video
from vfsd.datasets.objects import export_fiftyone, to_fiftyone, to_supervision
from vfsd.errors import ExistsError, ExtraMissingError, UsageError
from vfsd.labels import from_supervision


def test_supervision(videos: list[Video]) -> None:
    supervision = pytest.importorskip("supervision")
    query = videos[0].labels.query("car|person", frames=5)
    found = to_supervision(query, classes=["person", "truck", "car"])
    assert isinstance(found, supervision.Detections)
    assert found.data["class_name"].tolist() == ["car", "person"]
    assert found.class_id.tolist() == [2, 0]
    assert found.tracker_id.tolist() == [0, 7]
    assert found.confidence is None, "one of them has none"
    again = from_supervision(found, 5)
    assert [(one.frame, one.label, one.box, one.track) for one in again] == [
        (one.frame, one.label, one.box, one.track) for one in query
    ]
    car = to_supervision(videos[0].labels.query("car", frames=5))
    assert car.confidence.tolist() == [0.5]
    assert len(to_supervision([])) == 0
    with pytest.raises(UsageError, match="classes must contain 'car'"):
        to_supervision(query, classes=["person"])


@pytest.mark.parametrize("package", ["supervision", "fiftyone"])
def test_missing_packages(
    videos: list[Video], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissingError, match=f"{package} is not installed"):
        to_supervision([]) if package == "supervision" else to_fiftyone(videos, "a", mount="/mnt")


class Fake(SimpleNamespace):
    """A document of FiftyOne: the real ones need a database only when they are saved."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.frames: dict[int, Any] = {}


class FakeDataset:
    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[Any] = []

    def add_samples(self, samples: list[Any]) -> None:
        self.samples += samples


def test_fiftyone(videos: list[Video], monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("Sample", "VideoMetadata", "Detection", "Detections", "Frame")
    fake = SimpleNamespace(Dataset=FakeDataset, **dict.fromkeys(kinds, Fake))
    monkeypatch.setitem(sys.modules, "fiftyone", fake)
    dataset = to_fiftyone(videos[:2], "cars", labels="car|person", mount="/mnt/v", field="boxes")
    sample = dataset.samples[0]
    assert sample.filepath == "/mnt/v/cam1/traffic.mp4"
    assert (sample.metadata.total_frame_count, sample.metadata.frame_rate) == (120, 30)
    assert sorted(sample.frames) == [1, 6, 21], "frames count from 1"
    frame = sample.frames[6]
    assert frame.filepath == "/mnt/v/cam1/traffic.mp4@/frames/000005.jpg"
    car, person = frame.boxes.detections
    assert (car.label, car.confidence, car.index) == ("car", 0.5, 0)
    assert np.allclose(car.bounding_box, [10 / 320, 20.5 / 240, 50.25 / 320, 29.5 / 240])
    assert person.bounding_box[0] == 0, "boxes are clipped at the edge"
    with pytest.raises(UsageError, match="mounted"):
        to_fiftyone(videos, "cars")


def test_fiftyone_directory(videos: list[Video], tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert export_fiftyone(videos, out, labels="car", mount="/mnt/v") == 4
    index = json.loads((out / "manifest.json").read_text())["index"]
    assert index[0] == {"data": "/mnt/v/cam1/traffic.mp4", "labels": "labels/000000.json"}
    frames = json.loads((out / "labels/000000.json").read_text())["frames"]
    assert sorted(map(int, frames)) == [1, 6, 21]
    with pytest.raises(ExistsError):
        export_fiftyone(videos, out, mount="/mnt/v")


def test_fiftyone_reads_the_directory(videos: list[Video], tmp_path: Path) -> None:
    """The importer of FiftyOne, which needs no database, finds videos and boxes."""
    importers = pytest.importorskip("fiftyone.utils.data.importers")
    export_fiftyone(videos, tmp_path / "set", labels="car", mount="/mnt/v")
    importer = importers.FiftyOneVideoLabelsDatasetImporter(str(tmp_path / "set"))
    importer.setup()
    path, _, _, frames = next(iter(importer))
    assert path == "/mnt/v/cam1/traffic.mp4"
    (box,) = frames[6]["objects"].detections
    assert (box.label, box.index) == ("car", 0)
    assert box.bounding_box == pytest.approx([10 / 320, 20.5 / 240, 50.25 / 320, 29.5 / 240])
