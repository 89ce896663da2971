"""When anything was written down, and when the clock was believed, within one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.row_mapping import reads_row
from vfsd.catalog.schema import original_log, physical_videos, reads, segments, videos
from vfsd.catalog.tree_reader import TreeReader
from vfsd.core.clock_check import TrustedClock, earliest_age_start
from vfsd.core.model import Role

CLOCK_TRUSTED = "believed"
"""The action of lines of the log of originals that are about the clock: one of when it was believed
last, which is about no video, and one of each video that came while it was behind, or whose bytes
became others."""

_NOTE_INTERVAL_NS = 3600 * 1_000_000_000
"""Between a plan and when it is acted upon; what is noted later than that lies ahead."""

_TIMESTAMP_COLUMNS: dict[sa.Table, sa.Column[int]] = {
    original_log: original_log.c.at_ns,
    physical_videos: physical_videos.c.created_ns,
    segments: segments.c.created_ns,
    reads: reads.c.at_ns,
}
"""Tables whose rows are numbered as they are written, and what the clock said then."""

_SAME_AS_VIDEO = sa.and_(
    physical_videos.c.role == Role.ORIGINAL.value,
    physical_videos.c.created_ns
    == sa.select(videos.c.created_ns)
    .where(videos.c.id == physical_videos.c.video_id)
    .scalar_subquery(),
)
_IN_ORDER: dict[sa.Table, tuple[sa.Column[int], sa.ColumnElement[bool]]] = {
    original_log: (original_log.c.at_ns, sa.true()),
    videos: (videos.c.created_ns, sa.true()),
    # Where an original was corrected it has got another number, and may have kept its time.
    physical_videos: (physical_videos.c.created_ns, sa.not_(_SAME_AS_VIDEO)),
    segments: (segments.c.created_ns, sa.true()),
}
"""The moments of these are in the order of the numbers, whatever the clock said, where that holds.
Those of reads are not: they are numbered as they end, and tell when they began, which may be days
before."""

_NONE = 0
"""The number of no video."""


class ClockHistory:
    """What a store knows of the clock, as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def believed(self) -> TrustedClock | None:
        """The last time that ages were acted upon; None: never."""
        chosen = (
            sa.select(original_log)
            .where(original_log.c.action == CLOCK_TRUSTED, original_log.c.video_id == _NONE)
            .order_by(original_log.c.id.desc())
        )
        row = self._connection.execute(chosen).first()
        return None if row is None else _trusted_from_row(row)

    def believe(self, believed: TrustedClock, not_before: Mapping[int, int]) -> None:
        """Remember it, in the place of the one before, and of which videos something else is
        believed than their times: what `not_before` gave with it."""
        there = sa.select(videos.c.id)
        self._forget((original_log.c.video_id == _NONE) | original_log.c.video_id.not_in(there))
        noted, known = self._noted(), set(self._connection.execute(there).scalars())
        for video_id, at_ns in not_before.items():
            # What came meanwhile is younger than what was known when it was planned.
            is_told = at_ns <= noted.get(video_id, 0) <= believed.at_ns + _NOTE_INTERVAL_NS
            if video_id in known and not is_told:
                self.note_new_bytes(video_id, at_ns)
        self._note(_NONE, believed.at_ns, dict(believed.known))

    def note_new_bytes(self, video_id: int, at_ns: int) -> None:
        """Its bytes are others since: it is no older than that, whatever time its file is given."""
        self._forget(original_log.c.video_id == video_id)
        self._note(video_id, at_ns, {})

    def newest(self) -> dict[str, int]:
        """What has been written down by now: see `TrustedClock.known`."""
        return {table.name: self._newest(table) for table in (*_TIMESTAMP_COLUMNS, videos)}

    def since(self, believed: TrustedClock | None) -> list[int]:
        """The moments, Unix time in ns, at which anything was written down since; in no order."""
        found: list[int] = []
        for table, moment in _TIMESTAMP_COLUMNS.items():
            chosen = sa.select(moment).where(_is_since(table, believed)).distinct()
            found += self._connection.execute(chosen).scalars()
        return found

    def in_order_since(self, believed: TrustedClock | None) -> list[list[int]]:
        """Moments of each table that has them in the order of writing, in that order."""
        return [
            [*self._connection.execute(_ordered(table, believed)).scalars()] for table in _IN_ORDER
        ]

    def not_before(self, now_ns: int, believed: TrustedClock | None) -> dict[int, int]:
        """Since when (Unix time in ns), at most, there are the videos that were written over, or
        that came, or whose bytes did, while the clock was behind; by their numbers."""
        # What lies ahead was told by a clock that was: it is so since now, at most.
        found = {video_id: min(at_ns, now_ns) for video_id, at_ns in self._noted().items()}
        start = {} if believed is None else {"start_ns": believed.start_ns(now_ns)}
        came = _ordered(videos, believed)
        stored = _ordered(physical_videos, believed).where(
            physical_videos.c.role == Role.ORIGINAL.value
        )
        for chosen in (
            came.add_columns(videos.c.id),
            stored.add_columns(physical_videos.c.video_id),
        ):
            rows = self._connection.execute(chosen)
            since = earliest_age_start(now_ns, ((whose, moment) for moment, whose in rows), **start)
            for video_id, at_ns in since.items():
                found[video_id] = max(at_ns, found.get(video_id, at_ns))
        return found

    def what(self, at_ns: int, believed: TrustedClock | None) -> str | None:
        """What was written down then, in words, if it was since the clock was believed."""
        if believed is not None and at_ns == believed.at_ns:
            return "`vfsd age` was done"
        for table, moment in (_TIMESTAMP_COLUMNS | {videos: videos.c.created_ns}).items():
            there = moment == at_ns, _is_since(table, believed)
            row = self._connection.execute(sa.select(table).where(*there)).first()
            if row is not None:
                return self._told(table, row)
        return None

    # -- inside

    def _noted(self) -> dict[int, int]:
        """What is believed of videos, by their numbers."""
        chosen = sa.select(original_log.c.video_id, original_log.c.at_ns).where(
            original_log.c.action == CLOCK_TRUSTED, original_log.c.video_id != _NONE
        )
        return {row.video_id: row.at_ns for row in self._connection.execute(chosen)}

    def _forget(self, whose: sa.ColumnElement[bool]) -> None:
        is_note = original_log.c.action == CLOCK_TRUSTED
        self._connection.execute(sa.delete(original_log).where(is_note, whose))

    def _note(self, video_id: int, at_ns: int, details: dict[str, int]) -> None:
        self._connection.execute(
            sa.insert(original_log).values(
                at_ns=at_ns,
                action=CLOCK_TRUSTED,
                video_id=video_id,
                name="",
                reason="",
                digest="",
                size=0,
                details=details,
            )
        )

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
        if table is videos:
            return f"{self._name(row.id)} was stored"
        done = "read" if table is reads else "stored"
        return f"{self._name(row.video_id)} was {done}"

    def _name(self, video_id: int) -> str:
        chosen = sa.select(videos.c.ino).where(videos.c.id == video_id)
        ino = self._connection.execute(chosen).scalar()
        names = [] if ino is None else TreeReader(self._connection).paths_of(ino)
        return names[0] if names else "a video that has no name any more"


def _ordered(table: sa.Table, believed: TrustedClock | None) -> sa.Select[Any]:
    """Its moments in the order of writing."""
    moment, holds = _IN_ORDER[table]
    return sa.select(moment).where(_is_since(table, believed), holds).order_by(table.c.id)


def _is_since(table: sa.Table, believed: TrustedClock | None) -> sa.ColumnElement[bool]:
    known = 0 if believed is None else believed.known.get(table.name, 0)
    is_since: sa.ColumnElement[bool] = table.c.id > known
    if table is original_log:
        return sa.and_(is_since, original_log.c.action != CLOCK_TRUSTED)
    return is_since


@reads_row(original_log)
def _trusted_from_row(row: Row[Any]) -> TrustedClock:
    return TrustedClock(row.at_ns, {name: int(number) for name, number in row.details.items()})
