"""Rendered data of a video is removed with it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.derive.test_roi_reencode import RULES, label
from tests.maintenance.test_age import aged, put, run
from tests.support.stores import new_store
from tests.views.conftest import Shelf
from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.disk.tempfiles import new_name
from vfsd.disk.view_cache_dir import may_be_kept
from vfsd.maintenance import fsck
from vfsd.mount.fs.unlinked_files import recover
from vfsd.storage.file_cache import FileCache, cache_file_name
from vfsd.views import Views

NAME, OTHER = "traffic.mp4", "mpeg4.avi"
POLICY = "original=replaceable,psnr=34"
VIEW = "size=160x120.mp4"


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """A store with two old videos and read views of them, which became candidates for renditions
    of the second."""
    with new_store(tmp_path / "store") as store, closing(Views(store.parts, store.tools)) as views:
        shelf = Shelf(store, views)
        put(store, NAME, 31, POLICY)
        aged(store, store.ingest(FOLDER / OTHER, OTHER), 31, POLICY)
        store[OTHER].verify()  # renditions are made of verified videos only
        look(shelf, NAME)
        look(shelf, OTHER)
        yield shelf


def look(shelf: Shelf, name: str) -> None:
    shelf.read(name, VIEW)
    shelf.read(name, "frames/000003.jpg")
    assert files(shelf, shelf.video(name).info.digest)


def files(shelf: Shelf, digest: str) -> list[Path]:
    """The cached files of a video."""
    return sorted((shelf.store.parts.directory.cache / digest).glob("*"))


def digest_of(shelf: Shelf, name: str) -> str:
    return shelf.video(name).info.digest


def require_only(shelf: Shelf, *digests: str) -> None:
    """Check that exactly these videos have data in the cache, including empty folders."""
    cache = shelf.store.parts.directory.cache
    assert sorted(os.listdir(cache)) == sorted(digests)
    assert all(files(shelf, digest) for digest in digests)


def test_removed(shelf: Shelf) -> None:
    name, other = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    notes = CandidateIndex.of_store(shelf.store.parts)
    assert notes.of(other)
    shelf.store.remove(OTHER)
    require_only(shelf, name)
    assert notes.of(other) == []
    shelf.store.remove(NAME)
    require_only(shelf)


def test_replaced_by_another_file(shelf: Shelf) -> None:
    other = digest_of(shelf, OTHER)
    shelf.store.ingest(FOLDER / "portrait.mp4", NAME, replace=True)
    require_only(shelf, other)
    shelf.store.ingest(FOLDER / "portrait.mp4", "new.mp4")
    shelf.store.move("new.mp4", OTHER, replace=True)
    require_only(shelf)


def test_equal_video_keeps_the_cache(shelf: Shelf, tmp_path: Path) -> None:
    both = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    twin = shutil.copy(
        shelf.store.parts.originals.path_of(shelf.video(NAME).original), tmp_path / "a.mp4"
    )
    shelf.store.ingest(twin, "twin.mp4")
    shelf.store.remove(NAME)
    require_only(shelf, *both)
    shelf.store.remove("twin.mp4")
    require_only(shelf, both[1])


def test_removal_of_a_linked_file(shelf: Shelf, tmp_path: Path) -> None:
    both = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    clip = Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "clip.mp4"))
    shelf.store.ingest(clip, "linked.mp4", link=True)
    look(shelf, "linked.mp4")
    shelf.store.remove("linked.mp4")
    require_only(shelf, *both)
    assert clip.exists()


def test_replaced_by_a_smaller_encoding(shelf: Shelf) -> None:
    other = digest_of(shelf, OTHER)
    shelf.video(NAME).policy.replace_original(psnr=34, codec="h264")
    require_only(shelf, other)


@pytest.mark.thorough
def test_decayed_and_deleted_by_age(shelf: Shelf) -> None:
    label(shelf.video(NAME))
    shelf.video(NAME).policy.set(RULES)
    shelf.video(OTHER).policy.set("delete-after=30d")
    run(shelf.store)
    require_only(shelf)
    look(shelf, NAME)
    require_only(shelf, digest_of(shelf, NAME))


def test_rendered_after_removal(shelf: Shelf) -> None:
    """An open view can be read to its end, and leaves nothing."""
    other = digest_of(shelf, OTHER)
    with closing(shelf.open(NAME, "size=128x96.mp4")) as file:
        file.readinto(memoryview(bytearray(5000)), 0)
        shelf.store.remove(NAME)
        file.readinto(memoryview(bytearray(file.size)), 0)
    require_only(shelf, other)


def test_read_continues_with_another_decoder_after_removal(shelf: Shelf) -> None:
    view, pool = "size=128x96.y4m", shelf.store.tools.pool
    expected = shelf.read(NAME, view)
    pool.empty()
    file, beside = shelf.open(NAME, view), shelf.open(NAME, "frames/000007.png")
    original = shelf.store.parts.originals.path_of(shelf.video(NAME).original)
    shelf.store.remove(NAME)
    beside.readinto(memoryview(bytearray(beside.size)), 0)
    beside.close()
    shelf.views.evict_idle(0)
    pool.empty()
    found = bytearray(file.size)
    file.readinto(memoryview(found), 0)
    assert found == expected
    file.close()
    shelf.views.close()
    pool.empty()
    assert opened(original) == 0


def test_descriptors_of_views_are_limited(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfsd.storage.original_files._MAX_HELD", 1)
    originals = [
        shelf.store.parts.originals.path_of(shelf.video(name).original) for name in (NAME, OTHER)
    ]
    before = [opened(original) for original in originals]

    def held() -> list[int]:
        return [opened(path) - count for path, count in zip(originals, before, strict=True)]

    with closing(shelf.open(NAME, "info.json")), closing(shelf.open(NAME, "frames/000001.png")):
        with closing(shelf.open(OTHER, "frames/000001.png")), closing(shelf.open(NAME, VIEW)):
            assert held() == [1, 0]
        assert held() == [1, 0]
    with closing(shelf.open(OTHER, "frames/000001.png")):
        assert held() == [0, 1]
    assert held() == [0, 0]


def opened(path: Path) -> int:
    """The number of descriptors of this process for existing or deleted files there."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(str(path))
    return count


