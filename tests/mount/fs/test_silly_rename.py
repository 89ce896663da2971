"""A file without a name stays until its last handle is closed."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.fs_driver import Driver, failing
from tests.support.silly_rename import (
    ALIAS,
    Changes,
    Refusing,
    rows,
    wait_until,
    wait_until_settled,
)
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.core.model import FileState
from vfsd.core.retention_policy import Hold
from vfsd.disk.disk_reserve import RESERVE_BYTES
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, NoSpaceError, NotFoundError
from vfsd.maintenance import fsck
from vfsd.mount.fs import RENAME_NOREPLACE, Filesystem, directory_ops, handles, unlinked_files
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.open_inodes import OpenInode, OpenInodes
from vfsd.mount.fs.unlinked_files import HiddenNames


@pytest.fixture
def kind() -> type[Filesystem]:
    """Only an adapter that knows files by path hides names."""
    return Filesystem


def test_unlink_open_file(it: Driver, store: Store) -> None:
    it.write("/a", b"abc")
    handle = it.open("/a", os.O_RDWR)
    it.fs.unlink("/a")
    assert it.names() == []
    assert failing(it.fs.getattr, "/a") == "ENOENT"
    it.fs.write(handle, b"def", 3)
    it.fs.chmod(None, 0o600, handle)
    it.fs.truncate(None, 5, it.caller, handle)
    it.fs.utimens(None, 1, 2, handle)
    found = it.fs.getattr(None, handle)
    assert (found.nlink, found.size, found.mode & 0o777, found.mtime_ns) == (0, 5, 0o600, 2)
    assert it.read_open(handle) == b"abcde"
    assert rows(store) == (1, 1)
    it.close(handle)
    it.fs.settle()
    it.fs.delete_pending()
    assert rows(store) == (0, 0)
    assert list(store.parts.directory.spooled()) == []


def test_slow_rename_over_open_video(
    it: Driver, store: Store, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the renamed file is being synced, the old name would come back after a crash."""
    ino = it.write("/v.mp4", video)
    it.fs.settle()
    name = ROOT, "v.mp4"
    former = []

    def sync(_: StoreDirectory, new: int) -> None:
        time.sleep(3 * unlinked_files._SETTLING_SECONDS)
        with store.catalog.reading() as seen:
            former.append((new, *seen.tree.orphans()))

    monkeypatch.setattr(StoreDirectory, "sync_spooled", sync)
    new = it.write("/new", b"new")
    with it.opened("/v.mp4") as handle:
        hidden = it.fs.hide("/v.mp4", ALIAS)
        it.fs.rename("/new", "/v.mp4", hidden=hidden)
        assert former == [(new, (ino, name))]
        assert it.read_open(handle) == video
        wait_until_settled(it)
        with store.catalog.reading() as seen:
            assert seen.tree.orphans() == [(ino, None)]
    assert it.read("/v.mp4") == b"new"


def test_name_is_free_at_once(it: Driver) -> None:
    it.write("/a", b"old")
    with it.opened("/a") as handle:
        it.fs.unlink("/a")
        it.write("/a", b"new")
        assert it.read_open(handle) == b"old"
        assert it.read("/a") == b"new"


