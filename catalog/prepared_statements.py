"""Statements that are run for every small change: compiled once, and run past SQLAlchemy.

SQLite needs some microseconds for one of them, and SQLAlchemy ten times that to get it there: its
values are looked at, its result is wrapped, events are told.  A tree of small files is thousands of
such statements.  On a server, where the way there takes longer than that, SQLAlchemy runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection


class Prepared:
    """A statement whose values are numbers, text, bytes or null; all have names, or are literal.

    Raises what the database's own driver does: see `Database`.
    """

    def __init__(self, statement: sa.Executable) -> None:
        self._statement = statement
        self._compiled: tuple[str, tuple[str, ...]] | None = None

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows of the answer, each its columns in their order."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).all()
        found: list[Sequence[Any]] = self._run(connection, values).fetchall()
        return found

    def change(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run what changes rows and has no answer; how many rows that were."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).rowcount
        return int(self._run(connection, values).rowcount)

    def _run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        text, names = self._compiled or self._compile(connection)
        driver: Any = connection.connection.driver_connection
        return driver.execute(text, [values[name] for name in names])

    def _compile(self, connection: Connection) -> tuple[str, tuple[str, ...]]:
        compiled: Any = self._statement.compile(dialect=connection.dialect)  # type: ignore[attr-defined]
        self._compiled = (str(compiled), tuple(compiled.positiontup or ()))
        return self._compiled
