"""Retention of aging videos: actions, the log, and implausible clocks."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sample_videos import FOLDER
from tests.support.fs_driver import Driver
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.catalog.retention import OriginalPolicies
from vfsd.catalog.schema import nodes, videos
from vfsd.catalog.tree import Tree
from vfsd.core.capture_time import CaptureClock, CaptureTime
from vfsd.core.retention_policy import Action, OriginalLogEntry, Share, TrustedClock
from vfsd.errors import (
    ForbiddenError,
    HeldError,
    NoSpaceError,
    NotFoundError,
    OutdatedError,
    StoreError,
    UsageError,
)
from vfsd.maintenance import age, fsck
from vfsd.maintenance.age import DirectoryUsage, RetentionExecutor
from vfsd.maintenance.due_rules import NS, AgeSource, DueStep, RetentionStage
from vfsd.mount.fs import Filesystem
from vfsd.storage import reclaim
from vfsd.storage.original_guard import set_policy

DAY_NS = 86_400 * 1_000_000_000
NAME = "traffic.mp4"
_PADDING = struct.Struct(">I4sQ")


def quietly(what: str, done: int, total: int) -> None:
    pass


def put(store: Store, name: str, days: float, policy: str) -> Video:
    """Store a video of that age."""
    source = store.path.with_name(f"{len(store)}.mp4")  # with unique bytes
    source.write_bytes((FOLDER / NAME).read_bytes() + _PADDING.pack(16, b"free", len(store)))
    video = store.ingest(source, name)
    source.unlink()
    return aged(store, video, days, policy)


def aged(store: Store, video: Video, days: float, policy: str) -> Video:
    """Store a video from 400 days ago with a file of `days` days, and make the clock trusted."""
    now = time.time_ns()
    born, came = now - round(days * DAY_NS), now - 400 * DAY_NS
    engine = sa.create_engine(f"sqlite:///{store.path / 'catalog.sqlite3'}")
    with engine.begin() as connection:
        connection.execute(
            sa.update(videos)
            .where(videos.c.id <= video.info.id, videos.c.created_ns > came)
            .values(created_ns=came)
        )
        connection.execute(
            sa.update(nodes).where(nodes.c.ino == video.info.ino).values(mtime_ns=born)
        )
    engine.dispose()
    trust(store)
    video.policy.set(policy)
    return store[video.name]


def trust(store: Store) -> None:
    """Record a run of `vfsd age --apply` that has nothing to do."""
    with store.catalog.writing() as change:
        change.clock_history.trust(
            TrustedClock(time.time_ns(), change.clock_history.newest_rows()), {}
        )


def ager(store: Store, **how: bool) -> RetentionExecutor:
    return RetentionExecutor(store.parts, list(store.find()), **how)


def run(store: Store) -> list[OriginalLogEntry]:
    mine = ager(store)
    return [mine.apply(due, quietly) for due in mine.plan().due]


def test_replaced_once_then_deleted(store: Store) -> None:
    rules = "original=replaceable,psnr=34,codec=h264,replace-after=30d,delete-after=60d"
    young = put(store, "young.mp4", 3, rules)
    video = put(store, "a.mp4", 31, rules)
    (due,) = ager(store).plan().due
    assert (due.candidate.name, due.stage) == ("a.mp4", RetentionStage.REPLACE)
    told = ager(store).forecast(due, quietly)
    assert told is not None
    assert told.psnr >= 34
    (entry,) = run(store)
    assert (entry.action, entry.reason) == (
        Action.REPLACED,
        "replace after 30d: 34 dB in h264",
    )
    assert entry.saved == video.info.size - store["a.mp4"].info.size > 0
    assert run(store) == []
    store.remove("a.mp4")
    old = put(store, "b.mp4", 61, rules)
    (entry,) = run(store)
    assert (entry.action, entry.name, entry.saved) == (Action.DELETED, "b.mp4", old.info.size)
    assert list(store) == ["young.mp4"]
    assert store["young.mp4"].info == young.info
    with store.catalog.reading() as seen:
        assert [one.name for one in seen.retention.log()] == ["b.mp4", "a.mp4"]
    assert fsck.run(store.parts, deep=True) == []
    assert fsck.collect(store.parts, dry_run=True).objects == []


def test_archive_is_deleted_by_recording_only_on_request(store: Store) -> None:
    put(store, "cam1/2020-05-01.mp4", 0, "delete-after=30d")
    put(store, "cam1/old.mp4", 0, "delete-after=30d,clock=recording")
    with store.catalog.writing() as change:  # as if a container said so
        when = CaptureTime(1_588_291_200 * NS, CaptureClock.CONTAINER)
        change.videos.set_captured(store["cam1/old.mp4"].info.id, when)
    store.set_captured("cam1/2020-05-01.mp4", datetime(2020, 5, 1, tzinfo=UTC))
    assert ager(store).plan().due == ()
    store["cam1/2020-05-01.mp4"].policy.set("delete-after=30d,clock=recording")
    (due,) = ager(store).plan().due
    born, source = due.candidate.born(time.time_ns())
    seconds = store["cam1/2020-05-01.mp4"].duration
    assert (born, source) == (1_588_291_200 * NS + math.ceil(seconds * NS), AgeSource.RECORDING)
    executor = ager(store)
    (due,) = executor.plan().due
    store.set_captured("cam1/2020-05-01.mp4", None)
    with pytest.raises(OutdatedError):
        executor.apply(due, quietly)
    store.set_captured("cam1/2020-05-01.mp4", datetime(2020, 5, 1, tzinfo=UTC))
    (entry,) = run(store)
    assert entry.reason == "delete after 30d from its recording (given)"
    assert list(store) == ["cam1/old.mp4"]


def test_new_bytes_restart_the_age_of_a_recording(store: Store, tmp_path: Path) -> None:
    put(store, "a.mp4", 40, "delete-after=30d,clock=recording")
    store.set_captured("a.mp4", datetime(2020, 5, 1, tzinfo=UTC))
    (due,) = ager(store).plan().due
    assert due.stage is RetentionStage.DELETE
    it = Driver(Filesystem(store.parts))
    it.write("/a.mp4", (FOLDER / "portrait.mp4").read_bytes())
    assert it.state("/a.mp4") == "video"
    assert store["a.mp4"].captured_at is not None
    assert ager(store).plan().due == ()


@pytest.mark.thorough
def test_replacement_without_savings_is_tried_once(store: Store) -> None:
    put(store, "a.mp4", 31, "original=replaceable,psnr=55,replace-after=30d")
    (entry,) = run(store)
    assert entry.action is Action.LEFT
    assert "nothing would be saved" in (entry.details or {})["why"]
    plan = ager(store).plan()
    assert plan.due == ()
    assert [one.candidate.name for one in plan.left] == ["a.mp4"]
    store["a.mp4"].policy.set("original=replaceable,psnr=34,replace-after=30d")
    assert [one.action for one in run(store)] == [Action.REPLACED]


@pytest.mark.thorough
def test_skipped_videos_are_looked_up_individually(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing each of thousands of videos with all others would be slow."""
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        put(store, name, 31, "original=replaceable,psnr=55,replace-after=30d")
    assert {entry.action for entry in run(store)} == {Action.LEFT}
    compared: list[object] = []

    def compare(due: DueStep, other: object) -> bool:
        compared.append(other)
        return due is other

    monkeypatch.setattr(DueStep, "__eq__", compare)
    plan = ager(store).plan()
    assert (len(plan.due), len(plan.left), compared) == (0, 3, [])


