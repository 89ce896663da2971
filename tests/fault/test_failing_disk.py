"""A disk that becomes read-only under a mount, and one without shared mappings."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.disks import mounted
from tests.support.fs_driver import Driver, failing
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.errors import StoreError
from vfsd.mount.fs import Filesystem


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An ext4 disk, and a function that makes the kernel stop all writing to it."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted(tmp_path / "disk", "-o", "loop,errors=remount-ro", image) as disk:
        source = subprocess.check_output(["findmnt", "-no", "SOURCE", disk], text=True).strip()
        trigger = Path("/sys/fs/ext4") / Path(source).name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip("this kernel cannot make a disk fail")
        yield disk, lambda: _write(trigger)


def _write(trigger: Path) -> None:
    trigger.write_text("test")


def test_disk_becomes_read_only(failing_disk: tuple[Path, Callable[[], None]]) -> None:
    """Every change fails with EROFS, and everything can still be read."""
    disk, fail = failing_disk
    with new_store(disk / "store") as store:
        fs = Filesystem(store.parts)
        fs.recover()
        it = Driver(fs)
        it.write("/a", b"old")
        it.write("/open", b"open")
        it.mkdir("/d")
        it.fs.settle()
        os.sync()
        fail()
        changes: list[Callable[[], object]] = [
            lambda: it.write("/new", b"x"),
            lambda: it.write("/a", b"x"),
            lambda: it.mkdir("/e"),
            lambda: it.fs.rmdir("/d"),
            lambda: it.fs.unlink("/a"),
            lambda: it.fs.rename("/a", "/b"),
            lambda: it.fs.link("/a", "/b"),
            lambda: it.fs.symlink("/l", "a", it.caller),
            lambda: it.fs.chmod("/a", 0o600),
            lambda: it.fs.utimens("/a", 1, 1),
            lambda: it.truncate("/a", 1),
            lambda: it.fs.setxattr("/a", "user.x", b"1"),
        ]
        assert [failing(change) for change in changes] == ["EROFS"] * len(changes)
        assert it.read("/a") == b"old"
        assert it.names() == ["a", "d", "open"]
        with suppress(OSError, StoreError):
            fs.close()


def test_private_file_opened_while_read_only(tmp_path: Path) -> None:
    """A handle can write the file if it is opened after the disk is writable again."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "tmpfs") as disk:
        new_store(tmp_path / "store").close()
        (tmp_path / "store/spool").rmdir()
        (disk / "spool").mkdir()
        (disk / "objects").mkdir()
        shutil.rmtree(tmp_path / "store/objects")
        for name in ("spool", "objects"):
            (tmp_path / "store" / name).symlink_to(disk / name)
        with Store.open(tmp_path / "store") as store:
            fs = Filesystem(store.parts)
            it = Driver(fs)
            it.write("/a", b"old")
            it.fs.settle()
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            with it.opened("/a") as reader:
                assert it.read_open(reader) == b"old"
                assert failing(lambda: it.write("/a", b"new")) == "EROFS"
                subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
                it.write("/a", b"new")
                assert it.read_open(reader) == b"new"
            fs.close()


def test_init_without_shared_mappings(tmp_path: Path) -> None:
    if shutil.which("mergerfs") is None:
        pytest.skip("mergerfs is not installed")
    branch, top = tmp_path / "branch", tmp_path / "top"
    branch.mkdir()
    top.mkdir()
    subprocess.run(["mergerfs", "-o", "direct_io,cache.files=off", branch, top], check=True)
    try:
        with (top / "probe").open("wb+") as file:
            file.truncate(4096)
            if not _refuses_mapping(file.fileno()):
                pytest.skip("this mergerfs has shared mappings")
        with pytest.raises(StoreError, match="shared memory mappings") as caught:
            Store.create(top / "store")
        assert "--catalog" in str(caught.value.hint)
    finally:
        subprocess.run(["umount", "-l", top], check=True)


def _refuses_mapping(fd: int) -> bool:
    import mmap

    try:
        mmap.mmap(fd, 4096, mmap.MAP_SHARED).close()
    except OSError as error:
        return error.errno == errno.ENODEV
    return False
