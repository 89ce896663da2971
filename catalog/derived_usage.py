"""What derived data takes and may take, within one transaction: budgets, pins, the worth of each
segment, and the log of evictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.row_mapping import reads_row
from vfsd.catalog.schema import (
    budgets,
    evictions,
    original_log,
    physical_videos,
    pins,
    reads,
    segments,
)
from vfsd.catalog.statements import in_batches
from vfsd.core.budgets import (
    DEFAULT_STORE_LIMIT,
    DEFAULT_VIDEO_LIMIT,
    ChargedSegment,
    Eviction,
    Limit,
    Pin,
    decayed,
)
from vfsd.core.model import Role

_MOST_KEPT = 100_000
"""The newest that are remembered."""


class EvictionLog:
    """The log of evictions as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self, video_id: int | None = None, limit: int | None = None) -> list[Eviction]:
        """Those of a video, or of all, the newest first."""
        chosen = sa.select(evictions).order_by(evictions.c.id.desc()).limit(limit)
        if video_id is not None:
            chosen = chosen.where(evictions.c.video_id == video_id)
        return [_eviction_from_row(row) for row in self._connection.execute(chosen)]

    def add(self, done: Sequence[Eviction]) -> None:
        """Remember them, and forget the oldest of very many."""
        if not done:
            return
        self._connection.execute(sa.insert(evictions), [_eviction_to_row(one) for one in done])
        last = sa.select(sa.func.max(evictions.c.id)).scalar_subquery()
        self._connection.execute(sa.delete(evictions).where(evictions.c.id <= last - _MOST_KEPT))

    def remove_of_video(self, video_id: int) -> None:
        self._connection.execute(sa.delete(evictions).where(evictions.c.video_id == video_id))


@reads_row(evictions)
def _eviction_from_row(row: Row[Any]) -> Eviction:
    return Eviction(
        id=row.id,
        video_id=row.video_id,
        at_ns=row.at_ns,
        why=row.why,
        role=Role(row.role),
        frames=range(row.first_frame, row.end_frame),
        size=(row.width, row.height),
        profile=row.profile,
        layout=row.layout,
        bytes=row.bytes,
        created_ns=row.created_ns,
        is_retired=row.retired,
        used_ns=row.used_ns,
        uses=row.uses,
        saved=row.saved,
    )


def _eviction_to_row(one: Eviction) -> dict[str, Any]:
    return {
        "video_id": one.video_id,
        "at_ns": one.at_ns,
        "why": one.why,
        "role": one.role.value,
        "first_frame": one.frames.start,
        "end_frame": one.frames.stop,
        "width": one.size[0],
        "height": one.size[1],
        "layout": one.layout,
        "profile": one.profile,
        "bytes": one.bytes,
        "retired": one.is_retired,
        "created_ns": one.created_ns,
        "used_ns": one.used_ns,
        "uses": one.uses,
        "saved": one.saved,
    }


@dataclass(frozen=True, slots=True)
class SegmentGain:
    """What reads had of a segment."""

    read: int  #: the number of the last of them
    at_ns: int  #: Unix time at which that began
    uses: int
    saved: float  #: CPU seconds


