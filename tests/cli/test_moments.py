"""``vfsd moments``: what the library does, by commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

VIDEO = "cam1/traffic.mp4"


def test_import_query_export(run: Run, place: Path) -> None:
    done = run("moments", "import", "labels/moments.csv", "--source", "anna", "--json")
    assert [(one["name"], one["moments"]) for one in done.objects] == [
        (VIDEO, 1),
        ("cam1/open-gop.mkv", 1),
    ]
    assert run("moments", "import", "labels/moments.vtt", VIDEO, "--source", "anna").code == 0
    found = run("moments", "query", "cam1/*", "queue", "--json").objects
    assert [one["frames"] for one in found] == [[0, 30], [15, 30], [30, 60]]
    assert found[0]["view"] == "frames=0-30"
    again = ("moments", "import", "labels/moments.vtt", VIDEO, "--source", "anna", "--merge")
    assert run(*again).code == 0
    found = run("moments", "query", VIDEO, "--json").objects
    assert [one["frames"] for one in found] == [[0, 60]]
    text = run("moments", "query", "cam1/*").out
    assert "cam1/traffic.mp4   0:00.00-0:02.00  0-59  queue      anna" in text
    assert run("moments", "query", VIDEO, "queue", "--span", "3-4").out == ""
    exported = run("moments", "export", "cam1/*", "-o", "-").out
    assert exported == (
        "path,start,end,label,confidence,source\n"
        "cam1/open-gop.mkv,0.000000,0.266933,red light,,anna\n"
        "cam1/traffic.mp4,0.000000,2.000000,queue,,anna\n"
    )
    assert run("moments", "export", VIDEO, "-o", "a.vtt").code == 0
    assert (place / "a.vtt").read_text() == "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nqueue\n"
    assert run("moments", "export", VIDEO, "-o", "a.vtt").code == 4
    assert run("moments", "export", "cam1/*", "-o", "b.vtt").code == 2
    rows = run("moments", "gaps", VIDEO, "--source", "anna", "--json").objects
    assert [one["frames"] for one in rows] == [[60, 90], [90, 120]]
    ((one),) = run("moments", "ls", VIDEO, "--json").objects
    assert (one["moments"], one["frames"]) == (1, 60)
    assert run("moments", "rm", VIDEO, "--source", "anna", "--json").objects[0]["moments"] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("rm", VIDEO), 2),
        (("import", "labels/moments.vtt"), 2),
        (("import", "labels/traffic.csv", VIDEO), 2),
        (("import", "workload.json"), 2),
        (("add", VIDEO, "9-10", "x"), 6),
        (("add", "none.mp4", "0-1", "x"), 3),
        (("gaps", VIDEO, "--seconds", "0"), 2),
    ],
)
def test_refusals(run: Run, words: tuple[str, ...], code: int) -> None:
    assert run("moments", *words).code == code
    assert run("moments", "query", "cam1/*").out == ""
