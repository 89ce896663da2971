"""Changes to make a store look months old."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

CATALOG = "catalog.sqlite3"


def execute(root: Path, statement: str, *values: object) -> None:
    """Change the catalog of a store that is not open."""
    with closing(sqlite3.connect(root / CATALOG)) as database, database:
        database.execute(statement, values)


def let_age(root: Path, name: str, by_ns: int) -> None:
    """Make a video in the root of the tree so much older.

    Earlier videos are moved back as well, or their times would not be in order.
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
