"""When anything was written down, and when the clock was believed, within one transaction."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import row_of
from vfsd.catalog.schema import original_log, physical_videos, reads, segments, videos
from vfsd.catalog.seentree import SeenTree
from vfsd.retention.clockrules import Believed

BELIEVED = "believed"
"""The action of the one line of the log of originals that is about the clock."""

_WITNESSES: dict[sa.Table, sa.Column[int]] = {
    original_log: original_log.c.at_ns,
    physical_videos: physical_videos.c.created_ns,
    segments: segments.c.created_ns,
    reads: reads.c.at_ns,
}
"""Tables whose rows are numbered in the order in which they were written, whatever the clock said,
and what it said then."""


class ClockNotes:
    """What a store knows of the clock, as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def believed(self) -> Believed | None:
        """The last time that ages were acted upon; None: never."""
        chosen = (
            sa.select(original_log)
            .where(original_log.c.action == BELIEVED)
            .order_by(original_log.c.id.desc())
        )
        row = self._connection.execute(chosen).first()
        return None if row is None else _believed_from_row(row)

    def believe(self, believed: Believed) -> None:
        """Remember it, in the place of the one before."""
        is_note = original_log.c.action == BELIEVED
        self._connection.execute(sa.delete(original_log).where(is_note))
        self._connection.execute(
            sa.insert(original_log).values(
                at_ns=believed.at_ns,
                action=BELIEVED,
                video_id=0,
                name="",
                reason="",
                digest="",
                size=0,
                details=dict(believed.known),
            )
        )

    def newest(self) -> dict[str, int]:
        """What has been written down by now: see `Believed.known`."""
        return {table.name: self._newest(table) for table in _WITNESSES}

    def since(self, believed: Believed | None) -> list[int]:
        """The moments, Unix time in ns, at which anything was written down since; in no order."""
        found: list[int] = []
        for table, moment in _WITNESSES.items():
            chosen = sa.select(moment).where(_is_since(table, believed)).distinct()
            found += self._connection.execute(chosen).scalars()
        return found

    def what(self, at_ns: int, believed: Believed | None) -> str | None:
        """What was written down then, in words, if it was since the clock was believed."""
        if believed is not None and at_ns == believed.at_ns:
            return "`vfsd age` was done"
        for table, moment in _WITNESSES.items():
            there = moment == at_ns, _is_since(table, believed)
            row = self._connection.execute(sa.select(table).where(*there)).first()
            if row is not None:
                return self._told(table, row)
        return None

    # -- inside

    def _newest(self, table: sa.Table) -> int:
        return int(self._connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0)

    def _told(self, table: sa.Table, row: Row[Any]) -> str:
        if table is original_log:
            return f"{row.name} was {row.action}"
        if table is segments:
            chosen = sa.select(physical_videos.c.video_id, physical_videos.c.role).where(
                physical_videos.c.id == row.physical_id
            )
            encoding = self._connection.execute(chosen).one()
            return f"{encoding.role} pictures of {self._name(encoding.video_id)} were stored"
        done = "read" if table is reads else "stored"
        return f"{self._name(row.video_id)} was {done}"

    def _name(self, video_id: int) -> str:
        chosen = sa.select(videos.c.ino).where(videos.c.id == video_id)
        ino = self._connection.execute(chosen).scalar()
        names = [] if ino is None else SeenTree(self._connection).paths_of(ino)
        return names[0] if names else "a video that has no name any more"


def _is_since(table: sa.Table, believed: Believed | None) -> sa.ColumnElement[bool]:
    known = 0 if believed is None else believed.known.get(table.name, 0)
    is_since: sa.ColumnElement[bool] = table.c.id > known
    if table is original_log:
        return sa.and_(is_since, original_log.c.action != BELIEVED)
    return is_since


@row_of(original_log)
def _believed_from_row(row: Row[Any]) -> Believed:
    return Believed(row.at_ns, {name: int(number) for name, number in row.details.items()})
