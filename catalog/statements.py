"""Building blocks of SQL statements: `PreparedStatement` for small frequent changes, conditions on
many values, and equality of JSON values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from vfsd.errors import UsageError
from vfsd.validation import MOST_LEVELS, is_too_deep, plain, require_storable_text, within_64_bits

_BATCH_SIZE = 500


def in_batches(column: sa.Column[Any], values: Iterable[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions, for a statement each, of which one holds where `column` is one of `values`."""
    wanted = sorted(set(values))
    for start in range(0, len(wanted), _BATCH_SIZE):
        yield column.in_(wanted[start : start + _BATCH_SIZE])


class PreparedStatement:
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


def require_json_keys(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is asked of some keys, or put there, numbers of numpy as Python's.

    Raises `UsageError` for what has no keys.
    """
    given = {} if values is None else values
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise UsageError(f"{shown(values)} has no keys", hint='give a dict, as in {"site": 3}')
    return dict(plain(given))


def require_storable_json(values: Mapping[str, Any]) -> None:
    """Raises `UsageError` for what JSON cannot hold, NaN and infinity among it, for what has more
    than `MOST_LEVELS`, and for text that a database cannot hold, however deep it is."""
    for key, value in values.items():
        require_storable_text(key, "a key")
        try:
            if is_too_deep(value):
                raise ValueError("more levels than databases read")
            json.dumps(value, allow_nan=False)
            for text in _texts(value):
                require_storable_text(text, f"part of {key}")
        except UsageError:
            raise
        except (TypeError, ValueError):
            raise UsageError(
                f"{key} = {shown(value)} cannot be kept",
                hint="JSON holds numbers, words, truth, lists and dicts of them, "
                f"{MOST_LEVELS} in each other at most, and no NaN",
            ) from None


def require_searchable_json(values: Mapping[str, Any]) -> None:
    """Raises `UsageError` for whole numbers beyond 64 bits, for which nobody could ask again."""
    for key, value in values.items():
        if isinstance(value, int):
            hint = "larger numbers are kept as floats, 1e30, or as text"
            within_64_bits(value, f"{key} = ", hint=hint)


def json_equals(
    column: sa.ColumnElement[Any], key: str, value: bool | int | float | str
) -> sa.ColumnElement[bool]:
    """Whether the objects of `column` have `value` under `key`.

    Numbers are equal by their value, whole or not; a truth value equals no number, and a word
    nothing that it only looks like.  Raises `UsageError` for values of which equality is not
    asked: others than these, whole numbers beyond 64 bits, floats that JSON cannot hold.
    """
    types = _types_of(value)
    for text in (key, value):
        if isinstance(text, str):
            require_storable_text(text, "in what is stored")
    # As a table of its keys: in a path, servers disagree on how one with quotes is written.
    each = sa.func.json_each(column).table_valued("key", "value", "type", name="pair")
    found = sa.exists().where(each.c.key == key, each.c.type.in_(types))
    if not isinstance(value, bool):  # of truth the type says it all
        found = found.where(each.c.value == value)
    return _ByDialect(found, _of_key(column, key) == sa.literal(value, _jsonb()))


def _types_of(value: object) -> tuple[str, ...]:
    """What SQLite calls the types of what may equal it.  Raises `UsageError`."""
    if isinstance(value, bool):
        return ("true",) if value else ("false",)
    if isinstance(value, str):
        return ("text",)
    if isinstance(value, int):
        within_64_bits(value, hint="larger numbers are found as floats: 1e30")
        return ("integer", "real")
    if isinstance(value, float) and math.isfinite(value):
        return ("integer", "real")
    raise UsageError(f"values are searched for by numbers, words and truth, not by {value!r}")


def _texts(value: object) -> Iterator[str]:
    """All words in what JSON can hold, keys as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _of_key(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    """What PostgreSQL finds under a key.

    Its JSON may hold what its text cannot, half of a character and NUL, and some may be there from
    before they were refused.  It fails at such an object, whatever the key is; so they are replaced
    first.
    """
    text = sa.cast(column, sa.Text)
    mended: sa.ColumnElement[str] = text
    for pattern, instead in _INVALID_TEXT:
        mended = sa.func.regexp_replace(mended, pattern, instead, "g", type_=sa.Text)
    # Looking for two letters first takes half as long as the pattern alone.
    is_odd = sa.and_(sa.func.strpos(text, r"\u") > 0, text.regexp_match(_MAYBE_INVALID_TEXT))
    return sa.case(
        (is_odd, sa.cast(sa.cast(mended, sa.JSON)[key], _jsonb())),
        else_=sa.cast(column[key], _jsonb()),
    )


def _jsonb() -> sa.types.TypeEngine[Any]:
    from sqlalchemy.dialects.postgresql import JSONB  # slow to import, and seldom needed

    return JSONB()


_MAYBE_INVALID_TEXT = r"\\u(0000|[dD][89a-fA-F])"
"""Most that this fits are whole: letters beyond 16 bits are two halves."""
_ESCAPED = r"(?<!\\)((?:\\\\)*)"
"""Backslashes before one that is none itself."""
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_INVALID_TEXT = (
    (_ESCAPED + r"\\u0000", r"\1\\ufffd"),
    (_ESCAPED + f"{_FIRST}(?!{_SECOND})", r"\1\\ufffd"),
    (f"(?<!{_FIRST})" + _ESCAPED + _SECOND, r"\1\\ufffd"),
)


class _ByDialect(FunctionElement[bool]):
    """Of two conditions the one that is for SQLite, or the one for PostgreSQL."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(_ByDialect)
def _for_sqlite(element: _ByDialect, compiler: Any, **how: Any) -> str:
    sqlite, _ = element.clauses
    text: str = compiler.process(sqlite, **how)
    return text


@compiles(_ByDialect, "postgresql")
def _for_postgresql(element: _ByDialect, compiler: Any, **how: Any) -> str:
    _, postgresql = element.clauses
    text: str = compiler.process(postgresql, **how)
    return text
