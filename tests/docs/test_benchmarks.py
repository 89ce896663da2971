"""The benchmark programs run, check their data and report figures; bounds apply to real runs
only."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.contestants import RATES
from benchmarks.filmed import Clip, filmed
from benchmarks.players import LIBRARIES
from benchmarks.suites import __main__ as suites
from sample_videos import FOLDER
from sample_videos.encoding import Encoding
from sample_videos.scene import Scene
from sample_videos.writing import write
from tests.fault.layer import has_compiler
from tests.support.postgresql import PostgresqlServer
from tests.support.seaweedfs import seaweedfs_program
from vfsd.codecs.stitching.kvazaar import kvazaar_available

ROOT = FOLDER.parent


def run(tmp_path: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The report of one short run in this process, because starting another takes longer than
    most runs."""
    out = tmp_path / "figures.json"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # also of other readers
        patch.chdir(ROOT)
        patch.setenv("VFSD_FOOTAGE", str(FOLDER))
        patch.setattr(sys, "argv", [name, "--json", str(out), *arguments])
        with pytest.raises(SystemExit) as end:
            importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code in (0, 1)
    return told(out, name.partition(".")[0])


def run_apart(tmp_path: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The same in a separate process, as users start it."""
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json", str(out), *arguments],
        cwd=ROOT,
        env=os.environ | {"VFSD_FOOTAGE": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert out.exists(), done.stderr
    return told(out, name)


def told(out: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["benchmark"] == name
    return report


@pytest.mark.thorough
def test_vectors(tmp_path: Path) -> None:
    small = ("--count", "21000", "--queries", "5", "--runs", "1")
    (row,) = run(tmp_path, "vectors", *small, "--only", "clustered")["figures"]
    assert row["recall"] >= 0.99
    assert row["recall_of_exact"] >= 0.99


@pytest.mark.thorough
def test_labelling(tmp_path: Path) -> None:
    rows = run(tmp_path, "labelling", "--runs", "1")["figures"]
    assert [row["how"] for row in rows] == ["random", "far"]
    assert all(0 < row["choosing"] < row["median"] for row in rows)


def test_events(tmp_path: Path) -> None:
    figures = run(tmp_path, "events", "--scenes", "40", "--tracks", "60")["figures"]
    assert sum(one["events"] for one in figures["scenes"]["queries"].values()) > 0


@pytest.mark.thorough
def test_million_frames(tmp_path: Path) -> None:
    figures = run(tmp_path, "million_frames", "--frames", "20000")["figures"]
    assert figures["bytes_a_frame"] < 24


@pytest.mark.thorough
def test_catalog_server(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    report = run_apart(tmp_path, "catalog_server", "--seconds", "0.5", "--no-mount")
    assert report["passed"]
    assert report["figures"]["next video[j]"] == 0
    assert report["figures"]["16 writers"]["alone"] > 0


def test_index(tmp_path: Path) -> None:
    figures = run(tmp_path, "index", "--boxes", "5000", "--runs", "12")["figures"]["5000"]
    assert figures["bytes_a_box"] < 300
    assert figures["lookups"]["label + 1 s + region"]["found"] > 0


@pytest.mark.thorough
def test_layers(tmp_path: Path) -> None:
    figures = run(tmp_path, "layers", "--runs", "3", "--frames", "60")["figures"]
    assert 60 < figures["maps"] <= 120
    assert 0 < figures["index_share"] < 0.2
    assert figures["unordered_loaded"] >= figures["top_loaded"] > 0


@pytest.mark.thorough
def test_eviction(tmp_path: Path) -> None:
    options = ("--seconds", "30", "--reads", "20", "--seeds", "1", "--videos", "1")
    figures = run(tmp_path, "eviction", *options, "--budgets", "0.1", "0.5")["figures"]
    for form in figures["orders"].values():
        for row in form["anywhere"].values():
            assert all(0 < part <= 1 for order in row.values() for part in order)
    for row in figures["systems"]["W3"].values():
        assert all(0 < part < 2 for part in row.values())


@pytest.mark.thorough
def test_random_access(tmp_path: Path) -> None:
    clip = str(FOLDER / "traffic.mp4")
    report = run(tmp_path, "random_access", "--frames", "5", "--runs", "1", clip)
    assert report["figures"]["traffic.mp4"]["vfsd"]["wrong"] == 0


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_clips(tmp_path: Path) -> None:
    clip = str(FOLDER / "traffic.mp4")
    figures = run(tmp_path, "clips", "--workers", "0", clip)["figures"]
    assert figures["clips"] == 3
    assert not any(wrong for name, wrong in figures["wrong"].items() if name.startswith("vfsd"))


@pytest.mark.thorough
def test_stitching(tmp_path: Path) -> None:
    if not kvazaar_available():
        pytest.skip("kvazaar is not there: pip install 'vfsd[stitch]'")
    clip = str(FOLDER / "traffic.mp4")
    figures = run(tmp_path, "stitching", "--frames", "4", "--runs", "1", clip)["figures"]
    assert {"2x2", "3x3", "4x4", "mixed"} < set(figures["traffic.mp4"])
    for found in figures["traffic.mp4"].values():
        assert found["ffmpeg"] == 0
        assert not found["libde265"]


def made(tmp_path: Path, width: int, height: int, frames: int) -> str:
    """A clip large enough for sixteen tiles."""
    path = tmp_path / "made.mp4"
    write(Scene(width=width, height=height, frames=frames), Encoding(gop=15), path)
    return str(path)


@pytest.mark.thorough
def test_spatial(tmp_path: Path) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    clip = made(tmp_path, 512, 384, 20)
    options = ("--share", "0.05", "--seconds", "0.5", "--frames", "3", "--runs", "1")
    (found,) = run(tmp_path, "spatial", *options, clip)["figures"].values()
    assert found["vfsd, around (1)"]["worst_psnr"] > 35
    assert found["vfsd, grid (auto)"]["worst_psnr"] > 35


@pytest.mark.thorough
def test_retrieval(tmp_path: Path) -> None:
    options = ("--small", "--seconds", "0.5", "--runs", "1", "--grids", "2")
    figures = run(tmp_path, "retrieval", *options)["figures"]
    for pair in figures["pairs"]:
        assert {"1x1", "fine", "coarse", "all", "2x2"} <= set(pair["improvement"])
        assert pair["psnr"] >= 40


@pytest.mark.thorough
def test_fullscan(tmp_path: Path) -> None:
    figures = run(tmp_path, "fullscan", "--runs", "1", str(FOLDER / "traffic.mp4"))["figures"]
    for found in figures["traffic.mp4"].values():
        assert found["worst_psnr"] > 30
        assert {"vfsd", "pyav", "tiles"} <= set(found["frames_a_second"])


@pytest.mark.thorough
def test_tiling_cost(tmp_path: Path) -> None:
    clip = made(tmp_path, 320, 256, 20)
    (found,) = run(tmp_path, "tiling_cost", "--runs", "1", clip)["figures"].values()
    assert {"untiled", "uniform:2x2", "uniform:4x4"} <= set(found["layouts"])
    for values in found["layouts"].values():
        assert abs(values["lost"]) < 1
    assert all(values["least_psnr"] >= 40 for values in found["aimed"].values())


@pytest.mark.thorough
def test_overlap(tmp_path: Path) -> None:
    figures = run(tmp_path, "overlap", "--frames", "5", "--width", "256")["figures"]
    found = figures["discovery"]
    assert (found["recall"], found["false_joins"]) == (1, 0)
    assert len(figures["joining"]) == 3
    for row in figures["joining"]:
        assert row["untouched"]
        assert row["merges"]["mean"]["saved"] > 0
        assert min(row["merges"]["mean"]["psnr"]) > 30


@pytest.mark.thorough
def test_covers(tmp_path: Path) -> None:
    options = ("--frames", "8", "--width", "256", "--only", "generated, 75%")
    (row,) = run(tmp_path, "covers", *options)["figures"]
    assert row["now"] == row["files"] + row["cells"]
    assert row["each"] < row["files"]
    assert row["pieces"] < row["each"]
    for key in ("each_psnr", "pieces_psnr"):
        assert all(a >= b - 0.05 for a, b in zip(row[key], row["cells_psnr"], strict=True))


@pytest.mark.thorough
def test_deferred(tmp_path: Path) -> None:
    clip = str(FOLDER / "traffic.mp4")
    options = ("--frames", "4", "--runs", "1", "--levels", "1", "19")
    (found,) = run(tmp_path, "deferred", clip, *options)["figures"].values()
    assert set(found) == {"rgb24", "yuv420p"}
    for ways in found.values():
        assert set(ways) == {"raw", "zstd 1", "zstd 19", "ours 1", "ours 19"}
        assert not any(way["wrong"] for way in ways.values())
        assert ways["ours 1"]["ratio"] > ways["zstd 1"]["ratio"]


@pytest.mark.thorough
@pytest.mark.mount
def test_fidelity(tmp_path: Path, mountable: None) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    clips = [str(FOLDER / name) for name in ("traffic.mp4", "edit-list.mp4", "README.md")]
    report = run(tmp_path, "fidelity", *clips)
    assert report["passed"], report["figures"]


@pytest.mark.thorough
@pytest.mark.mount
def test_crash(tmp_path: Path, mountable: None) -> None:
    report = run(tmp_path, "crash", "--kills", "1")
    assert report["figures"]["losses"] == 0, report["figures"]["what"]


@pytest.mark.thorough
def test_faults(tmp_path: Path) -> None:
    if not has_compiler():
        pytest.skip("no C compiler")
    few = ("--kills", "1", "--cuts", "2", "--errors", "1", "--only", "config")
    report = run_apart(tmp_path, "faults", *few, "--folder", str(tmp_path))
    total = report["figures"]["total"]
    assert report["passed"], report["figures"]["rows"]
    assert (total["kills"], total["cuts"]) == (1, 2)
    assert total["errors"] == total["clean"] == total["unchanged"] > 3


@pytest.mark.thorough
@pytest.mark.mount
def test_mutations(tmp_path: Path, mountable: None) -> None:
    report = run(tmp_path, "mutations", "--files", "8", "--most-bytes", "30000")
    assert report["passed"], report["figures"]["failures"]
    assert report["figures"]["files"] == 8


@pytest.mark.thorough
def test_fuzz(tmp_path: Path) -> None:
    targets = ("bitstreams", "files", "grammar", "options", "pages")
    report = run_apart(tmp_path, "fuzz", *targets, "--seconds", "0.1")
    assert report["passed"], report["figures"]
    assert all(told["inputs"] > 0 for told in report["figures"].values())


@pytest.mark.thorough
@pytest.mark.mount
def test_mount_io(tmp_path: Path, mountable: None) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    figures = run(tmp_path, "mount_io", "--mib", "4", "--files", "50", "--runs", "1")["figures"]
    assert {"first", "again", "cold", "cp"} <= set(figures)


@pytest.mark.thorough
@pytest.mark.mount
def test_smallfiles(tmp_path: Path, mountable: None) -> None:
    options = ("--files", "30", "--echoes", "3", "--runs", "1", "--against", str(ROOT))
    figures = run(tmp_path, "smallfiles", *options)["figures"]
    assert set(figures) == {"native", "vfsd", "the other"}
    for took in figures.values():
        assert all(took[step]["wall"][0] > 0 for step in ("tar xf", "echo", "rm -r"))


@pytest.mark.thorough
def test_web_serving(tmp_path: Path) -> None:
    figures = run(tmp_path, "web_serving", "--readers", "4", "--runs", "2", "--videos", "2")[
        "figures"
    ]
    assert figures["vfsd serve"]["requests"] == 8
    assert all(found["p99"] > 0 for found in figures.values())


@pytest.mark.thorough
def test_formats(tmp_path: Path) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    options = ("--seconds", "1", "--runs", "1", "--no-mount", "--only", "540p")
    figures = run(tmp_path, "formats", *options)["figures"]
    assert {"540p, AV1", "540p, JPEG", "540p, FFV1", "raw, 540p, rgb24"} < set(figures)
    for found in figures.values():
        assert found["save"]["psnr"] > 35
        assert found["save"]["pictures"] == figures["540p, FFV1"]["save"]["pictures"] >= 30
    assert figures["540p, FFV1"]["save"]["psnr"] == 99


@pytest.mark.thorough
def test_filmed_clips_are_looped_with_boxes(tmp_path: Path) -> None:
    for folder in ("real", "gt"):
        (tmp_path / folder).mkdir()
    shutil.copy(FOLDER / "traffic.mp4", tmp_path / "real" / "traffic.mp4")
    clip = Clip.probe(tmp_path / "real" / "traffic.mp4")
    rows = [f"{frame},car,10.5,20,30.2,40" for frame in range(clip.frames)]
    rows += ["0,dog,1,1,9,9", f"1,car,{clip.width - 5},0,{clip.width + 5},9"]
    table = "\n".join(["frame,label,x1,y1,x2,y2", *rows])
    (tmp_path / "gt" / "traffic.motion.csv").write_text(table)
    seconds = 2 * clip.frames // clip.rate + 1
    footage, rates = filmed(tmp_path, seconds, RATES)["traffic"]
    # a single dog is a detection error
    assert [set(seen) for seen in footage.seen] == [{"car"}] * seconds
    boxes = np.concatenate([seen["car"].frames for seen in footage.seen])
    corners = np.concatenate([seen["car"].corners for seen in footage.seen])
    assert corners[boxes == clip.frames + 1].tolist() == corners[boxes == 1].tolist()
    assert corners[boxes == 1].tolist() == [
        [10, 20, 31, 40],
        [clip.width - 5, 0, clip.width, 9],
    ]
    area = 21 * 20 * clip.frames + 5 * 9
    still = clip.width * clip.height * clip.frames
    size = rates.density.still * still + rates.density.moving * area
    assert size == pytest.approx(clip.bytes)


@pytest.mark.thorough
def test_macro(tmp_path: Path) -> None:
    short = ("--videos", "1", "--seconds", "15", "--queries", "8", "--detector", "30")
    figures = run(tmp_path, "macro", *short)["figures"]["30 ms"]
    assert figures["none"]["total"] == [1.0]
    assert 0 < figures["ledger"]["last"][0] <= 1


@pytest.mark.thorough
@pytest.mark.mount
def test_suites(tmp_path: Path, mountable: None) -> None:
    """Suites that need only the mount, and one with a missing requirement."""
    options = ("--seconds", "1", "--many", "60", "--folder", str(tmp_path))
    figures = run(tmp_path, "suites.__main__", "names", "pjdfstest", *options)["figures"]
    assert figures["names"]["passed"] == 62
    assert not figures["names"]["failures"]
    assert "--pjdfstest" in figures["pjdfstest"]["missing"]


_LOADER_TESTS = """
import os
import pytest

def test_passes_everywhere(tmp_path):
    (tmp_path / "a").write_text("b")

def test_fails_everywhere():
    assert False

def test_fails_in_the_mount(tmp_path):
    assert "mnt" not in tmp_path.parts

@pytest.mark.skip
def test_skipped():
    pass
"""


@pytest.mark.thorough
@pytest.mark.mount
def test_suites_of_loaders(
    tmp_path: Path, mountable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a test that fails in the mount alone is a failure."""
    checkout = tmp_path / "checkout"
    (checkout / "tests/datasets").mkdir(parents=True)
    (checkout / "tests/datasets/test_it.py").write_text(_LOADER_TESTS)
    (tmp_path / "lerobot.py").write_text("__version__ = '1.2'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = tmp_path / "figures.json"
    words = ("lerobot", "--lerobot", str(checkout), "--folder", str(tmp_path))
    assert ended("suites.__main__", *words, "--json", str(report)) == 1
    found = json.loads(report.read_text())["figures"]["lerobot"]
    assert (found["passed"], found["version"]) == (1, "1.2")
    assert [one.split("::")[1].split(":")[0] for one in found["failures"]] == [
        "test_fails_in_the_mount"
    ]
    assert ["test_fails_everywhere" in one for one in found["not_applicable"]] == [True]


@pytest.mark.thorough
def test_remote_reads(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    if seaweedfs_program() is None:
        pytest.skip("there is no S3 server: pip install 'vfsd[test-cluster]'")
    video = str(FOLDER / "traffic.mp4")
    figures = run(tmp_path, "remote_reads", video, "--frames", "2", "--lag", "0")["figures"]
    assert figures["vfsd, frame, warm, opened each time"]["requests"] == 0
    assert not any(one.get("wrong") for one in figures.values())


def ended(name: str, *arguments: str) -> int:
    """The exit status of a benchmark that runs in this process."""
    main = importlib.import_module(f"benchmarks.{name}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_named_but_missing_suite_fails(
    tmp_path: Path, mountable: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", str(tmp_path))
    report = tmp_path / "figures.json"
    assert ended("suites.__main__", "fsx", *folder, "--json", str(report)) == 1
    assert not json.loads(report.read_text())["passed"]
    assert "A BOUND WAS MISSED" in capsys.readouterr().err


def test_unnamed_missing_suite_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures(name: str, *_: object) -> dict[str, Any]:
        return {"passed": 2, "unit": "tests", "failures": ()} if name == have else missing

    missing = {"missing": "needs something"}
    monkeypatch.setattr(suites, "_figures_of", figures)
    report = tmp_path / "figures.json"
    have = "git"
    assert ended("suites.__main__", "--json", str(report)) == 0
    written = json.loads(report.read_text())
    assert written["passed"]
    assert len(written["left_out"]) == len(suites.SUITES) - 1
    assert "bounds met in what was run; not run: " in capsys.readouterr().err
    assert ended("suites.__main__", "git", "--json", str(report)) == 0
    assert "left_out" not in json.loads(report.read_text())
    assert "all bounds met" in capsys.readouterr().err
    have = "none"
    assert ended("suites.__main__") == 1


@pytest.mark.parametrize(
    "name", ["bitflips", "crash", "faults", "mount_io", "mutations", "smallfiles"]
)
def test_missing_folder_is_reported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(name, "--folder", "/nosuch/folder") == 2
    assert "directory not found: /nosuch/folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("fuzz", "--seeds", "/nosuch"), ("faults", "--part", "x"), ("faults", "--part", "3/2")],
)
def test_invalid_option_is_reported(
    name: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(name, option, value) == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", [("formats",), ("covers", "--frames", "2", "--width", "96")])
def test_unknown_choice_is_reported(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*words, "--only", "nosuch") == 2
    assert "nosuch" in capsys.readouterr().err


def test_unknown_operation_is_reported() -> None:
    if not has_compiler():
        pytest.skip("the layer needs a compiler")
    command = [sys.executable, "-m", "benchmarks.faults", "--only", "nosuch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no operation is called nosuch" in done.stderr


@pytest.mark.thorough
def test_live(tmp_path: Path, mountable: None) -> None:
    size = ("--small", "--seconds", "4", "--bursts", "2", "--reads", "4", "--pause", "1")
    figures = run(tmp_path, "live", *size, "--max-load", "100")["figures"]
    assert figures["not tuned"]["exact"] == figures["reads"] == 8
    worst = figures["tuned"]["worst_psnr"]
    assert worst is None or worst > 25


@pytest.mark.slow
def test_workloads(tmp_path: Path) -> None:
    plots = tmp_path / "plots"
    size = ("--videos", "1", "--seconds", "12", "--dense-seconds", "2")
    short = (*size, "--plots", str(plots))
    finals = run(tmp_path, "workloads", *short)["figures"]["finals"]
    assert set(finals) == {"W1", "W2", "W3", "W4", "W5", "W6"}
    for found in finals.values():
        assert found["none"] == [1.0, 1.0, 1.0]
        assert found["ledger, wanted tiles"][2] < 2.1
    assert [path.name for path in plots.iterdir()] == ["workloads.png"]


@pytest.mark.thorough
def test_selection(tmp_path: Path) -> None:
    options = ("--plans", "10", "--seconds", "4", "--shares", "0", "1", "--runs", "1")
    figures = run(tmp_path, "selection", *options, str(FOLDER / "traffic.mp4"))["figures"]
    assert figures["plans"]["10"] < 1
    assert [row["stored"] for row in figures["reads"]] == [0, 4]
    assert all(row["psnr"] > 36 for row in figures["reads"])


@pytest.mark.thorough
def test_fragments(tmp_path: Path) -> None:
    options = ("--seconds", "4", "--fragments", "0", "4", "--reads", "2", "--runs", "1")
    rows = run(tmp_path, "fragments", *options, str(FOLDER / "traffic.mp4"))["figures"]
    assert [row["stored"] for row in rows] == [0, 4]
    assert all(row["psnr"] > 36 for row in rows)
    assert all(row["one, greedy"] > 0 for row in rows)


@pytest.mark.thorough
@pytest.mark.mount
def test_longview(tmp_path: Path, mountable: None) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    options = ("--seconds", "8", "--runs", "1", "--ours-only")
    players = ("--player", "ffmpeg", "--player", "PyAV")  # for OpenCV see below
    figures = run(tmp_path, "longview", *options, *players, str(FOLDER / "traffic.mp4"))["figures"]
    assert set(figures) == {"ffmpeg", "PyAV"}
    for by_place in figures.values():
        for where in ("the start", "the middle"):
            assert by_place[where]["vfsd"]["off"] == 0
            assert by_place[where]["vfsd"]["psnr"] > 30


@pytest.mark.thorough
def test_libraries_show_the_same_frame() -> None:
    clip = str(FOLDER / "traffic.mp4")
    assert set(LIBRARIES) == {"PyAV", "OpenCV"}
    for at in (0, 2.01):
        one, other = (show(clip, at) for show in LIBRARIES.values())
        assert one is not None
        assert other is not None
        assert float(np.abs(one.astype(np.int16) - other).mean()) < 1


@pytest.mark.thorough
def test_chains(tmp_path: Path) -> None:
    clip = str(FOLDER / "portrait.mp4")
    options = ("--frames", "6", "--steps", "3", clip)
    figures = run(tmp_path, "chains", *options)["figures"]
    assert figures["violations"] == 0
    assert len(figures["steps"]) == 12
    assert figures["slack"]["least"] >= 0


@pytest.mark.thorough
@pytest.mark.mount
def test_load(tmp_path: Path, mountable: None) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    size = ("--seconds", "1", "--idle", "0.2", "--share", "0.1")
    figures = run(tmp_path, "load", *size)["figures"]
    assert figures["wrong"] == figures["errors"] == []
    assert {"sequential", "random", "raw", "api", "writers"} < set(figures["by kind"])
    assert figures["memory"]["most"] > 0
    assert figures["fsck"]["code"] == 0


@pytest.mark.thorough
@pytest.mark.mount
def test_fairness(tmp_path: Path, mountable: None) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    options = ("--runs", "1", "--seconds", "0.2", "--ahead", "0.6", "--renders", "1")
    phases = run(tmp_path, "fairness", *options)["figures"]["phases"]
    assert set(phases) == {"idle", "raw", "encoded"}
    assert all(row["wrong"] == [] for row in phases.values())


@pytest.mark.thorough
def test_bitflips(tmp_path: Path) -> None:
    report = run(tmp_path, "bitflips", "--flips", "7", "--seconds", "0.5", "--mounted", "0")
    assert report["passed"]
    assert report["figures"]["troubles"] == []
    assert sum(row["detected"] for row in report["figures"]["kinds"].values()) == 7


_OF_FILES = (
    *("admitting", "chains", "deferred", "fidelity", "fragments", "fullscan", "longview"),
    *("random_access", "selection", "spatial", "stitching", "tiling_cost"),
)


@pytest.mark.parametrize("name", _OF_FILES)
def test_missing_file_is_an_invalid_argument(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "nowhere.mp4"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code == 2
    assert "file not found: nowhere.mp4" in capsys.readouterr().err


@pytest.mark.slow
def test_corpus(tmp_path: Path) -> None:
    if shutil.which("ffprobe") is None:
        pytest.skip("ffmpeg is not installed")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("traffic.mp4", "edit-list.mp4", "README.md"):
        shutil.copy(FOLDER / name, corpus / name)
    report = run(tmp_path, "corpus", "--corpus", str(corpus), "--jobs", "1")
    assert report["passed"], report["figures"]
    states = {row["file"]: row["state"] for row in report["figures"]}
    assert states == {"traffic.mp4": "served", "edit-list.mp4": "served", "README.md": "refused"}
