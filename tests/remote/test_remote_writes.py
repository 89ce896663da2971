"""Writing to stores with a bucket: bytes first, on two homes, with failures at each step."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.cli.conftest import run_command
from tests.support.http_proxy import HttpProxy
from tests.support.remote_objects import wait_until
from tests.support.seaweedfs import SeaweedServer
from tests.support.work_orders import TILES
from vfsd.api.store import Store
from vfsd.catalog.bucket_objects import database_time
from vfsd.catalog.schema import garbage, uploads
from vfsd.errors import UnreachableError
from vfsd.maintenance import fsck
from vfsd.storage.remote_objects import RemoteObjects

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"

pytestmark = pytest.mark.usefixtures("credentials")


@dataclass
class Homes:
    """Two homes of a store on a server, with a bucket."""

    first: Path
    second: Path
    proxy: HttpProxy


def make_home(place: Path, catalog: str | None, options: dict[str, str | bool]) -> None:
    given = [
        f"--option={name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    on = [] if catalog is None else ["--catalog", catalog]
    url = f"s3://videos/{place.parent.name}-{place.name}"
    assert run_command("init", place, *on, "--objects", url, *given).code == 0


@pytest.fixture
def homes(
    tmp_path: Path, own_database: str, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> Homes:
    first, second = tmp_path / "first", tmp_path / "second"
    make_home(first, own_database, seaweedfs.options(s3_proxy.port))
    assert run_command("join", second, "--catalog", own_database).code == 0
    s3_proxy.reset()
    return Homes(first, second, s3_proxy)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def single(
    request: pytest.FixtureRequest, tmp_path: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> Path:
    """A home with a bucket."""
    catalog = request.getfixturevalue("own_database") if request.param == "postgresql" else None
    make_home(tmp_path / "only", catalog, seaweedfs.options(s3_proxy.port))
    s3_proxy.reset()
    return tmp_path / "only"


def opened(place: Path) -> Store:
    """Open a store that sees changes of other homes at once."""
    return Store.open(place, staleness=0)


def require_complete(store: Store, *, garbage_files: int | None = 0) -> None:
    """Assert that each row has its bytes in the bucket, and that no others are there."""
    objects = store.parts.objects
    assert isinstance(objects, RemoteObjects)
    with store.catalog.connected() as connection:
        waste = {
            row.place
            for table in (uploads, garbage)
            for row in connection.execute(sa.select(table.c.place))
        }
    with store.catalog.reading() as seen:
        assert seen.objects.unplaced() == {}
        assert seen.objects.needed().keys() == seen.objects.sizes().keys()
        places = [seen.objects.place(key) for key in seen.objects.sizes()]
    there = {name: size for name, size, _ in objects.client.list() if "o/" in name}
    there = {name[name.index("o/") :]: size for name, size in there.items()}
    for found in places:
        assert found is not None
        assert there.pop(found[0]) == found[1]
    assert there.keys() <= waste
    if garbage_files is not None:
        assert len(waste) == garbage_files
    assert list(objects.all_keys()) == []
    assert objects.leftovers() == []


def contents(store: Store, name: str) -> list[object]:
    """Return pixels of the original, and the packs of all tiles, as this home reads them."""
    video = store[name]
    found: list[object] = [video.read(frames=[0, 11, len(video) - 1], psnr=math.inf).data.tobytes()]
    for segment in store.catalog.segments(video.info):
        with closing(store.parts.objects.open(segment.object_key)) as reader:
            found.append(reader.read(segment.pack_at, segment.size))
    return found


def test_what_one_home_makes_another_one_reads(homes: Homes) -> None:
    with opened(homes.first) as store, opened(homes.second) as other:
        for one, more, name in ((store, other, "a.mp4"), (other, store, "b.mp4")):
            video = one.ingest(CLIP, name)
            assert contents(more, name) == contents(one, name)
            video.tiles.retile("uniform:2x2", span=(0, 2))
            assert len(more.catalog.segments(more[name].info)) > 0
            assert contents(more, name) == contents(one, name)
        require_complete(store)


def test_reads_of_own_bytes_need_no_request(single: Path, s3_proxy: HttpProxy) -> None:
    with Store.open(single) as store:
        store.ingest(CLIP, "a.mp4")
        require_complete(store)
        s3_proxy.reset()
        assert store["a.mp4"].read(frames=[3]).data.any()
        assert sum(s3_proxy.counts.requests.values()) == 0
        pictures = np.arange(30 * 64 * 96 * 3, dtype=np.uint8).reshape(30, 64, 96, 3)
        made = store.write("made.mp4", pictures, fps=25)
        made.renditions.make((48, 32))
        require_complete(store)
    assert run_command("--store", single, "push", "--json").object["objects"] == 0


_INGEST = """
import sys
from vfsd.api.store import Store

