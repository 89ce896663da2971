"""Files of CVAT and Label Studio, as these programs read and write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.detections import CLIP, read, write
from vfsd.core.detections import Detection, DetectionColumns
from vfsd.errors import UsageError
from vfsd.labels import (
    LabelExport,
    LabelWriteOptions,
    format_of,
    unsupported_content,
    write_dataset,
)

ROWS = [
    Detection(3, "car", (10.0, 20.5, 110.25, 60.0), 0.5, 7, None, {"occluded": 1}),
    Detection(4, "car", (11.0, 20.5, 111.25, 60.0), None, 7),
    Detection(9, "car", (12.0, 20.5, 112.25, 60.0), None, 7),
    Detection(4, "person", (0.0, 0.0, 5.0, 5.0)),
    Detection(39, "person", (0.0, 0.0, 5.0, 5.0), None, 0),
]


def test_cvat_tracks_end_with_an_outside_box(tmp_path: Path) -> None:
    path = write(tmp_path, "cvat", ROWS, [])
    root = ElementTree.parse(path).getroot()
    tracks = {
        (track.get("label"), track.get("id")): [
            (int(box.get("frame") or ""), box.get("outside")) for box in track.iterfind("box")
        ]
        for track in root.iterfind("track")
    }
    assert tracks == {
        ("car", "7"): [(3, "0"), (4, "0"), (5, "1"), (9, "0"), (10, "1")],
        ("person", "-3"): [(4, "0"), (5, "1")],
        ("person", "0"): [(39, "0")],
    }
    names = [one.text for one in root.iterfind("meta/task/labels/label/name")]
    assert names == ["car", "person"]
    assert root.findtext("meta/task/original_size/width") == str(CLIP.width)


def test_cvat_files_are_recognised(tmp_path: Path) -> None:
    path = write(tmp_path, "cvat", ROWS, []).rename(tmp_path / "a.xml")
    assert format_of(path) == "cvat"
    path = write(tmp_path, "label-studio", ROWS, []).rename(tmp_path / "a.json")
    assert format_of(path) == "label-studio"
    columns = DetectionColumns.from_detections(ROWS)
    assert unsupported_content("cvat", columns) == []
    assert unsupported_content("label-studio", columns) == ["attributes"]


CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><original_size><width>957</width><height>539</height></original_size></task></meta>
  <track id="2" label="car" source="manual">
    <box frame="0" outside="0" occluded="1" keyframe="1" xtl="1.5" ytl="2" xbr="3" ybr="4.25"
      z_order="0"><attribute name="colour">red</attribute></box>
    <box frame="1" outside="0" occluded="0" keyframe="0" xtl="2" ytl="2" xbr="4" ybr="5"/>
    <box frame="2" outside="1" occluded="0" keyframe="1" xtl="2" ytl="2" xbr="4" ybr="5"/>
    <polygon frame="3" points="1,2;3,4;5,6"/>
  </track>
</annotations>
"""


