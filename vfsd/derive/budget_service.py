"""Deciding how much derived data may be kept, and what of it in any case: budgets and pins."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from vfsd.catalog import Transaction
from vfsd.core.budgets import Eviction, Held, Limit, Pin, Usage, WhatIf
from vfsd.core.model import LogicalVideo, Role
from vfsd.errors import NotFoundError, ReadOnlyError, UsageError
from vfsd.read.context import Tools
from vfsd.storage.context import Parts
from vfsd.storage.enforce_budget import choose, make_room, make_room_in_store
from vfsd.storage.reclaim import clear_away
from vfsd.tiling import meet
from vfsd.validation import how_many


class DerivedBudget:
    """What the tiles and renditions of a video, or of all videos together, take and may take.

    What is pinned is not charged, and what is charged never exceeds the limit: what is to be stored
    takes the place of what saves least for its bytes.
    """

    def __init__(self, parts: Parts, tools: Tools, video: LogicalVideo | None) -> None:
        self._parts = parts
        self._tools = tools
        self._video = video
        self._id = None if video is None else video.id

    @property
    def limit(self) -> Limit:
        with self._parts.catalog.reading() as seen:
            return seen.holdings.limit(self._id)

    def usage(self) -> Usage:
        """What there is, in bytes."""
        with self._parts.catalog.reading() as seen:
            return _usage(seen, self._id, seen.holdings.held(self._id))

    def set(self, limit: Limit | str | int | None) -> list[Held]:
        """Allow so many bytes, ``"20M"``, ``"10x"`` (of the originals) or ``"none"``: no limit.

        None: as where nothing was said, which is 10x for a video and no limit for the store.  Gives
        what had to go.  Raises `UsageError`, `ReadOnlyError`, `NotFoundError` for a video that has
        gone.
        """
        chosen = _limit(limit)
        _require_writable(self._parts)
        self._tools.reads.flush()

        def allow(change: Transaction) -> list[Held]:
            if self._video is not None:
                change.videos.require(self._video)
            change.holdings.set_limit(self._id, chosen)
            return _make_room(change, self._id)

        gone = self._parts.write_with_reserve(allow)
        _reclaim(self._parts, gone)
        return gone

    def what_if(self, limit: Limit | str | int) -> WhatIf:
        """What would go under another limit, and what reads have had of it.  Changes nothing.

        Raises `UsageError`.
        """
        chosen = _limit(limit)
        if chosen is None:
            raise UsageError(
                "limit must be a budget such as 2GiB, 10x or none, got None",
                hint="none removes the limit",
            )
        self._tools.reads.flush()
        with self._parts.catalog.reading() as seen:
            held = seen.holdings.held(self._id)
            read = seen.holdings.newest_read()
            now = replace(_usage(seen, self._id, held), limit=chosen)
            over = 0 if now.allowed is None else now.used - now.allowed
            gone = (choose(seen, held, over, read=read) or []) if over > 0 else []
            numbers = {one.id for one in gone}
            left = [one for one in held if one.id not in numbers]
            after = replace(_usage(seen, self._id, left), limit=chosen)
        return WhatIf(
            after,
            tuple(gone),
            sum(one.uses_at(read) for one in gone),
            sum(one.saved_at(read) for one in gone),
        )

    def evictions(self, limit: int | None = None) -> list[Eviction]:
        """What went to make room, the newest first."""
        most = None if limit is None else how_many(limit, "limit")
        with self._parts.catalog.reading() as seen:
            return seen.evictions.newest(self._id, most)


def pin(
    parts: Parts,
    video: LogicalVideo,
    frames: range,
    role: Role | None = None,
    size: tuple[int, int] | None = None,
) -> Pin:
    """Keep what there is, or will be, of those frames, whatever budgets say.

    `role` and `size` are as of a `Pin`.  What is pinned already is not pinned twice.
    """
    _require_writable(parts)

    def add(change: Transaction) -> Pin:
        change.videos.require(video)
        for one in change.holdings.pins(video.id):
            if (one.role, one.size) == (role, size) and _covers(one.frames, frames):
                return one
        return change.holdings.pin(Pin(0, video.id, frames, role, size, time.time_ns()))

    return parts.write_with_reserve(add)


def unpin(
    parts: Parts,
    video: LogicalVideo,
    frames: range | None = None,
    role: Role | None = None,
    size: tuple[int, int] | None = None,
) -> list[Held]:
    """Take back the pins of those frames (None: all), of one kind if `role` is given.

    A pin of more frames stays for the others.  Gives what had to go, as it is charged now: to this
    video, or, of what is joined, to the other one, whose share was pinned with it.  Raises
    `NotFoundError` where there is no such pin.
    """
    _require_writable(parts)

    def take_back(change: Transaction) -> list[Held]:
        found = [
            one
            for one in change.holdings.pins(video.id)
            if (role is None or (one.role, one.size) == (role, size))
            and (frames is None or meet(one.frames, frames))
        ]
        if not found:
            raise NotFoundError(
                f"{video.name} has no such pin",
                hint=f"see `vfsd budget show {shlex.quote(video.name)}`",
            )
        change.holdings.unpin(one.id for one in found)
        for one in found:
            for rest in _without(one.frames, frames):
                change.holdings.pin(replace(one, frames=rest))
        together = change.holdings.shared_with(change.holdings.held(video.id))
        gone = _make_room(change, video.id)
        for partner in sorted({one.video_id for one in together}):
            gone += _make_room(change, partner)
        return gone

    gone = parts.write_with_reserve(take_back)
    _reclaim(parts, gone)
    return gone


def pins(parts: Parts, video: LogicalVideo | None) -> list[Pin]:
    """Those of a video, or of all, by video and first frame."""
    with parts.catalog.reading() as seen:
        return seen.holdings.pins(None if video is None else video.id)


# -- inside

_KINDS = {Role.TILED: "tiles", Role.RENDITION: "renditions", Role.JOINED: "joined"}


def _usage(seen: Transaction, video_id: int | None, held: Iterable[Held]) -> Usage:
    sums = dict.fromkeys(("tiles", "renditions", "joined", "retired", "pinned"), 0)
    for one in held:
        if one.is_pinned:
            kind = "pinned"
        elif one.is_retired:
            kind = "retired"
        else:
            kind = _KINDS[one.role]
        sums[kind] += one.bytes
    return Usage(seen.holdings.original_bytes(video_id), seen.holdings.limit(video_id), **sums)


def _make_room(change: Transaction, video_id: int | None) -> list[Held]:
    now = time.time_ns()
    if video_id is None:
        return make_room_in_store(change, now_ns=now)
    return make_room(change, video_id, now_ns=now)


def _reclaim(parts: Parts, gone: Sequence[Held]) -> None:
    if gone:
        clear_away(parts, keys={one.object_key for one in gone})


def _limit(given: Limit | str | int | None) -> Limit | None:
    if isinstance(given, str):
        return Limit.parse(given)
    return given if given is None or isinstance(given, Limit) else Limit(bytes=given)


def _require_writable(parts: Parts) -> None:
    if parts.read_only:
        raise ReadOnlyError("the store was opened read-only")


def _without(frames: range, gone: range | None) -> list[range]:
    """What is left of `frames`; None: nothing."""
    if gone is None:
        return []
    parts = (
        range(frames.start, min(frames.stop, gone.start)),
        range(max(frames.start, gone.stop), frames.stop),
    )
    return [part for part in parts if part]


def _covers(some: range, others: range) -> bool:
    return some.start <= others.start and others.stop <= some.stop
