"""``vfsd explain``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

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
    assert run("retile", TRAFFIC, "--layout", "uniform:3x4", "--span", "1:3").code == 0
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


def test_reads_may_be_kept_from_tiles(run: Run, place: Path) -> None:
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
    [
        (("--span", "1:2"), 30, (320, 240)),
        (("--frames", "0:120:10", "--size", "160x0"), 12, (160, 120)),
        (("--at", "1.5", "--format", "gray"), 1, (320, 240)),
        (("--fps", "5", "--region", "100x50+0+0"), 20, (100, 50)),
    ],
)
def test_views_are_those_of_read(
    run: Run, args: tuple[str, ...], frames: int, size: tuple[int, int]
) -> None:
    found = run("explain", TRAFFIC, *args, "--json").object
    assert (found["frames"], (found["width"], found["height"])) == (frames, size)
    assert run("explain", TRAFFIC, *args, "--run").code == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("none.mp4",), 3),
        ((TRAFFIC, "--span", "9:10"), 6),
        ((TRAFFIC, "--region", "400x400+0+0"), 6),
        ((TRAFFIC, "--span", "0:1", "--at", "1"), 2),
        ((TRAFFIC, "--size", "4000x4000", "--run"), 2),
    ],
)
def test_errors(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run("explain", *args)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("vfsd: ")
    assert "mistake in vfsd" not in done.err
