"""Files that crashed processes while they were decoded, for all hosts of a store on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from vfsd.catalog.engine import Database
from vfsd.catalog.schema import suspects

Values = Mapping[str, Any]
"""Columns of a row without its key."""


class Suspects:
    """The table of suspects.  See `vfsd.storage.quarantine`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, dict[str, Any]]:
        """Return the rows by key: an object key, or the path of a file indexed in place."""
        with self._database.reading() as connection:
            rows = [dict(row._mapping) for row in connection.execute(sa.select(suspects))]
        return {row.pop("key"): row for row in rows}

    def change(self, key: str, change: Callable[[Values | None], Values | None]) -> None:
        """Replace the row of a file by what `change` returns for it; None for no row."""
        mine = suspects.c.key == key
        with self._database.writing() as connection:
            row = connection.execute(sa.select(suspects).where(mine)).first()
            before = None if row is None else dict(row._mapping)
            if before is not None:
                del before["key"]
            after = change(before)
            if after == before:
                return
            connection.execute(sa.delete(suspects).where(mine))
            if after is not None:
                connection.execute(sa.insert(suspects).values(key=key, **after))
