"""``vfsd reads``: what commands have read, listed and forgotten."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run

TRAFFIC, PORTRAIT = "cam1/traffic.mp4", "cam1/portrait.mp4"


def test_what_was_read_is_listed_the_newest_first(run: Run, tmp_path: Path) -> None:
    region = ("--region", "160x120+80+60")
    assert run("reads", TRAFFIC).out == ""
    assert run("read", TRAFFIC, tmp_path / "a.npy", "--span", "0-1", *region).code == 0
    assert run("read", TRAFFIC, tmp_path / "b.mp4", "--frames", "30:60", *region).code == 0
    assert run("explain", TRAFFIC, *region, "--run").code == 0  # tries are no reads
    view, array = run("reads", TRAFFIC, "--json").objects
    assert (array["kind"], array["frames"], array["count"]) == ("api", [0, 30], 30)
    assert (view["kind"], view["frames"], view["region"]) == ("view", [30, 60], "160x120+80+60")
    assert (array["source"], array["labels"], array["size"]) == ("original", None, [160, 120])
    assert 0 < array["pixels"] == array["untiled_pixels"]
    head, first, second = run("reads", TRAFFIC).lines
    assert head.split()[:3] == ["when", "by", "frames"]
    assert " view " in first
    assert " api " in second
    assert len(run("reads", TRAFFIC, "--limit", "1", "--json").objects) == 1
    assert len(run("reads", TRAFFIC, "--limit", str(10**20), "--json").objects) == 2


def test_all_videos_and_forgetting(run: Run, tmp_path: Path) -> None:
    assert run("ingest", "footage/portrait.mp4", "--to", "cam1").code == 0
    for name in (TRAFFIC, PORTRAIT, PORTRAIT):
        assert run("read", name, tmp_path / "a.png", "--at", "0", "--replace").code == 0
    assert [one["name"] for one in run("reads", "all", "--json").objects] == [
        PORTRAIT,
        PORTRAIT,
        TRAFFIC,
    ]
    assert run("reads", "all").lines[1].endswith(PORTRAIT)
    assert run("reads", PORTRAIT, "--clear", "--json").object == {
        "schema": 1,
        "name": PORTRAIT,
        "reads": 2,
    }
    assert run("reads", PORTRAIT, "--json").objects == []
    assert run("reads", "all", "--clear").code == 0
    assert run("reads", "all").out == ""
    assert run("reads", "nothing.mp4").code != 0
