"""vfsd tune: what it tells, makes, remembers and takes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, run_command
from tests.reading import label_read, region_read, remember
from vfsd.api.store import Store
from vfsd.core.detections import Detection
from vfsd.tiling import Rect

WIDE = "cam1/wide.mp4"
TRAFFIC = "cam1/traffic.mp4"


@pytest.fixture
def busy(place: Path, wide_clip: Path) -> Path:
    """The store's video `WIDE`, whose cars and whose corner are read often."""
    with Store.open(place / "videos") as store:
        video = store.ingest(wide_clip, WIDE)
        boxes = [Detection(at, "car", (500, 200, 560, 240)) for at in range(60)]
        video.labels.add(boxes, "test")
        remember(store, video, label_read(video, range(60), "car"), times=20)
        remember(store, video, region_read(video, range(30), Rect(0, 0, 64, 64)), times=10)
    return place


def test_nothing_is_made_without_being_told(run: Run, busy: Path) -> None:
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


def test_what_would_be_made_is_told_in_full(run: Run, busy: Path) -> None:
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


def test_what_was_made_is_told_and_remembered(run: Run, busy: Path) -> None:
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
def test_a_damaged_video_holds_up_no_other(run: Run, busy: Path) -> None:
    with Store.open(busy / "videos") as store:
        video = store[TRAFFIC]
        remember(store, video, region_read(video, range(60), Rect(0, 0, 64, 64)), times=500)
        path = store.parts.file_of(video.original).path
    assert run("tune", "--json").objects[0]["name"] == TRAFFIC  # the first that is tried
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))
    done = run("tune", "--apply", "--json")
    assert done.code == 30
    assert f"{TRAFFIC} is skipped" in done.err
    assert {one["name"] for one in done.objects} == {WIDE}
    assert len(done.objects) == 2


def test_a_decision_is_taken_back(run: Run, busy: Path) -> None:
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


def test_what_stands_after_tune_is_a_command_or_a_video(
    run: Run, busy: Path, wide_clip: Path
) -> None:
    """Even where a video is called like a command."""
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
def test_sizes_that_are_read_are_told_of(run: Run, place: Path, wide_clip: Path) -> None:
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
