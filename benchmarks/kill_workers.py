"""Kills workers and servers while orders run, and compares the store with one that had no trouble.

Orders of ingest, retile and detect run on three workers.  A random worker that has begun a unit is
killed every few seconds; the S3 server and PostgreSQL are killed twice, the fetch process five
times.  Afterwards the rows must be those of the same orders in one process.  A unit without a
result is lost.  A frame in two segments or examined twice, a retired segment, and a second video of
a name are doubled.  All objects of the bucket are read and hashed.  A file of the bucket that the
catalog does not know is left over.

Wasted is the share of CPU time of attempts without a stored result, and of killed workers from
their start on, without the attempts that they had finished.

``--twice`` runs each order two times at once, with or without kills.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from benchmarks.common import arguments, finish, folder_option, footage, table
from sample_videos import Encoding, Scene, write
from tests.support.dask_cluster import running_dask
from tests.support.postgresql import PostgresqlServer, postgresql_programs
from tests.support.remote_objects import running_process
from tests.support.seaweedfs import SeaweedServer, seaweedfs_program
from tests.support.work_orders import FIXED, MOTION, contents
from vfsd.api.store import Store
from vfsd.catalog.work_log import BEGUN, DONE
from vfsd.errors import VfsdError
from vfsd.maintenance import fsck
from vfsd.maintenance.push import push, use_bucket
from vfsd.storage.remote_objects import RemoteObjects
from vfsd.work import Order
from vfsd.work.units import MADE

WORKERS = 3
_NAMES = ("suburb_road_a", "suburb_road_b", "intel_cars", "carpov_highway", "phone_pan_campus")
_NEW_FILES = 20
# After this number of killed workers.
_S3_KILLS, _CATALOG_KILLS, _FETCH_KILLS = (4, 12), (8, 16), (2, 6, 10, 14, 18)
_COLUMNS = (
    *("engine", "seed", "units", "attempts", "killed", "s3", "catalog", "fetch"),
    *("lost", "doubled", "differ", "damaged", "left over", "findings", "wasted %", "seconds"),
)


@dataclass
class Figures:
    """The result of one campaign."""

    engine: str
    seed: int
    units: int = 0
    attempts: int = 0
    killed: int = 0
    s3: int = 0
    catalog: int = 0
    fetch: int = 0
    lost: int = 0
    doubled: int = 0
    differ: int = 0
    damaged: int = 0
    left_over: int = 0
    findings: int = 0
    useful_cpu: float = 0.0  #: seconds of the attempts whose results were stored
    wasted_cpu: float = 0.0  #: of other attempts, and of killed workers with their start
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def wasted(self) -> float:
        """The wasted share of the CPU time, in percent."""
        whole = self.useful_cpu + self.wasted_cpu
        return round(100 * self.wasted_cpu / whole, 1) if whole else 0.0

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost
            or self.doubled
            or self.differ
            or self.damaged
            or self.left_over
            or self.findings
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--engine", default="local", choices=("local", "ray", "dask"))
    parser.add_argument("--seed", type=int, action="append", help="may be repeated")
    parser.add_argument("--kills", type=int, default=20, help="of workers")
    parser.add_argument("--every", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--unit-seconds", type=float, default=1.1)
    parser.add_argument("--twice", action="store_true", help="run each order two times at once")
    folder_option(parser)
    options = parser.parse_args()
    program, programs = seaweedfs_program(), postgresql_programs()
    if program is None or programs is None:
        parser.error("SeaweedFS and PostgreSQL must be installed")
    found: list[Figures] = []
    wanted: dict[str, Any] = {}
    for seed in options.seed or [1]:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
            s3 = stack.enter_context(_closing(SeaweedServer(program)))
            server = stack.enter_context(_closing(PostgresqlServer(programs)))
            os.environ.update(s3.environment)
            campaign = Campaign(options, seed, Path(folder), s3, server)
            wanted = wanted or campaign.reference()
            figures = campaign.run(wanted)
            found.append(figures)
            for note in figures.notes:
                print(f"seed {seed}: {note}", file=sys.stderr)
            print(table(_COLUMNS, [_row(figures)]), flush=True)
    passed = all(one.is_clean for one in found)
    finish(options, "kill_workers", [vars(one) for one in found], passed=passed)


@contextmanager
def _closing(thing: Any) -> Iterator[Any]:
    try:
        yield thing
    finally:
        thing.close()


def _row(one: Figures) -> list[object]:
    return [getattr(one, name.removesuffix(" %").replace(" ", "_")) for name in _COLUMNS]


class Campaign:
    """One seed on one engine."""

    def __init__(
        self,
        options: argparse.Namespace,
        seed: int,
        folder: Path,
        s3: SeaweedServer,
        server: PostgresqlServer,
    ) -> None:
        self._options = options
        self._folder = folder
        self._s3, self._server = s3, server
        self._random = random.Random(seed)
        self._dead: dict[int, float] = {}  #: killed workers, and the CPU seconds they had used
        self._due = 0.0
        self._home = folder / "home"
        self.figures = Figures(options.engine, seed)

    def reference(self) -> dict[str, Any]:
        """Return the rows that one process makes."""
        with Store.create(self._folder / "plain") as plain:
            _fill(plain)
            for order in self._orders(plain, self._new_files("plain-new")):
                order.run_part()
            return contents(plain)

    def run(self, wanted: dict[str, Any]) -> Figures:
        began = time.monotonic()
        new = self._new_files("new")
        with Store.create(self._home, catalog_url=self._server.new_database()) as store:
            _fill(store)
            url = f"s3://{self._s3.bucket}/{store.parts.directory.id}"
            use_bucket(store.parts, url, self._s3.options())
        with Store.open(self._home) as store, _engine(self._options.engine) as on:
            push(store.parts)
            for order in self._orders(store, new):
                self._perform(order, on)
        with Store.open(self._home) as store:
            push(store.parts)
            self._compare(store, wanted)
        pid = running_process(self._home / "cache" / "fetch.lock")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    def _new_files(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        for number in range(_NEW_FILES):
            scene = Scene(160, 120, frames=25, noise=0.0, seed=number)
            write(scene, Encoding("h264", preset="ultrafast"), folder / f"{number}.mp4")
        return folder

    def _orders(self, store: Store, new: Path) -> Iterator[Order]:
        seconds = self._options.unit_seconds
        names = [video.name for video in store.find()]
        yield store.order("ingest", [str(path) for path in sorted(new.glob("*.mp4"))], to="new")
        spec = {"layout": "uniform:1x2", "settings": FIXED}
        yield store.order("retile", names, unit_seconds=seconds, **spec)
        yield store.order("detect", names, unit_seconds=seconds, **MOTION)

    def _perform(self, order: Order, on: str) -> None:
        def run() -> None:
            order.run(on, on_progress=lambda _: self._act(order))

        times = 2 if self._options.twice else 1
        with ThreadPoolExecutor(times) as executor:
            for one in [executor.submit(run) for _ in range(times)]:
                one.result()
        state = order.state()
        self.figures.units += state.units
        self.figures.attempts += state.runs
        self._count_cpu(order)
        lost = state.units - sum(one in DONE for one in state.outcomes.values())
        self.figures.lost += lost
        for number, failure in state.failures.items():
            self.figures.notes.append(
                f"{order.record.verb} {number} {failure.outcome}: {failure.error}"
            )

    def _count_cpu(self, order: Order) -> None:
        made = set[int]()
        for row in order.results():
            used, pid = row.cpu or 0.0, int(row.host.rpartition(":")[2])
            if row.outcome == MADE and row.number is not None and row.number not in made:
                made.add(row.number)
                self.figures.useful_cpu += used
            else:
                self.figures.wasted_cpu += used
            if pid in self._dead:  # only the rest of its time is lost
                self._dead[pid] -= used
        self.figures.wasted_cpu += sum(max(0.0, used) for used in self._dead.values())
        self._dead = dict.fromkeys(self._dead, 0.0)

    def _act(self, order: Order) -> None:
        """Kill something if it is time; called by one of the threads about twice a second."""
        if time.monotonic() < self._due or self.figures.killed >= self._options.kills:
            return
        try:
            log = order.results()
        except VfsdError:
            return
        ended = {one.attempt for one in log if one.outcome != BEGUN}
        running = {
            int(one.host.rpartition(":")[2])
            for one in log
            if one.outcome == BEGUN and one.attempt not in ended
        }
        alive = sorted(pid for pid in running - self._dead.keys() if _is_worker(pid))
        if not alive:
            return
        self._due = time.monotonic() + self._options.every
        victim = self._random.choice(alive)
        with suppress(ProcessLookupError, FileNotFoundError):
            used = _cpu_seconds(victim)
            os.kill(victim, signal.SIGKILL)
            self._dead[victim] = used
            self.figures.killed += 1
            self._kill_servers(self.figures.killed)

    def _kill_servers(self, number: int) -> None:
        if number in _FETCH_KILLS:
            pid = running_process(self._home / "cache" / "fetch.lock")
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self.figures.fetch += 1
        if number in _S3_KILLS:
            self._s3.kill()
            self._s3.start()
            self.figures.s3 += 1
        if number in _CATALOG_KILLS:
            self._server.stop()
            self._server.start()
            self.figures.catalog += 1

    def _compare(self, store: Store, wanted: dict[str, Any]) -> None:
        figures = self.figures
        with store.catalog.reading() as seen:
            segments = seen.segments.all()
            placed, needed = seen.objects.placed(), seen.objects.needed()
        retired = sum(one.retired_ns is not None for one in segments)
        frames = Counter(
            (one.original_id, one.picture, frame)
            for one in segments
            if one.retired_ns is None
            for frame in one.frames
        )
        figures.doubled = retired + sum(count > 1 for count in frames.values())
        try:
            found = contents(store)
        except AssertionError as error:
            found = {}
            figures.notes.append(f"rows do not add up: {error}")
        figures.differ = sum(found.get(name) != wanted.get(name) for name in {*found, *wanted})
        figures.damaged = len(needed.keys() - placed.keys())
        figures.damaged += sum(
            blake3(self._from_bucket(store, place)).hexdigest() != key
            for key, (place, _) in placed.items()
        )
        objects = store.parts.objects
        assert isinstance(objects, RemoteObjects)
        known = {place for place, _ in placed.values()} | self._promised(store)
        there = {name for name, *_ in objects.client.list() if name.startswith("o/")}
        figures.left_over = len(there - known)
        fsck.collect(store.parts)
        findings = fsck.run(store.parts, deep=True)
        figures.findings = len(findings)
        figures.notes += [str(one) for one in findings[:5]]

    def _from_bucket(self, store: Store, place: str) -> bytes:
        path = f"/{self._s3.bucket}/{store.parts.directory.id}/{place}"
        return self._s3.read(path)

    def _promised(self, store: Store) -> set[str]:
        """Return the places that the catalog will have deleted: uploads with a lease, garbage."""
        import sqlalchemy as sa

        engine = sa.create_engine(store.parts.directory.catalog_url)
        with engine.connect() as connection:
            found = connection.execute(
                sa.text("SELECT place FROM uploads UNION SELECT place FROM garbage")
            )
            places = {str(row.place) for row in found}
        engine.dispose()
        return places


def _fill(store: Store) -> None:
    folder = footage()
    paths = [path for name in _NAMES for path in sorted((folder / "real").glob(f"{name}*"))]
    for path in paths or sorted(folder.glob("*.mp4"))[:5]:
        store.ingest(path).verify()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children that have ended."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")


def _is_worker(pid: int) -> bool:
    """Return whether a process is one of the engine's, not another one with a reused number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(word in command for word in (b"vfsd", b"ray", b"multiprocessing", b"distributed"))


@contextmanager
def _engine(name: str) -> Iterator[str]:
    if name == "local":
        yield f"local:{WORKERS}"
    elif name == "ray":
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
            ray.init(
                num_cpus=WORKERS,
                include_dashboard=False,
                object_store_memory=100 << 20,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                log_to_driver=False,
                logging_level="ERROR",
            )
            yield "ray"
            ray.shutdown()
    else:
        with running_dask(WORKERS) as cluster:
            yield cluster.scheduler_address.replace("tcp://", "dask://")


if __name__ == "__main__":
    main()
