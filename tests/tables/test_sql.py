"""DuckDB sees a store's tables, asks only for what a statement needs, and reaches nothing else."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result, run_command
from tests.tables.conftest import NAMES
from vfsd.api.store import Store
from vfsd.core.arrow_tables import TABLES

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
sql_tables = pytest.importorskip("vfsd.tables.sql")


@pytest.mark.parametrize("table", TABLES)
def test_views_equal_the_streams(store: Store, table: str) -> None:
    with store.duckdb() as db:
        found = db.sql(f"SELECT * FROM {table}")
        assert found.columns == list(TABLES[table])
        expected = [tuple(row.values()) for row in store.to_arrow(table).read_all().to_pylist()]
        assert sorted(map(str, found.fetchall())) == sorted(map(str, expected))
        # A view can be scanned again, unlike a stream.
        assert db.sql(f"SELECT count(*) FROM {table}").fetchall() == [(len(expected),)]


def test_joins_and_new_rows(store: Store) -> None:
    question = """
        SELECT d.name, count(*), bool_and(d.seconds = f.seconds)
        FROM detections d JOIN frames f USING (name, frame) GROUP BY ALL ORDER BY ALL"""
    with store.duckdb() as db:
        assert db.sql(question).fetchall() == [(NAMES[1], 4, True), (NAMES[2], 1, True)]
        store[NAMES[0]].labels.add([(4, "new", (1, 2, 3, 4))], "later")
        assert db.sql(question).fetchall()[0] == (NAMES[0], 1, True)
        store[NAMES[0]].labels.remove(source="later")


class Asked:
    """Records which videos and columns are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: tuple[Any, set[str]] = (None, set())
        inner = sql_tables.batches

        def batches(store: Store, table: str, names: Any, columns: Sequence[str]) -> Any:
            self.last = (names, set(columns))
            return inner(store, table, names, columns)

        monkeypatch.setattr(sql_tables, "batches", batches)


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (f"name = '{NAMES[1]}'", [NAMES[1]]),
        (f"name = '{NAMES[1]}' AND frame < 3", [NAMES[1]]),
        (f"name IN ('{NAMES[1]}', '{NAMES[2]}')", [NAMES[1], NAMES[2]]),
        ("name >= 'cam2'", [NAMES[2]]),
        ("name = 'no.mp4'", []),
        ("frame = 3", None),
    ],
)
def test_a_condition_on_the_name_selects_videos(
    store: Store, monkeypatch: pytest.MonkeyPatch, condition: str, names: list[str] | None
) -> None:
    asked = Asked(monkeypatch)
    everything = store.to_arrow("frames").read_all()
    with store.duckdb() as db:
        found = db.sql(f"SELECT name, frame FROM frames WHERE {condition}").fetchall()
        db.register("whole", everything)
        expected = db.sql(f"SELECT name, frame FROM whole WHERE {condition}").fetchall()
    assert sorted(found) == sorted(expected)
    # DuckDB before 1.2 keeps IN for itself.
    assert asked.last[0] == names or (" IN " in condition and asked.last[0] is None)
    assert asked.last[1] == {"name", "frame"}


def test_odd_names_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "cam1/it's a%20 \"name\" = 'x' é.mp4"
    store.move(NAMES[0], odd)
    asked = Asked(monkeypatch)
    try:
        with store.duckdb() as db:
            found = db.execute("SELECT count(*) FROM frames WHERE name = ?", [odd]).fetchone()
        assert (found, asked.last[0]) == ((len(store[odd]),), [odd])
    finally:
        store.move(odd, NAMES[0])


