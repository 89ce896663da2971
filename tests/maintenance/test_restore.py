"""Restoring stores from their backups.

Backups that are copied back by hand, over stores with a killed last process.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.support.disks import another_disk, mounted
from tests.support.fs_driver import Driver
from tests.support.killing import ingest_and_die, killed_at_rename
from tests.support.next_revision import next_program
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.support.unprivileged import run_unprivileged
from vfsd.api.store import Store
from vfsd.catalog import Catalog, checkpoint_if_closed
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import CATALOG, StoreDirectory, fsync_path
from vfsd.errors import (
    BusyError,
    ExistsError,
    IntegrityError,
    NoSpaceError,
    NoStoreError,
    StoreError,
    StoreVersionError,
    UsageError,
)
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import _Restore, restore
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs import Filesystem
from vfsd.storage import catalog_swap
from vfsd.storage.catalog_swap import reset_wal

MONDAY = ["monday.mp4", "tiled.mp4"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a backup, and later changes by two processes; the second was killed."""
    folder = tmp_path_factory.mktemp("made")
    with new_store(folder / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "monday.mp4")
        store.ingest(FOLDER / "traffic.mp4", "tiled.mp4").tiles.retile("uniform:2x2", span=(0, 1))
        _write(store, "/notes.txt", b"of monday")
        back_up(store.parts, folder / "backup")
        store.remove("monday.mp4")
        _write(store, "/notes.txt", b"of friday, and more")
        _write(store, "/new.txt", b"since")
        store.ingest(FOLDER / "mjpeg.avi", "since.avi")
    ingest_and_die(folder / "store", FOLDER / "open-gop.mkv", "friday.mkv")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder, for one test."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _write(store: Store, name: str, data: bytes) -> None:
    it = Driver(Filesystem(store.parts))
    it.write(name, data)
    it.fs.settle()
    it.fs.close()


def _bytes_of(store: Store, name: str) -> bytes:
    return store.parts.directory.spool_file(store.node(name).ino).read_bytes()


def _holds_monday(target: Path) -> bool:
    with Store.open(target) as store:
        fsck.collect(store.parts)
        assert fsck.run(store.parts, deep=True) == []
        assert store.catalog.segments(store["tiled.mp4"].info)
        files = sorted(name for name, _ in store.entries())
        return (
            list(store) == MONDAY
            and files == sorted([*MONDAY, "notes.txt"])
            and _bytes_of(store, "notes.txt") == b"of monday"
            and bool(store["monday.mp4"].read(frames=[3]).data.any())
        )


def test_restore_with_any_state_of_the_log(place: Path) -> None:
    told: list[tuple[int, int]] = []
    done = restore(place / "backup", place / "store", on_progress=lambda *now: told.append(now))
    assert (done.videos, done.files, done.linked, done.missing) == (2, 1, (), ())
    assert told[-1][0] == told[-1][1] == done.bytes - len(b"of monday")
    assert done.copied == (FOLDER / "portrait.mp4").stat().st_size + len(b"of monday")
    assert done.unused == 2
    assert _holds_monday(place / "store")
    assert not (place / "store/vfsd-backup.json").exists()


def test_replaced_store_is_kept(place: Path) -> None:
    kept = restore(place / "backup", place / "store").replaced
    assert kept is not None
    assert kept.parent == place / "store"
    with Catalog.open(f"sqlite:///{kept}/catalog.sqlite3") as old:
        assert list(old.find().names()) == ["friday.mkv", "since.avi", "tiled.mp4"]
    private = sorted(path.read_bytes() for path in (kept / "spool").iterdir())
    assert private == [b"of friday, and more", b"since"]


@pytest.mark.parametrize("disk", ["the same", "another"])
def test_replaced_store_behind_links_is_kept(place: Path, elsewhere: Path, disk: str) -> None:
    """It also stays at its place."""
    store, there = place / "store", (place if disk == "the same" else elsewhere) / "there"
    there.mkdir()
    (store / "config.toml").write_text("tune = false\n")
    with Store.open(store):
        pass  # then the catalog includes the log of its last process
    for name in (CATALOG, "config.toml"):
        shutil.move(store / name, there / name)
        (store / name).symlink_to(os.path.relpath(there / name, store))
    kept = restore(place / "backup", store).replaced
    assert kept is not None
    assert (kept / "config.toml").read_text() == "tune = false\n"
    for folder in (kept, there):
        with Catalog.open(f"sqlite:///{folder}/catalog.sqlite3") as old:
            assert list(old.find().names()) == ["friday.mkv", "since.avi", "tiled.mp4"]
    assert _holds_monday(store)


