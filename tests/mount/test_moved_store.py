"""The directory of an open store is moved, and another store takes its path."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.errors import StoreError
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.fsck import run as check
from vfsd.maintenance.restore import restore
from vfsd.mount import control

CLIP = FOLDER / "portrait.mp4"
OTHER_CLIP = FOLDER / "traffic.mp4"


def put_new(path: Path, _: Path) -> None:
    new_store(path).close()


def put_restored(path: Path, backup: Path) -> None:
    """A store with the same identity."""
    restore(backup, path)


successors = pytest.mark.parametrize("put", [put_new, put_restored])


@pytest.fixture
def old(mounted: Mounted) -> Mounted:
    """Mounted, with a private file and a video."""
    at = mounted.mount()
    (at / "notes.txt").write_text("old notes")
    shutil.copyfile(CLIP, at / "v.mp4")
    assert os.getxattr(at / "v.mp4", "user.vfsd.state") == b"video"
    return mounted


def assert_sound(root: Path) -> None:
    with Store.open(root) as store:
        assert check(store.parts, deep=True) == []


@pytest.mark.mount
@successors
def test_mount_follows_store(
    old: Mounted, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    with Store.open(old.store) as store:
        back_up(store.parts, tmp_path / "backup")
    aside, second = tmp_path / "aside", tmp_path / "second"
    old.store.rename(aside)
    put(old.store, tmp_path / "backup")
    second.mkdir()
    control.mount(old.store, second, log_file=tmp_path / "log2")
    try:
        (second / "notes.txt").write_text("new notes")
        shutil.copyfile(OTHER_CLIP, second / "w.mp4")
        assert os.getxattr(second / "w.mp4", "user.vfsd.state") == b"video"
        # The old mount reads, writes, publishes, renders and deletes in the old store.
        assert sorted(os.listdir(old.at)) == ["notes.txt", "v.mp4"]
        assert (old.at / "notes.txt").read_text() == "old notes"
        (old.at / "notes.txt").write_text("old notes, changed")
        shutil.copyfile(OTHER_CLIP, old.at / "w.mp4")
        assert os.getxattr(old.at / "w.mp4", "user.vfsd.state") == b"video"
        assert (old.at / "w.mp4@" / "frames" / "000001.png").stat().st_size > 0
        os.unlink(old.at / "v.mp4")
        os.unlink(old.at / "w.mp4")
        assert (second / "notes.txt").read_text() == "new notes"
        assert (second / "w.mp4").read_bytes() == OTHER_CLIP.read_bytes()
        # Unmounting the old mount does not remove the log of the other catalog.
        control.unmount(old.at)
        assert (old.store / "catalog.sqlite3-wal").exists()
        (second / "later.txt").write_text("x")
    finally:
        control.unmount(second)
    assert_sound(aside)
    assert_sound(old.store)
    with Store.open(old.store) as store:
        names = [name for name, _ in store.entries()]
        assert {"notes.txt", "w.mp4", "later.txt"} <= set(names)
    with Store.open(aside) as store:
        assert [name for name, _ in store.entries()] == ["notes.txt"]
    assert "/proc/self/fd" not in old.log.read_text()


@pytest.mark.mount
def test_log_names_new_place(old: Mounted, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    old.store.rename(aside)
    for path in (aside / "objects").glob("??/*"):
        if path.parent.name != "tmp":
            path.unlink()
    with pytest.raises(OSError, match="Input/output"):
        (old.at / "v.mp4").read_bytes()
    assert re.search(rf"{re.escape(str(aside))}/objects/\S+ does not exist", old.log.read_text())
    aside.rename(old.store)


@successors
def test_open_store_is_refused(tmp_path: Path, put: Callable[[Path, Path], None]) -> None:
    path, aside = tmp_path / "store", tmp_path / "aside"
    with new_store(path) as store:
        store.ingest(CLIP, "v.mp4")
        back_up(store.parts, tmp_path / "backup")
        path.rename(aside)
        put(path, tmp_path / "backup")
        with Store.open(path) as other:
            other.ingest(OTHER_CLIP, "w.mp4")
            for change in (
                lambda: store.ingest(OTHER_CLIP, "x.mp4"),
                lambda: store.remove("v.mp4"),
                lambda: store.parts.objects.delete(other["w.mp4"].info.digest),
            ):
                with pytest.raises(StoreError, match=f"was moved or deleted: it is at {aside}"):
                    change()
            store.close()
            assert (path / "catalog.sqlite3-wal").exists()
            assert "w.mp4" in other
        assert not (path / "catalog.sqlite3-wal").exists()
    assert_sound(path)
    assert_sound(aside)
    with Store.open(aside) as found:
        assert list(found) == ["v.mp4"]


def test_deleted_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with new_store(path) as store:
        shutil.rmtree(path)
        new_store(path).close()
        with pytest.raises(StoreError, match="it was deleted"):
            store.ingest(CLIP)


def test_store_moved_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "store", tmp_path / "aside"
    with new_store(path) as store:
        path.rename(aside)
        with pytest.raises(StoreError, match="was moved or deleted"):
            store.ingest(CLIP)
        aside.rename(path)
        store.ingest(CLIP, "v.mp4")
    assert_sound(path)


@pytest.mark.mount
def test_refusal_names_path(mounted: Mounted, tmp_path: Path) -> None:
    shutil.rmtree(mounted.store / "spool")
    (mounted.store / "spool").write_text("no directory")
    with pytest.raises(StoreError, match=f"{mounted.store}/spool"):
        mounted.mount()
