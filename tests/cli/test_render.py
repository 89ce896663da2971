"""``vfsd render`` and ``vfsd rendition``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from vfsd.api.store import Store

TRAFFIC = "cam1/traffic.mp4"


def test_a_rendition_is_made_listed_and_dropped(run: Run, place: Path) -> None:
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


def test_larger_than_the_original_is_said_first(run: Run) -> None:
    done = run("render", TRAFFIC, "--size", "160x0", "--codec", "lossless")
    assert done.code == 0
    assert "times the size of these frames in the original" in done.err
    done = run("render", TRAFFIC, "--size", "80x60", "--for", "web", "--psnr", "25")
    assert "times the size" not in done.err


def test_large_rendition_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, consent is an option."""
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


def test_a_dry_run_stores_nothing(run: Run) -> None:
    found = run("render", TRAFFIC, "--size", "80x60", "--dry-run", "--json").object
    assert found["segments"] == 4
    assert found["read"]["gain"] > 10
    assert run("rendition", "ls", "--json").out == ""


def test_sizes_are_those_of_the_displayed_frame(run: Run) -> None:
    """The picture of portrait.mp4 is stored as 320x240 and shown as 240x320."""
    assert run("ingest", "footage/portrait.mp4").code == 0
    assert run("render", "portrait.mp4", "--size", "120x160").code == 0
    (listed,) = run("rendition", "ls", "portrait.mp4", "--json").objects
    assert (listed["width"], listed["height"]) == (120, 160)


def test_sizes_that_cannot_be(run: Run) -> None:
    for size, word in (("161x120", "even"), ("640x480", "larger"), ("320x240", "differ")):
        done = run("render", TRAFFIC, "--size", size)
        assert (done.code, done.out) == (2, "")
        assert word in done.err
