"""Schema migrations: the first one, and a simulated next one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.support.catalog_rows import add_video
from tests.support.next_revision import FIRST, NEXT, next_program
from vfsd.catalog import Catalog, open_catalog
from vfsd.catalog.schema import metadata
from vfsd.errors import NoSpaceError, StoreVersionError

_NAMES = ["a.mp4", "b.mp4"]


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a catalog of the first revision with two videos, one of them tagged."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/catalog.sqlite3"
    else:
        url = request.getfixturevalue("own_database")
    with Catalog.create(url, store_id="mine") as catalog:
        with catalog.writing() as change:
            videos = [add_video(change, name, key=name[0] * 64) for name in _NAMES]
        catalog.tag(videos[1], "night")
    return url


def _rows(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]
    finally:
        engine.dispose()


def _revision(url: str) -> object:
    return _rows(url, "SELECT version_num FROM alembic_version")[0][0]


def _require_untouched(url: str) -> None:
    """Check that the catalog is entirely at the first revision, and works."""
    assert _revision(url) == FIRST
    with Catalog.open(url, store_id="mine") as catalog:
        with catalog._database.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert catalog.find().names() == _NAMES
        assert catalog.damage() == []
        catalog.tag(catalog.video("a.mp4"), "again")


def test_steps_lead_to_the_schema(filled: str) -> None:
    with Catalog.open(filled) as catalog, catalog._database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_known_revisions_are_the_steps() -> None:
    config = Config()
    config.set_main_option("script_location", "vfsd.catalog:migrations")
    steps = ScriptDirectory.from_config(config)
    assert tuple(one.revision for one in steps.walk_revisions())[::-1] == open_catalog.REVISIONS
    assert steps.get_current_head() == open_catalog.newest_revision()


def test_upgrade_keeps_data(filled: str) -> None:
    with next_program():
        with Catalog.open(filled, store_id="mine") as catalog:
            assert catalog.find().names() == _NAMES
            video = catalog.video("b.mp4")
            assert set(video.tags) == {"night"}
            assert len(catalog.frame_table(video.original)) == video.original.frames
            assert catalog.damage() == []
            catalog.tag(video, "more")
        assert _revision(filled) == NEXT
        with Catalog.open(filled, read_only=True, store_id="mine") as catalog:
            assert catalog.find(tags={"more"}).names() == ["b.mp4"]
    assert _rows(filled, "SELECT rating FROM videos ORDER BY id") == [(3,), (5,)]
    assert _rows(filled, "SELECT video_id, frames FROM lengths ORDER BY video_id") == [
        (1, 100),
        (2, 100),
    ]


def test_new_catalog_takes_all_steps(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.sqlite3"
    with next_program():
        Catalog.create(url).close()
        Catalog.open(url, read_only=True).close()
    assert _revision(url) == NEXT
    assert _rows(url, "SELECT * FROM lengths") == []


def test_older_catalog_opened_read_only(filled: str) -> None:
    with (
        next_program(),
        pytest.raises(StoreVersionError, match=f"at revision {FIRST} .* upgraded to {NEXT}"),
    ):
        Catalog.open(filled, read_only=True)
    _require_untouched(filled)


def test_older_program_refuses(filled: str) -> None:
    with next_program():
        Catalog.open(filled).close()
    before = _rows(filled, "SELECT * FROM videos")
    for read_only in (False, True):
        with pytest.raises(StoreVersionError, match=f"revision {NEXT}.*up to {FIRST}") as raised:
            Catalog.open(filled, read_only=read_only)
        assert "install" in (raised.value.hint or "")
    with pytest.raises(StoreVersionError):
        Catalog.create(filled)
    assert (_revision(filled), _rows(filled, "SELECT * FROM videos")) == (NEXT, before)


def _fail() -> None:
    raise NoSpaceError("no space left on the disk")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _upgrade_and_die(url: str) -> None:
    with next_program(_die):
        Catalog.open(url)


def test_error_during_upgrade(filled: str) -> None:
    with next_program(_fail), pytest.raises(NoSpaceError):
        Catalog.open(filled)
    _require_untouched(filled)


def test_process_killed_during_upgrade(filled: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_upgrade_and_die, args=(filled,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    _require_untouched(filled)
    with next_program():
        Catalog.open(filled).close()
    assert _revision(filled) == NEXT


def _upgrade(url: str) -> None:
    with next_program(), Catalog.open(url) as catalog:
        assert catalog.find().names() == _NAMES


@pytest.mark.thorough
def test_two_processes_upgrade(filled: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_upgrade, args=(filled,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert _revision(filled) == NEXT
