"""Patterns for names of videos: which commands take them, and what the others say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TRAFFIC, OPEN_GOP = "cam1/traffic.mp4", "cam1/open-gop.mkv"
BOTH = [OPEN_GOP, TRAFFIC]
BOXES = "frame,label,x1,y1,x2,y2\n1,car,0,0,9,9\n3,bus,0,0,5,5\n"


@pytest.fixture
def labelled(run: Run, place: Path) -> Run:
    (place / "boxes.csv").write_text(BOXES)
    for name in BOTH:
        assert run("labels", "import", name, "boxes.csv", "--source", "s").code == 0
    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("frames", "cam1/*", "--range", "0:2"), [OPEN_GOP, OPEN_GOP, TRAFFIC, TRAFFIC]),
        (("frames", TRAFFIC, OPEN_GOP, "--range", "0"), [TRAFFIC, OPEN_GOP]),
        (("explain", "cam1/*"), BOTH),
        (("explain", "cam1/*", "--as", "mp4"), BOTH),
        (("labels", "query", "cam1/*", "car"), BOTH),
        (("labels", "query", "cam1/*", "--count"), BOTH),
        (("labels", "rm", "cam1/*", "--all"), BOTH),
        (("layout", "show", "cam1/*"), BOTH),
        (("pin", "cam1/*"), BOTH),
        (("policy", "show", "cam1/*"), BOTH),
        (("policy", "set", "cam1/*", "original=keep"), BOTH),
    ],
)
def test_pattern_matches_several(labelled: Run, words: tuple[str, ...], names: list[str]) -> None:
    done = labelled(*words, "--json")
    assert done.code == 0, done.err
    assert [one.get("name", one.get("path")) for one in done.objects] == names
    plain = labelled(*words)
    assert plain.code == 0, plain.err


@pytest.mark.parametrize("words", [("layout", "history"), ("layout", "diff"), ("reads",)])
def test_pattern_without_results(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words, "cam1/*").code == 0
    assert run(*words, "no*").code == 3


def test_pattern_of_tiles(run: Run) -> None:
    assert run("retile", "cam1/*", "--layout", "uniform:1x2", "--span", "0-1").code == 0
    for words in (("layout", "rollback"), ("layout", "rollback"), ("layout", "drop", "-y")):
        done = run(*words, "cam1/*", "--json")
        assert [one["name"] for one in done.objects] == BOTH, done.err
    assert run("render", "cam1/*", "--size", "160x0", "--span", "0-1", "--yes").code == 0
    done = run("rendition", "drop", "cam1/*", "-y", "--json")
    assert [one["name"] for one in done.objects] == BOTH
    assert [one["name"] for one in run("pin", "cam1/*", "--json").objects] == BOTH
    assert [one["name"] for one in run("unpin", "cam1/*", "--json").objects] == BOTH


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("read", ("read", "cam1/*", "x.png", "--at", "0")),
        ("advise", ("advise", "cam1/*", "--from-reads")),
        ("labels import", ("labels", "import", "cam1/*", "labels/traffic.csv")),
        ("overlap show", ("overlap", "show", "cam1/*", TRAFFIC)),
        ("overlap join", ("overlap", "join", "cam1/*", TRAFFIC)),
    ],
)
def test_command_for_one_video(run: Run, command: str, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.code == 2
    assert f"{command} takes one video; 2 match 'cam1/*'" in done.err
    assert "vfsd find 'cam1/*'" in done.err


def test_pattern_for_one_match(run: Run, place: Path) -> None:
    assert run("read", "cam1/t*", "x.png", "--at", "0").code == 0
    assert (place / "x.png").exists()


def test_video_out_of_range(run: Run, place: Path) -> None:
    """The longer video is listed, and the shorter one is skipped with a warning."""
    frames = {name: run("info", name, "--json").object["frames"] for name in BOTH}
    short, long = sorted(BOTH, key=frames.__getitem__)
    assert frames[short] < frames[long]
    done = run("frames", "cam1/*", "--range", str(frames[short]), "--json")
    assert (done.code, [one["name"] for one in done.objects]) == (0, [long])
    assert f"warning: skipped {short}" in done.err
    assert run("frames", "cam1/*", "--range", str(frames[long])).code == 6


def test_counts_of_pattern(labelled: Run) -> None:
    assert labelled("labels", "query", "cam1/*", "--count").lines == [
        f"    2  {OPEN_GOP}".strip(),
        f"    2  {TRAFFIC}".strip(),
        "4  total",
    ]


def test_export_dataset(labelled: Run, place: Path) -> None:
    """One COCO file of two videos gives each its own boxes again."""
    done = labelled("labels", "export", "cam1/*", "--format", "coco", "-o", "all.json", "--json")
    assert [(one["name"], one["boxes"]) for one in done.objects] == [(one, 2) for one in BOTH]
    whole = json.loads((place / "all.json").read_text())
    assert [one["name"] for one in whole["videos"]] == BOTH
    assert len({one["id"] for one in whole["images"]}) == len(whole["images"])
    assert len({one["id"] for one in whole["annotations"]}) == 4
    before = {name: labelled("labels", "query", name, "--json").out for name in BOTH}
    for name in BOTH:
        assert labelled("labels", "rm", name, "--all").code == 0
        done = labelled("labels", "import", name, "all.json", "--json")
        assert done.object["boxes"] == 2, done.err
        assert labelled("labels", "query", name, "--json").out == before[name]


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("csv", [f"{one}.csv" for one in BOTH]),
        ("mot", [f"{one}.{end}" for one in BOTH for end in ("labels.txt", "txt")]),
        ("voc", [f"{one}/{frame:06}.xml" for one in BOTH for frame in (1, 3)]),
    ],
)
def test_export_folder(labelled: Run, place: Path, form: str, files: list[str]) -> None:
    done = labelled("labels", "export", "cam1/*", "--format", form, "-o", "out")
    assert done.code == 0, done.err
    found = {str(one.relative_to(place / "out")) for one in (place / "out").rglob("*.*")}
    assert set(files) <= found
    again = labelled("labels", "import", TRAFFIC, f"out/{TRAFFIC}{_end(form)}", "--source", "t")
    assert again.code == 0, again.err
    assert labelled("labels", "export", "cam1/*", "--format", form, "-o", "out").code == 4
    assert labelled("labels", "export", "cam1/*", "--format", "csv", "-o", "-").code == 2


def _end(form: str) -> str:
    return {"csv": ".csv", "mot": ".txt", "voc": ""}[form]
