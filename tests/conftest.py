"""Fixtures and hooks for all tests, such as the real footage and the check for FUSE."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.util import LRUCache

from sample_videos import Encoding, Scene, write
from tests.support.encoded_tiles import RememberingEncoder
from tests.support.examiner import RememberingExaminer
from tests.support.http_proxy import HttpProxy
from tests.support.mount_starter import MountStarter
from tests.support.pgbouncer import PgBouncer, pgbouncer_program
from tests.support.postgresql import PostgresqlServer, running_postgresql
from tests.support.seaweedfs import SeaweedServer, seaweedfs_program
from tests.support.selection import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_setup,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import open_catalog
from vfsd.catalog.engine import Database
from vfsd.codecs.stitching.kvazaar import kvazaar_available
from vfsd.derive.tile_encoder import SegmentMaker
from vfsd.errors import EnvironmentMissingError
from vfsd.mount.fuse.libfuse import require_fuse
from vfsd.mount.fuse.mount_options import MountOptions
from vfsd.read.read_context import TileIndex
from vfsd.storage.sandbox_pool import SandboxPool

# Hooks of pytest, which it looks for in this module.
__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

REPOSITORY = Path(__file__).resolve().parent.parent


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_collection_finish() -> None:
    """Leave the collected tests and the imported modules out of later garbage collections, which
    would look at all of them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Collect the files that a failed test left open.  Otherwise their ResourceWarning may fail a
    later test, during which the garbage happens to be collected."""
    done = yield
    if item.stash.get(_FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            setattr(sys, name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return done


def footage_folder() -> Path | None:
    """The folder of real footage, if it is here: VFSD_FOOTAGE, or one next to the repository."""
    told = os.environ.get("VFSD_FOOTAGE")
    folder = Path(told) if told else REPOSITORY.parent / "shared" / "videos"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of examinations, for all processes of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "examined"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def warm_workers(examined: Path) -> Iterator[None]:
    """Share examiner processes and their results between all stores of this process.  Starting one
    or examining a file takes longer than the rest of most tests."""
    workers = SandboxPool()
    examiner = partial(RememberingExaminer, folder=examined, workers=workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vfsd.storage.context.Examiner", examiner)
        yield
    workers.close()


@pytest.fixture(scope="session", autouse=True)
def tiles_encoded_once(examined: Path, pytestconfig: pytest.Config) -> Iterator[None]:
    """Encode equal tiles once, except with `--all`.  Encoding takes most of the time of tests of
    tiles."""
    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.option.all:
            patch.setattr("vfsd.derive.tile_encoder.encode_cells", RememberingEncoder(examined))
        yield


@pytest.fixture(scope="session", autouse=True)
def catalogs_created_by_script(pytestconfig: pytest.Config) -> Iterator[None]:
    """Create catalogs on PostgreSQL without repeating the work of Alembic, except with `--all`."""
    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.option.all and find_spec("psycopg") is not None:
            from tests.support.catalog_script import RememberedUpgrade

            upgrade = RememberedUpgrade(open_catalog._upgrade_schema)
            patch.setattr(open_catalog, "_upgrade_schema", upgrade)
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Let all catalogs share one cache of compiled SQLAlchemy statements.  Compiling them takes a
    sixth of the time of a test with a store of its own."""
    make_engine = Database._make_engine
    compiled = LRUCache[object, object](4096)
    dialects: dict[str, Dialect] = {}

    def make(database: Database) -> Engine:
        engine = make_engine(database)
        engine.dialect = dialects.setdefault(engine.dialect.name, engine.dialect)
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_make_engine", make)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_daemons(examined: Path) -> Iterator[None]:
    """Fork the mounts that test processes start.  Subprocesses of tests start theirs normally."""
    starter: MountStarter | None = None

    def launch(pipe: str, task: str, log: Path) -> None:
        nonlocal starter
        if starter is None:
            starter = MountStarter(examined)
        starter.launch(pipe, task, log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vfsd.mount.control._launch", launch)
        yield
    if starter is not None:
        starter.close()


@pytest.fixture(autouse=True)
def as_important_as_before() -> Iterator[None]:
    """Restore the scheduling policy, which a background command lowers for its whole process."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    if os.sched_getscheduler(0) != policy:
        with suppress(PermissionError):  # only root may
            os.sched_setscheduler(0, policy, parameters)


@pytest.fixture(autouse=True)
def costs_by_rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make plans use the default decoding costs, except in tests that are marked as measured.

    Costs measured while other tests run may be wrong by a large factor, and so would be the plans.
    """
    if request.node.get_closest_marker("measured") is None:
        monkeypatch.setattr(SegmentMaker, "note_cost", lambda self, frames: None)
        monkeypatch.setattr(TileIndex, "note", lambda self, segment, work, seconds: None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open, empty store."""
    with new_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A server for all tests, which may create databases but must not stop it."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedServer]:
    """An S3 server.  Without it the test is skipped, or fails if VFSD_REQUIRE_S3=1 is set.  A test
    that pauses or kills it starts it again."""
    program = seaweedfs_program()
    if program is None:
        reason = "there is no S3 server: pip install 'vfsd[test-cluster]'"
        if os.environ.get("VFSD_REQUIRE_S3") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    server = SeaweedServer(program)
    yield server
    server.close()


@pytest.fixture
def s3_proxy(seaweedfs: SeaweedServer) -> Iterator[HttpProxy]:
    """A proxy in front of the S3 server."""
    proxy = HttpProxy(seaweedfs.port)
    yield proxy
    proxy.close()


@pytest.fixture
def own_database(postgresql: PostgresqlServer) -> str:
    """The URL of an empty database on PostgreSQL."""
    return postgresql.new_database()


@pytest.fixture(scope="session")
def pgbouncer(postgresql: PostgresqlServer) -> Iterator[PgBouncer]:
    """A pooler in transaction mode, in front of the server."""
    program = pgbouncer_program()
    if program is None:
        pytest.skip("PgBouncer is not installed")
    pooler = PgBouncer(program, postgresql)
    yield pooler
    pooler.close()


@pytest.fixture(scope="session")
def footage() -> Path:
    """The folder of real footage.  Without it the test is skipped, or fails if
    VFSD_REQUIRE_FOOTAGE=1 is set."""
    folder = footage_folder()
    if folder is not None:
        return folder
    reason = "no footage: set VFSD_FOOTAGE to its folder"
    if os.environ.get("VFSD_REQUIRE_FOOTAGE") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def wide_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of 960x540 without boxes.  Tiles save much decoding time here."""
    path = tmp_path_factory.mktemp("wide") / "wide.mp4"
    scene = Scene(960, 540, frames=60, rate=Fraction(30), density=0.03, noise=0.0, seed=3)
    write(scene, Encoding("h264", gop=30, bframes=0, preset="ultrafast"), path)
    return path


@pytest.fixture(scope="session")
def mountable() -> None:
    """Skip the test if this machine cannot mount, or fail it if VFSD_REQUIRE_FUSE=1 is set."""
    try:
        require_fuse(MountOptions())
    except EnvironmentMissingError as error:
        if os.environ.get("VFSD_REQUIRE_FUSE") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kvazaar() -> None:
    if not kvazaar_available():
        pytest.skip("kvazaar is not there: pip install 'vfsd[stitch]'")


@pytest.fixture(scope="session")
def libde265() -> str:
    """The program that decodes HEVC by libde265."""
    found = shutil.which("dec265") or shutil.which("libde265-dec265")
    if found is None:
        pytest.skip("dec265 is not there: apt install libde265-examples")
    return found