with Store.open(sys.argv[1]) as store:
    store.ingest(sys.argv[2], sys.argv[3])
"""
_SECONDS = 120.0


@contextmanager
def ingesting(home: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ingests the clip; it is killed at the end if it still runs."""
    process = subprocess.Popen([sys.executable, "-c", _INGEST, home, CLIP, name])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def leases(store: Store) -> list[str]:
    with store.catalog.connected() as connection:
        return list(connection.execute(sa.select(uploads.c.place)).scalars())


def sent(store: Store) -> set[str]:
    """Return the names of all objects in the bucket."""
    objects = store.parts.objects
    assert isinstance(objects, RemoteObjects)
    return {name for name, *_ in objects.client.list() if "o/" in name}


def expire(store: Store) -> None:
    """Let the leases of all uploads end, and another home find that."""
    with store.catalog._database.appending() as connection:
        connection.execute(sa.update(uploads).values(expires=database_time(connection, -1)))
    for place in leases(store):
        store.catalog.uploads.abandon(place)


def require_no_trace(store: Store) -> None:
    """Assert that a killed process left nothing but what leases and garbage name."""
    assert [video.name for video in store.find()] == []
    with store.catalog.reading() as seen:
        assert seen.objects.sizes() == {}
        assert seen.tree.lookup(1, "a.mp4") is None
    fsck.collect(store.parts)
    require_complete(store, garbage_files=None)
    assert fsck.run(store.parts) == []


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("leased", marks=pytest.mark.thorough),
        pytest.param("half", marks=pytest.mark.thorough),
        "sent",
        pytest.param("recorded", marks=pytest.mark.thorough),
    ],
)
def test_writer_is_killed(homes: Homes, phase: str) -> None:
    faults = homes.proxy.faults
    with opened(homes.second) as other, ExitStack() as turn:
        sent(other)
        faults.silent, faults.half_puts = phase == "leased", phase == "half"
        if phase == "sent":
            turn.enter_context(other.catalog.writing())
        with ingesting(homes.first, "a.mp4") as process:
            if phase == "recorded":
                wait_until(lambda: _is_recorded(other), _SECONDS)
            else:
                wait_until(lambda: leases(other), _SECONDS)
            if phase == "half":
                wait_until(lambda: homes.proxy.counts.requests["PUT"], _SECONDS)
            if phase == "sent":
                wait_until(lambda: sent(other), _SECONDS)
                assert not _is_recorded(other)
            process.kill()
        turn.close()
        faults.silent = faults.half_puts = False
        with opened(homes.first) as store:
            if phase == "recorded":
                assert [video.name for video in other.find()] == ["a.mp4"]
                assert contents(other, "a.mp4") == contents(store, "a.mp4")
                return
            require_no_trace(store)
            store.ingest(CLIP, "a.mp4")
            assert contents(other, "a.mp4") == contents(store, "a.mp4")
            require_complete(store, garbage_files=1)


def _is_recorded(store: Store) -> bool:
    with store.catalog.reading() as seen:
        return bool(seen.objects.sizes())


@pytest.mark.thorough
def test_lease_ends_while_the_writer_is_stopped(homes: Homes) -> None:
    with opened(homes.second) as other:
        sent(other)
        homes.proxy.faults.silent = True
        with ingesting(homes.first, "a.mp4") as process:
            wait_until(lambda: leases(other), _SECONDS)
            process.send_signal(signal.SIGSTOP)
            expire(other)
            homes.proxy.faults.silent = False
            process.send_signal(signal.SIGCONT)
            assert process.wait(_SECONDS) == 0
        assert other["a.mp4"].read(frames=[3]).data.any()
        with opened(homes.first) as store:
            require_complete(store, garbage_files=1)


@pytest.mark.thorough
def test_two_homes_ingest_a_file_at_once(homes: Homes) -> None:
    with opened(homes.second) as other:
        with (
            ExitStack() as turn,
            ingesting(homes.first, "a.mp4") as one,
            ingesting(homes.second, "b.mp4") as two,
        ):
            turn.enter_context(other.catalog.writing())
            wait_until(lambda: len(leases(other)) == 2, _SECONDS)
            turn.close()
            assert one.wait(_SECONDS) == two.wait(_SECONDS) == 0
        with other.catalog.reading() as seen:
            assert len(seen.objects.sizes()) == 1
        assert contents(other, "a.mp4") == contents(other, "b.mp4")
        require_complete(other, garbage_files=1)
        # Known bytes are not sent again.
        homes.proxy.reset()
        other.ingest(CLIP, "c.mp4")
        assert homes.proxy.counts.requests["PUT"] == 0


