"""Queries for a catalog on PostgreSQL that answer with one statement what takes several on SQLite,
where a statement is not a round trip.  Also copies the catalog of a server to an SQLite file, as
part of a backup.
"""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from vfsd.catalog import schema
from vfsd.catalog.integrity import is_at
from vfsd.catalog.open_catalog import create_database
from vfsd.catalog.retention import OriginalPolicies, policy_from_row
from vfsd.catalog.schema import (
    ROOT,
    cells,
    costs,
    entries,
    inspections,
    nodes,
    physical_videos,
    policies,
    segments,
    tags,
    videos,
)
from vfsd.catalog.schema.columns import IdType
from vfsd.catalog.segments import (
    IS_OF_DECODING,
    TileState,
    cell_from_row,
    decode_cost_from_row,
    segment_from_row,
)
from vfsd.catalog.tree import split_path
from vfsd.catalog.videos import video_from_row
from vfsd.core.model import FileState, LogicalVideo, Role, Segment
from vfsd.core.retention_policy import RetentionPolicy
from vfsd.validation import is_storable

if TYPE_CHECKING:
    from vfsd.catalog.engine import Database


def _row_type(table: sa.Table, more: Iterable[str] = ()) -> Any:
    """Return a type of rows with the columns of a table as attributes, and `more`."""
    return namedtuple(f"{table.name}_row", [*(one.name for one in table.columns), *more])


_NODE_COLUMNS = ("size", "mtime_ns")
_VideoRow = _row_type(videos, _NODE_COLUMNS)
_PhysicalRow = _row_type(physical_videos)
_NAMES = sa.bindparam("names", type_=postgresql.ARRAY(sa.LargeBinary))

_root = sa.select(
    sa.literal(ROOT, IdType).label("ino"),
    sa.literal(0, sa.Integer).label("depth"),
    _NAMES.label("names"),
).cte("walk", recursive=True)
_walk = _root.union_all(
    sa.select(entries.c.ino, _root.c.depth + 1, _root.c.names).join(
        _root,
        sa.and_(
            entries.c.parent == _root.c.ino, entries.c.name == _root.c.names[_root.c.depth + 1]
        ),
    )
)
_tags = (
    sa.select(sa.func.array_agg(tags.c.tag)).where(tags.c.video_id == videos.c.id).scalar_subquery()
)
_VIDEO_AT = (
    sa.select(
        *videos.c,
        *(nodes.c[name] for name in _NODE_COLUMNS),
        *physical_videos.c,
        nodes.c.nlink,
        _tags,
    )
    .join(_walk, _walk.c.ino == videos.c.ino)
    .join(nodes, nodes.c.ino == videos.c.ino)
    .join(
        physical_videos,
        sa.and_(
            physical_videos.c.video_id == videos.c.id,
            physical_videos.c.role == Role.ORIGINAL.value,
        ),
    )
    .where(
        _walk.c.depth == sa.func.cardinality(_walk.c.names), nodes.c.state == FileState.VIDEO.value
    )
)


def video_at(connection: Connection, path: str) -> LogicalVideo | None:
    """Return the video at a path; None where other queries have to find out more: there is none,
    or it has several names.
    """
    names = split_path(path)
    row = connection.execute(_VIDEO_AT, {"names": [os.fsencode(one) for one in names]}).first()
    if row is None:
        return None
    *values, links, words = row
    if links != 1:
        return None
    end = len(_VideoRow._fields)
    video, original = _VideoRow(*values[:end]), _PhysicalRow(*values[end:])
    return video_from_row(video, "/".join(names), original, words or ())


def tile_state(connection: Connection, video: LogicalVideo, host: str) -> tuple[TileState, bool]:
    """Return the state of a video for reads on a host, without its unreadable frames, and whether
    it has damaged bytes.
    """
    values = {
        "original": video.original.id,
        "ino": video.ino,
        "host": host if is_storable(host) else "",
    }
    row = connection.execute(_select_state(video), values).one()
    found: dict[str, list[Segment]] = {role.value: [] for role in Role}
    for *some, role, parts in row.segments or ():
        tiles = tuple(cell_from_row(_record(cells, one)) for one in parts or ())
        found[role].append(segment_from_row(_record(segments, some), tiles))
    prices = (_record(costs, one) for one in row.costs or ())
    stated = (_record(policies, one) for one in row.policies or ())
    state = TileState(
        segments=found[Role.TILED.value] + found[Role.RENDITION.value],
        joined=found[Role.JOINED.value],
        unreadable=(),
        factor=row.factor,
        measured={one.name: decode_cost_from_row(one) for one in prices},
        reads=_KnownPolicies(stated, row.names or ()).policy(video.ino).reads,
    )
    return state, bool(row.damage)


