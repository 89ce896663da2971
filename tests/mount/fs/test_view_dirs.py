"""The folder of views next to every video, which no listing shows."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.fs_driver import Driver, failing
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.core.view_request import CancelCheck, ViewStat
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError
from vfsd.mount.fs import Filesystem, WritableView

VIEWS = {"info.json": b"{}", "frames/000000.png": b"picture", "t=0-1.mp4": b"clip"}


CLIP = b"clip".hex() + "/0"
"""The version of the source."""


class File:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.version = data.hex()
        self.whole = None
        self.is_work = True
        self.closed = False

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        part = self.data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self.closed = True


class Source:
    """A source with the same views for every video."""

    def __init__(self) -> None:
        self.opened: list[File] = []

    def stat(self, ino: int, path: str) -> ViewStat:
        if path in ("", "frames"):
            return ViewStat(True, 0, mtime_ns=5)
        if path == "t=100-.mp4":
            raise OutOfRangeError("the video ends before")
        if path not in VIEWS:
            raise NotFoundError(f"there is no view {path!r}")
        return ViewStat(False, len(VIEWS[path]), mtime_ns=5)

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        return [("000000.png", False)] if path else [("frames", True), ("info.json", False)]

    def open(self, ino: int, path: str) -> File:
        if self.stat(ino, path).is_dir:
            raise NotFoundError(f"{path!r} is a folder")
        self.opened.append(File(VIEWS[path]))
        return self.opened[-1]

    def open_upload(self, ino: int, path: str) -> WritableView:
        raise ReadOnlyError(f"{path!r} cannot be written")


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def it(store: Store, source: Source, video: bytes) -> Iterator[Driver]:
    """A video and a text in a directory, with views."""
    filesystem = Filesystem(store.parts, views=source)
    it = Driver(filesystem)
    it.mkdir("/d")
    it.write("/d/v.mp4", video)
    it.write("/d/t.txt", b"text")
    yield it
    filesystem.close()


def test_read_views(it: Driver, source: Source) -> None:
    for name, data in VIEWS.items():
        path = f"/d/v.mp4@/{name}"
        found = it.fs.getattr(path)
        assert (found.size, found.mode, found.mtime_ns) == (len(data), stat.S_IFREG | 0o444, 5)
        assert it.read(path) == data
    assert all(file.closed for file in source.opened)


def test_listings(it: Driver) -> None:
    assert it.names("/d") == ["t.txt", "v.mp4"]
    assert it.names("/d/v.mp4@") == ["frames", "info.json"]
    assert it.names("/d/v.mp4@/frames") == ["000000.png"]
    assert it.fs.getattr("/d/v.mp4@").mode == stat.S_IFDIR | 0o555
    entry = it.fs.listdir("/d/v.mp4@")[1]
    assert entry.ino == it.fs.getattr("/d/v.mp4@/info.json").ino
    assert failing(it.fs.listdir, "/d/v.mp4@/info.json") == "ENOTDIR"


def test_inode_numbers(it: Driver) -> None:
    one, other = it.fs.getattr("/d/v.mp4@").ino, it.fs.getattr("/d/v.mp4@/info.json").ino
    assert one != other
    assert min(one, other) >= 1 << 63
    it.fs.rename("/d", "/e")
    assert it.fs.getattr("/e/v.mp4@").ino == one


def test_owner(it: Driver) -> None:
    it.fs.chown("/d/v.mp4", 12, 34)
    found = it.fs.getattr("/d/v.mp4@/info.json")
    assert (found.uid, found.gid) == (12, 34)


def test_permissions(it: Driver) -> None:
    it.fs.chmod("/d/v.mp4", 0o640)
    assert it.fs.getattr("/d/v.mp4@/info.json").mode == stat.S_IFREG | 0o440
    assert it.fs.getattr("/d/v.mp4@/frames").mode == stat.S_IFDIR | 0o550
    it.fs.chmod("/d/v.mp4", 0o777)
    assert it.fs.getattr("/d/v.mp4@/frames").mode == stat.S_IFDIR | 0o555


def test_no_folder_for_plain_files(it: Driver) -> None:
    for path in ("/d/t.txt@", "/d@", "/missing@", "/@", "/d/v.mp4@x", "/d/t.txt@/info.json"):
        assert failing(it.fs.getattr, path) == "ENOENT"


def test_reserved_names(it: Driver) -> None:
    it.mkdir("/other")
    assert failing(it.fs.rename, "/other", "/d/v.mp4@") == "ENOTEMPTY"
    it.fs.rename("/other", "/d/t.txt@")  # a text has no such folder
    assert it.fs.getattr("/d/v.mp4@/frames").mode & stat.S_IFDIR


def test_errors(it: Driver) -> None:
    assert failing(it.fs.getattr, "/d/v.mp4@/nonsense") == "ENOENT"
    assert failing(it.fs.getattr, "/d/v.mp4@/" + "n" * 256) == "ENAMETOOLONG"
    assert failing(it.fs.getattr, "/d/v.mp4@/t=100-.mp4") == "EINVAL"
    assert failing(it.open, "/d/v.mp4@/t=100-.mp4") == "EINVAL"
    assert failing(it.open, "/d/v.mp4@/frames") == "EISDIR"


def test_views_are_read_only(it: Driver) -> None:
    inside, folder = "/d/v.mp4@/info.json", "/d/v.mp4@"
    caller = it.caller
    attempts = [
        failing(it.write, "/d/v.mp4@/new", b""),
        failing(it.open, inside, os.O_RDWR),
        failing(it.truncate, inside, 0),
        failing(it.mkdir, "/d/v.mp4@/new"),
        failing(it.fs.unlink, inside),
        failing(it.fs.rmdir, folder),
        failing(it.fs.rename, inside, "/x"),
        failing(it.fs.rename, "/d/t.txt", "/d/v.mp4@/x"),
        failing(it.fs.link, inside, "/x"),
        failing(it.fs.symlink, "/d/v.mp4@/s", "x", caller),
        failing(it.fs.chmod, inside, 0o777),
        failing(it.fs.chown, folder, 1, 1),
        failing(it.fs.utimens, inside, 1, 1),
        failing(it.fs.setxattr, inside, "user.k", b""),
    ]
    assert attempts == ["EROFS"] * len(attempts)
    assert it.fs.listxattr(inside) == []
    assert failing(it.fs.getxattr, inside, "security.capability") == "ENODATA"
    assert failing(it.fs.readlink, inside) == "EINVAL"


def test_real_file_takes_precedence(it: Driver) -> None:
    it.fs.rename("/d/t.txt", "/d/v.mp4@")
    assert it.read("/d/v.mp4@") == b"text"
    assert failing(it.fs.getattr, "/d/v.mp4@/info.json") == "ENOTDIR"
    it.fs.unlink("/d/v.mp4@")
    assert it.read("/d/v.mp4@/info.json") == b"{}"


def test_open_view(it: Driver) -> None:
    with it.opened("/d/v.mp4@/frames/000000.png") as handle:
        assert it.fs.read(handle, 3, 2) == b"ctu"
        assert it.fs.getattr(None, handle).size == 7
        assert failing(it.fs.write, handle, b"x", 0) == "EBADF"
        assert failing(it.fs.chmod, None, 0o777, handle) == "EROFS"
        assert it.fs.seek(handle, 3, os.SEEK_DATA) == 3
        assert it.fs.seek(handle, 3, os.SEEK_HOLE) == 7
        assert failing(it.fs.seek, handle, 7, os.SEEK_DATA) == "ENXIO"
        it.fs.fsync(handle)
        assert it.fs.content_version(handle) == b"picture".hex() + "/0"
        target = it.create("/copy")
        assert failing(it.fs.copy_range, handle, 0, target, 0, 7) == "ENOTSUP"
        it.close(target)


def test_open_view_keeps_video(store: Store, it: Driver) -> None:
    it.fs.settle()
    with it.opened("/d/v.mp4@/info.json") as handle:
        assert not [path for path in open_files() if path.startswith(str(store.path / "objects"))]
        it.fs.unlink("/d/v.mp4")
        it.fs.delete_pending()
        assert len(list(store.parts.objects.all_keys())) == 1
        assert it.fs.read(handle, 2, 0) == b"{}"
    it.fs.delete_pending()
    assert list(store.parts.objects.all_keys()) == []


def open_files() -> list[str]:
    """Descriptors of this process that stay open during the check."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_versions(it: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/d/v.mp4@/t=0-1.mp4"
    with it.opened(path) as old, it.opened(path) as same:
        assert it.fs.identity(old) == it.fs.identity(same) == CLIP
        monkeypatch.setitem(VIEWS, "t=0-1.mp4", b"anew")
        with it.opened(path) as new:
            assert it.fs.identity(new) == it.fs.content_version(new) == b"anew".hex() + "/0"
            assert it.fs.identity(old) == it.fs.content_version(old) == CLIP


