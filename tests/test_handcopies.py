"""Backups that are copied back by hand, over stores whose last process was killed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.killing import ingest_and_die
from tests.selection import one_in
from tests.stores import new_store
from vfsd.api.store import Store
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one video, a backup of that, and five videos since, of which the log has one."""
    folder = tmp_path_factory.mktemp("made")
    with new_store(folder / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "monday.mp4")
        back_up(store.parts, folder / "backup")
        for number in range(4):
            store.ingest(FOLDER / "traffic.mp4", f"since/{number}.mp4")
    ingest_and_die(folder / "store", FOLDER / "traffic.mp4", "friday.mp4")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of that, for one test."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def copied_back(place: Path) -> list[str]:
    """The names in the store, once the backup has been copied over it and nothing is wrong."""
    subprocess.run(["cp", "-a", f"{place}/backup/.", place / "store"], check=True)
    with Store.open(place / "store") as store:
        fsck.run(store.parts, repair=True)
        assert fsck.run(store.parts, deep=True) == []
        return list(store)


@pytest.mark.thorough
def test_a_copy_takes_the_place_of_the_log_too(place: Path) -> None:
    assert copied_back(place) == ["monday.mp4"]


@pytest.mark.parametrize(
    "command", one_in(3, [(("ls",),), (("doctor",),), (("fsck", "--deep"),), (("gc",),)])
)
def test_also_after_somebody_has_looked_into_the_backup(
    place: Path, command: tuple[str, ...]
) -> None:
    run_command("-s", place / "backup", *command)
    assert copied_back(place) == ["monday.mp4"]


def test_what_was_written_into_a_backup_is_not_lost_by_closing_it_twice(place: Path) -> None:
    with Store.open(place / "backup") as one, Store.open(place / "backup") as other:
        one.ingest(FOLDER / "mjpeg.avi", "mine.avi")
        one.close()  # while others have it open
        assert "mine.avi" in other
    assert copied_back(place) == ["mine.avi", "monday.mp4"]


def test_a_store_that_is_no_backup_has_no_log_when_nobody_has_it_open(place: Path) -> None:
    Store.open(place / "store").close()
    assert not (place / "store/catalog.sqlite3-wal").exists()
