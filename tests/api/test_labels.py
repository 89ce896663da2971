"""Labels of real videos in a real store: the Python API, and the label files of the footage."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import Detection, DetectionColumns, Source, Store, Video
from vfsd.core.detections import Examined
from vfsd.errors import NotFoundError, OutOfRangeError, UnknownLabelWarning, UsageError
from vfsd.labels import FORMATS, export_path, read_labels, write_labels


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")


def test_one_box_and_many(video: Video) -> None:
    video.labels.add_box(
        3, "car", (1, 2, 30.5, 40), 0.5, 7, source="people", attributes={"colour": "red"}
    )
    assert list(video.labels.query("car")) == [
        Detection(3, "car", (1, 2, 30.5, 40), 0.5, 7, Source("people"), {"colour": "red"})
    ]
    count = 50_000
    rng = np.random.default_rng(0)
    first = rng.uniform(0, 100, (count, 2))
    rows = DetectionColumns.of(
        rng.integers(0, len(video), count), "dot", np.hstack([first, first + 3])
    )
    video.labels.add(rows, Source("net", "n", "1"), examined=range(len(video)))
    assert len(video.labels.query("dot")) == count
    assert [one.label for one in video.labels.summary()] == ["car", "dot"]
    assert video.labels.sources() == [Source("people"), Source("net", "n", "1")]
    assert [one.frames for one in video.labels.examined("net")] == [range(len(video))]
    assert video.labels.remove(source="net") == count


def test_label_query_by_time_uses_the_frames_of_a_read(video: Video) -> None:
    for frame in range(len(video)):
        video.labels.add_box(frame, "x", (0, 0, 1, 1), source="s")
    for span in ((0, 0.5), (0.31, 1.007), (1, None), (0.1, 0.1)):
        found = [one.frame for one in video.labels.query(span=span)]
        if span[1] == 0.1:
            assert found == []
        else:
            assert found == list(video.frames_in(span)) == video.read(span=span).index.tolist()
    assert [one.frame for one in video.labels.query(frames=slice(-3, None))] == [
        len(video) - 3,
        len(video) - 2,
        len(video) - 1,
    ]
    with pytest.raises(OutOfRangeError, match="before the end of the video"):
        video.labels.query(span=(4, 5))
    with pytest.raises(UsageError):
        video.labels.query(span=(0, 1), frames=[1])
    with pytest.raises(OutOfRangeError):
        video.labels.add_box(len(video), "x", (0, 0, 1, 1), source="s")


def test_box_reports_its_pixels(video: Video) -> None:
    video.labels.add_box(0, "car", (-5.5, 10.2, 20.1, 9999), source="s")
    (one,) = video.labels.query()
    rect = one.rect(video.width, video.height)
    assert rect is not None
    assert (rect.x1, rect.y1, rect.x2, rect.y2) == (0, 10, 21, video.height)
    assert video.frames([0], region=rect).data.shape[1:3] == (video.height - 10, 21)
    assert Detection(0, "x", (-9, 0, -1, 5)).rect(100, 100) is None
    (cut,) = video.labels.query().columns().clipped(video.width, video.height)
    assert cut.box == (0, 10.2, 20.1, video.height)


def test_replacing_a_video_drops_its_boxes_and_moving_keeps_them(
    store: Store, video: Video
) -> None:
    video.labels.add_box(0, "car", (0, 0, 1, 1), source="s")
    store.catalog.tag(video.info, "kept")
    store.move("cam1/a.mp4", "b.mp4")
    assert len(store["b.mp4"].labels.query()) == 1
    store.ingest(FOLDER / "traffic.mp4", "b.mp4", replace=True)
    again = store.ingest(FOLDER / "portrait.mp4", "b.mp4", replace=True)
    assert len(again.labels.query()) == 0
    with pytest.raises(NotFoundError):
        video.labels.add_box(0, "car", (0, 0, 1, 1), source="s")


def test_label_files_in_python(video: Video, tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    rows = DetectionColumns.from_detections([Detection(2, "car", (0, 0, 5, 5), source=Source("s"))])
    examined = [Examined(Source("s"), range(0, 10))]
    for _, pieces in write_labels("coco", rows, examined, video.labels.clip):
        path.write_text("".join(pieces))
    found = read_labels(path, "coco", video.labels.clip)
    assert found.examined_by is not None
    video.labels.add_new(found.columns, found.examined_by)
    assert list(video.labels.query()) == list(rows)
    assert [one.frames for one in video.labels.examined("s")] == [range(0, 10)]


# ------------------------------------------------------------------------------ the footage


def clip_of(path: Path, footage: Path) -> Path | None:
    """The video that a label file belongs to."""
    stem = path.name.split(".")[0]
    return next((found for found in (footage / "real").glob(f"{stem}.*")), None)


@pytest.mark.thorough
@pytest.mark.footage
def test_label_files_of_the_footage_round_trip(store: Store, footage: Path, tmp_path: Path) -> None:
    done = 0
    for path in sorted((footage / "gt").glob("*.csv")):
        source = clip_of(path, footage)
        assert source is not None, path
        video = store.ingest(source, f"{path.stem}{source.suffix}", link=True)
        found = read_labels(path, "csv", video.labels.clip)
        video.labels.add(found.columns, None, replace=True)
        with path.open() as file:
            written = list(csv.DictReader(file))
        rows = list(video.labels.query())
        assert len(rows) == len(written)
        expected = sorted(
            (int(row["frame"]), row["label"], *(float(row[k]) for k in ("x1", "y1", "x2", "y2")))
            for row in written
        )
        assert sorted((one.frame, one.label, *one.box) for one in rows) == expected
        for format in FORMATS:
            folder = tmp_path / path.stem / format
            folder.mkdir(parents=True)
            target = folder if format in ("yolo", "voc") else folder / "labels"
            for name, pieces in write_labels(
                format, video.labels.query().columns(), [], video.labels.clip
            ):
                file_path = export_path(target, format, name)
                file_path.write_text("".join(pieces), encoding="utf-8", newline="")
            again = read_labels(target, format, video.labels.clip).columns
            # Formats of tracks list one track after another.
            assert Counter((a.frame, a.label, a.box, a.confidence, a.track) for a in again) == (
                Counter((a.frame, a.label, a.box, a.confidence, a.track) for a in rows)
            ), format
            shutil.rmtree(folder)
        done += 1
    assert done >= 12


@pytest.mark.slow
def test_import_of_many_boxes_by_the_command_line(tmp_path: Path, video: Video) -> None:
    """Another process imports them while this one has the store open."""
    path = tmp_path / "many.csv"
    count = 50_000
    with path.open("w") as file:
        file.write("frame,label,x1,y1,x2,y2,confidence\n")
        for at in range(count):
            file.write(f"{at * len(video) // count},car,{at % 300},{at % 200}.5,301,201,0.5\n")
    words = ["labels", "import", "cam1/a.mp4", str(path), "--json"]
    store = str(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-m", "vfsd", "-s", store, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(video.labels.query("car")) == count


def test_expressions_are_parsed_in_python(video: Video) -> None:
    video.labels.add_box(3, "car", (0, 0, 8, 8), source="a")
    video.labels.add_box(5, "person", (0, 0, 8, 8), source="a")
    assert [one.frame for one in video.labels.query("car|person")] == [3, 5]
    assert [one.frame for one in video.labels.query("car & person")] == []


def test_unknown_label_warns(video: Video) -> None:
    video.labels.add_box(3, "car", (0, 0, 8, 8), source="a")
    text = "the store has no label 'car near person for 2 s'; it has car"
    with pytest.warns(UnknownLabelWarning, match=text):
        assert list(video.labels.query("car near person for 2 s")) == []
    with pytest.warns(UnknownLabelWarning, match="'truck'"):
        assert len(video.labels.query(["car", "truck"])) == 1


ADDED = [(1, "bus", (2.0, 2.5, 6.0, 8.5), None, 4), (3, "car", (1.0, 1.5, 5.0, 7.0), 0.5, None)]
NAMES = ("frame", "label", "box", "confidence", "track")


def as_structured_array() -> Any:
    kinds = [("frame", "i4"), ("label", "U8"), ("box", "f4", 4), ("confidence", "f8")]
    rows = [(one[0], one[1], one[2], np.nan if one[3] is None else one[3]) for one in ADDED]
    return np.array(rows, kinds)


def as_corners() -> dict[str, Any]:
    corners = np.array([one[2] for one in ADDED]).T
    return {
        "frame": np.array([one[0] for one in ADDED]),
        "label": [one[1] for one in ADDED],
        **dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True)),
        "track": [4, None],
        "confidence": [None, 0.5],
        "name": ["cam1/a.mp4"] * 2,
    }


PLAIN: list[Any] = [
    ADDED,
    [list(one) for one in ADDED],
    [dict(zip(NAMES, one, strict=True)) for one in ADDED],
    [{k: v for k, v in zip(NAMES, one, strict=True) if v is not None} for one in ADDED],
    dict(zip(NAMES, zip(*ADDED, strict=True), strict=True)),
    as_corners(),
    as_structured_array(),
]


def test_boxes_from_plain_values(video: Video) -> None:
    for boxes in PLAIN:
        assert video.labels.add(boxes, "me", replace=True) == 2
        found = [
            (one.frame, one.label, one.box, one.confidence, one.track)
            for one in video.labels.query()
        ]
        count = 4 if isinstance(boxes, np.ndarray) else 5  # that array has no tracks
        assert [one[:count] for one in found] == [one[:count] for one in ADDED]
    four = np.array([[1, 2, 3, 4], [5, 6, 7.5, 8]])
    assert video.labels.add({"frame": np.arange(2), "label": "car", "box": four}, "net") == 2
    assert np.array_equal(video.labels.query("car", source="net").columns().boxes, four)


FOUR = (1, 2, 3, 4)
MALFORMED: list[tuple[Any, str]] = [
    ({"frame": [1], "label": "car"}, "no column 'x1'"),
    ({"frames": [1], "label": "car", "box": [FOUR]}, "no column 'frames'"),
    ({"frame": [1, 2], "label": "car", "box": [FOUR]}, "boxes must be one for each"),
    ([{"frame": 1, "label": "car", "box": FOUR}, {"frame": 2, "label": "car"}], "boxes must be"),
    ([{"frame": None, "label": "car", "box": FOUR}], "frames must be whole numbers"),
    ({"frame": [1], "label": "car", "x1": [1], "y1": [2], "x2": [3], "y2": [4, 5]}, "as many"),
    ({"frame": [1], "label": "car", "box": [FOUR], "source": ["a"]}, "no column 'source'"),
    ({"frame": [1], "label": "car", "box": [FOUR], "name": ["b.mp4"]}, "of 'cam1/a.mp4'"),
    ([(1, "car")], "3 to 5 values"),
]


def test_malformed_plain_values_are_refused(video: Video) -> None:
    for boxes, words in MALFORMED:
        with pytest.raises(UsageError, match=words):
            video.labels.add(boxes, "me")
    assert len(video.labels.query()) == 0
