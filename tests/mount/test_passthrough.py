"""With ``-o passthrough`` the kernel reads videos itself, without changes for programs."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support import syscalls as helpers
from vfsd.api.store import Store
from vfsd.cli.stats import mount_record
from vfsd.errors import MountError
from vfsd.mount.fuse import libfuse
from vfsd.mount.fuse.fuse_session import kernel_version
from vfsd.mount.fuse.passthrough import require_passthrough

pytestmark = pytest.mark.mount

CLIP = FOLDER / "portrait.mp4"
OTHER = FOLDER / "traffic.mp4"


@pytest.fixture
def place(mounted: Mounted, passthrough: str) -> Path:
    return mounted.mount(passthrough)


def put(path: Path, clip: Path = CLIP) -> Path:
    """Copy a clip into the mount, and wait until it is a video."""
    shutil.copyfile(clip, path)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    return path


def sha256_without_the_daemon(pid: int, fd: int) -> str:
    """The hash of an open file, read by another process while the daemon is stopped."""
    command = [sys.executable, "-c", _SHA256, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            # The child cannot exit without the daemon, which handles each closed descriptor.
            is_done = select.select([child.stdout], [], [], 20)[0]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert is_done, "the read waits for the daemon"
        return child.stdout.read().strip()


_SHA256 = """
import hashlib, os, sys
print(hashlib.sha256(os.pread(int(sys.argv[1]), 1 << 24, 0)).hexdigest(), flush=True)
"""


def test_read_without_daemon(mounted: Mounted, place: Path, passthrough: str) -> None:
    put(place / "a.mp4")
    mounted.unmount()  # drops the pages that the kernel cached on writes
    fd = os.open(mounted.mount(passthrough) / "a.mp4", os.O_RDONLY)
    try:
        read = sha256_without_the_daemon(mounted.pid, fd)
        assert read == hashlib.sha256(CLIP.read_bytes()).hexdigest()
        standing = mounted.standing
        assert standing.passthrough == 1
        assert mount_record(standing)["passthrough"] == 1
        assert re.search("serving .* options .*passthrough", mounted.log.read_text())
    finally:
        os.close(fd)


def test_read_cached_view_without_daemon(mounted: Mounted, place: Path) -> None:
    put(place / "a.mp4")
    view = place / "a.mp4@" / "size=96x160,codec=h264.mp4"
    first = view.read_bytes()
    fd = opened_by_the_kernel(place, view)
    try:
        assert os.fstat(fd).st_size == len(first)
        read = sha256_without_the_daemon(mounted.pid, fd)
        assert read == hashlib.sha256(first).hexdigest()
        assert view.read_bytes() == first
        with open(view, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == first
    finally:
        os.close(fd)


def copy_over(video: Path) -> None:
    shutil.copyfile(OTHER, video)
    assert os.getxattr(video, "user.vfsd.state") == b"video"


def rename_over(video: Path) -> None:
    put(video.with_name("other.mp4"), OTHER).rename(video)


def exchange(video: Path) -> None:
    helpers.rename(put(video.with_name("other.mp4"), OTHER), video, helpers.EXCHANGE)


@pytest.mark.parametrize("change", [copy_over, rename_over, exchange])
def test_changed_view_waits_for_readers(
    by_path: None, place: Path, change: Callable[[Path], None]
) -> None:
    path = put(place / "a.mp4")
    view = place / "a.mp4@" / "size=96x160,codec=h264.mp4"
    first = view.read_bytes()
    fd = opened_by_the_kernel(place, view)
    change(path)
    with pytest.raises(OSError, match=os.strerror(errno.ETXTBSY)):
        view.read_bytes()
    assert os.pread(fd, len(first), 0) == first
    os.close(fd)
    assert view.read_bytes() != first


def test_replaced_video_waits_for_readers(by_path: None, mounted: Mounted, place: Path) -> None:
    path = put(place / "a.mp4")
    number = path.stat().st_ino
    with path.open("rb") as old:
        with Store.open(mounted.store) as store:
            store.ingest(OTHER, path.name, replace=True)
        mounted.wait_for(lambda: path.stat().st_ino != number, "it is the old one")
        with pytest.raises(OSError, match=os.strerror(errno.ETXTBSY)):
            path.open("rb")
        assert old.read() == CLIP.read_bytes()
    assert path.read_bytes() == OTHER.read_bytes()


def opened_by_the_kernel(place: Path, view: Path) -> int:
    """An open view that was read to its end, once the kernel reads it without the daemon."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        fd = os.open(view, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # drop the pages that the daemon sent
        before = reads(place)
        os.pread(fd, 1, 0)
        if reads(place) == before:
            return fd
        os.close(fd)
    raise AssertionError("it is asked for each time")


