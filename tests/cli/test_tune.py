"""``vfsd tune``: printing, applying, logging and undoing proposals.

``vfsd advise``: from a workload to layouts that ``vfsd retile`` makes.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.cli.conftest import Run, run_command
from tests.support.remembered_reads import label_read, region_read, remember
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.core.detections import Detection
from vfsd.tiling import Rect

WIDE = "cam1/wide.mp4"
TRAFFIC = "cam1/traffic.mp4"


@pytest.fixture
def busy(place: Path, wide_clip: Path) -> Path:
    """A store with video `WIDE`; its cars and its corner are read often."""
    with Store.open(place / "videos") as store:
        video = store.ingest(wide_clip, WIDE)
        boxes = [Detection(at, "car", (500, 200, 560, 240)) for at in range(60)]
        video.labels.add(boxes, "test")
        remember(store, video, label_read(video, range(60), "car"), times=20)
        remember(store, video, region_read(video, range(30), Rect(0, 0, 64, 64)), times=10)
    return place


def test_tune_is_a_dry_run_by_default(run: Run, busy: Path) -> None:
    before = run("info", WIDE, "--json").object["tiles"]
    for words in ((), ("--dry-run",), (WIDE,), ("cam1/*",)):
        done = run("tune", *words)
        assert done.code == 0
        assert "`vfsd tune --apply` makes them" in done.err
    assert before == run("info", WIDE, "--json").object["tiles"] is None
    heading, *lines = run("tune").lines
    assert heading.split() == [
        "video",
        "seconds",
        "segments",
        "for",
        "reads",
        "costs",
        "saves",
        "size",
    ]
    assert [line.split()[0] for line in lines] == [WIDE, WIDE]
    assert "car, 64x64+0+0" in lines[0]
    assert "0:00.00-0:01.00" in lines[0]
    assert "64x64" not in lines[1]


def test_proposals_are_printed_in_full(run: Run, busy: Path) -> None:
    found = run("tune", "--json").objects
    first = next(one for one in found if one["frames"] == [0, 30])
    assert first["name"] == WIDE
    assert first["span"] == [0.0, 1.0]
    assert first["codec"] == "fast"
    assert first["reasons"] == [
        {"label": "car", "region": None, "size": None, "reads": 20},
        {"label": None, "region": "64x64+0+0", "size": None, "reads": 10},
    ]
    assert first["reads"] == 30
    assert first["value"] == pytest.approx(first["saved"] / first["seconds"])
    assert 0 < first["saved"] < first["spent"]
    assert [one["value"] for one in found] == sorted((one["value"] for one in found), reverse=True)
    assert all(one["allowed"] for one in found)
    dear = run("tune", "--json", "--budget-bytes", "1K").objects
    assert [one["allowed"] for one in dear] == [False, False]
    assert "exceed the budget" in run("tune", "--budget-seconds", "0").err


def test_applied_proposals_are_printed_and_logged(run: Run, busy: Path) -> None:
    made = run("tune", WIDE, "--apply", "--json").objects
    assert [one["state"] for one in made] == ["in use", "in use"]
    assert run("tune", "history", "--json").objects == made[::-1]
    assert run("tune", "history", WIDE, "--limit", "1", "--json").object == made[-1]
    assert run("tune", "history", TRAFFIC, "--json").objects == []
    heading, *lines = run("tune", "history").lines
    assert heading.split()[:3] == ["id", "made", "by"]
    assert len(lines) == 2
    assert run("info", WIDE, "--json").object["tiles"]["segments"] == 2
    layouts = run("layout", "history", WIDE, "--json").objects
    assert {one["layout"] for one in layouts} == {one["layout"] for one in made}
    again = run("tune", "--apply")
    assert again.code == 0
    assert "nothing to make" in again.err
    assert run("fsck").code == 0


@pytest.mark.thorough
def test_damaged_video_does_not_stop_others(run: Run, busy: Path) -> None:
    with Store.open(busy / "videos") as store:
        video = store[TRAFFIC]
        remember(store, video, region_read(video, range(60), Rect(0, 0, 64, 64)), times=500)
        path = store.parts.originals.path_of(video.original)
    assert run("tune", "--json").objects[0]["name"] == TRAFFIC  # the first that is tried
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))
    done = run("tune", "--apply", "--json")
    assert done.code == 30
    assert f"{TRAFFIC} is skipped" in done.err
    assert {one["name"] for one in done.objects} == {WIDE}
    assert len(done.objects) == 2


def test_undo_a_decision(run: Run, busy: Path) -> None:
    assert "made 2 segments" in run("tune", "--apply").out
    first, second = (one["id"] for one in run("tune", "history", "--json").objects[::-1])
    done = run("tune", "undo", "--last", "--json").object
    assert (done["id"], done["restored"]) == (second, 0)
    assert f"decision {first} is undone" in run("tune", "undo", str(first)).err
    assert [one["state"] for one in run("tune", "history", "--json").objects] == ["undone"] * 2
    for words, code in (
        (["undo", str(first)], 4),
        (["undo", "99"], 3),
        (["undo", "--last"], 3),
        (["undo"], 2),
        (["undo", str(first), "--last"], 2),
    ):
        assert run("tune", *words).code == code
    assert run("tune", "--json").objects == []
    assert run("fsck").code == 0


def test_tune_accepts_commands_and_videos(run: Run, busy: Path, wide_clip: Path) -> None:
    """This includes a video named like a command."""
    with Store.open(busy / "videos") as store:
        video = store.ingest(wide_clip, "history")
        remember(store, video, region_read(video, range(30), Rect(0, 0, 64, 64)), times=10)
    assert run("tune", "history").out == ""
    assert {one["name"] for one in run("tune", "--json", "--", "history").objects} == {"history"}
    store_option = run_command("tune", "-s", busy / "videos", "history", "--json")
    assert (store_option.code, store_option.out) == (0, "")
    assert run("tune", "nobody.mp4").code == 3
    assert run("tune", "--budget-bytes", "much").code == 2
    assert run("tune", "--help").out.startswith("Usage: vfsd tune [OPTIONS] [VIDEO]...")
    assert run("tune", "undo", "--help").out.startswith("Usage: vfsd tune undo")


@pytest.mark.thorough
def test_proposals_include_frequently_read_sizes(run: Run, place: Path, wide_clip: Path) -> None:
    with Store.open(place / "videos") as store:
        video = store.ingest(wide_clip, WIDE)
        for _ in range(30):
            video.read(size=(240, 136))
    lines = run("tune").lines[1:]
    assert lines
    assert all("240x136" in line for line in lines)
    found = run("tune", "--json").objects
    assert {tuple(one["reasons"][0]["size"]) for one in found} == {(240, 136)}
    assert {one["layout"] for one in found} == {"240x136"}
    assert run("tune", "--apply").code == 0
    assert len(run("rendition", "ls").lines) == 1
    assert run("tune", "undo", "--last").code == 0


# --------------------------------------------------------------------------------------------------
# ``vfsd advise``: from a workload to layouts for ``vfsd retile``


PORTRAIT = "cam1/portrait.mp4"


def workload(*queries: dict[str, object]) -> str:
    Path("mine.json").write_text(json.dumps(list(queries)), encoding="utf-8")
    return "mine.json"


@pytest.mark.parametrize("name", one_in(2, [TRAFFIC, PORTRAIT]))
def test_applied_advice_reduces_read_cost(run: Run, name: str) -> None:
    """This includes a video that is stored rotated."""
    run("ingest", "footage/portrait.mp4", "--to", "cam1")
    region = ("--region", "80x64+16+8")
    asked = workload({"region": "80x64+16+8", "span": [0, 2], "times": 200})
    files = ("--layouts", "best.json", "--plot", "curves.png")
    advised = run("advise", name, asked, *files, "--json").object
    assert advised["best"] == advised["advised"] == "foreseen"
    assert advised["queries"] == 200
    by_name = {one["strategy"]: one for one in advised["strategies"]}
    assert by_name["none"]["relative"] == 1
    assert by_name["foreseen"]["relative"] < 0.7
    assert by_name["foreseen"]["seconds"] == pytest.approx(
        by_name["foreseen"]["decoding"] + by_name["foreseen"]["making"]
    )
    assert json.loads(Path("best.json").read_text()) == advised["layouts"]
    drawn = cv2.imread("curves.png")
    assert drawn is not None
    assert drawn.shape == (680, 1120, 3)

    before = run("explain", name, *region, "--span", "0-2", "--json").object
    assert run("read", name, "before.npy", *region, "--span", "0-2").code == 0
    made = run("retile", name, "--layout-file", "best.json", "--json").object
    assert made["segments"] == len(advised["layouts"]) == by_name["foreseen"]["segments"]
    assert made["tiles"] == by_name["foreseen"]["tiles"]
    after = run("explain", name, *region, "--span", "0-2", "--json").object
    assert {one["source"] for one in after["sources"]} == {"tiles"}
    assert after["decoded"]["seconds"] < before["decoded"]["seconds"] / 2
    assert run("read", name, "after.npy", *region, "--span", "0-2").code == 0
    change = np.abs(np.load("after.npy").astype(int) - np.load("before.npy"))
    assert 0 < change.mean() < 2

    again = run("advise", name, asked, "--json").object
    present = next(one for one in again["strategies"] if one["strategy"] == "present")
    assert (present["making"], present["tiles"]) == (0, made["tiles"])
    assert present["relative"] < 1


def test_advice_as_a_table(run: Run) -> None:
    asked = workload({"labels": "dog"}, {"region": "80x64+16+8"})
    done = run("advise", TRAFFIC, asked)
    assert done.code == 0
    assert done.lines[0].split()[:2] == ["strategy", "decoding"]
    assert [line.split()[0] for line in done.lines[1:-1]] == [
        *("none", "known", "all", "lazy", "more", "regret", "ledger", "foreseen")
    ]
    assert done.lines[-1] == "best: no tiles: no tile would pay for itself"
    assert "1 of 2 queries have no result" in done.err


def test_advice_from_logged_reads_with_another_strategy(run: Run) -> None:
    assert run("advise", TRAFFIC, "--from-reads").code == 3
    for _ in range(3):
        assert run("read", TRAFFIC, "a.npy", "--region", "80x64+16+8", "--replace").code == 0
    done = run("advise", TRAFFIC, "--from-reads", "--strategy", "lazy", "--json").object
    assert (done["queries"], done["regions"], done["advised"]) == (3, 1, "lazy")
    assert len(done["layouts"]) == 4
    assert run("advise", TRAFFIC, "--from-reads", "--newest", "2", "--json").object["queries"] == 2
    assert run("advise", TRAFFIC, "--from-reads", "--strategy", "best").code == 3


def test_advice_overwrites_nothing_and_reports_errors(run: Run) -> None:
    asked = workload({"region": "80x64+16+8", "span": [0, 1]})
    Path("there.json").write_text("mine", encoding="utf-8")
    assert run("advise", TRAFFIC, asked, "--layouts", "there.json").code == 4
    assert Path("there.json").read_text(encoding="utf-8") == "mine"
    assert run("advise", TRAFFIC, asked, "--layouts", "there.json", "--replace").code == 0
    assert json.loads(Path("there.json").read_text(encoding="utf-8")) == []
    for wrong, code in (
        ((asked, "--from-reads"), 2),
        ((), 2),
        ((asked, "--newest", "5"), 2),
        ((asked, "--plot", "curves.gif"), 2),
        (("nothing.json",), 3),
        ((workload({"region": "80x64"}),), 2),
    ):
        assert run("advise", TRAFFIC, *wrong).code == code
    done = run("advise", TRAFFIC, workload({"region": "80x64+16+8"}, {"region": "80x64+300+0"}))
    assert done.code == 6
    assert "query 1" in done.err
    assert run("advise", "nothing.mp4", asked).code == 3
