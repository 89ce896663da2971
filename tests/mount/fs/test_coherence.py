"""Other processes change the same store, and several threads change the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.fs_driver import Driver, failing
from vfsd.api.store import Store
from vfsd.mount.fs import Caller, Filesystem, dentry_cache

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def elsewhere(place: Path) -> Store:
    """The same store with its own connections, as in another process."""
    return Store.open(place)


def wait_for_turn(it: Driver) -> None:
    """Wait until another thread holds the lock for changes."""
    turn, deadline = it.fs._names._lock, time.monotonic() + 30
    while turn.acquire(blocking=False):
        turn.release()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_added_name_seen_at_once(it: Driver, elsewhere: Store) -> None:
    it.mkdir("/cam1")
    assert failing(it.fs.getattr, "/cam1/a.mp4") == "ENOENT"
    assert it.names("/cam1") == []
    elsewhere.ingest(FOLDER / "portrait.mp4", "cam1/a.mp4")
    assert it.fs.getattr("/cam1/a.mp4").size > 0
    assert it.names("/cam1") == ["a.mp4"]
    elsewhere.close()


def test_lookup_does_not_wait(it: Driver, elsewhere: Store) -> None:
    """Another process writes for a long time."""
    for number in range(3):
        it.mkdir(f"/{number}")
        it.write(f"/{number}/a", b"x")
    anew = Driver(Filesystem(it.fs.context))  # with empty caches
    with ThreadPoolExecutor(4) as pool:
        with elsewhere.catalog.writing():
            changing = [pool.submit(anew.fs.chmod, f"/{number}", 0o700) for number in (0, 1)]
            wait_for_turn(anew)
            looking = [pool.submit(look, "/2") for look in (anew.fs.getattr, anew.names)]
            done, _ = wait(looking, timeout=30)
            assert len(done) == 2
            handle = pool.submit(anew.open, "/2/a").result(30)
            assert pool.submit(anew.read_open, handle).result(30) == b"x"
            assert not any(one.done() for one in changing)
        for one in changing:
            one.result(30)
    anew.close(handle)
    assert oct(anew.fs.getattr("/1").mode) == "0o40700"
    anew.fs.close()
    elsewhere.close()


def test_queued_change_times_out(
    it: Driver, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.mkdir("/a")
    with ThreadPoolExecutor(1) as pool:
        with elsewhere.catalog.writing():
            first = pool.submit(it.fs.chmod, "/a", 0o700)
            wait_for_turn(it)
            monkeypatch.setattr(dentry_cache, "BUSY_SECONDS", 0.1)
            assert failing(it.fs.chmod, "/a", 0o750) == "EBUSY"
            assert not first.done()
        first.result(30)
    assert oct(it.fs.getattr("/a").mode) == "0o40700"
    elsewhere.close()


def test_removed_name_seen_soon(it: Driver, elsewhere: Store, video: bytes) -> None:
    it.write("/a.mp4", video)
    it.write("/b.mp4", video)
    it.fs.settle()
    assert it.names() == ["a.mp4", "b.mp4"]
    elsewhere.remove("a.mp4")
    elsewhere.move("b.mp4", "deep/down/c.mp4")
    time.sleep(0.06)
    assert failing(it.fs.getattr, "/a.mp4") == "ENOENT"
    assert it.names() == ["deep"]
    assert it.read("/deep/down/c.mp4") == video
    elsewhere.close()


def test_move_seen_after_wait(
    it: Driver, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.write("/a", b"x")
    it.fs.settle()
    assert it.fs.getattr("/a").size == 1
    elsewhere.move("a", "b")
    it.fs._names._last_check = float("-inf")
    monkeypatch.setattr(dentry_cache, "_CHECK_SECONDS", 3600.0)
    with ThreadPoolExecutor(1) as pool, it.fs._names.hold_changes():
        pool.submit(failing, it.fs.getattr, "/a").result(30)
    assert failing(it.fs.getattr, "/a") == "ENOENT"
    elsewhere.close()


@pytest.mark.parametrize("is_busy", [False, True])
def test_replaced_file_seen(
    it: Driver, elsewhere: Store, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """Even while the names are cached and the bytes of the old file are already deleted."""
    it.write("/a", b"text")
    it.fs.settle()
    monkeypatch.setattr("vfsd.mount.fs.dentry_cache._CHECK_SECONDS", 3600.0)
    assert it.fs.getattr("/a").size == 4
    expected = (FOLDER / "portrait.mp4").stat().st_size
    elsewhere.ingest(FOLDER / "portrait.mp4", "a", replace=True)
    with ThreadPoolExecutor(1) as somebody:
        with it.fs._names.hold_changes() if is_busy else nullcontext():
            looking = somebody.submit(it.fs.getattr, "/a")
            wait([looking], 0.2)
        assert looking.result(20).size == expected
    assert it.fs.getattr("/a").size == expected
    elsewhere.close()


@pytest.mark.thorough
def test_changes_of_both_processes(it: Driver, elsewhere: Store) -> None:
    """No change of another process is lost among our own changes."""
    it.mkdir("/ours")
    for number in range(20):
        it.write(f"/ours/{number}", b"x")
        elsewhere.ingest(FOLDER / "portrait.mp4", f"theirs/{number}.mp4")
        it.fs.rename(f"/ours/{number}", f"/ours/{number}.moved")
        assert it.fs.getattr(f"/theirs/{number}.mp4").size > 0
        assert len(it.names("/theirs")) == number + 1
        assert len(it.names("/ours")) == number + 1
    elsewhere.close()


def test_create_race(it: Driver, elsewhere: Store) -> None:
    it.mkdir("/d")
    elsewhere.ingest(FOLDER / "portrait.mp4", "d/a")
    assert failing(it.mkdir, "/d/a") == "EEXIST"
    elsewhere.remove("d", recursive=True)
    assert failing(it.mkdir, "/d/b") == "ENOENT"
    elsewhere.close()


def test_many_threads(it: Driver) -> None:
    def work(number: int) -> None:
        folder = f"/{number}"
        it.mkdir(folder)
        for step in range(15):
            it.write(f"{folder}/new", bytes([step]) * 100)
            it.fs.rename(f"{folder}/new", f"{folder}/{step}")
            assert it.read(f"{folder}/{step}") == bytes([step]) * 100
            if step % 3 == 0:
                it.fs.unlink(f"{folder}/{step}")
        assert len(it.names(folder)) == 10

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert it.fs.settle()


def test_reads_during_overwrite(it: Driver, video: bytes, other_video: bytes) -> None:
    """The descriptor of a handle may change, but reads always return bytes of the file."""
    one, other = video[:16], other_video[-16:]
    it.write("/v.mp4", one + video[16:])
    it.fs.settle()
    stop = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        with it.opened("/v.mp4") as handle:
            while not stop.is_set():
                seen.add(it.fs.read(handle, 16, 0))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        for start in (other, one):
            with it.opened("/v.mp4", os.O_RDWR) as handle:
                it.fs.write(handle, start, 0)
            it.fs.settle()
    stop.set()
    for reader in readers:
        reader.join()
    assert seen <= {one, other}
    assert it.state("/v.mp4") == "video"


def test_open_unlink_race(it: Driver, store: Store) -> None:
    def open_close() -> None:
        for _ in range(60):
            try:
                with it.opened("/a") as handle:
                    assert it.read_open(handle) in (b"", b"x")
            except FileNotFoundError:
                pass

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(open_close) for _ in range(3)]
        for _ in range(60):
            it.write("/a", b"x")
            it.fs.unlink("/a")
        for each in waiting:
            each.result()
    it.fs.settle()
    it.fs.delete_pending()
    with store.catalog.reading() as seen:
        assert len(list(seen.tree.all_nodes())) == 1
        assert seen.tree.orphans() == []
    assert list(store.parts.directory.spool.iterdir()) == []


@pytest.mark.thorough
def test_sync_keeps_catalog_locks(it: Driver, place: Path) -> None:
    """A process that closes the database file directly loses SQLite's locks on it.  The next
    process to close the catalog would then remove the log while this one uses it."""
    code = """
