"""Compresses lossless segments after they were stored, harder as their budget fills (VSS, SIGMOD
2021, section 5.2).

`vfsd compress` and idle mounts do this.  Each segment gets its new pack in one transaction.
"""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from time import time_ns

from vfsd.catalog import Transaction
from vfsd.codecs.cells.lossless import MAX_LEVEL, RAW_LEVEL, recompressed
from vfsd.codecs.cells.pack import PackedCell, write_pack
from vfsd.core.budgets import ChargedSegment, by_benefit
from vfsd.core.model import LogicalVideo, Segment
from vfsd.core.process_control import worker_count
from vfsd.disk.safe_open import UNREADABLE
from vfsd.errors import IntegrityError, NotFoundError, UsageError
from vfsd.read.pack_pool import OpenPack
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import allowed, eviction_candidates, make_room
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling.cost import LOSSLESS
from vfsd.validation import whole_number
from vfsd.write.ingest_file import pending_bytes

# Fullness of a budget from which VSS compresses (section 5.2).
_START_FULLNESS = 0.25
# Compressing again for the levels in between saves too little.
_LEVELS = (1, 9, MAX_LEVEL)

# Maximum time between reports of progress.
_HEARTBEAT_SECONDS = 0.2

OnBytes = Callable[[int], None]
"""Called with the bytes of each finished packet of the old pack; may raise to stop."""

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, all bytes) of the old packs; may raise to stop."""

OnUnread = Callable[[Segment, IntegrityError], None]
"""Called with a segment whose pack is damaged, missing or unreadable, and the error; may
raise it."""


@dataclass(frozen=True, slots=True)
class PendingCompression:
    """A segment that should be compressed harder."""

    video_id: int
    segment: Segment
    level: int  #: target level of its cells


# Level 1 after differences does most of the work: level 9 saves 0 to 12 % more in three to seven
# times the time.
def level_for(used: int, budget: int) -> int:
    """Return the compression level when `used` bytes of a `budget` are taken.

    0 (no compression) below a quarter, then 1 to 19 in proportion to the fullness of the rest.  A
    budget of 0 is full.
    """
    full = used / budget if budget > 0 else 1.0
    if full < _START_FULLNESS:
        return RAW_LEVEL
    share = (min(full, 1.0) - _START_FULLNESS) / (1 - _START_FULLNESS)
    return 1 + int(share * (MAX_LEVEL - 1))


def step_for(used: int, budget: int) -> int:
    """Return the highest of the used levels that is not above `level_for`."""
    level = level_for(used, budget)
    return max((step for step in _LEVELS if step <= level), default=RAW_LEVEL)


def wanted_level(parts: StoreContext, video_id: int) -> int:
    """Return the current target level for the pictures of a video; 0 for no compression."""
    with parts.catalog.reading() as seen:
        return _wanted_level(seen, video_id)


def pending_compressions(
    parts: StoreContext, video_id: int | None = None
) -> list[PendingCompression]:
    """Return the segments of a video, or of all, that are compressed less than their target level.

    The least likely to be evicted comes first.
    """
    with parts.catalog.reading() as seen:
        held = seen.derived_usage.segments(video_id)
        # Pinned segments are not charged, so compressing them would not relieve a budget.
        raw = {one.id: one for one in held if one.profile == LOSSLESS and not one.is_pinned}
        if not raw:
            return []
        levels = {number: _wanted_level(seen, number) for number in _video_ids(raw)}
        last = [
            one.id
            for one in reversed(
                by_benefit(eviction_candidates(held, seen.derived_usage.newest_read()))
            )
        ]
        found = []
        for number in (number for number in last if number in raw):
            level = levels[raw[number].video_id]
            if level == RAW_LEVEL:
                continue
            segment = seen.segments.get(number)
            if any(cell.quality < level for cell in segment.cells):
                found.append(PendingCompression(raw[number].video_id, segment, level))
    return found


def is_compression_due(parts: StoreContext, one: PendingCompression) -> bool:
    """Return whether it is still needed: earlier compressions may have freed enough."""
    try:
        return wanted_level(parts, one.video_id) >= one.level
    except NotFoundError:
        return False


def _wanted_level(seen: Transaction, video_id: int) -> int:
    levels = [RAW_LEVEL]
    for scope in (video_id, None):
        limit = allowed(seen, scope)
        if limit is not None:
            levels.append(step_for(seen.derived_usage.charged_bytes(scope), limit))
    return max(levels)


def _video_ids(held: Mapping[int, ChargedSegment]) -> set[int]:
    return {one.video_id for one in held.values()}


def lossless_segments(parts: StoreContext, video: LogicalVideo) -> list[Segment]:
    """Return the lossless tiles and renditions of a video, including retired ones."""
    original = video.original.id
    with parts.catalog.reading() as seen:
        known = seen.segments
        there = known.active(original) + known.retired(original) + known.renditions(original)
    return [segment for segment in there if segment.profile == LOSSLESS]


def compressible(parts: StoreContext, video: LogicalVideo, level: int) -> list[Segment]:
    """Return the lossless segments with some cell compressed less than `level`.

    Raises `UsageError` for an invalid level.
    """
    level = whole_number(level, "level")
    if not RAW_LEVEL < level <= MAX_LEVEL:
        raise UsageError(f"the compression level must be 1 to {MAX_LEVEL}, got {level}")
    return [
        segment
        for segment in lossless_segments(parts, video)
        if any(cell.quality < level for cell in segment.cells)
    ]


def recompress_segment(
    parts: StoreContext, segment: Segment, level: int, *, on_bytes: OnBytes | None = None
) -> Segment:
    """Compress a segment of lossless cells at `level` and return its new state.

    Every picture is compared with the old one before anything changes.  Raises `UsageError` for an
    invalid level and for cells that are not lossless, `NotFoundError` if the segment is deleted or
    changed in the meantime, `IntegrityError` for a damaged or missing pack, `NoSpaceError`,
    `OverBudgetError`.  On an error the segment is unchanged.
    """
    if segment.profile != LOSSLESS:
        raise UsageError(f"tiles of {segment.profile!r} cannot be compressed, only lossless ones")
    pack = _open_pack(parts, segment)
    streams = [
        recompressed(cell, _packets(segment, pack, cell, on_bytes), level) for cell in pack.cells
    ]
    buffer = io.BytesIO()
    packed = write_pack(buffer, streams)
    return _publish(parts, segment, level, packed, buffer.getvalue())


def compress_segments(
    parts: StoreContext,
    segments: Sequence[Segment],
    level: int,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    on_unread: OnUnread | None = None,
) -> list[Segment]:
    """Compress segments, `jobs` at a time (default: one per core), and return their new states.

    Segments that were deleted or changed in the meantime are left out, and so are those reported to
    `on_unread`.  Raises as `recompress_segment` does; finished segments stay.
    """
    total = sum(segment.size for segment in segments)
    done = 0
    counted: queue.SimpleQueue[int] = queue.SimpleQueue()
    stop = threading.Event()

    def count(size: int) -> None:
        counted.put(size)
        if stop.is_set():
            raise _CompressionStoppedError

    def work(segment: Segment) -> Segment | None:
        try:
            return recompress_segment(parts, segment, level, on_bytes=count)
        except NotFoundError:
            return None

    made: list[Segment] = []
    workers = min(worker_count(jobs), len(segments)) or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="compress") as executor:
        submitted = {executor.submit(work, one): one for one in segments}
        running: set[Future[Segment | None]] = set(submitted)
        try:
            while running:
                ended, running = wait(running, _HEARTBEAT_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    try:
                        segment = future.result()
                    except IntegrityError as error:
                        if on_unread is None:
                            raise
                        on_unread(submitted[future], error)
                    else:
                        made += [] if segment is None else [segment]
                while not counted.empty():
                    done += counted.get()
                if on_progress is not None:
                    on_progress(min(done, total), total)
        finally:
            stop.set()
            executor.shutdown(cancel_futures=True)
    return sorted(made, key=lambda segment: (segment.first_frame, segment.id))


class _CompressionStoppedError(Exception):
    """Another segment has failed, or the caller has stopped."""


def _open_pack(parts: StoreContext, segment: Segment) -> OpenPack:
    try:
        return OpenPack(parts.objects, segment)
    except FileNotFoundError as error:
        with parts.catalog.reading() as seen:
            if seen.segments.get(segment.id).object_key != segment.object_key:
                raise NotFoundError(f"segment {segment.id} was changed in the meantime") from error
        raise IntegrityError(
            f"the pack {segment.object_key} is missing", hint="`vfsd fsck --repair` deletes it"
        ) from error
    except OSError as error:
        raise _pack_error(segment, error) from error


def _packets(
    segment: Segment, pack: OpenPack, cell: PackedCell, on_bytes: OnBytes | None
) -> Iterator[memoryview]:
    packets = pack.packets(cell, 0, len(cell.offsets) - 1)
    while True:
        try:
            packet = next(packets, None)
        except OSError as error:
            raise _pack_error(segment, error) from error
        if packet is None:
            return
        yield packet
        if on_bytes is not None:
            on_bytes(len(packet))


def _pack_error(segment: Segment, error: OSError) -> OSError | IntegrityError:
    if error.errno not in UNREADABLE:
        return error
    return IntegrityError(
        f"the pack {segment.object_key} cannot be read: {error.strerror}",
        hint="`vfsd fsck` examines all packs; `vfsd layout drop` or `vfsd rendition drop` deletes "
        "this one",
    )


# The segment keeps its id, so layouts, history and rollbacks need no change.  A reader that planned
# for the old pack and has not opened it reads the original.
def _publish(
    parts: StoreContext, segment: Segment, level: int, packed: Sequence[PackedCell], data: bytes
) -> Segment:
    """Store the bytes, replace the pack in one transaction, then delete the old bytes."""
    arrival = pending_bytes(parts, data, "compressed tiles")
    cells = tuple(
        replace(cell, position=there.position, size=there.size, quality=level)
        for cell, there in zip(segment.cells, packed, strict=True)
    )
    after = replace(segment, object_key=arrival.key, pack_at=0, size=arrival.size, cells=cells)
    with arrival, arrival.recorded() as change:
        change.segments.replace_pack(after, segment.object_key)
        video_id = change.videos.physical(segment.original_id).video_id
        # At a lower level it may be larger than before.
        make_room(change, video_id, now_ns=time_ns(), made=segment.id)
    gone = set(change.segments.released)
    if arrival.key != segment.object_key:
        gone.add(segment.object_key)
    if gone:
        reclaim_or_log(parts, keys=gone)
    return after
