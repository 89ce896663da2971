"""Backups of stores that are mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store
from vfsd.errors import BusyError, UsageError
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import restore
from vfsd.mount import control

pytestmark = pytest.mark.mount


def test_backup_of_mounted_store(tmp_path: Path, mounted: Mounted) -> None:
    mounted.mount()
    video = (FOLDER / "traffic.mp4").read_bytes()
    (mounted.at / "cam").mkdir()
    (mounted.at / "cam" / "a.mp4").write_bytes(video)
    (mounted.at / "notes.txt").write_text("calibrated on Monday")
    os.symlink("a.mp4", mounted.at / "cam" / "link")
    target, again = tmp_path / "backup", tmp_path / "again"
    with (mounted.at / "open.bin").open("wb") as file, Store.open(mounted.store) as store:
        file.write(b"x" * 1000)
        file.flush()
        assert store["cam/a.mp4"].width == 320
        done = back_up(store.parts, target)
        assert (done.videos, done.files) == (1, 2)
        again.mkdir()
        control.mount(target, again, (), log_file=tmp_path / "log2")
        try:
            assert (again / "notes.txt").read_text() == "calibrated on Monday"
            assert (again / "cam" / "link").read_bytes() == video
            assert (again / "open.bin").read_bytes() == b"x" * 1000
            with pytest.raises(BusyError, match="mounted"):
                back_up(store.parts, target)
        finally:
            control.unmount(again)
        assert back_up(store.parts, target).copied == 0


@pytest.mark.thorough
def test_unfinished_backup_not_mounted(tmp_path: Path, mounted: Mounted) -> None:
    target, again = tmp_path / "backup", tmp_path / "again"
    again.mkdir()
    refused = []

    def mount_meanwhile(_: int, __: int) -> None:
        with pytest.raises(BusyError) as told:
            control.mount(target, again, (), log_file=tmp_path / "log2")
        refused.append(str(told.value))

    with Store.open(mounted.store) as store:
        store.ingest(FOLDER / "traffic.mp4")
        back_up(store.parts, target)
        store.remove("traffic.mp4")
        store.ingest(FOLDER / "portrait.mp4")
        back_up(store.parts, target, on_progress=mount_meanwhile)
    assert refused
    assert all("a backup is being written into it" in one for one in refused)
    control.mount(target, again, (), log_file=tmp_path / "log2")
    try:
        assert os.listdir(again) == ["portrait.mp4"]
        assert (again / "portrait.mp4").read_bytes() == (FOLDER / "portrait.mp4").read_bytes()
    finally:
        control.unmount(again)


def test_restore_of_mounted_store(tmp_path: Path, mounted: Mounted) -> None:
    backup = tmp_path / "backup"
    with Store.open(mounted.store) as store:
        store.ingest(FOLDER / "traffic.mp4")
        back_up(store.parts, backup)
        store.remove("traffic.mp4")
    mounted.mount()
    with pytest.raises(BusyError, match="is mounted at"):
        restore(backup, mounted.store)
    assert os.listdir(mounted.at) == []
    mounted.unmount()
    refused = []

    def mount_meanwhile(_: int, __: int) -> None:
        with pytest.raises(BusyError) as told:
            control.mount(mounted.store, mounted.at, (), log_file=tmp_path / "log2")
        refused.append(str(told.value))

    restore(backup, mounted.store, on_progress=mount_meanwhile)
    assert "it is being restored" in refused[0]
    mounted.mount()
    assert (mounted.at / "traffic.mp4").read_bytes() == (FOLDER / "traffic.mp4").read_bytes()


def test_backup_into_own_mount(tmp_path: Path, mounted: Mounted) -> None:
    mounted.mount()
    (mounted.at / "notes.txt").write_text("calibrated on Monday")
    (tmp_path / "link").symlink_to(mounted.at)
    with Store.open(mounted.store) as store:
        for target in (mounted.at, mounted.at / "deep/down", tmp_path / "link/backup"):
            with pytest.raises(UsageError, match="itself"):
                back_up(store.parts, target)
        assert os.listdir(mounted.at) == ["notes.txt"]
        back_up(store.parts, tmp_path / "backup")