import sys
from vfsd.mount.fs import Caller, Filesystem, dentry_cache
from vfsd.api.store import Store
with Store.open(sys.argv[1]) as store:
    print(*(name for name, _ in store.entries()))
"""

    def seen_elsewhere() -> list[str]:
        command = [sys.executable, "-c", code, str(place)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        return done.stdout.split()

    it.write("/a", b"x")
    it.fs.fsync_names()
    assert seen_elsewhere() == ["a"]
    assert (place / "catalog.sqlite3-wal").exists()
    it.write("/b", b"y")
    assert seen_elsewhere() == ["a", "b"]


def test_synced_name_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Filesystem(store.parts, syncs_names=True)
    synced: list[str] = []
    monkeypatch.setattr(store.parts.catalog, "sync", lambda: synced.append("names"))
    caller = Caller(0, 0)
    changes: list[Callable[[], object]] = [
        lambda: fs.mkdir("/d", 0o755, caller),
        lambda: fs.mknod("/f", 0o100644, 0, caller),
        lambda: fs.link("/f", "/g"),
        lambda: fs.symlink("/h", "f", caller),
        lambda: fs.rename("/f", "/d/f"),
        lambda: fs.unlink("/g"),
        lambda: fs.release(fs.create("/new", 0o644, os.O_WRONLY, caller)),
    ]
    for number, change in enumerate(changes, start=1):
        change()
        assert len(synced) == number
    fs.close()


def test_lookups_one_by_one(fs: Filesystem, store: Store, place: Path) -> None:
    """After several lookups the whole directory is read, so that missing names are cached.  Names
    that another process adds later must still be seen."""
    driver = Driver(fs)
    driver.mkdir("/d")
    for number in range(12):
        driver.write(f"/d/{number}", b"x" * number)
    fresh = Filesystem(store.parts)
    try:
        for number in range(12):
            assert fresh.getattr(f"/d/{number}").size == number
            with pytest.raises(OSError, match="No such file"):
                fresh.getattr(f"/d/missing-{number}")
        with Store.open(place) as other:
            other.move("d/3", "d/missing-3")
        deadline = time.monotonic() + 10
        while not _is_there(fresh, "/d/missing-3"):
            assert time.monotonic() < deadline
        assert not _is_there(fresh, "/d/3")
    finally:
        fresh.close()


def _is_there(fs: Filesystem, path: str) -> bool:
    try:
        fs.getattr(path)
    except FileNotFoundError:
        return False
    return True
