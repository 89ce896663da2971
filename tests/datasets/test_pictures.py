"""Data sets of pictures: content, splits, and what pycocotools and trainers make of them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
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


@pytest.mark.parametrize(
    ("size", "sides"),
    [((64, 48), {(64, 48)}), (90, {(120, 90), (90, 120)}), ((128, 0), {(128, 96), (128, 170)})],
)
def test_stretched_pictures(
    videos: list[Video], tmp_path: Path, size: Any, sides: set[tuple[int, int]]
) -> None:
    some = videos[:2]
    out = tmp_path / "set"
    export_pictures(some, out, "coco", every=5, size=size, split="1", picture="png")
    part = json.loads((out / "annotations/train.json").read_text())
    assert {(one["width"], one["height"]) for one in part["images"]} == sides
    known = by_name(some)
    names = {one["id"]: one["name"] for one in part["videos"]}
    for image in part["images"]:
        video = known[names[image["video_id"]]]
        path = out / "images/train" / image["file_name"]
        exact = video.frames([image["frame_index"]], size=size, psnr=math.inf).data[0]
        np.testing.assert_array_equal(cv2.imread(str(path))[:, :, ::-1], exact)  # type: ignore[index]
        rows = video.labels.query(frames=[image["frame_index"]]).columns()
        expected = [
            [
                Fraction(edge) * new / old
                for edge, new, old in zip(box, (w, h) * 2, old, strict=True)
            ]
            for w, h in [(image["width"], image["height"])]
            for old in [(video.width, video.height) * 2]
            for box in rows.clipped(video.width, video.height).boxes.tolist()
        ]
        found = [
            [one["bbox"][0], one["bbox"][1], *np.add(one["bbox"][:2], one["bbox"][2:])]
            for one in part["annotations"]
            if one["image_id"] == image["id"]
        ]
        np.testing.assert_allclose(found, np.array(expected, float), rtol=1e-15, atol=1e-13)


def test_labels_of_stretched_pictures_stay_the_same(videos: list[Video], tmp_path: Path) -> None:
    """YOLO's labels are shares of the picture."""
    plain, scaled = tmp_path / "plain", tmp_path / "scaled"
    export_pictures(videos, plain, "yolo", split=SPLIT, images="none")
    export_pictures(videos, scaled, "yolo", split=SPLIT, images="none", size=(100, 30))
    paths = sorted(path.relative_to(plain) for path in plain.rglob("*.txt"))
    assert paths
    for path in paths:
        assert (scaled / path).read_text() == (plain / path).read_text()


@pytest.mark.parametrize("size", [96, (160, 64), (97, 101)])
def test_letterboxed_pictures(videos: list[Video], tmp_path: Path, size: Any) -> None:
    """The frame keeps its shape and lies in the middle, and boxes lie on the same pixels."""
    width, height = size if isinstance(size, tuple) else (size, size)
    some = videos[:2]
    for format in ("coco", "yolo"):
        export_pictures(
            some,
            tmp_path / format,
            format,
            size=size,
            letterbox=True,
            split="1",
            every=5,
            picture="png",
        )
    part = json.loads((tmp_path / "coco/annotations/train.json").read_text())
    assert {(one["width"], one["height"]) for one in part["images"]} == {(width, height)}
    classes = {one["id"]: one["name"] for one in part["categories"]}
    for video in some:
        scale = min(width / video.width, height / video.height)
        inner = round(video.width * scale), round(video.height * scale)
        left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
        pixels = video.frames([5], size=inner, psnr=math.inf).data[0]
        for format in ("coco", "yolo"):
            path = tmp_path / format / "images/train" / video.name / "000005.png"
            picture = cv2.imread(str(path))
            assert picture is not None
            assert picture.shape == (height, width, 3)
            within = (slice(top, top + inner[1]), slice(left, left + inner[0]))
            np.testing.assert_array_equal(picture[within][:, :, ::-1], pixels)
            picture[within] = 114
            assert (picture == 114).all()
        (image,) = [
            one for one in part["images"] if one["file_name"].endswith(video.name + "/000005.png")
        ]
        rows = video.labels.query(frames=[5]).columns().clipped(video.width, video.height)
        expected = [
            (
                label,
                [
                    edge * new / old + margin
                    for edge, new, old, margin in zip(
                        box,
                        inner * 2,
                        (video.width, video.height) * 2,
                        (left, top) * 2,
                        strict=True,
                    )
                ],
            )
            for label, box in zip(rows.labels, rows.boxes.tolist(), strict=True)
        ]
        found = [
            (
                classes[one["category_id"]],
                [*one["bbox"][:2], *np.add(one["bbox"][:2], one["bbox"][2:])],
            )
            for one in part["annotations"]
            if one["image_id"] == image["id"]
        ]
        lines = (
            (tmp_path / "yolo/labels/train" / video.name / "000005.txt").read_text().splitlines()
        )
        names = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())["names"]
        shares = [
            (
                names[int(number)],
                [
                    (x - w / 2) * width,
                    (y - h / 2) * height,
                    (x + w / 2) * width,
                    (y + h / 2) * height,
                ],
            )
            for number, *rest in map(str.split, lines)
            for x, y, w, h in [map(float, rest)]
        ]
        for got in (found, shares):
            assert [label for label, _ in got] == [label for label, _ in expected]
            np.testing.assert_allclose(
                [box for _, box in got], [box for _, box in expected], rtol=0, atol=1e-9
            )


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
        {"format": "coco", "letterbox": True},
        {"format": "coco", "size": (96, 0), "letterbox": True},
        {"format": "coco", "size": (0, 0)},
        {"format": "yolo", "size": 96, "images": "link", "mount": "/mnt/v"},
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


