"""Names and directories through the kernel."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.support.syscalls import EXCHANGE, NOREPLACE, rename
from vfsd.api.store import Store

pytestmark = pytest.mark.mount


def test_unlink_open_file(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"abc")
    os.unlink(here / "a")
    assert os.listdir(here) == []
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"def", 3)
    assert os.pread(fd, 10, 0) == b"abcdef"
    os.ftruncate(fd, 2)
    os.fchmod(fd, 0o600)
    assert os.fstat(fd).st_size == 2
    with open(f"/proc/self/fd/{fd}", "rb") as again:
        assert again.read() == b"ab"
    os.close(fd)


def test_remove_directory_of_open_file(here: Path) -> None:
    (here / "d").mkdir()
    fd = os.open(here / "d/a", os.O_CREAT | os.O_RDWR)
    os.unlink(here / "d/a")
    os.rmdir(here / "d")
    os.write(fd, b"x")
    assert os.pread(fd, 1, 0) == b"x"
    os.close(fd)
    assert os.listdir(here) == []


def test_rename_over_open_file(here: Path) -> None:
    (here / "new").write_bytes(b"new")
    (here / "a").write_bytes(b"old")
    with open(here / "a", "rb") as file:
        os.rename(here / "new", here / "a")
        assert file.read() == b"old"
        assert (here / "a").read_bytes() == b"new"
        assert os.listdir(here) == ["a"]
    assert (here / "a").read_bytes() == b"new"


def test_repeated_replacement(here: Path) -> None:
    """A player reads a playlist while it is replaced, and must always find one complete file.

    An open of a file that was just replaced needs another lookup.  The kernel retries once, which
    nearly always suffices with some milliseconds between replacements.
    """
    path = here / "live.m3u8"
    path.write_text("0")
    stop = time.monotonic() + 1
    stale: list[int | None] = []

    def read() -> int:
        count = 0
        while time.monotonic() < stop:
            try:
                with open(path) as file:
                    assert file.read().isdigit()
            except OSError as error:
                stale.append(error.errno)
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in itertools.count():
            if time.monotonic() > stop:
                break
            (here / "tmp").write_text(str(number))
            os.rename(here / "tmp", path)
            time.sleep(0.02)
        assert all(reader.result() for reader in readers)
    assert set(stale) <= {errno.ESTALE}
    assert len(stale) <= 2 + number // 10
    assert os.listdir(here) == ["live.m3u8"]


def test_rename_during_write(here: Path) -> None:
    with open(here / "a", "wb", buffering=0) as file:
        file.write(b"x")
        os.rename(here / "a", here / "b")
        file.write(b"y")
    assert (here / "b").read_bytes() == b"xy"


def test_rename_flags(here: Path) -> None:
    (here / "a").write_text("A")
    (here / "b").write_text("B")
    with open(here / "b"), pytest.raises(FileExistsError):
        rename(here / "a", here / "b", NOREPLACE)
    assert (here / "b").read_text() == "B"
    rename(here / "a", here / "b", EXCHANGE)
    assert ((here / "a").read_text(), (here / "b").read_text()) == ("B", "A")
    rename(here / "a", here / "c", NOREPLACE)
    assert sorted(os.listdir(here)) == ["b", "c"]


def test_hard_links(here: Path) -> None:
    (here / "a").write_text("x")
    assert os.stat(here / "a").st_nlink == 1
    os.link(here / "a", here / "l")
    assert os.stat(here / "a").st_nlink == 2
    entries = {entry.name: entry.inode() for entry in os.scandir(here)}
    assert set(entries.values()) == {os.stat(here / "a").st_ino, os.stat(here / "l").st_ino}
    assert len(set(entries.values())) == 1
    os.chmod(here / "l", 0o600)
    assert stat.S_IMODE(os.stat(here / "a").st_mode) == 0o600
    os.unlink(here / "a")
    assert os.stat(here / "l").st_nlink == 1


def test_unlink_one_of_two_names(here: Path) -> None:
    (here / "a").write_text("x")
    os.link(here / "a", here / "l")
    with open(here / "a") as file:
        os.unlink(here / "a")
        assert os.listdir(here) == ["l"]
        assert os.stat(here / "l").st_nlink == 1
        assert file.read() == "x"
    assert (here / "l").read_text() == "x"


def test_non_utf8_names(here: Path) -> None:
    folder = os.fsencode(here)
    for name in (b"caf\xe9", b"\xff\xfe", "日本語".encode(), b"new\nline", b"n" * 255):
        with open(folder + b"/" + name, "wb") as file:
            file.write(name)
        os.setxattr(folder + b"/" + name, b"user.\xff", b"v")
    assert sorted(os.listdir(folder)) == sorted(
        [b"caf\xe9", b"\xff\xfe", "日本語".encode(), b"new\nline", b"n" * 255]
    )
    assert Path(os.fsdecode(folder + b"/caf\xe9")).read_bytes() == b"caf\xe9"
    with pytest.raises(OSError, match="File name too long"):
        os.mkdir(folder + b"/" + b"n" * 256)
    os.symlink(b"caf\xe9", folder + b"/link")
    assert os.readlink(folder + b"/link") == b"caf\xe9"


@pytest.mark.thorough
def test_thousands_of_names(here: Path) -> None:
    for number in range(1500):
        os.mknod(here / f"{number:04}", stat.S_IFIFO | 0o600)
    assert sorted(os.listdir(here)) == [f"{number:04}" for number in range(1500)]
    with os.scandir(here) as entries:
        for entry in entries:
            os.unlink(entry)
    assert os.listdir(here) == []


def test_special_files(here: Path) -> None:
    os.mkfifo(here / "fifo")
    assert stat.S_ISFIFO(os.stat(here / "fifo").st_mode)
    os.symlink("nowhere", here / "link")
    assert os.readlink(here / "link") == "nowhere"
    with pytest.raises(FileNotFoundError):
        os.stat(here / "link")


@pytest.mark.parametrize("is_unlinked", [False, True])
def test_failed_rename_over_open_file(mounted: Mounted, is_unlinked: bool) -> None:
    """The kernel still has a name cached that another process has just removed."""
    mounted.mount("dirsync", "entry_timeout=100", "attr_timeout=100")
    for count in range(10):
        source, target = mounted.at / f"source{count}", mounted.at / f"target{count}"
        source.touch()
        target.write_bytes(b"old")
        with Store.open(mounted.store) as store:
            store.remove(source.name)
        with target.open("rb") as file:
            if is_unlinked:
                target.unlink()
            with pytest.raises(FileNotFoundError):
                source.rename(target)
            assert os.listdir(mounted.at) == ([] if is_unlinked else [target.name])
            assert file.read() == b"old"
        target.unlink(missing_ok=True)


def test_rename_to_removed_name(
    mounted: Mounted,
) -> None:
    mounted.mount()
    source, target = mounted.at / "source", mounted.at / "target"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    with target.open("rb") as file:
        with Store.open(mounted.store) as store:
            store.remove(target.name)
        source.rename(target)
        assert os.listdir(mounted.at) == [target.name]
        assert target.read_bytes() == b"new"
        assert file.read() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("count", [1, 2, 0xFFFFFFFF])
def test_fuse_hidden_names_of_users(here: Path, count: int) -> None:
    """rsync writes and renames files to copy a tree that contains libfuse's hidden names."""
    name = here / f".fuse_hidden000000ab{count:08x}"
    with (here / ".tmp").open("wb") as file:
        file.write(b"precious")
        file.flush()
        (here / ".tmp").rename(name)
        assert name.stat().st_nlink == 1
    assert name.read_bytes() == b"precious"
    assert os.listdir(here) == [name.name]
    with name.open("rb") as file:
        name.unlink()
        assert os.listdir(here) == []
        assert file.read() == b"precious"
