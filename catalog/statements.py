"""Building blocks of SQL statements.

`PreparedStatement` for small frequent changes, conditions on many values, and equality of JSON
values.
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
from vfsd.validation import (
    MAX_JSON_DEPTH,
    is_too_deep,
    require_storable_text,
    with_python_scalars,
    within_64_bits,
)

_BATCH_SIZE = 500


def in_batches(column: sa.Column[Any], values: Iterable[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions for separate statements that together match `column` in `values`."""
    wanted = sorted(set(values))
    for start in range(0, len(wanted), _BATCH_SIZE):
        yield column.in_(wanted[start : start + _BATCH_SIZE])


class PreparedStatement:
    """A statement that is compiled once.  Its values are numbers, text, bytes or null, named or
    literal.

    On SQLite it bypasses SQLAlchemy, and raises the errors of the driver: see `Database`.
    """

    def __init__(self, statement: sa.Executable) -> None:
        self._statement = statement
        self._compiled: tuple[str, tuple[str, ...]] | None = None

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Return all rows of the result, each with its columns in order."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).all()
        found: list[Sequence[Any]] = self._run(connection, values).fetchall()
        return found

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run a statement without a result; return the number of changed rows."""
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
    """Return a dict of keys and values, with numpy scalars converted to Python's.

    Raises `UsageError` unless all keys are `str`.
    """
    given = {} if values is None else values
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise UsageError(
            f"keys and values must be a dict, got {shown(values)}", hint='for example {"site": 3}'
        )
    return dict(with_python_scalars(given))


def require_storable_json(values: Mapping[str, Any]) -> None:
    """Raises `UsageError` for values that cannot be stored as JSON.

    These include NaN, infinity, more than `MAX_JSON_DEPTH` levels, and text with NUL or a lone
    surrogate at any depth.
    """
    for key, value in values.items():
        require_storable_text(key, "a key")
        try:
            if is_too_deep(value):
                raise ValueError("nested too deeply")
            json.dumps(value, allow_nan=False)
            for text in _texts(value):
                require_storable_text(text, f"part of {key}")
        except UsageError:
            raise
        except (TypeError, ValueError):
            raise UsageError(
                f"{key} must be a JSON value, got {shown(value)}",
                hint="JSON holds numbers except NaN, text, booleans, lists and dicts, "
                f"at most {MAX_JSON_DEPTH} levels deep",
            ) from None


def require_searchable_json(values: Mapping[str, Any]) -> None:
    """Raises `UsageError` for integers beyond 64 bits, which no query could match."""
    for key, value in values.items():
        if isinstance(value, int):
            hint = "store larger numbers as floats (1e30) or as text"
            within_64_bits(value, f"{key} = ", hint=hint)


def json_equals(
    column: sa.ColumnElement[Any], key: str, value: bool | int | float | str
) -> sa.ColumnElement[bool]:
    """Return the condition that the objects of `column` have `value` under `key`.

    Numbers are equal by value, integer or not.  A boolean equals no number, and text equals only
    text. Raises `UsageError` for other types, integers beyond 64 bits, and floats that JSON cannot
    hold.
    """
    types = _types_of(value)
    for text in (key, value):
        if isinstance(text, str):
            require_storable_text(text, "a key or value")
    # Via a table of the keys: databases disagree on how a path quotes a key.
    each = sa.func.json_each(column).table_valued("key", "value", "type", name="pair")
    found = sa.exists().where(each.c.key == key, each.c.type.in_(types))
    if not isinstance(value, bool):  # for booleans the type is enough
        found = found.where(each.c.value == value)
    return _ByDialect(found, _postgresql_value(column, key) == sa.literal(value, _jsonb()))


def _types_of(value: object) -> tuple[str, ...]:
    """Return SQLite's type names of JSON values that may equal `value`.  Raises `UsageError`."""
    if isinstance(value, bool):
        return ("true",) if value else ("false",)
    if isinstance(value, str):
        return ("text",)
    if isinstance(value, int):
        within_64_bits(value, hint="search for larger numbers as floats: 1e30")
        return ("integer", "real")
    if isinstance(value, float) and math.isfinite(value):
        return ("integer", "real")
    raise UsageError(f"a value must be a number, text or a boolean, got {value!r}")


def _texts(value: object) -> Iterator[str]:
    """Yield all text in a JSON value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _postgresql_value(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    """Return the expression for the value of a key on PostgreSQL.

    Its JSON type accepts NUL and lone surrogates that its text type rejects, and older rows may
    contain them.  Any access to such an object fails, so they are replaced first.
    """
    text = sa.cast(column, sa.Text)
    mended: sa.ColumnElement[str] = text
    for pattern, instead in _INVALID_TEXT:
        mended = sa.func.regexp_replace(mended, pattern, instead, "g", type_=sa.Text)
    # Searching for two characters first halves the time of the pattern alone.
    is_odd = sa.and_(sa.func.strpos(text, r"\u") > 0, text.regexp_match(_MAYBE_INVALID_TEXT))
    return sa.case(
        (is_odd, sa.cast(sa.cast(mended, sa.JSON)[key], _jsonb())),
        else_=sa.cast(column[key], _jsonb()),
    )


def _jsonb() -> sa.types.TypeEngine[Any]:
    from sqlalchemy.dialects.postgresql import JSONB  # slow to import, and rarely needed

    return JSONB()


_MAYBE_INVALID_TEXT = r"\\u(0000|[dD][89a-fA-F])"
"""May match valid text, too: characters beyond 16 bits are surrogate pairs."""
_ESCAPED = r"(?<!\\)((?:\\\\)*)"
"""Complete pairs of backslashes before the one that starts an escape."""
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_INVALID_TEXT = (
    (_ESCAPED + r"\\u0000", r"\1\\ufffd"),
    (_ESCAPED + f"{_FIRST}(?!{_SECOND})", r"\1\\ufffd"),
    (f"(?<!{_FIRST})" + _ESCAPED + _SECOND, r"\1\\ufffd"),
)


class _ByDialect(FunctionElement[bool]):
    """A pair of equivalent conditions: one for SQLite, and one for PostgreSQL."""

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
