"""Files and folders that appear under their name whole, whoever else is at it."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.wholefiles import whole_file, whole_folder

LONGEST = 255
"""Bytes of a name."""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_who_is_done_last_has_the_name(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with whole_file(path, replace=True) as first:
        first.write(b"first")
        with whole_file(path, replace=True) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["out.mp4"]


def test_threads_that_save_to_one_path_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    together = threading.Barrier(8)

    def save(number: int) -> None:
        with whole_file(path, replace=True) as file:
            together.wait()
            file.write(bytes([number]) * 100_000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(save, range(8)))
    data = path.read_bytes()
    assert data == data[:1] * 100_000
    assert names(tmp_path) == ["out.mp4"]


def test_what_has_got_the_name_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with pytest.raises(ExistsError), whole_file(path, replace=False):
        path.write_bytes(b"another's")
    assert path.read_bytes() == b"another's"
    assert names(tmp_path) == ["out.mp4"]


def test_what_the_killed_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """Also where the next process has the same number, as the first one of a container has."""
    path, folder = tmp_path / "out.mp4", tmp_path / "out"
    (tmp_path / f".out.mp4.{os.getpid()}.part").write_bytes(b"left")
    (tmp_path / f".out.{os.getpid()}.part").mkdir()
    with whole_file(path, replace=False) as file:
        file.write(b"whole")
    with whole_folder(folder) as inside:
        (inside / "a").write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    assert names(folder) == ["a"]
    assert (tmp_path / f".out.mp4.{os.getpid()}.part").read_bytes() == b"left"


@pytest.mark.parametrize("letter", ["n", "ö", "\udcff"])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, letter: str) -> None:
    name = letter * (LONGEST // len(os.fsencode(letter)))
    with whole_file(tmp_path / name, replace=False) as file:
        file.write(b"x")
        (temporary,) = names(tmp_path)
        assert temporary.startswith(".")
    assert names(tmp_path) == [name]
    with whole_folder(tmp_path / name[:-1]):
        pass
    assert names(tmp_path) == sorted([name, name[:-1]])


def test_new_files_and_folders_are_anybodys_that_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file", replace=False) as file:
            file.write(b"x")
        with whole_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for whole in (whole_file(tmp_path / "file", replace=True), whole_folder(tmp_path / "folder")):
        with pytest.raises(ZeroDivisionError), whole:
            raise ZeroDivisionError
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ExistsError, match="no empty folder"), whole_folder(folder):
        (folder / "a").touch()
    assert names(folder) == ["a"]
    with pytest.raises(ExistsError, match="no empty folder"), whole_folder(folder):
        pass
    assert names(tmp_path) == ["folder"]


def test_where_nothing_can_be_made_is_said(tmp_path: Path) -> None:
    for whole in (whole_file(tmp_path / "no" / "a", True), whole_folder(tmp_path / "no" / "a")):
        with pytest.raises(NotFoundError, match="there is no directory"):
            whole.__enter__()
    with pytest.raises(UsageError, match="is a directory"), whole_file(tmp_path, replace=True):
        pass
