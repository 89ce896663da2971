"""A disk without room: what is refused, what still works, and what there is afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.fault.state import difference, image_of, state_of
from tests.fs.driver import Driver
from tests.stores import new_store
from vfsd import check
from vfsd.errors import NoSpaceError
from vfsd.fs import Filesystem
from vfsd.relayout import drop
from vfsd.reserve import RESERVE_BYTES
from vfsd.store import Store

CLIP, OTHER = FOLDER / "traffic.mp4", FOLDER / "portrait.mp4"


@pytest.fixture
def place(small_disk: Path) -> Path:
    """A store with a video on a small disk."""
    with new_store(small_disk / "store") as store:
        store.ingest(CLIP, "a.mp4")
    return small_disk / "store"


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Somebody else takes all of the disk that holds the store."""
    other = place.with_name("other")
    with open(other, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(place).f_bavail == 0
    yield
    other.unlink(missing_ok=True)


def tag_on(store: Store) -> None:
    """SQLite's log has some room left from before."""
    info = store.catalog.video("a.mp4")
    for number in range(10_000):
        store.catalog.tag(info, f"tag{number}")


def is_sound(store: Store) -> bool:
    return check.run(store.parts, deep=True) == []


def test_a_store_on_a_full_disk_is_read_and_things_are_taken_away(place: Path) -> None:
    with filled(place):
        for _ in range(3):
            with Store.open(place) as store:
                assert list(store) == ["a.mp4"]
                assert store["a.mp4"].read(frames=[0]).data.any()
        with Store.open(place) as store:
            store.remove("a.mp4")
            assert len(store) == 0
        # That made room.
        with Store.open(place) as store:
            store.ingest(OTHER, "b.mp4")
            assert is_sound(store)
    with Store.open(place) as store:
        assert store.parts.directory.reserve.stat().st_size == RESERVE_BYTES
        assert list(store) == ["b.mp4"]


def test_tiles_are_taken_away_where_there_is_no_room(place: Path) -> None:
    with Store.open(place) as store:
        video = store["a.mp4"]
        video.retile("uniform:2x2", jobs=1)
        with filled(place):
            assert drop(store.parts, video.info, range(len(video)))
            assert video.read(frames=[0]).data.any()
            assert is_sound(store)


def test_what_does_not_fit_is_refused_and_changes_nothing(place: Path) -> None:
    with Store.open(place) as store, filled(place):
        video, before = store["a.mp4"], state_of(store)
        image = image_of(place)
        actions: list[Callable[[], object]] = [
            lambda: store.ingest(OTHER, "b.mp4"),
            lambda: store.ingest(OTHER, "a.mp4", replace=True),
            lambda: video.retile("uniform:2x2", jobs=1),
        ]
        for action in actions:
            with pytest.raises(NoSpaceError):
                action()
            assert state_of(store) == before
            assert difference(image_of(place), image) == ""
    with Store.open(place) as store:
        store.ingest(OTHER, "a.mp4", replace=True)
        store["a.mp4"].retile("uniform:1x1", jobs=1)
        assert is_sound(store)


def test_the_catalog_itself_has_no_room(place: Path) -> None:
    with Store.open(place) as store:
        video = store["a.mp4"]
        with filled(place):
            with pytest.raises(NoSpaceError, match="full"):
                tag_on(store)
            written = set(store.catalog.video("a.mp4").tags)
        store.catalog.tag(video.info, "after")
        assert set(store.catalog.video("a.mp4").tags) == {*written, "after"}
        assert is_sound(store)


def test_a_file_that_grows_until_the_disk_is_full(place: Path) -> None:
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        handle = it.create("/grows")
        size = 0
        error = 0
        while not error:
            try:
                size += fs.write(handle, bytes(1 << 18), size)
            except OSError as full:
                error = full.errno or 0
        assert error == errno.ENOSPC
        it.close(handle)
        fs.settle()
        assert it.read("/grows") == bytes(size)
        with filled(place):
            fs.unlink("/grows")
            fs.tidy()
        it.write("/after", b"there is room")
        fs.close()
        assert is_sound(store)
