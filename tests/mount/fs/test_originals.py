"""Originals that are replaced while open, and videos on hold."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fs_driver import Driver, failing
from vfsd.api.store import Store
from vfsd.errors import OutdatedError
from vfsd.maintenance import fsck
from vfsd.maintenance.age import RetentionExecutor
from vfsd.mount.fs import Filesystem
from vfsd.views import Views


@pytest.fixture
def elsewhere(place: Path) -> Iterator[Store]:
    """The same store with its own connections, as in another process."""
    with Store.open(place) as opened:
        yield opened


def test_open_handle_keeps_old_bytes(it: Driver, elsewhere: Store, other_video: bytes) -> None:
    it.write("/a.mp4", other_video)
    it.fs.settle()
    it.fs.utimens("/a.mp4", 5_000_000_000, 7_000_000_000)
    before = it.fs.getattr("/a.mp4")
    assert "user.vfsd.replaced" not in it.fs.listxattr("/a.mp4")
    video = elsewhere["a.mp4"]
    video.policy.set("original=replaceable,psnr=34")
    with it.opened("/a.mp4") as handle:
        done = video.policy.replace_original(codec="h264")
        it.fs.delete_pending()
        assert it.read_open(handle) == other_video
        assert it.fs.getattr(None, handle).size == len(other_video)
        now = it.read("/a.mp4")
        assert len(now) == done.new_size == it.fs.getattr("/a.mp4").size
        assert now[:4000] != other_video[:4000]
    after = it.fs.getattr("/a.mp4")
    assert (after.mtime_ns, after.mode, after.uid) == (before.mtime_ns, before.mode, before.uid)
    told = json.loads(it.fs.getxattr("/a.mp4", "user.vfsd.replaced"))
    assert (told["digest"], told["size"]) == (done_digest(elsewhere), len(other_video))
    assert told["psnr"] == pytest.approx(done.psnr)
    assert "user.vfsd.replaced" in it.fs.listxattr("/a.mp4")


@pytest.mark.thorough
@pytest.mark.parametrize("removed", [True, False])
def test_write_to_replaced_original(
    it: Driver, elsewhere: Store, other_video: bytes, removed: bool
) -> None:
    """A handle on the old bytes fails at its first write, so that no data is silently lost."""
    it.write("/a.mp4", other_video)
    it.fs.settle()
    video = elsewhere["a.mp4"]
    video.policy.set("original=replaceable,psnr=34")
    with it.opened("/a.mp4", os.O_RDWR) as handle:
        if removed:
            elsewhere.remove("a.mp4")
        else:
            video.policy.replace_original(codec="h264")
        assert failing(it.fs.write, handle, b"more", len(other_video)) == "ESTALE"
        assert it.read_open(handle) == other_video
    assert ("a.mp4" in elsewhere) is not removed
    assert fsck.run(elsewhere.parts) == []


@pytest.mark.thorough
def test_unlinked_original_not_replaced(it: Driver, elsewhere: Store, other_video: bytes) -> None:
    """A replacement would be unreachable, and no closing handle would delete it."""
    it.write("/a.mp4", other_video)
    it.fs.settle()
    video = elsewhere["a.mp4"]
    video.policy.set("original=replaceable,psnr=34,codec=h264,delete-after=1s")
    handle = it.open("/a.mp4")
    ager = RetentionExecutor(elsewhere.parts, [video])
    while not (planned := ager.plan().due):
        time.sleep(0.1)

    def remove(what: str, done: int, total: int) -> None:
        if what == "comparing" and done == total:
            it.fs.unlink("/a.mp4")

    with pytest.raises(OutdatedError, match="removed"):
        video.policy.replace_original(codec="h264", on_progress=remove)
    with pytest.raises(OutdatedError, match="removed"):
        ager.apply(planned[0], lambda what, done, total: None)
    assert it.read_open(handle) == other_video
    it.close(handle)
    assert fsck.run(elsewhere.parts, deep=True) == []
    assert list(elsewhere) == []


def done_digest(store: Store) -> str:
    return store["a.mp4"].policy.log()[0].digest


def test_hold(it: Driver, elsewhere: Store, other_video: bytes) -> None:
    it.write("/a.mp4", other_video)
    it.write("/b.txt", b"no video")
    it.fs.settle()
    handle = it.open("/a.mp4", os.O_RDWR)
    elsewhere["a.mp4"].policy.hold("case 17")
    assert failing(it.fs.write, handle, b"x", 0) == "EPERM"
    it.close(handle)
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_TRUNC):
        assert failing(it.open, "/a.mp4", flags) == "EPERM"
    assert failing(it.truncate, "/a.mp4", 0) == "EPERM"
    assert failing(it.fs.unlink, "/a.mp4") == "EPERM"
    assert failing(it.fs.rename, "/b.txt", "/a.mp4") == "EPERM"
    assert failing(elsewhere.remove, "a.mp4") == "EPERM"
    assert failing(elsewhere.move, "b.txt", "a.mp4", replace=True) == "EPERM"
    assert it.fs.getxattr("/a.mp4", "user.vfsd.held") == b"case 17"
    # It may be renamed, and one of two names may be removed.
    it.fs.rename("/a.mp4", "/c.mp4")
    it.fs.link("/c.mp4", "/d.mp4")
    it.fs.unlink("/c.mp4")
    assert failing(it.fs.unlink, "/d.mp4") == "EPERM"
    assert it.read("/d.mp4") == other_video
    elsewhere["d.mp4"].policy.release("closed")
    it.fs.unlink("/d.mp4")
    assert it.names() == ["b.txt"]


def test_folder_with_held_video(it: Driver, elsewhere: Store, other_video: bytes) -> None:
    it.mkdir("/cam")
    it.write("/cam/a.mp4", other_video)
    it.write("/cam/b.txt", b"x")
    it.fs.settle()
    elsewhere["cam/a.mp4"].policy.hold("case 17")
    assert failing(elsewhere.remove, "cam", recursive=True) == "EPERM"
    assert it.names("/cam") == ["a.mp4", "b.txt"]
    assert [one.action.value for one in elsewhere["cam/a.mp4"].policy.log()] == ["held"]


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    with closing(Views(store.parts, store.tools)) as opened:
        yield opened


@pytest.fixture
def shown(store: Store, views: Views) -> Iterator[Driver]:
    filesystem = Filesystem(store.parts, views=views)
    filesystem.recover()
    yield Driver(filesystem)
    filesystem.close()


def look(it: Driver, store: Store, name: str) -> Path:
    """Read a view of a video; return the folder that caches it."""
    it.read(f"/{name}@/size=64x48.mp4")
    folder = store.parts.directory.cache / store[name].info.digest
    assert list(folder.iterdir())
    return folder


def test_views_deleted_with_name(
    shown: Driver, store: Store, other_video: bytes, video: bytes
) -> None:
    for name, data in (("a.mp4", other_video), ("b.mp4", video)):
        shown.write(f"/{name}", data)
    shown.fs.settle()
    first, second = look(shown, store, "a.mp4"), look(shown, store, "b.mp4")
    shown.fs.link("/a.mp4", "/c.mp4")
    shown.fs.unlink("/a.mp4")
    shown.fs.delete_pending()
    assert first.exists()
    shown.fs.unlink("/c.mp4")
    shown.fs.delete_pending()
    assert not first.exists()
    assert second.exists()


def test_views_deleted_on_overwrite(
    shown: Driver, store: Store, other_video: bytes, video: bytes
) -> None:
    shown.write("/a.mp4", other_video)
    shown.fs.settle()
    folder = look(shown, store, "a.mp4")
    with shown.opened("/a.mp4", os.O_RDWR) as handle:
        assert shown.fs.write(handle, b"x", 0) == 1
        shown.fs.delete_pending()
        assert not folder.exists()
    shown.write("/b.mp4", video)
    shown.fs.settle()
    folder = look(shown, store, "b.mp4")
    shown.write("/c.mp4", other_video)
    shown.fs.settle()
    shown.fs.rename("/c.mp4", "/b.mp4", 0)
    shown.fs.delete_pending()
    assert not folder.exists()
