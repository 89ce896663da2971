"""Stores as they would be after months, or as an earlier version has left them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config

from vfsd.catalog.engine import Database

_ORIGINALS = "SELECT id FROM new.physical_videos WHERE role = 'original'"
_WHICH = {
    "nodes": "",
    "entries": "",
    "objects": "WHERE key IN (SELECT object_key FROM new.nodes)",
    "videos": "",
    "tags": "",
    "physical_videos": f"WHERE id IN ({_ORIGINALS})",
    "frame_pages": f"WHERE physical_id IN ({_ORIGINALS})",
}
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


def to_revision(root: Path, revision: str) -> None:
    """Take back the newest steps of a store's catalog."""
    config = Config()
    config.set_main_option("script_location", "vfsd.catalog:migrations")
    with (
        closing(Database(f"sqlite:///{root / CATALOG}")) as database,
        database.writing() as connection,
    ):
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def to_first_revision(root: Path) -> None:
    """Put a catalog of the first revision in the place of a store's: files and tags are in it."""
    new, old = root / CATALOG, root / "old.sqlite3"
    config = Config()
    config.set_main_option("script_location", "vfsd.catalog:migrations")
    database = Database(f"sqlite:///{old}")
    with database.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    database.close()
    with closing(sqlite3.connect(old)) as raw:
        raw.execute("ATTACH ? AS new", (str(new),))
        raw.execute("DELETE FROM nodes")
        for table in _WHICH:
            names = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
            listed = ", ".join(names)
            raw.execute(
                f"INSERT INTO {table} ({listed}) SELECT {listed} FROM new.{table} {_WHICH[table]}"
            )
        raw.commit()
    os.replace(old, new)
    for suffix in ("-wal", "-shm"):
        Path(f"{new}{suffix}").unlink(missing_ok=True)
        Path(f"{old}{suffix}").unlink(missing_ok=True)
