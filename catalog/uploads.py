"""Uploads of objects to a bucket, and the leases that protect their bytes until they are recorded.

An upload begins with a row, before the first byte is sent.  The transaction that records the object
deletes the row.  After its lease, any home may turn the row into one of `garbage`, so a
late transaction finds none and fails.  All times are those of the database.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.engine import Database
from vfsd.catalog.schema import garbage, uploads
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
