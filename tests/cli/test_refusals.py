"""What is refused says so in the user's words, and what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from vfsd.errors import UsageError
from vfsd.store import Store

TRAFFIC = "cam1/traffic.mp4"


@pytest.mark.parametrize(
    ("args", "code", "message", "hint"),
    [
        (("config", "workers", "0"), 2, "at least 1", ""),
        (("config", "workers", "many"), 2, "a whole number", ""),
        (("config", "minimum_psnr", "101"), 2, "at most 100", ""),
        (("read", TRAFFIC, "x.png", "--at", "1000"), 6, "1000 seconds", "begins at 0"),
        (("layout", "show", TRAFFIC, "--at", "100"), 6, "from 0 to 4", "begins at 0"),
        (("read", TRAFFIC, "not/there/x.png", "--at", "1"), 3, "not/there", "mkdir -p"),
        (("read", TRAFFIC, "not/there/x.mp4", "--span", "0:1"), 3, "not/there", "mkdir -p"),
        (("read", TRAFFIC, "footage/.mp4", "--at", "1"), 2, "form", ""),
        (("write", "x.mp4", "footage"), 2, "is a directory", "%06d.png"),
        (("tag", TRAFFIC, "--add", ""), 2, "not empty", ""),
        (("ingest", "footage", "--tag", " "), 2, "not empty", ""),
        (("age", "--quick", "--apply"), 2, "--dry-run", "leave one"),
        (("init", "videos"), 4, "already", "another directory"),
        (("init", "footage"), 4, "not an empty", "empty"),
        (("info", "nothing.mp4"), 3, "there is no", "vfsd ls"),
        (("rm", "nothing.mp4"), 3, "there is no", "vfsd ls"),
        (("mv", "nothing.mp4", "else.mp4"), 3, "there is no", "vfsd ls"),
    ],
)
def test_what_is_refused_says_why_and_what_to_do(
    run: Run, args: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    done = run(*args, "--json") if args[0] != "read" else run(*args)
    assert done.code == code
    assert message in done.err
    assert hint in done.err
    assert "mistake" not in done.err


def test_a_plot_goes_where_there_is_a_directory(run: Run) -> None:
    done = run("advise", TRAFFIC, "workload.json", "--plot", "not/there/a.png")
    assert done.code == 3
    assert "mkdir -p" in done.err


def test_an_empty_tag_is_none_for_the_catalog_either(place: Path) -> None:
    with Store.open(place / "videos") as store:
        info = store[TRAFFIC].info
        with pytest.raises(UsageError, match="not empty"):
            store.catalog.tag(info, "night", "")
        assert not store[TRAFFIC].info.tags
