"""Reading and writing bytes through the kernel."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.selection import one_in
from tests.support.syscalls import KEEP_SIZE, PUNCH_HOLE, fallocate

pytestmark = pytest.mark.mount

VIDEO = (FOLDER / "portrait.mp4").read_bytes()


@pytest.mark.parametrize("size", one_in(4, [0, 1, 4096, 131_072, 1_048_577, 5_000_000]))
def test_read_back(here: Path, size: int) -> None:
    data = os.urandom(size)
    (here / "a").write_bytes(data)
    assert (here / "a").read_bytes() == data
    assert os.stat(here / "a").st_size == size


def test_random_parts(here: Path) -> None:
    expected = bytearray(300_000)
    with open(here / "a", "w+b", buffering=0) as file:
        file.truncate(len(expected))
        for offset, size in itertools.pairwise([0, 5, 4095, 4097, 70_001, 140_000, 9_999]):
            data = bytes([offset % 256]) * size
            os.pwrite(file.fileno(), data, offset)
            expected[offset : offset + size] = data
            assert os.pread(file.fileno(), 1 << 20, 0) == expected


def test_append_by_two_descriptors(here: Path) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    one, other = os.open(here / "a", flags), os.open(here / "a", flags)
    for _ in range(20):
        os.write(one, b"1" * 10)
        os.write(other, b"2" * 10)
    assert (here / "a").read_bytes() == (b"1" * 10 + b"2" * 10) * 20
    os.close(one)
    os.close(other)


def test_growing_file(here: Path) -> None:
    writing = os.open(here / "a", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    reading = os.open(here / "a", os.O_RDONLY)
    for count in range(1, 40):
        os.write(writing, b"x" * 1000)
        assert os.fstat(reading).st_size == count * 1000
        assert len(os.pread(reading, 1 << 20, 0)) == count * 1000
    os.close(writing)
    os.close(reading)


def test_sparse_files(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x" * 4096, 1 << 20)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 1 << 20
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
    os.ftruncate(fd, 1 << 30)
    assert os.fstat(fd).st_blocks * 512 < 1 << 20
    assert os.pread(fd, 4, (1 << 20) - 2) == b"\0\0xx"
    os.close(fd)


def test_allocate_and_punch(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    fallocate(fd, 0, 0, 65536)
    assert os.fstat(fd).st_size == 65536
    os.pwrite(fd, b"x" * 65536, 0)
    fallocate(fd, KEEP_SIZE | PUNCH_HOLE, 4096, 8192)
    assert os.pread(fd, 2, 4095) == b"x\0"
    os.close(fd)


def test_copy_range(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 200_000)
    with open(here / "a", "rb") as source, open(here / "b", "wb") as target:
        left = 200_000
        while left:
            left -= os.copy_file_range(source.fileno(), target.fileno(), left)
    assert (here / "b").read_bytes() == b"x" * 200_000


def test_mmap(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 8192)
    with open(here / "a", "r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        assert mapped[8191:] == b"x"
        mapped[0:3] = b"MMM"
        mapped.flush()
        assert os.pread(file.fileno(), 4, 0) == b"MMMx"
        mapped[4000:4003] = b"NNN"
    time.sleep(0.1)
    assert (here / "a").read_bytes()[:4004] == b"MMM" + b"x" * 3997 + b"NNNx"


def test_mapping_sees_uncached_write(here: Path) -> None:
    """A write-only descriptor bypasses the kernel's cache, but readers must see its writes."""
    (here / "a").write_bytes(b"old " * 4096)
    with open(here / "a", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[8000:8004] == b"old "
        fd = os.open(here / "a", os.O_WRONLY)
        os.pwrite(fd, b"new!", 8000)
        os.close(fd)
        assert mapped[8000:8004] == b"new!"
        assert os.pread(file.fileno(), 4, 8000) == b"new!"


def test_direct_read(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 8192)
    fd = os.open(here / "a", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 8192) as buffer:
        assert os.readv(fd, [buffer]) == 8192
    os.close(fd)


def test_fsync_calls(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"x")
    os.fsync(fd)
    os.fdatasync(fd)
    folder = os.open(here, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    os.close(fd)


def test_write_into_video(here: Path) -> None:
    path = here / "v.mp4"
    path.write_bytes(VIDEO)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    with open(path, "r+b", buffering=0) as writer, open(path, "rb", buffering=0) as reader:
        assert reader.read(4) == VIDEO[:4]
        writer.write(b"????")
        assert os.pread(reader.fileno(), 8, 0) == b"????" + VIDEO[4:8]
    assert os.getxattr(path, "user.vfsd.state") == b"plain"
    before = os.stat(path)
    path.write_bytes(VIDEO)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    assert path.read_bytes() == VIDEO
    assert os.stat(path).st_ino == before.st_ino


def test_reader_sees_writes(mounted: Mounted) -> None:
    path = mounted.mount() / "v.mp4"
    path.write_bytes(VIDEO)
    with open(path, "rb") as reader:
        assert reader.read(4) == VIDEO[:4]
        with open(path, "r+b") as writer:
            writer.write(b"????")
        assert os.pread(reader.fileno(), 8, 0) == b"????" + VIDEO[4:8]


def test_cache_invalidation(here: Path) -> None:
    path, link = here / "a", here / "l"
    path.write_bytes(b"one" * 1000)
    os.link(path, link)
    for content in (b"two", b"six", b"ten"):
        assert path.read_bytes() == link.read_bytes()
        with open(link, "r+b") as file:
            file.write(content * 1000)
        assert path.read_bytes() == content * 1000


def test_write_by_removed_name(here: Path) -> None:
    writer = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.write(writer, b"x" * 100)
    os.link(here / "a", here / "b")
    reader = os.open(here / "b", os.O_RDONLY)
    os.pread(reader, 100, 0)
    os.unlink(here / "a")
    os.stat(here / "b")
    for number in range(100):
        os.pwrite(writer, b"%03d" % number, 0)
        assert os.pread(reader, 3, 0) == b"%03d" % number
    os.ftruncate(writer, 7)
    assert (here / "b").stat().st_size == os.fstat(reader).st_size == 7
    os.close(reader)
    os.pwrite(writer, b"y" * 20, 0)
    assert (here / "b").stat().st_size == 20
    assert (here / "b").read_bytes() == b"y" * 20
    os.close(writer)
