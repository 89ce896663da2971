"""Tests without a mount: options, the kernel's mount table, libfuse's hidden names, errnos."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import vfsd.disk.mount_queries
from tests.support.fs_driver import ROOT_USER
from tests.support.stores import new_store
from vfsd.disk.mount_queries import mount_above, mount_at, mounts
from vfsd.errors import BusyError, NotFoundError, OutOfRangeError, StoreError, UsageError
from vfsd.mount.fs import RENAME_EXCHANGE, Filesystem
from vfsd.mount.fuse.callback_context import HiddenPaths, errno_of
from vfsd.mount.fuse.invalidation import KernelCacheInvalidator
from vfsd.mount.fuse.mount_options import MountOptions, parse_options
from vfsd.mount.fuse.open_paths import OpenPaths, ReadDispatch, ViewReaders

TABLE = rb"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/a rw,nosuid shared:1 master:2 - fuse.vfsd /srv/videos rw,user_id=0
31 22 0:41 / /mnt/a/b\040c\134 rw - fuse.vfsd /srv/with\040blank rw
32 22 0:42 / /mnt/a/deep rw - tmpfs none rw
33 22 0:43 / /mnt/a/deep rw - fuse.other there rw
broken line
"""


def test_parse_options() -> None:
    options = parse_options(["ro,allow_other", "uid=1000,max_threads=8", "noatime"])
    assert options == MountOptions(
        read_only=True, passed_on=("allow_other", "uid=1000", "max_threads=8", "noatime")
    )
    assert options.is_shared
    assert options.value("uid") == "1000"
    assert options.value("gid") is None


def test_other_options_skipped() -> None:
    words = "defaults,noauto,user,nofail,_netdev,x-systemd.automount,x-gvfs-show,comment=x,rw"
    words += ",user=alice,iversion,noiversion,mand,nomand"
    assert parse_options([words, "", " nonempty ,"]) == MountOptions(nonempty=True)


def test_last_option_wins() -> None:
    assert not parse_options(["ro", "rw"]).read_only
    assert parse_options(["uid=1,uid=2"]).value("uid") == "2"


@pytest.mark.parametrize(
    "word",
    ["nonsense", "uid", "uid=x", "uid=-1", "umask=9", "attr_timeout=long", "ro=1", "big_writes"],
)
def test_unknown_options_refused(word: str) -> None:
    with pytest.raises(UsageError):
        parse_options([word])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_read", " 8192"),
        ("max_read", "8_192"),
        ("max_read", "+8192"),
        ("max_read", "\u0668"),
        ("uid", "4294967295"),
        ("gid", "4294967295"),
        ("attr_timeout", " 1"),
        ("attr_timeout", "1_0"),
        ("attr_timeout", "nan"),
    ],
)
def test_invalid_numbers(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{key!r} must be a number"):
        parse_options([f"{key}={value}"])


@pytest.mark.parametrize("value", ["9", "0o22", "088", "-22", "10000", "7" * 5000, ""])
def test_invalid_umask(value: str) -> None:
    with pytest.raises(UsageError, match="'umask' must be an octal number up to 7777, got"):
        parse_options([f"umask={value}"])


def test_remount_refused() -> None:
    with pytest.raises(UsageError, match="cannot be remounted") as caught:
        parse_options(["remount,ro"])
    assert "vfsd umount" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "word", ["uid=4294967294", "attr_timeout=.5", "entry_timeout=1e-3", "umask=022"]
)
def test_numbers_passed_on(word: str) -> None:
    assert parse_options([word]).passed_on == (word,)


def test_mount_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(vfsd.disk.mount_queries, "_MOUNTINFO", table)
    assert mounts() == []
    table.write_bytes(TABLE)
    assert len(mounts()) == 5
    ours = mount_at(Path("/mnt/a"))
    assert ours is not None
    assert (ours.source, ours.device, ours.is_ours) == ("/srv/videos", "0:40", True)
    assert mount_at(Path("/mnt")) is None
    strange = mount_above(Path("/mnt/a/b c\\/x/y"))
    assert strange is not None
    assert strange.source == "/srv/with blank"
    covered = mount_above(Path("/mnt/a/deep/x"))
    assert covered is not None
    assert not covered.is_ours
    root = mount_above(Path("/mnt/abc"))
    assert root is not None
    assert root.place == Path("/")


def test_hidden_names() -> None:
    hidden = b"/d/.fuse_hidden0000000a00000001"
    names = HiddenPaths(None)
    assert names.has(hidden)
    assert names.alias(b"/d/x", hidden) == ".fuse_hidden0000000a00000001"
    assert names.alias(b"/e/x", hidden) is None
    assert names.alias(b"/d/x", b"/d/y") is None
    for other in (
        b"/d/.fuse_hidden",
        b"/d/.fuse_hidden0000000a0000000",
        hidden + b"/x",
        hidden + b"0",
    ):
        assert not names.has(other)


