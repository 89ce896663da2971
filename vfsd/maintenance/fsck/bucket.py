"""Compares the bucket of a store with its catalog. Nothing else lists a bucket, which is slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from vfsd.core.model import ByteLocation
from vfsd.core.timebase import human_bytes
from vfsd.disk.checksums import verify_stored_file
from vfsd.errors import NotFoundError
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.maintenance.push import OWNER_NAME
from vfsd.remote.fetch_protocol import is_place
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import drop_segments
from vfsd.storage.remote_objects import RemoteObjects

_BATCH = 1000
"""Names that are looked up together."""

OnProgress = Callable[[int, int], None]
"""Called with (files of the bucket seen, objects that it should have)."""


@dataclass(frozen=True, slots=True)
class LostObject:
    """An object whose bytes the bucket does not have."""

    key: str
    size: int  #: bytes, as recorded
    found: int | None  #: bytes in the bucket; None: it is missing

    def __str__(self) -> str:
        if self.found is None:
            return f"is missing in the bucket ({self.size} bytes)"
        return f"must have {self.size} bytes in the bucket, got {self.found}"


@dataclass(frozen=True, slots=True)
class BucketState:
    """The differences between a bucket and the catalog."""

    unnamed: dict[str, int] = field(default_factory=dict)
    """Files that no object, upload or garbage has and are older than the grace, with sizes."""
    young: dict[str, int] = field(default_factory=dict)  #: the same, not that old yet
    foreign: list[str] = field(default_factory=list)  #: names that vfsd never gives
    lost: list[LostObject] = field(default_factory=list)
    stray: dict[str, int] = field(default_factory=dict)
    """Files of needed objects that have no place in the catalog, with sizes. Never garbage."""


@dataclass(frozen=True, slots=True)
class BucketGarbage:
    """Garbage of a bucket that `collect_bucket` deleted, or would delete in a dry run."""

    files: int
    bytes: int
    waiting: int  #: files of removed objects that stay for the grace
    waiting_bytes: int
    state: BucketState | None  #: None: the bucket was not listed


def collect_bucket(
    context: StoreContext,
    *,
    dry_run: bool = False,
    lists: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> BucketGarbage:
    """Delete files of the bucket that nothing has needed for the grace of the store.

    `lists` also lists the bucket, to find files that no row of the catalog names. Only for a store
    with a bucket. Raises `UnreachableError`.
    """
    objects, grace = context.objects, context.settings.object_grace
    assert isinstance(objects, RemoteObjects)
    garbage = context.catalog.garbage
    state = compare(context, on_progress) if lists else None
    if dry_run:
        due, unnamed = garbage.total(grace), {} if state is None else state.unnamed
        files, size = due.files + len(unnamed), due.bytes + sum(unnamed.values())
    else:
        if state is not None:
            garbage.adopt(state.unnamed, grace)
        files, size = objects.collect(grace)
        due = garbage.total(grace)
    left = garbage.total()
    return BucketGarbage(files, size, left.files - due.files, left.bytes - due.bytes, state)


def compare(
    context: StoreContext, on_progress: OnProgress = lambda done, total: None
) -> BucketState:
    """List the bucket of a store, and compare it with the catalog.

    The store has one, and may be in use. Raises `UnreachableError`.
    """
    objects = context.objects
    assert isinstance(objects, RemoteObjects)
    with context.catalog.reading() as seen:
        # Before the list: what is recorded later may be missing there.
        expected = {place: (key, size) for key, (place, size) in seen.objects.placed().items()}
        # As in a catalog that was damaged.
        homeless = seen.objects.referenced() - {key for key, _ in expected.values()}
    total = len(expected)
    state = BucketState()
    grace, offset = context.settings.object_grace, context.catalog.garbage.clock_offset()
    batch: dict[str, tuple[int, float]] = {}
    done = 0

    def sort_batch() -> None:
        # After the list: a row is there before the bytes, and goes after them.
        wanted = [name.removesuffix(".sums") for name in batch]
        unnamed = context.catalog.garbage.unnamed(wanted)
        for name, (size, age) in batch.items():
            if name.removesuffix(".sums") not in unnamed:
                continue
            if _key(name) in homeless:
                state.stray[name] = size
            else:
                (state.unnamed if age + offset > grace else state.young)[name] = size
        batch.clear()
        on_progress(min(done, total), total)

    for name, size, age in objects.client.list():
        if not is_place(name):
            if name != OWNER_NAME:
                state.foreign.append(name)
            continue
        done += 1
        known = expected.get(name)
        if known is not None and known[1] == size:
            del expected[name]
            continue
        batch[name] = size, age
        if len(batch) == _BATCH:
            sort_batch()
    sort_batch()
    for place, (key, size) in expected.items():
        found = objects.client.size(place)
        with context.catalog.reading() as seen:
            is_current = seen.objects.place(key) == (place, size)
        if is_current and found != size:
            state.lost.append(LostObject(key, size, found))
    return state


def bucket(run: CheckRun) -> Iterator[Finding]:
    """Find files of the bucket that nothing names, and objects without bytes.

    A repair drops tiles without bytes, and makes old files without a row garbage.
    """
    context = run.context
    state = compare(context, run.on_progress)
    for lost in state.lost:
        yield _lost_finding(run, lost)
    if run.repair:
        context.catalog.garbage.adopt(state.unnamed, context.settings.object_grace)
    for name, size in state.stray.items():
        message = f"{name} belongs to object {_key(name)}, which has no place in the catalog"
        yield Finding("bucket", message, repaired=run.repair and _placed(context, name, size))
    for name, size in state.unnamed.items():
        message = f"{name}, {human_bytes(size)}, belongs to no object"
        yield Finding("bucket", message, repaired=run.repair)
    for name, size in state.young.items():
        text = f"{name}, {human_bytes(size)}, belongs to no object, and is not old enough to delete"
        yield Finding("bucket", text)
    for name in state.foreign:
        yield Finding("bucket", f"{name} is not a file of vfsd: move it out of the bucket's prefix")


def _key(place: str) -> str:
    """Return the key in the name of an object."""
    return place.rpartition("/")[2][:64]


def _placed(context: StoreContext, place: str, size: int) -> bool:
    """Record the place of an object if its bytes are there, intact; return whether that is so."""
    objects, key = context.objects, _key(place)
    assert isinstance(objects, RemoteObjects)
    opening = partial(objects.client.open_uncached, place)
    with suppress(FileNotFoundError):
        if verify_stored_file(opening, key, None, lambda count: None).is_whole:
            with context.catalog.writing() as change:
                change.objects.record_missing(key, size, now_ns=time.time_ns())
                return change.objects.set_place(key, place)
    return False


def _lost_finding(run: CheckRun, lost: LostObject) -> Finding:
    context, place = run.context, ByteLocation(lost.key, None)
    with context.catalog.reading() as seen:
        tiles = seen.segments.of_pack(lost.key)
        names = []
        for number in seen.integrity.videos_of(place):
            with suppress(NotFoundError):  # it is being written or removed
                names.append(seen.videos.get(number).name)
        for number in seen.integrity.vectors_of(place):
            with suppress(NotFoundError):
                names.append(f"vectors of {seen.videos.get(number).name}")
        names += seen.tree.paths_of_stored(lost.key)
        if tiles:
            made = {seen.videos.physical(one.physical_id).video_id for one in tiles}
            names += [f"tiles of {seen.videos.get(number).name}" for number in sorted(made)]
    if tiles and run.repair:
        drop_segments(context, tiles)
    elif not context.read_only:
        with context.catalog.writing() as change:
            if change.integrity.is_known(place):
                change.integrity.record_inspection(
                    place, [range(max(1, lost.size))], now_ns=time.time_ns()
                )
    holds = f", which holds {' and '.join(names)}," if names else ""
    message = f"object {lost.key}{holds} {lost}"
    return Finding("bucket", message, repaired=bool(tiles) and run.repair)
