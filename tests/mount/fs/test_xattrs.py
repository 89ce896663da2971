"""Extended attributes: those set by users, and computed ones."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.fs_driver import Driver, failing
from vfsd.api.store import Store

OF_PLAIN = ("state", "reason")
OF_VIDEOS = ("codec", "frames", "width", "height", "duration", "rate", "digest", "layout")


@pytest.mark.parametrize(
    "name", ["user.k", "trusted.k", "security.k", "user." + os.fsdecode(b"\xff")]
)
def test_set_get_list(it: Driver, name: str) -> None:
    it.mkdir("/d")
    for path in ("/d", "/"):
        it.fs.setxattr(path, name, b"v\0w")
        it.fs.setxattr(path, "user.other", b"")
        assert it.fs.getxattr(path, name) == b"v\0w"
        assert sorted(it.fs.listxattr(path)) == sorted([name, "user.other"])
        it.fs.setxattr(path, name, b"again")
        assert it.fs.getxattr(path, name) == b"again"
        it.fs.removexattr(path, name)
        assert failing(it.fs.getxattr, path, name) == "ENODATA"
        assert it.fs.listxattr(path) == ["user.other"]


def test_create_and_replace(it: Driver) -> None:
    it.write("/a", b"")
    assert failing(it.fs.setxattr, "/a", "user.k", b"", os.XATTR_REPLACE) == "ENODATA"
    it.fs.setxattr("/a", "user.k", b"1", os.XATTR_CREATE)
    assert failing(it.fs.setxattr, "/a", "user.k", b"2", os.XATTR_CREATE) == "EEXIST"
    it.fs.setxattr("/a", "user.k", b"2", os.XATTR_REPLACE)
    assert it.fs.getxattr("/a", "user.k") == b"2"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("system.posix_acl_access", b"x", "ENOTSUP"),
        ("nospace", b"x", "ENOTSUP"),
        ("user.", b"x", "ENOTSUP"),
        ("user." + "n" * 251, b"x", "ERANGE"),
        ("user.k", b"x" * 65537, "E2BIG"),
        ("user.vfsd.mine", b"video", "EPERM"),
    ],
)
def test_set_errors(it: Driver, name: str, value: bytes, expected: str) -> None:
    it.write("/a", b"")
    assert failing(it.fs.setxattr, "/a", name, value) == expected


def test_size_limits(it: Driver) -> None:
    it.write("/a", b"")
    name = "user." + "n" * 250
    it.fs.setxattr("/a", name, b"x" * 65536)
    assert len(it.fs.getxattr("/a", name)) == 65536
    for number in range(254):
        it.fs.setxattr("/a", f"user.{number:0250}", b"")
    assert failing(it.fs.setxattr, "/a", "user.last" + "x" * 240, b"") == "ENOSPC"


def test_cost_of_many_attributes(it: Driver, store: Store) -> None:
    def seconds() -> float:
        began = time.thread_time()
        for number in range(20):
            it.fs.setxattr("/a", f"user.more{number}", b"v")
            it.fs.removexattr("/a", f"user.more{number}")
        return time.thread_time() - began

    ino = it.write("/a", b"")
    it.fs.settle()
    few = min(seconds() for _ in range(5))
    with store.catalog.writing() as change:
        for number in range(4096):
            change.tree.set_xattr(ino, f"user.{number:04}".encode(), b"v")
    end = time.monotonic() + 20  # changes of other processes are polled
    while len(it.fs.listxattr("/a")) != 4096 + len(OF_PLAIN):
        assert time.monotonic() < end
    assert min(seconds() for _ in range(5)) < 3 * few
    assert it.fs.getxattr("/a", "user.0007") == b"v"
    it.fs.removexattr("/a", "user.0007")
    assert failing(it.fs.getxattr, "/a", "user.0007") == "ENODATA"
    assert len(it.fs.listxattr("/a")) == 4095 + len(OF_PLAIN)


def test_get_and_remove_errors(it: Driver) -> None:
    it.write("/a", b"")
    assert failing(it.fs.getxattr, "/a", "user.missing") == "ENODATA"
    assert failing(it.fs.getxattr, "/a", "system.posix_acl_access") == "ENOTSUP"
    assert failing(it.fs.removexattr, "/a", "user.missing") == "ENODATA"
    assert failing(it.fs.removexattr, "/a", "user.vfsd.mine") == "EPERM"
    assert failing(it.fs.getxattr, "/missing", "user.k") == "ENOENT"


def test_computed_attributes_in_copies(it: Driver, video: bytes) -> None:
    """rsync -X sets all attributes of the source and removes all others."""
    it.write("/v.mp4", video)
    it.fs.settle()
    names = it.fs.listxattr("/v.mp4")
    before = {name: it.fs.getxattr("/v.mp4", name) for name in names}
    changed = it.fs.getattr("/v.mp4").ctime_ns
    for name in names:
        it.fs.removexattr("/v.mp4", name)
        it.fs.setxattr("/v.mp4", name, b"of another file")
    assert {name: it.fs.getxattr("/v.mp4", name) for name in it.fs.listxattr("/v.mp4")} == before
    assert it.fs.getattr("/v.mp4").ctime_ns == changed
    it.mkdir("/d")
    assert failing(it.fs.setxattr, "/d", "user.vfsd.state", b"video") == "EPERM"


def test_attributes_follow_file(it: Driver, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.setxattr("/v.mp4", "user.k", b"v")
    it.fs.settle()
    it.fs.rename("/v.mp4", "/w.mp4")
    with it.opened("/w.mp4", os.O_RDWR) as handle:
        it.fs.write(handle, b"x", 0)
    assert it.fs.getxattr("/w.mp4", "user.k") == b"v"
    ctime = it.fs.getattr("/w.mp4").ctime_ns
    it.fs.setxattr("/w.mp4", "user.k", b"w")
    assert it.fs.getattr("/w.mp4").ctime_ns > ctime


def test_video_attributes(it: Driver, store: Store, video: bytes) -> None:
    it.write("/v.mp4", video)
    it.fs.settle()
    names = it.fs.listxattr("/v.mp4")
    assert names == ["user.vfsd.state", *(f"user.vfsd.{key}" for key in OF_VIDEOS)]
    told = {name.rpartition(".")[2]: it.fs.getxattr("/v.mp4", name).decode() for name in names}
    info = store.catalog.video("v.mp4")
    assert told["state"] == "video"
    assert told["codec"] == info.original.media.codec
    assert int(told["frames"]) == info.original.frames
    assert int(told["width"]) == info.original.media.display_width
    assert int(told["height"]) == info.original.media.display_height
    assert float(told["duration"]) == pytest.approx(float(info.original.duration), abs=1e-6)
    assert told["rate"] == str(info.original.media.average_rate)
    assert told["digest"] == info.digest
    assert told["layout"] == "untiled"
    store["v.mp4"].tiles.retile("uniform:2x2")
    assert it.fs.getxattr("/v.mp4", "user.vfsd.layout").startswith(b"uniform 2x2 0-")
    assert failing(it.fs.getxattr, "/v.mp4", "user.vfsd.reason") == "ENODATA"
    assert failing(it.fs.getxattr, "/v.mp4", "user.vfsd.unheard") == "ENODATA"


def test_reason_of_plain_file(it: Driver) -> None:
    it.write("/t", b"text")
    it.fs.settle()
    assert it.fs.listxattr("/t") == ["user.vfsd.state", "user.vfsd.reason"]
    assert it.fs.getxattr("/t", "user.vfsd.state") == b"plain"
    assert it.fs.getxattr("/t", "user.vfsd.reason")
    assert failing(it.fs.getxattr, "/t", "user.vfsd.codec") == "ENODATA"


def test_no_computed_attributes_on_directories(it: Driver) -> None:
    it.mkdir("/d")
    assert it.fs.listxattr("/d") == []
    assert failing(it.fs.getxattr, "/d", "user.vfsd.state") == "ENODATA"
    assert failing(it.fs.getxattr, "/d", "user.vfsd.tuner") == "ENODATA"


def test_root_attributes(it: Driver) -> None:
    assert it.fs.getxattr("/", "user.vfsd.tuner") == b"off"
    assert it.fs.listxattr("/") == []  # so that copies do not include it
    assert failing(it.fs.setxattr, "/", "user.vfsd.tuner", b"x", 0) == "EPERM"


def test_list_limit(it: Driver, video: bytes) -> None:
    """User attributes leave room for computed ones in a listing; a video has the most of these."""
    it.write("/v.mp4", video)
    it.fs.settle()
    count = 0
    while (told := failing(it.fs.setxattr, "/v.mp4", f"user.{count:0200}", b"")) == "":
        count += 1
    assert told == "ENOSPC"
    names = it.fs.listxattr("/v.mp4")
    assert sum(len(name) + 1 for name in names) <= 65536
    assert sum(name.startswith("user.vfsd.") for name in names) >= 8
    assert len([name for name in names if not name.startswith("user.vfsd.")]) == count > 300
