"""Reading and writing bytes through one handle or several."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.fs_driver import SOMEBODY, Driver, failing
from vfsd.api.store import Store
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.classify import Classifier


def test_read_back(it: Driver) -> None:
    it.write("/a", b"hello")
    assert it.read("/a") == b"hello"
    found = it.fs.getattr("/a")
    assert (found.size, stat.S_IFMT(found.mode), found.nlink) == (5, stat.S_IFREG, 1)


def test_write_seen_by_all_handles(it: Driver) -> None:
    writing = it.create("/a")
    with it.opened("/a") as reading:
        it.fs.write(writing, b"one", 0)
        assert it.read_open(reading) == b"one"
        it.fs.write(writing, b"two", 3)
        assert it.read_open(reading) == b"onetwo"
        assert it.fs.getattr("/a").size == 6
    it.close(writing)


def test_overwrite_part(it: Driver) -> None:
    handle = it.create("/a")
    it.fs.write(handle, b"x" * 100_000, 0)
    it.fs.write(handle, b"PATCH", 10)
    it.close(handle)
    assert it.read("/a")[8:17] == b"xxPATCHxx"
    assert it.fs.getattr("/a").size == 100_000


def test_open_truncates(it: Driver) -> None:
    it.write("/a", b"long content")
    it.write("/a", b"new")
    assert it.read("/a") == b"new"


@pytest.mark.parametrize("by_handle", [True, False])
def test_truncate(it: Driver, by_handle: bool) -> None:
    it.write("/a", b"hello")
    with it.opened("/a", os.O_RDWR) as handle:
        for length in (3, 6):
            it.fs.truncate(
                None if by_handle else "/a", length, it.caller, handle if by_handle else None
            )
    assert it.read("/a") == b"hel\0\0\0"
    assert failing(it.truncate, "/a", -1) == "EINVAL"


def test_read_past_end(it: Driver) -> None:
    it.write("/a", b"hello")
    with it.opened("/a") as handle:
        assert it.fs.read(handle, 100, 3) == b"lo"
        assert it.fs.read(handle, 100, 5) == b""
        assert it.fs.read(handle, 100, 5000) == b""


def test_holes(it: Driver) -> None:
    handle = it.create("/a")
    it.fs.write(handle, b"x" * 4096, 1 << 20)
    assert it.fs.seek(handle, 0, os.SEEK_DATA) == 1 << 20
    assert it.fs.seek(handle, 0, os.SEEK_HOLE) == 0
    assert failing(it.fs.seek, handle, 2 << 20, os.SEEK_DATA) == "ENXIO"
    assert failing(it.fs.seek, handle, 0, os.SEEK_END) == "EINVAL"
    assert it.fs.getattr("/a").blocks * 512 < 1 << 20
    it.close(handle)


def test_allocate_and_punch(it: Driver) -> None:
    handle = it.create("/a")
    it.fs.fallocate(handle, 0, 0, 65536)
    assert it.fs.getattr("/a").size == 65536
    it.fs.write(handle, b"x" * 65536, 0)
    keep_size, punch_hole = 1, 2
    it.fs.fallocate(handle, keep_size | punch_hole, 4096, 8192)
    assert it.fs.read(handle, 1, 5000) == b"\0"
    assert it.fs.read(handle, 1, 20_000) == b"x"
    it.close(handle)


def test_copy_range(it: Driver) -> None:
    it.write("/a", b"x" * 100_000)
    with it.opened("/a") as source:
        target = it.create("/b")
        assert it.fs.copy_range(source, 0, target, 0, 100_000) == 100_000
        assert it.fs.copy_range(source, 100_000, target, 0, 10) == 0
        it.close(target)
    assert it.read("/b") == b"x" * 100_000


def test_handle_access_mode(it: Driver) -> None:
    it.write("/a", b"hello")
    with it.opened("/a") as handle:
        assert failing(it.fs.write, handle, b"x", 0) == "EBADF"
        assert failing(it.fs.truncate, None, 0, it.caller, handle) == "EBADF"
    assert failing(it.fs.read, handle, 1, 0) == "EBADF"
    assert failing(it.fs.flush, handle) == "EBADF"
    assert failing(it.fs.release, handle) == "EBADF"


def test_open_regular_files_only(it: Driver) -> None:
    it.mkdir("/d")
    it.fs.symlink("/s", "d", it.caller)
    assert failing(it.open, "/d") == "EISDIR"
    assert failing(it.open, "/s") == "ELOOP"
    assert failing(it.open, "/missing") == "ENOENT"
    assert failing(it.truncate, "/d", 0) == "EISDIR"


def test_exclusive_creation(it: Driver) -> None:
    it.write("/a", b"x")
    assert failing(it.create, "/a", os.O_EXCL) == "EEXIST"
    it.close(it.create("/a"))
    assert it.read("/a") == b"x"


def test_times(it: Driver) -> None:
    it.write("/a", b"x")
    it.fs.utimens("/a", 1_000_000_001, 1_234_567_890_123_456_789)
    found = it.fs.getattr("/a")
    assert (found.atime_ns, found.mtime_ns) == (1_000_000_001, 1_234_567_890_123_456_789)
    it.fs.utimens("/a", None, 5)
    it.fs.utimens("/a", 7, None)
    it.fs.settle()
    found = it.fs.getattr("/a")
    assert (found.atime_ns, found.mtime_ns) == (7, 5)
    assert found.ctime_ns > 1_600_000_000_000_000_000
    with it.opened("/a", os.O_RDWR) as handle:
        assert it.fs.getattr("/a").mtime_ns == 5
        it.fs.write(handle, b"y", 0)
    assert it.fs.getattr("/a").mtime_ns > 1_600_000_000_000_000_000


@pytest.mark.parametrize("year", [1600, 2300])
def test_times_clamped(it: Driver, year: int) -> None:
    it.write("/a", b"x")
    seconds = (year - 1970) * 31_556_952
    it.fs.utimens("/a", seconds * 10**9, seconds * 10**9)
    found = it.fs.getattr("/a")
    for time_ns in (found.atime_ns, found.mtime_ns):  # the disk below may have narrower limits
        assert abs(time_ns) < 2**63
        assert (time_ns > 2**60) is (year > 1970)
        assert (time_ns < -(2**60)) is (year < 1970)


def test_truncate_seen_by_readers(it: Driver) -> None:
    it.write("/a", b"abc")
    with it.opened("/a", os.O_RDONLY | os.O_TRUNC) as handle:
        assert it.fs.getattr(None, handle).size == 0
        assert failing(it.fs.write, handle, b"x", 0) == "EBADF"


def test_judgement_keeps_attributes(it: Driver, video: bytes) -> None:
    for name, data in (("/v.mp4", video), ("/t", b"text"), ("/e", b"")):
        handle = it.create(name)
        it.fs.write(handle, data, 0)
        before = it.fs.getattr(name)
        it.close(handle)
        it.fs.settle()
        after = it.fs.getattr(name)
        assert before._replace(blocks=0) == after._replace(blocks=0)


def test_mode_and_owner(it: Driver) -> None:
    it.write("/a", b"x")
    it.fs.chmod("/a", 0o4750)
    it.fs.chown("/a", 1, None)
    found = it.fs.getattr("/a")
    assert (found.mode & 0o7777, found.uid, found.gid) == (0o750, 1, 0)
    it.fs.chown("/a", None, 2)
    with it.opened("/a") as handle:
        it.fs.chmod(None, 0o600, handle)
    found = it.fs.getattr("/a")
    assert (found.mode & 0o7777, found.uid, found.gid) == (0o600, 1, 2)


def test_write_clears_setid(it: Driver, fs: Filesystem) -> None:
    it.write("/a", b"x")
    it.fs.chmod("/a", 0o6755)
    with it.opened("/a", os.O_RDWR) as handle:
        it.fs.write(handle, b"y", 0)
    assert it.fs.getattr("/a").mode & 0o7777 == 0o6755
    with Driver(fs, SOMEBODY).opened("/a", os.O_RDWR) as handle:
        it.fs.write(handle, b"z", 0)
    assert it.fs.getattr("/a").mode & 0o7777 == 0o755


def test_mknod(it: Driver) -> None:
    it.fs.mknod("/fifo", stat.S_IFIFO | 0o600, 0, it.caller)
    it.fs.mknod("/null", stat.S_IFCHR | 0o666, os.makedev(1, 3), it.caller)
    it.fs.mknod("/file", stat.S_IFREG | 0o600, 0, it.caller)
    assert stat.S_ISFIFO(it.fs.getattr("/fifo").mode)
    assert it.fs.getattr("/null").rdev == os.makedev(1, 3)
    assert it.read("/file") == b""
    assert failing(it.fs.mknod, "/fifo", stat.S_IFIFO, 0, it.caller) == "EEXIST"
    assert failing(it.fs.mknod, "/d", stat.S_IFDIR, 0, it.caller) == "EINVAL"


def test_fsync(it: Driver) -> None:
    handle = it.create("/a")
    it.fs.write(handle, b"x", 0)
    it.fs.fsync(handle)
    it.fs.fsync(handle, data_only=True)
    it.close(handle)
    it.fs.fsync_names()


def test_statfs(it: Driver, store: Store) -> None:
    assert it.fs.statfs().f_blocks == os.statvfs(store.path).f_blocks


def test_statfs_deleted_files(it: Driver, store: Store, video: bytes) -> None:
    def blocks() -> int:
        folders = (store.parts.directory.spool, store.parts.directory.objects)
        files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return sum(path.stat().st_blocks for path in files)

    it.write("/plain", bytes(1 << 20))
    it.write("/v.mp4", video)
    it.fs.settle()
    assert blocks() > 1 << 11
    it.fs.unlink("/plain")
    it.fs.unlink("/v.mp4")
    it.fs.statfs()
    assert blocks() == 0


def test_versions(it: Driver, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()

    def version() -> object:
        with it.opened("/v.mp4") as handle:
            return it.fs.content_version(handle)

    first = version()
    assert first is not None
    assert version() == first
    with it.opened("/v.mp4", os.O_RDWR):
        pass
    assert version() == first
    with it.opened("/v.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"x", 0)
    assert version() != first


def test_read_only_store(store: Store, it: Driver) -> None:
    it.write("/a", b"x")
    it.mkdir("/d")
    it.fs.settle()
    with Store.open(store.path, read_only=True) as read_only:
        fs = Filesystem(read_only.parts)
        there = Driver(fs)
        assert there.read("/a") == b"x"
        caller = there.caller
        attempts = [
            failing(there.write, "/b", b""),
            failing(there.open, "/a", os.O_RDWR),
            failing(there.open, "/a", os.O_WRONLY | os.O_TRUNC),
            failing(there.truncate, "/a", 0),
            failing(there.mkdir, "/e"),
            failing(fs.rmdir, "/d"),
            failing(fs.unlink, "/a"),
            failing(fs.rename, "/a", "/b"),
            failing(fs.link, "/a", "/b"),
            failing(fs.symlink, "/s", "a", caller),
            failing(fs.chmod, "/a", 0o600),
            failing(fs.chown, "/a", 1, 1),
            failing(fs.utimens, "/a", 1, 1),
            failing(fs.setxattr, "/a", "user.x", b"1"),
            failing(fs.removexattr, "/a", "user.x"),
        ]
        assert attempts == ["EROFS"] * len(attempts)
        fs.close()


def test_read_only_store_judges_nothing(
    store: Store, it: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "submit", lambda *_: None)
        it.write("/a", b"x")
    with Store.open(store.path, read_only=True) as read_only:
        fs = Filesystem(read_only.parts)
        assert fs.getxattr("/a", "user.vfsd.state") == b"spooled"
        fs.close()
    assert caplog.text == ""
