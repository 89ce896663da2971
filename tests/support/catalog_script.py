"""The statements that create a catalog on PostgreSQL, remembered from the first one.

Running all migrations takes three times as long as sending their statements together, and most
tests of servers need a catalog of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog import open_catalog
from vfsd.catalog.engine import current_revision

Upgrade = Callable[[Connection], None]
"""Runs the missing migrations, inside the transaction of the connection."""


class RememberedUpgrade:
    """An upgrade that sends the statements of an earlier one to an empty PostgreSQL database."""

    def __init__(self, upgrade: Upgrade) -> None:
        """`upgrade` is called for SQLite, for older catalogs, and the first time."""
        self._upgrade = upgrade
        self._scripts: dict[object, str] = {}  # by the revisions, which some tests replace

    def __call__(self, connection: Connection) -> None:
        if connection.dialect.name != "postgresql" or current_revision(connection) is not None:
            self._upgrade(connection)
            return
        program = open_catalog.REVISIONS, open_catalog._SCRIPTS
        if program in self._scripts:
            _session(connection).execute(self._scripts[program].encode())
        else:
            self._scripts[program] = self._recorded(connection)

    def _recorded(self, connection: Connection) -> str:
        sent: list[str] = []
        cursor = psycopg.ClientCursor(_session(connection))

        def note(_: Any, __: Any, statement: str, parameters: Any, *___: object) -> None:
            if not statement.lstrip().upper().startswith(("SELECT", "SHOW")):
                sent.append(cursor.mogrify(statement, parameters))

        sa.event.listen(connection, "before_cursor_execute", note)
        try:
            self._upgrade(connection)
        finally:
            sa.event.remove(connection, "before_cursor_execute", note)
        return ";\n".join(sent)


def _session(connection: Connection) -> psycopg.Connection[Any]:
    found = connection.connection.driver_connection
    assert isinstance(found, psycopg.Connection)
    return found
