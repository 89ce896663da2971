"""Reads of a store whose catalog is on PostgreSQL: the statements that they need, and the changes
that they notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.postgresql import PostgresqlServer
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.catalog.engine import Database
from vfsd.core.model import MeasuredCost, SegmentUse
from vfsd.core.retention_policy import RetentionPolicy
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import NotFoundError, UsageError
from vfsd.tiling.cost import DecodeCost

_POLL = "catalog_state"


@pytest.fixture
def home(own_database: str, tmp_path: Path, wide_clip: Path) -> Path:
    """A store with a tiled video, its catalog on PostgreSQL."""
    with Store.create(tmp_path / "store", catalog_url=own_database) as store:
        store.ingest(wide_clip, "cam1/a.mp4").tiles.retile("uniform:2x2")
    return tmp_path / "store"


@pytest.fixture
def opened(home: Path) -> Iterator[Store]:
    """The store, opened read-only, so that it does not note reads."""
    with Store.open(home, read_only=True) as store:
        yield store


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


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


def test_statements_of_a_first_read(
    postgresql: PostgresqlServer, own_database: str, opened: Store
) -> None:
    postgresql.statements(own_database)
    video = opened["cam1/a.mp4"]
    assert sum(postgresql.statements(own_database).values()) <= 2
    assert len(video[5]) > 0
    video.read(frames=[6], region=(10, 10, 200, 200))
    assert sum(postgresql.statements(own_database).values()) <= 4


def test_single_statements_find_the_same(
    home: Path, wide_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that work on each database, for plain videos and odd ones."""
    names = ["cam1/a.mp4", "cam1/b.mp4", "c.mp4", "cam1/deep/er/d.mp4"]
    with Store.open(home) as store:
        catalog = store.catalog
        lossless = TileSettings("lossless")
        store.ingest(wide_clip, names[1]).tiles.retile(
            "uniform:1x2", span=(0, 1), settings=lossless
        )
        store.ingest(wide_clip, names[2])
        store.ingest(wide_clip, names[3]).tiles.retile("uniform:1x2", span=(1, 2))
        catalog.tag(catalog.video(names[1]), "night", "rain")
        catalog.set_metadata(catalog.video(names[2]), site=3)
        place = catalog.video(names[0]).original.place
        with catalog.writing() as change:
            cost = DecodeCost(1.0, 2.0, 3.5, 4.0)
            change.costs.put(MeasuredCost("h", "h264", cost, None, 1.0, 9, "", 7))
            policy = RetentionPolicy(reads=41.0)
            change.retention.set_policy(change.tree.resolve("cam1").ino, policy)
            linked = change.tree.resolve(names[2]).ino
            change.tree.link(linked, ROOT, "another.mp4", now_ns=1)
            change.integrity.add_damage(place, [range(5000, 9000)], now_ns=1)
        paths = [f"/{name}/" for name in [*names, "another.mp4"]]
        for host in ("h", "", "other"):
            videos = [catalog.video(path) for path in paths]
            found = [catalog.tile_state(video, host) for video in videos]
            with monkeypatch.context() as patch:
                patch.setattr(Database, "is_postgresql", False)
                assert [catalog.video(path) for path in paths] == videos
                expected = [catalog.tile_state(video, host) for video in videos]
            # Without tiles, the policy does not matter.
            assert [one if one.segments else one._replace(reads=None) for one in found] == expected
        assert [bool(one.segments) for one in found] == [True, True, False, True, False]
        assert found[0].unreadable
        assert found[0].reads == 41.0
        for missing in ("cam1", "", "cam1/a.mp4/x", "cam2/a.mp4", "a\udcff"):
            with pytest.raises(NotFoundError):
                catalog.video(missing)


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


