"""The times that a store has recorded, and when its clock was last trusted, within one transaction.

Lines of the log of originals with the action `CLOCK_TRUSTED` keep this state.  The line of video 0
holds the last run of `vfsd age`.  The line of another video holds the earliest time from which its
age counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import reads_row
from vfsd.catalog.schema import original_log, physical_videos, reads, segments, videos
from vfsd.core.retention_policy import TrustedClock, implausible_times, is_plausible_time

CLOCK_TRUSTED = "believed"
"""The action of the lines of the log of originals that are about the clock."""

_PLAN_NS = 3600 * 1_000_000_000
"""The longest time between a plan and its execution.  A line noted later than that lies in the
future."""

_TIMESTAMP_COLUMNS: dict[sa.Table, sa.Column[int]] = {
    original_log: original_log.c.at_ns,
    videos: videos.c.created_ns,
    physical_videos: physical_videos.c.created_ns,
    segments: segments.c.created_ns,
    reads: reads.c.at_ns,
}
"""Tables whose row numbers rise as rows are written, with the time of each row."""

_NO_VIDEO = 0


class ClockHistory:
    """The recorded times of a store, and the state of trust in its clock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def trusted(self) -> TrustedClock | None:
        """The last time that ages were acted upon; None: never."""
        chosen = (
            sa.select(original_log)
            .where(original_log.c.action == CLOCK_TRUSTED, original_log.c.video_id == _NO_VIDEO)
            .order_by(original_log.c.id.desc())
        )
        row = self._connection.execute(chosen).first()
        return None if row is None else _trusted_from_row(row)

    def trust(self, trusted: TrustedClock, not_before: Mapping[int, int]) -> None:
        """Record `trusted` in place of the last one, and the times that `not_before` returned."""
        stored = sa.select(videos.c.id)
        self._forget(
            (original_log.c.video_id == _NO_VIDEO) | original_log.c.video_id.not_in(stored)
        )
        noted = {row.video_id: row.at_ns for row in self._notes()}
        known = set(self._connection.execute(stored).scalars())
        for video_id, at_ns in not_before.items():
            # A line that was noted since the plan is younger, and stays.
            is_noted = at_ns <= noted.get(video_id, 0) <= trusted.at_ns + _PLAN_NS
            if video_id in known and not is_noted:
                self.note_new_bytes(video_id, at_ns)
        self._note(_NO_VIDEO, trusted.at_ns, dict(trusted.known))

    def note_new_bytes(self, video_id: int, at_ns: int) -> None:
        """Count the age of a video from `at_ns` at the earliest, whatever mtime its file gets."""
        self._forget(original_log.c.video_id == video_id)
        self._note(video_id, at_ns, {})

    def newest_rows(self) -> dict[str, int]:
        """The largest row number of each table: see `TrustedClock.known`."""
        return {
            table.name: int(
                self._connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0
            )
            for table in _TIMESTAMP_COLUMNS
        }

    def newest_time(self, trusted: TrustedClock | None) -> int | None:
        """Return the newest time recorded since the clock was last trusted, as Unix time in ns.

        The time of the trust itself counts.  None: nothing was recorded.
        """
        found = [] if trusted is None else [trusted.at_ns]
        for table, moment in _TIMESTAMP_COLUMNS.items():
            chosen = sa.select(sa.func.max(moment)).where(_is_since(table, trusted))
            newest = self._connection.execute(chosen).scalar()
            found += [] if newest is None else [int(newest)]
        return max(found, default=None)

    def first_time(self) -> int | None:
        """When the oldest video was stored, by a plausible clock, as Unix time in ns."""
        stored = self._connection.execute(sa.select(videos.c.created_ns)).scalars()
        return min(filter(is_plausible_time, stored), default=None)

    def not_before(self, now_ns: int, trusted: TrustedClock | None) -> dict[int, int]:
        """The earliest times from which ages count, as Unix time in ns by video id.

        They cover videos that were written over, and videos whose recorded time cannot be right.
        The ages of the latter count from `now_ns`, the first run that saw them.
        """
        stored = self._connection.execute(
            sa.select(videos.c.id, videos.c.created_ns).where(_is_since(videos, trusted))
        )
        wrong = implausible_times(now_ns, ((row.id, row.created_ns) for row in stored), trusted)
        notes = self._notes()
        last = 0 if trusted is None else trusted.known.get(original_log.name, 0)
        fresh = ((row.video_id, row.at_ns) for row in notes if row.id > last)
        wrong |= implausible_times(now_ns, fresh, trusted)
        found = {row.video_id: min(row.at_ns, now_ns) for row in notes}
        return found | dict.fromkeys(wrong, now_ns)

    def _notes(self) -> list[Row[Any]]:
        chosen = sa.select(original_log.c.id, original_log.c.video_id, original_log.c.at_ns).where(
            original_log.c.action == CLOCK_TRUSTED, original_log.c.video_id != _NO_VIDEO
        )
        return list(self._connection.execute(chosen))

    def _forget(self, condition: sa.ColumnElement[bool]) -> None:
        is_note = original_log.c.action == CLOCK_TRUSTED
        self._connection.execute(sa.delete(original_log).where(is_note, condition))

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


def _is_since(table: sa.Table, trusted: TrustedClock | None) -> sa.ColumnElement[bool]:
    known = 0 if trusted is None else trusted.known.get(table.name, 0)
    is_since: sa.ColumnElement[bool] = table.c.id > known
    if table is original_log:
        return sa.and_(is_since, original_log.c.action != CLOCK_TRUSTED)
    return is_since


@reads_row(original_log)
def _trusted_from_row(row: Row[Any]) -> TrustedClock:
    return TrustedClock(row.at_ns, {name: int(number) for name, number in row.details.items()})
