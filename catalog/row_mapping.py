"""Converts rows to values and back.

Rows with impossible values, for example after a bit flip, raise `IntegrityError` with the table and
the key.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.schema import frame_pages, metadata, physical_videos
from vfsd.core.frame_table_pages import PageBounds
from vfsd.core.model import NO_CROP_MARGINS, Access, MediaInfo, PhysicalVideo, Role, SideStream
from vfsd.errors import IntegrityError

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
