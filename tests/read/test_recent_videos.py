"""A store remembers opened videos until the catalog changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event

from sample_videos import FOLDER
from vfsd import Store
from vfsd.catalog.engine import Database
from vfsd.errors import NotFoundError

TRAFFIC = FOLDER / "traffic.mp4"
PORTRAIT = FOLDER / "portrait.mp4"


@contextmanager
def counted_statements(store: Store) -> Iterator[list[str]]:
    """The SQL statements of the block, except those of the read log's thread."""
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "read_log" not in statement and "reads" not in statement:
            statements.append(statement)

    database: Database = store.parts.catalog._database
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def in_another_process(store: Store, code: str) -> None:
    program = f"from vfsd import Store\nwith Store.open({str(store.path)!r}) as store:\n    {code}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_warm_read_by_name_needs_no_statement(store: Store) -> None:
    store.ingest(TRAFFIC, "a.mp4")
    first = store["a.mp4"][3]
    with counted_statements(store) as statements:
        again = store["a.mp4"][3]
        assert len(store["a.mp4"]) == 120
    assert not statements
    assert np.array_equal(again, first)


@pytest.mark.parametrize("is_other_process", [False, True])
def test_changes_are_noticed(store: Store, is_other_process: bool) -> None:
    store.ingest(TRAFFIC, "a.mp4")
    assert store["a.mp4"].width == 320
    rename = "store.move('a.mp4', 'b.mp4')"
    if is_other_process:
        in_another_process(store, rename)
    else:
        store.move("a.mp4", "b.mp4")
    with pytest.raises(NotFoundError):
        store["a.mp4"]
    assert store["b.mp4"].width == 320
    store.ingest(PORTRAIT, "a.mp4")
    assert store["a.mp4"] != store["b.mp4"]
    store.remove("a.mp4")
    with pytest.raises(NotFoundError):
        store["a.mp4"]


def test_videos_do_not_outlive_their_store(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s") as store:
        store.ingest(shutil.copy(TRAFFIC, tmp_path), "a.mp4")
        store["a.mp4"][0]
    with pytest.raises(Exception, match="closed"):
        store["a.mp4"][0]


_FIRST_READ = """
import sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.sql.compiler import SQLCompiler
from vfsd import Store

with Store.open(sys.argv[1]) as store:
    video = store["a.mp4"]
    modules, statements, compiled = set(sys.modules), [], []
    compile = SQLCompiler.__init__

    def counted(self, dialect, statement, *args, **kwargs):
        if statement is not None and statement.__visit_name__ == "select":
            compiled.append(str(type(statement)))
        compile(self, dialect, statement, *args, **kwargs)

    def note(connection, cursor, statement, *rest):
        if not statement.startswith("BEGIN") and "reads" not in statement:
            statements.append(statement)

    SQLCompiler.__init__ = counted
    event.listen(Engine, "before_cursor_execute", note)
    video.frames([5])
    event.remove(Engine, "before_cursor_execute", note)
    print(len(statements), len(compiled), *sorted(set(sys.modules) - modules))
"""


def test_first_read_of_a_process(store: Store) -> None:
    """Statements, those that SQLAlchemy compiles from expressions, and imports of a first read."""
    store.ingest(TRAFFIC, "a.mp4")
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_READ, str(store.path)],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    # Bounds and data of a page, segments, the cost factor, measured costs, checksums.
    assert done.stdout.split() == ["6", "2"]


def test_segments_for_reads_are_those_of_each_kind(store: Store) -> None:
    video = store.ingest(TRAFFIC, "a.mp4")
    video.tiles.retile("uniform:1x2")
    video.tiles.retile("uniform:2x2", span=(0, 1))
    video.renditions.make((160, 120), span=(0, 2))
    original = video.original.id
    with store.catalog.reading() as seen:
        kinds = seen.segments.active(original), seen.segments.renditions(original)
        found = seen.segments.for_reads(original)
        assert found == ([*kinds[0], *kinds[1]], seen.segments.joined(original))
        assert seen.segments.retired(original)
    assert all(kinds)
    assert all(one.cells for one in found[0])


def test_worker_of_a_data_loader_loads_no_encoder() -> None:
    """A spawned worker reads clips: it need not import what writes, examines or encodes."""
    code = "import sys, vfsd.torch; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True
    )
    unused: tuple[str, ...] = (
        "vfsd.codecs.encoding",
        "vfsd.codecs.inventory",
        "vfsd.codecs.probing",
    )
    unused += ("vfsd.derive", "vfsd.tiling.policy", "vfsd.write", "msgspec", "alembic")
    assert "vfsd.read.read_executor" in done.stdout.split()
    assert [one for one in done.stdout.split() if one.startswith(unused)] == []