def test_cvat_export_is_read(tmp_path: Path) -> None:
    path = tmp_path / "annotations.xml"
    path.write_text(CVAT)
    assert list(read(path, "cvat").columns) == [
        Detection(0, "car", (1.5, 2, 3, 4.25), None, 2, None, {"colour": "red", "occluded": 1}),
        Detection(1, "car", (2, 2, 4, 5), None, 2),
    ]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("957", "640", "size of the video"),
        ("<track", "<image/><track", "about images"),
        ("annotations>", "annotation>", "root of CVAT"),
        ('frame="1"', 'frame="40"', "track 1, box 2: frame"),
        ('frame="1"', 'frame="1" rotation="45.0"', "rotated"),
        ('xtl="1.5"', 'xtl="x"', "track 1, box 1: must be a number"),
    ],
)
def test_other_cvat_files_are_refused(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = tmp_path / "annotations.xml"
    path.write_text(CVAT.replace(old, new))
    with pytest.raises(UsageError, match=text):
        read(path, "cvat")


def test_datumaro_reads_cvat_files(tmp_path: Path) -> None:
    datumaro = pytest.importorskip("datumaro")
    write(tmp_path, "cvat", ROWS, []).rename(tmp_path / "annotations.xml")
    found = datumaro.Dataset.import_from(str(tmp_path), "cvat")
    names = [one.name for one in found.categories()[datumaro.AnnotationType.label].items]
    boxes = sorted(
        (item.attributes["frame"], names[one.label], tuple(one.points), one.attributes["track_id"])
        for item in found
        for one in item.annotations
        if not one.attributes["outside"]
    )
    assert boxes == sorted(
        (one.frame, one.label, one.box, -3 if one.track is None else one.track) for one in ROWS
    )


def test_label_studio_sequences(tmp_path: Path) -> None:
    (task,) = json.loads(write(tmp_path, "label-studio", ROWS, []).read_text())
    assert task["data"] == {
        "video": "/data/local-files/?d=cam1/a.mp4",
        "name": "cam1/a.mp4",
    }
    results = task["predictions"][0]["result"]
    car = results[0]["value"]
    assert [(one["frame"], one["enabled"]) for one in car["sequence"]] == [
        (4, True),
        (5, False),
        (10, False),
    ]
    first = car["sequence"][0]
    assert first["x"] == pytest.approx(100 * 10 / 957)
    assert first["height"] == pytest.approx(100 * 39.5 / 539)
    assert (car["framesCount"], car["labels"]) == (40, ["car"])
    assert {(one["from_name"], one["to_name"], one["type"]) for one in results} == {
        ("box", "video", "videorectangle")
    }


def _sequence(frame: int, x: float, enabled: bool) -> dict[str, Any]:
    sides = {"x": x, "y": 0, "width": 50, "height": 100}
    return {"frame": frame, "enabled": enabled, "rotation": 0, **sides}


def _task(tmp_path: Path, **value: Any) -> Path:
    result = {
        "type": "videorectangle",
        "value": {"labels": ["car"], "framesCount": 40, **value},
    }
    annotation = {"result": [result, {"type": "choices"}]}
    task = {
        "data": {"video": "/data/local-files/?d=a.mp4"},
        "annotations": [{"result": []}, annotation, {"was_cancelled": True, "result": []}],
        "predictions": [{"result": [result, result]}],
    }
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([task]))
    return path


def test_label_studio_interpolates_between_key_frames(tmp_path: Path) -> None:
    sequence = [_sequence(3, 10, True), _sequence(7, 50, False), _sequence(39, 0, True)]
    found = read(_task(tmp_path, sequence=sequence), "label-studio").columns
    lefts = {one.frame: one.box[0] / 9.57 for one in found}
    assert lefts == pytest.approx({2: 10, 3: 20, 4: 30, 5: 40, 6: 50, 38: 0, 39: 0})
    assert {(one.label, one.track) for one in found} == {("car", 1)}


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    sequence = [_sequence(3, 10, True)]
    with pytest.raises(UsageError, match="framesCount must be 40, got 39"):
        read(_task(tmp_path, sequence=sequence, framesCount=39), "label-studio")
    with pytest.raises(UsageError, match="frame"):
        read(_task(tmp_path, sequence=[_sequence(41, 10, True)]), "label-studio")
    with pytest.raises(UsageError, match="not a videorectangle"):
        read(_task(tmp_path), "label-studio")
    path = tmp_path / "none.json"
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"data\.name 'cam1/a\.mp4'"):
        read(path, "label-studio")


def test_tasks_of_several_videos(tmp_path: Path) -> None:
    columns = DetectionColumns.from_detections(ROWS)
    one = LabelExport(columns, (), CLIP)
    options = LabelWriteOptions(url="https://host/v/")
    ((name, pieces),) = write_dataset("label-studio", [one, one], options)
    tasks = json.loads("".join(pieces))
    assert (name, len(tasks)) == ("", 2)
    assert tasks[1]["data"]["video"] == "https://host/v/cam1/a.mp4"