def test_lost_response_is_a_success(single: Path, s3_proxy: HttpProxy) -> None:
    with opened(single) as store:
        sent(store)
        s3_proxy.faults.lost_puts = 1
        store.ingest(CLIP, "a.mp4")
        assert s3_proxy.counts.requests["PUT"] == 2
        require_complete(store)


def test_silent_bucket_leaves_the_store_as_it_was(single: Path, s3_proxy: HttpProxy) -> None:
    with opened(single) as store:
        objects = store.parts.objects
        assert isinstance(objects, RemoteObjects)
        objects.fetch_seconds = 2.0
        sent(store)
        s3_proxy.faults.silent = True
        with pytest.raises(UnreachableError, match="does not answer"):
            store.ingest(CLIP, "a.mp4")
        pictures = np.zeros((5, 64, 96, 3), np.uint8)
        with pytest.raises(UnreachableError):
            store.write("b.mp4", pictures, fps=25)
        s3_proxy.faults.silent = False
        assert [video.name for video in store.find()] == []
        (recording,) = store.recordings()
        store.recover(recording)
        assert store["b.mp4"].read(frames=[3]).data.shape == (1, 64, 96, 3)
        assert store.recordings() == []
        require_complete(store, garbage_files=2)


@pytest.mark.thorough
def test_workers_of_an_order_on_two_homes(homes: Homes) -> None:
    with opened(homes.first) as store, opened(homes.second) as other:
        store.ingest(CLIP, "a.mp4").verify()
        order = store.order("retile", unit_seconds=1.0, **TILES)
        command = [sys.executable, "-m", "vfsd", "--store"]
        workers = [
            subprocess.Popen([*command, home, "work", "run", order.id, "--part", f"{number}/2"])
            for number, home in enumerate((homes.first, homes.second))
        ]
        assert [one.wait(_SECONDS) for one in workers] == [0, 0]
        assert {one.outcome for one in store.catalog.work.results(order.id)} >= {"made"}
        frames = [
            frame for one in store.catalog.segments(store["a.mp4"].info) for frame in one.frames
        ]
        assert frames == list(range(len(store["a.mp4"])))
        assert contents(other, "a.mp4") == contents(store, "a.mp4")
        require_complete(store)


@contextmanager
def counting(store: Store) -> Iterator[list[int]]:
    """Yield a list that gets the number of statements of each transaction that records an object.

    The two statements that take the turn arrive together.
    """
    engine = store.catalog._database.engine
    done: list[int] = []
    running: dict[int, list[str]] = {}

    def note(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        running.setdefault(id(connection.connection.dbapi_connection), []).append(statement)

    def begin(connection: sa.Connection) -> None:
        running.pop(id(connection.connection.dbapi_connection), None)

    def end(connection: sa.Connection) -> None:
        statements = running.pop(id(connection.connection.dbapi_connection), [])
        if any("DELETE FROM uploads" in one for one in statements):
            done.append(len(statements) + 1)

    listeners: dict[str, Callable[..., None]] = {
        "before_cursor_execute": note,
        "begin": begin,
        "commit": end,
    }
    for event, listener in listeners.items():
        sa.event.listen(engine, event, listener)
    try:
        yield done
    finally:
        for event, listener in listeners.items():
            sa.event.remove(engine, event, listener)


def test_tiles_of_a_unit_are_one_object_and_one_transaction(homes: Homes) -> None:
    frames = 750
    levels = np.arange(frames, dtype=np.uint8)[:, None, None, None]
    pictures = np.broadcast_to(levels, (frames, 64, 128, 3))
    with opened(homes.first) as store, opened(homes.second) as other:
        video = store.write("a.mp4", pictures, fps=25)
        video.verify()
        homes.proxy.reset()
        with counting(store) as statements:
            made = video.tiles.retile("uniform:1x2", jobs=1)
        assert len(made) >= 10
        assert len(statements) == 1
        assert statements[0] <= 13
        assert homes.proxy.counts.requests["PUT"] == 1
        assert len({one.object_key for one in made}) == 1
        assert fsck.run(other.parts, deep=True) == []
        region, last = (0, 0, 64, 64), [frames - 1]
        before = other["a.mp4"].read(frames=last, region=region, psnr=20).data
        # The last segment keeps the object.
        with store.catalog.writing() as change:
            change.segments.delete([one.id for one in made[:-1]])
        fsck.collect(store.parts)
        with opened(homes.second) as again:
            after = again["a.mp4"].read(frames=last, region=region, psnr=20).data
            np.testing.assert_array_equal(after, before)
        assert fsck.run(store.parts, deep=True) == []
        require_complete(store)
        with store.catalog.writing() as change:
            change.segments.delete([made[-1].id])
        fsck.collect(store.parts)
        require_complete(store, garbage_files=1)