def test_no_views_without_source(store: Store, it: Driver) -> None:
    it.fs.settle()
    plain = Filesystem(store.parts)
    assert failing(plain.getattr, "/d/v.mp4@") == "ENOENT"
    plain.close()


def test_path_cache(it: Driver) -> None:
    path = "/d/v.mp4@/info.json"
    assert it.read(path) == it.read(path) == b"{}"
    it.fs.rename("/d/v.mp4", "/d/w.mp4")
    assert failing(it.fs.getattr, path) == "ENOENT"
    assert it.read("/d/w.mp4@/info.json") == b"{}"
    it.fs.rename("/d/w.mp4", "/d/v.mp4")
    it.fs.mkdir("/d/v.mp4@", 0o755, it.caller)
    assert failing(it.fs.getattr, path) == "ENOENT"
    it.fs.rmdir("/d/v.mp4@")
    it.fs.chown("/d/v.mp4", 7, 8)
    assert it.fs.getattr(path).uid == 7


def test_view_of_removed_video(store: Store, it: Driver) -> None:
    path = "/d/v.mp4@/info.json"
    it.fs.settle()
    assert it.read(path) == b"{}"
    with Store.open(store.parts.directory.root) as other:
        other.remove("d/v.mp4")
    until = time.monotonic() + 5
    while failing(it.fs.getattr, path) != "ENOENT":
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("/l.mp4", "d/v.mp4"),
        ("/d/l.mp4", "v.mp4"),
        ("/d/l.mp4", "./../d//v.mp4"),
        ("/d/l.mp4", "../e/v.mp4"),
        ("/l.mp4", "k.mp4"),
    ],
)
def test_symlinks(it: Driver, link: str, target: str) -> None:
    """As in git-annex, where files are links into another directory."""
    it.fs.symlink("/e", "d", it.caller)
    it.fs.symlink("/k.mp4", "e/v.mp4", it.caller)
    it.fs.symlink(link, target, it.caller)
    assert it.names(f"{link}@") == ["frames", "info.json"]
    assert it.read(f"{link}@/info.json") == VIEWS["info.json"]
    real = it.fs.getattr("/d/v.mp4@/info.json")
    assert it.fs.getattr(f"{link}@/info.json").ino == real.ino
    it.fs.unlink("/d/v.mp4")
    assert failing(it.fs.getattr, f"{link}@") == "ENOENT"


@pytest.mark.parametrize(
    "target",
    one_in(3, ["/d/v.mp4", "../d/v.mp4", "d/none.mp4", "l.mp4", "d/t.txt", "d", "d/../../d/v.mp4"]),
)
def test_links_without_folder(it: Driver, target: str) -> None:
    """Absolute, out of the mount, dangling, circular, or to a file that is not a video."""
    it.fs.symlink("/l.mp4", target, it.caller)
    assert failing(it.fs.getattr, "/l.mp4@") == "ENOENT"


def test_links_through_closed_directories(it: Driver) -> None:
    """The kernel checks the directories of the link, but not those of its target."""
    it.mkdir("/p")
    it.fs.symlink("/p/l.mp4", "../d/v.mp4", it.caller)
    it.fs.symlink("/d/l.mp4", "v.mp4", it.caller)
    it.fs.chmod("/d", 0o700)
    assert failing(it.fs.getattr, "/p/l.mp4@") == "ENOENT"
    assert it.names("/d/l.mp4@") == ["frames", "info.json"]
