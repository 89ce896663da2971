"""Backups of stores that are mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd import mounting
from vfsd.backup import back_up
from vfsd.errors import BusyError, UsageError
from vfsd.store import Store

pytestmark = pytest.mark.mount


def test_a_mounted_store_with_files_of_all_kinds(tmp_path: Path, mounted: Mounted) -> None:
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
        mounting.mount(target, again, (), log_file=tmp_path / "log2")
        try:
            assert (again / "notes.txt").read_text() == "calibrated on Monday"
            assert (again / "cam" / "link").read_bytes() == video
            assert (again / "open.bin").read_bytes() == b"x" * 1000
            with pytest.raises(BusyError, match="mounted"):
                back_up(store.parts, target)
        finally:
            mounting.unmount(again)
        assert back_up(store.parts, target).copied == 0


def test_a_mount_of_the_store_itself_is_no_place_for_a_backup(
    tmp_path: Path, mounted: Mounted
) -> None:
    mounted.mount()
    (mounted.at / "notes.txt").write_text("calibrated on Monday")
    (tmp_path / "link").symlink_to(mounted.at)
    with Store.open(mounted.store) as store:
        for target in (mounted.at, mounted.at / "deep/down", tmp_path / "link/backup"):
            with pytest.raises(UsageError, match="itself"):
                back_up(store.parts, target)
        assert os.listdir(mounted.at) == ["notes.txt"]
        back_up(store.parts, tmp_path / "backup")
