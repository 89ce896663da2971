"""Retention policies, holds, the log of originals and trust in the clock, within one transaction.

Lines of the log of originals with the action `CLOCK_TRUSTED` keep the state of that trust.  The
line of video 0 holds the last run of `vfsd age`.  The line of another video holds the earliest time
from which its age counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import (
    IS_ROOT,
    browser_renditions,
    budgets,
    entries,
    holds,
    nodes,
    original_log,
    physical_videos,
    policies,
    reads,
    segments,
    videos,
)
from vfsd.catalog.schema.columns import IdType
from vfsd.core.model import LogicalVideo, error_from_psnr
from vfsd.core.retention_policy import (
    Action,
    AgeClock,
    Fate,
    Hold,
    OriginalLogEntry,
    RetentionPolicy,
    Share,
    TrustedClock,
    hold_message,
    implausible_times,
    is_plausible_time,
    most_protective,
)
from vfsd.errors import HeldError
from vfsd.validation import storable

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


class OriginalPolicies:
    """Policies, holds and the log of originals."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def policy(self, ino: int) -> RetentionPolicy:
        """Return the policy of a file or directory, or of the nearest directory above that has one.

        A file with names in several directories gets the policy that satisfies all of these.
        """
        own = self.own_policy(ino)
        return own or most_protective([policy for _, policy in self._of_directories(ino)])

    def limiting(self, ino: int) -> list[int]:
        """Return the directories with a size limit (`delete_above`) that may delete a file.

        Empty if one of its names is below a directory without a limit.
        """
        if self.own_policy(ino) is not None:
            return []
        return list(_limiting(self._of_directories(ino)))

    def share(self, directory: int) -> Share:
        """Return the share of the videos under the policy of a directory with a limit."""
        return self._share(directory, holds.c.id.is_(None))

    def share_without_holds(self, directory: int) -> Share:
        """Return the same as if there were no holds."""
        return self._share(directory, sa.true())

    def sharing_key(self) -> Hashable:
        """Return a key of everything that shares, policies and holds depend on: equal keys, equal
        results.

        Its cost depends on the number of policies and holds, not on the number of videos.
        """
        version = self._connection.execute(sa.select(nodes.c.generation).where(IS_ROOT)).scalar()
        with_hold = self._connection.execute(sa.select(holds.c.video_id))
        stated = self._connection.execute(sa.select(policies))
        return version, frozenset(with_hold.scalars()), frozenset(tuple(row) for row in stated)

    def own_policy(self, ino: int) -> RetentionPolicy | None:
        """Return the policy set on that very file or directory."""
        return self._policies([ino]).get(ino)

    def policies(self) -> dict[int, RetentionPolicy]:
        """Return all policies by inode."""
        return self._policies(None)

    def set_policy(self, ino: int, policy: RetentionPolicy | None) -> None:
        """Set a policy; None removes it."""
        self._connection.execute(sa.delete(policies).where(policies.c.ino == ino))
        if policy is not None:
            self._connection.execute(sa.insert(policies).values(ino=ino, **_policy_to_row(policy)))

    def browser_key(self) -> Hashable | None:
        """Return a key of everything that `lacking_browser` depends on: equal keys, equal results
        except for `note_browser`. None if no policy has a browser rendition.

        It also changes with the budgets, which may have refused one.
        """
        asking = sa.select(policies.c.ino).where(policies.c.browser.is_not(None)).limit(1)
        if self._connection.execute(asking).first() is None:
            return None
        budget = self._connection.execute(sa.select(sa.func.max(budgets.c.id))).scalar()
        return self.sharing_key(), budget

    def lacking_browser(
        self, limit: int | None = None, *, instead: tuple[int, int] | None = None
    ) -> dict[int, int]:
        """Return the videos that still lack the rendition that the rule `browser` asks for.

        The values are the width of the rule, by video id, oldest video first. With `instead`, as if
        the file or directory with that inode had a policy with that width.
        """
        given = sa.select(policies.c.ino, policies.c.browser)
        if instead is not None:
            ino, width = (sa.literal(value, IdType) for value in instead)
            given = given.where(policies.c.ino != ino)
            one = sa.union_all(given, sa.select(ino, width)).subquery()
            given = sa.select(one.c.ino, one.c.browser)
        stated = given.cte("stated")
        below = sa.select(stated).where(stated.c.browser.is_not(None)).cte("below", recursive=True)
        inner = sa.select(entries.c.ino, below.c.browser).join(
            below, entries.c.parent == below.c.ino
        )
        below = below.union(inner.where(entries.c.ino.not_in(sa.select(stated.c.ino))))
        widest = sa.func.max(below.c.browser)
        done = browser_renditions
        chosen = (
            sa.select(videos.c.id, widest)
            .join(below, below.c.ino == videos.c.ino)
            .outerjoin(done, (done.c.video_id == videos.c.id) & (done.c.digest == videos.c.digest))
            .group_by(videos.c.id, done.c.width)
            .having(sa.or_(done.c.width.is_(None), done.c.width != widest))
            .order_by(videos.c.id)
            .limit(limit)
        )
        return {row[0]: row[1] for row in self._connection.execute(chosen)}

    def note_browser(
        self, video: LogicalVideo, width: int, at_ns: int, refused: str | None = None
    ) -> None:
        """Note that the rule was carried out; ignored if the video is gone or has other bytes."""
        of_video = videos.c.id == video.id
        same = sa.select(videos.c.id).where(of_video, videos.c.digest == video.digest)
        if self._connection.execute(same).first() is None:
            return
        table = browser_renditions
        self._connection.execute(sa.delete(table).where(table.c.video_id == video.id))
        reason = None if refused is None else storable(refused)
        values = {"video_id": video.id, "digest": video.digest, "width": width, "at_ns": at_ns}
        self._connection.execute(sa.insert(table).values(refused=reason, **values))

    def holds(self, video_id: int | None = None) -> list[Hold]:
        """Return the holds on a video, or on all videos, oldest first."""
        chosen = sa.select(holds).order_by(holds.c.id)
        if video_id is not None:
            chosen = chosen.where(holds.c.video_id == video_id)
        return [_hold_from_row(row) for row in self._connection.execute(chosen)]

    def hold(self, hold: Hold) -> Hold:
        result = self._connection.execute(
            sa.insert(holds).values(video_id=hold.video_id, reason=hold.reason, at_ns=hold.at_ns)
        )
        assert result.inserted_primary_key is not None
        return replace(hold, id=int(result.inserted_primary_key[0]))

    def release(self, hold_ids: Iterable[int]) -> None:
        for some in in_batches(holds.c.id, hold_ids):
            self._connection.execute(sa.delete(holds).where(some))

    def require_free(self, ino: int) -> None:
        """Raises `HeldError` if a hold protects the file."""
        require_no_hold(self._connection, ino)

    def is_held(self, ino: int) -> bool:
        """Return whether a hold protects the file."""
        return self._connection.execute(_HOLDS, {"ino": ino}).first() is not None

    def log(self, video_id: int | None = None, limit: int | None = None) -> list[OriginalLogEntry]:
        """Return the log, newest first, without the lines about the clock."""
        chosen = (
            sa.select(original_log)
            .where(original_log.c.action != CLOCK_TRUSTED)
            .order_by(original_log.c.id.desc())
            .limit(limit)
        )
        if video_id is not None:
            chosen = chosen.where(original_log.c.video_id == video_id)
        return [_entry_from_row(row) for row in self._connection.execute(chosen)]

    def add(self, entry: OriginalLogEntry) -> OriginalLogEntry:
        result = self._connection.execute(sa.insert(original_log).values(_entry_to_row(entry)))
        assert result.inserted_primary_key is not None
        return replace(entry, id=int(result.inserted_primary_key[0]))

    def known_error(self, video_id: int, digest: str) -> float:
        """Return the error of the bytes with that digest against the first original.

        0 unless they replaced other bytes of that video.
        """
        row = self._connection.execute(
            sa.select(original_log.c.psnr)
            .where(original_log.c.video_id == video_id, original_log.c.new_digest == digest)
            .order_by(original_log.c.id.desc())
        ).first()
        return 0.0 if row is None or row.psnr is None else error_from_psnr(row.psnr)

    def replacement(self, video_id: int, digest: str) -> OriginalLogEntry | None:
        """Return the log entry of the replacement that produced the bytes with that digest, or
        None.
        """
        chosen = (
            sa.select(original_log)
            .where(
                original_log.c.video_id == video_id,
                original_log.c.new_digest == digest,
            )
            .order_by(original_log.c.id.desc())
        )
        row = self._connection.execute(chosen).first()
        return None if row is None else _entry_from_row(row)

    def is_left(self, video_id: int, digest: str, reason: str) -> bool:
        """Return whether the log says that these bytes were left alone for that reason."""
        chosen = sa.select(original_log.c.id).where(
            original_log.c.video_id == video_id,
            original_log.c.action == Action.LEFT.value,
            original_log.c.digest == digest,
            original_log.c.reason == storable(reason),
        )
        return self._connection.execute(chosen).first() is not None

    def _share(self, directory: int, which: sa.ColumnElement[bool]) -> Share:
        policy = self.own_policy(directory)
        assert policy is not None
        assert policy.delete_above is not None
        below, others = _below(directory), nodes.alias("others")
        holders = sa.select(sa.func.count()).where(others.c.object_key == nodes.c.object_key)
        rows = self._connection.execute(
            sa.select(
                nodes.c.ino,
                nodes.c.object_key,
                nodes.c.size,
                holders.scalar_subquery(),
            )
            .distinct()  # a video may have several holds
            .join(below, below.c.ino == nodes.c.ino)
            .join(videos, videos.c.ino == nodes.c.ino)
            .outerjoin(holds, holds.c.video_id == videos.c.id)
            .where(nodes.c.object_key.is_not(None), which)
        )
        linked = self._limiting_linked(below)
        sizes: dict[str, int] = {}
        besides: dict[str, tuple[int, ...]] = {}
        going = Counter[tuple[str, tuple[int, ...]]]()  # by bytes and directories
        for ino, key, size, holding in rows:
            limiting = linked.get(ino, (directory,))
            if not limiting:
                continue
            if holding > 1:
                going[key, limiting] += 1
                if going[key, limiting] < holding:
                    continue  # identical files are deleted together
            sizes[key] = size
            if len(limiting) > 1:
                besides[key] = tuple(each for each in limiting if each != directory)
        return Share(policy.delete_above, sizes, besides)

    def _limiting_linked(self, below: sa.CTE) -> dict[int, tuple[int, ...]]:
        """Return the result of `limiting` for all files below that have several names."""
        rows = self._connection.execute(
            sa.select(entries.c.ino, entries.c.parent)
            .join(below, below.c.ino == entries.c.ino)
            .join(nodes, nodes.c.ino == entries.c.ino)
            .where(nodes.c.nlink > 1, nodes.c.object_key.is_not(None))
        )
        parents: dict[int, set[int]] = {}
        for ino, parent in rows:
            parents.setdefault(ino, set()).add(parent)
        named = {each: self._of_directory(each) for each in set().union(*parents.values())}
        return {ino: _limiting([named[each] for each in above]) for ino, above in parents.items()}

    def _policies(self, inos: list[int] | None) -> dict[int, RetentionPolicy]:
        chosen = sa.select(policies)
        if inos is not None:
            chosen = chosen.where(policies.c.ino.in_(inos))
        return {row.ino: policy_from_row(row) for row in self._connection.execute(chosen)}

    def _of_directories(self, ino: int) -> list[tuple[int, RetentionPolicy]]:
        """Return for each directory with a name of the file: (directory of the policy, policy)."""
        return [self._of_directory(each) for each in self._parents(ino)]

    def _of_directory(self, ino: int) -> tuple[int, RetentionPolicy]:
        """Return the policy of a directory, with the directory that it is set on."""
        passed = set()  # a damaged tree may have a cycle
        while (own := self.own_policy(ino)) is None:
            passed.add(ino)
            above = self._parents(ino)
            if not above or above[0] in passed:
                return ino, RetentionPolicy()
            ino = above[0]
        return ino, own

    def _parents(self, ino: int) -> list[int]:
        """Return the distinct directories of its names."""
        query = sa.select(entries.c.parent).where(entries.c.ino == ino)
        return list(self._connection.execute(query.distinct().order_by(entries.c.parent)).scalars())


