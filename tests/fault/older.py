"""Stores as they would be after months."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

CATALOG = "catalog.sqlite3"


def execute(root: Path, statement: str, *values: object) -> None:
    """Change the catalog of a store that nobody has open."""
    with closing(sqlite3.connect(root / CATALOG)) as database, database:
        database.execute(statement, values)


def let_age(root: Path, name: str, by_ns: int) -> None:
    """Make a video in the root of the tree so much older.

    Those that came before it came earlier, too: else a clock was behind.
    """
    which = "SELECT ino FROM entries WHERE CAST(name AS TEXT) = ?"
    execute(
        root,
        "UPDATE videos SET created_ns = created_ns - ? "
        f"WHERE id <= (SELECT id FROM videos WHERE ino = ({which}))",
        by_ns,
        name,
    )
    execute(root, f"UPDATE nodes SET mtime_ns = mtime_ns - ? WHERE ino = ({which})", by_ns, name)
