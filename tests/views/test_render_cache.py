"""The cache of rendered views, which never affects results."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.tempfiles import new_name
from vfsd.storage.file_cache import FileCache, cache_file_name
from vfsd.views import Views, rendering
from vfsd.views.render_cache import MemoryCache
from vfsd.views.transcode import SegmentedEncode

VIEW = "size=128x96.mp4"
DIGEST = "d" * 64


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def right(shelf: Shelf) -> bytes:
    return shelf.read("traffic.mp4", VIEW)


def test_rendered_views_are_shared_across_instances(
    fresh: Shelf, right: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fresh.read("traffic.mp4", VIEW) == right
    assert files(fresh.store.parts.directory.cache)
    monkeypatch.delattr(SegmentedEncode, "encoded")  # no more encoding
    again = Views(fresh.store.parts, fresh.store.tools)
    assert Shelf(fresh.store, again).read("traffic.mp4", VIEW) == right
    again.close()


def test_files_may_vanish_or_be_damaged_at_any_time(fresh: Shelf, right: bytes) -> None:
    cache = fresh.store.parts.directory.cache
    assert fresh.read("traffic.mp4", VIEW) == right
    first, second, *_ = files(cache)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    for _ in range(2):
        again = Views(fresh.store.parts, fresh.store.tools)
        assert Shelf(fresh.store, again).read("traffic.mp4", VIEW) == right
        again.close()
        shutil.rmtree(cache)


def test_fully_cached_view_is_not_work(
    fresh: Shelf, right: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_work(fresh, VIEW)
    assert is_work(fresh, VIEW), "nothing was read"
    read_start(fresh, VIEW)
    assert is_work(fresh, VIEW), "not all was read"
    assert fresh.read("traffic.mp4", VIEW) == right
    assert not is_work(fresh, VIEW)
    monkeypatch.setattr(rendering, "_MEMORY_BYTES", 0)
    again = Shelf(fresh.store, Views(fresh.store.parts, fresh.store.tools))
    assert again.read("traffic.mp4", VIEW) == right
    assert not is_work(again, VIEW)
    shutil.rmtree(fresh.store.parts.directory.cache)
    read_start(again, VIEW)
    assert is_work(again, VIEW), "what is not there any more has to be made"
    assert again.read("traffic.mp4", VIEW) == right
    assert not is_work(again, VIEW)
    again.views.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    one_in(
        3,
        [
            ("info.json", False),
            ("t=0-1.mp4", False),
            ("size=64x48.rgb", True),
            ("frames/000003.png", True),
            ("frames/000003.jpg", False),
            ("layout.png", True),
        ],
    ),
)
def test_views_that_count_as_work_after_a_read(fresh: Shelf, name: str, expected: bool) -> None:
    """Data that is not cached has to be rendered again once it leaves the page cache."""
    assert len(fresh.read("traffic.mp4", name)) == fresh.size("traffic.mp4", name)
    assert is_work(fresh, name) is expected


def is_work(shelf: Shelf, name: str) -> bool:
    with closing(shelf.open("traffic.mp4", name)) as file:
        return file.is_work


def read_start(shelf: Shelf, name: str) -> None:
    with closing(shelf.open("traffic.mp4", name)) as file:
        file.readinto(memoryview(bytearray(1 << 14)), 0)


@pytest.mark.parametrize("budget", one_in(3, [1, 3000, 20_000]))
def test_small_budget_is_kept_with_correct_results(
    tmp_path: Path, right: bytes, budget: int
) -> None:
    new_store(tmp_path / "store").close()
    StoreSettings(view_cache_bytes=budget).save(tmp_path / "store" / "config.toml")
    with Store.open(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "traffic.mp4")
        views = Views(store.parts, store.tools)
        shelf = Shelf(store, views)
        assert shelf.read("traffic.mp4", VIEW) == right
        assert shelf.read("traffic.mp4", VIEW) == right
        views.close()
        held = sum(path.stat().st_size for path in files(store.parts.directory.cache))
        assert held <= budget


def test_read_only_store_is_not_changed(fresh: Shelf, right: bytes) -> None:
    before = files(fresh.store.path)
    with Store.open(fresh.store.path, read_only=True) as store:
        views = Views(store.parts, store.tools)
        assert Shelf(store, views).read("traffic.mp4", VIEW) == right
        views.close()
    assert files(fresh.store.path / "cache") == []
    assert [path for path in before if not path.exists()] == []


def test_cache_key_includes_the_encoder(
    fresh: Shelf, right: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.read("traffic.mp4", VIEW)
    count = len(files(fresh.store.parts.directory.cache))
    monkeypatch.setattr("vfsd.views.rendered_view.library_versions", lambda: "newer")
    again = Views(fresh.store.parts, fresh.store.tools)
    assert Shelf(fresh.store, again).read("traffic.mp4", VIEW) == right
    again.close()
    assert len(files(fresh.store.parts.directory.cache)) == 2 * count


def test_least_recently_used_file_is_evicted_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    long_ago = time.time() - 1000
    names = [cache_file_name(DIGEST, f"{digit * 64}.0") for digit in "abcde"]
    for age, name in enumerate(names[:3]):
        cache.put(name, bytes(200))
        os.utime(tmp_path / name, (long_ago + age, long_ago + age))
    assert cache.get(names[0]) == bytes(200)  # used now
    cache.put(names[3], bytes(200))
    cache.put(names[4], bytes(200))
    cache.sweep()
    assert cache.get(names[1]) is None
    assert cache.get(names[0]) == bytes(200)
    assert cache.get(names[4]) == bytes(200)


def test_leftovers_of_dead_writers_are_removed(tmp_path: Path) -> None:
    left = tmp_path / DIGEST / f"tmp-{new_name()}"
    left.parent.mkdir()
    left.write_bytes(b"half")
    young = left.with_name(f"tmp-{new_name()}")
    young.write_bytes(b"half")
    os.utime(left, (1, 1))
    FileCache(tmp_path, 1000).sweep()
    assert not left.exists()
    assert young.exists()


def test_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = FileCache(tmp_path / "file" / "below", 1000)
    name = cache_file_name(DIGEST, f"{'a' * 64}.1")
    cache.put(name, b"x")
    assert cache.get(name) is None


@pytest.mark.parametrize("name", ["../1", "aa/1", f"../{'a' * 64}.1", f"{'b' * 64}/../config.toml"])
def test_invalid_cache_names_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "cache" / DIGEST).mkdir(parents=True)
    cache = FileCache(tmp_path / "cache", 1000)
    cache.put(name, b"x")
    assert cache.get(name) is None
    assert files(tmp_path) == []


def test_memory_is_bounded_except_for_the_newest() -> None:
    cache = MemoryCache(100)
    for number in range(10):
        cache.put(str(number), bytes(30))
    assert [cache.get(str(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    cache.put("large", bytes(1000))
    assert cache.get("large") is not None
    assert cache.get("9") is None
