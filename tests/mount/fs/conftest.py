"""A fresh store for every test, and a file system on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.fs_driver import ByInode, Driver
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.inode_metadata import TUNER


@pytest.fixture(scope="session", autouse=True)
def fuse() -> None:
    """Nothing is mounted here."""


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store, as a template for copies."""
    path = tmp_path_factory.mktemp("template") / "store"
    new_store(path).close()
    return path


@pytest.fixture
def place(empty_store: Path, tmp_path: Path) -> Path:
    """The path of the test's store."""
    return Path(shutil.copytree(empty_store, tmp_path / "store"))


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


@pytest.fixture(params=one_in(2, [Filesystem, ByInode]), ids=["paths", "inodes"])
def kind(request: pytest.FixtureRequest) -> type[Filesystem]:
    """A file system that is asked by path, or by inode."""
    found: type[Filesystem] = request.param
    return found


@pytest.fixture
def fs(store: Store, kind: type[Filesystem]) -> Iterator[Filesystem]:
    filesystem = kind(store.parts, reports={TUNER: lambda: "off"})
    filesystem.recover()
    yield filesystem
    filesystem.close()


@pytest.fixture
def it(fs: Filesystem) -> Driver:
    return Driver(fs)


@pytest.fixture(scope="session")
def video() -> bytes:
    """A short video that is served."""
    return (FOLDER / "portrait.mp4").read_bytes()


@pytest.fixture(scope="session")
def other_video() -> bytes:
    return (FOLDER / "traffic.mp4").read_bytes()


@pytest.fixture
def crashed(place: Path, tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    """The store after a crash: `crashed()` opens a copy of it as the next mount would find it.

    Another process makes the copy, since SQLite would lose its locks if this process closed the
    catalog's file.
    """
    opened: list[tuple[Store, Filesystem]] = []

    def crash() -> Driver:
        copy = tmp_path / f"crashed{len(opened)}"
        subprocess.run(["cp", "-a", place, copy], check=True)
        again = Store.open(copy)
        filesystem = Filesystem(again.parts)
        opened.append((again, filesystem))
        filesystem.recover()
        return Driver(filesystem)

    yield crash
    for again, filesystem in opened:
        filesystem.close()
        again.close()
