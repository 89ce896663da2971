"""Whether what the catalog says of budgets and pins can be so, and is kept."""

from __future__ import annotations

import time

from vfsd.core.timebase import human_bytes
from vfsd.storage.context import Parts
from vfsd.storage.enforce_budget import exceeded, make_room, make_room_in_store
from vfsd.storage.reclaim import reclaim


def faults(parts: Parts, *, repair: bool) -> list[str]:
    """What is wrong, in words; with `repair` all of it is put right."""
    with parts.catalog.reading() as seen:
        pins = seen.holdings.stray_pins()
        limits = seen.holdings.store_limits()
        over = {
            number: more
            for number in [None, *sorted({one.video_id for one in seen.holdings.held(None)})]
            if (more := exceeded(seen, number) or 0) > 0
        }
        names = {number: seen.videos.get(number).name for number in over if number is not None}
    found = [f"pin {pin.id} is of frames that its video does not have" for pin in pins]
    if limits > 1:
        found.append(f"the store has {limits} budgets")
    for number, more in over.items():
        whose = "the store" if number is None else repr(names[number])
        found.append(f"what is derived exceeds the budget of {whose} by {human_bytes(more)}")
    if found and repair:
        now = time.time_ns()
        with parts.catalog.writing() as change:
            change.holdings.unpin(pin.id for pin in pins)
            if limits > 1:
                change.holdings.set_limit(None, change.holdings.limit(None))
            gone = make_room_in_store(change, now_ns=now)
            for number in names:
                gone += make_room(change, number, now_ns=now)
        reclaim(parts, keys={one.object_key for one in gone})
    return found