def test_videos_on_hold_are_kept(store: Store) -> None:
    video = put(store, "a.mp4", 100, "delete-after=30d")
    (due,) = ager(store).plan().due
    mine = ager(store)
    video.policy.hold("case 17")
    with pytest.raises(HeldError):
        mine.apply(due, quietly)
    plan = ager(store).plan()
    assert (plan.due, [one.name for one in plan.held]) == ((), ["a.mp4"])
    video.policy.release("closed")
    assert [one.action for one in run(store)] == [Action.DELETED]


def test_holds_of_a_video_with_a_non_utf8_name(store: Store) -> None:
    name = "a\udcff.mp4"
    video = put(store, name, 100, "delete-after=30d")
    for reason in ("case\0 17", "case \udc80"):
        with pytest.raises(UsageError, match="a reason must not"):
            video.policy.hold(reason)
    video.policy.hold("case 17")
    video.policy.release("closed")
    assert [one.action for one in run(store)] == [Action.DELETED]


def test_only_holds_that_block_an_action_are_reported(store: Store) -> None:
    short = shutil.disk_usage(store.path).free + 100_000_000_000
    for name, policy in (
        ("forever.mp4", "original=keep"),
        ("later.mp4", "delete-after=200d"),
        ("roomy.mp4", "delete-below=1K"),
        ("aged.mp4", "delete-after=30d"),
        ("full.mp4", f"delete-below={short}"),
    ):
        put(store, name, 100, policy).policy.hold("case 17")
    plan = ager(store).plan()
    assert (plan.due, sorted(one.name for one in plan.held)) == ((), ["aged.mp4", "full.mp4"])


def test_all_names_are_deleted(store: Store) -> None:
    video = put(store, "cam/a.mp4", 100, "delete-after=30d")
    with store.catalog.writing() as change:
        change.tree.link(video.info.ino, 1, "b.mp4", now_ns=1)
    (entry,) = run(store)
    assert (entry.details or {})["names"] == ["b.mp4", "cam/a.mp4"]
    assert list(store) == []
    assert fsck.run(store.parts) == []