def test_late_cache_entries_are_removed(shelf: Shelf) -> None:
    cache = FileCache.of_store(shelf.store.parts)
    gone, other = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    shelf.store.remove(NAME)
    for digest in (gone, other):
        cache.put(cache_file_name(digest, f"{'ab' * 32}.1"), b"a picture")
    assert not cache.has(cache_file_name(gone, f"{'ab' * 32}.1"))
    assert cache.has(cache_file_name(other, f"{'ab' * 32}.1"))
    require_only(shelf, other)


def nameless(cache: Path) -> int:
    """The number of unnamed whole views that this process has open."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(link.startswith(f"{cache}/") and link.endswith("(deleted)") for link in links)


def test_files_for_passthrough_are_removed(shelf: Shelf) -> None:
    store, cache = shelf.store, shelf.store.parts.directory.cache
    with closing(Views(store.parts, store.tools, whole_bytes=1 << 24)) as views:
        mount = Shelf(store, views)
        for name in (NAME, OTHER):
            mount.read(name, VIEW)
        end = time.monotonic() + 20
        while nameless(cache) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        views.evict_idle(30)
        assert nameless(cache) == 2
        store.remove(NAME)
        views.evict_idle(30)
        assert nameless(cache) == 1
        store.remove(OTHER)
        views.evict_idle(30)
        assert nameless(cache) == 0


def leave_stray(shelf: Shelf) -> list[Path]:
    """Create files left by crashes, and files of other programs."""
    cache = shelf.store.parts.directory.cache
    digest, key = "cd" * 32, "ef" * 32
    stray = [
        cache / digest / f"{key}.1",
        cache / digest / "160x120_0-30_h264",
        cache / digest / f"tmp-{new_name()}",
        cache / digest_of(shelf, OTHER) / f"tmp-{new_name()}",
    ]
    for path in stray:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a picture")
        os.utime(path, (1, 1))
    young = cache / digest_of(shelf, OTHER) / f"tmp-{new_name()}"
    theirs = cache / digest / "README"
    for path in (young, theirs):
        path.write_bytes(b"somebody's")
    return stray


def require_rest(shelf: Shelf) -> None:
    """Check that these are gone except for files in use, and that the cache of existing videos
    remains."""
    cache = shelf.store.parts.directory.cache
    both = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    assert all(files(shelf, digest) for digest in both)
    assert sorted(os.listdir(cache)) == sorted([*both, "cd" * 32])
    assert os.listdir(cache / ("cd" * 32)) == ["README"]
    assert len([path for path in files(shelf, both[1]) if path.name.startswith("tmp-")]) == 1
    assert CandidateIndex.of_store(shelf.store.parts).of(both[1])


def test_gc_removes_data_without_a_video(shelf: Shelf) -> None:
    stray = leave_stray(shelf)
    dry = fsck.collect(shelf.store.parts, dry_run=True)
    assert (sorted(dry.files), dry.bytes) == (sorted(stray), sum(len(b"a picture") for _ in stray))
    assert all(path.exists() for path in stray)
    found = fsck.collect(shelf.store.parts)
    assert (sorted(found.files), found.bytes, found.stuck) == (sorted(stray), dry.bytes, [])
    require_rest(shelf)


def test_fsck_reports_data_without_a_video(shelf: Shelf) -> None:
    leave_stray(shelf)
    found = fsck.run(shelf.store.parts)
    assert {one.check for one in found} == {"garbage"}
    assert len(found) == 2, "by folder"
    assert all(one.repaired for one in fsck.run(shelf.store.parts, repair=True))
    require_rest(shelf)
    assert fsck.run(shelf.store.parts) == []


def test_next_mount_removes_data_without_a_video(shelf: Shelf) -> None:
    leave_stray(shelf)
    recover(shelf.store.parts)
    require_rest(shelf)


def test_symlinks_are_not_followed(shelf: Shelf, tmp_path: Path) -> None:
    cache, gone = shelf.store.parts.directory.cache, digest_of(shelf, NAME)
    theirs = tmp_path / "theirs"
    (cache / gone).rename(theirs)
    (cache / gone).symlink_to(theirs)
    before = sorted(os.listdir(theirs))
    assert may_be_kept(cache, gone)
    shelf.store.remove(NAME)
    fsck.collect(shelf.store.parts)
    assert sorted(os.listdir(theirs)) == before


def test_removal_does_not_scan_other_videos(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("vfsd.disk.view_cache_dir.cached_files")
    shelf.store.remove(NAME)


def test_unwritable_cache_does_not_block_removal(
    shelf: Shelf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError("not yours")

    key = shelf.video(NAME).original.object_key
    assert key is not None
    with monkeypatch.context() as here:
        here.setattr("vfsd.disk.view_cache_dir.drop", fails)
        shelf.store.remove(NAME)
    assert "rendered views could not be deleted" in caplog.text
    assert not shelf.store.parts.objects.exists(key)
    fsck.collect(shelf.store.parts)
    require_only(shelf, digest_of(shelf, OTHER))


def test_replaced_linked_file(shelf: Shelf, tmp_path: Path) -> None:
    store = shelf.store
    both = digest_of(shelf, NAME), digest_of(shelf, OTHER)
    clip = Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "clip.mp4"))
    video = store.ingest(clip, "linked.mp4", link=True)
    video.tiles.retile("uniform:2x2")
    look(shelf, "linked.mp4")
    shutil.copy(FOLDER / "av1.mp4", clip)
    store.ingest(clip, "linked.mp4", link=True, replace=True)
    assert digest_of(shelf, "linked.mp4") != video.info.digest
    require_only(shelf, *both)
    assert fsck.collect(store.parts, dry_run=True).objects == []