REFUSED = [
    "SELECT * FROM read_csv('{0}/a.csv')",
    "SELECT * FROM '{0}/a.csv'",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM glob('/etc/*')",
    "COPY videos TO '{0}/out.csv'",
    "EXPORT DATABASE '{0}/out'",
    "ATTACH '{0}/out.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM 'https://127.0.0.1:9/x.parquet'",
    "SET enable_external_access = true",
    "SET temp_directory = '{0}'",
    "RESET lock_configuration",
    "SELECT * FROM local_table",
    "PRAGMA enable_profiling; PRAGMA profiling_output = '{0}/out.json'; SELECT 1",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_statements_reach_nothing_outside(store: Store, tmp_path: Path, statement: str) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    local_table = store.to_arrow("videos").read_all()  # a variable that DuckDB could find
    assert local_table.num_rows == 3
    with store.duckdb() as db, pytest.raises(duckdb.Error):
        db.execute(statement.format(tmp_path)).fetchall()
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_external_access_can_be_asked_for(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name\ncam1/traffic.mp4\n")
    with store.duckdb(external_access=True) as db:
        question = f"SELECT frames FROM videos JOIN '{tmp_path}/a.csv' USING (name)"
        assert db.sql(question).fetchall() == [(120,)]


# ------------------------------------------------------------------------- vfsd sql


def ask(store: Store, *args: str | Path) -> Result:
    return run_command("-s", store.path, "sql", *args)


def test_output_forms(store: Store, tmp_path: Path) -> None:
    question = (
        "SELECT name, frames, 'a,\"b' || chr(10) AS text, NULL AS nothing, [1, 2] AS list, "
        "{'a': 1.5} AS struct, 'nan'::DOUBLE AS nan, DATE '2026-01-02' AS day FROM videos "
        "ORDER BY name"
    )
    done = ask(store, question, "--json")
    assert done.code == 0, done.err
    assert [one["row"] for one in done.objects][1] == {
        "name": NAMES[1],
        "frames": 120,
        "text": 'a,"b\n',
        "nothing": None,
        "list": [1, 2],
        "struct": {"a": 1.5},
        "nan": "nan",
        "day": "2026-01-02",
    }
    table = list(csv.reader(io.StringIO(ask(store, question, "--csv").out)))
    assert table[0][:2] == ["name", "frames"]
    assert table[2] == [NAMES[1], "120", 'a,"b\n', "", "[1, 2]", '{"a": 1.5}', "nan", "2026-01-02"]
    shown = ask(store, "SELECT name, frames FROM videos ORDER BY name").out.splitlines()
    assert [line.split() for line in shown[:3:2]] == [["name", "frames"], [NAMES[1], "120"]]
    assert len({len(line) for line in shown}) == 1

    target = tmp_path / "out.parquet"
    done = ask(store, "FROM frames", "--parquet", target, "--json")
    rows = len(store.to_arrow("frames").read_all())
    assert done.object["rows"] == rows
    assert done.object["size"] == target.stat().st_size
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(target).num_rows == rows
    assert ask(store, "FROM frames", "--parquet", target).code == 4
    assert ask(store, "FROM videos", "--parquet", target, "--overwrite").code == 0
    assert parquet.read_table(target).num_rows == 3
    # A statement that fails leaves the file.
    assert ask(store, "SELECT error('x') FROM videos", "--parquet", target, "-f").code == 2
    assert parquet.read_table(target).num_rows == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["SELEC 1"], "syntax error"),
        (["SELECT nam FROM videos"], "Candidate bindings"),
        (["FROM nothing"], "DESCRIBE detections"),
        (["SELECT error('boom')"], "boom"),
        (["COPY videos TO 'x.csv'"], "--external-access"),
        (["SET threads = 1"], "settings cannot be changed"),
        (["SELECT 1", "--csv", "--json"], "one of"),
        (["SELECT 1", "--csv", "--parquet", "x"], "one of"),
        (["SELECT 1", "--overwrite"], "--parquet"),
    ],
)
def test_errors_say_what_to_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ask(store, *args)
    assert done.code == 2
    assert said in done.err
    assert not list(tmp_path.iterdir())


def test_results_without_rows(store: Store) -> None:
    done = ask(store, "SELECT name FROM videos WHERE false")
    assert (done.code, done.err) == (0, "the result has no rows\n")


def test_import_of_vfsd_loads_no_table_library(store: Store) -> None:
    program = (
        "import sys\nfrom vfsd import Store\n"
        "with Store.open(sys.argv[1]) as store: store['cam1/traffic.mp4']\n"
        "print({'pyarrow', 'duckdb', 'vfsd.tables'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    assert subprocess.check_output(command, text=True).strip() == "set()"


def test_missing_packages_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = ask(store, "SELECT 1", "--json")
    assert done.code == 22
    assert json.loads(done.err)["hint"] == "pip install 'vfsd[duckdb]'"
