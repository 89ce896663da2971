"""``vfsd retile``.

``vfsd render`` and ``vfsd rendition``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.cli.test_process import ROOT, VFSD, at_a_terminal
from vfsd.api.store import Store
from vfsd.tiling import Rect

TRAFFIC = "cam1/traffic.mp4"


def content(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder, with their contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_second_retile_makes_nothing(run: Run, place: Path) -> None:
    first = run("retile", TRAFFIC, "--layout", "uniform:2x2", "--json").object
    assert (first["segments"], first["kept"], first["frames"]) == (4, 0, 120)
    assert first["tiles"] == 16
    assert first["psnr"] >= 40
    assert first["rate"] == pytest.approx(120 / first["seconds"])
    with Store.open(place / "videos") as store:
        made = store.catalog.segments(store[TRAFFIC].info)
    assert sum(segment.size for segment in made) == first["bytes"]
    again = run("retile", TRAFFIC, "--layout", "uniform:2x2", "--json").object
    assert (again["segments"], again["kept"], again["psnr"], again["rate"]) == (0, 4, None, None)
    assert "nothing to do, all 4" in run("retile", TRAFFIC, "--layout", "uniform:2x2").out


def test_retile_prints_a_summary(run: Run) -> None:
    said = run("retile", TRAFFIC, "--layout", "128+192x240", "--span", "1-2", "--quality", "30")
    assert said.out.startswith(f"{TRAFFIC}: 1 segments with 2 tiles, ")
    assert "30 frames in" in said.out
    assert "minimum_psnr" in said.err  # a rate factor of 30 does not come to 40 dB


@pytest.mark.thorough
def test_several_videos_and_patterns(run: Run) -> None:
    done = run("retile", "cam1/*", TRAFFIC, "--layout", "uniform:1x2", "--json")
    assert [one["name"] for one in done.objects] == ["cam1/open-gop.mkv", TRAFFIC]
    assert run("retile", "cam2/*", "--layout", "uniform:1x2").code == 3


def test_retile_options(run: Run, place: Path) -> None:
    args = ("--layout", "uniform:1x2", "--seconds", "4", "--codec", "small", "--psnr", "35")
    done = run("retile", TRAFFIC, *args, "--jobs", "1", "--json").object
    assert (done["segments"], done["tiles"]) == (1, 2)
    with Store.open(place / "videos") as store:
        segments = store.catalog.segments(store[TRAFFIC].info)
    assert {segment.profile for segment in segments} == {"small"}
    assert all(segment.psnr >= 35 for segment in segments)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4"])
def test_region_becomes_one_tile_of_the_displayed_frame(run: Run, place: Path, name: str) -> None:
    """This includes frames that are rotated after decoding."""
    assert run("ingest", f"footage/{name}", "--as", "it.mp4").code == 0
    region = Rect(20, 130, 80, 200)
    assert run("retile", "it.mp4", "--roi", str(region)).code == 0
    with Store.open(place / "videos") as store:
        video = store["it.mp4"]
        segments = store.catalog.segments(video.info)
        assert {len(segment.cells) for segment in segments} == {1}
        assert segments[0].layout.count > 2
        for source in video.explain(region=region).sources:
            assert source.segment is not None
            assert len(source.tiles) == 1
    tiles = run("layout", "show", "it.mp4", "--json").object["segments"][0]["tiles"]
    assert sum(Rect.parse(tile["region"]).contains(region) for tile in tiles) == 1


@pytest.mark.thorough
def test_option_stores_all_tiles_around_a_region(run: Run) -> None:
    roi = ("--roi", "60x70+20+130")
    assert run("retile", TRAFFIC, *roi, "--json").object["tiles"] == 4
    found = run("retile", TRAFFIC, *roi, "--whole", "--json").object
    assert (found["segments"], found["kept"]) == (4, 0)
    assert found["tiles"] > 4
    # Existing tiles already cover the region.
    again = run("retile", TRAFFIC, *roi, "--json").object
    assert (again["segments"], again["kept"]) == (0, 4)
    done = run("retile", TRAFFIC, "--layout", "uniform:2x2", "--whole")
    assert done.code == 2
    assert "--around or --roi" in done.err


def test_area_outside_of_tiles_is_read_from_the_original(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        exact = store[TRAFFIC].read(region=Rect(200, 0, 320, 100)).data
    assert run("retile", TRAFFIC, "--roi", "60x70+20+130").code == 0
    with Store.open(place / "videos") as store:
        assert np.array_equal(store[TRAFFIC].read(region=Rect(200, 0, 320, 100)).data, exact)


def test_several_regions_become_one_tile(run: Run) -> None:
    args = ("--roi", "20x20+100+100", "--roi", "20x20+180+130")
    assert run("retile", TRAFFIC, *args).code == 0
    tiles = run("layout", "show", TRAFFIC, "--json").object["segments"][0]["tiles"]
    both = Rect(100, 100, 200, 150)
    assert sum(Rect.parse(tile["region"]).contains(both) for tile in tiles) == 1


def test_layouts_refer_to_the_displayed_frame(run: Run) -> None:
    """The picture of portrait.mp4 is stored as 320x240 and shown as 240x320."""
    assert run("ingest", "footage/portrait.mp4").code == 0
    assert run("retile", "portrait.mp4", "--layout", "112+128x64+128+128").code == 0
    assert run("layout", "show", "portrait.mp4", "--json").object["segments"][0]["layout"] == (
        "112+128x64+128+128"
    )
    assert run("retile", "portrait.mp4", "--layout", "uniform:3x2").code == 0
    shown = run("layout", "show", "portrait.mp4", "--json").object["segments"][0]["layout"]
    columns, rows = shown.split("x")
    assert (len(columns.split("+")), len(rows.split("+"))) == (2, 3)
    done = run("retile", "portrait.mp4", "--layout", "uniform:2x9")
    assert done.code == 2
    assert "rotated by 90 degrees, with the layout uniform:9x2" in done.err
    done = run("retile", "portrait.mp4", "--layout", "100+140x320")
    assert done.code == 2
    assert "rotated by 90 degrees" in done.err


# ---------------------------------------------------------------------------------------- files


def test_layout_show_prints_a_layout_file(run: Run, place: Path) -> None:
    assert run("retile", TRAFFIC, "--layout", "uniform:2x2", "--span", "1-3").code == 0
    path = place / "layout.json"
    printed = run("layout", "show", TRAFFIC, "--json")
    path.write_text(printed.out, encoding="utf-8")
    assert run("layout", "drop", TRAFFIC).code == 0
    done = run("retile", TRAFFIC, "--layout-file", path, "--json").object
    assert (done["segments"], done["frames"]) == (2, 60)
    again = run("layout", "show", TRAFFIC, "--json").object["segments"]
    before = printed.object["segments"]
    assert [(s["frames"], s["layout"]) for s in again] == [
        (s["frames"], s["layout"]) for s in before
    ]


def test_handwritten_layout_file(run: Run, place: Path) -> None:
    path = place / "layout.json"
    wanted = [
        {"frames": [60, 75], "layout": "uniform:1x2", "tiles": [1]},
        {"frames": [0, 7], "layout": "untiled"},
    ]
    path.write_text(json.dumps(wanted), encoding="utf-8")
    assert run("retile", TRAFFIC, "--layout-file", path).code == 0
    found = run("layout", "show", TRAFFIC, "--json").object["segments"]
    assert [(s["frames"], s["layout"]) for s in found] == [
        ([0, 7], "320x240"),
        ([60, 75], "160+160x240"),
    ]
    assert [[tile["tile"] for tile in s["tiles"]] for s in found] == [[0], [1]]
    assert run("retile", TRAFFIC, "--layout-file", path, "--seconds", "2").code == 2
    part = run("retile", TRAFFIC, "--layout-file", path, "--span", "2-3", "--json").object
    assert (part["segments"], part["kept"]) == (0, 1)


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ([{"frames": [0, 30], "layout": "uniform:1x2", "colour": 1}], "'colour'"),
        ({"segments": [], "colour": 1}, "'colour'"),
        ({"segments": [{"frames": [0, 30], "layout": "untiled", "colour": 1}]}, "'colour'"),
        ([{"frames": [0, 30]}], '"layout"'),
        ([{"frames": [0, 121], "layout": "untiled"}], "0 to 120"),
        ([{"frames": [5, 5], "layout": "untiled"}], "5 to 5"),
        ([{"frames": [0.5, 3], "layout": "untiled"}], "[first, end]"),
        ([{"frames": [0, 30], "layout": 7}], "must be text"),
        ([{"frames": [0, 30], "layout": "uniform:1x2", "tiles": [2]}], "0 to 1"),
        ([{"frames": [0, 30], "layout": "uniform:1x2", "tiles": []}], "must be a list"),
        ([{"frames": [0, 30], "layout": "uniform:1x2", "tiles": 1}], "must be a list"),
        ([{"frames": [0, 30], "layout": "uniform:1x2", "tiles": ["1"]}], "must be a list"),
        ([{"frames": [0, 30], "layout": "70+250x240"}], "segment 0"),
        ([{"frames": [0, 30], "layout": "untiled"}] * 2, "two segments"),
        ([7], "must be an object"),
        ({}, "segments"),
        (7, "segments"),
    ],
)
def test_invalid_layout_files_are_reported(run: Run, place: Path, wanted: Any, word: str) -> None:
    path = place / "layout.json"
    path.write_text(json.dumps(wanted), encoding="utf-8")
    done = run("retile", TRAFFIC, "--layout-file", path)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert "mistake in vfsd" not in done.err


@pytest.mark.parametrize("wanted", [[], [{"frames": [0, 30], "layout": "320x240"}]])
def test_layout_file_without_tiles(run: Run, place: Path, wanted: Any) -> None:
    path = place / "layouts.json"
    path.write_text(json.dumps(wanted))
    done = run("retile", TRAFFIC, "--layout-file", path, "--span", "2-3")
    assert done.code == 0
    assert "layouts.json has no tiles there" in done.out
    assert "boxes" not in done.out


def test_unreadable_layout_files(run: Run, place: Path) -> None:
    path = place / "layout.json"
    path.write_bytes(b"\xff{")
    assert run("retile", TRAFFIC, "--layout-file", path).code == 2
    assert run("retile", TRAFFIC, "--layout-file", place / "none.json").code == 3


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        ((TRAFFIC,), 2, "one of --layout"),
        ((TRAFFIC, "--layout", "uniform:2x2", "--roi", "9x9+0+0"), 2, "one of --layout"),
        ((TRAFFIC, "--layout", "uniform:9x9"), 2, "64"),
        ((TRAFFIC, "--layout", "70+250x240"), 2, "16"),
        ((TRAFFIC, "--layout", "640x480"), 2, "320x240"),
        ((TRAFFIC, "--layout", "best"), 2, "layout must be"),
        ((TRAFFIC, "--roi", "300x300+300+0"), 6, "within"),
        ((TRAFFIC, "--layout", "uniform:2x2", "--span", "9-10"), 6, "before the end of the video"),
        ((TRAFFIC, "--layout", "uniform:2x2", "--psnr", "40", "--quality", "20"), 2, "either"),
        ((TRAFFIC, "--layout", "uniform:2x2", "--codec", "best"), 2, "best"),
        ((TRAFFIC, "--layout", "uniform:2x2", "--seconds", "0"), 2, "--seconds"),
        (("cam1/none.mp4", "--layout", "uniform:2x2"), 3, "none.mp4"),
        ((TRAFFIC, "cam1/none.mp4", "--layout", "uniform:2x2"), 3, "none.mp4"),
    ],
)
def test_invalid_arguments_are_refused_early(
    run: Run, args: tuple[str, ...], code: int, word: str
) -> None:
    done = run("retile", *args)
    assert (done.code, done.out) == (code, "")
    assert word in done.err
    assert run("layout", "history", TRAFFIC, "--json").out == ""


# -------------------------------------------------------------------------------------- dry run


@pytest.mark.thorough
def test_dry_run_estimates_without_changes(run: Run, place: Path) -> None:
    before = content(place / "videos")
    args = ("retile", TRAFFIC, "--layout", "uniform:2x2")
    told = run(*args, "--dry-run", "--json").object
    text = run(*args, "--dry-run").out
    assert content(place / "videos") == before
    assert "4 to make, 0 exist already" in text
    assert "from one segment" in text
    assert "of an average tile" in text
    made = run(*args, "--json").object
    for key in ("name", "segments", "kept", "frames", "tiles"):
        assert told[key] == made[key]
    assert told["bytes"] == pytest.approx(made["bytes"], rel=0.4)
    assert told["psnr"] >= 40
    assert told["sampled"] == [60, 90]
    assert told["read"]["gain"] == pytest.approx(4, rel=0.1)
    after = run(*args, "--dry-run", "--json").object
    assert (after["segments"], after["kept"], after["sampled"], after["read"]) == (0, 4, None, None)


def test_dry_run_counts_a_read_of_the_region(run: Run) -> None:
    args = ("retile", TRAFFIC, "--roi", "60x60+130+90")
    told = run(*args, "--dry-run", "--json").object["read"]
    assert run(*args).code == 0
    found = run("explain", TRAFFIC, "--region", "60x60+130+90", "--json").object
    assert told["pixels"] == found["decoded"]["pixels"]
    assert told["untiled_pixels"] == pytest.approx(found["untiled"]["pixels"], rel=0.02)
    assert told["seconds"] == pytest.approx(found["decoded"]["seconds"], rel=0.5)
    assert "of the region" in run(*args, "--psnr", "41", "--dry-run").out


# ----------------------------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.thorough
def test_interrupted_retile_resumes(run: Run, place: Path, importable: None) -> None:
    # Many short segments at a good quality take long enough to be interrupted between two, and have
    # more than ten times the bytes of the original.
    assert run("budget", "set", TRAFFIC, "none").code == 0
    args = ["retile", TRAFFIC, "--layout", "uniform:2x2", "--seconds", "0.1", "--psnr", "50"]
    command = [*VFSD, "-s", "videos", *args, "--codec", "small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watch = threading.Event()
        objects = place / "videos" / "objects"
        before = len([path for path in objects.rglob("*") if path.is_file()])
        while process.poll() is None:
            if len([path for path in objects.rglob("*") if path.is_file()]) > before + 1:
                break
            watch.wait(0.01)
        process.send_signal(signal.SIGINT)
        said, error = (stream.decode() for stream in process.communicate())
    assert process.returncode == 130, error
    assert said == ""
    assert "run the command again" in error
    assert error.endswith("vfsd: interrupted\n")
    there = run("layout", "show", TRAFFIC, "--json").object["segments"]
    assert run("fsck", "--deep").out == ""
    rest = run(*args, "--codec", "small", "--json").object
    assert rest["kept"] == len(there) > 0
    assert rest["segments"] > 0
    ends = run("layout", "show", TRAFFIC, "--json").object["segments"]
    assert sum(end - first for first, end in (one["frames"] for one in ends)) == 120


IMPATIENT = """
from vfsd.cli import main
from vfsd.cli.output import Progress
Progress.__init__.__kwdefaults__["delay_seconds"] = 0.01
main()
"""


@pytest.mark.thorough
def test_progress_is_shown_at_a_terminal(
    place: Path, importable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    args = ["-s", "videos", "retile", TRAFFIC, "--layout", "uniform:2x2", "--codec", "small"]
    code, seen = at_a_terminal([sys.executable, "-c", IMPATIENT, *args])
    assert code == 0
    assert f"tiling {TRAFFIC}" in seen


def test_frames_are_checked_first(run: Run, place: Path) -> None:
    shutil.copy2(place / "footage/traffic.mp4", place / "footage/new.mp4")
    assert run("ingest", "footage/new.mp4", "--no-verify").code == 0
    assert run("retile", "new.mp4", "--layout", "uniform:1x2", "--dry-run").code == 0
    assert "not yet" in run("info", "new.mp4").out
    assert run("retile", "new.mp4", "--layout", "uniform:1x2").code == 0
    assert "by a full decode" in run("info", "new.mp4").out


def boxes_file(folder: Path) -> Path:
    """A car in the upper left corner for the first half of the sample video."""
    rows = [f"{frame},car,16,16,60,60" for frame in range(60)]
    path = folder / "boxes.csv"
    path.write_text("\n".join(["frame,label,x1,y1,x2,y2", *rows]) + "\n")
    return path


def test_layout_around_boxes(run: Run, tmp_path: Path) -> None:
    name = "cam1/traffic.mp4"
    assert run("labels", "import", name, boxes_file(tmp_path), "--source", "me").code == 0
    made = run("retile", name, "--around", "car,truck", "--json").object
    assert made["frames"] == 60  # the rest has no boxes
    shown = run("layout", "show", name, "--json").object
    assert {segment["layout"] for segment in shown["segments"]} == {"64+256x64+176"}
    again = run("retile", name, "--around", "car|truck", "--json").object
    assert (again["segments"], again["kept"]) == (0, made["segments"])
    padded = run("retile", name, "--around", "car", "--coarse", "--padding", "8", "--json").object
    assert padded["segments"] == made["segments"]
    for words in ((), ("--dry-run",)):
        none = run("retile", name, "--around", "unicorn", *words)
        assert none.code == 0
        assert "nothing to make: either no box has these labels" in none.out


def test_around_excludes_other_layout_options(run: Run) -> None:
    name = "cam1/traffic.mp4"
    assert run("retile", name, "--around", "car", "--layout", "uniform:2x2").code == 2
    assert run("retile", name, "--layout", "uniform:2x2", "--coarse").code == 2
    assert run("retile", name, "--around", "car&").code == 2


# --------------------------------------------------------------------------------------------------
# ``vfsd render`` and ``vfsd rendition``


def test_render_list_and_drop_a_rendition(run: Run, place: Path) -> None:
    done = run("render", TRAFFIC, "--size", "160x0", "--json").object
    assert (done["segments"], done["kept"], done["frames"]) == (4, 0, 120)
    (listed,) = run("rendition", "ls", "--json").objects
    assert (listed["name"], listed["width"], listed["height"]) == (TRAFFIC, 160, 120)
    assert (listed["frames"], listed["total_frames"], listed["bytes"]) == (120, 120, done["bytes"])
    assert "160x120" in run("rendition", "ls", TRAFFIC).out
    again = run("render", TRAFFIC, "--size", "160x120", "--json").object
    assert (again["segments"], again["kept"]) == (0, 4)
    assert run("rendition", "drop", TRAFFIC, "--size", "80x60", "-y").code == 3
    gone = run("rendition", "drop", TRAFFIC, "--size", "160x120", "-y", "--json").object
    assert (gone["segments"], gone["bytes"]) == (4, done["bytes"])
    assert run("rendition", "ls", "--json").out == ""
    with Store.open(place / "videos") as store:
        assert store.catalog.renditions(store[TRAFFIC].info) == []


def test_size_above_the_original_is_refused_early(run: Run) -> None:
    done = run("render", TRAFFIC, "--size", "160x0", "--codec", "lossless")
    assert done.code == 0
    assert "times the size of these frames in the original" in done.err
    done = run("render", TRAFFIC, "--size", "80x60", "--for", "web", "--psnr", "25")
    assert "times the size" not in done.err


def test_large_rendition_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, consent needs an option."""
    monkeypatch.setattr("vfsd.cli.retile._LARGE_BYTES", 1)
    words = ("render", TRAFFIC, "--size", "160x0", "--psnr", "60")
    done = run(*words, "--json")
    assert done.code == 8
    assert "--yes" in done.err
    assert run("rendition", "ls", "--json").out == ""
    assert run(*words, "--codec", "small", "--for", "web").code == 2
    for consent in ("--yes", "--for=decoding"):
        done = run(*words, consent)
        assert (done.code, "warning" in done.err) == (0, False), done.err
        assert run("rendition", "drop", TRAFFIC, "-y").code == 0


def test_dry_run_of_render_stores_nothing(run: Run) -> None:
    found = run("render", TRAFFIC, "--size", "80x60", "--dry-run", "--json").object
    assert found["segments"] == 4
    assert found["read"]["gain"] > 10
    assert run("rendition", "ls", "--json").out == ""


def test_rendition_sizes_refer_to_the_displayed_frame(run: Run) -> None:
    """The picture of portrait.mp4 is stored as 320x240 and shown as 240x320."""
    assert run("ingest", "footage/portrait.mp4").code == 0
    assert run("render", "portrait.mp4", "--size", "120x160").code == 0
    (listed,) = run("rendition", "ls", "portrait.mp4", "--json").objects
    assert (listed["width"], listed["height"]) == (120, 160)


def test_impossible_sizes_are_refused(run: Run) -> None:
    for size, word in (("161x120", "even"), ("640x480", "at most 320x240"), ("320x240", "differ")):
        done = run("render", TRAFFIC, "--size", size)
        assert (done.code, done.out) == (2, "")
        assert word in done.err
