"""Long names, deep trees, many names and special files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.syscalls import in_another_process

pytestmark = pytest.mark.mount

_LIBC = ctypes.CDLL(None, use_errno=True)
_HERE = -100  # AT_FDCWD
_HANDLE_BYTES = 128


class _FileHandle(ctypes.Structure):
    """struct file_handle, see open_by_handle_at(2)."""

    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("f_handle", ctypes.c_ubyte * _HANDLE_BYTES),
    )


def handle_of(path: Path) -> _FileHandle:
    handle = _FileHandle(handle_bytes=_HANDLE_BYTES)
    mount_id = ctypes.c_int()
    done = _LIBC.name_to_handle_at(
        _HERE, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return handle


def open_by_handle(mount: Path, handle: _FileHandle) -> int:
    folder = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = int(_LIBC.open_by_handle_at(folder, ctypes.byref(handle), os.O_RDONLY))
    finally:
        os.close(folder)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def test_long_paths(here: Path) -> None:
    """Names of 255 bytes, a hundred levels deep, make a path of 25 kB."""
    name = "n" * 255
    depth = 100
    folder = os.open(here, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    with open(os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=folder), "r+b", buffering=0) as file:
        file.write(b"deep")
        os.rename("f", "g", src_dir_fd=folder, dst_dir_fd=folder)
        file.seek(0)
        assert file.read() == b"deep"
        assert os.fstat(file.fileno()).st_size == 4
    os.symlink("g", "l", dir_fd=folder)
    assert os.stat("l", dir_fd=folder).st_size == 4
    os.setxattr(f"/proc/self/fd/{folder}", "user.k", b"v")
    assert sorted(os.listdir(folder)) == ["g", "l"]
    assert os.path.realpath(here) in in_another_process(
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        f"for _ in range({depth - 1}): os.chdir('n' * 255)\n"
        "os.chdir('n' * 255)\n"
        f"for _ in range({depth}): os.chdir('..')\n"
        "print(os.getcwd())",
        here,
    )
    with pytest.raises(OSError, match="too long") as failed:
        os.stat(here / "/".join([name] * 17))
    assert failed.value.errno == errno.ENAMETOOLONG
    os.close(folder)
    # Not by shutil.rmtree, which may not go as deep.
    in_another_process(
        "import subprocess, sys; subprocess.run(['rm', '-r', sys.argv[1]], check=True)", here / name
    )
    assert os.listdir(here) == []


def test_long_symlink_targets(here: Path) -> None:
    target = "t" * 4095
    os.symlink(target, here / "l")
    assert os.readlink(here / "l") == target
    with pytest.raises(OSError, match="too long"):
        os.symlink(target + "t", here / "m")
    os.symlink("l2", here / "l1")
    os.symlink("l1", here / "l2")
    with pytest.raises(OSError, match="Too many levels") as failed:
        os.stat(here / "l1")
    assert failed.value.errno == errno.ELOOP


def test_unnamed_files_refused(here: Path) -> None:
    with pytest.raises(OSError, match="not supported") as failed:
        os.open(here, os.O_TMPFILE | os.O_RDWR)
    assert failed.value.errno == errno.EOPNOTSUPP


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open by handle")
def test_file_handles(shared: Mounted, here: Path) -> None:
    (here / "a").write_bytes(b"a")
    handle = handle_of(here / "a")
    os.rename(here / "a", here / "b")
    with open(open_by_handle(shared.at, handle), "rb") as file:
        assert file.read() == b"a"
    os.unlink(here / "b")
    (here / "a").write_bytes(b"another")
    with pytest.raises(OSError, match="Stale") as failed:
        os.close(open_by_handle(shared.at, handle))
    assert failed.value.errno == errno.ESTALE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open by handle")
def test_file_handles_of_earlier_mount(by_path: None, mounted: Mounted) -> None:
    """libfuse may have reused the number for another file, and NFS would write into that file."""
    at = mounted.mount("noforget")
    names = "abcdef"
    for name in names:
        (at / name).write_text(name)
    handles = {name: handle_of(at / name) for name in names}
    for name in names:
        with open(open_by_handle(at, handles[name])) as file:
            assert file.read() == name
    mounted.unmount()
    mounted.mount("noforget")
    for name in reversed(names):
        os.stat(at / name)
    for handle in handles.values():
        with pytest.raises(OSError, match="Stale"):
            os.close(open_by_handle(at, handle))


def test_sockets_and_fifos(here: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        folder = os.open(here, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{folder}/s")  # a path of at most 107 bytes
        server.listen()
        assert stat.S_ISSOCK(os.stat(here / "s").st_mode)
        client.connect(f"/proc/self/fd/{folder}/s")
        os.close(folder)
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        with server.accept()[0] as connection:
            assert connection.recv(10) == b"hello"
    os.mkfifo(here / "p")
    writer = threading.Thread(target=(here / "p").write_bytes, args=(b"through",))
    writer.start()
    assert (here / "p").read_bytes() == b"through"
    writer.join()
    os.link(here / "p", here / "q")
    assert os.stat(here / "q").st_nlink == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_devices(mounted: Mounted) -> None:
    at = mounted.mount("dev")
    os.mknod(at / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert os.stat(at / "null").st_rdev == os.makedev(1, 3)
    assert (at / "null").write_bytes(b"gone") == 4
    mounted.unmount()
    mounted.mount()
    with pytest.raises(PermissionError):
        (at / "null").read_bytes()


def test_hard_links_share_bytes(here: Path) -> None:
    (here / "a").write_bytes(b"old" * 3000)
    os.link(here / "a", here / "l")
    with open(here / "l", "rb", buffering=0) as seen, open(here / "a", "r+b", buffering=0) as file:
        assert seen.read(3) == b"old"
        file.write(b"new")
        seen.seek(0)
        assert seen.read(3) == b"new"
        file.truncate(2)
        assert os.fstat(seen.fileno()).st_size == 2
        seen.seek(0)
        assert seen.read() == b"ne"


def test_removed_hard_link_shares_bytes(here: Path) -> None:
    fd = os.open(here / "a", os.O_CREAT | os.O_RDWR)
    os.link(here / "a", here / "l")
    os.unlink(here / "a")
    assert (os.fstat(fd).st_size, os.fstat(fd).st_nlink) == (0, 1)
    for data in (b"x" * 5000, b"y" * 5000):
        (here / "l").write_bytes(data)
        assert os.pread(fd, 9000, 0) == data
        assert os.fstat(fd).st_size == len(data)
    os.unlink(here / "l")
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)


def test_open_file_locks(here: Path) -> None:
    """Locks of open file descriptions, not of processes: see F_OFD_SETLK in fcntl(2)."""
    path = here / "a"
    path.write_bytes(b"x" * 100)

    def lock(kind: int, start: int, length: int) -> bytes:
        return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)

    with open(path, "r+b") as one, open(path, "r+b") as other:
        fcntl.fcntl(one, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 0, 10))
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 5, 10))
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 10, 10))
        os.close(os.open(path, os.O_RDONLY))  # a close releases locks of the process
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 0, 1))
    with open(path, "r+b") as again:
        fcntl.fcntl(again, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 0, 100))


def test_copy_range_from_view(here: Path) -> None:
    video = (FOLDER / "portrait.mp4").read_bytes()
    (here / "v.mp4").write_bytes(video)
    frame = Path(f"{here}/v.mp4@/frames/000000.png")
    for source, wanted in ((here / "v.mp4", video), (frame, frame.read_bytes())):
        with open(source, "rb") as file, open(here / "copy", "wb") as copy:
            left = len(wanted)
            while left:
                count = os.copy_file_range(file.fileno(), copy.fileno(), left)
                assert count
                left -= count
        assert (here / "copy").read_bytes() == wanted


def test_listing_during_unlink(here: Path) -> None:
    """A listing in progress neither repeats a name nor omits one that stays."""
    for number in range(600):
        os.mknod(here / f"{number:05}", stat.S_IFIFO | 0o600)
    seen = []
    with os.scandir(here) as entries:
        for entry in entries:
            seen.append(entry.name)
            if int(entry.name) % 3 == 0:
                os.unlink(entry)
    assert len(seen) == len(set(seen))
    assert {name for name in seen if int(name) % 3} == set(os.listdir(here))