def test_unlink_open_video(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.unlink("/v.mp4")
        it.fs.delete_pending()
        assert it.read_open(handle) == video
        it.fs.write(handle, b"????", 0)
        assert it.read_open(handle) == b"????" + video[4:]
    it.fs.settle()
    it.fs.delete_pending()
    assert rows(store) == (0, 0)
    assert list(store.parts.objects.all_keys()) == []


def test_hold_on_unlinked_video(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    found = store["v.mp4"]
    with it.opened("/v.mp4"):
        it.fs.unlink("/v.mp4")
        with pytest.raises(NotFoundError, match="was removed"):
            found.policy.hold("case 17")
    it.fs.delete_pending()
    assert rows(store) == (0, 0)


def test_held_orphan_gets_name(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    found = store["v.mp4"]
    ino = it.fs.getattr("/v.mp4").ino
    with it.opened("/v.mp4"):
        it.fs.unlink("/v.mp4")
        with store.catalog.writing() as change:
            change.retention.hold(Hold(0, found.info.id, "case 17", 0))
    it.write("/other", b"x")
    with it.opened("/other"):
        it.fs.unlink("/other")
    it.fs.delete_pending()
    assert rows(store) == (1, 1)
    it.fs.close()
    after = Driver(Filesystem(store.parts))
    after.fs.recover()
    assert after.read(f"/held-{ino}") == video
    assert failing(after.fs.unlink, f"/held-{ino}") == "EPERM"
    assert [hold.reason for hold in store[f"held-{ino}"].policy.holds()] == ["case 17"]
    after.fs.close()
    assert fsck.run(store.parts) == []


def test_rename_over_open_file(it: Driver, store: Store) -> None:
    it.write("/a", b"new")
    it.write("/b", b"old")
    with it.opened("/b") as handle:
        it.fs.rename("/a", "/b")
        assert it.read_open(handle) == b"old"
        assert it.read("/b") == b"new"
        assert it.fs.getattr(None, handle).nlink == 0
    assert rows(store) == (1, 0)


def test_unlink_one_of_two_names(it: Driver, store: Store) -> None:
    it.write("/a", b"x")
    it.fs.link("/a", "/b")
    with it.opened("/a") as handle:
        it.fs.unlink("/a")
        assert it.fs.getattr(None, handle).nlink == 1
    assert it.read("/b") == b"x"
    assert rows(store) == (1, 0)


def test_unlinked_file_not_judged(it: Driver, store: Store, video: bytes) -> None:
    handle = it.create("/v.mp4")
    it.fs.unlink("/v.mp4")
    it.fs.write(handle, video, 0)
    it.close(handle)
    assert it.fs.settle()
    assert list(store.parts.objects.all_keys()) == []


# ------------------------------------------------------------------- hiding, for callers by path


def test_alias_lookup(it: Driver, store: Store) -> None:
    it.mkdir("/d")
    it.write("/d/a", b"abc")
    handle = it.open("/d/a", os.O_RDWR)
    it.fs.hide("/d/a", ALIAS)
    assert it.names("/d") == []
    assert failing(it.fs.getattr, "/d/a") == "ENOENT"
    assert it.fs.getattr(f"/d/{ALIAS}").nlink == 0
    assert it.read(f"/d/{ALIAS}") == b"abc"
    it.fs.rmdir("/d")
    it.fs.write(handle, b"def", 3)
    assert it.read_open(handle) == b"abcdef"
    it.close(handle)
    wait_until_settled(it)
    it.fs.delete_pending()
    assert rows(store) == (0, 0)


def test_unlink_alias(it: Driver, store: Store) -> None:
    it.write("/a", b"abc")
    handle = it.open("/a")
    it.fs.hide("/a", ALIAS)
    it.fs.unlink(f"/{ALIAS}")
    assert it.read_open(handle) == b"abc"
    it.close(handle)
    assert failing(it.fs.getattr, f"/{ALIAS}") == "ESTALE"
    wait_until_settled(it)
    it.fs.delete_pending()
    assert rows(store) == (0, 0)


def test_alias_while_open(it: Driver) -> None:
    it.write("/a", b"abc")
    first = it.open("/a")
    it.fs.hide("/a", ALIAS)
    second = it.open(f"/{ALIAS}")
    it.fs.unlink(f"/{ALIAS}")  # libfuse does so when it knows no other name
    assert it.fs.getattr(f"/{ALIAS}").nlink == 0
    it.close(first)
    assert it.fs.getattr(f"/{ALIAS}").nlink == 0
    it.close(second)
    assert failing(it.fs.getattr, f"/{ALIAS}") == "ESTALE"


def test_alias_open_during_close(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    it.write("/a", b"abc")
    first = it.open("/a")
    it.fs.hide("/a", ALIAS)
    count_out = OpenInodes.remove_handle
    opened: list[int] = []

    def open_after(*args: Any, **kwargs: Any) -> tuple[bool, bool]:
        found = count_out(*args, **kwargs)
        if not opened:
            opened.append(it.open(f"/{ALIAS}"))
        return found

    monkeypatch.setattr(OpenInodes, "remove_handle", open_after)
    it.close(first)
    assert it.fs.getattr(f"/{ALIAS}").nlink == 0
    assert it.read_open(opened[0]) == b"abc"
    it.close(opened[0])
    assert failing(it.fs.getattr, f"/{ALIAS}") == "ESTALE"


def test_alias_close_during_open(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    it.write("/a", b"abc")
    first = it.open("/a")
    it.fs.hide("/a", ALIAS)
    opening = OpenInodes.open

    def close_before(contents: OpenInodes, content: OpenInode) -> None:
        it.close(first)
        opening(contents, content)

    monkeypatch.setattr(OpenInodes, "open", close_before)
    second = it.open(f"/{ALIAS}")
    assert it.fs.getattr(f"/{ALIAS}").nlink == 0
    assert it.read_open(second) == b"abc"
    it.close(second)
    assert failing(it.fs.getattr, f"/{ALIAS}") == "ESTALE"


def test_unlink_spent_alias(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """libfuse unlinks the alias after the file is closed, when the alias is already removed."""
    it.write("/a", b"abc")
    with it.opened("/a"):
        it.fs.hide("/a", ALIAS)
    changes = Changes(monkeypatch)
    it.fs.unlink(f"/{ALIAS}")
    assert threading.current_thread() not in changes.by


def test_reuse_of_spent_alias(it: Driver) -> None:
    it.write("/a", b"abc")
    with it.opened("/a"):
        it.fs.hide("/a", ALIAS)
    it.write(f"/{ALIAS}", b"x")
    it.fs.settle()
    it.fs._names._clear(-1)
    assert it.read(f"/{ALIAS}") == b"x"
    it.fs._names._clear(-1)
    it.fs.unlink(f"/{ALIAS}")
    assert it.names() == []


def test_hide_and_rename(it: Driver, store: Store) -> None:
    it.write("/a", b"new")
    it.write("/b", b"old")
    with it.opened("/b") as handle:
        hidden = it.fs.hide("/b", ALIAS)
        it.fs.rename("/a", "/b", hidden=hidden)
        assert it.read_open(handle) == b"old"
        assert it.read("/b") == b"new"
        wait_until_settled(it)
        assert it.read_open(handle) == b"old"
        assert rows(store) == (2, 1)
    wait_until(lambda: rows(store) == (1, 0))  # by the cleanup thread or by the close


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("source", "flags"), [("/missing", 0), ("/d", 0), ("/a", RENAME_NOREPLACE)]
)
def test_failed_rename_restores_name(
    it: Driver, store: Store, source: str, flags: int, is_late: bool
) -> None:
    it.write("/a", b"new")
    it.mkdir("/d")
    it.write("/b", b"old")
    with it.opened("/b") as handle:
        hidden = it.fs.hide("/b", ALIAS)
        if is_late:
            wait_until_settled(it)
        assert failing(lambda: it.fs.rename(source, "/b", flags, hidden=hidden))
        assert it.read("/b") == b"old"
        assert it.fs.getattr(None, handle).nlink == 1
    wait_until_settled(it)
    assert it.read("/b") == b"old"
    assert rows(store) == (3, 0)


@pytest.mark.parametrize("is_late", [False, True])
def test_failed_rename_after_close(it: Driver, store: Store, is_late: bool) -> None:
    it.write("/b", b"old")
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
    if is_late:
        wait_until_settled(it)
    assert failing(lambda: it.fs.rename("/missing", "/b", hidden=hidden)) == "ENOENT"
    assert it.read("/b") == b"old"
    wait_until_settled(it)
    assert it.read("/b") == b"old"
    assert rows(store) == (1, 0)
    it.fs.settle()
    assert fsck.run(store.parts) == []


def test_restored_file_judged(it: Driver, video: bytes) -> None:
    handle = it.create("/v.mp4")
    it.fs.write(handle, video, 0)
    hidden = it.fs.hide("/v.mp4", ALIAS)
    it.close(handle)
    assert failing(lambda: it.fs.rename("/missing", "/v.mp4", hidden=hidden)) == "ENOENT"
    assert it.fs.settle()
    assert it.fs.video_size(it.open("/v.mp4")) == len(video)


def test_restore_on_full_disk(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    it.write("/b", b"old")
    adopting = Refusing(monkeypatch, "adopt_orphan", NoSpaceError("full"))
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        adopting.times = 2
        assert failing(lambda: it.fs.rename("/missing", "/b", hidden=hidden)) == "ENOENT"
        assert it.read("/b") == b"old"
    assert store.parts.directory.reserve.stat().st_size < RESERVE_BYTES


@pytest.mark.parametrize("is_late", [False, True])
def test_restore_retried(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.1)
    it.write("/b", b"old")
    adopting = Refusing(monkeypatch, "adopt_orphan", BusyError("locked"))
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        if is_late:
            wait_until_settled(it)
        adopting.times = 3
        assert failing(lambda: it.fs.rename("/missing", "/b", hidden=hidden)) == "ENOENT"
    assert it.names() == []
    it.fs.delete_pending()
    it.fs.fsync_names()
    wait_until(lambda: it.names() == ["b"])
    assert adopting.times == 0
    assert it.read("/b") == b"old"
    it.fs.settle()
    assert fsck.run(store.parts) == []


def test_restore_by_next_mount(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    it.write("/b", b"old")
    adopting = Refusing(monkeypatch, "adopt_orphan", BusyError("locked"))
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        adopting.times = 1000
        assert failing(lambda: it.fs.rename("/missing", "/b", hidden=hidden)) == "ENOENT"
    it.fs.close()
    assert adopting.times < 999  # it has tried again
    adopting.times = 0
    after = Driver(Filesystem(store.parts))
    after.fs.recover()
    assert after.read("/b") == b"old"
    after.fs.close()


def test_deletion_retried(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process had locked the catalog for a long time."""
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.02)
    refusing = [
        Refusing(monkeypatch, method, BusyError("locked"))
        for method in ("confirm_orphan", "delete")
    ]
    it.write("/b", b"old")
    with it.opened("/b"):
        it.fs.hide("/b", ALIAS)
    for each in refusing:
        each.times = 1
    wait_until(lambda: rows(store) == (0, 0))
    assert [each.times for each in refusing] == [0, 0]


@pytest.mark.parametrize("is_tried_again", [False, True])
def test_unlinked_file_stays_hidden(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, is_tried_again: bool
) -> None:
    """The first attempts to record it fail, and the mount records it at its end at the latest."""
    monkeypatch.setattr(unlinked_files, "_RETRY_SECONDS", 0.02 if is_tried_again else 30.0)
    settling = Refusing(monkeypatch, "confirm_orphan", BusyError("locked"))
    ino = it.write("/b", b"old")
    it.open("/b")
    it.fs.hide("/b", ALIAS)
    settling.times = 1
    wait_until(lambda: settling.times == 0)
    if is_tried_again:
        wait_until_settled(it)
        with store.catalog.reading() as seen:
            assert seen.tree.orphans() == [(ino, None)]
    it.fs.close()
    assert rows(store) == (0, 0)


@pytest.mark.parametrize("is_settled", [True, False])
def test_write_reclaims_space(
    it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    monkeypatch.setattr(unlinked_files, "_PENDING_SECONDS", 3600)
    spooled = store.parts.directory.spool_file(it.write("/large", b"large"))
    it.fs.settle()
    with it.opened("/large"):
        it.fs.hide("/large", ALIAS)
    if is_settled:
        wait_until_settled(it)
    assert spooled.exists()

    def require_reserve(_: StoreDirectory) -> None:
        if spooled.exists():
            raise NoSpaceError("full")

    for module in (handles, directory_ops):
        monkeypatch.setattr(module, "require_reserve", require_reserve)
    it.write("/new", b"new")
    assert it.read("/new") == b"new"


def test_rename_between_hard_links(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another process could remove the other name and leave none."""
    it.write("/a", b"x")
    it.fs.link("/a", "/b")
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        changes = Changes(monkeypatch)
        it.fs.rename("/a", "/b", hidden=hidden)
        assert len(changes.by) == 1
        assert it.names() == ["a", "b"]


def test_other_name_removed(it: Driver, store: Store) -> None:
    it.write("/b", b"old")
    it.fs.link("/b", "/c")
    with it.opened("/b"):
        it.fs.hide("/b", ALIAS)
        it.fs.unlink("/c")
    wait_until_settled(it)
    it.fs.delete_pending()
    assert rows(store) == (0, 0)
    assert fsck.run(store.parts) == []


def test_failed_rename_restores_last_name(it: Driver, store: Store) -> None:
    it.write("/b", b"old")
    it.fs.link("/b", "/c")
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        it.fs.unlink("/c")
        assert failing(lambda: it.fs.rename("/missing", "/b", hidden=hidden)) == "ENOENT"
    wait_until_settled(it)
    assert it.names() == ["b"]
    it.fs.settle()
    assert fsck.run(store.parts) == []
    Filesystem(store.parts).recover()
    assert it.read("/b") == b"old"


@pytest.mark.parametrize("is_video", [False, True])
def test_rename_over_newer_file(it: Driver, store: Store, video: bytes, is_video: bool) -> None:
    it.write("/a", b"new")
    it.write("/b", b"old")
    with it.opened("/b"), Store.open(store.path) as elsewhere:
        hidden = it.fs.hide("/b", ALIAS)
        if is_video:
            elsewhere.ingest(FOLDER / "portrait.mp4", "b")
        else:
            other = Filesystem(elsewhere.parts)
            Driver(other).write("/b", b"others")
            other.settle()
            other.close()
        it.fs.rename("/a", "/b", hidden=hidden)
    wait_until_settled(it)
    it.fs.settle()
    it.fs._cleanup.clean_now()
    assert it.read("/b") == b"new"
    wait_until(lambda: rows(store) == (1, 0))
    assert fsck.run(store.parts, deep=True) == []


def test_rename_over_new_directory(it: Driver, store: Store) -> None:
    it.write("/a", b"new")
    it.write("/b", b"old")
    with it.opened("/b"), Store.open(store.path) as elsewhere:
        hidden = it.fs.hide("/b", ALIAS)
        elsewhere.ingest(FOLDER / "portrait.mp4", "b/x.mp4")
        assert failing(lambda: it.fs.rename("/a", "/b", hidden=hidden)) == "EISDIR"
    wait_until_settled(it)
    assert it.names() == ["a", "b"]
    assert list(store) == ["b/x.mp4"]
    it.fs.settle()
    it.fs._cleanup.clean_now()
    assert fsck.run(store.parts) == []


def test_close_race(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlinked_files, "_PENDING_SECONDS", 0.2)
    look = HiddenNames._due_actions
    it.write("/a", b"x")
    handles = [it.open("/a")]
    it.fs.hide("/a", ALIAS)

    def close_after(*args: Any) -> Any:
        due = look(*args)
        if due.expired and not due.is_for_catalog:
            it.close(handles.pop())
        return due

    monkeypatch.setattr(HiddenNames, "_due_actions", close_after)
    wait_until(lambda: rows(store) == (0, 0))


def test_failed_rename_after_unlink(it: Driver, store: Store) -> None:
    it.write("/b", b"old")
    with it.opened("/b"):
        it.fs.hide("/b", ALIAS)
        assert failing(it.fs.rename, "/missing", "/b") == "ENOENT"
        assert it.names() == []
    wait_until_settled(it)
    it.fs.delete_pending()
    assert rows(store) == (0, 0)


def test_directory_into_itself(it: Driver) -> None:
    it.mkdir("/d")
    it.write("/d/b", b"old")
    with it.opened("/d/b"):
        hidden = it.fs.hide("/d/b", ALIAS)
        assert failing(lambda: it.fs.rename("/d", "/d/b", hidden=hidden)) == "EINVAL"
        assert it.read("/d/b") == b"old"


def test_name_hidden_twice(it: Driver, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SETTLING_SECONDS", "_PENDING_SECONDS"):
        monkeypatch.setattr(unlinked_files, name, 3600)
    ino = it.write("/b", b"old")
    it.fs.link("/b", "/c")
    with it.opened("/b"):
        of_b = it.fs.hide("/b", ALIAS)
        of_c = it.fs.hide("/c", f"{ALIAS}2")
        assert failing(lambda: it.fs.rename("/missing", "/b", hidden=of_b)) == "ENOENT"
        it.fs.hide("/b", f"{ALIAS}3")
        it.fs._hidden_names._settle_all([of_c])
        with store.catalog.reading() as seen:
            assert seen.tree.orphans() == [(ino, (ROOT, "b"))]


@pytest.mark.parametrize("is_late", [False, True])
def test_hiding_one_of_two_names(it: Driver, store: Store, is_late: bool) -> None:
    it.write("/a", b"x")
    it.fs.link("/a", "/b")
    with it.opened("/b"):
        hidden = it.fs.hide("/b", ALIAS)
        assert it.fs.getattr("/a").nlink == 1
        if is_late:
            wait_until_settled(it)
        it.fs.rename("/a", "/b", hidden=hidden)  # of one file to itself: both names stay
    assert it.names() == ["a", "b"]
    assert it.fs.getattr("/a").nlink == 2
    assert rows(store) == (1, 0)


def test_hide_after_close(it: Driver, store: Store) -> None:
    it.write("/a", b"x")
    assert it.fs.is_in_use("/a")
    it.fs.settle()
    it.fs.hide("/a", ALIAS)
    assert it.names() == []
    wait_until(lambda: rows(store) == (0, 0))
    wait_until(lambda: not list(store.parts.directory.spooled()))


def test_closed_file_not_in_use(it: Driver) -> None:
    it.write("/a", b"x")
    wait_until(lambda: not it.fs.is_in_use("/a"))
    with it.opened("/a"):
        assert it.fs.is_in_use("/a")


# -------------------------------------------------------------------- removed by another process


def test_remove_by_other_process(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.write("/t", b"text")
    it.fs.settle()
    reading, writing, plain = (
        it.open("/v.mp4"),
        it.open("/v.mp4", os.O_RDWR),
        it.open("/t", os.O_RDWR),
    )
    versions = [it.fs.content_version(handle) for handle in (reading, plain)]
    store.remove("v.mp4")
    store.remove("t")
    assert it.names() == []
    assert it.read_open(reading) == video
    assert [it.fs.content_version(handle) for handle in (reading, plain)] == versions
    assert None not in versions
    assert failing(it.fs.write, writing, b"????", 0) == "ESTALE"  # it would be in no file
    assert it.read_open(reading) == it.read_open(writing) == video
    assert it.fs.write(plain, b"T", 0) == 1
    assert it.read_open(plain) == b"Text"
    assert it.fs.getattr(None, plain).nlink == 0
    for handle in (reading, writing, plain):
        it.close(handle)
    assert it.fs.settle()
    assert list(store.parts.directory.spool.iterdir()) == []
    assert FileState.VIDEO not in {node.state for _, node in store.entries()}


def test_close_does_not_wait(store: Store) -> None:
    names = DentryCache(store.parts)
    contents = OpenInodes(store.parts, names, lambda _key: None)
    found: list[tuple[bool, bool]] = []
    with contents.pinned(1) as content:
        for _ in range(2):
            contents.add_handle(content, writing=False)
        closing = threading.Thread(
            target=lambda: found.append(contents.remove_handle(content, writing=False)), daemon=True
        )
        with names.hold_changes():
            closing.start()
            closing.join(20)
            assert found == [(False, False)]
        assert contents.remove_handle(content, writing=False) == (True, False)
    names.close()
