"""Copies of the tables of packs in a bucket; see `vfsd.codecs.cells.pack.packed_table`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError as ConstraintError

from vfsd.catalog.engine import Database
from vfsd.catalog.schema import objects, pack_tables

_ADD = sa.text(
    "INSERT INTO pack_tables (object_key, pack_at, packed) VALUES (:key, :at, :packed) "
    "ON CONFLICT DO NOTHING"
)


class PackPlaces(NamedTuple):
    """Where objects are in the bucket, and the tables of their packs."""

    places: dict[str, tuple[str, int]]  #: name in the bucket and size, by key
    tables: dict[tuple[str, int], bytes]  #: by key and position; only those with a copy


class PackTables:
    """The copies of a catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, packs: Collection[tuple[str, int]]) -> PackPlaces:
        """Look up packs, given by the key of the object and their position, with one query."""
        keys, positions = {key for key, _ in packs}, {at for _, at in packs}
        copy = sa.and_(
            pack_tables.c.object_key == objects.c.key, pack_tables.c.pack_at.in_(positions)
        )
        query = (
            sa.select(
                *(objects.c.key, objects.c.place, objects.c.size),
                *(pack_tables.c.pack_at, pack_tables.c.packed),
            )
            .select_from(objects.outerjoin(pack_tables, copy))
            .where(objects.c.key.in_(keys), objects.c.place.is_not(None))
        )
        found = PackPlaces({}, {})
        with self._database.reading() as connection:
            for row in connection.execute(query):
                found.places[row.key] = (row.place, row.size)
                if row.packed is not None:
                    found.tables[row.key, row.pack_at] = row.packed
        return found

    def add(self, key: str, at: int, packed: bytes) -> None:
        """Add a copy; does nothing if there is one, or if the object was removed."""
        with suppress(ConstraintError), self._database.appending() as connection:
            record_tables(connection, key, [(at, packed)])


def record_tables(connection: Connection, key: str, tables: Iterable[tuple[int, bytes]]) -> None:
    """Add copies of the tables of an object, by position, within a transaction."""
    rows = [{"key": key, "at": at, "packed": packed} for at, packed in tables]
    if rows:
        connection.execute(_ADD, rows)
