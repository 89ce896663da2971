"""``vfsd compress``.

``vfsd budget``, ``vfsd pin`` and ``vfsd unpin``.
"""

from __future__ import annotations

import errno
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.derive import deferred_compression

TRAFFIC = "cam1/traffic.mp4"
RAW = ("--layout", "uniform:1x2", "--codec", "lossless", "--quality", "0")


@pytest.mark.thorough
def test_compression_shrinks_lossless_tiles(run: Run, place: Path) -> None:
    assert run("budget", "set", TRAFFIC, "none").code == 0
    raw = run("retile", TRAFFIC, *RAW, "--json").object
    assert raw["psnr"] == 100
    assert run("render", TRAFFIC, "--size", "160x120", "--codec", "lossless").code == 0
    done = run("compress", "--level", "3", "--json").object
    assert (done["name"], done["level"], done["segments"], done["kept"]) == (TRAFFIC, 3, 8, 0)
    assert done["before"] > raw["bytes"] > 2 * done["bytes"]
    with Store.open(place / "videos") as store:
        video = store[TRAFFIC]
        tiled, rendered = (one.size for one in store.catalog.physicals(video.info)[1:])
        assert tiled + rendered == done["bytes"]
        assert np.array_equal(video.read(psnr=99).data, video.read(psnr=math.inf).data)
    again = run("compress", TRAFFIC, "--level", "2", "--json").object
    assert (again["segments"], again["kept"]) == (0, 8)
    assert (again["before"], again["bytes"]) == (0, 0)
    assert "all 8 segments have this level already" in run("compress", "--level", "3").out
    said = run("compress", TRAFFIC)
    assert said.out.startswith(f"{TRAFFIC}: 8 segments, ")
    assert run("fsck", "--deep").code == 0


def test_videos_without_lossless_tiles_are_skipped(run: Run) -> None:
    assert run("retile", TRAFFIC, "--layout", "uniform:1x1", "--span", "0-1").code == 0
    done = run("compress")
    assert done.code == 0
    assert "no video has lossless tiles" in done.out
    assert run("compress", "--json").out == ""
    assert "no lossless tiles" in run("compress", TRAFFIC).out
    assert run("compress", "nothing.mp4").code == 3
    assert run("compress", "--level", "0").code == 2


@pytest.mark.thorough
def test_compression_level_follows_the_budget(run: Run, place: Path) -> None:
    assert run("budget", "set", TRAFFIC, "none").code == 0
    raw = run("retile", TRAFFIC, *RAW, "--json").object["bytes"]
    assert run("budget", "set", TRAFFIC, str(5 * raw)).code == 0
    assert "less than a quarter" in run("compress", "--by-budget").out
    assert run("budget", "set", TRAFFIC, str(2 * raw)).code == 0
    done = run("compress", "--by-budget", "--json").object
    assert (done["level"], done["segments"]) == (1, 4)
    assert done["bytes"] < raw / 2
    assert run("compress", "--by-budget", "--level", "3").code == 2
    with Store.open(place / "videos") as store:
        assert store[TRAFFIC].tiles.compress() == []
        store[TRAFFIC].budget.set(done["bytes"])
        assert len(store[TRAFFIC].tiles.compress()) == 4


@pytest.mark.parametrize("what", one_in(4, ["damaged", "missing", "directory", "unreadable"]))
def test_unreadable_segment_is_reported_and_the_rest_compressed(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert run("budget", "set", TRAFFIC, "none").code == 0
    assert run("retile", TRAFFIC, *RAW).code == 0
    with Store.open(place / "videos") as store:
        (first, *_) = store.catalog.segments(store[TRAFFIC].info)
        path = store.parts.objects.path(first.object_key)
    if what == "damaged":
        data = bytearray(path.read_bytes())
        data[first.cells[0].position + 10_000] ^= 1
        path.write_bytes(data)
    elif what == "unreadable":
        pread, number = os.pread, path.stat().st_ino

        def failing(fd: int, size: int, position: int) -> bytes:
            if os.fstat(fd).st_ino == number and position > first.cells[0].position:
                raise OSError(errno.EIO, "Input/output error")
            return pread(fd, size, position)

        monkeypatch.setattr(os, "pread", failing)
    else:
        path.unlink()
        if what == "directory":
            path.mkdir()
    done = run("compress", "--level", "3", "--jobs", "1", "--json")
    assert (done.code, done.object["segments"]) == (30, 3)
    assert done.object["unread"] == [[first.first_frame, first.end_frame]]
    again = run("compress", "--level", "3")
    assert again.code == 30
    assert again.out.startswith(f"{TRAFFIC}: 0 segments")
    assert f"frames {first.first_frame} to {first.end_frame - 1} of {TRAFFIC} are" in again.err


def test_interrupted_compression_resumes(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("budget", "set", TRAFFIC, "none").code == 0
    assert run("retile", TRAFFIC, *RAW).code == 0
    publish = deferred_compression._publish
    published = 0

    def pressed(*args: object) -> object:
        nonlocal published
        made = publish(*args)  # type: ignore[arg-type]
        published += 1
        if published == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(deferred_compression, "_publish", pressed)
        stopped = run("compress", TRAFFIC, "--jobs", "1")
    assert stopped.code == 130
    assert "of 4 segments" in stopped.err
    assert "run the command again" in stopped.err
    assert 2 <= published < 4
    rest = run("compress", TRAFFIC, "--json").object
    assert (rest["segments"], rest["kept"]) == (4 - published, published)
    with Store.open(place / "videos") as store:
        video = store[TRAFFIC]
        assert np.array_equal(video.read(psnr=99).data, video.read(psnr=math.inf).data)
    assert run("fsck", "--deep").code == 0


# --------------------------------------------------------------------------------------------------
# ``vfsd budget``, ``vfsd pin`` and ``vfsd unpin``


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


def test_exceeded_budget_has_its_own_exit_code(run: Run) -> None:
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


def test_invalid_budgets_are_refused(run: Run) -> None:
    for words in (("set", "much"), ("set", TRAFFIC, "-5"), ("what-if", "default"), ("set",)):
        assert run("budget", *words).code == 2
    assert run("budget", "set", "nothing.mp4", "5x").code == 3
