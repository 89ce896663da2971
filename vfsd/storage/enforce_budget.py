"""Making room for derived data: what exceeds a budget goes, in the transaction that makes it.

Whatever is charged may go: frames come from the original then.  Where that has taken the place of a
better one, tiles of that one cannot be made again as good as they were; so a replacement by itself
makes no budget smaller (see `DerivedUsage.original_bytes`), and a pin keeps them.  Rows go here;
the bytes follow with `vfsd.storage.reclaim`, and who has them open keeps them.
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

LEAD = 1.25
"""What is to take the place of others has to be worth so many times as much: as the tilings of
`vfsd.tiling.policy.LedgerParameters`, so that two of them do not take turns."""


def make_room(
    change: Transaction,
    video_id: int,
    *,
    now_ns: int,
    made: int | None = None,
    keep: Collection[int] = (),
    worth: float | None = None,
) -> list[ChargedSegment]:
    """Evict what a video, and then the store, has too much of; gives what went.

    The segment `made`, and those of `keep`, stay.  With `worth`, CPU seconds that `made` is
    expected to save, others have to be worth less.  Raises `OverBudgetError` where there would
    still be too much; nothing of the transaction must be kept then.
    """
    gone: list[ChargedSegment] = []
    for scope in (video_id, None):
        over = exceeded(change, scope)
        if over is None or over <= 0:
            continue
        read = change.holdings.newest_read()
        held = change.holdings.held(scope)
        chosen = choose(change, held, over, read=read, keep={made, *keep}, worth=worth)
        if chosen is None:
            raise _refusal(change, video_id, scope, made, held)
        gone += evict(change, chosen, scope, read=read, now_ns=now_ns)
    return gone


def require_room_for(
    seen: Transaction, video_id: int, about: float, least: float, what: str
) -> None:
    """Raises `OverBudgetError` where `what` is larger than all that a video, or the store, may be
    charged: nothing that goes makes room for it then.

    It has `about` so many bytes, and for sure no less than `least`.
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
    """(whose it is, what may be done about it); `scope` is a video, or None: the store."""
    name = seen.videos.get(video_id).name
    whose = "the store" if scope is None else name
    command = "vfsd budget set" + ("" if scope is None else f" {shlex.quote(name)}")
    return whose, f"`{command} SIZE` allows more, `vfsd budget show` tells what there is"


def make_room_in_store(change: Transaction, *, now_ns: int) -> list[ChargedSegment]:
    """Evict what the store has too much of; gives what went."""
    over = exceeded(change, None)
    if over is None or over <= 0:
        return []
    read = change.holdings.newest_read()
    chosen = choose(change, change.holdings.held(None), over, read=read) or []
    return evict(change, chosen, None, read=read, now_ns=now_ns)


def choose(
    seen: Transaction,
    held: Sequence[ChargedSegment],
    over: int,
    *,
    read: int,
    keep: Collection[int | None] = (),
    worth: float | None = None,
) -> list[ChargedSegment] | None:
    """Those that should go so that `over` bytes of `held` do; None where that cannot be.

    `held` as `DerivedUsage.held` sorts it, `read` the number of the newest read.  With one that is
    joined goes the other, whose bytes count where it is of `held`, too.
    """
    kept = {one.object_key for one in held if one.role is Role.JOINED and one.id in keep}
    free = {
        one.id: one
        for one in held
        if not one.is_pinned and one.id not in keep and one.object_key not in kept
    }
    units: dict[object, list[EvictionCandidate]] = {}
    for entry in entries(held, read):
        if entry.id in free:
            one = free[entry.id]
            unit = one.object_key if one.role is Role.JOINED else one.id
            units.setdefault(unit, []).append(entry)
    found = {unit[0].id: [free[entry.id] for entry in unit] for unit in units.values()}
    chosen = victims(by_benefit(map(merged_candidate, units.values())), over)
    if sum(one.bytes for one in chosen) < over:
        return None
    gone = [one for unit in chosen for one in found[unit.id]]
    gone += seen.holdings.shared_with(gone)
    if worth is not None:
        lost = sum(one.worth_at(read) for one in gone if not one.is_retired)
        if LEAD * lost > worth:
            return None
    return gone


def entries(held: Sequence[ChargedSegment], read: int) -> list[EvictionCandidate]:
    """As orders of eviction see them.

    Neighbours are those in use that follow each other; better than a rendition are larger ones of
    the same frames that are whole multiples of it.
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
    """Take segments away, as the budget of a video, or (None) the store, is full; gives them.

    Of two that are joined both are chosen.
    """

    def why(one: ChargedSegment) -> str:
        if scope is None:
            return "store"
        return "video" if one.video_id == scope else "partner"

    change.evictions.add([Eviction.of(one, why(one), read=read, at_ns=now_ns) for one in chosen])
    change.segments.delete(one.id for one in chosen)
    return list(chosen)


def exceeded(seen: Transaction, video_id: int | None) -> int | None:
    """By how many bytes what is charged to a video, or (None) the store, is above what is allowed.

    Less than none where there is room; None where there is no limit.
    """
    limit = allowed(seen, video_id)
    return None if limit is None else seen.holdings.charged(video_id) - limit


def allowed(seen: Transaction, video_id: int | None) -> int | None:
    """Bytes that a video, or (None) the store, may be charged; None where there is no limit."""
    limit = seen.holdings.limit(video_id)
    return limit.allowed(0 if limit.times is None else seen.holdings.original_bytes(video_id))


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
        return OverBudgetError(f"{whose} has more than {human_bytes(limit)}", hint=hint)
    kind = {Role.RENDITION: "a rendition", Role.JOINED: "the joined pictures"}.get(
        mine.role, "tiles"
    )
    return OverBudgetError(
        f"{kind} of {name}, frames {mine.frames.start} to {mine.frames.stop - 1}, "
        f"{human_bytes(mine.bytes)}, cannot be stored: the budget of {whose} is "
        f"{human_bytes(limit)}"
        + (", and nothing else should go for it" if mine.bytes <= limit else ""),
        hint=hint,
    )
