"""Orders on Ray and Dask: the same data, while workers and the database server are killed."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sample_videos import Encoding, Scene, write
from tests.support.dask_cluster import running_dask
from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.ray_cluster import running_ray
from tests.support.work_orders import contents, orders, require_sound
from tests.work.conftest import NAMES
from vfsd.api.store import Store
from vfsd.catalog.work_log import BEGUN
from vfsd.errors import UnreachableError
from vfsd.work import Order

pytestmark = [
    pytest.mark.slow,
    # Warnings of the engines about themselves.
    pytest.mark.filterwarnings("ignore"),
]

WORKERS = 3


@pytest.fixture
def ray_cluster() -> Iterator[str]:
    """A Ray of this process with three workers."""
    with running_ray(WORKERS):
        yield "ray"


@pytest.fixture
def dask_cluster() -> Iterator[str]:
    """A scheduler with three workers on this machine."""
    with running_dask(WORKERS) as cluster:
        yield address_of(cluster)


def address_of(cluster: Any) -> str:
    address: str = cluster.scheduler_address.replace("tcp://", "dask://")
    return address


@pytest.fixture(params=["ray", "dask"])
def engine(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(f"{request.param}_cluster")
    return address


@pytest.fixture
def own_server() -> Iterator[PostgresqlServer]:
    """A server that a test may kill."""
    with running_postgresql() as server:
        yield server


def require_same_as_one_process(store: Store, plain: Store) -> None:
    for order in orders(plain):
        order.run_part()
    assert contents(store) == contents(plain)
    require_sound(store)


def test_kills(
    engine: str,
    own_server: PostgresqlServer,
    make_store: Callable[..., Store],
    clip: Path,
    tmp_path: Path,
) -> None:
    plain = filled(make_store("sqlite", "plain"), clip)
    with Store.create(tmp_path / "store", catalog_url=own_server.new_database()) as store:
        filled(store, clip)
        killer = Killer(own_server)
        for order in orders(store, unit_seconds=2):
            state = order.run(engine, on_progress=partial(killer.act, order))
            assert set(state.counts) <= {"made", "skipped"}
            assert state.ended == state.units
        assert killer.killed >= 3
        assert killer.stops == 1
        require_same_as_one_process(store, plain)


class Killer:
    """Kills workers that have begun a unit, and the server once."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self._random = random.Random(1)
        self._victims = Counter[int]()
        self.killed = self.stops = 0

    def act(self, order: Order, _: object) -> None:
        log = order.results()
        ended = {one.attempt for one in log if one.outcome != BEGUN}
        # A third death would make the unit suspicious.
        running = [
            one
            for one in log
            if one.outcome == BEGUN and one.attempt not in ended
            if self._victims[one.number or 0] < 2
        ]
        if running and self.killed < 6:
            chosen = self._random.choice(running)
            with suppress(ProcessLookupError):
                os.kill(int(chosen.host.rpartition(":")[2]), signal.SIGKILL)
                self._victims[chosen.number or 0] += 1
                self.killed += 1
        elif self.killed >= 3 and not self.stops:
            self.stops += 1
            self._server.stop()
            self._server.start()


def test_order_goes_on_when_workers_return(
    make_store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("vfsd.work.engines._ASK_SECONDS", 0.1)
    monkeypatch.setattr("vfsd.work.engines._WARN_SECONDS", 1)
    store = make_store("postgresql")
    order = orders(store)[0]

    def warned() -> bool:
        return any("has no workers" in one.message for one in caplog.records)

    with running_dask(0) as cluster, ThreadPoolExecutor(1) as executor:

        def start_worker(_: object) -> None:
            if warned() and not cluster.workers:
                cluster.scale(1)

        state = executor.submit(order.run, address_of(cluster), on_progress=start_worker).result()
        assert warned()
        assert state.ended == state.units


def test_order_without_workers_ends_with_an_error(
    make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.work.engines._ASK_SECONDS", 0.1)
    monkeypatch.setattr("vfsd.work.engines._END_SECONDS", 2)
    order = orders(make_store("postgresql"))[0]
    with (
        running_dask(0) as cluster,
        pytest.raises(UnreachableError, match="has had no workers for"),
    ):
        order.run(address_of(cluster))
    assert order.run("local:2").ended == order.record.units


def test_every_unit_twice(engine: str, make_store: Callable[..., Store]) -> None:
    store = make_store("postgresql")
    for order in orders(store):
        with ThreadPoolExecutor(2) as executor:
            both = [executor.submit(order.run, engine) for _ in range(2)]
        for one in both:
            assert set(one.result().counts) <= {"made", "skipped"}
        state = order.state()
        assert state.ended == state.units
        assert state.runs == 2 * state.units
    require_same_as_one_process(store, make_store("sqlite", "plain"))


def filled(store: Store, clip: Path) -> Store:
    for name in NAMES:
        if name in store:
            store.remove(name)
        store.ingest(clip, name).verify()
    return store


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty seconds, for units that take a while."""

    path = tmp_path_factory.mktemp("clip") / "long.mp4"
    scene = Scene(640, 360, frames=500, rate=Fraction(25), density=0.03, noise=0.0, seed=5)
    write(scene, Encoding("h264", gop=25, bframes=0, preset="ultrafast"), path)
    return path
