"""``vfsd budget``, ``vfsd pin`` and ``vfsd unpin``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from vfsd.api.store import Store

TRAFFIC = "cam1/traffic.mp4"


def test_budgets_are_shown_and_set(run: Run, place: Path) -> None:
    (store,) = run("budget", "show", "--json").objects
    assert (store["name"], store["limit"], store["allowed"], store["used"]) == (
        None,
        "none",
        None,
        0,
    )
    assert run("retile", TRAFFIC, "--layout", "uniform:2x2").code == 0
    assert run("render", TRAFFIC, "--size", "160x120").code == 0
    store, video = run("budget", "show", "--json").objects
    assert (video["name"], video["limit"]) == (TRAFFIC, "10x")
    assert video["allowed"] == 10 * video["original"]
    assert store["used"] == video["used"] == video["tiles"] + video["renditions"]
    assert "160x120" not in run("budget", "show", TRAFFIC).out

    half = str(video["used"] // 2)
    (foretold,) = run("budget", "what-if", TRAFFIC, half, "--json").objects
    assert run("budget", "show", TRAFFIC, "--json").object == video, "nothing has changed"
    (done,) = run("budget", "set", TRAFFIC, half, "--json").objects
    assert (done["evicted"], done["bytes"]) == (foretold["segments"], foretold["bytes"])
    assert (done["used"], done["limit"]) == (foretold["used"], half)
    logged = run("budget", "log", "--json").objects
    assert len(logged) == done["evicted"] == len(foretold["gone"])
    assert sum(one["bytes"] for one in logged) == done["bytes"]
    assert len(run("budget", "log", TRAFFIC, "--limit", "1").lines) == 2
    assert (
        run("budget", "log", "cam1/open-gop.mkv").err.strip()
        == "nothing was deleted for lack of space"
    )
    (back,) = run("budget", "set", TRAFFIC, "default", "--json").objects
    assert back["limit"] == "10x"


def test_what_does_not_fit_ends_with_its_own_code(run: Run) -> None:
    assert run("budget", "set", "1kB").code == 0
    done = run("render", TRAFFIC, "--size", "160x120")
    assert done.code == 15
    assert "budget of the store is 1.0 KiB" in done.err
    assert "vfsd budget set" in done.err
    assert run("rendition", "ls", "--json").out == ""
    assert run("fsck").code == 0


def test_pins(run: Run, place: Path) -> None:
    assert run("render", TRAFFIC, "--size", "160x120").code == 0
    pinned = run("pin", TRAFFIC, "--size", "160x0", "--span", "1-3", "--json").object
    assert (pinned["frames"], pinned["what"]) == ([30, 90], "160x120")
    assert run("budget", "set", TRAFFIC, "0", "--json").object["evicted"] == 2
    shown = run("budget", "show", TRAFFIC, "--json").object
    assert (shown["used"], shown["pins"]) == (0, [{"frames": [30, 90], "what": "160x120"}])
    assert "pinned: 160x120, frames 30 to 89" in run("budget", "show").out
    assert run("unpin", TRAFFIC, "--tiles").code == 3
    gone = run("unpin", TRAFFIC, "--json").object
    assert (gone["evicted"], gone["bytes"]) == (2, shown["pinned"])
    with Store.open(place / "videos") as store:
        assert store.catalog.renditions(store[TRAFFIC].info) == []
    assert run("pin", TRAFFIC, "--tiles", "--size", "160x120").code == 2


def test_what_is_no_budget(run: Run) -> None:
    for words in (("set", "much"), ("set", TRAFFIC, "-5"), ("what-if", "default"), ("set",)):
        assert run("budget", *words).code == 2
    assert run("budget", "set", "nothing.mp4", "5x").code == 3
