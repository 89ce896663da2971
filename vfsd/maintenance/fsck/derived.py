"""Checks of tiles, of the decisions that made them, of budgets and pins, and of layers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress

from vfsd.codecs.cells.pack import open_pack
from vfsd.core.layers import layer_fault
from vfsd.core.model import Segment
from vfsd.core.timebase import human_bytes
from vfsd.disk.safe_open import UNREADABLE
from vfsd.errors import IntegrityError, NotFoundError
from vfsd.maintenance.fsck.finding import NOT_HERE, CheckRun, Finding
from vfsd.read.pack_pool import joined_side
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import exceeded, make_room, make_room_in_store
from vfsd.storage.reclaim import drop_segments, reclaim
from vfsd.tiling.cost import JOINED_SIDES


def tiles(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    with context.catalog.reading() as seen:
        segments = seen.segments.all()
        recorded = seen.objects.sizes()
    joined: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.is_joined:
            joined.setdefault(segment.object_key, []).append(segment)
    for segment in segments:
        fault, size, is_proven = None, segment.size, True
        if segment.is_joined:
            both = joined[segment.object_key]
            size = sum(one.size for one in both)
            if sorted(one.profile for one in both) != sorted(JOINED_SIDES):
                fault = "the joined tiles of the other camera are missing"
        try:
            whole = recorded.get(segment.object_key, 0)
            fault = fault or _pack_fault(context, segment, size, whole)
        except OSError as error:
            if error.errno not in UNREADABLE and not isinstance(error, PermissionError):
                raise
            path = context.objects.local_path(segment.object_key)
            is_proven = not context.objects.exists(segment.object_key)  # else the disk may recover
            fault = f"their pack {path} cannot be read: {error.strerror}"
        if fault is None or not _is_same(context, segment):
            continue
        if context.objects.is_elsewhere(segment.object_key):
            fault, is_proven = f"their pack {segment.object_key} {NOT_HERE}", False
        repaired = run.repair and is_proven
        if repaired:
            drop_segments(context, [segment])
        yield Finding(
            "tiles",
            f"tiles of frames {segment.first_frame} to {segment.end_frame - 1}: {fault}",
            repaired=repaired,
        )


def _is_same(context: StoreContext, segment: Segment) -> bool:
    """Return whether a segment still exists and has the same pack."""
    with context.catalog.reading() as seen, suppress(NotFoundError):
        now = seen.segments.get(segment.id)
        return (now.object_key, now.pack_at) == (segment.object_key, segment.pack_at)
    return False


def _pack_fault(context: StoreContext, segment: Segment, expected: int, whole: int) -> str | None:
    """Return what is wrong with a pack of `expected` bytes, or None.

    Other packs may follow it in an object of `whole` bytes.  Raises `OSError`."""
    try:
        reader, table = open_pack(context.objects, segment.object_key, at=segment.pack_at)
    except FileNotFoundError:
        return f"their pack {segment.object_key} is missing"
    except IntegrityError as error:
        return str(error)
    with closing(reader):
        size = reader.size
    end = segment.pack_at + expected
    if size != end and not (size == whole > end):
        return f"their pack must have {expected} bytes, got {size - segment.pack_at}"
    try:
        there = table.cells
        if segment.is_joined:
            there = [joined_side(table.joint, table.cells, segment.profile).extent(table.cells)]
    except IntegrityError as error:
        return str(error)
    if [(cell.position, cell.size) for cell in there] != [
        (cell.position, cell.size) for cell in segment.cells
    ]:
        return "their pack has different cells"
    return None


def decisions(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    with context.catalog.reading() as seen:
        decisions = seen.tiling_decisions.newest()
        segments = {segment.id: segment for segment in seen.segments.all()}
    for one in decisions:
        if one.segment_id is None:
            continue  # its segment was deleted since
        segment = segments.get(one.segment_id)
        if segment is None or (segment.frames, segment.layout) != (one.frames, one.layout):
            if run.repair:
                with context.catalog.writing() as change:
                    change.tiling_decisions.forget_segment(one.id)
            yield Finding(
                "decisions",
                f"decision {one.id} refers to tiles that it did not make",
                repaired=run.repair,
            )
        elif one.undone_ns is not None and one.in_use:
            if run.repair:
                with context.catalog.writing() as change:
                    change.tiling_decisions.note_redone([segment.id])
            yield Finding(
                "decisions",
                f"decision {one.id} is marked as undone, but its tiles are in use",
                repaired=run.repair,
            )


def layers(run: CheckRun) -> Iterator[Finding]:
    with run.context.catalog.reading() as seen:
        for layer in seen.layers.all():
            with suppress(NotFoundError):  # it is being written
                video, maps = seen.videos.get(layer.video_id), seen.videos.get(layer.file_id)
                fault = layer_fault(layer, video.original, maps.original)
                if fault is not None:
                    yield Finding("layers", f"layer {layer.name} of {video.name}: {fault}")


def budgets(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    with context.catalog.reading() as seen:
        pins = seen.derived_usage.stray_pins()
        limits = seen.derived_usage.store_limits()
        over = {
            number: more
            for number in [
                None,
                *sorted(
                    {one.video_id for one in seen.derived_usage.segments(None)}
                    | {one.file_id for one in seen.layers.all()}
                ),
            ]
            if (more := exceeded(seen, number) or 0) > 0
        }
        names = {number: seen.videos.get(number).name for number in over if number is not None}
    found = [f"pin {pin.id} refers to frames that its video does not have" for pin in pins]
    if limits > 1:
        found.append(f"the store must have one budget, got {limits}")
    for number, more in over.items():
        owner = "the store" if number is None else repr(names[number])
        found.append(f"derived data exceeds the budget of {owner} by {human_bytes(more)}")
    if found and run.repair:
        now = time.time_ns()
        with context.catalog.writing() as change:
            change.derived_usage.unpin(pin.id for pin in pins)
            if limits > 1:
                change.derived_usage.set_limit(None, change.derived_usage.limit(None))
            gone = make_room_in_store(change, now_ns=now)
            for number in names:
                gone += make_room(change, number, now_ns=now)
        reclaim(context, keys={*change.segments.released, *(one.object_key for one in gone)})
    for message in found:
        yield Finding("budgets", message, repaired=run.repair)