class DerivedUsage:
    """Derived data as one transaction sees it.  A video's number that is None means all videos."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- budgets

    def limit(self, video_id: int | None) -> Limit:
        """What a video, or the whole store, may take."""
        chosen = sa.select(budgets).where(_is_of(video_id)).order_by(budgets.c.id.desc())
        row = self._connection.execute(chosen).first()
        if row is None:
            return DEFAULT_STORE_LIMIT if video_id is None else DEFAULT_VIDEO_LIMIT
        return _limit_from_row(row)

    def set_limit(self, video_id: int | None, limit: Limit | None) -> None:
        """None: as where nobody has said anything."""
        self._connection.execute(sa.delete(budgets).where(_is_of(video_id)))
        if limit is not None:
            self._connection.execute(
                sa.insert(budgets).values(video_id=video_id, bytes=limit.bytes, times=limit.times)
            )

    def original_bytes(self, video_id: int | None) -> int:
        """Of the files as they were written: where others have taken their place, of the first.

        Several that are the same count each.
        """
        chosen = sa.select(sa.func.sum(physical_videos.c.size)).where(
            physical_videos.c.role == Role.ORIGINAL.value
        )
        if video_id is not None:
            chosen = chosen.where(physical_videos.c.video_id == video_id)
        now = int(self._connection.execute(chosen).scalar() or 0)
        return now + self._given_up(video_id)

    def _given_up(self, video_id: int | None) -> int:
        """Bytes that the very first originals had more than those that have their places."""
        query, given = (_GIVEN_UP, {}) if video_id is None else (_GIVEN_UP_OF_ONE, {"id": video_id})
        return int(self._connection.execute(query, given).scalar() or 0)

    def stored_bytes(self) -> int:
        """What originals take: those that several videos have count once."""
        chosen = (
            sa.select(
                physical_videos.c.object_key, physical_videos.c.link_path, physical_videos.c.size
            )
            .where(physical_videos.c.role == Role.ORIGINAL.value)
            .distinct()
            .subquery()
        )
        return int(self._connection.execute(sa.select(sa.func.sum(chosen.c.size))).scalar() or 0)

    def charged(self, video_id: int | None) -> int:
        """Bytes of all segments but pinned ones."""
        chosen = sa.select(sa.func.sum(segments.c.size)).select_from(_SEGMENTS)
        chosen = _within(chosen.where(~_IS_PINNED), video_id)
        return int(self._connection.execute(chosen).scalar() or 0)

    def held(self, video_id: int | None) -> list[ChargedSegment]:
        """All segments, by video, kind, size and first frame."""
        return self._held(video_id, sa.true())

    def _held(
        self, video_id: int | None, condition: sa.ColumnElement[bool]
    ) -> list[ChargedSegment]:
        chosen = sa.select(
            segments,
            physical_videos.c.video_id,
            physical_videos.c.role,
            physical_videos.c.width,
            physical_videos.c.height,
            _IS_PINNED.label("is_pinned"),
        ).select_from(_SEGMENTS)
        chosen = _within(chosen.where(condition), video_id).order_by(
            physical_videos.c.video_id,
            physical_videos.c.role,
            physical_videos.c.width,
            physical_videos.c.height,
            segments.c.first_frame,
            segments.c.id,
        )
        return [_charged_from_row(row) for row in self._connection.execute(chosen)]

    def shared_with(self, chosen: Sequence[ChargedSegment]) -> list[ChargedSegment]:
        """Joined segments that share their packs with some of these, which they go with."""
        keys = (one.object_key for one in chosen if one.role is Role.JOINED)
        there = {one.id for one in chosen}
        found: list[ChargedSegment] = []
        for some in in_batches(segments.c.object_key, keys):
            found += self._held(None, some & (physical_videos.c.role == Role.JOINED.value))
        return [one for one in found if one.id not in there]

    # -- pins

    def pins(self, video_id: int | None) -> list[Pin]:
        """By video and first frame."""
        chosen = sa.select(pins).order_by(pins.c.video_id, pins.c.first_frame, pins.c.id)
        if video_id is not None:
            chosen = chosen.where(pins.c.video_id == video_id)
        return [_pin_from_row(row) for row in self._connection.execute(chosen)]

    def pin(self, pin: Pin) -> Pin:
        width, height = pin.size or (None, None)
        result = self._connection.execute(
            sa.insert(pins).values(
                video_id=pin.video_id,
                first_frame=pin.frames.start,
                end_frame=pin.frames.stop,
                role=None if pin.role is None else pin.role.value,
                width=width,
                height=height,
                at_ns=pin.at_ns,
            )
        )
        assert result.inserted_primary_key is not None
        return replace(pin, id=int(result.inserted_primary_key[0]))

    def unpin(self, pin_ids: Iterable[int]) -> None:
        for some in in_batches(pins.c.id, pin_ids):
            self._connection.execute(sa.delete(pins).where(some))

    def unpin_video(self, video_id: int) -> None:
        self._connection.execute(sa.delete(pins).where(pins.c.video_id == video_id))

    # -- worth

    def newest_read(self) -> int:
        """The number of the newest read that was ever noted, as far as anything remembers it."""
        newest = self._max(reads.c.id)
        if newest is not None:
            return newest
        # Somebody has had all of them forgotten.
        return max(self._max(segments.c.used_at_read) or 0, self._max(segments.c.made_at_read) or 0)

    def note_made(self, segment_id: int, *, expected: float, gain: float) -> None:
        """A segment was published; see `Held` for what is said of it."""
        self._connection.execute(
            sa.update(segments)
            .where(segments.c.id == segment_id)
            .values(made_at_read=self.newest_read(), expected=expected, gain=gain)
        )

    def note_used(self, found: Mapping[int, SegmentGain]) -> None:
        """Reads have used these segments; those that are there no longer are left out."""
        for some in in_batches(segments.c.id, found):
            before = self._connection.execute(
                sa.select(
                    segments.c.id, segments.c.used_at_read, segments.c.uses, segments.c.saved
                ).where(some)
            )
            changed = [
                _add(number, read, uses, saved, found[number])
                for number, read, uses, saved in before
            ]
            if changed:
                self._connection.execute(_NOTE_USE, changed)

    def _max(self, column: sa.Column[int]) -> int | None:
        found: int | None = self._connection.execute(sa.select(sa.func.max(column))).scalar()
        return found

    # -- checking

    def stray_pins(self) -> list[Pin]:
        """Pins of frames that their videos do not have."""
        originals = sa.select(physical_videos.c.video_id, physical_videos.c.frames).where(
            physical_videos.c.role == Role.ORIGINAL.value
        )
        frames = {row.video_id: row.frames for row in self._connection.execute(originals)}
        return [pin for pin in self.pins(None) if pin.frames.start >= frames.get(pin.video_id, 0)]

    def store_limits(self) -> int:
        """How many budgets the store has: one at most."""
        chosen = sa.select(sa.func.count()).where(_is_of(None)).select_from(budgets)
        return int(self._connection.execute(chosen).scalar() or 0)


_SEGMENTS = segments.join(physical_videos, physical_videos.c.id == segments.c.physical_id)


def _has_pin(some: sa.FromClause, encodings: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a segment of one of `encodings` is in use and pinned itself."""
    return sa.and_(
        some.c.retired_ns.is_(None),
        sa.exists().where(
            pins.c.video_id == encodings.c.video_id,
            pins.c.first_frame < some.c.end_frame,
            pins.c.end_frame > some.c.first_frame,
            sa.or_(pins.c.role.is_(None), pins.c.role == encodings.c.role),
            sa.or_(
                pins.c.width.is_(None),
                sa.and_(
                    pins.c.width == encodings.c.width,
                    pins.c.height == encodings.c.height,
                ),
            ),
        ),
    )


