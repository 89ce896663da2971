"""``vfsd layout`` and its commands, and the tiles in ``vfsd info``."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import pytest

from tests.cli.conftest import Run
from tests.cli.test_process import ROOT, VFSD, at_a_terminal
from vfsd.tiling import Rect
from vfsd.views.layout_files import frame_place, picture_size

TRAFFIC = "cam1/traffic.mp4"
TWO, THREE = "160+160x128+112", "112+96+112x80+80+80"


@pytest.fixture
def tiled(run: Run) -> Run:
    """2x2 everywhere, then 3x3 in the first second."""
    assert run("retile", TRAFFIC, "--layout", "uniform:2x2").code == 0
    assert run("retile", TRAFFIC, "--layout", "uniform:3x3", "--span", "0-1").code == 0
    return run


def layouts(run: Run) -> list[str]:
    segments = run("layout", "show", TRAFFIC, "--json").object["segments"]
    return [segment["layout"] for segment in segments]


def test_show_lists_segments_in_a_row(tiled: Run) -> None:
    head, first, rest = tiled("layout", "show", TRAFFIC).lines
    assert head.split()[:3] == ["seconds", "frames", "segments"]
    assert first.split()[:5] == ["0:00.00-0:01.00", "0-29", "1", "9", "fast"]
    assert first.endswith(THREE)
    assert rest.split()[:5] == ["0:01.00-0:04.00", "30-119", "3", "4", "fast"]
    assert rest.endswith(TWO)
    assert len(tiled("layout", "show", TRAFFIC, "--span", "2-3").lines) == 2


def test_show_as_json_is_complete(tiled: Run) -> None:
    found = tiled("layout", "show", TRAFFIC, "--json").object
    assert (found["width"], found["height"], found["total_frames"]) == (320, 240, 120)
    first = found["segments"][0]
    assert list(first) == [
        "frames",
        "span",
        "layout",
        "codec",
        "size",
        "psnr",
        "gop",
        "created",
        "tiles",
    ]
    assert (first["frames"], first["span"], first["layout"]) == ([0, 30], [0.0, 1.0], THREE)
    assert list(first["tiles"][0]) == ["tile", "region", "size", "quality", "psnr"]
    assert sum(Rect.parse(tile["region"]).area for tile in first["tiles"]) == 320 * 240
    assert first["psnr"] == min(tile["psnr"] for tile in first["tiles"])


def test_show_lists_the_tiles_of_one_frame(tiled: Run) -> None:
    lines = tiled("layout", "show", TRAFFIC, "--at", "0.5").lines
    assert lines[0].startswith(f"frames 0 to 29, {THREE}, fast, ")
    assert [line.split()[0] for line in lines[2:]] == [str(tile) for tile in range(9)]
    assert len(tiled("layout", "show", TRAFFIC, "--at", "3").lines) == 6


def test_regions_refer_to_the_displayed_frame(run: Run) -> None:
    assert run("ingest", "footage/portrait.mp4").code == 0
    assert run("retile", "portrait.mp4", "--layout", "112+128x64+256").code == 0
    found = run("layout", "show", "portrait.mp4", "--json").object
    assert (found["width"], found["height"]) == (240, 320)
    regions = {tile["region"] for tile in found["segments"][0]["tiles"]}
    assert regions == {"112x64+0+0", "128x64+112+0", "112x256+0+64", "128x256+112+64"}


@pytest.mark.thorough
def test_show_draws_the_layout(tiled: Run, place: Path) -> None:
    done = tiled("layout", "show", TRAFFIC, "-o", "tiles.png", "--at", "1.5")
    assert done.code == 0
    assert "frame 45" in done.err
    picture = cv2.imread("tiles.png")
    assert picture is not None
    place_of_frame = frame_place(320, 240)  # three times as large
    assert picture.shape[:2] == picture_size(320, 240)[::-1]
    columns = slice(place_of_frame.x1, place_of_frame.x2)
    edge = picture[place_of_frame.y1 + 384, columns].astype(int)  # between the two rows
    assert (abs(edge - (40, 220, 255)).max(axis=1) < 3).mean() > 0.9
    assert tiled("layout", "show", TRAFFIC, "-o", "tiles.png").code == 4
    assert tiled("layout", "show", TRAFFIC, "-o", "tiles.png", "--replace").code == 0
    assert tiled("layout", "show", TRAFFIC, "-o", "tiles.jpg").code == 0
    assert tiled("layout", "show", TRAFFIC, "-o", "tiles.gif").code == 2


def test_layout_picture_without_tiles(run: Run, place: Path) -> None:
    assert run("layout", "show", TRAFFIC, "-o", "tiles.png").code == 3
    assert not (place / "tiles.png").exists()
    done = run("layout", "show", TRAFFIC)
    assert (done.code, done.out) == (0, "")
    assert "no tiles" in done.err
    assert run("layout", "show", TRAFFIC, "--json").object["segments"] == []


def test_diff_shows_the_changes_of_a_rollback(tiled: Run) -> None:
    first, rest = tiled("layout", "diff", TRAFFIC, "--json").objects
    assert (first["frames"], first["span"]) == ([0, 30], [0.0, 1.0])
    assert (first["before"]["layout"], first["now"]["layout"]) == (TWO, THREE)
    assert list(first["now"]) == ["layout", "codec", "tiles", "size", "psnr"]
    assert (rest["frames"], rest["before"], rest["now"]["layout"]) == ([30, 120], None, TWO)
    lines = tiled("layout", "diff", TRAFFIC).lines
    assert [line.split()[1] for line in lines] == [TWO, "untiled"]
    assert tiled("layout", "rollback", TRAFFIC).code == 0
    first, rest = tiled("layout", "diff", TRAFFIC, "--json").objects
    assert (first["before"]["layout"], first["now"]["layout"]) == (THREE, TWO)
    assert (rest["before"]["layout"], rest["now"]) == (TWO, None)


def test_diff_without_history(run: Run) -> None:
    done = run("layout", "diff", TRAFFIC)
    assert (done.code, done.out) == (0, "")
    assert "no tiles" in done.err


def test_history_lists_retired_segments(tiled: Run) -> None:
    found = tiled("layout", "history", TRAFFIC, "--json").objects
    assert found[-1]["layout"] == THREE  # in the order of creation; two may be created at a time
    found.sort(key=lambda one: (one["layout"] == THREE, one["frames"]))
    assert [(one["frames"][0], one["layout"], one["retired"] is None) for one in found] == [
        (0, TWO, False),
        (30, TWO, True),
        (60, TWO, True),
        (90, TWO, True),
        (0, THREE, True),
    ]
    lines = tiled("layout", "history", TRAFFIC).lines
    assert len(lines) == 4
    assert "retired" in lines[1]
    assert tiled("layout", "history", "cam1/open-gop.mkv").out == ""


def test_rollback_twice_restores_the_layout(tiled: Run) -> None:
    done = tiled("layout", "rollback", TRAFFIC, "--span", "0-1", "--json").object
    assert (done["retired"], done["restored"]) == (1, 1)
    assert layouts(tiled) == [TWO] * 4
    assert tiled("layout", "rollback", TRAFFIC, "--span", "0-1").code == 0
    assert layouts(tiled) == [THREE, TWO, TWO, TWO]
    assert tiled("layout", "rollback", "cam1/open-gop.mkv").code == 3
    assert tiled("layout", "rollback", TRAFFIC, "--span", "9-10").code == 6


def test_drop_removes_the_named_segments(tiled: Run) -> None:
    kept = tiled("layout", "history", TRAFFIC, "--json").objects
    (old,) = (one for one in kept if one["retired"] is not None)
    done = tiled("layout", "drop", TRAFFIC, "--retired", "--json").object
    assert (done["segments"], done["bytes"]) == (1, old["size"])
    assert tiled("layout", "drop", TRAFFIC, "--span", "0-1", "--json").object["segments"] == 1
    assert layouts(tiled) == [TWO] * 3
    assert tiled("layout", "drop", TRAFFIC).err.startswith(f"{TRAFFIC}: dropped 3 segments")
    assert tiled("layout", "drop", TRAFFIC, "--json").object["segments"] == 0
    assert tiled("fsck", "--deep").out == ""


@pytest.mark.thorough
@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 4), (b"y\n", 0)])
def test_drop_asks_for_confirmation_at_a_terminal(
    tiled: Run, answer: bytes, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    args = [*VFSD, "-s", "videos", "layout", "drop", TRAFFIC]
    code, seen = at_a_terminal(args, typed=answer)
    assert code == 0
    assert f"drop 5 segments of tiles of {TRAFFIC}?" in seen
    assert len(layouts(tiled)) == left
    if left:
        code, seen = at_a_terminal([*args, "--yes"])
        assert "?" not in seen
        assert layouts(tiled) == []


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("show", "none.mp4"), 3),
        (("show", TRAFFIC, "--at", "9"), 6),
        (("show", TRAFFIC, "--at", "1", "--span", "0-1"), 2),
        (("show", TRAFFIC, "--nothing"), 2),
        (("diff", "none.mp4"), 3),
        (("history", "none.mp4"), 3),
        (("drop", "none.mp4"), 3),
        (("drop", TRAFFIC, "--span", "9-10"), 6),
        (("paint",), 2),
    ],
)
def test_errors(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run("layout", *args)
    assert (done.code, done.out) == (code, "")
    assert "mistake in vfsd" not in done.err


def test_errors_name_the_help_of_the_command(run: Run) -> None:
    assert "see `vfsd layout show --help`" in run("layout", "show", TRAFFIC, "--nothing").err
    assert "see `vfsd layout --help`" in run("layout", "paint").err


def test_info_shows_tiles(run: Run) -> None:
    assert run("info", TRAFFIC, "--json").object["tiles"] is None
    assert run("retile", TRAFFIC, "--layout", "uniform:2x2", "--span", "1-4").code == 0
    assert run("retile", TRAFFIC, "--layout", "uniform:3x3", "--span", "1-2").code == 0
    found = run("info", TRAFFIC, "--json").object
    tiles = found["tiles"]
    assert list(tiles) == [
        "segments",
        "frames",
        "share",
        "bytes",
        "psnr",
        "codecs",
        "layouts",
        "retired_bytes",
    ]
    assert (tiles["segments"], tiles["frames"], tiles["share"]) == (3, 90, 0.75)
    assert (tiles["layouts"], tiles["codecs"]) == ([TWO, THREE], ["fast"])
    assert tiles["retired_bytes"] > 0
    assert [one["role"] for one in found["physical_videos"]] == ["original", "tiled"]
    text = run("info", TRAFFIC).out
    assert "75% of the duration, 3 segments" in text
    assert "None" not in text
    assert run("info", "cam1", "--json").object["tiles"] is None