@pytest.mark.thorough
def test_replaced_catalog_is_whole_despite_concurrent_opens(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the catalog checkpoints its log, and opening it starts another."""
    opened: list[Store] = []

    def come(work: _Restore) -> None:
        bring(work)
        opened.append(Store.open(place / "store"))
        _label(opened[0], "first")

    def go(*given: Any) -> bool:
        opened[0].close()
        with Store.open(place / "store") as second:
            _label(second, "second")
        return swap_catalog(*given)

    bring, swap_catalog = _Restore._restore_objects, catalog_swap.swap_catalog
    monkeypatch.setattr(_Restore, "_restore_objects", come)
    monkeypatch.setattr("vfsd.maintenance.restore.swap_catalog", go)
    kept = restore(place / "backup", place / "store").replaced
    assert kept is not None
    with closing(sqlite3.connect(kept / CATALOG)) as old:
        assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert old.execute("SELECT count(*) FROM detections").fetchone() == (600,)
    assert _holds_monday(place / "store")


def _label(store: Store, source: str) -> None:
    for number in range(300):
        store["tiled.mp4"].labels.add_box(
            number % 100, f"{source} {number}", (10, 10, 50, 50), 0.9, source=source
        )


def test_restore_removes_settings_missing_in_the_backup(place: Path) -> None:
    assert not (place / "backup" / "config.toml").exists()
    (place / "store" / "config.toml").write_text("tune = false\n")
    replaced = restore(place / "backup", place / "store").replaced
    with Store.open(place / "store") as store:
        assert store.settings == StoreSettings()
    assert replaced is not None
    assert (replaced / "config.toml").read_text() == "tune = false\n"


def test_restore_creates_a_missing_store(place: Path) -> None:
    done = restore(place / "backup", place / "new" / "store")
    assert (done.copied, done.unused, done.replaced) == (done.bytes, 0, None)
    assert _holds_monday(place / "new" / "store")
    with Store.open(place / "new" / "store") as new, Store.open(place / "store") as old:
        assert new.parts.directory.id == old.parts.directory.id


def test_restored_store_has_the_identity_of_the_backup(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    with Store.create(tmp_path / "store", catalog_url=url) as store:
        store.ingest(FOLDER / "mjpeg.avi", "a.avi")
        back_up(store.parts, tmp_path / "backup")
        mine = store.parts.directory.id
    restore(tmp_path / "backup", tmp_path / "new")
    for name in ("backup", "new"):
        with Store.open(tmp_path / name) as copy:
            assert list(copy) == ["a.avi"]
            assert copy.parts.directory.id == mine
            assert copy.parts.directory.has_own_catalog
        assert Catalog.owner_at(f"sqlite:///{tmp_path / name}/catalog.sqlite3") == mine


def test_backup_without_a_store_identity(place: Path) -> None:
    """Older versions made such backups."""
    with closing(sqlite3.connect(place / "backup" / "catalog.sqlite3")) as database, database:
        database.execute("DELETE FROM store_identity")
    restore(place / "backup", place / "store")
    assert _holds_monday(place / "store")
    with Store.open(place / "store") as store:
        mine = store.parts.directory.id
    assert Catalog.owner_at(f"sqlite:///{place}/store/catalog.sqlite3") == mine


@pytest.mark.parametrize("damage", ["malformed", "gone", "no marker"])
def test_restore_over_an_unreadable_store(place: Path, damage: str) -> None:
    store = place / "store"
    if damage == "malformed":
        (store / "catalog.sqlite3").write_bytes(b"this is no database" * 1000)
    elif damage == "gone":
        (store / "catalog.sqlite3").unlink()
    else:
        (store / "vfsd-store.json").unlink()
    with pytest.raises((IntegrityError, NoStoreError)):
        Store.open(store)
    restore(place / "backup", store)
    assert _holds_monday(store)


def test_next_backup_continues_after_a_restore(place: Path) -> None:
    restore(place / "backup", place / "store")
    with Store.open(place / "store") as store:
        store.ingest(FOLDER / "mjpeg.avi", "tuesday.avi")
        back_up(store.parts, place / "backup")
    with Store.open(place / "backup") as backup:
        assert list(backup) == [*MONDAY, "tuesday.avi"]
        assert fsck.run(backup.parts, deep=True) == []


@pytest.mark.parametrize("where", one_in(2, ["over the store", "anew"]))
def test_kill_leaves_the_old_store_or_the_backup(place: Path, where: str) -> None:
    found = []
    for number in range(20):
        target = place / str(number)
        if where == "over the store":
            shutil.copytree(place / "store", target)

        def work(count: Callable[[], None], target: Path = target) -> None:
            count()
            restore(place / "backup", target)

        was_killed = killed_at_rename(number, work)
        try:
            with Store.open(target) as store:
                found.append(tuple(store))
        except NoStoreError:
            found.append(())
        if not was_killed:
            break
        restore(place / "backup", target)
        assert _holds_monday(target)
    old = ("friday.mkv", "since.avi", "tiled.mp4") if where == "over the store" else ()
    at = found.index(tuple(MONDAY))
    assert at > 1
    assert found == [old] * at + [tuple(MONDAY)] * (len(found) - at)


@pytest.fixture
def elsewhere(place: Path) -> Iterator[Path]:
    """A directory on another disk."""
    with another_disk(place) as found:
        yield found


def _move_files(directory: Path, elsewhere: Path) -> None:
    """Move objects and private files of a store to another disk."""
    elsewhere.mkdir()
    for name in ("objects", "spool"):
        shutil.move(directory / name, elsewhere / name)
        (directory / name).symlink_to(elsewhere / name)


def test_private_files_on_another_disk_survive_a_kill(place: Path, elsewhere: Path) -> None:
    found = []
    for number in range(20):
        target = place / str(number)
        shutil.copytree(place / "store", target)
        _move_files(target, elsewhere / str(number))

        def work(count: Callable[[], None], target: Path = target) -> None:
            count()
            restore(place / "backup", target)

        was_killed = killed_at_rename(number, work)
        with Store.open(target) as store:
            found.append(tuple(store))
            # There may be space for one copy only, and none once the next one is in place.
            assert found[-1] != tuple(MONDAY) or not store.parts.directory.spool_copies()
        if not was_killed:
            break
        restore(place / "backup", target)
        assert StoreDirectory.open(target).spool_copies() == []
        assert _holds_monday(target)
    assert _holds_monday(target)
    at = found.index(tuple(MONDAY))
    assert at > 1
    assert found[at:] == [tuple(MONDAY)] * (len(found) - at)
    kept = [path.read_bytes() for path in target.glob("replaced-*/spool/*")]
    assert sorted(kept) == [b"of friday, and more", b"since"]


def test_backup_with_private_files_on_another_disk(place: Path, elsewhere: Path) -> None:
    _move_files(place / "backup", elsewhere / "backup")
    with Store.open(place / "store") as store:
        back_up(store.parts, place / "backup")
        names = list(store)
    with Store.open(place / "backup") as backup:
        assert list(backup) == names
        assert _bytes_of(backup, "notes.txt") == b"of friday, and more"
        assert fsck.run(backup.parts, deep=True) == []


@pytest.mark.parametrize(
    ("how", "what", "message"),
    [
        ("size=16k", NoSpaceError, "elsewhere/spool has no room"),
        ("nr_inodes=5", NoSpaceError, "elsewhere/spool has no room"),
        ("ro", OSError, "Read-only"),
    ],
)
def test_store_is_kept_if_private_files_cannot_be_copied(
    place: Path, how: str, what: type[Exception], message: str
) -> None:
    """The disk has no space for their bytes or names, or the target is not writable."""
    with Store.open(place / "store") as store:
        for number in range(5):
            _write(store, f"/{number}.txt", b"of today")
        back_up(store.parts, place / "backup")
        for number in range(5):
            store.remove(f"{number}.txt")
        before = list(store)
    with mounted(place / "elsewhere", "-t", "tmpfs", "none") as elsewhere:
        spool = elsewhere / "spool"
        shutil.move(place / "store/spool", spool)
        (place / "store/spool").symlink_to(spool)
        files = sorted(spool.iterdir())
        subprocess.run(["mount", "-o", f"remount,{how}", elsewhere], check=True)
        with pytest.raises(what) as raised:
            restore(place / "backup", place / "store")
        assert message in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        assert sorted(spool.iterdir()) == files
        with Store.open(place / "store") as store:
            assert list(store) == before
            assert fsck.run(store.parts) == []
        subprocess.run(["mount", "-o", "remount,rw,size=1m,nr_inodes=99", elsewhere], check=True)
        assert restore(place / "backup", place / "store").files == 7
        with Store.open(place / "store") as store:
            assert _bytes_of(store, "4.txt") == b"of today"


@pytest.mark.parametrize("what", ["pipe", "socket"])
def test_missing_private_bytes_do_not_block_a_restore(
    place: Path, elsewhere: Path, what: str
) -> None:
    _move_files(place / "store", elsewhere / "store")
    path = elsewhere / "store/spool/901"
    if what == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    restore(place / "backup", place / "store")
    path.unlink()
    assert _holds_monday(place / "store")


def test_missing_object_of_a_backup_is_reported(place: Path) -> None:
    with Store.open(place / "backup") as backup:
        key = backup["monday.mp4"].info.digest
        path = backup.parts.objects.path(key)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with Store.open(place / "store") as store:
        fsck.collect(store.parts)
    assert restore(place / "backup", place / "store").missing == (key,)
    with Store.open(place / "store") as store:
        assert not store.parts.objects.exists(key)


def test_damaged_object_is_taken_from_the_store(place: Path) -> None:
    with Store.open(place / "backup") as backup:
        path = backup.parts.objects.path(backup["tiled.mp4"].info.digest)
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert [one.repaired for one in Scrubber(backup.parts).run()] == [None]
    assert restore(place / "backup", place / "store").missing == ()
    assert _holds_monday(place / "store")


def test_backup_of_an_older_version_is_restored_unchanged(place: Path) -> None:
    backup = place / "backup"
    checkpoint_if_closed(backup / CATALOG)
    reset_wal(StoreDirectory.open(backup))
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    with next_program():
        restore(backup, place / "store")
        assert _holds_monday(place / "store")
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before
    Store.open(backup, read_only=True).close()
    with pytest.raises(StoreVersionError):
        Store.open(place / "store")


def test_backup_that_cannot_be_written_is_restored(place: Path) -> None:
    """Its modes forbid writing, and its log must still be read into the catalog."""
    backup = place / "backup"
    checkpoint_if_closed(backup / CATALOG)
    reset_wal(StoreDirectory.open(backup))
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    folders = [backup, *(path for path in backup.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        done = run_unprivileged("restore", backup, place / "new")
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert (done.code, done.err) == (0, "")
    assert _holds_monday(place / "new")
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before


def test_invalid_row_does_not_stop_a_restore(place: Path) -> None:
    with closing(sqlite3.connect(place / "backup" / CATALOG)) as database, database:
        database.execute("UPDATE physical_videos SET parameters = '{' WHERE id = 1")
    assert restore(place / "backup", place / "store").videos == 2
    with Store.open(place / "store") as store:
        assert store["tiled.mp4"].info.name == "tiled.mp4"
        assert fsck.run(store.parts, repair=True)
        assert fsck.run(store.parts, deep=True) == []
        assert store["monday.mp4"].read(frames=[3]).data.any()


def test_object_without_a_backup_file_is_reported(place: Path) -> None:
    with Store.open(place / "backup") as backup:
        key = backup["monday.mp4"].info.digest
        path = backup.parts.objects.path(key)
    path.unlink()
    path.mkdir()
    with Store.open(place / "store") as store:
        fsck.collect(store.parts)
    assert restore(place / "backup", place / "store").missing == (key,)


@pytest.mark.parametrize("damage", ["flipped", "shorter", "link", "gone", "directory"])
def test_existing_objects_are_compared_as_well(place: Path, damage: str) -> None:
    with Store.open(place / "store") as store:
        key = store["tiled.mp4"].info.digest
        path = store.parts.objects.path(key)
    path.chmod(0o600)
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "shorter":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
        if damage == "link":
            path.symlink_to(place / "backup" / "catalog.sqlite3")
        elif damage == "directory":
            path.mkdir()
    done = restore(place / "backup", place / "store")
    assert (done.missing, done.emptied) == ((), ())
    assert done.copied >= len(data)
    assert _holds_monday(place / "store")


def test_obstacle_at_a_folder_is_not_blamed_on_the_backup(place: Path) -> None:
    with Store.open(place / "store") as store:
        fsck.collect(store.parts)
        before = list(store)
    with Store.open(place / "backup") as backup:
        key = backup["monday.mp4"].info.digest
    folder = place / "store/objects" / key[:2]
    if folder.exists():
        folder.rmdir()
    folder.touch()
    with pytest.raises(IntegrityError, match=f"{folder} must be a directory"):
        restore(place / "backup", place / "store")
    with Store.open(place / "store") as store:
        assert list(store) == before
    folder.unlink()
    restore(place / "backup", place / "store")
    assert _holds_monday(place / "store")


def test_gc_during_a_restore_keeps_new_objects(place: Path) -> None:
    """The copied objects are not referenced yet."""
    with Store.open(place / "store") as store:
        fsck.collect(store.parts)
    collected: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total and len(collected) < 2:
            with Store.open(place / "store") as store:
                collected.append(len(fsck.collect(store.parts).objects))

    done = restore(place / "backup", place / "store", on_progress=meanwhile)
    assert collected[0] > 0
    assert done.missing == ()
    assert _holds_monday(place / "store")


def test_persistent_gc_during_a_restore_is_reported(place: Path) -> None:
    def meanwhile(done: int, total: int) -> None:
        if done == total:
            with Store.open(place / "store") as store:
                fsck.collect(store.parts)

    with Store.open(place / "store") as store:
        before = list(store)
    with pytest.raises(StoreError, match="deleted"):
        restore(place / "backup", place / "store", on_progress=meanwhile)
    with Store.open(place / "store") as store:
        assert list(store) == before


def test_bytes_lost_in_the_backup_are_not_taken_from_the_store(place: Path) -> None:
    with Store.open(place / "backup") as backup:
        backup.parts.directory.spool_file(backup.node("notes.txt").ino).unlink()
    assert restore(place / "backup", place / "store").emptied == ("notes.txt",)
    with Store.open(place / "store") as store:
        assert _bytes_of(store, "notes.txt") == b""
    kept = {path.read_bytes() for path in (place / "store").glob("replaced-*/spool/*")}
    assert b"of friday, and more" in kept


def test_late_error_says_that_the_store_is_restored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(_Restore, "report", fails)
        with pytest.raises(OSError, match="too many") as raised:
            restore(place / "backup", place / "store")
    assert "the store equals the backup" in raised.value.__notes__[0]
    assert _holds_monday(place / "store")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_late_failure_says_that_the_new_catalog_is_complete(
    place: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The disk fails when only names are missing."""
    synced = fsync_path

    def fails(path: Path) -> None:
        if path.name == "spool" and catalog_swap._is_pending(
            StoreDirectory.unmarked(place / "store")
        ):
            raise OSError(code, os.strerror(code))
        synced(path)

    with monkeypatch.context() as patch:
        patch.setattr(catalog_swap, "fsync_path", fails)
        with pytest.raises((OSError, StoreError)) as raised:
            restore(place / "backup", place / "store")
    (note,) = raised.value.__notes__
    assert "the new catalog is complete" in note
    assert _holds_monday(place / "store")


def test_other_directories_are_not_overwritten(place: Path, tmp_path: Path) -> None:
    backup, store = place / "backup", place / "store"
    with pytest.raises(UsageError, match="must be a backup"):
        restore(store, backup)
    with pytest.raises(NoStoreError):
        restore(place / "nowhere", store)
    for inside in (backup, backup / "objects", place):
        with pytest.raises(UsageError, match="must not contain each other"):
            restore(backup, inside)
    new_store(place / "other").close()
    with pytest.raises(ExistsError, match="another store"):
        restore(backup, place / "other")
    shutil.copytree(backup, place / "second")
    with pytest.raises(ExistsError, match="a backup itself"):
        restore(backup, place / "second")
    (place / "mine").mkdir()
    (place / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ExistsError, match="neither"):
        restore(backup, place / "mine")
    assert os.listdir(place / "mine") == ["letter.txt"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_swap, "WAIT_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_restore_needs_exclusive_access(place: Path) -> None:
    with Store.open(place / "store") as store:
        with pytest.raises(BusyError, match="another process has"):
            restore(place / "backup", place / "store")
        assert list(store) == ["friday.mkv", "since.avi", "tiled.mp4"]
    assert not list(place.glob("store/replaced-*"))
    restore(place / "backup", place / "store")
    assert _holds_monday(place / "store")


def test_concurrent_backup_or_restore_is_refused(place: Path) -> None:
    refused = []

    def meanwhile(_: int, __: int) -> None:
        with pytest.raises(BusyError) as told:
            restore(place / "backup", place / "elsewhere")
        refused.append(str(told.value))

    restore(place / "backup", place / "store", on_progress=meanwhile)
    assert "a store is being restored from it" in refused[0]


@pytest.mark.parametrize("there", [True, False])
def test_wrong_sizes_in_the_catalog_do_not_block_copying(place: Path, there: bool) -> None:
    """A bit may have flipped: the bytes match their keys, and no others exist."""
    for root in ("store", "backup"):
        with Store.open(place / root):
            pass  # then the catalog includes the log of its last process
        with closing(sqlite3.connect(place / root / CATALOG)) as catalog, catalog:
            catalog.execute("UPDATE objects SET size = size + 1024")
    target = place / ("store" if there else "new")
    assert restore(place / "backup", target).missing == ()
    with Store.open(target) as store:
        assert store["monday.mp4"].read(frames=[3]).data.any()
    with Store.open(place / "store") as store:
        assert back_up(store.parts, place / "another").damaged == ()


# --------------------------------------------------------------------------------------------------
# Backups that are copied back by hand, over stores with a killed last process


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one video, a backup of it, and five later videos, one of them in the log."""
    folder = tmp_path_factory.mktemp("made")
    with new_store(folder / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "monday.mp4")
        back_up(store.parts, folder / "backup")
        for number in range(4):
            store.ingest(FOLDER / "traffic.mp4", f"since/{number}.mp4")
    ingest_and_die(folder / "store", FOLDER / "traffic.mp4", "friday.mp4")
    return folder


@pytest.fixture
def copied(backed_up: Path, tmp_path: Path) -> Path:
    """A copy of the folder with that store and its backup, for one test."""
    shutil.copytree(backed_up, tmp_path, dirs_exist_ok=True)
    return tmp_path


def copied_back(copied: Path) -> list[str]:
    """Copy the backup over the store, check it, and return the names in it."""
    subprocess.run(["cp", "-a", f"{copied}/backup/.", copied / "store"], check=True)
    with Store.open(copied / "store") as store:
        fsck.run(store.parts, repair=True)
        assert fsck.run(store.parts, deep=True) == []
        return list(store)


@pytest.mark.thorough
def test_manual_copy_replaces_the_log(copied: Path) -> None:
    assert copied_back(copied) == ["monday.mp4"]


@pytest.mark.parametrize(
    "command", one_in(3, [(("ls",),), (("doctor",),), (("fsck", "--deep"),), (("gc",),)])
)
def test_restore_after_commands_on_the_backup(copied: Path, command: tuple[str, ...]) -> None:
    run_command("-s", copied / "backup", *command)
    assert copied_back(copied) == ["monday.mp4"]


def test_writes_to_a_backup_survive_two_closes(copied: Path) -> None:
    with Store.open(copied / "backup") as one, Store.open(copied / "backup") as other:
        one.ingest(FOLDER / "mjpeg.avi", "mine.avi")
        one.close()  # while another connection is open
        assert "mine.avi" in other
    assert copied_back(copied) == ["mine.avi", "monday.mp4"]


def test_ordinary_store_has_no_log_when_closed(copied: Path) -> None:
    Store.open(copied / "store").close()
    assert not (copied / "store/catalog.sqlite3-wal").exists()
