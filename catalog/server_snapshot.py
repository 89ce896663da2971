"""Copies the catalog of a PostgreSQL server to an SQLite file, as part of a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from vfsd.catalog import schema
from vfsd.catalog.open_catalog import create_database

if TYPE_CHECKING:
    from vfsd.catalog.engine import Database

_ROWS = 2000
"""Rows in memory."""
_OF_SERVERS = frozenset(
    {
        *(schema.homes.name, schema.mounts.name, schema.catalog_state.name),
        *(schema.uploads.name, schema.garbage.name, schema.read_notes.name),
        schema.pack_tables.name,
        # Nothing works on an order of a backup.
        *(schema.work_orders.name, schema.work_results.name, schema.work_units.name),
    }
)
"""Tables that mean nothing without the server."""


def copy_server(database: Database, path: Path) -> None:
    """Copy one snapshot of all rows to a new file."""
    copy = create_database(f"sqlite:///{path}".replace("?", "%3F"), None)
    tables = [one for one in schema.metadata.sorted_tables if one.name not in _OF_SERVERS]
    try:
        with database.reading() as source, copy.writing() as target:
            # Rows of one table may refer to each other.
            target.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for table in reversed(tables):
                target.execute(sa.delete(table))
            for table in tables:
                query = sa.select(table).execution_options(yield_per=_ROWS)
                for rows in source.execute(query).mappings().partitions(_ROWS):
                    target.execute(sa.insert(table), [dict(row) for row in rows])
    finally:
        copy.close()