class _KnownPolicies(OriginalPolicies):
    """The policies that may apply to one file."""

    def __init__(self, stated: Iterable[Any], names: Sequence[tuple[int, int]]) -> None:
        self._known = {row.ino: policy_from_row(row) for row in stated}
        self._names = names  #: (inode, directory)

    def own_policy(self, ino: int) -> RetentionPolicy | None:
        return self._known.get(ino)

    def _parents(self, ino: int) -> list[int]:
        return sorted({parent for child, parent in self._names if child == ino})


def _record(table: sa.Table, values: Sequence[Any]) -> Any:
    """Return a row from a JSON array, where infinity is text and a float may look like an int."""
    return _ROW_TYPES[table.name](
        *(
            float(value) if isinstance(column.type, sa.Float) and value is not None else value
            for column, value in zip(table.columns, values, strict=True)
        )
    )


def _select_state(video: LogicalVideo) -> sa.Select[Any]:
    damage = sa.select(inspections.c.damage).where(is_at(inspections, video.original.place))
    return _STATE.add_columns(damage.scalar_subquery().label("damage"))


def _array_of(table: sa.Table, *more: Any) -> sa.ColumnElement[Any]:
    return sa.func.json_build_array(*table.c, *more)


def _all(row: sa.ColumnElement[Any], order: Any, *conditions: Any) -> sa.Select[Any]:
    """Return the query for a JSON array of rows; null if there are none."""
    return sa.select(sa.func.json_agg(postgresql.aggregate_order_by(row, order))).where(*conditions)


_ROW_TYPES = {one.name: _row_type(one) for one in (segments, cells, costs, policies)}
_ORIGINAL = sa.bindparam("original", type_=IdType)
_cells = _all(_array_of(cells), cells.c.tile, cells.c.segment_id == segments.c.id)
_role = physical_videos.c.role
_segments = _all(
    _array_of(segments, _role, _cells.correlate(segments).scalar_subquery()),
    segments.c.first_frame,
    segments.c.original_id == _ORIGINAL,
    physical_videos.c.id == segments.c.physical_id,
    sa.or_(
        sa.and_(
            segments.c.retired_ns.is_(None),
            _role.in_([Role.TILED.value, Role.RENDITION.value]),
        ),
        _role == Role.JOINED.value,
    ),
)
_costs = _all(_array_of(costs), costs.c.name, costs.c.host == sa.bindparam("host"), IS_OF_DECODING)
_factor = sa.select(physical_videos.c.cost_factor).where(physical_videos.c.id == _ORIGINAL)
_INO = sa.bindparam("ino", type_=IdType)
_of_file = sa.select(entries.c.ino, entries.c.parent).where(entries.c.ino == _INO)
_below = _of_file.cte("above", recursive=True)
_above = _below.union(
    sa.select(entries.c.ino, entries.c.parent).join(_below, entries.c.ino == _below.c.parent)
)
_names = _all(sa.func.json_build_array(_above.c.ino, _above.c.parent), _above.c.ino)
_policies = _all(
    _array_of(policies),
    policies.c.ino,
    sa.or_(policies.c.ino == _INO, policies.c.ino.in_(sa.select(_above.c.parent))),
)
_STATE = sa.select(
    _segments.scalar_subquery().label("segments"),
    _costs.scalar_subquery().label("costs"),
    _factor.scalar_subquery().label("factor"),
    _policies.scalar_subquery().label("policies"),
    _names.scalar_subquery().label("names"),
)


_ROWS = 2000
"""Rows in memory."""
_OF_SERVERS = frozenset(
    {
        *(schema.homes.name, schema.mounts.name, schema.catalog_state.name),
        *(schema.uploads.name, schema.garbage.name, schema.read_notes.name),
        schema.pack_tables.name,
        # Nothing works on an order of a backup.
        *(schema.work_orders.name, schema.work_results.name, schema.work_units.name),
    }
)
"""Tables that mean nothing without the server."""


def copy_server(database: Database, path: Path) -> None:
    """Copy one snapshot of all rows to a new file."""
    copy = create_database(f"sqlite:///{path}".replace("?", "%3F"), None)
    tables = [one for one in schema.metadata.sorted_tables if one.name not in _OF_SERVERS]
    try:
        with database.reading() as source, copy.writing() as target:
            # Rows of one table may refer to each other.
            target.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for table in reversed(tables):
                target.execute(sa.delete(table))
            for table in tables:
                query = sa.select(table).execution_options(yield_per=_ROWS)
                for rows in source.execute(query).mappings().partitions(_ROWS):
                    target.execute(sa.insert(table), [dict(row) for row in rows])
    finally:
        copy.close()
