"""SQLite in the mount: several processes write, and the database stays intact."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from benchmarks.suites.outcome import Outcome, Place

_WRITERS = 4
_WRITER = """
import sqlite3, sys
path, who, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = sqlite3.connect(path, timeout=120, isolation_level=None)
for number in range(count):
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO t VALUES (?, ?, randomblob(2000))", (who, number))
    connection.execute("UPDATE sums SET total = total + 1")
    connection.execute("ROLLBACK" if number % 10 == 9 else "COMMIT")
"""


def sqlite(place: Place) -> Outcome:
    """Rollback journals, write-ahead logs, and mapped reads; a tenth of all transactions is
    rolled back."""
    count = 40 * place.given.seconds
    failures = []
    passed = 0
    for journal in ("delete", "truncate", "persist", "wal"):
        place.given.say(f"{_WRITERS} writers, journal_mode={journal}")
        path = place.at / f"{journal}.db"
        _prepare(path, journal)
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(who), str(count)])
            for who in range(_WRITERS)
        ]
        checks = 0
        while any(writer.poll() is None for writer in writers):
            failures += _checked(path, journal)
            checks += 1
        failures += [f"{journal}: a writer failed" for writer in writers if writer.returncode]
        failures += _checked(path, journal)
        wanted = _WRITERS * (count - count // 10)
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT count(*) FROM t").fetchone()[0]
            total = connection.execute("SELECT total FROM sums").fetchone()[0]
        if not rows == total == wanted:
            failures.append(f"{journal}: {rows} rows, a sum of {total}, not {wanted}")
        passed += wanted
    return Outcome(
        "transactions", passed if not failures else 0, tuple(failures), (), sqlite3.sqlite_version
    )


def _prepare(path: Path, journal: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE t (who INTEGER, number INTEGER, data BLOB)")
        connection.execute("CREATE TABLE sums (total INTEGER)")
        connection.execute("INSERT INTO sums VALUES (0)")


def _checked(path: Path, journal: str) -> list[str]:
    with closing(sqlite3.connect(path, timeout=120)) as connection:
        connection.execute("PRAGMA mmap_size=268435456")
        connection.execute("BEGIN")
        found = connection.execute("PRAGMA integrity_check").fetchall()
        rows = connection.execute("SELECT count(*) FROM t").fetchone()[0]
        total = connection.execute("SELECT total FROM sums").fetchone()[0]
    told = [] if found == [("ok",)] else [f"{journal}: {found[:3]}"]
    return told if rows == total else [*told, f"{journal}: {rows} rows, a sum of {total}"]
