"""Rows that say what none of ours could: by a flipped bit, or another program's hand."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import metadata
from vfsd.errors import IntegrityError

P = ParamSpec("P")
T = TypeVar("T")

_BROKEN = (
    *(IntegrityError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, MemoryError),
)
"""What comes of making a value of what it cannot be made of."""
_MOST = 20
"""Strange values that are told of a table: as many as SQLite tells of a file."""
_ADVICE = (
    "`vfsd fsck --repair` makes again what it can, and tells of the rest; for that, put the "
    "catalog back from a backup (`vfsd restore`)"
)

_STORED_AS: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.JSON, "'text'"),
    (sa.LargeBinary, "'blob'"),
    (sa.String, "'text'"),
    (sa.Boolean, "'integer'"),
    (sa.Integer, "'integer'"),
    (sa.Float, "'real', 'integer'"),
)
"""What SQLite calls values of our types, by `typeof`."""


def row_of(table: sa.Table) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For functions that make a value of a row, given first, whose first column is its key.

    They raise `IntegrityError`, which names the table and the row, where that cannot be done.
    """

    def decorated(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except _BROKEN as error:
                row: Any = args[0]
                raise _no_sense(table, row[0], error) from error

        return reading

    return decorated


def _no_sense(table: sa.Table, key: object, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"row {key} of {table.name} in the catalog makes no sense: {error}",
        hint=_ADVICE,
    )


def blob(value: object) -> bytes:
    """Of a column of bytes; an integer there would be taken for as many of them.

    Raises `TypeError`.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"value must be bytes, got {value!r}")
    return bytes(value)


def parsed_json(text: str | bytes) -> Any:
    """Raises `IntegrityError`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise IntegrityError(
            f"a value in the catalog must be JSON: {error}", hint=_ADVICE
        ) from error


def strange_values(connection: Connection) -> list[str]:
    """Values in an SQLite file of another type than their columns, in words; some of each table."""
    found = []
    there = set(sa.inspect(connection).get_table_names())  # an older revision lacks some
    for table in metadata.sorted_tables:
        if table.name not in there:
            continue
        rows = connection.exec_driver_sql(_question(table)).all()
        found += [_told(table, row) for row in rows]
    return found


def _question(table: sa.Table) -> str:
    """The key and the name of the first strange column, of rows that have one."""
    # Keys as they are stored: what is no text may be in a column of text.
    keys = ", ".join(f'CAST("{column.name}" AS BLOB)' for column in table.primary_key)
    cases = " ".join(f"WHEN {_is_strange(one)} THEN '{one.name}'" for one in table.columns)
    return (
        f'SELECT {keys}, CASE {cases} END AS strange FROM "{table.name}" '
        f"WHERE strange IS NOT NULL LIMIT {_MOST}"
    )


def _is_strange(column: sa.Column[Any]) -> str:
    kinds = next(kinds for kind, kinds in _STORED_AS if isinstance(column.type, kind))
    condition = f"typeof(\"{column.name}\") NOT IN ({kinds}, 'null')"
    if isinstance(column.type, sa.JSON):
        valid = f'json_valid("{column.name}")'
        condition += f" OR typeof(\"{column.name}\") = 'text' AND NOT {valid}"
    return condition


def _told(table: sa.Table, row: Sequence[Any]) -> str:
    *keys, column = row
    key = ", ".join((one or b"NULL").decode(errors="backslashreplace") for one in keys)
    return f"row {key} of {table.name} has in {column} what that cannot have"
