"""The history of a video's layouts: lists segments, rolls back, and drops tiles and renditions."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from vfsd.catalog import Transaction
from vfsd.core.model import LogicalVideo, Segment
from vfsd.errors import NotFoundError
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room
from vfsd.storage.reclaim import reclaim_or_log


def history(parts: StoreContext, video: LogicalVideo) -> list[Segment]:
    """Return all existing segments, including retired ones, in the order in which they were
    made.
    """
    with parts.catalog.reading() as seen:
        found = seen.segments.active(video.original.id) + seen.segments.retired(video.original.id)
    return sorted(found, key=lambda segment: segment.id)  # by id, because clocks may go back


def rollback(parts: StoreContext, video: LogicalVideo, frames: range) -> tuple[int, int]:
    """Restore the previous layouts of segments that touch `frames`.

    The present ones are retired, so that a second call undoes the first.  Returns (number retired,
    number restored).  Raises `NotFoundError` without any tiles.
    """
    original = video.original.id
    with parts.catalog.writing() as change:
        present = _touching(change.segments.active(original), frames)
        before = _touching(change.segments.retired(original), frames)
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
        evicted = make_room(change, video.id, now_ns=now)
    reclaim_or_log(parts, keys={one.object_key for one in evicted})
    return len(present), len(before)


def drop(parts: StoreContext, video: LogicalVideo, frames: range) -> list[Segment]:
    """Delete all segments that touch `frames`, with their bytes, and return them.

    Reads then decode the original.
    """
    original = video.original.id

    def taken(change: Transaction) -> list[Segment]:
        active = _touching(change.segments.active(original), frames)
        change.tiling_decisions.note_undone((one.id for one in active), now_ns=time.time_ns())
        return active + _touching(change.segments.retired(original), frames)

    return _take_away(parts, taken)


def drop_retired(
    parts: StoreContext, video: LogicalVideo, frames: range | None = None
) -> list[Segment]:
    """Delete the retired segments, those that touch `frames` if given, and return them."""

    def taken(change: Transaction) -> list[Segment]:
        found = change.segments.retired(video.original.id)
        return found if frames is None else _touching(found, frames)

    return _take_away(parts, taken)


def drop_renditions(
    parts: StoreContext, video: LogicalVideo, picture: tuple[int, int] | None = None
) -> list[Segment]:
    """Delete the renditions, those of that size of the stored picture if given, and return them.

    Raises `NotFoundError` without any.
    """
    full = video.original.media.width, video.original.media.height

    def taken(change: Transaction) -> list[Segment]:
        found = [
            segment
            for segment in change.segments.of_original(video.original.id)
            if segment.picture != full and picture in (None, segment.picture)
        ]
        if not found:
            raise NotFoundError(
                f"{video.name} has no such rendition",
                hint=f"see `vfsd rendition ls {shlex.quote(video.name)}`",
            )
        return found

    return _take_away(parts, taken)


def _take_away(parts: StoreContext, taken: Callable[[Transaction], list[Segment]]) -> list[Segment]:
    """Delete the segments that `taken` returns; works on a full disk."""

    def delete(change: Transaction) -> list[Segment]:
        found = taken(change)
        change.segments.delete(segment.id for segment in found)
        return found

    found = parts.write_with_reserve(delete)
    reclaim_or_log(parts, keys={segment.object_key for segment in found})
    return found


def _touching(segments: list[Segment], frames: range) -> list[Segment]:
    return [
        segment
        for segment in segments
        if segment.first_frame < frames.stop and frames.start < segment.end_frame
    ]
