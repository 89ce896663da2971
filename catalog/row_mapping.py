"""Converts rows to values and back.

Rows that hold impossible values, for example after a bit flip, raise `IntegrityError` with the
table and the key.
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
"""What comes of making a value of what it cannot be made of."""
_MOST_REPORTED = 20
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


def reads_row(table: sa.Table) -> Callable[[Callable[P, T]], Callable[P, T]]:
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
                raise _invalid_row_error(table, row[0], error) from error

        return reading

    return decorated


def _invalid_row_error(table: sa.Table, key: object, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"row {key} of {table.name} in the catalog makes no sense: {error}",
        hint=_ADVICE,
    )


def require_bytes(value: object) -> bytes:
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


def mistyped_values(connection: Connection) -> list[str]:
    """Values in an SQLite file of another type than their columns, in words; some of each table."""
    found = []
    there = set(sa.inspect(connection).get_table_names())  # an older revision lacks some
    for table in metadata.sorted_tables:
        if table.name not in there:
            continue
        rows = connection.exec_driver_sql(_mistyped_rows(table)).all()
        found += [_describe_row(table, row) for row in rows]
    return found


def _mistyped_rows(table: sa.Table) -> str:
    """The key and the name of the first strange column, of rows that have one."""
    # Keys as they are stored: what is no text may be in a column of text.
    keys = ", ".join(f'CAST("{column.name}" AS BLOB)' for column in table.primary_key)
    cases = " ".join(f"WHEN {_is_mistyped(one)} THEN '{one.name}'" for one in table.columns)
    return (
        f'SELECT {keys}, CASE {cases} END AS strange FROM "{table.name}" '
        f"WHERE strange IS NOT NULL LIMIT {_MOST_REPORTED}"
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
    return f"row {key} of {table.name} has in {column} what that cannot have"


_FRACTIONS = ("average_rate", "sample_aspect_ratio")
_OWN_COLUMNS = ("container", "codec", "time_base", "extradata")


def media_to_json(media: MediaInfo) -> dict[str, Any]:
    """What of `media` has no column of its own."""
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
    """Of a row of `physical_videos`; `media_to_json` reversed."""
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
    """All columns but the number."""
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
    """The stored form of `PhysicalVideo.damage`."""
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
    """Raises `TypeError` for what are no whole numbers."""
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
