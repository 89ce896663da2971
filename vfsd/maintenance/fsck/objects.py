"""Checks that the object store holds the recorded objects, no others, and unchanged bytes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.core.model import ByteLocation, Segment
from vfsd.disk import view_cache_dir
from vfsd.disk.direct_io import open_stored
from vfsd.disk.object_store import digest, is_key
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import NoSpaceError, NotFoundError, ReadOnlyError
from vfsd.maintenance.fsck import checksums
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.read.damage_fallback import drop_segments
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_unpublished, reclaim
from vfsd.write.crash_recovery import delete_leftover, find_leftovers
from vfsd.write.partial_files import unfinished_recordings

_LOCK_POLL_SECONDS = 0.25
"""Time in which a waiting writer notices a free write lock: SQLite polls ten times a second."""


def objects(run: CheckRun) -> Iterator[Finding]:
    with run.context.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        packs = _pack_sizes(seen.segments.all())
    for key, size in sorted(recorded.items()):
        if not is_key(key):
            yield Finding("objects", f"an object's name must be its hash, got {key[:80]!r}")
            continue
        path = run.context.objects.path(key)
        fault = _fault(path, size)
        if key in packs and (fault is None or _fault(path, packs[key])):
            continue  # the check "tiles" reports it
        # The object may have been removed since the first look.
        if fault is not None and _is_recorded(run.context, key):
            message = f"object {key}, {_use(run.context, key)}, {fault}"
            # A process that was killed may have left the row of an unused object.
            done = run.repair and (
                key in reclaim(run.context, keys=[key]) or _correct_size(run.context, key)
            )
            yield Finding("objects", message, repaired=done)
    yield from _unrecorded(run, packs)


def _unrecorded(run: CheckRun, packs: Collection[str]) -> Iterator[Finding]:
    """Find objects that other rows refer to, but have lost their own row."""
    with run.context.catalog.reading() as seen:
        lost = seen.objects.needed().keys() - seen.objects.sizes().keys()
    for key in sorted(lost):
        is_there = run.context.objects.exists(key)
        if key in packs and not is_there:
            continue  # the check "tiles" reports it
        use = "which holds tiles" if key in packs else _use(run.context, key)
        done = run.repair and is_there and _record(run.context, key)
        if done or _is_unrecorded(run.context, key):
            suffix = "" if is_there else " and is missing"
            message = f"object {key[:80]}, {use}, is not recorded{suffix}"
            yield Finding("objects", message, repaired=done)


def _pack_sizes(segments: list[Segment]) -> dict[str, int]:
    """Return the bytes of each pack according to its segments; joined segments share a pack."""
    sizes: dict[str, int] = {}
    for one in segments:
        before = sizes.get(one.object_key, 0) if one.is_joined else 0
        sizes[one.object_key] = before + one.size
    return sizes


def _correct_size(context: StoreContext, key: str) -> bool:
    """Record the real size of an object if it hashes to its name; return whether it does."""
    size = _proven_size(context, key)
    if size is None:
        return False
    with context.catalog.writing() as change:
        change.objects.correct_size(key, size)
    return True


def _record(context: StoreContext, key: str) -> bool:
    """Record an object that hashes to its name again; return whether a row was added."""
    size = _proven_size(context, key)
    if size is None:
        return False
    with context.catalog.writing() as change:
        return change.objects.record_missing(key, size, now_ns=time.time_ns())


def _proven_size(context: StoreContext, key: str) -> int | None:
    """Return the bytes of an object that hashes to its name, or None if it does not."""
    try:
        fd = open_stored(context.objects.path(key))
    except OSError:
        return None
    try:
        found = digest(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    return found.size if found.key == key else None


def _is_unrecorded(context: StoreContext, key: str) -> bool:
    """Whether the catalog still refers to an object that has no row."""
    with context.catalog.reading() as seen:
        return not seen.objects.is_recorded(key) and seen.objects.is_needed(key)


def _is_recorded(context: StoreContext, key: str) -> bool:
    with context.catalog.reading() as seen:
        return seen.objects.is_recorded(key)


def _fault(path: Path, size: int) -> str | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"is missing ({size} bytes)"
    if not stat.S_ISREG(found.st_mode):
        return f"must be a file of {size} bytes, got a directory, link or device"
    return None if found.st_size == size else f"must have {size} bytes, got {found.st_size}"


def _use(context: StoreContext, key: str) -> str:
    """Return a clause that names the videos of an object."""
    with context.catalog.reading() as seen:
        names = []
        for number in seen.integrity.videos_of(ByteLocation(key, None)):
            with suppress(NotFoundError):  # it is being written or removed
                names.append(seen.videos.get(number).name)
    return f"which holds {' and '.join(names)}" if names else "which no video needs"


def garbage(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    if run.mounted:
        return  # a writer may be about to record it
    for key in _unrecorded_keys(context):
        message = f"object {key} is not in the catalog"
        yield from _garbage_finding(run, message, partial(discard_unpublished, context, key))
    for path in find_leftovers(context):
        message = f"{path.name} is a temporary file that a crash left behind"
        yield from _garbage_finding(run, message, partial(delete_leftover, context, path))
    for path in context.objects.misnamed():
        message = f"{path.name} must be named by a hash, as all objects are"
        yield from _garbage_finding(run, message, partial(_remove, path))
    yield from _stray_views(run)


def _unrecorded_keys(context: StoreContext) -> list[str]:
    """Return the keys of objects without a row, except those that a writer is about to record.

    A writer stores the bytes first, and then waits for the write lock of the catalog.
    """
    with context.catalog.reading() as seen:
        recorded = seen.objects.sizes()
    found = [key for key in context.objects.all_keys() if key not in recorded]
    strays, before = _unneeded(context, found), len(found) + 1
    # While other objects become recorded, writers of the remaining ones may still wait.
    while strays and len(strays) < before:
        before = len(strays)
        _let_others_write(context)
        strays = _unneeded(context, strays)
    return strays


def _unneeded(context: StoreContext, keys: list[str]) -> list[str]:
    with context.catalog.reading() as seen:
        return [
            key
            for key in keys
            if not (seen.objects.is_recorded(key) or seen.objects.is_needed(key))
        ]


def _let_others_write(context: StoreContext) -> None:
    """Wait for the current writer, and for one writer that waits for the lock.

    Raises `BusyError` if they take too long.
    """
    for pause in (_LOCK_POLL_SECONDS, 0):
        with suppress(ReadOnlyError, NoSpaceError), context.catalog.writing():
            pass
        time.sleep(pause)


def _stray_views(run: CheckRun) -> Iterator[Finding]:
    """Find cached views of videos that were removed, one finding for each folder."""
    cache = run.context.directory.cache
    with run.context.catalog.reading() as seen:
        known = seen.videos.digests()
    found: dict[Path, list[Path]] = {}
    for path in view_cache_dir.stray_files(cache, known):
        found.setdefault(path.parent, []).append(path)
    for folder, files in found.items():
        if run.repair:
            view_cache_dir.delete(cache, files)
        yield Finding(
            "garbage",
            f"{len(files)} cached files in {folder} belong to removed videos",
            repaired=run.repair and not any(map(os.path.lexists, files)),
        )


def _garbage_finding(run: CheckRun, message: str, delete: Callable[[], bool]) -> Iterator[Finding]:
    """Report garbage, after a call of `delete` if the run repairs.

    `delete` returns False for a file that turns out to be in use, which is not reported.
    """
    if not run.repair:
        yield Finding("garbage", message)
        return
    try:
        if delete():
            yield Finding("garbage", message, repaired=True)
    except STAYS as error:
        yield Finding("garbage", f"{message}: {error}")


def _remove(path: Path) -> bool:
    remove(path)
    return True


def unfinished(run: CheckRun) -> Iterator[Finding]:
    """Find recordings that lost their writer; only `vfsd recover` or the user may end them."""
    return (Finding("recordings", str(one)) for one in unfinished_recordings(run.context))


def content(run: CheckRun) -> Iterator[Finding]:
    packs: dict[str, list[Segment]] = {}
    with run.context.catalog.reading() as seen:
        for segment in seen.segments.all():
            packs.setdefault(segment.object_key, []).append(segment)
    for key in list(run.context.objects.all_keys()):
        tiles = packs.get(key, [])
        try:
            message, sums = checksums.check_object(run.context, key, repair=run.repair)
        except PermissionError:
            use = "which holds tiles" if tiles else _use(run.context, key)
            yield Finding("permissions", f"object {key}, {use}, cannot be read: permission denied")
            continue
        if sums is not None:
            yield Finding("sums", sums, repaired=run.repair)
        if message is None:
            continue
        if tiles and run.repair:
            drop_segments(run.context, tiles)
        yield Finding(
            "content",
            f"{'pack' if tiles else 'object'} {key} is damaged: {message}",
            repaired=bool(tiles) and run.repair,
        )