def _has_pinned_other() -> sa.ColumnElement[bool]:
    """Whether the segment that a joined one shares its pack with is pinned: both stay, or none."""
    others, encodings = segments.alias("others"), physical_videos.alias("encodings")
    return sa.and_(
        physical_videos.c.role == Role.JOINED.value,
        sa.exists().where(
            others.c.object_key == segments.c.object_key,
            others.c.id != segments.c.id,
            encodings.c.id == others.c.physical_id,
            encodings.c.role == Role.JOINED.value,
            _has_pin(others, encodings),
        ),
    )


_IS_PINNED = sa.or_(_has_pin(segments, physical_videos), _has_pinned_other())

_NOTE_USE = (
    sa.update(segments)
    .where(segments.c.id == sa.bindparam("number"))
    .values(
        used_at_read=sa.bindparam("read"),
        used_ns=sa.bindparam("at_ns"),
        uses=sa.bindparam("all_uses"),
        saved=sa.bindparam("all_saved"),
    )
)


def _add(
    number: int, read: int | None, uses: float, saved: float, used: SegmentGain
) -> dict[str, int | float]:
    gap = 0 if read is None else used.read - read
    return {
        "number": number,
        "read": max(read or 0, used.read),
        "at_ns": used.at_ns,
        "all_uses": decayed(uses, gap) + used.uses,
        "all_saved": decayed(saved, gap) + used.saved,
    }


