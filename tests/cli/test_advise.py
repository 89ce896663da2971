"""``vfsd advise``: from a workload to layouts that ``vfsd retile`` makes."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.selection import one_in

TRAFFIC, PORTRAIT = "cam1/traffic.mp4", "cam1/portrait.mp4"


def workload(*queries: dict[str, object]) -> str:
    Path("mine.json").write_text(json.dumps(list(queries)), encoding="utf-8")
    return "mine.json"


@pytest.mark.parametrize("name", one_in(2, [TRAFFIC, PORTRAIT]))
def test_what_is_advised_can_be_made_and_makes_reads_cheaper(run: Run, name: str) -> None:
    """Of a video that is stored turned, too."""
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


def test_a_table_for_people(run: Run) -> None:
    asked = workload({"labels": "dog"}, {"region": "80x64+16+8"})
    done = run("advise", TRAFFIC, asked)
    assert done.code == 0
    assert done.lines[0].split()[:2] == ["strategy", "decoding"]
    assert [line.split()[0] for line in done.lines[1:-1]] == [
        *("none", "known", "all", "lazy", "more", "regret", "ledger", "foreseen")
    ]
    assert done.lines[-1] == "best: no tiles: no tile would pay for itself"
    assert "1 of 2 queries have no result" in done.err


def test_reads_are_a_workload_and_another_strategy_may_be_chosen(run: Run) -> None:
    assert run("advise", TRAFFIC, "--from-reads").code == 3
    for _ in range(3):
        assert run("read", TRAFFIC, "a.npy", "--region", "80x64+16+8", "--replace").code == 0
    done = run("advise", TRAFFIC, "--from-reads", "--strategy", "lazy", "--json").object
    assert (done["queries"], done["regions"], done["advised"]) == (3, 1, "lazy")
    assert len(done["layouts"]) == 4
    assert run("advise", TRAFFIC, "--from-reads", "--newest", "2", "--json").object["queries"] == 2
    assert run("advise", TRAFFIC, "--from-reads", "--strategy", "best").code == 3


def test_nothing_is_written_over_and_mistakes_are_named(run: Run) -> None:
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
