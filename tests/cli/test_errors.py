"""Error messages use the user's terms, and suggest a remedy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run, run_command
from vfsd.api.store import Store
from vfsd.errors import ExistsError, UsageError

TRAFFIC = "cam1/traffic.mp4"
BEYOND = str(10**20)
"""More than 64 bits hold."""


@pytest.mark.parametrize(
    ("args", "code", "message", "hint"),
    [
        (("config", "workers", "0"), 2, "at least 1", ""),
        (("config", "workers", "many"), 2, "a whole number", "config workers"),
        (("config", "tune", "maybe"), 2, "true or false", "`vfsd config tune true`"),
        (("config", "minimum_psnr", "101"), 2, "at most 100", ""),
        (("read", TRAFFIC, "x.png", "--at", "1000"), 6, "got 1000", "from the first frame"),
        (("layout", "show", TRAFFIC, "--at", "100"), 6, "less than 4 s", "from the first frame"),
        (("read", TRAFFIC, "not/there/x.png", "--at", "1"), 3, "not/there", "mkdir -p"),
        (("read", TRAFFIC, "not/there/x.mp4", "--span", "0-1"), 3, "not/there", "mkdir -p"),
        (("read", TRAFFIC, "footage/.mp4", "--at", "1"), 2, "suffix", ""),
        (
            ("read", TRAFFIC, "x.npy", "--size", "0x0"),
            2,
            "size must be at least 1 pixel, got 0x0",
            "at least 1",
        ),
        (
            ("render", TRAFFIC, "--size", "0x0"),
            2,
            "size must be at least 1 pixel, got 0x0",
            "at least 1",
        ),
        (("write", "x.mp4", "footage"), 2, "is a directory", "%06d.png"),
        (("tag", TRAFFIC, "--add", ""), 2, "not empty", ""),
        (("tag", TRAFFIC, "--set", f"k={10**20}"), 2, "k = 1000", "1e30"),
        (("ingest", "footage", "--tag", " "), 2, "not empty", ""),
        (("age", "--quick", "--apply"), 2, "--dry-run", "leave out"),
        (("init", "videos"), 4, "already", "another directory"),
        (("init", "footage"), 4, "not an empty", "empty"),
        (("info", "nothing.mp4"), 3, "is not in the store", "vfsd ls"),
        (("rm", "nothing.mp4"), 3, "is not in the store", "vfsd ls"),
        (("mv", "nothing.mp4", "else.mp4"), 3, "is not in the store", "vfsd ls"),
        (("ls", "cam1/*.mp4"), 3, "is not in the store", "vfsd find 'cam1/*.mp4'"),
        (("delete", TRAFFIC), 2, "No such command", "Did you mean 'rm'?"),
        (("unmount", "mnt"), 2, "No such command", "Did you mean 'umount'?"),
        (("lables", "ls", TRAFFIC), 2, "No such command", "Did you mean 'labels'?"),
        (("labels", "delete", TRAFFIC), 2, "No such command", "Did you mean 'rm'?"),
        (("labels", "imprt", TRAFFIC), 2, "No such command", "Did you mean 'import'?"),
        (("ingest", "footage/traffic.mp4", "--as", "new/"), 2, "a directory", "--to new/"),
        (("read", TRAFFIC, "x.npy", "--region", "0,0,9"), 2, "region must be", "400x300+600+0"),
        (("retile", TRAFFIC, "--layout", "uniform:2by2"), 2, "layout must be", "uniform:3x4"),
        (("policy", "set", "cam1", "original=gone"), 2, "invalid value", "replaceable"),
        (("policy", "set", "cam1", f"delete-after={BEYOND}y"), 2, "an age", "30d"),
        (
            ("policy", "set", "cam1", f"delete-below={BEYOND}T"),
            2,
            "must be a number of bytes",
            "8388607T",
        ),
        (("budget", "set", "999999999999T"), 2, "budget must be 0 to", "none"),
        (("find", "--meta", f"n={BEYOND}"), 2, "beyond 64 bits", "1e30"),
        (("find", "--min-width", BEYOND), 2, "width: 1000", "leave the end open"),
        (("find", "--max-width", BEYOND), 2, "beyond 64 bits", "leave the end open"),
        (("find", "--min-height", f"-{BEYOND}"), 2, "height: -1000", "leave the end open"),
        (("find", "--max-height", BEYOND), 2, "beyond 64 bits", "leave the end open"),
        (("find", "--min-bytes", BEYOND), 2, "beyond 64 bits", "leave the end open"),
        (("find", "--max-bytes", "9999999T"), 2, "beyond 64 bits", "leave the end open"),
        (("labels", "query", TRAFFIC, "--track", BEYOND), 2, "track must be", "2^63"),
        (("tune", "undo", BEYOND), 2, "beyond 64 bits", "tune history"),
        (("tune", "undo", "--last"), 3, "no decision", "tune history"),
        (("layout", "rollback", TRAFFIC), 3, "no tiles", f"`vfsd layout history {TRAFFIC}`"),
        (("rendition", "drop", TRAFFIC), 3, "no such rendition", f"`vfsd rendition ls {TRAFFIC}`"),
        (("write", "x.mp4", "no.y4m"), 3, "file not found: no.y4m", "working directory"),
        (("labels", "import", TRAFFIC, "no.csv"), 3, "file not found", "working directory"),
        (("advise", TRAFFIC, "no.json"), 3, "file not found: no.json", "working directory"),
    ],
)
def test_errors_state_the_reason_and_a_hint(
    run: Run, args: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    done = run(*args, "--json") if args[0] != "read" else run(*args)
    assert done.code == code
    assert message in done.err
    assert hint in done.err
    assert "mistake" not in done.err


@pytest.mark.parametrize(
    "args",
    [
        ("labels", "query", "NAME", "nothing"),
        ("unpin", "NAME"),
        ("replace", "NAME"),
        ("tag", "FOLDER", "--add", "night"),
        ("advise", "NAME", "workload.json"),
        ("read", "NAME", "FOLDER/x.png", "--at", "1"),
        ("retile", "NAME", "--layout", "uniform:1x1", "--codec", "lossless"),
    ],
)
def test_suggested_commands_can_be_pasted(run: Run, args: tuple[str, ...]) -> None:
    folder = "it's a place"
    named = {"FOLDER": folder, "NAME": f"{folder}/no 1.mp4", "FOLDER/x.png": f"{folder}/x.png"}
    assert run("mv", TRAFFIC, named["NAME"]).code == 0
    assert run("budget", "set", named["NAME"], "1").code == 0
    done = run(*(named.get(word, word) for word in args))
    told = re.findall(r"`((?:vfsd|mkdir) [^`]*)`", done.err + done.out)
    assert any({folder, named["NAME"]} & set(shlex.split(command)) for command in told)


def test_label_export_needs_an_existing_directory(run: Run) -> None:
    done = run("labels", "export", TRAFFIC, "--format", "yolo", "-o", "not/there")
    assert done.code == 3
    assert "mkdir -p not" in done.err


def test_init_needs_a_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VFSD_STORE", raising=False)
    done = run_command("init")
    assert done.code == 2
    assert "vfsd init DIR" in done.err


def test_empty_results_suggest_where_to_look(run: Run, place: Path) -> None:
    done = run("find", "traffic.mp4")
    assert (done.code, done.out) == (0, "")
    assert "**/traffic.mp4" in done.err
    with Store.open(place / "videos") as store:
        store.move(TRAFFIC, "front.mp4")
        assert not run("find", "*.mp4", "--codec", "av1").err
        store.move("front.mp4", TRAFFIC)
    assert "labels ls" in run("labels", "query", TRAFFIC, "cars").err
    assert "labels ls" not in run("labels", "query", TRAFFIC, "cars", "--json").err
    (place / "labels/large.csv").write_text("frame,label,x1,y1,x2,y2\n0,car,5000,0,5010,9\n")
    done = run("labels", "import", TRAFFIC, "labels/large.csv")
    assert "1 of them lie outside" in done.err


def test_trailing_slash_means_a_directory(run: Run) -> None:
    assert run("mv", TRAFFIC, "new/").code == 0
    assert run("ls", "new").lines == ["traffic.mp4"]


def test_tags_accept_patterns_and_sizes_accept_units(run: Run) -> None:
    done = run("tag", "cam1/*.mp4", "--add", "night")
    assert done.code == 0
    assert done.lines == [f"{name}  night" for name in run("find", "cam1/*.mp4").lines]
    assert run("find", "cam1/*.mp4", "--min-bytes", "1G").lines == []
    assert run("find", "cam1/*.mp4", "--max-bytes", "1G").lines == run("find", "cam1/*.mp4").lines


def test_non_finite_numbers_are_strings_in_json(run: Run) -> None:
    done = run("tag", TRAFFIC, "--set", "a=NaN", "--set", "b=Infinity", "--json")
    assert done.object["metadata"] == {"a": "NaN", "b": "Infinity"}


def test_plot_needs_an_existing_directory(run: Run) -> None:
    done = run("advise", TRAFFIC, "workload.json", "--plot", "not/there/a.png")
    assert done.code == 3
    assert "mkdir -p" in done.err


def test_invalid_setting_is_reported_with_its_file(run: Run, place: Path) -> None:
    (place / "videos/config.toml").write_text('tune = "no"')
    done = run("ls")
    assert done.code == 2
    assert "config.toml: the setting 'tune'" in done.err


def test_empty_tag_is_refused(place: Path) -> None:
    with Store.open(place / "videos") as store:
        info = store[TRAFFIC].info
        with pytest.raises(UsageError, match="not blank"):
            store.catalog.tag(info, "night", "")
        assert not store[TRAFFIC].info.tags


def test_hint_names_option(run: Run, place: Path) -> None:
    """A command names its options, a program its arguments."""
    (place / "clip.mkv").write_bytes(b"")
    done = run("read", TRAFFIC, "clip.mkv")
    assert (done.code, "`--replace` overwrites it" in done.err) == (4, True)
    assert "replace=True" not in done.err
    with Store.open(place / "videos") as store, pytest.raises(ExistsError) as caught:
        store[TRAFFIC].save(place / "clip.mkv")
    assert caught.value.hint == "replace=True overwrites it"
    assert run("read", TRAFFIC, "clip.mkv", "-f").code == 0
