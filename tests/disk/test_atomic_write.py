"""Files and folders appear under their name whole, even with concurrent writers."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from vfsd.disk.tempfiles import atomic_directory, atomic_file
from vfsd.errors import ExistsError, NotFoundError, UsageError

LONGEST = 255
"""Bytes of a name."""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_last_writer_gets_the_name(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with atomic_file(path, replace=True) as first:
        first.write(b"first")
        with atomic_file(path, replace=True) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["out.mp4"]


def test_concurrent_saves_to_one_path(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    together = threading.Barrier(8)

    def save(number: int) -> None:
        with atomic_file(path, replace=True) as file:
            together.wait()
            file.write(bytes([number]) * 100_000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(save, range(8)))
    data = path.read_bytes()
    assert data == data[:1] * 100_000
    assert names(tmp_path) == ["out.mp4"]


def test_existing_file_is_kept_without_replace(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with pytest.raises(ExistsError), atomic_file(path, replace=False):
        path.write_bytes(b"another's")
    assert path.read_bytes() == b"another's"
    assert names(tmp_path) == ["out.mp4"]


def test_one_of_several_threads_creates_the_name(tmp_path: Path) -> None:
    def save(path: Path, together: threading.Barrier, number: int) -> int | None:
        try:
            with atomic_file(path, replace=False) as file:
                file.write(bytes([number]) * 100)
                together.wait()
        except ExistsError:
            return None
        return number

    for turn in range(40):
        path, together = tmp_path / str(turn), threading.Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            done = list(threads.map(partial(save, path, together), range(4)))
        (kept,) = {number for number in done if number is not None}
        assert path.read_bytes() == bytes([kept]) * 100
        assert done.count(None) == 3


def test_new_file_is_renamed_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*args: object, **options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)
    test_existing_file_is_kept_without_replace(tmp_path)
    with atomic_file(tmp_path / "new", replace=False) as file:
        file.write(b"mine")
    assert (tmp_path / "new").read_bytes() == b"mine"


@pytest.mark.parametrize("way", ["working directory", "link"])
def test_existing_folder_keeps_its_inode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = Path()
    if way == "link":
        path = tmp_path / "link"
        path.symlink_to(folder)
    else:
        monkeypatch.chdir(folder)
    before = folder.stat().st_ino
    with pytest.raises(ExistsError), atomic_directory(path):
        (folder / "other.txt").write_text("another's")
    assert names(folder) == ["other.txt"]
    (folder / "other.txt").unlink()
    with atomic_directory(path) as place:
        (place / "labels.txt").write_text("mine")
    assert names(folder) == ["labels.txt"]
    assert folder.stat().st_ino == before


def test_leftovers_of_killed_processes_do_not_interfere(tmp_path: Path) -> None:
    """The next process may have the same pid, like the first process of a container."""
    path, folder = tmp_path / "out.mp4", tmp_path / "out"
    (tmp_path / f".out.mp4.{os.getpid()}.part").write_bytes(b"left")
    (tmp_path / f".out.{os.getpid()}.part").mkdir()
    with atomic_file(path, replace=False) as file:
        file.write(b"whole")
    with atomic_directory(folder) as inside:
        (inside / "a").write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    assert names(folder) == ["a"]
    assert (tmp_path / f".out.mp4.{os.getpid()}.part").read_bytes() == b"left"


@pytest.mark.parametrize("letter", ["n", "ö", "\udcff"])
def test_names_of_maximum_length(tmp_path: Path, letter: str) -> None:
    name = letter * (LONGEST // len(os.fsencode(letter)))
    with atomic_file(tmp_path / name, replace=False) as file:
        file.write(b"x")
        (temporary,) = names(tmp_path)
        assert temporary.startswith(".")
    assert names(tmp_path) == [name]
    with atomic_directory(tmp_path / name[:-1]):
        pass
    assert names(tmp_path) == sorted([name, name[:-1]])


def test_new_files_and_folders_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file", replace=False) as file:
            file.write(b"x")
        with atomic_directory(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_failure_keeps_the_existing_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for whole in (
        atomic_file(tmp_path / "file", replace=True),
        atomic_directory(tmp_path / "folder"),
    ):
        with pytest.raises(ZeroDivisionError), whole:
            raise ZeroDivisionError
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_nonempty_folder_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ExistsError, match="not an empty directory"), atomic_directory(folder):
        (folder / "a").touch()
    assert names(folder) == ["a"]
    with pytest.raises(ExistsError, match="not an empty directory"), atomic_directory(folder):
        pass
    assert names(tmp_path) == ["folder"]


def test_uncreatable_path_is_reported(tmp_path: Path) -> None:
    for whole in (
        atomic_file(tmp_path / "no" / "a", True),
        atomic_directory(tmp_path / "no" / "a"),
    ):
        with pytest.raises(NotFoundError, match="directory not found"):
            whole.__enter__()
    with pytest.raises(UsageError, match="is a directory"), atomic_file(tmp_path, replace=True):
        pass
