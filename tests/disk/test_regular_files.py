"""Irregular files in place of a store's files: no operation blocks, and errors name the path."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.disk.store_layout import StoreDirectory
from vfsd.disk.tempfiles import new_name
from vfsd.errors import NoStoreError, StoreError
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import restore

NAMES = (
    "config.toml",
    "catalog.sqlite3",
    "catalog.sqlite3-wal",
    "catalog.sqlite3-shm",
    "catalog.sqlite3-journal",
    "reserve",
    "mount.lock",
    "mount.decoding",
    "mount.rendering",
    "suspects.json",
    "scrub.json",
    "vfsd-backup.json",
    "vfsd-backup-files.json",
    "incoming/catalog.sqlite3",
    "incoming/config.toml",
)
MARKER = "vfsd-store.json"
MAKERS = (os.mkfifo, os.mkdir)

Make = Callable[[Path], None]


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Fail a test that blocks on a pipe; a call inside SQLite cannot be interrupted."""

    def give_up(*_: object) -> None:
        raise AssertionError("an operation blocks on a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    new_store(tmp_path / "store").close()
    return tmp_path / "store"


def put(path: Path, make: Make) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)


def state(root: Path) -> list[tuple[Path, int]]:
    return sorted((path, path.lstat().st_mtime_ns) for path in root.rglob("*"))


@pytest.mark.parametrize("name", one_in(4, NAMES))
@pytest.mark.parametrize("make", MAKERS)
def test_irregular_file_in_a_store_is_reported(root: Path, name: str, make: Make) -> None:
    put(root / name, make)
    before = state(root)
    for read_only in (True, False):
        with pytest.raises(
            StoreError, match=re.escape(f"{root / name} must be a regular")
        ) as caught:
            Store.open(root, read_only=read_only)
        assert "move it away" in (caught.value.hint or "")
    assert state(root) == before


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
def test_staging_path_must_be_a_directory(root: Path, make: Make) -> None:
    put(root / "incoming", make)
    with pytest.raises(StoreError, match="incoming must be a directory"):
        Store.open(root)


@pytest.mark.parametrize("make", MAKERS)
def test_marker_must_be_a_regular_file(root: Path, make: Make) -> None:
    put(root / MARKER, make)
    with pytest.raises(NoStoreError, match=f"{MARKER} cannot be read: it is not a regular file"):
        Store.open(root)


@pytest.mark.parametrize(
    "name", one_in(3, [MARKER, "catalog.sqlite3", "config.toml", "mount.lock"])
)
@pytest.mark.parametrize("make", MAKERS)
def test_restore_does_not_overwrite_irregular_files(
    root: Path, tmp_path: Path, name: str, make: Make
) -> None:
    with Store.open(root) as store:
        back_up(store.parts, tmp_path / "backup")
    (root / "mount.lock").touch()
    put(root / name, make)
    before = state(root)
    with pytest.raises(StoreError, match=re.escape(f"{root / name} must be a regular file")):
        restore(tmp_path / "backup", root)
    assert state(root) == before
    (root / name).unlink() if make is os.mkfifo else (root / name).rmdir()
    restore(tmp_path / "backup", root)
    Store.open(root).close()


@pytest.mark.parametrize("name", ["vfsd-backup.json", "mount.lock", "config.toml"])
@pytest.mark.parametrize("make", MAKERS)
def test_irregular_file_in_a_backup_is_reported(
    root: Path, tmp_path: Path, name: str, make: Make
) -> None:
    with Store.open(root) as store:
        back_up(store.parts, tmp_path / "backup")
        put(tmp_path / "backup" / name, make)
        with pytest.raises(StoreError, match=f"{name} must be a regular file"):
            back_up(store.parts, tmp_path / "backup")


@pytest.mark.parametrize("make", MAKERS)
def test_create_does_not_overwrite_irregular_files(tmp_path: Path, make: Make) -> None:
    put(tmp_path / "store" / f"{MARKER}.tmp", make)
    with pytest.raises(StoreError, match="regular file"):
        Store.create(tmp_path / "store")


@pytest.mark.parametrize("side", ["", "-journal"])
@pytest.mark.parametrize("make", MAKERS)
def test_external_catalog_must_be_a_regular_file(tmp_path: Path, side: str, make: Make) -> None:
    url = f"sqlite:///{tmp_path}/elsewhere.sqlite3"
    Catalog.create(url).close()
    put(tmp_path / f"elsewhere.sqlite3{side}", make)
    with pytest.raises(StoreError, match=f"elsewhere.sqlite3{side} must be a regular file"):
        Catalog.open(url)


def test_symlinks_to_regular_files_are_accepted(root: Path, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("workers = 2\n")
    (root / "config.toml").symlink_to(tmp_path / "settings")
    with Store.open(root) as store:
        assert store.settings.workers == 2


@pytest.mark.parametrize("name", ["config.toml", "catalog.sqlite3", "suspects.json"])
def test_dangling_symlinks_are_not_missing_files(root: Path, tmp_path: Path, name: str) -> None:
    """Through such a link, a new catalog would be created elsewhere, and settings would be the
    defaults."""
    if (root / name).exists():
        (root / name).rename(tmp_path / "elsewhere")
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(tmp_path / "away" / "elsewhere")
    with pytest.raises(StoreError, match=f"{name} is a dangling symbolic link") as caught:
        Store.open(root)
    assert "mount the disk" in (caught.value.hint or "")
    (tmp_path / "away").mkdir()
    (tmp_path / "elsewhere").touch()
    (tmp_path / "elsewhere").rename(tmp_path / "away" / "elsewhere")
    Store.open(root).close()


def test_pipe_as_recording_info_is_skipped(root: Path) -> None:
    with Store.open(root) as store:
        os.mkfifo(store.parts.directory.objects_tmp / f"{new_name()}.json")
        assert store.recordings() == []


def test_pipe_as_private_file_does_not_block(root: Path) -> None:
    directory = StoreDirectory.open(root)
    directory.spool.mkdir(exist_ok=True)
    os.mkfifo(directory.spool_file(7))
    with pytest.raises(StoreError, match="regular file"):
        directory.sync_spooled(7)