def test_pycocotools_matches_the_boxes_of_scaled_pictures(
    videos: list[Video], tmp_path: Path
) -> None:
    """Overlaps of boxes, and areas by the scale, are those of the full pictures."""
    coco, mask = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.mask")
    export_pictures(videos[:1], tmp_path / "full", "coco", images="none")
    export_pictures(videos[:1], tmp_path / "half", "coco", images="none", size=(160, 120))
    export_pictures(videos[:1], tmp_path / "box", "coco", images="none", size=160, letterbox=True)
    full, half, box = (
        coco.COCO(str(tmp_path / name / "annotations/train.json"))
        for name in ("full", "half", "box")
    )
    assert full.getAnnIds() == half.getAnnIds() == box.getAnnIds()
    for number in full.getAnnIds():
        whole, small, moved = (one.loadAnns([number])[0] for one in (full, half, box))
        assert small["area"] == whole["area"] / 4 == moved["area"]
        assert moved["bbox"] == [small["bbox"][0], small["bbox"][1] + 20, *small["bbox"][2:]]
        doubled = np.multiply([small["bbox"]], 2)
        assert mask.iou(doubled, np.array([whole["bbox"]], float), [0])[0][0] == 1


@pytest.mark.thorough
def test_ultralytics_reads_the_set(videos: list[Video], tmp_path: Path) -> None:
    utils = pytest.importorskip("ultralytics.data.utils")
    dataset = pytest.importorskip("ultralytics.data.dataset")
    export_pictures(videos, tmp_path / "set", "yolo", split=SPLIT)
    data = utils.check_det_dataset(tmp_path / "set/data.yaml", autodownload=False)
    found = dataset.YOLODataset(img_path=data["train"], data=data, task="detect", augment=False)
    assert (len(found), sum(len(one["cls"]) for one in found.labels)) == (44, 10)


@pytest.mark.thorough
def test_ultralytics_letterboxes_alike(videos: list[Video], tmp_path: Path) -> None:
    """Its own letterbox of a full picture has the same margins, and boxes within a pixel."""
    augment = pytest.importorskip("ultralytics.data.augment")
    utils = pytest.importorskip("ultralytics.data.utils")
    dataset = pytest.importorskip("ultralytics.data.dataset")
    size = 160
    export_pictures(
        videos, tmp_path / "set", "yolo", split=SPLIT, size=size, letterbox=True, picture="png"
    )
    data = utils.check_det_dataset(tmp_path / "set/data.yaml", autodownload=False)
    found = dataset.YOLODataset(
        img_path=data["train"], data=data, task="detect", augment=False, imgsz=size
    )
    assert {one["shape"] for one in found.labels} == {(size, size)}
    assert (len(found), sum(len(one["cls"]) for one in found.labels)) == (44, 10)
    for video in videos[:1]:
        whole = video.frames([5], psnr=math.inf).data[0][:, :, ::-1]
        theirs = augment.LetterBox((size, size), auto=False)(image=np.ascontiguousarray(whole))
        ours = cv2.imread(str(tmp_path / "set/images/train" / video.name / "000005.png"))
        assert ours is not None
        np.testing.assert_array_equal((ours == 114).all(2).all(1), (theirs == 114).all(2).all(1))
        assert cv2.PSNR(ours, theirs) > 20
