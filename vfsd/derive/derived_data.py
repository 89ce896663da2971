"""Manages stored tiles and renditions: budgets, pins, the history of layouts, rollback and
deletion.  `BudgetHeadroom` tells whether a proposed segment would fit before it is encoded.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from vfsd.catalog import Transaction
from vfsd.core.budgets import ChargedSegment, Eviction, Limit, Pin, Usage, WhatIf, by_benefit
from vfsd.core.model import LogicalVideo, Role, Segment
from vfsd.errors import NotFoundError, ReadOnlyError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import (
    MIN_GAIN,
    choose_victims,
    eviction_candidates,
    exceeded,
    make_room,
    make_room_in_store,
)
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import overlaps
from vfsd.validation import non_negative

_ROLE_NAMES = {Role.TILED: "tiles", Role.RENDITION: "renditions", Role.JOINED: "joined"}


class DerivedBudget:
    """The budget and usage of the tiles and renditions of a video, or of all videos together.

    Pinned data is not charged.  The charged data never exceeds the limit: new data evicts the data
    that saves the least time per byte.
    """

    def __init__(self, parts: StoreContext, tools: ReadContext, video: LogicalVideo | None) -> None:
        self._parts = parts
        self._tools = tools
        self._video = video
        self._id = None if video is None else video.id

    @property
    def limit(self) -> Limit:
        with self._parts.catalog.reading() as seen:
            return seen.derived_usage.limit(self._id)

    def usage(self) -> Usage:
        """Return the bytes in use, by kind."""
        with self._parts.catalog.reading() as seen:
            return _usage(seen, self._id, seen.derived_usage.segments(self._id))

    def set(self, limit: Limit | str | int | None) -> list[ChargedSegment]:
        """Set the limit: bytes, ``"20M"``, ``"10x"`` (of the originals) or ``"none"``.

        None restores the default, which is 10x for a video and no limit for the store.  Returns the
        evicted segments.  Raises `UsageError`, `ReadOnlyError`, `NotFoundError` if the video was
        removed.
        """
        chosen = _checked_limit(limit)
        _require_writable(self._parts)
        # Reads that are still queued count for the order of eviction, too.
        self._tools.read_log.flush()

        def allow(change: Transaction) -> tuple[list[ChargedSegment], set[str]]:
            if self._video is not None:
                change.videos.require(self._video)
            change.derived_usage.set_limit(self._id, chosen)
            return _evict_to_fit(change, self._id), change.segments.released

        # A lower budget must be possible on a full disk.
        gone, released = self._parts.write_with_reserve(allow)
        _reclaim(self._parts, released)
        return gone

    def what_if(self, limit: Limit | str | int) -> WhatIf:
        """Return what another limit would evict, and how often it was read.  Changes nothing.

        Raises `UsageError`.
        """
        chosen = _checked_limit(limit)
        if chosen is None:
            raise UsageError(
                "limit must be a budget such as 2GiB, 10x or none, got None",
                hint="none removes the limit",
            )
        self._tools.read_log.flush()
        with self._parts.catalog.reading() as seen:
            held = seen.derived_usage.segments(self._id)
            read = seen.derived_usage.newest_read()
            now = replace(_usage(seen, self._id, held), limit=chosen)
            over = 0 if now.allowed is None else now.used - now.allowed
            now = replace(now, indexes=max(0, now.indexes - max(0, over)))  # indexes go first
            over = 0 if now.allowed is None else now.used - now.allowed
            gone = (choose_victims(seen, held, over, read=read) or []) if over > 0 else []
            numbers = {one.id for one in gone}
            left = [one for one in held if one.id not in numbers]
            after = replace(_usage(seen, self._id, left), limit=chosen, indexes=now.indexes)
        return WhatIf(
            after,
            tuple(gone),
            sum(one.uses_at(read) for one in gone),
            sum(one.saved_at(read) for one in gone),
        )

    def evictions(self, limit: int | None = None) -> list[Eviction]:
        """Return what was evicted, newest first."""
        most = None if limit is None else non_negative(limit, "limit")
        with self._parts.catalog.reading() as seen:
            return seen.evictions.newest(self._id, most)


def pin(
    parts: StoreContext,
    video: LogicalVideo,
    frames: range,
    role: Role | None = None,
    size: tuple[int, int] | None = None,
) -> Pin:
    """Keep the existing and future data of those frames regardless of budgets.

    `role` and `size` are those of `Pin`.  Data that is pinned already is not pinned twice.
    """
    _require_writable(parts)

    def add(change: Transaction) -> Pin:
        change.videos.require(video)
        for one in change.derived_usage.pins(video.id):
            if (one.role, one.size) == (role, size) and _covers(one.frames, frames):
                return one
        return change.derived_usage.pin(Pin(0, video.id, frames, role, size, time.time_ns()))

    return parts.write_with_reserve(add)


def unpin(
    parts: StoreContext,
    video: LogicalVideo,
    frames: range | None = None,
    role: Role | None = None,
    size: tuple[int, int] | None = None,
) -> list[ChargedSegment]:
    """Remove the pins of those frames (None: all), of one kind if `role` is given.

    A pin of more frames stays for the others.  Returns what was evicted, from this video or from
    one that shares joined segments with it.  Raises `NotFoundError` without such a pin.
    """
    _require_writable(parts)

    def take_back(change: Transaction) -> tuple[list[ChargedSegment], set[str]]:
        found = [
            one
            for one in change.derived_usage.pins(video.id)
            if (role is None or (one.role, one.size) == (role, size))
            and (frames is None or overlaps(one.frames, frames))
        ]
        if not found:
            raise NotFoundError(
                f"{video.name} has no such pin",
                hint=f"see `vfsd budget show {shlex.quote(video.name)}`",
            )
        change.derived_usage.unpin(one.id for one in found)
        for one in found:
            for rest in _pin_remainder(one.frames, frames):
                change.derived_usage.pin(replace(one, frames=rest))
        # Joined segments are charged to both videos, so the partners may exceed their budgets.
        together = change.derived_usage.shared_with(change.derived_usage.segments(video.id))
        gone = _evict_to_fit(change, video.id)
        for partner in sorted({one.video_id for one in together}):
            gone += _evict_to_fit(change, partner)
        return gone, change.segments.released

    gone, released = parts.write_with_reserve(take_back)
    _reclaim(parts, released)
    return gone


def pins(parts: StoreContext, video: LogicalVideo | None) -> list[Pin]:
    """Return the pins of a video, or of all, by video and first frame."""
    with parts.catalog.reading() as seen:
        return seen.derived_usage.pins(None if video is None else video.id)


def _usage(seen: Transaction, video_id: int | None, held: Iterable[ChargedSegment]) -> Usage:
    sums = dict.fromkeys(("tiles", "renditions", "joined", "retired", "pinned"), 0)
    for one in held:
        if one.is_pinned:
            kind = "pinned"
        elif one.is_retired:
            kind = "retired"
        else:
            kind = _ROLE_NAMES[one.role]
        sums[kind] += one.bytes
    sums["indexes"] = seen.derived_usage.index_bytes(video_id)
    return Usage(
        seen.derived_usage.original_bytes(video_id), seen.derived_usage.limit(video_id), **sums
    )


def _evict_to_fit(change: Transaction, video_id: int | None) -> list[ChargedSegment]:
    now = time.time_ns()
    if video_id is None:
        return make_room_in_store(change, now_ns=now)
    return make_room(change, video_id, now_ns=now)


def _reclaim(parts: StoreContext, released: set[str]) -> None:
    if released:
        reclaim_or_log(parts, keys=released)


def _checked_limit(given: Limit | str | int | None) -> Limit | None:
    if isinstance(given, str):
        return Limit.parse(given)
    return given if given is None or isinstance(given, Limit) else Limit(bytes=given)


def _require_writable(parts: StoreContext) -> None:
    if parts.read_only:
        raise ReadOnlyError("the store was opened read-only")


def _pin_remainder(frames: range, gone: range | None) -> list[range]:
    """Return the parts of `frames` outside `gone`; none if `gone` is None."""
    if gone is None:
        return []
    parts = (
        range(frames.start, min(frames.stop, gone.start)),
        range(max(frames.start, gone.stop), frames.stop),
    )
    return [part for part in parts if part]


def _covers(some: range, others: range) -> bool:
    return some.start <= others.start and others.stop <= some.stop


class BudgetHeadroom:
    """The free part of the budgets of a video and of the store, within one transaction."""

    def __init__(self, seen: Transaction, video_id: int) -> None:
        self._pins = seen.derived_usage.pins(video_id)
        self._read = seen.derived_usage.newest_read()
        self._scopes = [_BudgetScope(seen, number, self._read) for number in (video_id, None)]

    def fits(
        self,
        role: Role,
        frames: range,
        size: tuple[int, int],
        *,
        bytes: int,
        worth: float,
        replaced: Collection[int],
    ) -> bool:
        """Return whether a segment of the displayed frame in that size could be published.

        `worth` is the CPU seconds that it is expected to save; evicted segments must be worth less.
        `replaced` are the ids of the segments that it would replace.
        """
        if any(pin.holds(role, frames, size) for pin in self._pins):
            return True
        return all(scope.fits(bytes, worth, replaced) for scope in self._scopes)


class _BudgetScope:
    """The budget of a video or of the store."""

    def __init__(self, seen: Transaction, video_id: int | None, read: int) -> None:
        self._seen = seen
        self._id = video_id
        self._read = read
        self._over = exceeded(seen, video_id)

    def fits(self, bytes: int, worth: float, replaced: Collection[int]) -> bool:
        if self._over is None or self._over + bytes <= 0:
            return True
        over = self._over + bytes
        freed = sum(one.bytes for one in self._order if one.id in replaced)
        lost = 0.0
        for one in self._order:
            if freed >= over:
                break
            if one.id not in replaced:
                freed += one.bytes
                lost += 0.0 if one.is_retired else one.worth_at(self._read)
        return freed >= over and MIN_GAIN * lost <= worth

    # Loaded only if the free part is too small, and at most once.
    @cached_property
    def _order(self) -> list[ChargedSegment]:
        """The segments that may be evicted, in order of eviction."""
        held = self._seen.derived_usage.segments(self._id)
        free = {one.id: one for one in held if not one.is_pinned}
        order = by_benefit(one for one in eviction_candidates(held, self._read) if one.id in free)
        return [free[one.id] for one in order]


def layout_history(parts: StoreContext, video: LogicalVideo) -> list[Segment]:
    """Return all existing segments, including retired ones, in the order in which they were
    made.
    """
    with parts.catalog.reading() as seen:
        found = seen.segments.active(video.original.id) + seen.segments.retired(video.original.id)
    return sorted(found, key=lambda segment: segment.id)  # by id, because clocks may go back


def rollback_layouts(parts: StoreContext, video: LogicalVideo, frames: range) -> tuple[int, int]:
    """Restore the previous layouts of segments that touch `frames`.

    The present ones are retired, so that a second call undoes the first.  Returns (number retired,
    number restored).  Raises `NotFoundError` without any tiles.
    """
    original = video.original.id
    with parts.catalog.writing() as change:
        present = _overlapping(change.segments.active(original), frames)
        before = _overlapping(change.segments.retired(original), frames)
        if not present and not before:
            raise NotFoundError(
                f"{video.name} has no tiles in these frames",
                hint=f"see `vfsd layout history {shlex.quote(video.name)}`",
            )
        now = time.time_ns()
        change.segments.restore(segment.id for segment in before)
        change.segments.retire((segment.id for segment in present), now_ns=now)
        change.tiling_decisions.note_redone(segment.id for segment in before)
        change.tiling_decisions.note_undone((segment.id for segment in present), now_ns=now)
        # A retired segment is charged even if it was pinned before.
        make_room(change, video.id, now_ns=now)
    reclaim_or_log(parts, keys=change.segments.released)
    return len(present), len(before)


def drop_tiles(parts: StoreContext, video: LogicalVideo, frames: range) -> list[Segment]:
    """Delete all segments that touch `frames`, with their bytes, and return them.

    Reads then decode the original.
    """
    original = video.original.id

    def taken(change: Transaction) -> list[Segment]:
        active = _overlapping(change.segments.active(original), frames)
        change.tiling_decisions.note_undone((one.id for one in active), now_ns=time.time_ns())
        return active + _overlapping(change.segments.retired(original), frames)

    return _delete_segments(parts, taken)


def drop_retired_tiles(
    parts: StoreContext, video: LogicalVideo, frames: range | None = None
) -> list[Segment]:
    """Delete the retired segments, those that touch `frames` if given, and return them."""

    def taken(change: Transaction) -> list[Segment]:
        found = change.segments.retired(video.original.id)
        return found if frames is None else _overlapping(found, frames)

    return _delete_segments(parts, taken)


def drop_renditions(
    parts: StoreContext, video: LogicalVideo, picture: tuple[int, int] | None = None
) -> list[Segment]:
    """Delete the renditions, those of that size of the stored picture if given, and return them.

    Raises `NotFoundError` without any.
    """

    def taken(change: Transaction) -> list[Segment]:
        encodings = change.videos.physicals(video.id)
        renditions = {one.id for one in encodings if one.role is Role.RENDITION}
        found = [
            segment
            for segment in change.segments.of_original(video.original.id)
            if segment.physical_id in renditions and picture in (None, segment.picture)
        ]
        if not found:
            raise NotFoundError(
                f"{video.name} has no such rendition",
                hint=f"see `vfsd rendition ls {shlex.quote(video.name)}`",
            )
        return found

    return _delete_segments(parts, taken)


def drop_segments(parts: StoreContext, segments: Sequence[Segment]) -> None:
    """Delete these segments; those that are gone already do no harm."""
    wanted = list(segments)
    _delete_segments(parts, lambda change: wanted)


def _delete_segments(
    parts: StoreContext, taken: Callable[[Transaction], list[Segment]]
) -> list[Segment]:
    """Delete the segments that `taken` returns; works on a full disk."""

    def delete(change: Transaction) -> list[Segment]:
        found = taken(change)
        change.segments.delete(segment.id for segment in found)
        return found

    found = parts.write_with_reserve(delete)
    reclaim_or_log(parts, keys={segment.object_key for segment in found})
    return found


def _overlapping(segments: list[Segment], frames: range) -> list[Segment]:
    return [segment for segment in segments if overlaps(segment.frames, frames)]
