"""What POSIX says of files, asked through the kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted

pytestmark = pytest.mark.mount

VIDEO = (FOLDER / "portrait.mp4").read_bytes()
NOREPLACE, EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE = 1, 2

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def call(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def rename(old: Path, new: Path, flags: int) -> None:
    call(_LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags))


def in_another_process(code: str, *arguments: object) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# ------------------------------------------------------------------------------------------ bytes


@pytest.mark.parametrize("size", [0, 1, 4096, 131_072, 1_048_577, 5_000_000])
def test_bytes_come_back(here: Path, size: int) -> None:
    data = os.urandom(size)
    (here / "a").write_bytes(data)
    assert (here / "a").read_bytes() == data
    assert os.stat(here / "a").st_size == size


def test_parts_of_any_size_at_any_place(here: Path) -> None:
    expected = bytearray(300_000)
    with open(here / "a", "w+b", buffering=0) as file:
        file.truncate(len(expected))
        for offset, size in itertools.pairwise([0, 5, 4095, 4097, 70_001, 140_000, 9_999]):
            data = bytes([offset % 256]) * size
            os.pwrite(file.fileno(), data, offset)
            expected[offset : offset + size] = data
            assert os.pread(file.fileno(), 1 << 20, 0) == expected


def test_appending_through_two_descriptors(here: Path) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    one, other = os.open(here / "a", flags), os.open(here / "a", flags)
    for _ in range(20):
        os.write(one, b"1" * 10)
        os.write(other, b"2" * 10)
    assert (here / "a").read_bytes() == (b"1" * 10 + b"2" * 10) * 20
    os.close(one)
    os.close(other)


def test_a_growing_file_is_seen_growing(here: Path) -> None:
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


def test_space_is_reserved_and_given_back(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    call(_LIBC.fallocate(fd, 0, 0, 65536))
    assert os.fstat(fd).st_size == 65536
    os.pwrite(fd, b"x" * 65536, 0)
    call(_LIBC.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, 4096, 8192))
    assert os.pread(fd, 2, 4095) == b"x\0"
    os.close(fd)


def test_copying_inside(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 200_000)
    with open(here / "a", "rb") as source, open(here / "b", "wb") as target:
        left = 200_000
        while left:
            left -= os.copy_file_range(source.fileno(), target.fileno(), left)
    assert (here / "b").read_bytes() == b"x" * 200_000


def test_mapped_reading_and_writing(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 8192)
    with open(here / "a", "r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        assert mapped[8191:] == b"x"
        mapped[0:3] = b"MMM"
        mapped.flush()
        assert os.pread(file.fileno(), 4, 0) == b"MMMx"
        mapped[4000:4003] = b"NNN"
    time.sleep(0.1)
    assert (here / "a").read_bytes()[:4004] == b"MMM" + b"x" * 3997 + b"NNNx"


def test_a_mapping_sees_what_is_written_past_the_cache(here: Path) -> None:
    """Who opens a file only for writing goes past the kernel's cache; readers must not notice."""
    (here / "a").write_bytes(b"old " * 4096)
    with open(here / "a", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[8000:8004] == b"old "
        fd = os.open(here / "a", os.O_WRONLY)
        os.pwrite(fd, b"new!", 8000)
        os.close(fd)
        assert mapped[8000:8004] == b"new!"
        assert os.pread(file.fileno(), 4, 8000) == b"new!"


def test_direct_reading(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 8192)
    fd = os.open(here / "a", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 8192) as buffer:
        assert os.readv(fd, [buffer]) == 8192
    os.close(fd)


def test_syncing(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"x")
    os.fsync(fd)
    os.fdatasync(fd)
    folder = os.open(here, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    os.close(fd)


def test_writing_into_a_video_and_back(here: Path) -> None:
    path = here / "v.mp4"
    path.write_bytes(VIDEO)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    with open(path, "rb") as reader:
        assert reader.read(4) == VIDEO[:4]
        with open(path, "r+b") as writer:
            writer.write(b"????")
        assert os.pread(reader.fileno(), 8, 0) == b"????" + VIDEO[4:8]
    assert os.getxattr(path, "user.vfsd.state") == b"plain"
    before = os.stat(path)
    path.write_bytes(VIDEO)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    assert path.read_bytes() == VIDEO
    assert os.stat(path).st_ino == before.st_ino


def test_the_cache_is_kept_only_while_it_is_right(here: Path) -> None:
    path, link = here / "a", here / "l"
    path.write_bytes(b"one" * 1000)
    os.link(path, link)
    for content in (b"two", b"six", b"ten"):
        assert path.read_bytes() == link.read_bytes()
        with open(link, "r+b") as file:
            file.write(content * 1000)
        assert path.read_bytes() == content * 1000


# ------------------------------------------------------------------------------------------ names


def test_unlinking_an_open_file(here: Path) -> None:
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


def test_removing_the_directory_of_an_unlinked_open_file(here: Path) -> None:
    (here / "d").mkdir()
    fd = os.open(here / "d/a", os.O_CREAT | os.O_RDWR)
    os.unlink(here / "d/a")
    os.rmdir(here / "d")
    os.write(fd, b"x")
    assert os.pread(fd, 1, 0) == b"x"
    os.close(fd)
    assert os.listdir(here) == []


def test_renaming_over_an_open_file(here: Path) -> None:
    (here / "new").write_bytes(b"new")
    (here / "a").write_bytes(b"old")
    with open(here / "a", "rb") as file:
        os.rename(here / "new", here / "a")
        assert file.read() == b"old"
        assert (here / "a").read_bytes() == b"new"
        assert os.listdir(here) == ["a"]
    assert (here / "a").read_bytes() == b"new"


def test_an_open_file_is_replaced_again_and_again(here: Path) -> None:
    """As players see a playlist: the name is always there, and is always one whole file.

    Who opens a file that has just been replaced looks for it again; the kernel does so once, and
    hardly ever needs to twice in a row when there are some milliseconds between replacements.
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
    assert len(stale) <= 2
    assert os.listdir(here) == ["live.m3u8"]


def test_renaming_what_is_being_written(here: Path) -> None:
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


def test_an_open_file_with_two_names_loses_one(here: Path) -> None:
    (here / "a").write_text("x")
    os.link(here / "a", here / "l")
    with open(here / "a") as file:
        os.unlink(here / "a")
        assert os.listdir(here) == ["l"]
        assert os.stat(here / "l").st_nlink == 1
        assert file.read() == "x"
    assert (here / "l").read_text() == "x"


def test_names_that_are_no_text(here: Path) -> None:
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


# ------------------------------------------------------------------------------------- attributes


def test_times(here: Path) -> None:
    path = here / "a"
    path.write_text("x")
    os.utime(path, ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    found = os.stat(path)
    assert (found.st_atime_ns, found.st_mtime_ns) == (
        1_234_567_890_123_456_789,
        987_654_321_987_654_321,
    )
    subprocess.run(["touch", "-m", "-d", "@5", path], check=True)
    assert (os.stat(path).st_atime_ns, os.stat(path).st_mtime) == (1_234_567_890_123_456_789, 5)
    subprocess.run(["touch", "-a", "-d", "@7", path], check=True)
    assert (os.stat(path).st_atime, os.stat(path).st_mtime) == (7, 5)
    subprocess.run(["touch", path], check=True)
    assert abs(os.stat(path).st_mtime - time.time()) < 10


def test_an_explicit_time_survives_closing_and_judgement(here: Path) -> None:
    path = here / "v.mp4"
    with open(path, "wb") as file:
        file.write(VIDEO)
        file.flush()
        os.utime(file.fileno(), (5, 6))
    before = os.stat(path)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    after = os.stat(path)
    assert (after.st_atime, after.st_mtime) == (5, 6)
    for field in ("st_ino", "st_ctime_ns", "st_size", "st_mode", "st_nlink"):
        assert getattr(before, field) == getattr(after, field)


def test_modes_and_owners(here: Path) -> None:
    path = here / "a"
    before = os.umask(0o027)
    try:
        path.touch()
        (here / "d").mkdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert stat.S_IMODE(os.stat(here / "d").st_mode) == 0o750
    with open(path) as file:
        os.fchmod(file.fileno(), 0o4755)
        os.fchown(file.fileno(), 12, 34)
    found = os.stat(path)
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12, 34, 0o755)
    os.chown(path, -1, 35)
    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12, 35)


def test_permissions_are_checked(mounted: Mounted) -> None:
    at = mounted.mount("allow_other")
    (at / "secret").write_text("x")
    os.chmod(at / "secret", 0o600)
    os.chmod(at, 0o755)
    for folder in at.parents:  # so that somebody else gets there
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            os.chmod(folder, 0o755)
    code = "import os,sys; os.setuid(12345); print(os.access(sys.argv[1], os.R_OK))"
    assert in_another_process(code, at / "secret") == "False"
    os.chmod(at / "secret", 0o644)
    assert in_another_process(code, at / "secret") == "True"


def test_xattrs(here: Path) -> None:
    path = here / "a"
    path.touch()
    os.setxattr(path, "user.k", b"v")
    assert os.getxattr(path, "user.k") == b"v"
    assert "user.k" in os.listxattr(path)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.k", b"w", os.XATTR_CREATE)
    os.removexattr(path, "user.k")
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(path, "user.k")
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(path, "system.posix_acl_access", b"x" * 28)
    os.setxattr(path, "user.large", b"x" * 65536)
    assert os.getxattr(path, "user.large") == b"x" * 65536


def test_statfs(here: Path, shared: Mounted) -> None:
    found, below = os.statvfs(here), os.statvfs(shared.store)
    assert (found.f_blocks, found.f_namemax) == (below.f_blocks, 255)
    assert found.f_bavail > 0


# ------------------------------------------------------------------------------------------ locks


@pytest.mark.parametrize("take", [fcntl.flock, fcntl.lockf])
def test_locks_exclude_other_processes(here: Path, take: Callable[..., None]) -> None:
    path = here / "a"
    path.touch()
    code = f"""
import fcntl, sys
try:
    fcntl.{take.__name__}(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("got it")
except OSError:
    print("locked")
"""
    with open(path, "r+") as file:
        take(file, fcntl.LOCK_EX)
        assert in_another_process(code, path) == "locked"
    assert in_another_process(code, path) == "got it"


# ------------------------------------------------------------------------------------------ views


def test_a_copied_video_can_be_looked_at_at_once(here: Path) -> None:
    for number in range(5):
        subprocess.run(["cp", FOLDER / "portrait.mp4", here / f"{number}.mp4"], check=True)
        info = subprocess.run(["cat", here / f"{number}.mp4@/info.json"], capture_output=True)
        assert info.returncode == 0
        assert b"portrait" in info.stdout or b"frames" in info.stdout


def test_views_are_files(here: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    picture = here / "v.mp4@/frames/000003.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) == os.stat(picture).st_size
    with open(picture, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == data
        file.seek(100)
        assert file.read(50) == data[100:150]
    assert sorted(os.listdir(here / "v.mp4@")) == ["frames", "info.json"]
    with pytest.raises(FileNotFoundError):
        (here / "v.mp4@/no such view").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (here / "v.mp4@/new").touch()


def test_views_are_in_no_listing(here: Path, tmp_path: Path) -> None:
    (here / "v.mp4").write_bytes(VIDEO)
    assert (here / "v.mp4@/info.json").exists()
    assert os.listdir(here) == ["v.mp4"]
    subprocess.run(["cp", "-r", here, tmp_path / "copy"], check=True)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["v.mp4"]
