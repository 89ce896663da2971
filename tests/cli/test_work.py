"""``--on``, ``--units`` and ``vfsd work``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from vfsd.api.store import Store
from vfsd.work import perform_at

TRAFFIC = "cam1/traffic.mp4"
TWO = ("--layout", "uniform:1x2")


def test_retile_on_processes(run: Run, place: Path) -> None:
    made = run("retile", TRAFFIC, *TWO, "--on", "local:2", "--json").object
    assert (made["verb"], made["outcomes"], made["frames"]) == ("retile", {"made": 1}, 120)
    assert made["made"] == 4
    # The video had to be verified first, by an order of its own.
    assert [one["verb"] for one in run("work", "ls", "--json").objects] == ["retile", "verify"]
    assert "nothing to do, all 4" in run("retile", TRAFFIC, *TWO).out
    assert run("fsck").code == 0


def test_plan_first_and_run_later(run: Run) -> None:
    later = run("detect", TRAFFIC, "--with", "motion", "--on", "later", "--json").object
    assert later["outcomes"] == {"waiting": 1}
    order = later["order"]
    assert run("work", "run", order, "--part", "1/2", "--json").object["outcomes"] == {"waiting": 1}
    assert run("work", "run", order, "--part", "0/2", "--json").object["outcomes"] == {"made": 1}
    shown = run("work", "show", order[:6], "--json").object
    assert (shown["spec"]["detector"], shown["failures"]) == ("motion", [])
    assert "frames" in run("work", "show", "last").out
    assert run("labels", "ls", TRAFFIC).code == 0


def test_render_scrub_and_verify(run: Run) -> None:
    assert run("verify", TRAFFIC, "--on", "local:1").code == 0
    size = ("--size", "160x120", "--for", "decoding")
    assert run("render", TRAFFIC, *size, "--on", "local:1", "--json").object["made"] == 4
    # The file, and the packs of the segments.
    assert run("scrub", TRAFFIC, "--on", "local:1", "--json").object["made"] == 5


def test_failures_and_retry(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        video = store[TRAFFIC]
        path = store.parts.objects.path(video.original.object_key or "")
        path.chmod(0o600)
        path.write_bytes(bytes(video.info.size))
    failed = run("verify", TRAFFIC, "--on", "local:1", "--json")
    assert (failed.code, failed.object["outcomes"]) == (30, {"failed": 1})
    ((failure,),) = [one["failures"] for one in run("work", "show", "last", "--json").objects]
    assert (failure["video"], failure["frames"]) == (TRAFFIC, [0, 120])
    assert failure["error"]
    said = run("work", "run", "last")
    assert said.code == 30
    assert "unit 0 failed: " in said.err
    assert run("work", "retry", "last", "--failed", "--json").object["outcomes"] == {"waiting": 1}


def test_cancelled_orders_wait(run: Run) -> None:
    run("verify", TRAFFIC, "--on", "later")
    assert run("work", "cancel", "last", "--json").object["cancelled"] is not None
    stopped = run("work", "run", "last")
    assert stopped.code == 12
    assert "1 of 1 units were not performed" in stopped.err
    assert run("work", "retry", "last", "--json").object["cancelled"] is None
    assert run("work", "run", "last").code == 0
    assert run("work", "rm", "last").code == 0
    assert run("work", "show", "last").code == 3


def test_units_for_other_engines(run: Run, place: Path) -> None:
    planned = run("detect", TRAFFIC, "--with", "motion", "--units", "units.jsonl", "--json").object
    assert planned["file"] == "units.jsonl"
    assert planned["cost"] > 0
    lines = Path("units.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == planned["units"] == 1
    assert [perform_at(str(place / "videos"), json.loads(one))["outcome"] for one in lines] == [
        "made"
    ]
    assert run("work", "ls", "--json").objects == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", TRAFFIC, "--on", "slurm:4"), "engine must be one of"),
        (("work", "run", "last", "--part", "1/1"), "part must be I/N"),
        (("work", "run", "last", "--part", "0/1", "--on", "local:1"), "either --on or --part"),
        (("scrub", "--from", "videos", "--on", "local:1"), "--from cannot be used"),
        (("retile", TRAFFIC, *TWO, "--on", "later"), "was not verified"),
    ],
)
def test_wrong_lines(run: Run, words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.code == 2
    assert message in done.err
