"""Recovery by the next mount after a mount was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vfsd.mount.fs.classify
from tests.support.busy_store import CONTENTS
from tests.support.fs_driver import Driver
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.disk.tempfiles import new_name
from vfsd.mount.fs import Filesystem

Crash = Callable[[], Driver]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable judgements."""
    monkeypatch.setattr(vfsd.mount.fs.classify.Classifier, "submit", lambda *_: None)


def test_clean_store(fs: Filesystem) -> None:
    found = fs.recover()
    assert (found.orphans, found.stray, found.emptied, found.unclassified) == (0, 0, 0, [])


def test_unfinished_file(it: Driver, crashed: Crash) -> None:
    handle = it.create("/a")
    it.fs.write(handle, b"so far", 0)
    after = crashed()
    assert after.read("/a") == b"so far"
    assert after.state("/a") == "plain"
    it.close(handle)


def test_unjudged_files(
    it: Driver, crashed: Crash, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(vfsd.mount.fs.classify.Classifier, "submit", lambda *_: None)
        it.write("/v.mp4", video)
    after = crashed()
    assert after.state("/v.mp4") == "video"
    assert after.read("/v.mp4") == video


def test_unfinished_video(it: Driver, crashed: Crash, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"????????", 0)
        after = crashed()
    assert after.read("/v.mp4") == b"????????" + video[8:]
    assert after.state("/v.mp4") == "plain"


def test_unlinked_open_files(it: Driver, crashed: Crash) -> None:
    it.write("/a", b"x")
    with it.opened("/a"):
        it.fs.unlink("/a")
        after = crashed()
    assert after.names() == []
    assert list(after.fs.context.directory.spool.iterdir()) == []


def test_hidden_name_without_rename(
    it: Driver, crashed: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the copy takes, the original store still keeps the hidden name.
    for name in ("_SETTLING_SECONDS", "_PENDING_SECONDS"):
        monkeypatch.setattr(f"vfsd.mount.fs.unlinked_files.{name}", 3600.0)
    it.write("/a", b"precious")
    with it.opened("/a"):
        it.fs.hide("/a", ".fuse_hidden0000000100000001")
        after = crashed()
    assert after.read("/a") == b"precious"
    assert after.fs.getattr("/a").nlink == 1


def test_hidden_name_without_directory(
    it: Driver, crashed: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SETTLING_SECONDS", "_PENDING_SECONDS"):
        monkeypatch.setattr(f"vfsd.mount.fs.unlinked_files.{name}", 3600.0)
    it.mkdir("/d")
    it.write("/d/a", b"x")
    with it.opened("/d/a"):
        it.fs.hide("/d/a", ".fuse_hidden0000000100000001")
        it.fs.rmdir("/d")
        after = crashed()
    assert after.names() == []
    assert list(after.fs.context.directory.spool.iterdir()) == []


def test_hidden_name_after_sync(it: Driver, crashed: Crash) -> None:
    it.write("/a", b"x")
    with it.opened("/a") as handle:
        it.fs.hide("/a", ".fuse_hidden0000000100000001")
        it.fs.fsync_names()
        assert it.read_open(handle) == b"x"
        after = crashed()
    assert after.names() == []


def test_hidden_name_taken(it: Driver, crashed: Crash) -> None:
    it.write("/a", b"old")
    it.write("/b", b"new")
    with it.opened("/a"):
        hidden = it.fs.hide("/a", ".fuse_hidden0000000100000001")
        it.fs.rename("/b", "/a", hidden=hidden)
        after = crashed()
    assert after.names() == ["a"]
    assert after.read("/a") == b"new"


def test_stray_private_files(it: Driver, store: Store, crashed: Crash) -> None:
    ino = it.write("/a", b"x")
    it.fs.settle()
    directory = store.parts.directory
    directory.spool_file(99_999).write_bytes(b"stray")
    directory.new_spool_copy(ino).write_bytes(b"half a copy")
    after = crashed()
    assert [path.name for path in after.fs.context.directory.spool.iterdir()] == [str(ino)]
    assert after.read("/a") == b"x"


def test_stray_directories(it: Driver, store: Store, crashed: Crash) -> None:
    directory = store.parts.directory
    full = (directory.spool_file(4711), directory.objects_tmp / new_name())
    for path in full:
        path.mkdir()
        (path / "mine").touch()
    it.write("/a", b"bytes")
    assert crashed().read("/a") == b"bytes"


def test_private_file_of_published_video(
    it: Driver, store: Store, crashed: Crash, video: bytes
) -> None:
    ino = it.write("/v.mp4", video)
    it.fs.settle()
    store.parts.directory.spool_file(ino).write_bytes(video)
    after = crashed()
    assert list(after.fs.context.directory.spool.iterdir()) == []
    assert after.read("/v.mp4") == video


def test_unreferenced_objects(
    store: Store, crashed: Crash, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = Filesystem(store.parts)
    it = Driver(fs)
    it.write("/v.mp4", video)
    fs.settle()
    monkeypatch.setattr(vfsd.mount.fs.unlinked_files.CleanupThread, "_clean", lambda _: None)
    fs.unlink("/v.mp4")
    monkeypatch.undo()
    after = crashed()
    assert list(after.fs.context.objects.all_keys()) == []
    fs.close()


def test_missing_bytes(
    it: Driver, store: Store, crashed: Crash, caplog: pytest.LogCaptureFixture, lazy: None
) -> None:
    ino = it.write("/a", b"x")
    store.parts.directory.spool_file(ino).unlink()
    after = crashed()
    assert after.read("/a") == b""
    assert "'a' is empty: a crash" in caplog.text


@pytest.mark.parametrize("seconds", one_in(3, [0.1, 0.3, 0.6]))
def test_kill_at_any_time(place: Path, seconds: float) -> None:
    """Every name leads to one of the files that it led to before, and no garbage is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.busy_store", place], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"busy\n"
        time.sleep(seconds)
        process.kill()
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        fs.recover()
        fs.settle()
        after = Driver(fs)
        for name in after.names():
            data = after.read(f"/{name}")
            assert name.endswith(".new") or data in CONTENTS
            if data in CONTENTS:
                assert after.state(f"/{name}") == ("video" if len(data) > 100 else "plain")
        fs.delete_pending()
        with store.catalog.reading() as seen:
            nodes = list(seen.tree.all_nodes())
        private = {str(node.ino) for node in nodes if node.is_file and not node.object_key}
        assert {path.name for path in store.parts.directory.spool.iterdir()} == private
        wanted = {node.object_key for node in nodes if node.object_key}
        assert set(store.parts.objects.all_keys()) >= wanted
        fs.close()
