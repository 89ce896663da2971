"""The usage of derived data, within one transaction: budgets, pins, the worth of each segment, and
the log of evictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import (
    budgets,
    evictions,
    layer_indexes,
    original_log,
    physical_videos,
    pins,
    reads,
    segments,
)
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
"""Number of evictions that the log keeps."""


class EvictionLog:
    """The log of evictions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self, video_id: int | None = None, limit: int | None = None) -> list[Eviction]:
        """Return the evictions of a video, or of all videos, newest first."""
        chosen = sa.select(evictions).order_by(evictions.c.id.desc()).limit(limit)
        if video_id is not None:
            chosen = chosen.where(evictions.c.video_id == video_id)
        return [_eviction_from_row(row) for row in self._connection.execute(chosen)]

    def add(self, done: Sequence[Eviction]) -> None:
        """Log evictions, and drop the oldest beyond `_MOST_KEPT`."""
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
    """The gain of reads from a segment."""

    read: int  #: number of the last of these reads
    at_ns: int  #: Unix time at which it began
    uses: int
    saved: float  #: CPU seconds


class UsageFigures(NamedTuple):
    """The state of the budgets before a publication."""

    read: int  #: number of the newest read
    room: int | None
    """Bytes that may be added without an eviction; 0 if not known, None: without a limit."""


