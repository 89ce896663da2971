"""Reads of a store whose catalog is on PostgreSQL: the statements that they need, and the changes
that they notice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.postgresql import PostgresqlServer
from vfsd.api.store import Store
from vfsd.errors import UsageError

_POLL = "catalog_state"


@pytest.fixture
def home(own_database: str, tmp_path: Path, wide_clip: Path) -> Path:
    """A store with a tiled video, its catalog on PostgreSQL."""
    with Store.create(tmp_path / "store", catalog_url=own_database) as store:
        store.ingest(wide_clip, "cam1/a.mp4").tiles.retile("uniform:2x2")
    return tmp_path / "store"


@pytest.fixture
def opened(home: Path) -> Iterator[Store]:
    """The store, opened read-only: there are no notes of reads to count."""
    with Store.open(home, read_only=True) as store:
        yield store


def _until_asked_again() -> None:
    time.sleep(1.05)


def test_warm_frames_need_no_statement(
    postgresql: PostgresqlServer, own_database: str, home: Path
) -> None:
    with Store.open(home, read_only=True, staleness=60) as store:
        video = store["cam1/a.mp4"]
        video.read(frames=[3], region=(10, 10, 200, 200))
        assert len(video[5]) > 0
        postgresql.statements(own_database)
        for number in range(20, 50):
            video.read(frames=[number])
            video.read(frames=[number], region=(10, 10, 200, 200))
            assert store["cam1/a.mp4"].name == "cam1/a.mp4"
        assert postgresql.statements(own_database) == {}


def test_reads_ask_once_a_second(
    postgresql: PostgresqlServer, own_database: str, opened: Store
) -> None:
    video = opened["cam1/a.mp4"]
    video.read(frames=[3])
    postgresql.statements(own_database)
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        video.read(frames=[7])
    found = postgresql.statements(own_database)
    assert all(_POLL in statement for statement in found), found
    assert 1 <= sum(found.values()) <= 3


def test_changes_are_noticed_as_asked(home: Path) -> None:
    with (
        Store.open(home) as writer,
        Store.open(home, staleness=0) as exact,
        Store.open(home, staleness=60) as slow,
        Store.open(home, staleness=None) as pinned,
    ):
        readers = (exact, slow, pinned, writer)

        def tags() -> list[int]:
            return [len(one["cam1/a.mp4"].info.tags) for one in readers]

        assert tags() == [0, 0, 0, 0]
        writer.catalog.tag(writer["cam1/a.mp4"].info, "night")
        assert tags() == [1, 0, 0, 1]
        slow.catalog.tag(slow["cam1/a.mp4"].info, "rain")  # sees all with its own change
        assert tags() == [2, 2, 0, 1]


def test_change_is_noticed_within_a_second(home: Path) -> None:
    with Store.open(home) as writer, Store.open(home) as reader:
        assert "cam1/a.mp4" in reader
        reader["cam1/a.mp4"].read(frames=[3])
        writer.remove("cam1/a.mp4")
        deadline = time.monotonic() + 10
        while reader.get("cam1/a.mp4") is not None:
            assert time.monotonic() < deadline


def test_notes_of_reads_are_not_changes(own_database: str, home: Path) -> None:
    with Store.open(home) as store, Store.open(home, staleness=0) as other:
        watch = other.catalog.watch()
        watch.changed()
        store["cam1/a.mp4"].read(frames=[3])
        store.tools.read_log.flush()
        assert not watch.changed()
        store.catalog.tag(store["cam1/a.mp4"].info, "night")
        assert watch.changed()
        with store.catalog.writing():
            pass
        store.catalog.untag(store["cam1/a.mp4"].info, "unknown")
        assert not watch.changed()


@pytest.mark.parametrize("staleness", [-1, float("nan"), float("inf"), "1", True])
def test_staleness_must_be_seconds(tmp_path: Path, staleness: object) -> None:
    with pytest.raises(UsageError, match="staleness must be 0 or more seconds"):
        Store.open(tmp_path, staleness=staleness)  # type: ignore[arg-type]


def test_idle_connections_are_closed(
    own_database: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.catalog.server_connections._IDLE_SECONDS", 0.3)
    name = sa.make_url(own_database).database
    engine = sa.create_engine(own_database)

    def connections() -> int:
        with engine.connect() as connection:
            return int(
                connection.exec_driver_sql(
                    f"SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = '{name}'"
                ).scalar_one()
            )

    with Store.open(home) as store:
        assert connections() == 1
        deadline = time.monotonic() + 10
        while connections():
            assert time.monotonic() < deadline
        assert "cam1/a.mp4" in store  # it connects again
    engine.dispose()
