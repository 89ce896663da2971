"""``vfsd overlap``."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.cli.conftest import Run

FRAMES = 36


@pytest.fixture
def cameras(place: Path, run: Run) -> None:
    """Two cameras at one place, in addition to the other videos."""
    filmed = FilmedScene.of(Cameras(), frames=FRAMES, seed=1)
    for name, picture in (("west", filmed.left), ("east", filmed.right)):
        write_pictures(place / "footage" / f"{name}.mp4", map(picture, range(FRAMES)))
        assert run("ingest", place / "footage" / f"{name}.mp4", "--to", "gate").code == 0


@pytest.mark.usefixtures("cameras")
def test_find(run: Run) -> None:
    done = run("overlap", "find")
    assert done.code == 0, done.err
    heading, line = done.lines
    assert heading.split()[:2] == ["left", "right"]
    assert line.split()[:4] == ["gate/west.mp4", "gate/east.mp4", "join", "fixed"]
    assert "1 pairs; compared 6 pairs of 4 videos" in done.err
    (found,) = run("overlap", "find", "gate/*", "--json").objects
    assert found["shares"] == pytest.approx([0.5, 0.5], abs=0.03)
    assert min(found["psnr"]) > 30
    assert 0.2 < found["common"] < 0.3
    assert "in common" in heading
    assert [moment["seconds"] for moment in found["moments"]] == [0.5, 1.0]
    assert run("overlap", "find", "cam1/*").out == ""
    assert run("overlap", "find", "nowhere/*").code == 3


@pytest.mark.usefixtures("cameras")
def test_unreadable_video_is_reported(place: Path, run: Run) -> None:
    assert run("ingest", place / "footage" / "portrait.mp4", "--link").code == 0
    (place / "footage" / "portrait.mp4").unlink()
    done = run("overlap", "find")
    assert done.code == 30
    assert len(done.lines) == 2
    assert "portrait.mp4 was skipped" in done.err


@pytest.mark.usefixtures("cameras")
def test_show_draws_both_frames(place: Path, run: Run) -> None:
    done = run("overlap", "show", "gate/east.mp4", "gate/west.mp4", "-o", "both.png")
    assert done.code == 0, done.err
    assert "verdict    join" in done.lines
    assert "in words   Fixed cameras see the same at the same time in " in done.out
    assert any(line.startswith("saves      nothing, as both originals stay") for line in done.lines)
    picture = cv2.imread("both.png")
    assert picture is not None
    assert picture[-100:].std() > 10  # below the lines of text there is a picture
    assert run("overlap", "show", "gate/east.mp4", "gate/west.mp4", "-o", "both.png").code == 4
    assert run("overlap", "show", "gate/east.mp4", "gate/west.mp4", "-o", "both.gif").code == 2
    late = ("-o", "late.png", "--at", "60")
    assert run("overlap", "show", "gate/east.mp4", "gate/west.mp4", *late).code == 6
    assert not (place / "late.png").exists()


@pytest.mark.usefixtures("cameras")
def test_show_reports_a_missing_overlap(run: Run) -> None:
    done = run("overlap", "show", "gate/east.mp4", "cam1/traffic.mp4")
    assert done.code == 3
    assert "do not show the same place" in done.err


@pytest.mark.usefixtures("cameras")
def test_join_and_split(run: Run) -> None:
    assert run("overlap", "ls").out == ""
    tried = run("overlap", "join", "gate/west.mp4", "gate/east.mp4", "--dry-run", "--json")
    assert tried.code == 0, tried.err
    (foretold,) = tried.objects
    assert (foretold["frames"], foretold["stored"]) == (FRAMES, False)
    assert run("overlap", "ls").out == ""
    done = run("overlap", "join", "gate/east.mp4", "gate/west.mp4")
    assert done.code == 0, done.err
    assert "left           gate/west.mp4" in done.lines
    assert f"joined         {FRAMES} frames in 1 segments" in done.lines
    assert " are added, as the originals stay" in done.out
    (listed,) = run("overlap", "ls", "gate/east.mp4", "--json").objects
    assert (listed["left"], listed["right"]) == ("gate/west.mp4", "gate/east.mp4")
    assert listed["bytes"] == pytest.approx(foretold["bytes"], rel=0.05)
    assert min(listed["psnr"]) >= 30
    (again,) = run("overlap", "join", "gate/east.mp4", "gate/west.mp4", "--json").objects
    assert (again["frames"], again["before"]) == (0, FRAMES)
    _, line = run("overlap", "ls").lines
    assert line.split()[:4] == ["gate/west.mp4", "gate/east.mp4", str(FRAMES), "1"]
    (gone,) = run("overlap", "split", "gate/west.mp4", "--json").objects
    assert gone == listed
    assert run("overlap", "split", "gate/west.mp4").code == 3
    assert run("overlap", "ls").out == ""


@pytest.mark.thorough
@pytest.mark.usefixtures("cameras")
def test_joining_a_joined_video_is_refused(place: Path, run: Run) -> None:
    assert run("overlap", "join", "gate/east.mp4", "gate/west.mp4").code == 0
    assert run("read", "gate/west.mp4", "copy.mp4").code == 0
    assert run("ingest", "copy.mp4", "--as", "gate/copy.mp4").code == 0
    done = run("overlap", "join", "gate/west.mp4", "gate/copy.mp4", "--json")
    assert done.code == 30
    (told,) = done.objects
    assert (told["frames"], told["before"]) == (0, 0)
    assert told["left_as_they_are"] == {"already joined with gate/east.mp4": FRAMES}


@pytest.mark.thorough
@pytest.mark.usefixtures("cameras")
def test_videos_that_cannot_be_joined_are_reported(run: Run) -> None:
    done = run("overlap", "join", "gate/east.mp4", "cam1/traffic.mp4")
    assert done.code == 3
    assert "do not show the same place" in done.err
    assert run("overlap", "join", "gate/east.mp4", "gate/east.mp4").code == 2
    assert run("overlap", "join", "gate/east.mp4", "gate/west.mp4", "--psnr", "12").code == 2
    done = run("overlap", "join", "gate/east.mp4", "gate/west.mp4", "--psnr", "70")
    assert done.code == 30
    assert f"{FRAMES} frames: " in done.out


@pytest.mark.thorough
@pytest.mark.usefixtures("cameras")
def test_equal_videos_need_no_joining(place: Path, run: Run) -> None:
    assert run("ingest", place / "footage" / "west.mp4", "--as", "copy.mp4").code == 0
    (found,) = run("overlap", "find", "gate/west.mp4", "copy.mp4", "--json").objects
    assert (found["verdict"], found["common_bytes"], found["common"]) == ("same", 0, 0)
    assert found["sentence"].endswith(" have the same bytes, which are stored once.")
    shown = run("overlap", "show", "gate/west.mp4", "copy.mp4")
    assert "already stored once" in shown.out
    assert "saves" not in shown.out
    done = run("overlap", "join", "gate/west.mp4", "copy.mp4")
    assert (done.code, done.err) == (0, "")
    assert "nothing: both have the same bytes" in done.out
    (told,) = run("overlap", "join", "gate/west.mp4", "copy.mp4", "--json").objects
    assert (told["same"], told["frames"], told["bytes"]) == (True, 0, 0)
    assert run("overlap", "ls").out == ""