def reads(place: Path) -> int:
    """The number of reads that the daemon answered."""
    stats = json.loads(os.getxattr(place, "user.vfsd.stats"))
    return int(stats["operations"].get("read", {"count": 0})["count"])


def test_mmap_video(place: Path) -> None:
    path = put(place / "a.mp4")
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert mapped[:] == CLIP.read_bytes()


def test_write_during_read_refused(place: Path) -> None:
    path = put(place / "a.mp4")
    reading = os.open(path, os.O_RDONLY)
    changes = (
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path, os.O_RDWR),
        lambda: os.open(path, os.O_WRONLY | os.O_TRUNC),
        lambda: os.truncate(path, 10),
    )
    for change in changes:
        with pytest.raises(OSError, match=os.strerror(errno.ETXTBSY)):
            change()
    assert os.pread(reading, 1 << 24, 0) == CLIP.read_bytes()
    os.close(reading)
    with open(path, "r+b", buffering=0) as writing:
        writing.write(b"other")
        assert path.read_bytes()[:8] == b"other" + CLIP.read_bytes()[5:8]
    assert path.read_bytes() == b"other" + CLIP.read_bytes()[5:]


def test_writer_disables_passthrough(place: Path) -> None:
    path = put(place / "a.mp4")
    writing = os.open(path, os.O_RDWR)
    reading = os.open(path, os.O_RDONLY)
    os.pwrite(writing, b"changed", 100)
    assert os.pread(reading, 7, 100) == b"changed"
    os.close(writing)
    more = os.open(path, os.O_RDONLY)
    assert os.pread(more, 7, 100) == b"changed"
    os.close(reading)
    os.close(more)


def test_rename_during_read(place: Path) -> None:
    path, other = put(place / "a.mp4"), put(place / "b.mp4", OTHER)
    with open(path, "rb") as one, open(other, "rb") as two:
        os.rename(path, place / "c.mp4")
        os.rename(other, path)
        with open(path, "rb") as again:
            assert again.read() == OTHER.read_bytes()
        os.unlink(place / "c.mp4")
        os.unlink(path)
        put(path)
        assert path.read_bytes() == CLIP.read_bytes()
        assert one.read() == CLIP.read_bytes()
        assert two.read() == OTHER.read_bytes()
    assert os.listdir(place) == ["a.mp4"]


def test_hundred_readers(place: Path) -> None:
    path = put(place / "a.mp4")
    os.link(path, place / "b.mp4")
    files = [open(name, "rb") for name in (path, place / "b.mp4") for _ in range(50)]  # noqa: SIM115
    assert {file.read() for file in files} == {CLIP.read_bytes()}
    for file in files:
        file.close()
    with open(path, "r+b") as writing:  # no reader is left
        writing.write(b"x")


def test_views_and_plain_files(place: Path) -> None:
    path = put(place / "a.mp4")
    (place / "notes.txt").write_text("hello")
    assert (place / "notes.txt").read_text() == "hello"
    assert (place / "a.mp4@" / "info.json").read_bytes().startswith(b"{")
    assert path.read_bytes() == CLIP.read_bytes()


def test_unsupported_passthrough_refused(passthrough: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = libfuse.load()
    with pytest.raises(MountError, match=r"Linux 6\.9"):
        require_passthrough(chosen, (6, 8))
    with pytest.raises(MountError, match="libfuse"):
        require_passthrough(replace(chosen, minor=13), kernel_version())
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MountError, match="root"):
        require_passthrough(chosen, kernel_version())


def test_read_replaced_video(place: Path) -> None:
    path, other = put(place / "a.mp4"), put(place / "b.mp4", OTHER)
    assert [path.read_bytes() for _ in range(3)] == [CLIP.read_bytes()] * 3
    os.rename(other, path)
    assert [path.read_bytes() for _ in range(3)] == [OTHER.read_bytes()] * 3


def test_deleted_video_frees_space(tmp_path: Path, passthrough: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    mounted = Mounted(disk)
    try:
        path = put(mounted.mount(passthrough) / "a.mp4")
        mebibyte = bytes(1 << 20)
        with open(path, "ab") as file:
            file.write(struct.pack(">I4s", 16 << 20, b"free") + mebibyte[8:] + mebibyte * 15)
        assert os.getxattr(path, "user.vfsd.state") == b"video"
        for _ in range(3):
            assert path.read_bytes().endswith(mebibyte * 15)

        def free() -> int:
            return os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize

        before = free()
        os.unlink(path)
        mounted.wait_for(lambda: free() - before > 12 << 20, "the kernel holds the file")
    finally:
        mounted.unmount()
        subprocess.run(["umount", "-l", disk], check=True)  # the daemon is about to end
