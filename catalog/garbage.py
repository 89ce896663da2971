"""Files of a bucket that nothing refers to.

The transaction that drops the row of an object adds its place to the table `garbage`.  The bytes
stay for a grace period: open handles still read them, and a catalog that is restored to an earlier
state still refers to them.  All ages are measured by the clock of the database.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.engine import Database
from vfsd.catalog.rows import in_batches
from vfsd.catalog.schema import garbage, objects, uploads
from vfsd.catalog.uploads import database_time

BATCH = 1000
"""Files that are deleted from the bucket at once."""


@dataclass(frozen=True, slots=True)
class GarbageTotal:
    """The garbage that is in the bucket."""

    files: int
    bytes: int


class Garbage:
    """The garbage of all homes.  Each method is a transaction that waits for no other writer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def expire_uploads(self) -> int:
        """Make the uploads garbage whose leases have ended; return their number."""
        with self._database.appending() as connection:
            ended = sa.delete(uploads).where(uploads.c.expires <= database_time(connection))
            gone = connection.execute(ended.returning(uploads.c.place, uploads.c.size)).all()
            discard_places(connection, {row.place: row.size for row in gone})
        return len(gone)

    @contextmanager
    def due(self, grace: float, limit: int = BATCH) -> Iterator[dict[str, int]]:
        """Yield places that have been garbage for `grace` seconds, with sizes; forget them at the
        end of the block.

        The block deletes the files.  After an error, or a kill, the places stay garbage.  On a
        server, places that another process is deleting are left out.  No write lock is held.
        """
        if self._database.is_sqlite:
            with self._database.reading() as connection:
                found = _due(connection, grace, limit)
            yield found
            if found:
                with self._database.appending() as connection:
                    _forget(connection, found)
            return
        with self._database.appending() as connection:
            found = _due(connection, grace, limit)
            yield found
            _forget(connection, found)

    def total(self, grace: float = 0.0) -> GarbageTotal:
        """Return the garbage that has been it for at least `grace` seconds."""
        with self._database.querying() as connection:
            is_due = garbage.c.since <= database_time(connection, -grace)
            query = sa.select(sa.func.count(), sa.func.sum(garbage.c.size)).where(is_due)
            count, size = connection.execute(query).one()
        return GarbageTotal(count, int(size or 0))

    def unnamed(self, places: Iterable[str]) -> set[str]:
        """Return those of these places that no object, upload or garbage has, at one time."""
        left = set(places)
        with self._database.reading() as connection:
            for table in (objects, uploads, garbage):
                for some in in_batches(table.c.place, left):
                    query = sa.select(table.c.place).where(some)
                    left.difference_update(connection.execute(query).scalars())
        return left

    def adopt(self, places: Mapping[str, int], grace: float) -> None:
        """Add files that nothing names, given with sizes, to the garbage that is due."""
        unnamed = self.unnamed(places)
        with self._database.appending() as connection:
            since = database_time(connection, -grace - 1)
            for place in sorted(unnamed):
                new = _insert(connection).values(place=place, size=places[place], since=since)
                connection.execute(new.on_conflict_do_nothing())  # another process may do the same

    def clock_offset(self) -> float:
        """Return the seconds that the clock of the database is ahead of this host's."""
        with self._database.querying() as connection:
            if self._database.is_sqlite:
                return 0.0
            now: datetime = connection.execute(sa.select(database_time(connection))).scalar_one()
        return now.astimezone(UTC).timestamp() - time.time()


def discard_places(connection: Connection, places: Mapping[str, int]) -> None:
    """Add files of the bucket, given with sizes, to the garbage."""
    if places:
        rows = [{"place": place, "size": size} for place, size in places.items()]
        connection.execute(sa.insert(garbage), rows)


def removed_object(connection: Connection, key: str) -> tuple[str, int] | None:
    """Return the newest place and the size of a removed object whose bytes still exist."""
    query = (
        sa.select(garbage.c.place, garbage.c.size)
        .where(garbage.c.place.startswith(f"o/{key[:2]}/{key}-"))
        .order_by(garbage.c.since.desc())
    )
    row = connection.execute(query.limit(1)).first()
    return None if row is None else (row.place, row.size)


def _insert(connection: Connection) -> Any:
    """Return an INSERT into the garbage that can ignore existing rows."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(garbage)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(garbage)


def _due(connection: Connection, grace: float, limit: int) -> dict[str, int]:
    query = (
        sa.select(garbage.c.place, garbage.c.size)
        .where(garbage.c.since <= database_time(connection, -grace))
        .order_by(garbage.c.since)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return {row.place: row.size for row in connection.execute(query)}


def _forget(connection: Connection, places: Sequence[str] | Mapping[str, int]) -> None:
    for some in in_batches(garbage.c.place, places):
        connection.execute(sa.delete(garbage).where(some))
