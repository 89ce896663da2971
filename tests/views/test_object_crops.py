"""``objects/``: the detected objects of a video, as image files and clips."""

from __future__ import annotations

import io

import av
import cv2
import numpy as np
import pytest

from sample_videos import FOLDER, GroundTruth
from tests.views.conftest import Shelf
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.core.pixel_array import Pixels
from vfsd.errors import NotFoundError

NAME = "traffic.mp4"


def fill(shelf: Shelf) -> tuple[Video, str]:
    """Add the known boxes of a video; return the most frequent label."""
    video = shelf.video(NAME)
    truth = GroundTruth.load(FOLDER / NAME)
    video.labels.add(
        [
            Detection(frame, box.label, (box.x1, box.y1, box.x2, box.y2), None, box.track)
            for frame, boxes in enumerate(truth.boxes)
            for box in boxes
        ],
        "truth",
    )
    return video, max(video.labels.summary(), key=lambda one: one.boxes).label


def names(shelf: Shelf, path: str) -> list[str]:
    return [name for name, _ in shelf.views.list(shelf.video(NAME).info.ino, path)]


def picture(data: bytes) -> Pixels:
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert found is not None
    return found[..., ::-1]


def test_each_box_has_an_image(fresh: Shelf) -> None:
    video, label = fill(fresh)
    assert names(fresh, "objects") == [one.label for one in video.labels.summary()]
    files = names(fresh, f"objects/{label}")
    assert files[0] == "tracks"
    crops = list(video.scan(label).crops())
    assert len(files) - 1 == len(crops)
    for name, crop in list(zip(files[1:], crops, strict=True))[::9]:
        data = fresh.read(NAME, f"objects/{label}/{name}")
        assert np.array_equal(picture(data), crop.data)
        array = np.load(io.BytesIO(fresh.read(NAME, f"objects/{label}/{name[:-4]}.npy")))
        assert np.array_equal(array, crop.data)
    jpeg = fresh.read(NAME, f"objects/{label}/{files[1][:-4]}.jpg")
    assert np.abs(picture(jpeg).astype(int) - crops[0].data).mean() < 8


def test_tracks_have_folders_and_clips(fresh: Shelf) -> None:
    video, label = fill(fresh)
    tracks = names(fresh, f"objects/{label}/tracks")
    number = next(name for name in tracks if name.isdigit())
    assert f"{number}.mp4" in tracks
    crops = list(video.scan(label, track=int(number)).crops())
    stills = names(fresh, f"objects/{label}/tracks/{number}")
    assert stills == [f"{crop.frame:06}.png" for crop in crops]
    data = fresh.read(NAME, f"objects/{label}/tracks/{number}/{stills[-1]}")
    assert np.array_equal(picture(data), crops[-1].data)
    clip = fresh.read(NAME, f"objects/{label}/tracks/{number}.mp4")
    with av.open(io.BytesIO(clip), "r") as container:
        frames = list(container.decode(video=0))
    assert len(frames) == crops[-1].frame - crops[0].frame + 1


def test_crops_may_come_from_tiles(fresh: Shelf) -> None:
    video, label = fill(fresh)
    video.tiles.retile(video.tiles.around(label, alpha=1.0))
    files = names(fresh, f"objects/{label}")[1:]
    crops = list(video.scan(label).crops())
    for name, crop in list(zip(files, crops, strict=True))[::15]:
        shown = picture(fresh.read(NAME, f"objects/{label}/{name}"))
        assert np.abs(shown.astype(int) - crop.data).mean() < 6


def test_undetected_objects_have_no_files(fresh: Shelf) -> None:
    _, label = fill(fresh)
    ino = fresh.video(NAME).info.ino
    for path in (
        "objects/unicorn",
        "objects/unicorn/000001-0.png",
        f"objects/{label}/999999-0.png",
        f"objects/{label}/000001-99.png",
        f"objects/{label}/000001.png",
        f"objects/{label}/tracks/123456",
        f"objects/{label}/tracks/123456.mp4",
        f"objects/{label}/tracks/x/000001.png",
        "objects/../info.json",
        "objectsfoo",
    ):
        with pytest.raises(NotFoundError):
            fresh.views.stat(ino, path)


def test_labels_with_invalid_file_name_characters(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    video.labels.add_box(3, "a/b %", (10, 10, 30, 40), source="me")
    assert names(fresh, "objects") == ["a%2Fb %25"]
    data = fresh.read(NAME, "objects/a%2Fb %25/000003-0.png")
    assert picture(data).shape == (30, 20, 3)


@pytest.mark.parametrize(("label", "name"), [(".", "%2E"), ("..", "%2E%2E")])
def test_labels_that_look_like_folders(fresh: Shelf, label: str, name: str) -> None:
    video = fresh.video(NAME)
    video.labels.add_box(3, label, (10, 10, 50, 40), source="me")
    assert names(fresh, "objects") == [name]
    assert picture(fresh.read(NAME, f"objects/{name}/000003-0.png")).shape == (30, 40, 3)
    with pytest.raises(NotFoundError):
        fresh.read(NAME, f"objects/{label}/000003-0.png")


def test_labels_too_long_for_a_name_are_not_listed(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    for label in ("car", "自" * 28, "自" * 29):  # of 252 and 261 bytes, as in URLs
        video.labels.add_box(3, label, (10, 10, 50, 40), source="me")
    assert sorted(map(len, names(fresh, "objects"))) == [3, 252]


def test_corrected_boxes_are_visible_at_once(fresh: Shelf) -> None:
    video, label = fill(fresh)
    before = names(fresh, f"objects/{label}")
    video.labels.remove(labels=label, frames=range(60))
    after = names(fresh, f"objects/{label}")
    assert len(after) < len(before)
    video.labels.remove(labels=label)
    with pytest.raises(NotFoundError):
        names(fresh, f"objects/{label}")