def _limiting(found: Iterable[tuple[int, RetentionPolicy]]) -> tuple[int, ...]:
    """Return the directories if every one of them has a limit."""
    limits = dict(found)
    if any(policy.delete_above is None for policy in limits.values()):
        return ()
    return tuple(sorted(limits))


def _below(directory: int) -> sa.CTE:
    """Return everything below a directory that its policy applies to."""
    below = sa.select(sa.literal(directory, IdType).label("ino")).cte("below", recursive=True)
    in_there = sa.select(entries.c.ino).join(below, entries.c.parent == below.c.ino)
    return below.union(in_there.where(entries.c.ino.not_in(sa.select(policies.c.ino))))


def require_no_hold(connection: Connection, ino: int) -> None:
    """Raises `HeldError` if a hold protects the file."""
    rows = list(connection.execute(_HOLDS, {"ino": ino}))
    if rows:
        raise HeldError(
            f"a hold protects the file: {hold_message([_hold_from_row(row) for row in rows])}",
            hint="see `vfsd hold ls`; `vfsd hold remove` lifts a hold",
        )


_HOLDS = (
    sa.select(holds)
    .join(videos, videos.c.id == holds.c.video_id)
    .where(videos.c.ino == sa.bindparam("ino"))
    .order_by(holds.c.id)
)


