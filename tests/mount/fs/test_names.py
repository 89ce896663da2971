"""Directories, and creating, removing and renaming names."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.fs_driver import SOMEBODY, Driver, failing
from vfsd.mount.fs import RENAME_EXCHANGE, RENAME_NOREPLACE, Filesystem


@pytest.fixture
def tree(it: Driver) -> Driver:
    """Two files, an empty directory, a full one."""
    it.write("/a", b"A")
    it.write("/b", b"B")
    it.mkdir("/empty")
    it.mkdir("/full")
    it.write("/full/f", b"F")
    return it


def test_listing(tree: Driver) -> None:
    tree.fs.symlink("/z", "a", tree.caller)
    entries = tree.fs.listdir("/")
    assert [entry.name for entry in entries] == ["a", "b", "empty", "full", "z"]
    assert [stat.S_IFMT(entry.mode) for entry in entries] == [
        stat.S_IFREG,
        stat.S_IFREG,
        stat.S_IFDIR,
        stat.S_IFDIR,
        stat.S_IFLNK,
    ]
    assert entries[0].ino == tree.fs.getattr("/a").ino


def test_open_directory(tree: Driver) -> None:
    handle = tree.fs.opendir("/full")
    tree.fs.rename("/full", "/moved")
    tree.write("/moved/g", b"")
    assert [entry.name for entry in tree.fs.readdir(handle)] == ["f", "g"]
    tree.fs.releasedir(handle)
    assert failing(tree.fs.readdir, handle) == "EBADF"
    assert failing(tree.fs.opendir, "/a") == "ENOTDIR"


def test_listed_names_are_looked_up_again(tree: Driver) -> None:
    """A listing may be older than a change of its names."""
    root, a, b = (tree.fs.getattr(path) for path in ("/", "/a", "/b"))
    assert tree.fs.lookup_all(root.ino, [".", "..", "a", "b"]) == [None, None, a, b]
    tree.fs.rename("/b", "/a")
    now = tree.fs.getattr("/a")
    assert now.ino == b.ino
    assert tree.fs.lookup_all(root.ino, ["a", "b", "a@"]) == [now, None, None]
    gone = tree.fs.getattr("/empty").ino
    tree.fs.rmdir("/empty")
    assert failing(tree.fs.lookup_all, gone, ["a"]) == "ESTALE"


def test_directory_link_count(tree: Driver) -> None:
    assert tree.fs.getattr("/").nlink == 4
    tree.mkdir("/full/sub")
    assert tree.fs.getattr("/full").nlink == 3
    tree.fs.rename("/full/sub", "/empty/sub")
    assert [tree.fs.getattr(p).nlink for p in ("/full", "/empty")] == [2, 3]
    tree.fs.rmdir("/empty/sub")
    assert tree.fs.getattr("/empty").nlink == 2


def test_directory_times(tree: Driver) -> None:
    def changed() -> bool:
        before = tree.fs.getattr("/full").mtime_ns
        tree.fs.utimens("/full", 1, 1)
        return before > 1

    tree.fs.utimens("/full", 1, 1)
    for action in (
        lambda: tree.write("/full/n", b""),
        lambda: tree.fs.rename("/full/n", "/full/m"),
        lambda: tree.fs.link("/a", "/full/l"),
        lambda: tree.fs.unlink("/full/m"),
    ):
        action()
        assert changed()
    tree.write("/full/l", b"more")
    assert not changed()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("/a", "/b", ""),
        ("/a", "/new", ""),
        ("/a", "/full/f", ""),
        ("/a", "/a", ""),
        ("/missing", "/b", "ENOENT"),
        ("/a", "/missing/x", "ENOENT"),
        ("/a", "/b/x", "ENOTDIR"),
        ("/a", "/empty", "EISDIR"),
        ("/empty", "/a", "ENOTDIR"),
        ("/full", "/empty", ""),
        ("/empty", "/full", "ENOTEMPTY"),
        ("/full", "/full/x", "EINVAL"),
        ("/full", "/full/f/x", "ENOTDIR"),
        ("/", "/x", "EBUSY"),
        ("/a", "/", "EBUSY"),
        ("/a", "/" + "n" * 256, "ENAMETOOLONG"),
    ],
)
def test_rename_errors(tree: Driver, old: str, new: str, expected: str) -> None:
    assert failing(tree.fs.rename, old, new) == expected
    if expected:
        assert (tree.read("/a"), tree.read("/b")) == (b"A", b"B")
        assert tree.names("/full") == ["f"]


def test_rename_over_file(tree: Driver) -> None:
    tree.fs.rename("/a", "/b")
    assert tree.read("/b") == b"A"
    assert tree.names() == ["b", "empty", "full"]


def test_rename_between_hard_links(tree: Driver) -> None:
    tree.fs.link("/a", "/l")
    tree.fs.rename("/a", "/l")
    assert tree.names() == ["a", "b", "empty", "full", "l"]
    assert tree.fs.getattr("/a").nlink == 2


def test_rename_flags(tree: Driver) -> None:
    rename = tree.fs.rename
    assert failing(rename, "/a", "/b", RENAME_NOREPLACE) == "EEXIST"
    assert failing(rename, "/a", "/new", RENAME_EXCHANGE) == "ENOENT"
    assert failing(rename, "/full", "/full/f", RENAME_EXCHANGE) == "EINVAL"
    assert failing(rename, "/full/f", "/full", RENAME_EXCHANGE) == "EINVAL"
    assert failing(rename, "/a", "/b", 4) == "EINVAL"
    assert failing(rename, "/a", "/b", RENAME_NOREPLACE | RENAME_EXCHANGE) == "EINVAL"
    rename("/a", "/b", RENAME_EXCHANGE)
    assert (tree.read("/a"), tree.read("/b")) == (b"B", b"A")
    rename("/a", "/full", RENAME_EXCHANGE)
    assert tree.read("/full") == b"B"
    assert tree.names("/a") == ["f"]
    assert tree.fs.getattr("/").nlink == 4
    rename("/b", "/new", RENAME_NOREPLACE)
    assert tree.read("/new") == b"A"


def test_exchange_link_counts(tree: Driver) -> None:
    tree.fs.rename("/full/f", "/empty", RENAME_EXCHANGE)
    assert [tree.fs.getattr(p).nlink for p in ("/", "/full")] == [3, 3]


def test_remove_errors(tree: Driver) -> None:
    assert failing(tree.fs.rmdir, "/a") == "ENOTDIR"
    assert failing(tree.fs.rmdir, "/full") == "ENOTEMPTY"
    assert failing(tree.fs.rmdir, "/missing") == "ENOENT"
    assert failing(tree.fs.rmdir, "/") == "EBUSY"
    assert failing(tree.fs.unlink, "/empty") == "EISDIR"
    assert failing(tree.fs.unlink, "/missing") == "ENOENT"
    assert failing(tree.fs.unlink, "/a/x") == "ENOTDIR"
    tree.fs.rmdir("/empty")
    assert failing(tree.fs.getattr, "/empty") == "ENOENT"


def test_hard_links(tree: Driver) -> None:
    tree.fs.link("/a", "/full/l")
    one, other = tree.fs.getattr("/a"), tree.fs.getattr("/full/l")
    assert one == other
    assert one.nlink == 2
    tree.write("/full/l", b"changed")
    assert tree.read("/a") == b"changed"
    tree.fs.unlink("/a")
    assert tree.fs.getattr("/full/l").nlink == 1
    assert tree.read("/full/l") == b"changed"
    assert failing(tree.fs.link, "/empty", "/l") == "EPERM"
    assert failing(tree.fs.link, "/b", "/full/l") == "EEXIST"
    assert failing(tree.fs.link, "/missing", "/l") == "ENOENT"


def test_symlinks(it: Driver) -> None:
    it.fs.symlink("/s", "some/where", it.caller)
    assert it.fs.readlink("/s") == "some/where"
    assert it.fs.getattr("/s").size == len("some/where")
    it.write("/a", b"")
    assert failing(it.fs.readlink, "/a") == "EINVAL"
    assert failing(it.fs.symlink, "/t", "", it.caller) == "ENOENT"
    assert failing(it.fs.symlink, "/t", "x" * 5000, it.caller) == "ENAMETOOLONG"


def test_byte_names(it: Driver) -> None:
    name = os.fsdecode(b"caf\xe9 \n\\")
    it.write("/" + name, b"x")
    assert it.names() == [name]
    assert it.read("/" + name) == b"x"
    it.write("/" + "ü" * 127, b"long")
    assert failing(it.write, "/" + "ü" * 128, b"") == "ENAMETOOLONG"
    assert failing(it.fs.getattr, "/" + "ü" * 128) == "ENAMETOOLONG"


def test_owner_of_new_file(fs: Filesystem) -> None:
    it = Driver(fs, SOMEBODY)
    it.mkdir("/d")
    it.write("/d/f", b"")
    it.fs.symlink("/d/s", "f", it.caller)
    for path in ("/d", "/d/f", "/d/s"):
        found = it.fs.getattr(path)
        assert (found.uid, found.gid) == SOMEBODY


def test_setgid_directory(it: Driver) -> None:
    it.mkdir("/d")
    it.fs.chown("/d", None, 42)
    it.fs.chmod("/d", 0o2775)
    it.mkdir("/d/sub")
    it.write("/d/f", b"")
    sub = it.fs.getattr("/d/sub")
    assert (sub.gid, sub.mode & 0o7777) == (42, 0o2755)
    assert it.fs.getattr("/d/f").gid == 42


def test_many_names(it: Driver) -> None:
    it.mkdir("/d")
    for number in range(300):
        it.fs.mknod(f"/d/{number:03}", stat.S_IFIFO, 0, it.caller)
    assert it.names("/d") == [f"{number:03}" for number in range(300)]
    for number in range(0, 300, 2):
        it.fs.unlink(f"/d/{number:03}")
    assert it.names("/d") == [f"{number:03}" for number in range(1, 300, 2)]