def test_hidden_names_of_users() -> None:
    names = HiddenPaths(0xFFFFFFFE)
    for mine in ("ffffffff", "00000000", "00000ffe"):
        assert names.has(b"/.fuse_hidden0000000a" + mine.encode()), mine
    for other in ("fffffffe", "00000fff", "12345678"):
        assert not names.has(b"/.fuse_hidden0000000a" + other.encode()), other
        assert names.alias(b"/x", b"/.fuse_hidden0000000a" + other.encode()) is None
    assert names.alias(b"/x", b"/.fuse_hidden0000000a00000ffe") is not None
    assert names.has(b"/.fuse_hidden0000000a00000fff"), "the counter has not advanced"


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (FileNotFoundError(errno.ENOENT, "no"), errno.ENOENT, None),
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC, None),
        (OSError(errno.EIO, "broken"), errno.EIO, logging.ERROR),
        (OSError("without a number"), errno.EIO, logging.ERROR),
        (NotFoundError("no view"), errno.ENOENT, logging.INFO),
        (OutOfRangeError("outside"), errno.EINVAL, logging.INFO),
        (BusyError("somebody writes"), errno.EBUSY, logging.ERROR),
        (StoreError("broken", hint="mend it"), errno.EIO, logging.ERROR),
        (KeyError("ours"), errno.EIO, logging.ERROR),
        (MemoryError(), errno.EIO, logging.ERROR),
    ],
)
def test_errno_of_errors(
    error: BaseException, code: int, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert errno_of(error, "read", b"/a") == code
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


def test_open_handles_follow_rename() -> None:
    names = OpenPaths()
    names.enter(b"/d/a", 1, "one")
    assert names.swap_cached(1, "one") is None
    names.moved(b"/d", b"/e", with_all_below=True)
    names.enter(b"/d/a", 2, "two")
    assert not names.is_mixed(2)
    names.enter(b"/e/a", 3, "one")
    assert names.swap_cached(3, "one") == "one"
    names.exchanged(b"/d/a", b"/e/a")
    names.enter(b"/d/a", 4, "two")
    assert names.is_mixed(4)
    assert names.is_mixed(1)
    assert not names.is_mixed(2)
    names.leave(4)
    names.enter(b"/d/a", 5, "one")
    assert not names.is_mixed(5)
    assert names.swap_cached(5, "one") is None, "both were read by that name"
    names.removed(b"/d/a")
    names.enter(b"/d/a", 6, "two")
    assert not names.is_mixed(6)
    for handle in (1, 2, 3, 5, 6):
        names.leave(handle)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[KernelCacheInvalidator]:
    """A cache invalidator with requests from a single thread."""
    asker = SimpleNamespace(contents=SimpleNamespace(pid=7))
    library = SimpleNamespace()
    with new_store(tmp_path / "store") as store:
        fs = Filesystem(store.parts)
        readers = ReadDispatch(fs, ViewReaders(lambda: 0, lambda: 7))
        cache = KernelCacheInvalidator(library, lambda: asker, fs, readers, bypass=True)
        cache.start(SimpleNamespace(), 1.0)
        for name in "xyz":
            fs.mkdir(f"/{name}", 0o755, ROOT_USER)
        yield cache
        cache.close()
        fs.close()


def look_up(cache: KernelCacheInvalidator, path: bytes) -> None:
    cache.reported_attributes(path, cache._fs.getattr(os.fsdecode(path)), None)


def sends_back(cache: KernelCacheInvalidator, path: bytes) -> bool:
    """Whether opening that name fails with ESTALE, so that the kernel looks it up again."""
    try:
        cache.opening(path).look_again()
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def test_single_retry_after_move(
    cache: KernelCacheInvalidator,
) -> None:
    """ESTALE was reported for the name at that time; the kernel retries with its own name."""
    assert sends_back(cache, b"/moved")
    look_up(cache, b"/x")
    assert not sends_back(cache, b"/x")
    assert sends_back(cache, b"/x")


@pytest.mark.parametrize(
    ("old", "new", "flags", "by_then"),
    [
        (b"/x/a", b"/y/b", 0, b"/y/b"),
        (b"/x", b"/gone", 0, b"/gone/a"),
        (b"/y", b"/x", RENAME_EXCHANGE, b"/y/a"),
    ],
)
def test_single_retry_of_moved_name(
    cache: KernelCacheInvalidator, old: bytes, new: bytes, flags: int, by_then: bytes
) -> None:
    assert sends_back(cache, b"/x/a")
    cache.moved(b"/z", b"/zz", 0)
    cache.moved(old, new, flags)
    assert not sends_back(cache, by_then)


def test_retry_not_made(
    cache: KernelCacheInvalidator,
) -> None:
    """The caller does not retry the first name, and its lookup of the second name is old."""
    assert sends_back(cache, b"/x")
    look_up(cache, b"/x")
    cache.moved(b"/z", b"/zz", 0)
    assert sends_back(cache, b"/y")
    look_up(cache, b"/y")
    assert not sends_back(cache, b"/y")
