"""A store on a disk that is mounted read-only, such as a backup or an archive."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.errors import BusyError, ReadOnlyError, UsageError
from vfsd.mount.control import mount, unmount


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """A closed store, seen through a read-only mount."""
    store, seen = tmp_path / "store", tmp_path / "a disk? #1"
    with Store.create(store) as made:
        made.ingest(FOLDER / "portrait.mp4", "v.mp4")
    seen.mkdir()
    for words in (["--bind", str(store), str(seen)], ["-o", "remount,ro,bind", str(seen)]):
        if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "-l", str(seen)], capture_output=True, check=False)
            pytest.skip("nothing can be mounted here")
    yield seen
    # Another process that scans all mounts may keep this one busy for a moment.
    subprocess.run(["umount", "-l", str(seen)], check=True)


def test_read(archive: Path) -> None:
    with Store.open(archive, read_only=True) as store:
        assert store["v.mp4"][3].data.any()
        with pytest.raises(ReadOnlyError):
            store.remove("v.mp4")
    assert not list(archive.glob("catalog.sqlite3-*"))


def test_changes_refused(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for name, words in {
        "new": ("init", archive / "new"),
        "still.png": ("-s", store, "read", "v.mp4", archive / "still.png", "--at", "0"),
    }.items():
        told = run_command(*words, "--json")
        os_error = json.loads(told.err.splitlines()[-1])
        assert told.code == ReadOnlyError.exit_code
        assert os_error["message"] == f"{archive / name}: Read-only file system"
        assert "mounted read-only" in os_error["hint"]
    # The archive shows the store itself, and a backup must not be inside the store.
    assert run_command("-s", store, "backup", archive / "backup").code == UsageError.exit_code
    told = run_command("-s", archive, "config", "workers", "2", "--json")
    os_error = json.loads(told.err.splitlines()[-1])
    assert told.code == ReadOnlyError.exit_code
    assert os_error["message"] == f"{archive} cannot be written"


def test_read_only_mount(archive: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    with pytest.raises(ReadOnlyError, match="cannot be written") as caught:
        mount(archive, place)
    assert caught.value.hint == "mount it with -o ro"
    told = run_command("mount", archive, place, "-o", "ro", "--json")
    assert told.object["pid"] == json.loads(os.getxattr(place, "user.vfsd.stats"))["pid"]
    try:
        assert (place / "v.mp4").read_bytes() == (FOLDER / "portrait.mp4").read_bytes()
        assert (place / "v.mp4@/frames/000003.png").read_bytes()
    finally:
        unmount(place)


def test_writer_noticed(archive: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{archive / 'catalog.sqlite3'}"
    with Catalog.open(url, read_only=True) as catalog:
        assert [video.name for video in catalog.find()] == ["v.mp4"]
        with Store.open(tmp_path / "store") as store:
            store.move("v.mp4", "w.mp4")
            with pytest.raises(BusyError, match="was changed during the read"):
                len(catalog.find())
            with Catalog.open(url, read_only=True) as live:  # reads the writer's log as well
                assert [video.name for video in live.find()] == ["w.mp4"]
        with pytest.raises(BusyError):
            len(catalog.find())


def test_mode_of_new_store(tmp_path: Path) -> None:
    """Objects do not keep the modes of files, so the store must not let other users bypass them."""
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    for root, mode in ((tmp_path / "new", 0o700), (given, 0o755)):
        Store.create(root).close()
        assert os.stat(root).st_mode & 0o777 == mode
