"""Label files: written files are read back unchanged, and those of other tools are accepted."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.detections import CLIP, files, read, write
from tests.support.selection import examples, one_in
from vfsd.core.detections import Detection, DetectionColumns, Examined, Source
from vfsd.errors import NotFoundError, UsageError
from vfsd.labels import (
    FORMATS,
    LabelWriteOptions,
    export_path,
    format_of,
    from_supervision,
    names_for,
    read_labels,
    unsupported_content,
    write_labels,
)
from vfsd.labels.formats.label_file import frame_of_name

QUICK = settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


BY_TRACK = ("cvat", "label-studio")
"""Formats with the boxes of a track together."""


def _place(one: Detection) -> tuple[object, ...]:
    values = (one.confidence or 0, -1 if one.track is None else one.track)
    return one.frame, one.label, one.box, values, one.confidence is None, repr(one.attributes)


@pytest.mark.parametrize("format", FORMATS)
@QUICK
@given(data=st.data(), bases=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_labels_round_trip(format: str, data: st.DataObject, bases: tuple[int, int]) -> None:
    rows, examined = data.draw(files(format))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), format, rows, examined, LabelWriteOptions(*bases))
        found = read(path, format, frame_base=bases[0], pixel_base=bases[1])
    if format in BY_TRACK:
        assert sorted(found.columns, key=_place) == sorted(rows, key=_place)
    else:
        assert list(found.columns) == rows
    if format in ("csv", "mot", *BY_TRACK):
        assert found.examined is None
    else:
        frames = {one.frame for one in rows}.union(*(one.frames for one in examined))
        assert [n for part in found.examined or () for n in part] == sorted(frames)
    if format == "coco":
        assert found.examined_by is not None
        assert len(found.examined_by) == len(examined)
        assert all(one in found.examined_by for one in examined)
    else:
        assert found.examined_by is None


@pytest.mark.parametrize("track", one_in(5, [10**18, (1 << 63) - 1]))
@pytest.mark.parametrize("format", FORMATS)
def test_largest_track_numbers_round_trip(format: str, track: int, tmp_path: Path) -> None:
    rows = [Detection(3, "car", (10.0, 20.5, 110.25, 60.0), 0.5, track)]
    assert list(read(write(tmp_path, format, rows, []), format).columns) == rows


@pytest.mark.parametrize("format", FORMATS)
def test_defaults_of_reading_and_writing_agree(format: str, tmp_path: Path) -> None:
    rows = [Detection(3, "car", (10.0, 20.5, 110.25, 60.0), 0.5, 7)]
    path = write(tmp_path, format, rows, [])
    assert list(read(path, format).columns) == rows


# --------------------------------------------------------- files as other programs write them


def boxes(path: Path, format: str, **options: object) -> list[tuple[int, str, list[float]]]:
    found = read(path, format, **options).columns
    return [(one.frame, one.label, list(one.box)) for one in found]


def test_mot_ground_truth_is_one_based(tmp_path: Path) -> None:
    path = tmp_path / "gt.txt"
    path.write_text("1,2,1,1,10,20,1,1,0.86\n2,2,912,484,97,109,0,7,1\n\n")
    found = read(path, "mot").columns
    assert [one.box for one in found] == [(0, 0, 10, 20), (911, 483, 1008, 592)]
    assert (found[0].frame, found[0].label, found[0].track) == (0, "pedestrian", 2)
    assert (found[0].confidence, found[0].attributes) == (1.0, {"visibility": 0.86})
    assert found[1].label == "static person"
    assert boxes(path, "mot", pixel_base=0)[0][2] == [1, 1, 11, 21]
    assert boxes(path, "mot", frame_base=0)[0][0] == 1


def test_confidences_keep_the_scale_of_their_source(tmp_path: Path) -> None:
    """Scores of the MOT Challenge and of other detectors may have any size."""
    path = tmp_path / "det.txt"
    path.write_text("1,-1,1,1,10,20,87.25\n2,-1,1,1,10,20,-0.5\n")
    assert [one.confidence for one in read(path, "mot", label="car").columns] == [87.25, -0.5]
    with pytest.raises(UsageError, match="infinite"):
        DetectionColumns.from_detections([Detection(0, "car", (0, 0, 1, 1), float("inf"))])


def test_mot_detections_have_no_class(tmp_path: Path) -> None:
    path = tmp_path / "det.txt"
    path.write_text("1,-1,794.27,247.59,71.245,174.88,4.56,-1,-1,-1\n")
    (one,) = read(path, "mot", label="person").columns
    assert one == Detection(0, "person", (793.27, 246.59, 864.515, 421.47), 4.56)
    with pytest.raises(UsageError, match=r"det\.txt, line 1: the box has no class"):
        read(path, "mot")


def test_mot_with_names(tmp_path: Path) -> None:
    path = tmp_path / "gt.txt"
    path.write_text("1,1,1,1,1,1,1,2,1\n")
    assert boxes(path, "mot", names={2: "lorry"})[0][1] == "lorry"
    with pytest.raises(UsageError, match="class 2 has no name"):
        read(path, "mot", names={1: "lorry"})


def test_mot_files_in_one_folder_have_separate_class_names(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "gt"]
    for path, label in zip(paths, ("car", "bus", "van"), strict=True):
        rows = DetectionColumns.of([1], label, [(0, 0, 5, 5)])
        for name, pieces in write_labels("mot", rows, [], CLIP):
            export_path(path, "mot", name).write_text("".join(pieces))
    (tmp_path / "labels.txt").write_text("lorry\n")
    assert [boxes(path, "mot")[0][1] for path in paths] == ["car", "bus", "van"]
    (tmp_path / "a.labels.txt").unlink()
    assert boxes(paths[0], "mot")[0][1] == "lorry"  # the name used by other programs


@pytest.mark.parametrize("name", ["labels.txt", "a.labels.txt"])
def test_label_file_must_not_be_named_like_class_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="class names"):
        export_path(tmp_path / name, "mot", "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [person, 'car, red', van]\n", ["person", "car, red", "van"]),
        (
            "names:\n- 'it''s'\n- driver's  # one\n- \"a \\\"b\\\"\"\n",
            ["it's", "driver's", 'a "b"'],
        ),
        (
            "names: [  # of all\n  car,  # one, two\n\n  'a # b'\n, bus ,]\nnc: 3\n",
            ["car", "a # b", "bus"],
        ),
        ("names: {\n  0: 'a: b',\n  \"1\": c}\n", ["a: b", "c"]),
        ("names:\n\n  # all\n  0: 'a'  # b\n  1: c,d\ntrain: x\n", ["a", "c,d"]),
        ("names: [yes, no, 1, ~]\n", ["yes", "no", "1", "~"]),
    ],
)
def test_yaml_words_may_be_quoted(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(f"path: ../x\n{text}")
    assert names_for("yolo", path) == dict(enumerate(names))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("names: [car, 'bus]\n", 2, "invalid YAML: found unexpected end of stream"),
        ("names: [car,\n\n [bus]]\n", 3, "names must be a list"),
        ("names: [car,, bus]\n", 1, "invalid YAML: expected the node content"),
        ("names: car\n", 1, "names must be a list"),
        ("names:\n  - car\n  -\n", 3, "names must be a list"),
        ("names:\n- car\n- 'a' b\n", 3, "invalid YAML: expected <block end>"),
        ("names:\n  0: car\n  bus\n", 4, "invalid YAML: could not find expected"),
        ("names: {0: car,\n bus: 1}\n", 2, "names must be a list"),
        ("names: [car]\ntrain: %a\n", 2, "invalid YAML: found character '%'"),
        ("names: [a, b]\nnc: 2\nnames: [c]\n", 3, "names is given twice"),
        ("names: {0: a,\n 0: b}\n", 2, "class 0 has two names"),
        ("names:\n  0: a\n  00: b\n", 3, "class 0 has two names"),
    ],
)
def test_invalid_yaml_is_refused(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"data\.yaml, line {line}: {told}"):
        names_for("yolo", path)


def test_special_characters_in_yaml_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("names: [a\x01b]\n")
    with pytest.raises(UsageError, match=r"data\.yaml: invalid YAML: special characters"):
        names_for("yolo", path)


@pytest.mark.thorough
def test_deeply_nested_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("names: " + 100_000 * "[")
    with pytest.raises(UsageError, match="names must be a list"):
        names_for("yolo", path)


def test_class_number_is_its_line_number(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("person\n\ncar\nbus\n")
    assert names_for("yolo", path) == {0: "person", 2: "car", 3: "bus"}
    (tmp_path / "1.txt").write_text("3 .5 .5 .1 .1\n")
    assert boxes(tmp_path, "yolo")[0][1] == "bus"
    (tmp_path / "2.txt").write_text("1 .5 .5 .1 .1\n")
    with pytest.raises(UsageError, match="class 1 has no name"):
        read(tmp_path, "yolo")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.txt", "car\ntruck\n"),
        ("data.yaml", "path: ../x  # root\nnames:\n  0: car\n  1: 'truck'\nnc: 2\n"),
        ("data.yaml", "nc: 2\nnames: ['car', \"truck\"]\ntrain: x\n"),
        ("data.yaml", "names: [car, truck]\n"),
        ("data.yaml", "names: {0: car, 1: truck}\n"),
        ("data.yaml", "names:\n- car\n- truck\ntrain: x\n"),
    ],
)
def test_yolo_fractions_become_pixels(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "labels"
    folder.mkdir()
    (tmp_path / name).write_text(text)
    (folder / "clip_000007.txt").write_text("1 0.5 0.5 1 1 0.25 3\n0 0.25 0.5 0.5 0.5\n")
    (folder / "clip_000008.txt").write_text("")
    found = read(folder, "yolo")
    assert list(found.columns) == [
        Detection(7, "truck", (0, 0, 957, 539), 0.25, 3),
        Detection(7, "car", (0, 134.75, 478.5, 404.25)),
    ]
    assert found.examined == [range(7, 9)]
    assert read(folder, "yolo", frame_base=1).examined == [range(6, 8)]
    assert read(folder, "yolo", frame_from="order").examined == [range(0, 2)]


def test_voc_edges_are_inclusive_and_count_from_one(tmp_path: Path) -> None:
    path = tmp_path / "frame_0012.xml"
    path.write_text(
        "<?xml version='1.0'?><annotation><size><width>957</width><height>539</height></size>"
        "<object><name>dog</name><difficult>1</difficult><pose>Left</pose><bndbox><xmin>1</xmin>"
        "<ymin>2</ymin><xmax>957</xmax><ymax>539</ymax></bndbox></object></annotation>"
    )
    (one,) = read(path, "voc").columns
    assert one == Detection(
        12, "dog", (0, 1, 957, 539), attributes={"difficult": 1, "pose": "Left"}
    )
    assert read(tmp_path, "voc", pixel_base=0).columns[0].box == (1, 2, 958, 540)


def coco(tmp_path: Path, **image: object) -> Path:
    path = tmp_path / "instances.json"
    whole = {
        "images": [
            {"id": 31, "file_name": "a/img_00005.jpg", **image},
            {"id": 32, "file_name": "6"},
        ],
        "annotations": [{"id": 1, "image_id": 31, "category_id": 3, "bbox": [116.1, 2, 75.3, 4]}],
        "categories": [{"id": 3, "name": "car"}],
    }
    path.write_text(json.dumps(whole))
    return path


def test_coco_images_map_to_frames(tmp_path: Path) -> None:
    path = coco(tmp_path)
    # 116.1 + 75.3 is 191.4, although floats add up to 191.39999999999998.
    assert boxes(path, "coco") == [(5, "car", [116.1, 2, 191.4, 6])]
    assert read(path, "coco").examined == [range(5, 7)]
    assert boxes(path, "coco", frame_from="id", frame_base=1)[0][0] == 30
    assert boxes(path, "coco", frame_from="order")[0][0] == 0
    path = coco(tmp_path, frame_index=20)
    assert boxes(path, "coco")[0][0] == 20
    assert boxes(path, "coco", frame_from="name")[0][0] == 5
    with pytest.raises(UsageError, match=r"images\[1\]: its frame is unknown"):
        read(path, "coco", frame_from="field")
    with pytest.raises(UsageError, match=r"957x539, got 100x50"):
        read(coco(tmp_path, width=100, height=50), "coco")


def test_roboflow_suffix_is_not_a_frame_number(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    image = {"id": 0, "file_name": "truck_mp4-12_jpg.rf.0a1b2c3d4e5f60718293a4b5c6d7e8f9.jpg"}
    box = {"image_id": 0, "category_id": 1, "bbox": [1, 1, 5, 5]}
    whole = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "car"}]}
    path.write_text(json.dumps(whole))
    assert boxes(path, "coco")[0][0] == 12


def test_short_number_after_a_name_is_a_frame() -> None:
    assert frame_of_name("v.rf.00000012.png") == 12


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({"iscrowd": 1, "attributes": {"iscrowd": 5}}, "iscrowd differs"),
        ({"source": {"name": "x", "parameters": [1]}}, "parameters"),
    ],
)
def test_invalid_coco_annotation_is_reported_with_its_place(
    tmp_path: Path, told: dict[str, object], place: str
) -> None:
    path = write(tmp_path, "coco", [Detection(0, "car", (0, 0, 5, 5))], [])
    whole = json.loads(path.read_text())
    whole["annotations"][0] |= told
    path.write_text(json.dumps(whole))
    with pytest.raises(UsageError, match=rf"{path.name}, annotations\[0\]: .*{place}"):
        read(path, "coco")
    whole["annotations"][0] |= {"iscrowd": 1, "attributes": {"iscrowd": 1}, "source": {"name": "x"}}
    path.write_text(json.dumps(whole))
    assert next(iter(read(path, "coco").columns)).attributes == {"iscrowd": 1}


def test_coco_crowds_round_trip(tmp_path: Path) -> None:
    of_each: list[dict[str, object]] = [
        {"iscrowd": 1, "lane": 3},
        {},
        {"iscrowd": "x"},
        {"iscrowd": True},
        {"iscrowd": 0},
    ]
    rows = [
        Detection(at, "car", (0, 0, 5, 5), attributes=attributes)
        for at, attributes in enumerate(of_each)
    ]
    path = write(tmp_path, "coco", rows, [])
    told = json.loads(path.read_text())["annotations"]
    assert [one["iscrowd"] for one in told] == [1, 0, 0, 0, 0]
    assert told[0]["attributes"] == {"lane": 3}
    found = [one.attributes for one in read(path, "coco").columns]
    assert found == [one.attributes for one in rows]
    assert found[3]["iscrowd"] is True


def test_coco_results_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"image_id": 4, "category_id": 1, "bbox": [0, 0, 2, 2], "score": 0.5}]')
    (one,) = read(path, "coco", names={1: "car"}).columns
    assert (one.frame, one.label, one.confidence) == (4, "car", 0.5)


def test_csv_may_have_times_and_extra_columns(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text(
        "Time,class,x1,y1,x2,y2,conf,id,colour,attr:frame\n"
        '0.5,car,1,2,3,4,,7,"dark, red",9\n0:01,car,1,2,3,4,0.5,,,\n'
    )
    first, second = read(path, "csv").columns
    assert first == Detection(
        12, "car", (1, 2, 3, 4), None, 7, attributes={"colour": "dark, red", "frame": 9}
    )
    assert (second.frame, second.confidence, dict(second.attributes)) == (25, 0.5, {})


def test_blank_lines_within_a_cell_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text(
        'frame,label,x1,y1,x2,y2,note\n\n1,car,0,0,5,6,"a\n\n  \nb"\n   \n2,car,0,0,5,6,\n'
    )
    first, second = read(path, "csv").columns
    assert (first.frame, dict(first.attributes)) == (1, {"note": "a\n\n  \nb"})
    assert (second.frame, dict(second.attributes)) == (2, {})


@pytest.mark.parametrize("format", ["csv", "coco"])
def test_row_without_source_has_no_source(format: str, tmp_path: Path) -> None:
    sources = [Source("yolo", "v8", "1"), None, Source("people"), Source("yolo", "v8", "1")]
    rows = [
        Detection(number, "car", (0.0, 0.0, 5.0, 5.0), source=source)
        for number, source in enumerate(sources)
    ]
    found = read(write(tmp_path, format, rows, []), format).columns
    assert list(found) == rows
    assert found.sources == (Source("yolo", "v8", "1"), Source("people"))
    assert list(
        DetectionColumns.concat([found.select(slice(2, 0, -1)), found.select(slice(1))])
    ) == [
        rows[2],
        rows[1],
        rows[0],
    ]
    with pytest.raises(UsageError, match="every box must have a source"):
        found.by_source()
    assert found.select(slice(1, 2)).source_of(0) is None


def test_model_without_source_uses_the_given_source(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text("frame,label,x1,y1,x2,y2,model,version\n1,car,0,0,5,5,v8,\n1,a,0,0,5,5,,\n")
    found = read(path, "csv", source="yolo").columns
    assert [one.source for one in found] == [Source("yolo", "v8"), None]
    with pytest.raises(UsageError, match="line 2: the model or version 'v8' must have"):
        read(path, "csv")
    path = tmp_path / "seen.json"
    path.write_text(
        '{"images": [{"id": 1, "frame_index": 1}], "categories": [{"id": 1, "name": "car"}],'
        '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2],'
        ' "source": {"name": null, "model": "v8", "version": null}}]}'
    )
    assert read(path, "coco", source="yolo").columns[0].source == Source("yolo", "v8")


def test_supervision_export_without_the_library() -> None:
    given = SimpleNamespace(
        xyxy=np.array([[0, 0, 5, 5], [1, 1, 2, 2]], dtype=np.float32),
        class_id=np.array([1, 0]),
        confidence=np.array([0.5, 0.25], dtype=np.float32),
        tracker_id=np.array([4, 9]),
        data={},
    )
    found = from_supervision(given, 3, ["car", "bus"])
    assert [(d.frame, d.label, d.confidence, d.track) for d in found] == [
        (3, "bus", 0.5, 4),
        (3, "car", 0.25, 9),
    ]
    given.data, given.tracker_id = {"class_name": np.array(["x", "y"])}, None
    assert [(d.label, d.track) for d in from_supervision(given, 3)] == [("x", None), ("y", None)]
    given.data = {}
    with pytest.raises(UsageError, match="names"):
        from_supervision(given, 3)
    empty = SimpleNamespace(xyxy=np.empty((0, 4)), class_id=None, confidence=None)
    assert len(from_supervision(empty, 3)) == 0


# ---------------------------------------------------------------------------------- complaints

BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    "<annotation><object><name>&b;</name></object></annotation>"
)
OUTSIDE = (
    '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    "<annotation><object><name>&a;</name></object></annotation>"
)


TWO_NAMES = (
    '{"images": [], "categories":'
    ' [{"id": 1, "name": "c"}, {"id": 1, "name": "c"}, {"id": 1, "name": "d"}]}'
)
TRACKS = "frame,label,x1,y1,x2,y2,track,confidence\n"
NO_NAME = '{"images": [], "categories": [{"id": 1, "name": null}]}'
TWO_VIDEOS = (
    '{"images": [{"id": 1, "video_id": 1, "frame_id": 0}, {"id": 2, "video_id": 2, "frame_id": 1}]}'
)
FAR_TRACK = (
    '{"images": [{"id": 1, "frame_index": 1}], "categories": [{"id": 1, "name": "c"}],'
    '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2],'
    ' "track_id": 9223372036854775808}]}'
)
SURROGATE = (
    '{"images": [{"id": 1, "frame_index": 1}], "categories": [{"id": 1, "name": "c"}],'
    '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2],'
    r' "attributes": {"note": "\ud800"}}]}'
)


@pytest.mark.parametrize(
    ("format", "name", "text", "complaint"),
    [
        ("csv", "a.csv", "", "line 1: the file must have a header"),
        ("csv", "a.csv", "frame,label,x1,y1,x2\n", "the header lacks y2"),
        ("csv", "a.csv", "frame,frame_id,label,x1,y1,x2,y2\n", "two columns are named 'frame'"),
        ("csv", "a.csv", "frame,label,x1,y1,x2,y2\n1,a,0,0,1\n", "line 2: .* got 5"),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n1,a,0,0,x,1\n",
            "line 2: must be a number, got 'x'",
        ),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n1,a,0,0,nan,1\n",
            "line 2: must be a finite .* got 'nan'",
        ),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n1.5,a,0,0,1,1\n",
            "line 2: must be a whole .* got '1.5'",
        ),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n40,a,0,0,1,1\n",
            "line 2: frame .* must be less than .* got 40",
        ),
        ("csv", "a.csv", "frame,label,x1,y1,x2,y2\n1,a,5,0,5,1\n", "line 2: the box .* no area"),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n1,,5,0,6,1\n",
            "line 2: a label must be printable",
        ),
        (
            "csv",
            "a.csv",
            "frame,label,x1,y1,x2,y2\n1,a,0,0,1e99999,1\n",
            "line 2: .* too far outside",
        ),
        ("csv", "a.csv", "\n \nframe,label,x1,y1,x2,y2\n\n\n1,a,0,0,x,1\n", "line 6: .* got 'x'"),
        (
            "csv",
            "a.csv",
            '\nframe,label,x1,y1,x2,y2,z\n1,a,0,0,x,1,"b\n\nc"\n',
            "line 3: .* got 'x'",
        ),
        ("csv", "a.csv", "\n\nframe,label,x1,y1,x2\n", "line 3: the header lacks y2"),
        ("csv", "a.csv", 'frame,label,x1,y1,x2,y2\n1,"a,0\n', "unexpected end of data"),
        (
            "csv",
            "a.csv",
            "time,label,x1,y1,x2,y2\nx,a,0,0,1,1\n",
            "line 2: time .* got 'x'",
        ),
        ("mot", "a.txt", "1,1,1,1,1\n", "line 1: .* got 5"),
        ("mot", "a.txt", "1,1,1,1,1,1,1,99,1\n", "line 1: class 99 has no name"),
        ("mot", "a.txt", "0,1,1,1,1,1,1,1,1\n", "line 1: frame .* must be less than .* got -1"),
        ("mot", "a.txt", "1,1,1,1,1,1,1,1,1\n1,1,1,1,-1,1,1,1,1\n", "line 2: the box"),
        ("mot", "a.txt", "1,-7,1,1,1,1,1,1,1\n", "line 1: track must be 0 to .* got -7"),
        ("mot", "a.txt", "\udcff".encode("utf-8", "surrogatepass"), "must be UTF-8 text"),
        ("yolo", "1.txt", "0 0.5 0.5 1\n", "line 1: .* got 4"),
        ("yolo", "1.txt", "0 .1 .1 .2 .1 .2 .2 .1 .2\n", "line 1: .* got 9"),
        ("yolo", "1.txt", "0 0.1 0.1 0.5 0.5 0.9 0\n", "line 1: this may be a polygon"),
        ("yolo", "1.txt", "0 0.5 0.5 0.5 0.5 0.9 1.0\n", "line 1: this may be a polygon"),
        ("yolo", "1.txt", "0 0.5 0.5 1 1\n", "line 1: class 0 has no name"),
        ("yolo", "x.txt", "", "must contain the frame number"),
        ("voc", "1.xml", "<annotation>", "line 1: invalid XML"),
        ("voc", "1.xml", "<a>" * 100, "nested so deeply"),
        ("voc", "1.xml", BOMB, "must not declare a document type"),
        ("voc", "1.xml", OUTSIDE, "must not declare a document type"),
        ("voc", "1.xml", '<?xml version="1.0" encoding="nope"?><a/>', "line 1: .* encoding"),
        ("voc", "1.xml", '<?xml version="1.0" encoding="gb2312"?><a/>', "line 1: .* encoding"),
        ("voc", "1.xml", '<?xml version="1.0" encoding="idna"?><a/>', "line 1: .* encoding"),
        (
            "voc",
            "1.xml",
            "<annotation><object><name>x</name></object></annotation>",
            "object 1: must be a number, got ''",
        ),
        (
            "voc",
            "1.xml",
            "<annotations><track/></annotations>",
            "line 1: the root of Pascal VOC must be <annotation>, got <annotations>",
        ),
        ("coco", "a.json", "{", "line 1: invalid JSON"),
        ("coco", "a.json", "[" * 100_000, "JSON"),
        ("coco", "a.json", "3", "must contain an object"),
        ("coco", "a.json", '{"shapes": [{"label": "car"}]}', "neither images nor annotations"),
        ("coco", "a.json", '{"info": {}}', "neither images nor annotations"),
        ("coco", "a.json", '{"annotations": {}}', "annotations must be a list of objects"),
        ("coco", "a.json", TWO_VIDEOS, r"images.1.: it belongs to video 2, but others to 1"),
        (
            "coco",
            "a.json",
            NO_NAME,
            r"categories.0.: the name of a category must be text, got None",
        ),
        ("csv", "a.csv", f"{TRACKS}1,a,0,0,1,1,{1 << 63},\n", "line 2: '92.*08' is beyond 64 bits"),
        ("csv", "a.csv", f"{TRACKS}1,a,0,0,1,1,,1e400\n", "line 2: the confidence must be finite"),
        ("coco", "a.json", '{"images": 3}', "images must be a list of objects"),
        ("coco", "a.json", '{"images": [{"id": "x"}]}', r"images\[0\]: id must be .* got 'x'"),
        (
            "coco",
            "a.json",
            '{"annotations": [{"image_id": 1, "category_id": 1}]}',
            "image 1 is not in",
        ),
        ("coco", "a.json", '[{"image_id": 1, "category_id": 1}]', "category 1 has no name"),
        (
            "coco",
            "a.json",
            TWO_NAMES,
            r"categories\[2\]: category 1 is 'd' here and 'c' before",
        ),
        ("coco", "a.json", SURROGATE, r"annotations\[0\]: the attribute 'note' must not"),
        ("coco", "a.json", "[NaN]", "NaN is not a number"),
        ("coco", "a.json", FAR_TRACK, r"annotations.0.: track must be 0 to .* got 92.*08"),
        ("coco", "a.json", '{"categories": [{"id": ' + "9" * 5000 + "}]}", "5000 digits$"),
        (
            "coco",
            "a.json",
            "[1e9999999999999999999]",
            "must be a number, got '1e99999",
        ),
    ],
)
def test_malformed_files_are_refused_with_a_position(
    tmp_path: Path, format: str, name: str, text: str | bytes, complaint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=complaint) as caught:
        read(tmp_path if format == "yolo" else path, format)
    assert name in str(caught.value) or format == "yolo"


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_refused(format: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        suffix = {"yolo": ".txt", "voc": ".xml"}.get(format, "")
        path = Path(folder) / f"1{suffix}"
        path.write_bytes(data)
        with contextlib.suppress(UsageError):  # and no other exception
            read(path, format, names={0: "a"}, label="b")


def test_endless_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfsd.labels.formats.label_file._MAX_LINE_CHARACTERS", 1000)
    path = tmp_path / "a.csv"
    path.write_text("frame" * 1000)
    with pytest.raises(UsageError, match="a line must have less than 1000 characters"):
        read(path, "csv")


def test_empty_boxes_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("frame,label,x1,y1,x2,y2\n1,a,5,0,5,1\n2,a,5,0,6,1\n")
    found = read(path, "csv", skip_empty=True)
    assert (len(found.columns), found.skipped) == (1, 1)


@pytest.mark.parametrize("track", one_in(3, [0, 1, 2]))
@pytest.mark.parametrize("confidence", [None, 0.9, 1.0, -3.0])
def test_yolo_tracks_are_not_read_as_polygons(
    track: int, confidence: float | None, tmp_path: Path
) -> None:
    places = [(10.0, 20.0, 300.0, 400.0), (-200.0, 0.0, 300.0, 500.5), (0.0, 0.0, 957.0, 539.0)]
    rows = [Detection(3, "car", box, confidence, track) for box in places]
    assert list(read(write(tmp_path, "yolo", rows, []), "yolo").columns) == rows


def test_unicode_digits_are_not_frame_numbers(tmp_path: Path) -> None:
    """Python accepts a superscript two as a digit, but not as a number."""
    for name in ("²1.txt", "²10.txt", "²2.txt"):
        (tmp_path / name).write_text("0 .5 .5 .1 .1\n")
    found = boxes(tmp_path, "yolo", names={0: "car"})
    assert [frame for frame, _, _ in found] == [1, 2, 10]


def test_two_files_for_one_frame_are_refused(tmp_path: Path) -> None:
    for name in ("a_1.txt", "b_01.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match="the same frame"):
        read(tmp_path, "yolo")
    with pytest.raises(UsageError, match=r"no \.xml file found"):
        read(tmp_path, "voc")


def test_unrelated_files_are_not_an_empty_export(tmp_path: Path) -> None:
    (tmp_path / "1.png").touch()
    for format in ("yolo", "voc"):
        with pytest.raises(UsageError, match="found"):
            read(tmp_path, format)
    with pytest.raises(UsageError, match="does not show its format"):
        format_of(tmp_path)


def test_format_errors_name_the_format(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "1.xml").touch()
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "1.txt").touch()
    names = ("a.json", "a.csv", "gt.txt", "1.xml", "v", "y")
    expected = ["coco", "csv", "mot", "voc", "voc", "yolo"]
    assert [format_of(tmp_path / name) for name in names] == expected
    with pytest.raises(UsageError):
        format_of(tmp_path / "a.bin")
    with pytest.raises(NotFoundError):
        read_labels(tmp_path / "none.csv", "csv", CLIP)
    with pytest.raises(UsageError, match="must be a single file"):
        read_labels(tmp_path, "csv", CLIP)


def test_content_unsupported_by_a_format_is_reported() -> None:
    rows = DetectionColumns.from_detections(
        [
            Detection(1, "a", (0, 0, 1, 1), source=Source("x"), attributes={"visibility": 1}),
            Detection(1, "a", (0, 0, 1, 1), source=Source("y", parameters={"k": 1})),
        ]
    )
    assert unsupported_content("mot", rows) == ["sources", "parameters of sources"]
    assert unsupported_content("yolo", rows) == ["attributes", "sources", "parameters of sources"]
    assert unsupported_content("csv", rows) == ["parameters of sources"]
    assert unsupported_content("voc", rows.select(slice(0, 1))) == [
        "sources",
        "parameters of sources",
    ]
    assert unsupported_content("coco", rows) == []
    for visibility, lost in ((0.5, []), ("half", ["attributes"]), (True, ["attributes"])):
        one = Detection(1, "a", (0, 0, 1, 1), attributes={"visibility": visibility})
        assert unsupported_content("mot", DetectionColumns.from_detections([one])) == lost
    assert unsupported_content("coco", DetectionColumns.of([1], "a", [(0, 0, 1, 1)])) == []


def test_examined_frames_are_kept_or_reported_lost() -> None:
    rows = DetectionColumns.from_detections([Detection(1, "a", (0, 0, 1, 1), source=Source("x"))])
    by_one = [Examined(Source("x"), range(2)), Examined(Source("x"), range(4, 6))]
    by_two = [*by_one, Examined(Source("y"), range(2))]
    for format, of_one, of_two in (
        ("coco", [], []),
        ("csv", ["examined frames"], ["examined frames"]),
        ("mot", ["examined frames"], ["examined frames"]),
        ("voc", [], ["examined frames"]),
        ("yolo", [], ["examined frames"]),
    ):
        assert unsupported_content(format, rows, by_one) == of_one
        assert unsupported_content(format, rows, by_two) == of_two
        assert unsupported_content(format, rows, []) == []


@pytest.mark.parametrize(
    ("ours", "complaint"),
    [
        ('{"examined": 3}', "examined must be a list of objects"),
        ('{"examined": [{"frames": [[0, 1]]}]}', "must have a source and frames"),
        ('{"examined": [{"source": {"name": "a"}, "frames": [[1, 1]]}]}', "must be .first, end"),
        ('{"examined": [{"source": {"name": "a"}, "frames": [3]}]}', "must be .first, end"),
        (
            '{"examined": [{"source": {"name": "a"}, "frames": [[0, 41]]}]}',
            "frame .* must be less than .* got 40",
        ),
    ],
)
def test_examined_frames_of_coco(tmp_path: Path, ours: str, complaint: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"images": [], "annotations": [], "vfsd": {ours}}}')
    with pytest.raises(UsageError, match=complaint):
        read(path, "coco")
