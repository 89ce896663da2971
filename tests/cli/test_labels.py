"""``vfsd labels``: import, export, queries and removal.

``vfsd detect``: detectors by name, their output, and their errors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vfsd.api.detect
from tests.cli.conftest import Run, run_command
from vfsd import Detection, Source, Store

VIDEO = "cam1/traffic.mp4"


@pytest.fixture
def imported(run: Run) -> Run:
    assert run("labels", "import", VIDEO, "labels/traffic.csv").code == 0
    return run


def test_import_reports_its_counts(run: Run) -> None:
    done = run("labels", "import", VIDEO, "labels/traffic.csv", "--examined", "all", "--json")
    assert done.object == {
        "schema": 1,
        "name": VIDEO,
        "file": "labels/traffic.csv",
        "format": "csv",
        "sources": [{"name": "traffic", "model": "", "version": ""}],
        "boxes": 4,
        "removed": 0,
        "labels": ["car", "red", "truck"],
        "skipped": 0,
        "examined": run("info", VIDEO, "--json").object["frames"],
    }
    done = run("labels", "import", VIDEO, "labels/traffic.csv", "--source", "x", "--model", "m")
    assert done.err == f"4 boxes by x m into {VIDEO}\n"


def test_replace_is_by_source(imported: Run) -> None:
    for source, expected in (("traffic", 4), ("other", 8)):
        words = ("labels", "import", VIDEO, "labels/traffic.csv", "--source", source)
        assert imported(*words, "--replace").code == 0
        done = imported("labels", "query", VIDEO, "--count", "--json")
        assert done.object["boxes"] == expected


def test_replace_reports_the_number_of_removed_boxes(imported: Run, place: Path) -> None:
    """This includes a file without any box."""
    words = ("labels", "import", VIDEO, "labels/traffic.csv", "--replace")
    assert imported(*words, "--json").object["removed"] == 4
    (place / "traffic.txt").write_text("")
    done = imported("labels", "import", VIDEO, "traffic.txt", "--replace")
    assert done.err == f"0 boxes into {VIDEO}\n4 earlier boxes were removed\n"
    assert imported("labels", "query", VIDEO, "--count").lines == ["0"]


@pytest.mark.thorough
def test_concurrent_imports_of_one_file_store_it_once(run: Run, place: Path) -> None:
    lines = [f"{at % 100},car,{at},0,{at + 1}.5,9" for at in range(20_000)]
    (place / "big.csv").write_text("\n".join(["frame,label,x1,y1,x2,y2", *lines]))
    words = [sys.executable, "-m", "vfsd", "-s", "videos", "labels", "import", VIDEO, "big.csv"]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 4], said
    assert run("labels", "query", VIDEO, "--count").lines == ["20000"]


def test_examined_frames_survive_coco(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        video = store[VIDEO]
        box = Detection(5, "car", (1, 2, 30, 40))
        every = Source("a", "m", "1", {"every": 1, "scale": 0.5})
        video.labels.add([box], every, examined=range(60))
        video.labels.add([box], "b", examined=range(10))
        video.labels.add([], "c", examined=[range(3), range(20, 30)])
        examined = video.labels.examined()
        assert len(examined) == 4
        lost = {"csv": ["parameters of sources", "examined frames"], "coco": []}
        for format, expected in lost.items():
            words = ("labels", "export", VIDEO, "--format", format, "-o", f"out.{format}")
            assert run(*words, "--json").object["lost"] == expected
        assert run("labels", "rm", VIDEO, "--all").code == 0
        assert run("labels", "import", VIDEO, "out.coco", "--format", "coco").code == 0
        assert video.labels.examined() == examined
        assert len(video.labels.query(source=every)) == 1


def test_file_of_several_sources_marks_no_images_as_examined(run: Run, place: Path) -> None:
    box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}
    (place / "two.json").write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
                "annotations": [{**box, "source": {"name": name}} for name in ("a", "b")],
                "categories": [{"id": 1, "name": "car"}],
            }
        )
    )
    done = run("labels", "import", VIDEO, "two.json")
    assert "does not say which of its 2 sources" in done.err
    with Store.open(place / "videos") as store:
        assert store[VIDEO].labels.examined() == []
    assert run("labels", "import", VIDEO, "two.json", "--source", "c", "--json").object["examined"]


def test_each_row_keeps_its_source(run: Run, place: Path) -> None:
    (place / "labels/mixed.csv").write_text(
        "frame,label,x1,y1,x2,y2,source,model\n"
        "1,car,0,0,5,5,yolo,v8\n2,car,0,0,5,5,,\n3,car,0,0,5,5,people,\n4,car,0,0,5,5,,v9\n"
    )
    done = run("labels", "import", VIDEO, "labels/mixed.csv")
    assert done.err == f"4 boxes by yolo v8, mixed, people, mixed v9 into {VIDEO}\n"
    done = run("labels", "import", VIDEO, "labels/mixed.csv", "--source", "me")
    assert done.err == f"4 boxes by me into {VIDEO}\n"


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_unknown_label_is_named(imported: Run, json: tuple[str, ...]) -> None:
    done = imported("labels", "query", VIDEO, "car near person for 2 s", *json)
    assert done.code == 0
    assert "warning: the store has no label 'car near person for 2 s'; it has" in done.err
    assert "car" in done.err.partition("it has")[2]
    if json:
        assert done.objects[-1]["unknown_labels"] == ["car near person for 2 s"]
        assert "car" in done.objects[-1]["known_labels"]


@pytest.mark.parametrize("more", [(), ("--unknown",)])
def test_unknown_labels_come_after_events(imported: Run, more: tuple[str, ...]) -> None:
    words = ("events", VIDEO, "inside(a, 320x240+0+0)", "--let", "a=car|trcuk")
    done = imported(*words, *more, "--json")
    assert done.code == 0
    assert len(done.objects) > 1
    assert [at for at, one in enumerate(done.objects) if "unknown_labels" in one] == [
        len(done.objects) - 1
    ]
    assert "trcuk" in done.objects[-1]["unknown_labels"]


def test_query_by_label_time_and_region(imported: Run) -> None:
    def frames(*args: str) -> list[int]:
        done = imported("labels", "query", VIDEO, *args, "--json")
        assert done.code == 0, done.err
        return [found["frame"] for found in done.objects]

    assert frames() == [0, 0, 5, 7]
    assert frames("car|truck") == [0, 5, 7]
    assert frames("car & red") == [0, 0]
    assert frames("car", "--frames", "1:6") == [5]
    assert frames("--span", "0-0.1") == [0, 0]
    assert frames("--region", "20x20+290+170") == [7]
    assert frames("--min-confidence", "0.5") == [0, 7]
    assert frames("--track", "1", "--source", "traffic") == [0, 5]
    assert frames("--source", "traffic", "--model", "m") == []
    assert frames("--attribute", "lane=3") == []
    first = imported("labels", "query", VIDEO, "car", "--json").objects[0]
    del first["schema"]
    assert first == {
        "name": VIDEO,
        "frame": 0,
        "seconds": 0.0,
        "label": "car",
        "box": [10.0, 20.0, 60.0, 50.0],
        "confidence": 0.9,
        "track": 1,
        "source": "traffic",
        "model": "",
        "version": "",
        "attributes": {},
    }
    lines = imported("labels", "query", VIDEO, "car").lines
    assert lines[0].split() == [
        "0",
        "0:00.00",
        "car",
        "10",
        "20",
        "60",
        "50",
        "0.9",
        "1",
        "traffic",
    ]
    assert imported("labels", "query", VIDEO, "car", "--count").lines == ["2"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("labels", "query", VIDEO, "car|"), 2),
        (("labels", "query", VIDEO, "--span", "0-1", "--frames", "3"), 2),
        (("labels", "query", VIDEO, "--model", "x"), 2),
        (("labels", "query", "cam1/none.mp4"), 3),
        (("labels", "query", VIDEO, "--frames", "0:100000"), 6),
        (("labels", "query", VIDEO, "--span", "4-5"), 6),
        (("labels", "export", VIDEO, "--format", "csv", "-o", "out.csv", "--span", "4-5"), 6),
        (("labels", "import", VIDEO, "labels/none.csv"), 3),
        (("labels", "import", VIDEO, "footage/traffic.mp4"), 2),
        (("labels", "import", VIDEO, "footage/traffic.mp4", "--format", "csv"), 2),
        (("labels", "rm", VIDEO), 2),
        (("labels", "export", VIDEO, "--format", "mot", "-o", "-"), 2),
        (("labels", "export", VIDEO, "--format", "mot", "-o", "labels.txt"), 2),
        (("labels", "export", VIDEO, "--format", "csv", "-o", "-", "--json"), 2),
        (("labels", "export", VIDEO, "--format", "csv", "-o", "labels/traffic.csv"), 4),
        (("labels", "export", VIDEO, "--format", "voc", "-o", "labels"), 4),
        (("labels", "nothing"), 2),
        (("labels",), 2),
    ],
)
def test_failed_label_commands_are_reported(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run(*args)
    assert done.code == code
    assert done.err


def test_invalid_file_changes_nothing(imported: Run, place: Path) -> None:
    path = place / "labels" / "bad.csv"
    path.write_text("frame,label,x1,y1,x2,y2\n1,car,0,0,5,5\n2,car,0,0,0,5\n")
    done = imported("labels", "import", VIDEO, "labels/bad.csv", "--source", "traffic", "--replace")
    assert done.code == 2
    assert "labels/bad.csv, line 3: the box 0, 0, 0, 5 has no area" in done.err
    assert "--skip-empty" in done.err
    assert imported("labels", "query", VIDEO, "--count").lines == ["4"]
    assert imported("labels", "import", VIDEO, "labels/bad.csv", "--skip-empty").code == 0
    assert imported("labels", "query", VIDEO, "--count").lines == ["5"]


def test_existing_boxes_are_not_imported_again(imported: Run, place: Path) -> None:
    """This includes parts of the file; boxes of the same source on other frames are imported."""
    lines = (place / "labels/traffic.csv").read_text().splitlines()
    new = "8,3,truck,10,10,20,20,0.5"
    (place / "labels/more.csv").write_text("\n".join([lines[0], lines[-1], new]))
    for file, known in (("traffic", "4 of 4"), ("more", "1 of 2")):
        done = imported("labels", "import", VIDEO, f"labels/{file}.csv", "--source", "traffic")
        assert done.code == 4
        assert f"{known} boxes exist already" in done.err
        assert "--replace" in done.err
        assert imported("labels", "query", VIDEO, "--count").lines == ["4"]
    (place / "labels/more.csv").write_text("\n".join([lines[0], new]))
    assert imported("labels", "import", VIDEO, "labels/more.csv", "--source", "traffic").code == 0
    assert imported("labels", "query", VIDEO, "--count").lines == ["5"]


@pytest.mark.parametrize("format", ["coco", "mot", "yolo", "voc", "csv"])
def test_exported_labels_can_be_imported(imported: Run, place: Path, format: str) -> None:
    before = imported("labels", "query", VIDEO, "--json").objects
    out = {"coco": "out.json", "csv": "out.csv", "mot": "out.txt"}.get(format, "out")
    done = imported("labels", "export", VIDEO, "--format", format, "-o", out, "--json")
    assert done.code == 0, done.err
    assert (done.object["boxes"], done.object["lost"]) == (4, [])
    assert imported("labels", "rm", VIDEO, "--all", "--json").object["boxes"] == 4
    done = imported("labels", "import", VIDEO, out, "--source", "traffic")
    assert done.code == 0, done.err
    assert imported("labels", "query", VIDEO, "--json").objects == before


@pytest.mark.parametrize("format", ["coco", "mot", "yolo", "voc", "csv"])
def test_exports_without_boxes_are_imported(run: Run, place: Path, format: str) -> None:
    out = {"coco": "no.json", "csv": "no.csv", "mot": "no.txt"}.get(format, "no")
    assert run("labels", "export", VIDEO, "--format", format, "-o", out).code == 0
    done = run("labels", "import", VIDEO, out)
    assert (done.code, done.err) == (0, f"0 boxes into {VIDEO}\n")
    assert run("labels", "import", VIDEO, out, "--json").object["format"] == format


def test_mot_exports_into_one_folder_are_independent(imported: Run, place: Path) -> None:
    """Each export names its own classes, and appears as a whole or not at all."""
    for label, out in (("car", "a.txt"), ("truck", "b.txt")):
        done = imported("labels", "export", VIDEO, label, "--format", "mot", "-o", out)
        assert done.code == 0, done.err
    before = imported("labels", "query", VIDEO, "car|truck", "--json").objects
    assert imported("labels", "rm", VIDEO, "--all").code == 0
    for out in ("a.txt", "b.txt"):
        assert imported("labels", "import", VIDEO, out, "--source", "traffic").code == 0
    assert imported("labels", "query", VIDEO, "--json").objects == before
    (place / "b.txt").unlink()
    done = imported("labels", "export", VIDEO, "--format", "mot", "-o", "b.txt")
    assert done.code == 4
    assert "b.labels.txt exists" in done.err
    assert not (place / "b.txt").exists()
    assert not list(place.glob(".*.part"))


def test_export_to_stdout_of_a_part(imported: Run) -> None:
    done = imported("labels", "export", VIDEO, "car", "--format", "csv", "-o", "-", "--clip")
    assert done.lines == [
        "frame,label,x1,y1,x2,y2,confidence,track,source,model,version",
        "0,car,10,20,60,50,0.9,1,traffic,,",
        "5,car,20,20,70,50.5,0.4,1,traffic,,",
    ]
    done = imported(
        "labels", "export", VIDEO, "--format", "coco", "-o", "-", "--span", "0-0.1", "-q"
    )
    assert len(json.loads(done.out)["annotations"]) == 2


def test_boxes_dropped_by_clip_are_reported(run: Run, place: Path) -> None:
    (place / "out.csv").write_text(
        "frame,label,x1,y1,x2,y2\n1,car,-5,0,5,5\n2,car,400,0,410,9\n3,car,-9,-9,0,0\n"
    )
    assert run("labels", "import", VIDEO, "out.csv").code == 0
    words = ("labels", "export", VIDEO, "--format", "csv")
    done = run(*words, "-o", "clipped.csv", "--clip")
    assert done.err == (
        "cam1/traffic.mp4: 2 boxes outside of the frame were skipped\n1 boxes to clipped.csv\n"
    )
    done = run(*words, "-o", "json.csv", "--clip", "--json")
    assert (done.object["boxes"], done.object["outside"]) == (1, 2)
    assert run(*words, "-o", "all.csv", "--json").object["outside"] == 0


def test_ls_summary(imported: Run) -> None:
    imported("labels", "import", VIDEO, "labels/traffic.csv", "--source", "b", "--examined", "all")
    summary = imported("labels", "ls", VIDEO, "--json").object
    cars = [one for one in summary["labels"] if one["label"] == "car"]
    assert [one["source"] for one in cars] == ["traffic", "b"]
    assert cars[0] == {
        "label": "car",
        "source": "traffic",
        "model": "",
        "version": "",
        "boxes": 2,
        "frames": 2,
        "tracks": 1,
        "first_frame": 0,
        "end_frame": 6,
    }
    frames = imported("info", VIDEO, "--json").object["frames"]
    assert [one["examined"] for one in summary["sources"]] == [[], [[0, frames]]]
    lines = imported("labels", "ls", VIDEO).lines
    words = ["car", "traffic", "2", "boxes", "2", "frames", "1", "tracks", "0-5"]
    assert lines[0].split() == words
    assert lines[-2:] == [
        "traffic: the examined frames are not known",
        f"b: examined 0-{frames - 1}",
    ]


def test_rm_removes_the_selected_boxes(imported: Run) -> None:
    assert imported("labels", "rm", VIDEO, "--label", "car", "--frames", "0:3").code == 0
    assert imported("labels", "query", VIDEO, "--count").lines == ["3"]
    done = imported("labels", "rm", VIDEO, "--source", "traffic")
    assert done.err == f"3 boxes removed from {VIDEO}\n"


def test_names_may_be_paths_and_store_option_may_be_anywhere(imported: Run, place: Path) -> None:
    done = run_command("labels", "-s", "videos", "query", f"/{VIDEO}", "car", "--count")
    assert done.lines == ["2"]


def test_help_on_the_group() -> None:
    done = run_command("labels", "--help")
    assert done.code == 0
    for name in ("import", "export", "query", "ls", "rm"):
        assert f"\n  {name} " in done.out
    assert run_command("help", "labels").code == 0
    assert run_command("help", "labels", "nothing").code == 2


def test_list_pattern(imported: Run) -> None:
    alone = imported("labels", "ls", VIDEO, "--json").object
    found = [json.loads(line) for line in imported("labels", "ls", "cam1/*", "--json").lines]
    assert len(found) > 1
    assert alone in found
    lines = imported("labels", "ls", "cam1/*").lines
    assert f"{VIDEO}:" in lines
    assert f"{VIDEO}:" not in imported("labels", "ls", VIDEO).lines
    assert imported("labels", "ls", "none/*").code == 3


# --------------------------------------------------------------------------------------------------
# ``vfsd detect``: detectors by name, their output, and their errors


def test_motion_detector_fills_the_index(run: Run) -> None:
    done = run("detect", VIDEO, "--with", "motion", "--every", "4", "--json")
    assert done.code == 0, done.err
    assert done.object["name"] == VIDEO
    assert done.object["source"] == {"name": "motion", "model": "MOG2", "version": "1"}
    assert done.object["frames"] == done.object["examined"] == 30
    count = run("labels", "query", VIDEO, "motion", "--count", "--json").object["boxes"]
    assert count == done.object["boxes"] > 30
    again = run("detect", VIDEO, "--with", "motion", "--every", "4")
    assert again.err == (
        f"0 boxes by motion MOG2 1 on 0 frames of {VIDEO}, which it had examined before\n"
    )
    once_more = run("detect", VIDEO, "--with", "motion", "--every", "4", "--replace", "--json")
    assert once_more.object == done.object
    assert run("labels", "query", VIDEO, "--count", "--json").object["boxes"] == count


@pytest.mark.thorough
def test_part_of_several_videos_under_another_name(run: Run) -> None:
    names = (VIDEO, "cam1/open-gop.mkv")
    done = run("detect", *names, "--with", "motion", "--span", "1-2", "--label", "it", "--json")
    assert [found["name"] for found in done.objects] == list(names)
    assert [found["examined"] for found in done.objects] == [30, 30]
    frames = [found["frame"] for found in run("labels", "query", VIDEO, "it", "--json").objects]
    assert frames
    assert set(frames) <= set(range(30, 60))
    assert run("detect", VIDEO, "--with", "motion", "--keyframes", "--json").object["frames"] == 4


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--with", "cats"), 2, "must be one of motion, onnx:MODEL.onnx, got 'cats'"),
        (("--with", "onnx:"), 2, "got 'onnx:'"),
        (("--with", "motion", "--min-confidence", "0.5"), 2, "motion has no confidence"),
        (("--with", "motion", "--every", "2", "--keyframes"), 2, "--every or --keyframes"),
        (("--with", "motion", "--every", "0"), 2, "--every"),
        (("--with", "motion", "--names", "x"), 2, "no classes"),
        (("--with", "motion", "--label", " "), 2, "a label"),
        (("--with", "onnx:none.onnx"), 3, "file not found: none.onnx"),
        (("--with", "motion", "--span", "9-10"), 6, "before the end of the video"),
        ((), 2, "--with"),
    ],
)
def test_invalid_detect_arguments(run: Run, args: tuple[str, ...], code: int, words: str) -> None:
    done = run("detect", VIDEO, *args)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_missing_video_is_reported(run: Run) -> None:
    done = run("detect", VIDEO, "none.mp4", "--with", "motion")
    assert done.code == 3
    assert run("labels", "query", VIDEO, "--count", "--json").object["boxes"] == 0


def test_interrupted_detect_keeps_examined_frames(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vfsd.labels.detectors.motion import MotionDetector

    small = MotionDetector(block=20)
    monkeypatch.setattr("vfsd.labels.detectors.motion.MotionDetector", lambda *_: small)
    whole = vfsd.api.detect.shown_frames

    def until_frame_50(*args: object) -> object:
        for frame in whole(*args):  # type: ignore[arg-type]
            if frame.index == 50:
                raise KeyboardInterrupt
            yield frame

    monkeypatch.setattr(vfsd.api.detect, "shown_frames", until_frame_50)
    assert run("detect", VIDEO, "--with", "motion").code == 130
    monkeypatch.setattr(vfsd.api.detect, "shown_frames", whole)
    done = run("detect", VIDEO, "--with", "motion", "--json").object
    assert (done["frames"], done["examined"]) == (80, 120)