def _bytes_given_up(of_one: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The sum, along the log, of what each file that took the place of another has less than that:
    from the original that is there back to the first.

    Bytes that went otherwise, written over say, are not followed.
    """
    original, log, later = physical_videos, original_log, original_log.alias("later")
    # Of several lines about the same bytes the newest tells where they come from.
    is_newest = ~sa.exists().where(
        later.c.video_id == log.c.video_id,
        later.c.new_digest == log.c.new_digest,
        later.c.id > log.c.id,
    )
    chain = (
        sa.select(
            log.c.id,
            log.c.video_id,
            log.c.digest,
            log.c.size,
            (log.c.size - original.c.size).label("less"),
        )
        .join(
            original,
            sa.and_(
                original.c.video_id == log.c.video_id,
                original.c.role == Role.ORIGINAL.value,
                original.c.object_key == log.c.new_digest,
            ),
        )
        .where(log.c.new_digest.is_not(None), is_newest, of_one)
        .cte("chain", recursive=True)
    )
    before = original_log.alias("before")
    between = original_log.alias("between")
    is_next = ~sa.exists().where(
        between.c.video_id == before.c.video_id,
        between.c.new_digest == before.c.new_digest,
        between.c.id > before.c.id,
        between.c.id < chain.c.id,
    )
    chain = chain.union_all(
        sa.select(
            before.c.id,
            before.c.video_id,
            before.c.digest,
            before.c.size,
            before.c.size - chain.c.size,
        )
        .join(
            chain,
            sa.and_(
                before.c.video_id == chain.c.video_id,
                before.c.new_digest == chain.c.digest,
                before.c.id < chain.c.id,
            ),
        )
        .where(is_next)
    )
    return sa.select(sa.func.sum(chain.c.less))


_GIVEN_UP = _bytes_given_up(sa.true())
_GIVEN_UP_OF_ONE = _bytes_given_up(original_log.c.video_id == sa.bindparam("id"))


def _is_of(video_id: int | None) -> sa.ColumnElement[bool]:
    return budgets.c.video_id.is_(None) if video_id is None else budgets.c.video_id == video_id


def _within(chosen: sa.Select[Any], video_id: int | None) -> sa.Select[Any]:
    if video_id is None:
        return chosen
    return chosen.where(physical_videos.c.video_id == video_id)


@reads_row(segments)
def _charged_from_row(row: Row[Any]) -> ChargedSegment:
    return ChargedSegment(
        id=row.id,
        video_id=row.video_id,
        role=Role(row.role),
        frames=range(row.first_frame, row.end_frame),
        size=(row.width, row.height),
        profile=row.profile,
        layout=row.layout,
        object_key=row.object_key,
        bytes=row.size,
        created_ns=row.created_ns,
        is_retired=row.retired_ns is not None,
        is_pinned=bool(row.is_pinned),
        made_at_read=row.made_at_read,
        expected=row.expected,
        gain=row.gain,
        used_at_read=row.used_at_read,
        used_ns=row.used_ns,
        uses=row.uses,
        saved=row.saved,
    )


@reads_row(budgets)
def _limit_from_row(row: Row[Any]) -> Limit:
    return Limit(row.bytes, row.times)


@reads_row(pins)
def _pin_from_row(row: Row[Any]) -> Pin:
    return Pin(
        id=row.id,
        video_id=row.video_id,
        frames=range(row.first_frame, row.end_frame),
        role=None if row.role is None else Role(row.role),
        size=None if row.width is None else (row.width, row.height),
        at_ns=row.at_ns,
    )
