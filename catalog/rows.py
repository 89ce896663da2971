"""Building blocks of the repositories: statements that are compiled once, conditions on JSON and
on many values, and the conversion of rows to values and back.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from reprlib import repr as shown
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from vfsd.catalog.schema import frame_pages, metadata, physical_videos
from vfsd.core.model import (
    NO_CROP_MARGINS,
    Access,
    MediaInfo,
    PageBounds,
    PhysicalVideo,
    Role,
    SideStream,
)
from vfsd.errors import IntegrityError, UsageError
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


P = ParamSpec("P")
T = TypeVar("T")

_BROKEN = (
    *(IntegrityError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, MemoryError),
)
"""Errors that may result from converting an impossible value."""
_MOST_REPORTED = 20
"""Mistyped values that are reported per table: as many as SQLite reports per file."""
_ADVICE = (
    "`vfsd fsck --repair` rebuilds what it can and reports the rest; for that, restore the "
    "catalog from a backup (`vfsd restore`)"
)

_STORED_AS: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.JSON, "'text'"),
    (sa.LargeBinary, "'blob'"),
    (sa.String, "'text'"),
    (sa.DateTime, "'text'"),
    (sa.Boolean, "'integer'"),
    (sa.Integer, "'integer'"),
    (sa.Float, "'real', 'integer'"),
)
"""The results of SQLite's `typeof` for our column types."""


def reads_row(table: sa.Table) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate functions that convert a row: the first argument, with its key as the first column.

    They raise `IntegrityError` with the table and the key if the conversion fails.
    """

    def decorated(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except _BROKEN as error:
                row: Any = args[0]
                raise _invalid_row_error(table, row[0], error) from error

        return reading

    return decorated


def _invalid_row_error(table: sa.Table, key: object, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"row {key} of {table.name} in the catalog is invalid: {error}",
        hint=_ADVICE,
    )


def require_bytes(value: object) -> bytes:
    """Check a value from a column of bytes, as ``bytes(n)`` would accept an integer.

    Raises `TypeError`.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"value must be bytes, got {value!r}")
    return bytes(value)


def parsed_json(text: str | bytes) -> Any:
    """Parse JSON.  Raises `IntegrityError`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise IntegrityError(
            f"a value in the catalog must be JSON: {error}", hint=_ADVICE
        ) from error


def mistyped_values(connection: Connection) -> list[str]:
    """Return descriptions of values in an SQLite file whose type differs from their column's."""
    found = []
    there = set(sa.inspect(connection).get_table_names())  # an older revision lacks some
    for table in metadata.sorted_tables:
        if table.name not in there:
            continue
        rows = connection.exec_driver_sql(_mistyped_rows(table)).all()
        found += [_describe_row(table, row) for row in rows]
    return found


def _mistyped_rows(table: sa.Table) -> str:
    """Return a query for the key and the first mistyped column of affected rows."""
    # Keys are read as bytes: a text column may contain invalid UTF-8.
    keys = ", ".join(f'CAST("{column.name}" AS BLOB)' for column in table.primary_key)
    cases = " ".join(f"WHEN {_is_mistyped(one)} THEN '{one.name}'" for one in table.columns)
    return (
        f'SELECT {keys}, CASE {cases} END AS mistyped FROM "{table.name}" '
        f"WHERE mistyped IS NOT NULL LIMIT {_MOST_REPORTED}"
    )


def _is_mistyped(column: sa.Column[Any]) -> str:
    kinds = next(kinds for kind, kinds in _STORED_AS if isinstance(column.type, kind))
    condition = f"typeof(\"{column.name}\") NOT IN ({kinds}, 'null')"
    if isinstance(column.type, sa.JSON):
        valid = f'json_valid("{column.name}")'
        condition += f" OR typeof(\"{column.name}\") = 'text' AND NOT {valid}"
    return condition


def _describe_row(table: sa.Table, row: Sequence[Any]) -> str:
    *keys, column = row
    key = ", ".join((one or b"NULL").decode(errors="backslashreplace") for one in keys)
    return f"row {key} of {table.name} has a value of the wrong type in {column}"


_FRACTIONS = ("average_rate", "sample_aspect_ratio")
_OWN_COLUMNS = ("container", "codec", "time_base", "extradata")