def test_one_name_under_a_keep_policy_protects_all_names(store: Store) -> None:
    video = put(store, "cam/a.mp4", 100, "original=keep")
    video.policy.set(None)
    set_policy(store.parts, "cam", "delete-after=30d")
    store.ingest(FOLDER / "portrait.mp4", "evidence/b.mp4")
    store.ingest(FOLDER / "portrait.mp4", "other/b.mp4")
    with store.catalog.writing() as change:
        folder = change.tree.resolve("evidence").ino
        change.tree.link(video.info.ino, folder, "a.mp4", now_ns=1)
    for policy in ("original=keep", None, "delete-after=200d"):
        set_policy(store.parts, "evidence", policy)
        assert ager(store).plan().due == ()
    set_policy(store.parts, "evidence", "delete-after=90d")
    (entry,) = run(store)
    assert (entry.reason, (entry.details or {})["names"]) == (
        "delete after 90d",
        ["cam/a.mp4", "evidence/a.mp4"],
    )


def test_newer_file_of_the_same_name_is_not_deleted(store: Store) -> None:
    put(store, "a.mp4", 100, "delete-after=30d")
    mine = ager(store)
    (due,) = mine.plan().due
    store.ingest(FOLDER / "portrait.mp4", "a.mp4", replace=True)
    with pytest.raises(OutdatedError):
        mine.apply(due, quietly)
    assert list(store) == ["a.mp4"]


def clear_policy(store: Store) -> None:
    set_policy(store.parts, "cam", None)


def move_away(store: Store) -> None:
    store.move("cam/a.mp4", "safe/a.mp4")


def touch(store: Store) -> None:
    with store.catalog.writing() as change:
        ino = change.tree.resolve("cam/a.mp4").ino
        change.tree.update(ino, mtime_ns=time.time_ns())


@pytest.mark.parametrize("meanwhile", [clear_policy, move_away, touch])
def test_outdated_delete_is_not_applied(store: Store, meanwhile: Callable[[Store], None]) -> None:
    """Other videos may be encoded for hours between plan and delete."""
    video = put(store, "cam/a.mp4", 100, "original=keep")
    video.policy.set(None)
    set_policy(store.parts, "cam", "delete-after=30d")
    mine = ager(store)
    (due,) = mine.plan().due
    meanwhile(store)
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(due, quietly)
    (left,) = store.find()
    assert left.info.digest == video.info.digest
    with store.catalog.reading() as seen:
        assert seen.retention.log() == []


def test_outdated_replacement_is_not_applied(store: Store) -> None:
    """The replacement would still be allowed, but no longer follows from the video's age."""
    rules = "original=replaceable,psnr=34,codec=h264"
    video = put(store, "a.mp4", 31, f"{rules},replace-after=30d")
    mine = ager(store)
    (due,) = mine.plan().due

    def change(what: str, done: int, total: int) -> None:
        if what == "comparing" and done == total:
            store["a.mp4"].policy.set(rules)

    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(due, change)
    assert store["a.mp4"].info.digest == video.info.digest
    assert fsck.collect(store.parts, dry_run=True).objects == []


