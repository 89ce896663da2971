"""Evicts derived data that exceeds a budget, in the transaction that adds to it.

All charged data may be evicted: reads then use the original. Indexes of layers go first: one pass
over its layer makes an index again. After a replacement the original may be worse than tiles of the
old one, which cannot be made again in that quality. So a replacement alone shrinks no budget (see
`DerivedUsage.original_bytes`), and pinned data stays. Only rows are deleted here;
`vfsd.storage.reclaim` deletes the files. Open files stay readable.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from vfsd.catalog import Transaction
from vfsd.core.budgets import (
    ChargedSegment,
    Eviction,
    EvictionCandidate,
    by_benefit,
    merged_candidate,
    victims,
)
from vfsd.core.model import Role
from vfsd.core.timebase import human_bytes
from vfsd.errors import OverBudgetError

MIN_GAIN = 1.25
"""New data must be worth this many times the data it evicts. As for the tilings of
`vfsd.tiling.policy.LedgerParameters`, so that two of them do not evict each other in turn."""


def make_room(
    change: Transaction,
    video_id: int,
    *,
    now_ns: int,
    made: int | None = None,
    keep: Collection[int] = (),
    worth: float | None = None,
) -> list[ChargedSegment]:
    """Evict what exceeds the budget of a video, then that of the store; return the evicted
    segments.

    Args:
        change: The transaction that added `made`.
        video_id: The video.
        now_ns: Unix time for the log of evictions.
        made: Id of the new segment, which stays.
        keep: Ids of other segments that stay.
        worth: CPU seconds that `made` is expected to save. Evicted data must be worth less by a
            factor of `MIN_GAIN`. None: no limit.

    Raises `OverBudgetError` if that is not enough. The caller must then roll back.
    """
    gone: list[ChargedSegment] = []
    for scope in (video_id, None):
        excess = _without_indexes(change, scope)
        if excess <= 0:
            continue
        change.fold_reads()
        read = change.derived_usage.newest_read()
        held = change.derived_usage.segments(scope)
        chosen = choose_victims(change, held, excess, read=read, keep={made, *keep}, worth=worth)
        if chosen is None:
            raise _refusal(change, video_id, scope, made, held)
        gone += evict(change, chosen, scope, read=read, now_ns=now_ns)
    return gone


def require_room_for(
    seen: Transaction, video_id: int, about: float, least: float, what: str
) -> None:
    """Raise `OverBudgetError` if `what` is larger than the whole budget of a video or the store.

    `about` is its estimated size in bytes, `least` a lower bound.
    """
    for scope in (video_id, None):
        limit = allowed(seen, scope)
        if limit is not None and least > limit:
            whose, hint = _budget_of(seen, video_id, scope)
            raise OverBudgetError(
                f"{what} would take about {human_bytes(round(about))}: the budget of {whose} is "
                f"{human_bytes(limit)}",
                hint=hint,
            )


def _budget_of(seen: Transaction, video_id: int, scope: int | None) -> tuple[str, str]:
    """Return (owner of the budget, hint). `scope` is a video id, or None for the store."""
    name = seen.videos.get(video_id).name
    whose = "the store" if scope is None else name
    command = "vfsd budget set" + ("" if scope is None else f" {shlex.quote(name)}")
    return whose, f"run `{command} SIZE` to allow more, `vfsd budget show` to list usage"


def make_room_in_store(change: Transaction, *, now_ns: int) -> list[ChargedSegment]:
    """Evict what exceeds the budget of the store; return the evicted segments."""
    excess = _without_indexes(change, None)
    if excess <= 0:
        return []
    change.fold_reads()
    read = change.derived_usage.newest_read()
    chosen = choose_victims(change, change.derived_usage.segments(None), excess, read=read) or []
    return evict(change, chosen, None, read=read, now_ns=now_ns)


def _without_indexes(change: Transaction, video_id: int | None) -> int:
    """Delete indexes of layers that exceed a budget; return the bytes that still exceed it."""
    excess = exceeded(change, video_id) or 0
    if excess > 0:
        # The callers delete the objects of evicted segments likewise.
        change.segments.released.update(change.layer_indexes.free(video_id, excess))
        excess = exceeded(change, video_id) or 0
    return excess


def choose_victims(
    seen: Transaction,
    held: Sequence[ChargedSegment],
    excess: int,
    *,
    read: int,
    keep: Collection[int | None] = (),
    worth: float | None = None,
) -> list[ChargedSegment] | None:
    """Return segments to evict so that at least `excess` bytes are freed; None if impossible.

    `held` is sorted as by `DerivedUsage.held`; `read` is the number of the newest read. Joined
    segments are evicted together; the bytes of both count if both are in `held`.
    """
    kept = {one.object_key for one in held if one.role is Role.JOINED and one.id in keep}
    free = {
        one.id: one
        for one in held
        if not one.is_pinned and one.id not in keep and one.object_key not in kept
    }
    units: dict[object, list[EvictionCandidate]] = {}
    for entry in eviction_candidates(held, read):
        if entry.id in free:
            one = free[entry.id]
            unit = one.object_key if one.role is Role.JOINED else one.id
            units.setdefault(unit, []).append(entry)
    found = {unit[0].id: [free[entry.id] for entry in unit] for unit in units.values()}
    chosen = victims(by_benefit(map(merged_candidate, units.values())), excess)
    if sum(one.bytes for one in chosen) < excess:
        return None
    gone = [one for unit in chosen for one in found[unit.id]]
    gone += seen.derived_usage.shared_with(gone)
    if worth is not None:
        lost = sum(one.worth_at(read) for one in gone if not one.is_retired)
        if MIN_GAIN * lost > worth:
            return None
    return gone


def eviction_candidates(held: Sequence[ChargedSegment], read: int) -> list[EvictionCandidate]:
    """Return the segments in the form that eviction orders use.

    Neighbours are consecutive segments in use. Redundancy counts larger renditions of the same
    frames whose size is a whole multiple.
    """
    found: list[EvictionCandidate] = []
    run: list[ChargedSegment] = []
    sizes: dict[tuple[int, range], list[tuple[int, int]]] = {}
    for one in held:
        if one.role is Role.RENDITION and not one.is_retired:
            sizes.setdefault((one.video_id, one.frames), []).append(one.size)

    def redundancy(one: ChargedSegment) -> int:
        return sum(
            _is_multiple(size, one.size) for size in sizes.get((one.video_id, one.frames), [])
        )

    def close() -> None:
        found.extend(
            one.candidate(read, place=at, run=len(run), redundancy=redundancy(one))
            for at, one in enumerate(run)
        )
        run.clear()

    for one in held:
        if one.is_retired:
            found.append(one.candidate(read))
            continue
        if run and not _follows(run[-1], one):
            close()
        run.append(one)
    close()
    return found


def evict(
    change: Transaction,
    chosen: Sequence[ChargedSegment],
    scope: int | None,
    *,
    read: int,
    now_ns: int,
) -> list[ChargedSegment]:
    """Delete segments and log the evictions; return them.

    `scope` is the video whose budget is full, or None for the store. Joined segments must be chosen
    together.
    """

    def why(one: ChargedSegment) -> str:
        if scope is None:
            return "store"
        return "video" if one.video_id == scope else "partner"

    change.evictions.add([Eviction.of(one, why(one), read=read, at_ns=now_ns) for one in chosen])
    change.segments.delete(one.id for one in chosen)
    return list(chosen)


def exceeded(seen: Transaction, video_id: int | None) -> int | None:
    """Return the bytes charged to a video, or the store (None), above its budget.

    Negative if there is room; None if there is no limit.
    """
    limit = allowed(seen, video_id)
    return None if limit is None else seen.derived_usage.charged_bytes(video_id) - limit


def allowed(seen: Transaction, video_id: int | None) -> int | None:
    """Return the budget in bytes of a video, or the store (None); None if there is no limit."""
    limit = seen.derived_usage.limit(video_id)
    return limit.allowed(0 if limit.times is None else seen.derived_usage.original_bytes(video_id))


def _is_multiple(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return size != other and size[0] % other[0] == 0 and size[1] % other[1] == 0


def _follows(before: ChargedSegment, one: ChargedSegment) -> bool:
    return (before.video_id, before.role, before.size, before.frames.stop) == (
        one.video_id,
        one.role,
        one.size,
        one.frames.start,
    )


def _refusal(
    change: Transaction,
    video_id: int,
    scope: int | None,
    made: int | None,
    held: Sequence[ChargedSegment],
) -> OverBudgetError:
    name = change.videos.get(video_id).name
    limit = allowed(change, scope) or 0
    whose, hint = _budget_of(change, video_id, scope)
    mine = next((one for one in held if one.id == made), None)
    if mine is None:
        return OverBudgetError(f"{whose} exceeds its budget of {human_bytes(limit)}", hint=hint)
    kind = {Role.RENDITION: "a rendition", Role.JOINED: "the joined pictures"}.get(
        mine.role, "tiles"
    )
    return OverBudgetError(
        f"{kind} of {name}, frames {mine.frames.start} to {mine.frames.stop - 1}, "
        f"{human_bytes(mine.bytes)}, cannot be stored: the budget of {whose} is "
        f"{human_bytes(limit)}"
        + (", and no other data is worth less" if mine.bytes <= limit else ""),
        hint=hint,
    )
