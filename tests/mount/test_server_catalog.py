"""A mount of a store whose catalog is on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clips import make_clip
from tests.support.postgresql import PostgresqlServer
from vfsd.api.store import Store
from vfsd.mount import control

_SECONDS = 5


@pytest.fixture
def home(own_database: str, tmp_path: Path, wide_clip: Path) -> Path:
    with Store.create(tmp_path / "store", catalog_url=own_database) as store:
        store.ingest(wide_clip, "a.mp4")
    return tmp_path / "store"


@pytest.fixture
def at(home: Path, tmp_path: Path) -> Iterator[Path]:
    """A mount with all its background work."""
    place = tmp_path / "mnt"
    place.mkdir()
    control.mount(home, place, (), log_file=tmp_path / "log")
    yield place
    control.unmount(place)


def test_idle_mount_asks_once_a_second(
    postgresql: PostgresqlServer, own_database: str, home: Path, at: Path
) -> None:
    deadline = time.monotonic() + 60
    with Store.open(home, read_only=True, staleness=0) as store:
        while not store["a.mp4"].original.verified:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    time.sleep(2)
    postgresql.statements(own_database)
    time.sleep(_SECONDS)
    found = postgresql.statements(own_database)
    assert sum(found.values()) <= _SECONDS, found


def test_opened_file_is_that_of_now(home: Path, at: Path, tmp_path: Path, wide_clip: Path) -> None:
    """Listings may be a second old, but not the file that is opened."""
    other = make_clip(tmp_path / "other.mp4", "h264")
    with Store.open(home) as store:
        for number in range(6):
            clip = (wide_clip, other)[number % 2]
            store.ingest(clip, "a.mp4", replace=True)
            assert (at / "a.mp4").read_bytes() == clip.read_bytes()
            store.ingest(clip, f"{number}.mp4")
            assert (at / f"{number}.mp4").read_bytes() == clip.read_bytes()
