"""A store whose PostgreSQL server stops, and starts again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from operator import sub
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.selection import thorough_but
from vfsd.api.store import Store
from vfsd.errors import UnreachableError

_SECONDS = 60


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    """A server that a test may stop."""
    with running_postgresql() as server:
        yield server


@pytest.fixture
def home(server: PostgresqlServer, tmp_path: Path, wide_clip: Path) -> Path:
    """A store with a video that is tiled, and one that is not."""
    with Store.create(tmp_path / "store", catalog_url=server.new_database()) as store:
        store.ingest(wide_clip, "tiled.mp4").tiles.retile("uniform:2x2")
        store.ingest(wide_clip, "plain.mp4")
        store.ingest(wide_clip, "other.mp4")
    return tmp_path / "store"


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def _wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("staleness", thorough_but([0.05], [0, 0.05, None]))
def test_open_videos_are_read_while_the_server_is_away(
    server: PostgresqlServer,
    home: Path,
    staleness: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = (10, 10, 200, 200)
    with Store.open(home) as store:
        expected = store["plain.mp4"].read(frames=range(60))
        tiles = store["tiled.mp4"].read(frames=range(60), region=part)
    with Store.open(home, staleness=staleness) as store:
        plain, tiled = store["plain.mp4"], store["tiled.mp4"]
        plain.read(frames=[0])
        tiled.read(frames=[0], region=part)
        server.stop()
        for _ in range(2):
            for number in range(60):  # the first of them are warm, later ones cold
                assert np.array_equal(plain.read(frames=[number])[0], expected[number])
                found = tiled.read(frames=[number], region=part)
                assert np.array_equal(found[0], tiles[number])
        assert store["plain.mp4"].name == "plain.mp4"
        for _ in range(2):
            with pytest.raises(UnreachableError):
                store["other.mp4"]
            with pytest.raises(UnreachableError):
                store.catalog.tag(plain.info, "night")
        server.start()
        store.catalog.tag(store["other.mp4"].info, "night")
        assert np.array_equal(plain.read(frames=[7])[0], expected[7])
        if staleness is not None:
            with Store.open(home) as other:
                other.remove("plain.mp4")
            _wait_for(lambda: store.get("plain.mp4") is None)
    told = [one for one in caplog.records if "cannot look for changes" in one.message]
    assert len(told) == (0 if staleness is None else 1)


def test_open_videos_are_read_while_the_server_is_silent(
    server: PostgresqlServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.catalog.server_connections._ANSWER_SECONDS", 0.2)
    with Store.open(home, staleness=0.02) as store:
        video = store["plain.mp4"]
        video.read(frames=[0])
        with connected(server.url) as connection:
            find = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            pids = connection.exec_driver_sql(find).scalars().all()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                for number in range(20):
                    assert len(video.read(frames=[number])) == 1
                    time.sleep(0.03)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
        store.catalog.tag(store["plain.mp4"].info, "night")
        assert store["plain.mp4"].info.tags == {"night"}


@pytest.mark.slow
def test_stopped_server_is_an_error_in_time(server: PostgresqlServer, home: Path) -> None:
    with Store.open(home) as store, Store.open(home) as other:
        plain, tiled = store["plain.mp4"], other["tiled.mp4"]
        actions: list[Callable[[], object]] = [
            lambda: store["other.mp4"],
            lambda: store.catalog.tag(plain.info, "one"),
            lambda: store.catalog.tag(plain.info, "two"),  # waits for its turn
            lambda: other.catalog.tag(tiled.info, "three"),
            lambda: other["other.mp4"],
        ]

        def timed(action: Callable[[], object]) -> float:
            began = time.monotonic()
            with pytest.raises(UnreachableError):
                action()
            return time.monotonic() - began

        with server.paused(), ThreadPoolExecutor(len(actions)) as pool:
            assert max(pool.map(timed, actions)) < 20
            assert timed(actions[0]) < 20

        def reached() -> bool:
            with suppress(UnreachableError):  # for a second, it is not asked again
                return store["other.mp4"].name == "other.mp4"
            return False

        _wait_for(reached)
        store.catalog.tag(plain.info, "four")
        # A transaction whose answer did not arrive is there as a whole, or not at all.
        assert {"four"} <= store["plain.mp4"].info.tags <= {"one", "two", "four"}


@pytest.mark.slow
def test_slow_statement_is_not_taken_for_a_stopped_server(
    server: PostgresqlServer, home: Path
) -> None:
    with Store.open(home) as store:
        info = store["plain.mp4"].info
        with (
            connected(
                server.url_of(sa.make_url(store.parts.directory.catalog_url).database or "")
            ) as blocking,
            ThreadPoolExecutor(1) as pool,
        ):
            blocking.exec_driver_sql("BEGIN")
            blocking.exec_driver_sql("SELECT version_num FROM alembic_version FOR UPDATE")
            tagging = pool.submit(store.catalog.tag, info, "late")
            time.sleep(13)
            assert not tagging.done()
            blocking.exec_driver_sql("COMMIT")
            tagging.result(timeout=_SECONDS)
        assert store["plain.mp4"].info.tags == {"late"}


def test_threads_read_through_restarts(server: PostgresqlServer, home: Path) -> None:
    """Nothing but new names and changes fails, however often the server crashes."""
    failed: list[BaseException] = []
    counts = [0, 0]
    is_over = threading.Event()
    with Store.open(home, staleness=0.02) as store:
        videos = [store["plain.mp4"], store["tiled.mp4"]]
        expected = [video.read(frames=range(60), region=(10, 10, 200, 200)) for video in videos]

        def read(which: int) -> None:
            try:
                while not is_over.is_set():
                    number = counts[which] * 7 % 60
                    found = videos[which].read(frames=[number], region=(10, 10, 200, 200))
                    assert np.array_equal(found[0], expected[which][number])
                    counts[which] += 1
            except BaseException as error:
                failed.append(error)

        def has_reached(goal: list[int]) -> bool:
            return failed != [] or min(map(sub, counts, goal)) >= 0

        threads = [threading.Thread(target=read, args=(which,)) for which in range(2)]
        for one in threads:
            one.start()
        for _ in range(3):
            goal = [one + 1 for one in counts]
            server.stop()
            _wait_for(partial(has_reached, goal))
            server.start()
        is_over.set()
        for one in threads:
            one.join(_SECONDS)
        assert failed == []
        assert store["other.mp4"].info.original.frames == 60


def test_sessions_that_end_leave_nothing_half_done(server: PostgresqlServer, home: Path) -> None:
    """As in a failover: the server ends every session in the middle of its transaction."""

    def end_sessions() -> None:
        with connected(server.url) as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def tag_and_lose(store: Store, last: list[str]) -> None:
        number = store["tiled.mp4"].info.id
        with store.catalog.writing() as change:
            change.videos.add_tags(number, ["one"])
            end_sessions()
            change.videos.add_tags(number, last)

    with Store.open(home) as store:
        video = store["tiled.mp4"].info
        changes = store.catalog._database._ask_changes()
        for last in ([], ["two"]):
            with pytest.raises(UnreachableError):
                tag_and_lose(store, last)
        assert store.catalog._database._ask_changes() == changes
        assert store.catalog.video("tiled.mp4").tags == set()
        end_sessions()  # between transactions: the next one connects again
        store.catalog.tag(video, "four")
        assert store.catalog.video("tiled.mp4").tags == {"four"}
        assert store.catalog._database._ask_changes() == changes + 1
        with store.catalog.reading() as seen:
            assert len(seen.tree.children(1)) == 3
