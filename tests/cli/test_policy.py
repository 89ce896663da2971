"""Policies, replacement, holds and age, from the command line."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_listing import add_plain_file
from tests.support.replaceable_clips import captioned_clip
from vfsd import Store
from vfsd.core.retention_policy import TrustedClock
from vfsd.maintenance.age import RetentionExecutor, RetentionPlan

TRAFFIC = "cam1/traffic.mp4"
POLICY = "original=replaceable,psnr=34"


@pytest.mark.thorough
def test_originals_are_kept_by_default(run: Run) -> None:
    assert run("policy", "show").out == ""
    refused = run("replace", TRAFFIC)
    assert refused.code == 8
    assert "policy set cam1/traffic.mp4 original=replaceable" in refused.err
    assert run("info", TRAFFIC, "--json").object["policy"] == "original=keep"
    told = run("replace", TRAFFIC, "--codec", "h264", "--psnr", "34", "--dry-run", "--json").object
    assert "keeps the original" in told["refused"]
    assert "keeps the original" in run("replace", TRAFFIC, "--dry-run").out
    assert run("policy", "set", "", POLICY).code == 2


def test_empty_directory_may_have_a_policy(run: Run) -> None:
    assert run("policy", "set", "cam7", POLICY).code == 3
    (told,) = run("policy", "set", "cam7/", POLICY, "--json").objects
    assert (told["name"], told["policy"]) == ("cam7", POLICY)
    assert run("ingest", "footage/traffic.mp4", "--to", "cam7").code == 0
    (told,) = run("policy", "show", "cam7/traffic.mp4", "--json").objects
    assert (told["policy"], told["own"]) == (POLICY, False)
    assert run("policy", "set", f"{TRAFFIC}/", POLICY).code == 4
    assert run("policy", "set", "cam8/", "original=gone").code == 2
    assert "cam8/" not in run("ls").lines


def test_policy_of_other_files_is_refused_by_name(run: Run) -> None:
    add_plain_file(Path("videos"), "notes.txt", "text", "no video format that is served")
    done = run("policy", "set", "cam1/notes.txt", POLICY)
    assert done.code == 3
    assert "'cam1/notes.txt' is a file but not a video: no video format" in done.err
    done = run("budget", "set", "cam1", "5x")
    assert done.code == 3
    assert "'cam1' is a directory" in done.err
    assert "vfsd ls cam1" in done.err


def test_replaced_by_policy(run: Run) -> None:
    assert run("policy", "set", "cam1", POLICY).code == 0
    (told,) = run("policy", "show", TRAFFIC, "--json").objects
    assert (told["policy"], told["own"], told["psnr"]) == (POLICY, False, 34)
    before = run("info", TRAFFIC, "--json").object
    (foretold,) = run("replace", TRAFFIC, "--codec", "h264", "--dry-run", "--json").objects
    assert run("info", TRAFFIC, "--json").object["digest"] == before["digest"]
    assert foretold["refused"] is None
    (done,) = run("replace", TRAFFIC, "--codec", "h264", "--json").objects
    after = run("info", TRAFFIC, "--json").object
    assert done["bytes"] == before["size"] > done["new_bytes"] == after["size"]
    assert abs(foretold["new_bytes"] - done["new_bytes"]) < 0.3 * done["new_bytes"]
    assert after["replaced"]["digest"] == before["digest"]
    assert after["replaced"]["psnr"] == done["psnr"] >= 34
    assert after["modified"] == before["modified"]
    planes = run(
        "read", TRAFFIC, "a.yuv", "--format", "yuv420p", "--frames", "0:2", "--json"
    ).object
    assert planes["psnr"] == after["replaced"]["psnr"]
    colours = run("read", TRAFFIC, "a.npy", "--frames", "0:2", "--json").object
    assert 0 < colours["psnr"] <= planes["psnr"]
    assert "replaced" in run("info", TRAFFIC).out
    (entry,) = run("age", "log", "--json").objects
    assert (entry["action"], entry["name"]) == ("replaced", TRAFFIC)
    assert entry["saved"] == done["bytes"] - done["new_bytes"]
    assert run("fsck").code == 0


def test_hold_blocks_until_it_is_lifted(run: Run) -> None:
    run("policy", "set", TRAFFIC, POLICY)
    (held,) = run("hold", "add", TRAFFIC, "--reason", "case 17", "--json").objects
    assert run("hold", "ls", "--json").objects == [held]
    for words in (("rm", TRAFFIC), ("rm", "-r", "-y", "cam1"), ("replace", TRAFFIC)):
        refused = run(*words)
        assert refused.code == 8
        assert "case 17" in refused.err
    assert run("info", TRAFFIC, "--json").object["holds"] == ["case 17"]
    assert run("hold", "remove", TRAFFIC, "--reason", "closed").code == 0
    assert run("hold", "remove", TRAFFIC, "--reason", "closed").code == 3
    assert run("hold", "ls").out == ""
    actions = [one["action"] for one in run("age", "log", TRAFFIC, "--json").objects]
    assert actions == ["released", "held"]
    assert run("rm", TRAFFIC).code == 0


@pytest.fixture
def old(place: Path) -> None:
    make_old(place)


def make_old(place: Path) -> None:
    """Make the videos a hundred days old."""
    born = time.time_ns() - 100 * 86_400 * 1_000_000_000
    with closing(sqlite3.connect(place / "videos" / "catalog.sqlite3")) as database, database:
        database.execute("UPDATE videos SET created_ns = ?", (born,))
        database.execute("UPDATE nodes SET mtime_ns = ?", (born,))
    with Store.open(place / "videos") as store, store.catalog.writing() as change:
        change.clock_history.trust(
            TrustedClock(time.time_ns(), change.clock_history.newest_rows()), {}
        )


def test_age_dry_run_and_apply(run: Run, old: None) -> None:
    nothing = run("age")
    assert nothing.out == ""
    assert "vfsd policy set" in nothing.err
    run("policy", "set", TRAFFIC, f"{POLICY},codec=h264,replace-after=30d,delete-after=1y")
    (told,) = run("age", "cam1", "--json").objects
    assert (told["name"], told["stage"]) == (TRAFFIC, "replace")
    assert told["psnr"] >= 34
    assert 0 < told["saved"] < told["bytes"]
    (quick,) = run("age", "--quick", "--json").objects
    assert quick["saved"] is None
    (done,) = run("age", "--apply", "--json").objects
    assert done["action"] == "replaced"
    assert run("age", "--json").objects == []
    assert f"the next is {TRAFFIC}, in 265 days" in run("age").err
    run("policy", "set", TRAFFIC, "delete-after=60d")
    run("hold", "add", TRAFFIC, "--reason", "case 17")
    assert [one["stage"] for one in run("age", "--json").objects] == ["held"]
    run("hold", "remove", TRAFFIC, "--reason", "closed")
    (done,) = run("age", "--apply", "--json").objects
    assert (done["action"], done["reason"]) == ("deleted", "delete after 60d")
    assert run("info", TRAFFIC).code == 3
    assert run("age", "log", TRAFFIC, "--json").objects[0]["action"] == "deleted"


def test_age_names_the_clock_that_counts(run: Run, old: None) -> None:
    run("policy", "set", TRAFFIC, "delete-after=60d")
    arrived = run("info", TRAFFIC, "--json").object["created"]
    (told,) = run("age", "--json").objects
    assert (told["clock"], told["since"]) == ("arrival", arrived)
    with Store.open("videos") as store:
        store.set_captured(TRAFFIC, datetime(2020, 5, 1, tzinfo=UTC))
    (shown,) = run("policy", "set", TRAFFIC, "delete-after=60d,clock=recording", "--json").objects
    assert shown["clock"] == "recording"
    (told,) = run("age", "--json").objects
    assert (told["clock"], told["since"][:10]) == ("recording", "2020-05-01")
    assert "its age counts from 2020-05-01 (recording)" in run("age").out
    run("hold", "add", TRAFFIC, "--reason", "case 17")
    (held,) = run("age", "--json").objects
    assert (held["stage"], held["clock"]) == ("held", "recording")


def test_clock_that_jumped_ahead_needs_the_option_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("policy", "set", TRAFFIC, "delete-after=60d")
    later = time.time_ns() + 40 * 86_400 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert run("age", "--apply").code == 8
    assert run("read", TRAFFIC, "a.npy", "--frames", "0:2").code == 0
    refused = run("age", "--apply")
    assert refused.code == 8
    assert "may have jumped ahead" in refused.err
    assert run("age", "--clock-is-right").code == 0  # which changes nothing
    assert run("age", "--apply").code == 8
    assert run("age", "--apply", "--clock-is-right").code == 0
    assert run("age", "--apply").code == 0
    assert run("age", "log").out == ""


@pytest.mark.thorough
def test_saved_bytes_of_shared_originals_count_once(run: Run, place: Path) -> None:
    alone = run("stats", "--json").object["originals"]
    size = run("info", TRAFFIC, "--json").object["size"]
    assert run("ingest", "footage/traffic.mp4", "--as", "same.mp4").code == 0
    assert run("stats", "--json").object["originals"] == alone
    make_old(place)
    run("policy", "set", TRAFFIC, "delete-after=60d")
    assert [one["saved"] for one in run("age", "--json").objects] == [0]
    run("policy", "set", "same.mp4", f"{POLICY},codec=h264,replace-after=30d")
    first, second = run("age", "--json").objects
    assert {first["stage"], second["stage"]} == {"delete", "replace"}
    assert 0 < first["saved"] + second["saved"] < size
    run("policy", "set", TRAFFIC, "original=keep")
    (told,) = run("age", "--json").objects
    assert told["saved"] < 0
    assert " more, as another file has these bytes" in run("age").out
    (done,) = run("age", "--apply", "--json").objects
    assert done["saved"] == -done["new_bytes"]
    assert run("stats", "--json").object["originals"] == alone + done["new_bytes"]


@pytest.mark.thorough
def test_replacement_of_identical_originals_is_stored_once(run: Run, place: Path) -> None:
    before = run("stats", "--json").object["originals"]
    for name in ("b.mp4", "z.mp4"):
        assert run("ingest", "footage/traffic.mp4", "--as", name).code == 0
    make_old(place)
    for name in (TRAFFIC, "b.mp4"):
        # x264 is not deterministic on processors with AVX-512.
        run("policy", "set", name, f"{POLICY},codec=hevc,replace-after=30d")
    run("policy", "set", "z.mp4", "delete-after=60d")
    quick = run("age", "--quick", "--json").objects
    # The bytes that the last one frees depend on the other actions.
    assert [(one["name"], one["saved"]) for one in quick] == [
        ("b.mp4", None),
        (TRAFFIC, None),
        ("z.mp4", None),
    ]
    told = [one["saved"] for one in run("age", "--json").objects]
    done = [one["saved"] for one in run("age", "--apply", "--json").objects]
    after = run("stats", "--json").object["originals"]
    assert sum(done) == before - after
    assert sum(told) == pytest.approx(sum(done), rel=0.3)
    assert [size < 0 for size in told] == [size < 0 for size in done]


def test_streams_without_a_muxer_are_reported_in_advance(
    run: Run, place: Path, tmp_path: Path
) -> None:
    shutil.copy(captioned_clip(tmp_path), place / "coded.mp4")
    assert run("ingest", "coded.mp4").code == 0
    run("policy", "set", "coded.mp4", f"{POLICY},codec=h264,replace-after=30d")
    (told,) = run("replace", "coded.mp4", "--codec", "h264", "--dry-run", "--json").objects
    assert "stream 2 (subtitle" in told["refused"]
    assert (told["new_bytes"], told["psnr"], told["frames"]) == (told["bytes"], None, 0)
    assert "would stay unchanged: stream 2" in run("replace", "coded.mp4", "--dry-run").out
    make_old(place)
    (left,) = run("age", "--json").objects
    assert (left["stage"], left["saved"], left["frames"]) == ("left", 0, 0)
    assert "stream 2 (subtitle" in left["failed"]
    done = run("age")
    assert done.out.startswith("left: coded.mp4: ")
    assert "about 0 B would be saved" in done.err
    (entry,) = run("age", "--apply", "--json").objects
    assert entry["action"] == "left"
    (left,) = run("age", "--json").objects
    assert (left["stage"], left["failed"]) == ("left", None)


def test_failed_action_does_not_stop_the_others(run: Run, old: None) -> None:
    run("policy", "set", "cam1", f"{POLICY},decay-after=30d,keep=dog")
    done = run("age", "--apply")
    assert done.code == 30
    assert "was not examined for dog" in done.err


def test_action_no_longer_due_is_not_a_failure(
    run: Run, old: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("policy", "set", TRAFFIC, "delete-after=30d")
    plan = RetentionExecutor.plan

    def outdated(ager: RetentionExecutor) -> RetentionPlan:
        made = plan(ager)
        run("policy", "set", TRAFFIC, "delete-after=1y")
        return made

    monkeypatch.setattr(RetentionExecutor, "plan", outdated)
    done = run("age", "--apply")
    assert done.code == 0
    assert f"{TRAFFIC} is not due any more: delete after 30d" in done.err
    assert run("info", TRAFFIC).code == 0


@pytest.mark.thorough
def test_keep_regions_with_objects(run: Run) -> None:
    run("policy", "set", TRAFFIC, POLICY)
    assert run("replace", TRAFFIC, "--keep", "car").code == 8
    assert run("detect", TRAFFIC, "--with", "motion", "--label", "moving").code == 0
    (done,) = run("replace", TRAFFIC, "--keep", "moving", "--codec", "h264", "--json").objects
    assert done["new_bytes"] < done["bytes"]
    assert run("info", TRAFFIC, "--json").object["replaced"]["kept"] == "moving"


@pytest.mark.thorough
def test_forecast_psnr_of_decay_is_that_outside_the_kept_regions(run: Run, old: None) -> None:
    keep = ("--keep", "moving", "--codec", "h264")
    run("policy", "set", TRAFFIC, f"{POLICY},codec=h264,decay-after=30d,keep=moving")
    assert run("detect", TRAFFIC, "--with", "motion", "--label", "moving").code == 0
    assert " dB in the kept regions, in the worst of " in run("age").out
    assert " dB in the kept regions" in run("replace", TRAFFIC, *keep, "--dry-run").out
    assert " dB in" not in run("replace", TRAFFIC, "--dry-run").out
    (done,) = run("age", "--apply", "--json").objects
    assert done["psnr"] < 34 <= done["details"]["inside"]