def _policy_to_row(policy: RetentionPolicy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in _PLAIN_COLUMNS} | {
        "original": policy.original.value,
        "clock": policy.clock.value,
    }


@reads_row(policies)
def policy_from_row(row: Row[Any]) -> RetentionPolicy:
    return RetentionPolicy(
        Fate(row.original),
        **{name: getattr(row, name) for name in _PLAIN_COLUMNS},
        clock=AgeClock(row.clock),
    )


_ENUM_COLUMNS = ("original", "clock")
_PLAIN_COLUMNS = tuple(
    field.name for field in fields(RetentionPolicy) if field.name not in _ENUM_COLUMNS
)


@reads_row(holds)
def _hold_from_row(row: Row[Any]) -> Hold:
    return Hold(row.id, row.video_id, row.reason, row.at_ns)


def _entry_to_row(entry: OriginalLogEntry) -> dict[str, Any]:
    return {
        "at_ns": entry.at_ns,
        "action": entry.action.value,
        "video_id": entry.video_id,
        "name": storable(entry.name),  # file names may be any bytes
        "reason": storable(entry.reason),
        "digest": entry.digest,
        "size": entry.size,
        "new_digest": entry.new_digest,
        "new_size": entry.new_size,
        "psnr": entry.psnr,
        "details": dict(entry.details or {}),
    }


@reads_row(original_log)
def _entry_from_row(row: Row[Any]) -> OriginalLogEntry:
    return OriginalLogEntry(
        id=row.id,
        at_ns=row.at_ns,
        action=Action(row.action),
        video_id=row.video_id,
        name=row.name,
        reason=row.reason,
        digest=row.digest,
        size=row.size,
        new_digest=row.new_digest,
        new_size=row.new_size,
        psnr=row.psnr,
        details=row.details,
    )