def test_deletion_stops_when_space_is_free(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(store.path)
    for days in (1, 3, 2):
        put(store, f"{days}.mp4", days, f"delete-below={free.free + 100_000_000_000}")
    mine = ager(store)
    first, *others = mine.plan().due
    assert len(others) == 2
    mine.apply(first, quietly)
    roomy = free._replace(free=free.free + 200_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: roomy)
    for due in others:
        with pytest.raises(OutdatedError):
            mine.apply(due, quietly)
    assert list(store) == ["1.mp4", "2.mp4"]


def test_full_disk_deletes_the_oldest(store: Store) -> None:
    free = shutil.disk_usage(store.path).free
    for days in (1, 3, 2):
        put(store, f"{days}.mp4", days, f"delete-below={free + 100_000_000_000}")
    put(store, "kept.mp4", 9, "original=keep")
    assert [one.name for one in run(store)] == ["3.mp4", "2.mp4", "1.mp4"]
    assert list(store) == ["kept.mp4"]


def test_oldest_are_deleted_until_the_directory_meets_its_limit(store: Store) -> None:
    """Each directory is separate, and only videos under its policy count."""
    size = (FOLDER / NAME).stat().st_size + 16
    for name in ("cam1/a.mp4", "cam1/sub/b.mp4", "cam1/c.mp4", "cam2/d.mp4", "cam2/e.mp4"):
        put(store, name, 10 - len(store), "original=keep")
        store[name].policy.set(None)
    own = put(store, "cam1/own.mp4", 90, "original=keep")
    put(store, "cam1/own/f.mp4", 80, "original=keep").policy.set(None)
    store.set_policy("cam1/own/", "original=keep")
    held = put(store, "cam1/held.mp4", 70, "original=keep")
    held.policy.set(None)
    held.policy.hold("case 17")
    store.set_policy("cam1/", f"delete-above={2 * size}")
    store.set_policy("cam2/", f"delete-above={2 * size}")
    (due,) = ager(store).plan().due
    assert (due.candidate.name, due.reason) == (
        "cam1/a.mp4",
        f"its directory had more than {2 * size} bytes",
    )
    (entry,) = run(store)
    assert (entry.name, entry.saved) == ("cam1/a.mp4", size)
    assert run(store) == []
    assert ager(store).plan().may_free_space
    assert own.name in store
    held.policy.release("closed")
    store.set_policy("cam2/", f"delete-above={size - 1}")
    assert [one.name for one in run(store)] == ["cam1/held.mp4", "cam2/d.mp4", "cam2/e.mp4"]
    assert fsck.run(store.parts, deep=True) == []


@pytest.mark.parametrize("policy", [None, "delete-after=99d"])
def test_video_no_longer_under_a_limit_is_not_due(store: Store, policy: str | None) -> None:
    for days in (3, 2):
        put(store, f"cam/{days}.mp4", days, "original=keep").policy.set(None)
    store.set_policy("cam/", "delete-above=1")
    mine = ager(store)
    first, second = mine.plan().due
    mine.apply(first, quietly)
    store.set_policy("cam/", policy)
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(second, quietly)
    assert list(store) == ["cam/2.mp4"]


def test_video_in_several_directories_is_deleted_when_all_are_full(store: Store) -> None:
    a, b = put(store, "a/1.mp4", 9, "original=keep"), put(store, "b/2.mp4", 8, "original=keep")
    for one in (a, b):
        one.policy.set(None)
    with store.catalog.writing() as change:
        change.tree.link(a.info.ino, change.tree.resolve("b").ino, "1.mp4", now_ns=0)
    store.set_policy("a/", "delete-above=1")
    assert run(store) == []
    store.set_policy("b/", f"delete-above={a.info.size + b.info.size}")
    assert run(store) == []
    store.set_policy("b/", f"delete-above={a.info.size + b.info.size - 1}")
    (due,) = ager(store).plan().due
    assert due.candidate.video_id == a.info.id
    assert [sorted((entry.details or {})["names"]) for entry in run(store)] == [
        ["a/1.mp4", "b/1.mp4"]
    ]
    assert list(store) == ["b/2.mp4"]


def test_shared_videos_evict_no_others(store: Store) -> None:
    """A video that is also linked from a directory with space cannot be deleted, and must not
    cause deletions of new recordings."""
    for name in ("cam1/1.mp4", "cam1/2.mp4", "cam1/3.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    size = store["cam1/1.mp4"].info.size
    with store.catalog.writing() as change:
        folder = change.tree.create(1, "keep", 0o040755, uid=0, gid=0, now_ns=1).ino
        for name in ("1.mp4", "2.mp4", "3.mp4"):
            ino = change.tree.resolve(f"cam1/{name}").ino
            change.tree.link(ino, folder, name, now_ns=1)
    store.set_policy("keep/", "delete-above=1T")
    store.set_policy("cam1/", f"delete-above={2 * size}")
    put(store, "cam1/4.mp4", 2, "original=keep").policy.set(None)
    assert run(store) == []
    store.set_policy("keep/", f"delete-above={2 * size}")
    put(store, "cam1/5.mp4", 1, "original=keep").policy.set(None)
    assert [entry.name for entry in run(store)] == ["cam1/1.mp4"]
    assert run(store) == []


def test_holds_that_block_freeing_space_are_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4", "cam1/d.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    size = store["cam1/a.mp4"].info.size
    for name in ("cam1/a.mp4", "cam1/d.mp4"):
        store[name].policy.hold("case 17")

    def told() -> tuple[list[str], list[str]]:
        plan = ager(store).plan()
        return [due.candidate.name for due in plan.due], [one.name for one in plan.held]

    store.set_policy("cam1/", f"delete-above={3 * size}")
    assert told() == ([], ["cam1/a.mp4"])
    store.set_policy("cam1/", f"delete-above={size}")
    assert told() == (["cam1/b.mp4"], ["cam1/a.mp4"])
    store.set_policy("cam1/", f"delete-above={4 * size}")
    assert told() == ([], [])
    free = shutil.disk_usage(store.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=10 * size - 1))
    store.set_policy("cam1/", f"delete-below={10 * size}")
    assert told() == (["cam1/b.mp4"], ["cam1/a.mp4", "cam1/d.mp4"])


def test_delete_for_two_reasons_needs_only_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers fill the space as fast as it is freed."""
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    size = store["cam1/a.mp4"].info.size
    store.set_policy("cam1/", f"delete-below={10 * size},delete-above={size}")
    usage = shutil.disk_usage(store.path)

    def free(count: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=count))

    full, crowded = f"less than {10 * size} bytes were free", f"more than {size} bytes"
    free(10 * size - 1)
    mine = ager(store)
    first, second = mine.plan().due
    assert first.reason == full
    assert second.reason.endswith(crowded)
    free(10 * size)
    assert mine.apply(first, quietly).reason.endswith(crowded)
    free(10 * size - 1)
    assert mine.apply(second, quietly).reason.endswith(crowded)


@pytest.fixture
def added_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record, for each sum of a directory's share, whether other writers waited for it."""
    found: list[bool] = []
    right = OriginalPolicies.share

    def share(self: OriginalPolicies, directory: int) -> Share:
        found.append(store.catalog._database._is_writing)
        return right(self, directory)

    monkeypatch.setattr(OriginalPolicies, "share", share)
    return found


def test_large_directory_is_summed_once(store: Store, added_up: list[bool]) -> None:
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4", "cam1/d.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    store.set_policy("cam1/", f"delete-above={store['cam1/a.mp4'].info.size}")
    mine = ager(store)
    first, *others = mine.plan().due
    assert added_up == [False]
    mine.apply(first, quietly)
    assert added_up == [False]
    with store.catalog.writing() as change:  # nothing that affects the sum
        change.read_log.remove(None)
        change.objects.record("ab" * 32, 5, now_ns=1)
    mine.apply(others[0], quietly)
    assert added_up == [False]
    store.ingest(FOLDER / "portrait.mp4", "elsewhere.mp4")
    mine.apply(others[1], quietly)
    assert added_up == [False, False]
    assert [*store] == ["cam1/d.mp4", "elsewhere.mp4"]


def test_change_during_the_sum_of_a_directory_is_noticed(
    store: Store, added_up: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cam1/a.mp4", "cam1/b.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    store.set_policy("cam1/", f"delete-above={store['cam1/a.mp4'].info.size}")
    mine = ager(store)
    (due,) = mine.plan().due
    right = DirectoryUsage.look

    def look(self: DirectoryUsage, directories: Iterable[int]) -> None:
        right(self, directories)
        store.remove("cam1/b.mp4")

    monkeypatch.setattr(DirectoryUsage, "look", look)
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(due, quietly)
    assert added_up == [False, True]


def test_undone_delete_is_due_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next change of another process counts like the undone change would have."""
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    store.set_policy("cam1/", f"delete-above={2 * store['cam1/a.mp4'].info.size}")
    mine = ager(store)
    (due,) = mine.plan().due

    def fail(_: object) -> None:
        raise NoSpaceError("full")

    with monkeypatch.context() as patched:
        patched.setattr("vfsd.catalog.engine._count_change", fail)  # as the last operation
        with pytest.raises(NoSpaceError):
            mine.apply(due, quietly)
    with store.catalog.writing() as change:
        change.tree.update(change.tree.resolve("cam1").ino, atime_ns=1)
    assert mine.apply(due, quietly).name == "cam1/a.mp4"


def test_many_equal_videos_are_processed_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4"):
        aged(store, store.ingest(FOLDER / NAME, name), 9, "original=keep").policy.set(None)
    store.set_policy("cam1/", "delete-above=1")
    mine = ager(store)
    dues = mine.plan().due
    looked: list[object] = []
    right = age._all_make_room

    def all_make_room(*args: Any) -> bool:
        looked.append(args)
        return right(*args)

    monkeypatch.setattr(age, "_all_make_room", all_make_room)
    assert [mine.apply(due, quietly).saved for due in dues][:2] == [0, 0]
    assert len(looked) == 1
    assert list(store) == []


def test_other_writers_run_between_deletions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite polls for its lock only occasionally."""
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        put(store, name, 100, "delete-after=30d")
    mine = ager(store)
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    monkeypatch.setattr(reclaim, "_BATCH_SECONDS", 0)
    for due in mine.plan().due:
        mine.apply(due, quietly)
    assert rests.count(0.1) == 3


def test_bytes_shared_with_another_directory_are_not_deleted(store: Store) -> None:
    """Deleting them would free no space, and nothing else is deleted instead."""
    for name in ("cam1/a.mp4", "archive/a.mp4"):
        aged(store, store.ingest(FOLDER / NAME, name), 100, "original=keep")
        store[name].policy.set(None)
    put(store, "cam1/b.mp4", 9, "original=keep").policy.set(None)
    store.set_policy("cam1/", f"delete-above={store['cam1/b.mp4'].info.size}")
    assert run(store) == []
    store.remove("archive/a.mp4")
    assert [one.name for one in run(store)] == ["cam1/a.mp4"]


def test_deletion_stops_when_the_directory_has_space(store: Store) -> None:
    for name in ("cam1/a.mp4", "cam1/b.mp4", "cam1/c.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    store.set_policy("cam1/", f"delete-above={store['cam1/c.mp4'].info.size}")
    mine = ager(store)
    first, second = mine.plan().due
    store.remove("cam1/c.mp4")
    assert mine.apply(first, quietly).name == "cam1/a.mp4"
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(second, quietly)
    assert list(store) == ["cam1/b.mp4"]


def test_missing_bytes_do_not_count_for_a_directory(store: Store) -> None:
    for name in ("cam1/lost.mp4", "cam1/b.mp4", "cam1/c.mp4", "cam1/d.mp4"):
        put(store, name, 9 - len(store), "original=keep").policy.set(None)
    with store.catalog.writing() as change:
        folder = change.tree.resolve("cam1").ino
        change.tree.link(store["cam1/lost.mp4"].info.ino, folder, "again.mp4", now_ns=0)
    size = store["cam1/d.mp4"].info.size
    store.set_policy("cam1/", f"delete-above={2 * size}")
    store.parts.objects.delete(store["cam1/lost.mp4"].info.original.object_key or "")
    mine = ager(store)
    (due,) = mine.plan().due
    assert due.candidate.name == "cam1/b.mp4"
    store.remove("cam1/d.mp4")
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(due, quietly)


def test_byte_limits_are_for_directories(store: Store) -> None:
    video = put(store, "cam1/a.mp4", 1, "original=keep")
    with pytest.raises(UsageError, match="delete-above must be set on a directory"):
        video.policy.set("delete-above=1G")
    assert str(video.policy.get()) == "original=keep"


def test_no_deletion_for_an_unmounted_disk(store: Store) -> None:
    """The free space at the target of `objects` then belongs to another disk."""
    short = shutil.disk_usage(store.path).free + 100_000_000_000
    put(store, "a.mp4", 100, f"delete-below={short}")
    mine = ager(store)
    (due,) = mine.plan().due
    objects, disk = store.path / "objects", store.path.with_name("disk")
    objects.rename(disk)
    (objects / "tmp").mkdir(parents=True)
    with pytest.raises(StoreError, match="is empty, and should hold 1 objects"):
        mine.apply(due, quietly)
    with pytest.raises(StoreError, match="is empty, and should hold 1 objects"):
        mine.plan()
    shutil.rmtree(objects)
    disk.rename(objects)
    assert list(store) == ["a.mp4"]
    assert [one.name for one in run(store)] == ["a.mp4"]


def test_missing_bytes_free_no_space(store: Store) -> None:
    """Some objects are missing, as after writes to the unmounted store."""
    short = shutil.disk_usage(store.path).free + 100_000_000_000
    gone = put(store, "gone.mp4", 200, f"delete-below={short}")
    put(store, "there.mp4", 100, f"delete-below={short}")
    lost = put(store, "lost.mp4", 150, f"delete-below={short}")
    mine = ager(store)
    assert gone.info.original.object_key is not None
    assert lost.info.original.object_key is not None
    store.parts.objects.delete(gone.info.original.object_key)
    planned = mine.plan().due
    assert [due.candidate.name for due in planned] == ["lost.mp4", "there.mp4"]
    store.parts.objects.delete(lost.info.original.object_key)
    with pytest.raises(OutdatedError, match="not due any more"):
        mine.apply(planned[0], quietly)
    mine.apply(planned[1], quietly)
    assert list(store) == ["gone.mp4", "lost.mp4"]
    store["gone.mp4"].policy.set("delete-after=30d")
    (entry,) = run(store)
    assert (entry.name, entry.saved) == ("gone.mp4", 0)


def hold_one(store: Store) -> None:
    store["a.mp4"].policy.hold("case 17")


def keep_one(store: Store) -> None:
    store["a.mp4"].policy.set("original=keep")


def one_more(store: Store) -> None:
    store.ingest(FOLDER / NAME, "new.mp4")


@pytest.mark.parametrize("meanwhile", [hold_one, keep_one, one_more])
def test_videos_with_the_same_bytes_are_deleted_together(
    store: Store, meanwhile: Callable[[Store], None]
) -> None:
    """Deleting one of them alone would free nothing."""
    short = shutil.disk_usage(store.path).free + 100_000_000_000
    for name in ("a.mp4", "b.mp4"):
        aged(store, store.ingest(FOLDER / NAME, name), 100, f"delete-below={short}")
    mine = ager(store)
    first, second = mine.plan().due
    due = second if first.candidate.name == "a.mp4" else first
    meanwhile(store)
    with pytest.raises(OutdatedError, match="another file with the same bytes"):
        mine.apply(due, quietly)
    assert {"a.mp4", "b.mp4"} <= set(store)
    with store.catalog.reading() as seen:
        assert {entry.action for entry in seen.retention.log()} <= {Action.HELD}


def test_shared_bytes_are_freed_with_the_last_video(store: Store) -> None:
    size = (FOLDER / NAME).stat().st_size
    rules = "original=replaceable,psnr=34,codec=h264,replace-after=30d"
    for name, policy in (
        ("kept.mp4", "original=keep"),
        ("a.mp4", "delete-after=60d"),
        ("b.mp4", rules),
        ("room.mp4", f"delete-below={shutil.disk_usage(store.path).free + 100_000_000_000}"),
    ):
        aged(store, store.ingest(FOLDER / NAME, name), 100, policy)
    done = {entry.name: entry for entry in run(store)}
    assert done.keys() == {"a.mp4", "b.mp4"}
    assert done["a.mp4"].saved == 0
    assert done["b.mp4"].saved == -store["b.mp4"].info.size
    store["kept.mp4"].policy.set("delete-after=90d")
    assert [(entry.name, entry.saved) for entry in run(store)] == [
        ("kept.mp4", 0),
        ("room.mp4", size),
    ]
    assert list(store) == ["b.mp4"]
    with store.catalog.reading() as seen:
        assert sum(entry.saved for entry in seen.retention.log()) == size - store["b.mp4"].info.size


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock forward by that many days."""
    right = time.time_ns

    def ahead(days: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: right() + round(days * DAY_NS))

    return ahead


def go(store: Store, **how: bool) -> list[str]:
    """The videos removed by the command line."""
    mine = ager(store, **how)
    plan = mine.plan()
    mine.remember_clock()
    return [mine.apply(due, quietly).name for due in plan.due]


def read(store: Store) -> None:
    store["a.mp4"].frames([0])
    store.tools.read_log.flush()


def replace(store: Store) -> None:
    store.ingest(FOLDER / "portrait.mp4", "b.mp4")


def tile(store: Store) -> None:
    store["a.mp4"].tiles.retile("uniform:2x2", span=(0, 1))


def hold(store: Store) -> None:
    store["a.mp4"].policy.hold("case 17")
    store["a.mp4"].policy.release("closed")


@pytest.mark.parametrize("note", [read, replace, tile, hold])
def test_records_of_a_wrong_clock_do_not_confirm_it(
    store: Store, clock: Callable[[float], None], note: Callable[[Store], None]
) -> None:
    put(store, "a.mp4", 1, "delete-after=30d")
    clock(35)
    with pytest.raises(ForbiddenError, match="35 days after"):
        go(store)
    note(store)
    with pytest.raises(ForbiddenError, match="35 days after"):
        go(store)
    assert go(store, is_clock_right=True) == ["a.mp4"]


def test_first_run_is_compared_with_the_first_video(
    store: Store, clock: Callable[[float], None]
) -> None:
    put_now(store, "a.mp4")
    store["a.mp4"].policy.set("delete-after=20d")
    clock(35)
    read(store)
    with pytest.raises(ForbiddenError, match=r"35 days after .* the first video was stored"):
        go(store)
    clock(29)
    store.tools.read_log.flush()
    with pytest.raises(ForbiddenError, match="behind"):
        go(store)
    assert go(store, is_clock_right=True) == ["a.mp4"]


def test_monthly_runs_need_no_option(store: Store, clock: Callable[[float], None]) -> None:
    put(store, "a.mp4", 1, "delete-after=100d")
    for days in (29, 58, 87):
        clock(days)
        assert go(store) == []
    with store.catalog.reading() as seen:
        assert seen.retention.log() == []
    clock(118)
    with pytest.raises(ForbiddenError, match="31 days after"):
        go(store)
    assert fsck.run(store.parts) == []
    assert go(store, is_clock_right=True) == ["a.mp4"]


def test_times_of_a_clock_that_was_ahead_need_the_option_once(
    store: Store, clock: Callable[[float], None]
) -> None:
    put(store, "a.mp4", 28, "delete-after=30d")
    clock(3650)
    hold(store)
    year = time.gmtime(time.time_ns() // 1_000_000_000).tm_year
    clock(0)
    with pytest.raises(ForbiddenError, match=f"behind {year}-"):
        go(store)
    assert go(store, is_clock_right=True) == []
    clock(3)
    assert go(store) == ["a.mp4"]


BEHIND = -20_000
"""Days: a clock that begins in the seventies, as one does that has forgotten the time."""


def put_now(store: Store, name: str) -> None:
    """Store a video with the current times of the clock."""
    source = store.path.with_name("now.mp4")
    shutil.copyfile(FOLDER / "portrait.mp4", source)
    os.utime(source, ns=(time.time_ns(), time.time_ns()))
    store.ingest(source, name, replace=name in store)
    source.unlink()


def write_over(store: Store, name: str) -> None:
    """Replace the bytes of an existing video, which stays the same video."""
    info = store[name].info
    with store.catalog.writing() as change:
        change.videos.put(
            info.ino,
            replaced(info.original, created_ns=time.time_ns()),
            change.videos.pages(info.original.id),
            digest=info.digest[::-1],
            now_ns=time.time_ns(),
        )
        change.tree.update(info.ino, mtime_ns=time.time_ns())


def test_corrected_times_are_not_from_a_late_clock(
    store: Store, clock: Callable[[float], None]
) -> None:
    info = put(store, "a.mp4", 27, "delete-after=30d").info
    for days in (0, 1):
        clock(days)
        assert go(store) == []
    with store.catalog.writing() as change:
        # Corrected with its time kept, then wrong again.
        media = replaced(info.original.media, rotation=90)
        original = replaced(info.original, media=media, created_ns=info.created_ns)
        pages = change.videos.pages(info.original.id)
        change.videos.replace_original(info.id, original, pages, digest=info.digest)
    clock(2)
    assert go(store) == []
    assert store["a.mp4"].verify()
    clock(4)
    assert go(store) == ["a.mp4"]


def test_video_stored_while_the_clock_was_late_is_not_old(
    store: Store, clock: Callable[[float], None]
) -> None:
    put(store, "a.mp4", 1, "delete-after=30d")
    assert go(store) == []
    clock(BEHIND)
    put_now(store, "b.mp4")
    store["b.mp4"].policy.set("delete-after=30d,delete-below=1K")
    write_over(store, "a.mp4")
    with pytest.raises(ForbiddenError, match="which is behind"):
        go(store)
    clock(1)
    assert go(store) == []  # their ages count from this run
    clock(30.9)
    assert go(store) == []
    clock(31.1)
    assert sorted(go(store)) == ["a.mp4", "b.mp4"]
    with store.catalog.reading() as seen:
        assert {one.action for one in seen.retention.log()} == {Action.DELETED}


def test_overwritten_video_ages_from_the_write(
    store: Store, clock: Callable[[float], None]
) -> None:
    """`cp -p` gives the overwritten file the time of its source."""
    video = put(store, "a.mp4", 1, "delete-after=30d")
    born = video.info.modified_ns - 300 * DAY_NS
    it = Driver(Filesystem(store.parts))
    for clip in ("portrait.mp4", NAME, NAME):  # the last one changes nothing
        it.write("/a.mp4", (FOLDER / clip).read_bytes())
        it.fs.settle()
        with store.catalog.writing() as change:
            change.tree.update(video.info.ino, mtime_ns=born)
        there = store["a.mp4"].info
        assert (there.id, there.modified_ns) == (video.info.id, born)
        assert there.created_ns < time.time_ns() - 300 * DAY_NS
        assert ager(store).plan().due == ()
    it.fs.close()
    for days in (5, 10, 15, 20, 25, 29.9):
        clock(days)
        assert go(store) == []
    clock(30.1)
    assert go(store) == ["a.mp4"]


def test_overwrite_under_a_fast_clock_ages_from_its_correction(
    store: Store, clock: Callable[[float], None]
) -> None:
    video = put(store, "a.mp4", 1, "delete-after=30d")
    it = Driver(Filesystem(store.parts))
    clock(3000)
    it.write("/a.mp4", (FOLDER / "portrait.mp4").read_bytes())
    it.fs.settle()
    it.fs.close()
    with store.catalog.writing() as change:
        change.tree.update(video.info.ino, mtime_ns=video.info.modified_ns)
    clock(0)
    assert go(store, is_clock_right=True) == []
    for days in (5, 10, 15, 20, 25, 29):
        clock(days)
        assert go(store, is_clock_right=True) == []
    clock(31)
    assert go(store, is_clock_right=True) == ["a.mp4"]


def test_first_video_stored_under_a_late_clock_is_not_old(
    store: Store, clock: Callable[[float], None]
) -> None:
    """No earlier record shows the right time."""
    clock(BEHIND)
    put_now(store, "b.mp4")
    store["b.mp4"].policy.set("delete-after=30d")
    clock(0)
    assert go(store) == []
    clock(20)
    assert go(store) == []
    clock(31)
    assert go(store) == ["b.mp4"]
    trust(store)
    with store.catalog.writing() as change:
        assert change.clock_history.not_before(time.time_ns(), change.clock_history.trusted()) == {}


def test_reads_logged_out_of_order_do_not_contradict_the_clock(
    store: Store, clock: Callable[[float], None]
) -> None:
    """A view may stay open for days."""
    put(store, "a.mp4", 1, "delete-after=30d")
    read(store)
    clock(-3)
    read(store)
    clock(1)
    assert go(store) == []


def test_killed_while_deleting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path / "store") as store:
        put(store, "a.mp4", 100, "delete-after=30d")

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work(where: object, name: str) -> None:
        with Store.open(tmp_path / "store") as store:
            mine = ager(store)
            (due,) = mine.plan().due
            monkeypatch.setattr(where, name, die)
            mine.apply(due, quietly)

    for where, name, is_there in ((Tree, "delete", True), (age, "reclaim_or_log", False)):
        child = multiprocessing.get_context("fork").Process(target=work, args=(where, name))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        with Store.open(tmp_path / "store") as store:
            fsck.collect(store.parts)
            assert fsck.run(store.parts, deep=True) == []
            with store.catalog.reading() as seen:
                assert bool(seen.retention.log()) != is_there
            if is_there:
                assert len(store["a.mp4"].frames([0])) == 1
            else:
                with pytest.raises(NotFoundError):
                    store["a.mp4"]
                assert list(store.parts.objects.all_keys()) == []