def test_idle_connections_of_a_server_that_is_gone_are_left(
    postgresql: PostgresqlServer, own_database: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.catalog.server_connections._IDLE_SECONDS", 1)
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr("threading.excepthook", failed.append)
    name = sa.make_url(own_database).database
    with Store.open(home) as store, connected(postgresql.url_of("postgres")) as connection:
        assert "cam1/a.mp4" in store
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.exec_driver_sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        deadline = time.monotonic() + 20
        while any(one.name == "vfsd-idle" for one in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert not failed
        assert "cam1/a.mp4" in store  # it connects again


def _noted(url: str) -> int:
    with connected(url) as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM read_notes").scalar_one()
    return int(found)


def test_reads_are_noted_while_another_process_writes(own_database: str, home: Path) -> None:
    with Store.open(home) as store, Store.open(home) as other:
        video = store["cam1/a.mp4"]
        video.read(frames=[3], region=(10, 10, 200, 200))
        video.read(frames=[5])
        with other.catalog.writing():
            store.tools.read_log.flush()
            assert store.tools.read_log.dropped == 0  # type: ignore[attr-defined]
            assert _noted(own_database) == 2
            store.catalog.fold_reads()  # waits for a second, and gives up
            assert _noted(own_database) == 2
        found = list(other.catalog.reads())
        assert [one.first_frame for one in found] == [5, 3]
        assert _noted(own_database) == 0
        with store.catalog.reading() as seen:
            used = seen.derived_usage.segments(None)
        uses = sum(one.segments for one in found)
        assert sum(one.uses for one in used) == pytest.approx(uses, rel=0.01)


def test_notes_are_the_reads_themselves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(home) as store:
        video = store["cam1/a.mp4"]
        video.read(frames=range(3, 40, 7), size=(96, 54))
        store.tools.read_log.flush()
        (read,) = store.catalog.reads()
        with monkeypatch.context() as patch:
            patch.setattr(Database, "is_postgresql", False)
            store.catalog.note_reads([(video.info.digest, read)], keep=10)
        first, second = store.catalog.reads()
        assert replace(first, id=second.id) == second


def test_notes_are_moved_after_half_a_minute_by_one_process(own_database: str, home: Path) -> None:
    with Store.open(home) as store, Store.open(home) as other:
        store["cam1/a.mp4"].read(frames=[3])
        store.tools.read_log.flush()
        (read,) = store.catalog.reads()
        old = replace(read, at_ns=time.time_ns() - 31_000_000_000)
        digest = store["cam1/a.mp4"].info.digest
        with connected(own_database) as holder, holder.begin():
            holder.exec_driver_sql("SELECT pg_advisory_xact_lock(7813595)")
            other.catalog.note_reads([(digest, old)], keep=100)
            assert _noted(own_database) == 1
        store.catalog.note_reads([(digest, replace(read, at_ns=time.time_ns()))], keep=100)
        assert _noted(own_database) == 2  # this process has looked at its first note
        with Store.open(home) as third:
            third.catalog.note_reads([(digest, old)], keep=2)
        assert _noted(own_database) == 0
        assert len(list(store.catalog.reads())) == 2


def test_many_reads_at_once_are_sampled(own_database: str, home: Path) -> None:
    with Store.open(home) as store:
        video = store["cam1/a.mp4"]
        video.read(frames=[3], region=(10, 10, 200, 200))
        store.tools.read_log.flush()
        (read,) = store.catalog.reads()
        (segment, *_) = store.catalog.segments(video.info)
        used = replace(read, uses=(SegmentUse(segment.id, 0.5),))
        store.catalog.note_reads([(video.info.digest, used)] * 2500, keep=10_000)
        assert _noted(own_database) == 834
        store.catalog.fold_reads()
        with store.catalog.reading() as seen:
            (found,) = [one for one in seen.derived_usage.segments(None) if one.id == segment.id]
        assert found.uses == pytest.approx(834 * 3, rel=0.01)
        assert found.saved == pytest.approx(834 * 3 * 0.5, rel=0.01)


def test_reads_of_a_removed_video_are_forgotten(own_database: str, home: Path) -> None:
    with Store.open(home) as store:
        store["cam1/a.mp4"].read(frames=[3])
        store.tools.read_log.flush()
        store.remove("cam1/a.mp4")
        assert list(store.catalog.reads()) == []
        assert _noted(own_database) == 0
