"""Objects in a bucket: their uploads, places that are garbage, and copies of the tables of packs.

An upload begins with a row, before the first byte is sent.  The transaction that records the object
deletes the row.  After its lease, any home may turn the row into one of `garbage`, so a
late transaction finds none and fails.

The transaction that drops the row of an object adds its place to the table `garbage`.  The bytes
stay for a grace period: open handles still read them, and a catalog that is restored to an earlier
state still refers to them.  All times and ages are those of the database's clock.

`vfsd.codecs.cells.pack.packed_table` makes the copies of tables.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError as ConstraintError

from vfsd.catalog.engine import Database
from vfsd.catalog.rows import in_batches
from vfsd.catalog.schema import garbage, objects, pack_tables, uploads
from vfsd.errors import LeaseLostError

UPLOAD_SECONDS = 900.0
"""How long the lease of an upload is valid after its begin or last renewal."""
RENEW_SECONDS = 300.0
"""How often an upload renews its lease."""


class Uploads:
    """The uploads of all homes.  Each method is a transaction that waits for no other writer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, place: str, key: str, size: int) -> None:
        """Begin the upload of an object to a place that was never used."""
        with self._database.appending() as connection:
            connection.execute(
                sa.insert(uploads).values(
                    place=place,
                    key=key,
                    size=size,
                    expires=database_time(connection, UPLOAD_SECONDS),
                    home=self._database.home,
                )
            )

    def renew(self, place: str) -> None:
        """Extend the lease of an upload.  Raises `LeaseLostError`."""
        with self._database.appending() as connection:
            change = sa.update(uploads).where(uploads.c.place == place)
            expires = database_time(connection, UPLOAD_SECONDS)
            if not connection.execute(change.values(expires=expires)).rowcount:
                raise lease_lost_error(place)

    def abandon(self, place: str) -> None:
        """Make an upload garbage that failed, or that nothing needs, if it still has its row."""
        with self._database.appending() as connection:
            size = connection.execute(
                sa.delete(uploads).where(uploads.c.place == place).returning(uploads.c.size)
            ).scalar()
            if size is not None:
                discard_place(connection, place, size)


def end_upload(connection: Connection, place: str) -> None:
    """Delete the row of an upload, in the transaction that records the object.

    Raises `LeaseLostError` if the lease has ended.
    """
    valid = uploads.c.expires > database_time(connection)
    ended = sa.delete(uploads).where(uploads.c.place == place, valid)
    if connection.execute(ended.returning(uploads.c.place)).first() is None:
        raise lease_lost_error(place)


def discard_place(connection: Connection, place: str, size: int) -> None:
    """Add a file of the bucket, which nothing refers to, to the garbage."""
    connection.execute(sa.insert(garbage).values(place=place, size=size))


def database_time(connection: Connection, seconds: float = 0.0) -> sa.ColumnElement[Any]:
    """Return the time of the database some seconds from now, which may be negative.

    It is the time of the statement, not that of the begin of its transaction.
    """
    if connection.dialect.name == "postgresql":
        now: sa.ColumnElement[Any] = sa.func.clock_timestamp()
        return now + timedelta(seconds=seconds)
    # Texts are compared: they have the form of CURRENT_TIMESTAMP.
    return sa.func.datetime("now", f"{seconds:+.0f} seconds")


def lease_lost_error(place: str) -> LeaseLostError:
    """Return the error for an upload that has lost its lease."""
    return LeaseLostError(
        f"the upload of {place} took too long: its lease has ended", hint="try again"
    )


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