def media_to_json(media: MediaInfo) -> dict[str, Any]:
    """Return the fields of `media` that have no column of their own."""
    fields = {
        field.name: getattr(media, field.name)
        for field in dataclasses.fields(media)
        if field.name not in _OWN_COLUMNS
    }
    for name in _FRACTIONS:
        fields[name] = None if fields[name] is None else str(fields[name])
    fields["side_streams"] = [dataclasses.asdict(stream) for stream in media.side_streams]
    fields["tags"] = dict(media.tags)
    fields["marks"] = None if media.marks is None else dict(media.marks)
    return fields


def media_from_row(row: Row[Any]) -> MediaInfo:
    """Return the media of a row of `physical_videos`; reverses `media_to_json`."""
    fields = dict(row.media)
    for name in _FRACTIONS:
        fields[name] = None if fields[name] is None else Fraction(fields[name])
    fields["side_streams"] = tuple(SideStream(**stream) for stream in fields["side_streams"])
    fields["crop"] = tuple(fields.get("crop", NO_CROP_MARGINS))
    return MediaInfo(
        container=row.container,
        codec=row.codec,
        time_base=Fraction(row.time_base_num, row.time_base_den),
        extradata=require_bytes(row.extradata),
        **fields,
    )


@reads_row(physical_videos)
def physical_from_row(row: Row[Any]) -> PhysicalVideo:
    return PhysicalVideo(
        id=row.id,
        video_id=row.video_id,
        role=Role(row.role),
        media=media_from_row(row),
        access=Access(row.access),
        frames=row.frames,
        packets=row.packets,
        first_pts=row.first_pts,
        end_pts=row.end_pts,
        object_key=row.object_key,
        link_path=None if row.link_path is None else os.fsdecode(row.link_path),
        size=row.size,
        verified=row.verified,
        parent_id=row.parent_id,
        parameters=row.parameters,
        software=row.software,
        created_ns=row.created_ns,
        notes=tuple(row.notes),
        cost_factor=row.cost_factor,
        error=row.error,
        damage=_damage_from(row.damage),
    )


def physical_to_row(physical: PhysicalVideo) -> dict[str, Any]:
    """Return the values of all columns except the id."""
    media = physical.media
    return {
        "video_id": physical.video_id,
        "role": physical.role.value,
        "container": media.container,
        "codec": media.codec,
        "width": media.display_width,
        "height": media.display_height,
        "frames": physical.frames,
        "packets": physical.packets,
        "first_pts": physical.first_pts,
        "end_pts": physical.end_pts,
        "time_base_num": media.time_base.numerator,
        "time_base_den": media.time_base.denominator,
        "access": physical.access.value,
        "object_key": physical.object_key,
        "link_path": None if physical.link_path is None else os.fsencode(physical.link_path),
        "size": physical.size,
        "verified": physical.verified,
        "parent_id": physical.parent_id,
        "parameters": dict(physical.parameters),
        "software": physical.software,
        "created_ns": physical.created_ns,
        "media": media_to_json(media),
        "extradata": media.extradata,
        "notes": list(physical.notes),
        "cost_factor": physical.cost_factor,
        "error": physical.error,
        "damage": damage_to_json(physical.damage),
    }


def damage_to_json(damage: Sequence[range] | None) -> list[list[int]] | None:
    """Return the stored form of `PhysicalVideo.damage`."""
    return None if damage is None else [[part.start, part.stop] for part in damage]


def _damage_from(stored: Any) -> tuple[range, ...] | None:
    return None if stored is None else tuple(range(*map(operator.index, pair)) for pair in stored)


def bounds_to_row(bounds: PageBounds) -> Mapping[str, int]:
    return dataclasses.asdict(bounds)


@reads_row(frame_pages)
def page_from_row(row: Row[Any]) -> tuple[PageBounds, bytes]:
    bounds = bounds_from_row(row)
    require_integer_bounds(bounds)
    return bounds, require_bytes(row.data)


def require_integer_bounds(bounds: PageBounds) -> None:
    """Raises `TypeError` unless all bounds are integers."""
    for number in dataclasses.astuple(bounds):
        operator.index(number)


def bounds_from_row(row: Row[Any]) -> PageBounds:
    return PageBounds(
        first_packet=row.first_packet,
        packets=row.packets,
        first_frame=row.first_frame,
        frames=row.frames,
        first_pts=row.first_pts,
        last_pts=row.last_pts,
        key_packet=row.key_packet,
    )
