"""``vfsd explain``.

``vfsd reads``: listing and deleting logged reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.core.process_control import host_name

TRAFFIC = "cam1/traffic.mp4"
REGION = ("--region", "40x40+20+20")


def test_without_tiles(run: Run) -> None:
    found = run("explain", TRAFFIC, *REGION, "--json").object
    assert (found["frames"], found["width"], found["height"]) == (120, 40, 40)
    (source,) = found["sources"]
    assert source["source"] == "original"
    assert source["tiles"] is None
    assert found["decoded"] == found["untiled"]
    assert found["decoded"]["pixels"] == 120 * 320 * 240
    assert (found["pixel_gain"], found["psnr"], found["measured"]) == (1, None, None)
    text = run("explain", TRAFFIC, *REGION).out
    assert "original, h264" in text
    assert "none: everything comes from the original" in text


def test_with_tiles_for_a_part(run: Run) -> None:
    assert run("retile", TRAFFIC, "--layout", "uniform:3x4", "--span", "1-3").code == 0
    found = run("explain", TRAFFIC, *REGION, "--json").object
    sources = found["sources"]
    assert [one["source"] for one in sources] == ["original", "tiles", "tiles", "original"]
    assert [one["frames"] for one in sources] == [[0, 30], [30, 60], [60, 90], [90, 120]]
    assert list(sources[1]) == [
        "source",
        "frames",
        "count",
        "layout",
        "codec",
        "gop",
        "from_view",
        "tiles",
        "starts",
        "pictures",
        "pixels",
        "bytes",
        "seconds",
    ]
    assert (sources[1]["tiles"], sources[1]["codec"]) == ([0], "fast")
    assert found["pixel_gain"] > 1.5
    assert found["psnr"] >= 30
    assert list(found["decoded"]) == ["starts", "pictures", "pixels", "bytes", "seconds"]
    lines = run("explain", TRAFFIC, *REGION).lines
    assert [line.split()[0] for line in lines[1:7]] == [
        "seconds",
        "0:00.00-0:01.00",
        "0:01.00-0:03.00",
        "0:03.00-0:04.00",
        "together",
        "untiled",
    ]
    assert "tile 0 of 12, fast" in lines[3]
    assert lines[3].endswith("2 segments")


@pytest.mark.thorough
def test_measured_both_ways(run: Run) -> None:
    assert run("retile", TRAFFIC, "--layout", "uniform:3x4").code == 0
    found = run("explain", TRAFFIC, *REGION, "--run", "--json").object["measured"]
    assert list(found) == [
        "seconds",
        "cpu_seconds",
        "untiled_seconds",
        "untiled_cpu_seconds",
        "gain",
        "psnr",
    ]
    assert found["psnr"] > 30
    assert found["gain"] == pytest.approx(found["untiled_seconds"] / found["seconds"])
    text = run("explain", TRAFFIC, *REGION, "--run").out
    assert "dB between the results" in text
    assert run("layout", "drop", TRAFFIC).code == 0
    assert "the results are equal" in run("explain", TRAFFIC, *REGION, "--run").out


def test_unused_data_is_shown_in_display_orientation(run: Run) -> None:
    portrait = run("ingest", "footage/portrait.mp4").lines[0]
    shown = run("info", portrait, "--json").object
    assert run("retile", portrait, "--layout", "uniform:1x1").code == 0
    lines = run("explain", portrait, "--psnr", "90").lines
    (line,) = (line for line in lines if line.startswith("not used"))
    assert f" of {shown['width']}x{shown['height']}, whole" in line


def test_unused_tiles_grouped(run: Run) -> None:
    for layout, span in (("uniform:3x4", "0-1"), ("uniform:2x2", "1-2"), ("uniform:1x4", "2-3")):
        assert run("retile", TRAFFIC, "--layout", layout, "--span", span).code == 0
    found = run("explain", TRAFFIC, "--psnr", "90", "--json").object["passed_over"]
    assert len(found) == 3
    lines = run("explain", TRAFFIC, "--psnr", "90").lines
    (line,) = (line for line in lines if line.startswith("not used"))
    assert "320x240, 3 layouts, 3 segments: quality too low" in line


@pytest.mark.parametrize(
    ("view", "hint"),
    [
        ("frames=3-31.mp4", "key frames are 1.0 s apart here; a copy could start at 0:00.00 or"),
        ("frames=0-60,size=160x120.mp4", "without size it is copied"),
        ("t=0-2,codec=hevc.mp4", "without codec=hevc it is copied"),
    ],
)
def test_copy_hint(run: Run, view: str, hint: str) -> None:
    (line,) = (one for one in run("explain", TRAFFIC, view).lines if one.startswith("hint"))
    assert hint in line


@pytest.mark.parametrize("view", ["t=0-2.mp4", "frames/000003.png", "roi=40x40+2+2.rgb"])
def test_no_copy_hint(run: Run, view: str) -> None:
    assert not any(one.startswith("hint") for one in run("explain", TRAFFIC, view).lines)


@pytest.mark.thorough
def test_exact_reads_avoid_tiles(run: Run, place: Path) -> None:
    assert run("read", TRAFFIC, "exact.npy", *REGION).code == 0
    assert run("retile", TRAFFIC, "--layout", "uniform:3x4").code == 0
    assert run("explain", TRAFFIC, *REGION, "--psnr", "inf", "--json").object["psnr"] is None
    found = run("explain", TRAFFIC, *REGION, "--psnr", "inf", "--run", "--json").object
    assert found["measured"]["psnr"] is None
    assert run("read", TRAFFIC, "tiles.npy", *REGION).code == 0
    assert run("read", TRAFFIC, "original.npy", *REGION, "--psnr", "inf").code == 0
    assert (place / "original.npy").read_bytes() == (place / "exact.npy").read_bytes()
    assert (place / "tiles.npy").read_bytes() != (place / "exact.npy").read_bytes()


@pytest.mark.parametrize(
    ("args", "frames", "size"),
    one_in(
        2,
        [
            (("--span", "1-2"), 30, (320, 240)),
            (("--frames", "0:120:10", "--size", "160x0"), 12, (160, 120)),
            (("--at", "1.5", "--format", "gray"), 1, (320, 240)),
            (("--fps", "5", "--region", "100x50+0+0"), 20, (100, 50)),
        ],
    ),
)
def test_explain_accepts_the_views_of_read(
    run: Run, args: tuple[str, ...], frames: int, size: tuple[int, int]
) -> None:
    found = run("explain", TRAFFIC, *args, "--json").object
    assert (found["frames"], (found["width"], found["height"])) == (frames, size)
    assert run("explain", TRAFFIC, *args, "--run").code == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("none.mp4",), 3),
        ((TRAFFIC, "--span", "9-10"), 6),
        ((TRAFFIC, "--region", "400x400+0+0"), 6),
        ((TRAFFIC, "--span", "0-1", "--at", "1"), 2),
        ((TRAFFIC, "--size", "4000x4000", "--run"), 2),
    ],
)
def test_errors(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run("explain", *args)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("vfsd: ")
    assert "mistake in vfsd" not in done.err


STEP = ["does", "frames", "count", "from", "codec", "bytes", "seconds"]


def test_explain_a_view(run: Run, place: Path) -> None:
    asked = ("--span", "0.5-3.5", "--codec", "h264")
    found = run("explain", TRAFFIC, *asked, "--json").object
    assert (found["view"], found["made"]) == ("t=0.5-3.5,codec=h264.mp4", "spliced")
    assert [step["does"] for step in found["steps"]][:3] == ["decode", "encode", "copy"]
    assert all(list(step) == STEP for step in found["steps"])
    assert found["decoded"]["pictures"] < found["frames"] == 90
    by_name = run("explain", TRAFFIC, "t=0.5-3.5,codec=h264.mp4", "--json").object
    assert by_name == found
    text = run("explain", TRAFFIC, *asked)
    assert text.lines[0].endswith("90 frames of 320x240, spliced")
    assert [line.split()[0] for line in text.lines[2:5]] == ["decode", "encode", "copy"]
    assert run("read", TRAFFIC, "cut.mp4", *asked, "--json").object["frames"] == 90
    copied = sum(step["bytes"] for step in found["steps"] if step["does"] == "copy")
    assert (place / "cut.mp4").stat().st_size > copied


def test_explain_other_formats(run: Run) -> None:
    lossless = run("explain", TRAFFIC, "--codec", "ffv1", "--at", "1", "--json").object
    assert lossless["made"] == "encoded"
    assert lossless["why"]
    raw = run("explain", TRAFFIC, "--as", "y4m", "--frames", "0:10", "--json").object
    assert (raw["made"], [step["does"] for step in raw["steps"]]) == ("decoded", ["decode"])
    still = run("explain", TRAFFIC, "frames/000007.png", "--json").object
    assert (still["view"], still["frames"]) == ("frames/000007.png", 1)
    pixels = run("explain", TRAFFIC, "--frames", "0:10", "--json").object
    assert (pixels["view"], pixels["made"], pixels["why"]) == (None, None, None)
    assert [(step["does"], step["frames"]) for step in pixels["steps"]] == [("decode", [0, 10])]
    assert not run("explain", TRAFFIC, "--no-sound", "--json").object["view"].startswith("full")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("full.mp4", "--span", "0-1"), 2),
        (("full.mp4", "--run"), 2),
        (("--codec", "h264", "--run"), 2),
        (("--as", "y4m", "--codec", "h264"), 2),
        (("--as", "h264", "--no-sound"), 2),
        (("objects/car/000000-0.png",), 3),
        (("full.xyz",), 3),
        (("t=9-10.mp4",), 6),
    ],
)
def test_errors_of_views(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run("explain", TRAFFIC, *args)
    assert (done.code, done.out) == (code, "")
    assert "mistake in vfsd" not in done.err


def test_cached_parts(run: Run) -> None:
    """After a read, all parts of the view are cached, and the encoding time is known."""
    view = ("--codec", "h264", "--size", "160x120")
    before = run("explain", TRAFFIC, *view, "--json").object
    assert (before["cached"], before["cacheable"]) == (0, 5)
    assert "cache" not in run("explain", TRAFFIC, *view).out
    assert run("read", TRAFFIC, "x.mp4", *view).code == 0
    after = run("explain", TRAFFIC, *view, "--json").object
    assert (after["cached"], after["cacheable"]) == (5, 5)
    assert "all of its parts come from the cache" in run("explain", TRAFFIC, *view).out
    assert run("explain", TRAFFIC, "--json").object["cached"] is None


def test_encode_times_kept(run: Run, place: Path) -> None:
    """The measured encoding time predicts the next one; calibrations do not list it."""
    view = ("--codec", "h264", "--size", "300x224")
    assert run("read", TRAFFIC, "x.mp4", *view).code == 0
    with Store.open(place / "videos") as store:
        costs = store.catalog.encode_costs(host_name())
        assert 0 < costs["h264"] < 1e-6
        assert store.catalog.costs(host_name()) == []
    told = run("explain", TRAFFIC, "--codec", "h264", "--size", "152x112", "--json").object
    (encode,) = [step for step in told["steps"] if step["does"] == "encode"]
    assert encode["seconds"] == pytest.approx(costs["h264"] * 120 * 152 * 112)


# --------------------------------------------------------------------------------------------------
# ``vfsd reads``: listing and deleting logged reads


PORTRAIT = "cam1/portrait.mp4"


def test_reads_are_listed_newest_first(run: Run, tmp_path: Path) -> None:
    region = ("--region", "160x120+80+60")
    assert run("reads", TRAFFIC).out == ""
    assert run("read", TRAFFIC, tmp_path / "a.npy", "--span", "0-1", *region).code == 0
    assert run("read", TRAFFIC, tmp_path / "b.mp4", "--frames", "30:60", *region).code == 0
    assert run("explain", TRAFFIC, *region, "--run").code == 0  # test runs do not count as reads
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


def test_delete_reads_of_all_videos(run: Run, tmp_path: Path) -> None:
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