class DerivedUsage:
    """Usage of derived data.  A video id of None means all videos."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def limit(self, video_id: int | None) -> Limit:
        """Return the budget of a video, or of the store."""
        chosen = sa.select(budgets).where(_is_of(video_id)).order_by(budgets.c.id.desc())
        row = self._connection.execute(chosen).first()
        if row is None:
            return DEFAULT_STORE_LIMIT if video_id is None else DEFAULT_VIDEO_LIMIT
        return _limit_from_row(row)

    def figures(self, video_id: int) -> UsageFigures:
        """Return what a publication needs to know, in one statement."""
        saved = _bytes_saved(original_log.c.video_id == video_id)
        original = _sum_of_originals().where(physical_videos.c.video_id == video_id)
        charged = _within(_sum_of_charged(), video_id)
        newest = [sa.select(sa.func.max(column)) for column in _READ_NUMBERS]
        limits = [
            sa.select(column).where(_is_of(scope)).order_by(budgets.c.id.desc()).limit(1)
            for scope in (video_id, None)
            for column in (budgets.c.id, budgets.c.bytes, budgets.c.times)
        ]
        indexes = _within(_sum_of_indexes(), video_id)
        every = [*limits, *newest, original, saved, charged, indexes]
        row = self._connection.execute(sa.select(*(one.scalar_subquery() for one in every))).one()
        own = Limit(row[1], row[2]) if row[0] is not None else DEFAULT_VIDEO_LIMIT
        shared = Limit(row[4], row[5]) if row[3] is not None else DEFAULT_STORE_LIMIT
        read = row[6] if row[6] is not None else max(row[7] or 0, row[8] or 0)
        if shared != Limit():  # its sums are about all videos, and not needed without a limit
            return UsageFigures(read, 0)
        allowed = own.allowed(int(row[9] or 0) + int(row[10] or 0))
        used = int(row[11] or 0) + int(row[12] or 0)
        return UsageFigures(read, None if allowed is None else allowed - used)

    def set_limit(self, video_id: int | None, limit: Limit | None) -> None:
        """Set a budget; None restores the default."""
        self._connection.execute(sa.delete(budgets).where(_is_of(video_id)))
        if limit is not None:
            self._connection.execute(
                sa.insert(budgets).values(video_id=video_id, bytes=limit.bytes, times=limit.times)
            )

    def original_bytes(self, video_id: int | None) -> int:
        """Return the bytes of the original files as first written, before any replacement.

        Identical files count each.
        """
        chosen = _sum_of_originals()
        if video_id is not None:
            chosen = chosen.where(physical_videos.c.video_id == video_id)
        now = int(self._connection.execute(chosen).scalar() or 0)
        return now + self._replaced_bytes(video_id)

    def _replaced_bytes(self, video_id: int | None) -> int:
        """Return the bytes that replacements of originals have saved."""
        query, given = (_SAVED, {}) if video_id is None else (_SAVED_BY_ONE, {"id": video_id})
        return int(self._connection.execute(query, given).scalar() or 0)

    def stored_bytes(self) -> int:
        """Return the bytes that originals take; an object shared by several videos counts once."""
        chosen = (
            sa.select(
                physical_videos.c.object_key, physical_videos.c.link_path, physical_videos.c.size
            )
            .where(physical_videos.c.role == Role.ORIGINAL.value)
            .distinct()
            .subquery()
        )
        return int(self._connection.execute(sa.select(sa.func.sum(chosen.c.size))).scalar() or 0)

    def charged_bytes(self, video_id: int | None) -> int:
        """Return the bytes of all segments that are not pinned, and of all indexes of layers."""
        chosen = _within(_sum_of_charged(), video_id)
        return int(self._connection.execute(chosen).scalar() or 0) + self.index_bytes(video_id)

    def index_bytes(self, video_id: int | None) -> int:
        """Return the bytes of the index of a layer, by the video with its maps."""
        chosen = _within(_sum_of_indexes(), video_id)
        return int(self._connection.execute(chosen).scalar() or 0)

    def keys(self) -> set[str]:
        """Return the keys of all objects with derived data."""
        found: set[str] = set()
        for column in (segments.c.object_key, layer_indexes.c.object_key):
            found.update(self._connection.execute(sa.select(column).distinct()).scalars())
        return found

    def segments(self, video_id: int | None) -> list[ChargedSegment]:
        """Return all segments, by video, role, size and first frame."""
        return self._select(video_id, sa.true())

    def _select(
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
        """Return the joined segments that share a pack with `chosen`, and are evicted with them."""
        keys = (one.object_key for one in chosen if one.role is Role.JOINED)
        there = {one.id for one in chosen}
        found: list[ChargedSegment] = []
        for some in in_batches(segments.c.object_key, keys):
            found += self._select(None, some & (physical_videos.c.role == Role.JOINED.value))
        return [one for one in found if one.id not in there]

    def pins(self, video_id: int | None) -> list[Pin]:
        """Return the pins, by video and first frame."""
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

    def newest_read(self) -> int:
        """Return the number of the newest read ever logged, as far as it is known."""
        logged, *others = _READ_NUMBERS
        newest = self._max(logged)
        if newest is not None:
            return newest
        # All logged reads have been dropped.
        return max(self._max(column) or 0 for column in others)

    def record_published(self, segment_id: int, *, expected: float, gain: float) -> None:
        """Record the expectations for a published segment; see `ChargedSegment`."""
        self._connection.execute(
            sa.update(segments)
            .where(segments.c.id == segment_id)
            .values(made_at_read=self.newest_read(), expected=expected, gain=gain)
        )

    def record_used(self, found: Mapping[int, SegmentGain]) -> None:
        """Add the gains of reads to segments that still exist."""
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

    def stray_pins(self) -> list[Pin]:
        """Return pins of frames that their videos do not have."""
        originals = sa.select(physical_videos.c.video_id, physical_videos.c.frames).where(
            physical_videos.c.role == Role.ORIGINAL.value
        )
        frames = {row.video_id: row.frames for row in self._connection.execute(originals)}
        return [pin for pin in self.pins(None) if pin.frames.start >= frames.get(pin.video_id, 0)]

    def store_limits(self) -> int:
        """Return the number of budgets for the whole store: at most one in a sound catalog."""
        chosen = sa.select(sa.func.count()).where(_is_of(None)).select_from(budgets)
        return int(self._connection.execute(chosen).scalar() or 0)


_READ_NUMBERS = (reads.c.id, segments.c.used_at_read, segments.c.made_at_read)


def _sum_of_originals() -> sa.Select[Any]:
    return sa.select(sa.func.sum(physical_videos.c.size)).where(
        physical_videos.c.role == Role.ORIGINAL.value
    )


def _sum_of_charged() -> sa.Select[Any]:
    return sa.select(sa.func.sum(segments.c.size)).select_from(_SEGMENTS).where(~_IS_PINNED)


def _sum_of_indexes() -> sa.Select[Any]:
    joined = layer_indexes.join(
        physical_videos, physical_videos.c.id == layer_indexes.c.physical_id
    )
    return sa.select(sa.func.sum(layer_indexes.c.size)).select_from(joined)


_SEGMENTS = segments.join(physical_videos, physical_videos.c.id == segments.c.physical_id)


def _has_pin(some: sa.FromClause, encodings: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a segment of one of `encodings` is active and pinned itself."""
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
    """Return the condition that the segment sharing the pack of a joined one is pinned."""
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


def _bytes_saved(is_selected: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the sum of the bytes that each replacement saved, along the log.

    The query follows the chain from the current original back to the first.  Bytes that changed in
    other ways, for example by a write through the mount, are not followed.
    """
    original, log, later = physical_videos, original_log, original_log.alias("later")
    # If several lines produced the same bytes, the newest tells their origin.
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
        .where(log.c.new_digest.is_not(None), is_newest, is_selected)
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


_SAVED = _bytes_saved(sa.true())
_SAVED_BY_ONE = _bytes_saved(original_log.c.video_id == sa.bindparam("id"))


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
