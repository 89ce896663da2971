"""``vfsd captured``, ``vfsd timeline``, and searches by the time of recording."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import Run

START_NS = 1_777_629_600_000_000_000
"""2026-05-01T10:00:00Z."""
FIRST, SECOND = "gate/2026-05-01/12-00-00.mp4", "gate/2026-05-01/12-01-00.mp4"


@pytest.fixture
def camera(run: Run, place: Path) -> Run:
    """Two clips of 4 s: at 10:00:00 and at 10:01:00, UTC."""
    for name in (FIRST, SECOND):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / "traffic.mp4", place / name)
    pattern = "name:%Y-%m-%d/%H-%M-%S"
    done = run("ingest", place / "gate", "--captured", pattern, "--zone", "Europe/Zurich")
    assert done.code == 0, done.err
    return run


def test_times_of_names(camera: Run) -> None:
    shown = camera("captured", "gate/**", "--json").objects
    assert [one["captured"] for one in shown] == [
        {"time": f"2026-05-01T10:0{minute}:00.000000Z", "ns": ns, "clock": "name"}
        for minute, ns in ((0, START_NS), (1, START_NS + 60 * 10**9))
    ]
    assert "name" in camera("captured", FIRST).out
    assert "(from its name)" in camera("info", FIRST).out
    assert camera("info", FIRST, "--json").object["captured"]["ns"] == START_NS


def test_timeline_lists_videos_and_gaps(camera: Run) -> None:
    rows = camera("timeline", "gate", "--json").objects
    assert [(row["kind"], row["start"] - START_NS, row["seconds"]) for row in rows] == [
        ("video", 0, 4.0),
        ("gap", 4 * 10**9, 56.0),
        ("video", 60 * 10**9, 4.0),
    ]
    assert "(gap)" in camera("timeline", "gate").out
    assert "(gap)" not in camera("timeline", "gate", "--gap", "60").out
    assert "unknown" in camera("timeline", "cam1", "gate").out
    assert camera("captured", SECOND, "--from", "2026-05-01T10:00:00Z").code == 0
    kinds = [row["kind"] for row in camera("timeline", "gate", "--json").objects]
    assert kinds == ["video", "overlapped"]
    assert "(overlapped)" in camera("timeline", "gate").out
    assert camera("timeline", "elsewhere").code == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--from", "2026-05-01T10:00:30Z"), [SECOND]),
        (("--to", "2026-05-01T12:00:30+02:00"), [FIRST]),
        (("--from", "2026-05-01T10:00:03Z", "--to", "2026-05-01T10:01:00Z"), [FIRST, SECOND]),
        (("--from", "2026-05-01T10:00:05Z", "--to", "2026-05-01T10:00:59Z"), []),
    ],
)
def test_find_by_time(camera: Run, arguments: tuple[str, ...], expected: list[str]) -> None:
    assert camera("find", *arguments).lines == expected


def test_times_are_set_and_cleared(camera: Run) -> None:
    done = camera("captured", "gate/**", "--from", "2026-05-01T10:00:00.5Z", "--json")
    assert {one["captured"]["ns"] for one in done.objects} == {START_NS + 5 * 10**8}
    assert {one["captured"]["clock"] for one in done.objects} == {"given"}
    assert camera("captured", FIRST, "--clear").out.endswith("unknown\n")
    done = camera("captured", "gate/**", "--from", "container")
    assert done.code == 3
    assert "no time of recording in its container" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "noon"), "must be like 2026-05-01T10:00:00Z"),
        (("--from", "name:%H"), "date and an hour"),
        (("--from", "container", "--clear"), "exclude each other"),
        (("--zone", "Europe/Zurich"), "requires name:PATTERN"),
        (("--from", "name:%s", "--zone", "Mars/Olympus"), "time zone"),
    ],
)
def test_wrong_arguments_change_nothing(
    camera: Run, arguments: tuple[str, ...], message: str
) -> None:
    done = camera("captured", "gate/**", *arguments)
    assert done.code == 2
    assert message in done.err
    assert camera("captured", FIRST, "--json").object["captured"]["ns"] == START_NS


def test_ingest_without_a_time_in_the_name(run: Run, place: Path) -> None:
    pattern = "name:%Y-%m-%d/%H-%M-%S"
    done = run("ingest", place / "footage" / "mjpeg.avi", "--captured", pattern)
    assert done.code == 0
    assert run("captured", "mjpeg.avi", "--json").object["captured"] is None
    assert run("ingest", place / "footage" / "mjpeg.avi", "--captured", "name:%H").code == 2
