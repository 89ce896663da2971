"""Data sets of pictures: content, splits, and what pycocotools and trainers make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from sample_videos import FOLDER
from tests.datasets.conftest import CLIPS, NET
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.datasets import export_pictures, split_videos
from vfsd.errors import ExistsError, UsageError
from vfsd.labels import LabelReadOptions, names_for, read_labels

SPLIT = {"val": ["cam1/portrait.mp4"], "test": ["cam1/open-gop.mkv"]}


def by_name(videos: list[Video]) -> dict[str, Video]:
    return {video.name: video for video in videos}


def test_coco_files_and_pictures(videos: list[Video], tmp_path: Path) -> None:
    out = tmp_path / "set"
    made = export_pictures(videos, out, "coco", split=SPLIT, every=5)
    assert made.classes == ("car", "person", "red")
    assert {
        name: (len(one.videos), one.pictures, one.boxes) for name, one in made.splits.items()
    } == {
        "train": (2, 12, 10),
        "val": (1, 6, 5),
        "test": (1, 6, 5),
    }
    parts = {
        split: json.loads((out / "annotations" / f"{split}.json").read_text())
        for split in made.splits
    }
    for key in ("videos", "images", "annotations"):
        ids = [one["id"] for part in parts.values() for one in part[key]]
        assert len(set(ids)) == len(ids), f"the parts can be joined by {key}"
    assert len({json.dumps(part["categories"]) for part in parts.values()}) == 1
    known = by_name(videos)
    for split, part in parts.items():
        names = {one["id"]: one["name"] for one in part["videos"]}
        for image in part["images"]:
            video = known[names[image["video_id"]]]
            picture = (out / "images" / split / image["file_name"]).read_bytes()
            frame = image["frame_index"]
            with video.views.open(f"frames/{frame:06}.jpg") as file:
                assert picture == file.read(), "the picture is that of the mount"
            shape = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR).shape  # type: ignore[union-attr]
            assert shape == (image["height"], image["width"], 3)


def test_boxes_are_clipped_and_imported_again(videos: list[Video], tmp_path: Path) -> None:
    export_pictures(videos, tmp_path / "set", "coco", split=SPLIT)
    video = videos[0]
    found = read_labels(tmp_path / "set/annotations/train.json", "coco", video.labels.clip)
    expected = video.labels.query().columns().clipped(video.width, video.height)
    assert sorted(map(str, found.columns)) == sorted(map(str, expected))
    assert len(expected) == 5
    assert found.examined_by is not None
    assert [one.frames for one in found.examined_by] == [range(0, 21)]


def test_yolo_labels_are_imported_again(videos: list[Video], tmp_path: Path) -> None:
    out = tmp_path / "set"
    export_pictures(videos, out, "yolo", labels="car|person", split=SPLIT, images="none")
    config = yaml.safe_load((out / "data.yaml").read_text())
    assert config == {
        "train": "images/train",
        "val": "images/val",
        "test": "images/test",
        "names": {0: "car", 1: "person"},
    }
    video = by_name(videos)["cam1/open-gop.mkv"]
    options = LabelReadOptions(names=names_for("yolo", out / "data.yaml"))
    folder = out / "labels/test/cam1/open-gop.mkv"
    found = read_labels(folder, "yolo", video.labels.clip, options)
    rows = video.labels.query("car|person").columns().clipped(video.width, video.height)
    assert [(one.frame, one.label, one.box) for one in found.columns] == [
        (one.frame, one.label, one.box) for one in rows.sorted_by_frame()
    ]
    for path in folder.iterdir():
        assert all(len(line.split()) == 5 for line in path.read_text().splitlines())
    # Frame 25 has another label only, so it is an example without objects.
    assert (folder / "000025.txt").read_text() == ""
    assert len(list(folder.iterdir())) == 22


@pytest.mark.parametrize(
    ("frames", "every", "expected"),
    [
        ("examined", 1, [*range(21), 25]),
        ("examined", 4, [0, 4, 8, 12, 16, 20]),
        ("boxes", 1, [0, 5, 20]),
        ("boxes", 10, [0, 20]),
        ("all", 10, range(0, 120, 10)),
    ],
)
def test_choice_of_frames(
    videos: list[Video], tmp_path: Path, frames: str, every: int, expected: Any
) -> None:
    out = tmp_path / "set"
    export_pictures(
        videos[:1], out, "yolo", labels="car", frames=frames, every=every, images="none"
    )
    folder = out / "labels/train/cam1/traffic.mp4"
    assert sorted(int(path.stem) for path in folder.iterdir()) == list(expected)


def test_span_and_source(videos: list[Video], tmp_path: Path) -> None:
    video = videos[0]
    video.labels.add([Detection(3, "lorry", (0, 0, 8, 8))], "other")
    made = export_pictures(
        [video], tmp_path / "set", "coco", source=NET, span=(0, 0.5), images="none"
    )
    assert made.classes == ("car", "person")
    video.labels.remove(source="other")
    assert made.splits["train"].pictures == 15


def test_links_lead_into_the_mount(videos: list[Video], tmp_path: Path) -> None:
    out = tmp_path / "set"
    export_pictures(videos, out, "yolo", split=SPLIT, images="link", mount="/mnt/v", picture="png")
    link = out / "images/val/cam1/portrait.mp4/000005.png"
    assert link.readlink() == Path("/mnt/v/cam1/portrait.mp4@/frames/000005.png")
    # Trainers find labels by the last folder of that name.
    assert (out / "images/train/cam1/images_/odd-size.webm/000005.png").is_symlink()
    assert (out / "labels/train/cam1/images_/odd-size.webm/000005.txt").is_file()
    with pytest.raises(UsageError, match="links need a mounted store"):
        export_pictures(videos, tmp_path / "other", "yolo", images="link")
    assert not (tmp_path / "other").exists()


def test_nothing_is_left_of_a_stopped_export(videos: list[Video], tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    seen = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 30:
            raise StopError

    folder = tmp_path / "sets"
    folder.mkdir()
    with pytest.raises(StopError):
        export_pictures(videos, folder / "set", "coco", on_progress=stop)
    assert list(folder.iterdir()) == []
    assert seen == [(number, 88) for number in range(1, 31)]
    (folder / "set").mkdir()
    (folder / "set/old.txt").touch()
    with pytest.raises(ExistsError):
        export_pictures(videos, folder / "set", "coco")


def test_split_by_shares(full: Store, videos: list[Video]) -> None:
    def names(split: str, seed: int = 0, of: list[Video] = videos) -> list[list[str]]:
        return [[video.name for video in part] for part in split_videos(of, split, seed).values()]

    assert [len(part) for part in names("0.5/0.25/0.25")] == [2, 1, 1]
    assert [len(part) for part in names("0.98/0.01/0.01")] == [2, 1, 1], "no split is empty"
    assert [len(part) for part in names("1")] == [4, 0, 0]
    assert [len(part) for part in names("80/20")] == [3, 1, 0]
    assert names("0.5/0.25/0.25") == names("0.5/0.25/0.25")
    assert {name for part in names("0.5/0.25/0.25", 3) for name in part} == {
        f"cam1/{one}" for one in CLIPS
    }
    assert len({str(names("0.5/0.25/0.25", seed)) for seed in range(9)}) > 3
    copy = full.ingest(FOLDER / "traffic.mp4", "cam2/copy.mp4")
    for seed in range(9):
        parts = names("0.5/0.25/0.25", seed, [*videos, copy])
        (place,) = [part for part in parts if "cam2/copy.mp4" in part]
        assert "cam1/traffic.mp4" in place, "copies stay together"
    full.remove("cam2", recursive=True)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ("0.8/x", "shares"),
        ("0/0", "shares"),
        ("1/1/1/1", "shares"),
        ("-1/2", "shares"),
        ({"dev": []}, "split must be"),
        ({"val": ["cam9/a.mp4"]}, "not among the selected"),
        ({"val": ["cam1/traffic.mp4"], "test": ["cam1/traffic.mp4"]}, "two splits"),
    ],
)
def test_malformed_splits(videos: list[Video], split: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        split_videos(videos, split)


@pytest.mark.parametrize(
    "options",
    [
        {"format": "voc"},
        {"format": "coco", "images": "some"},
        {"format": "coco", "picture": "gif"},
        {"format": "coco", "frames": "some"},
        {"format": "coco", "every": 0},
    ],
)
def test_malformed_arguments(videos: list[Video], tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        export_pictures(videos, tmp_path / "set", **options)
    with pytest.raises(UsageError, match="at least one video"):
        export_pictures([], tmp_path / "set", "coco")


def test_pycocotools_reads_the_set(videos: list[Video], tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    export_pictures(videos, tmp_path / "set", "coco", split=SPLIT, images="none")
    found = coco.COCO(str(tmp_path / "set/annotations/train.json"))
    assert len(found.getImgIds()) == 44
    assert [one["name"] for one in found.loadCats(found.getCatIds())] == ["car", "person", "red"]
    (person,) = found.loadAnns(found.getAnnIds(catIds=[2], imgIds=[6]))
    assert person["bbox"] == [0, 20, 30, 220]


@pytest.mark.thorough
def test_ultralytics_reads_the_set(videos: list[Video], tmp_path: Path) -> None:
    utils = pytest.importorskip("ultralytics.data.utils")
    dataset = pytest.importorskip("ultralytics.data.dataset")
    export_pictures(videos, tmp_path / "set", "yolo", split=SPLIT)
    data = utils.check_det_dataset(tmp_path / "set/data.yaml", autodownload=False)
    found = dataset.YOLODataset(img_path=data["train"], data=data, task="detect", augment=False)
    assert (len(found), sum(len(one["cls"]) for one in found.labels)) == (44, 10)
