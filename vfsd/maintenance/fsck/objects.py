"""Checks that the object store holds the recorded objects, no others, and unchanged bytes; checks
bytes against their digest and block checksums.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from vfsd.catalog import Transaction
from vfsd.core.model import ByteLocation, Segment
from vfsd.disk import view_cache_dir
from vfsd.disk.checksums import VerifyResult, ranges_text, verify_stored_file
from vfsd.disk.external_files import require_linked
from vfsd.disk.object_store import digest, is_key
from vfsd.disk.safe_open import OF_THE_PROCESS, STAYS, UNREADABLE, remove
from vfsd.errors import IntegrityError, NoSpaceError, NotFoundError, ReadOnlyError
from vfsd.maintenance.fsck.finding import NOT_HERE, CheckRun, Finding
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_unpublished, drop_index, drop_segments, reclaim
from vfsd.write.unfinished_files import delete_leftover, find_leftovers, unfinished_recordings

# Time in which a waiting writer notices a free write lock: SQLite polls ten times a second.
_LOCK_POLL_SECONDS = 0.25

_INDEX_USE = "which holds the index of a layer"


def objects(run: CheckRun) -> Iterator[Finding]:
    with run.context.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        packs = _pack_sizes(seen.segments.all())
        indexes = {one.object_key for one in seen.layer_indexes.held(None)}
    for key, size in sorted(recorded.items()):
        if not is_key(key):
            yield Finding("objects", f"an object's name must be its hash, got {key[:80]!r}")
            continue
        there = run.context.objects.size(key)
        fault = _fault(run.context, key, there, size)
        is_index = key in indexes
        if key in packs and (fault is None or there != packs[key]):
            continue  # the check "tiles" reports it
        # The object may have been removed since the first look.
        if fault is not None and _is_recorded(run.context, key):
            use = _INDEX_USE if is_index else _use(run.context, key)
            message = f"object {key}, {use}, {fault}"
            if is_index and run.repair and fault != NOT_HERE:
                drop_index(run.context, key)
                yield Finding("objects", message, repaired=True)
                continue
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
    """Return the end of the last pack of each object, according to its segments.

    Joined segments share a pack.
    """
    sizes: dict[str, int] = {}
    for one in segments:
        before = sizes.get(one.object_key, 0)
        end = before + one.size if one.is_joined else max(before, one.pack_at + one.size)
        sizes[one.object_key] = end
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
        with closing(context.objects.open(key)) as file:
            found = digest(file.descriptor())
    except OSError:
        return None
    return found.size if found.key == key else None


def _is_unrecorded(context: StoreContext, key: str) -> bool:
    """Return whether the catalog still refers to an object that has no row."""
    with context.catalog.reading() as seen:
        return not seen.objects.is_recorded(key) and seen.objects.is_needed(key)


def _is_recorded(context: StoreContext, key: str) -> bool:
    with context.catalog.reading() as seen:
        return seen.objects.is_recorded(key)


def _fault(context: StoreContext, key: str, there: int | None, size: int) -> str | None:
    """Return what is wrong with an object that has `there` bytes and must have `size`."""
    if there is None and context.objects.is_elsewhere(key):
        return NOT_HERE
    if there is None:
        path = context.objects.local_path(key)
        if path is not None and os.path.lexists(path):
            return f"must be a file of {size} bytes, got a directory, link or device"
        return f"is missing ({size} bytes)"
    return None if there == size else f"must have {size} bytes, got {there}"


def _use(context: StoreContext, key: str) -> str:
    """Return a clause that names the videos of an object."""
    with context.catalog.reading() as seen:
        names, place = [], ByteLocation(key, None)
        for number in seen.integrity.videos_of(place):
            with suppress(NotFoundError):  # it is being written or removed
                names.append(seen.videos.get(number).name)
        for number in seen.integrity.vectors_of(place):
            with suppress(NotFoundError):
                names.append(f"vectors of {seen.videos.get(number).name}")
    return f"which holds {' and '.join(names)}" if names else "which no video needs"


def garbage(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    if run.mounted or run.is_mounted_elsewhere:
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
    """Return the keys of objects without a row, except those that a writer is about to record."""
    # A writer stores the bytes first, and then waits for the write lock of the catalog.
    with context.catalog.reading() as seen:
        recorded = seen.objects.sizes()
    found = [key for key in context.objects.all_keys() if key not in recorded]
    strays, before = _unneeded(context, found), len(found) + 1
    # While other objects become recorded, writers of the remaining ones may still wait.
    while strays and len(strays) < before:
        before = len(strays)
        _wait_for_writers(context)
        strays = _unneeded(context, strays)
    return strays


def _unneeded(context: StoreContext, keys: list[str]) -> list[str]:
    with context.catalog.reading() as seen:
        return [
            key
            for key in keys
            if not (seen.objects.is_recorded(key) or seen.objects.is_needed(key))
        ]


def _wait_for_writers(context: StoreContext) -> None:
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
        indexes = {one.object_key for one in seen.layer_indexes.held(None)}
        remote = {} if run.context.objects.is_local else seen.objects.placed()
    here = set(run.context.objects.all_keys())
    keys = [*sorted(here), *sorted(remote.keys() - here)]
    for number, key in enumerate(keys):
        run.on_progress(number, len(keys))
        tiles = packs.get(key, [])
        try:
            message, sums_fault = check_object(run.context, key, repair=run.repair)
        except PermissionError:
            use = "which holds tiles" if tiles else _use(run.context, key)
            use = _INDEX_USE if key in indexes else use
            yield Finding("permissions", f"object {key}, {use}, cannot be read: permission denied")
            continue
        if sums_fault is not None:
            yield Finding("sums", sums_fault, repaired=run.repair)
        if message is None:
            continue
        is_derived = bool(tiles) or key in indexes
        if is_derived and run.repair:
            drop_segments(run.context, tiles)
            drop_index(run.context, key)
        what = "pack" if tiles else "index" if key in indexes else "object"
        yield Finding(
            "content", f"{what} {key} is damaged: {message}", repaired=is_derived and run.repair
        )


def sums(run: CheckRun) -> Iterator[Finding]:
    """Find block checksums that are unused or inconsistent.

    A repair deletes them; `vfsd scrub` or a deep repair computes them again.
    """
    context = run.context
    with context.catalog.reading() as seen:
        strays = seen.integrity.unlinked()
        places = seen.integrity.with_checksums()
        wrong = [one for one in places if _are_inconsistent(context, seen, one)]
    if strays and run.repair:
        with context.catalog.writing() as change:
            change.integrity.forget_unlinked()
    for place in strays:
        message = f"{place} has checksums, but no video is indexed there"
        yield Finding("sums", message, repaired=run.repair)
    for place in sorted(set(wrong).difference(strays), key=str):
        if run.repair:
            with context.catalog.writing() as change:
                if _are_inconsistent(context, change, place):
                    change.integrity.drop_checksums(place)
        message = f"the checksums of {place} do not cover its bytes"
        yield Finding("sums", message, repaired=run.repair)


def _are_inconsistent(context: StoreContext, seen: Transaction, place: ByteLocation) -> bool:
    try:
        known = seen.integrity.checksums(place)
    except IntegrityError:
        return True
    size = seen.objects.size(place.object_key) if place.object_key is not None else None
    if known is None or size is None or known.sums.size == size:
        return False
    with suppress(OSError):
        return (
            context.originals.path_at(place).lstat().st_size != known.sums.size
        )  # else see "objects"
    return True


def damage(run: CheckRun) -> Iterator[Finding]:
    """Find originals that are known to be damaged."""
    context = run.context
    with context.catalog.reading() as seen:
        damaged = seen.integrity.damaged()
        originals = seen.integrity.originals()
    for one in damaged:
        digest = originals.get(one.place)
        if digest is None:
            continue
        found = None
        if run.repair:  # the bytes may have been replaced by intact ones
            with suppress(PermissionError):  # "content" reports it
                found = _verify(context, one.place, digest)
        is_whole = found is not None and found.is_whole
        if found is not None and is_whole:
            with context.catalog.writing() as change:
                if change.integrity.is_known(one.place):
                    # Wrong sums may be why the bytes were reported as damaged.
                    _correct_sums(change, one.place, found)
                    change.integrity.record_inspection(one.place, (), now_ns=time.time_ns())
        message = str(context.originals.damage_error(one.place, one.damage))
        yield Finding("damage", message, repaired=is_whole)


def check_object(context: StoreContext, key: str, *, repair: bool) -> tuple[str | None, str | None]:
    """Return (fault of the bytes, fault of the checksums) of an object; None means intact.

    The checksums are compared only if the bytes are intact.  Damage of an original is recorded in a
    writable store, unless the disk failed to read it.  With `repair`, wrong or missing checksums
    are computed again.  Raises `PermissionError` if this process may not read the object.
    """
    place = ByteLocation(key, None)
    try:
        found = _verify(context, place, key)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return f"it cannot be read: {error.strerror}", None
    if found is None:
        return _missing_remotely(context, place), None
    with context.catalog.reading() as seen:
        is_original = _is_original(seen, place)
        are_wrong = is_original and found.is_whole and _differ(seen, place, found)
    if found.is_whole:
        if is_original and repair:
            with context.catalog.writing() as change:
                if _is_original(change, place):
                    _correct_sums(change, place, found)
        return None, f"the checksums of {place} do not match its bytes" if are_wrong else None
    if not is_original:
        return f"its bytes {ranges_text(found.damage)} do not hash to its name", None
    if found.is_readable and not context.read_only:
        with context.catalog.writing() as change:
            if change.integrity.is_known(place):
                change.integrity.record_inspection(place, found.damage, now_ns=time.time_ns())
    return str(
        context.originals.damage_error(place, found.damage, is_proven=found.is_readable)
    ), None


def _is_original(seen: Transaction, place: ByteLocation) -> bool:
    """Return whether nothing can make these bytes again."""
    return bool(seen.integrity.videos_of(place) or seen.integrity.vectors_of(place))


def _missing_remotely(context: StoreContext, place: ByteLocation) -> str | None:
    """Return the fault of an object that the bucket should have; its loss is recorded."""
    assert place.object_key is not None
    with context.catalog.reading() as seen:
        where = seen.objects.place(place.object_key)
    if where is None:
        return None  # it was deleted in the meantime
    if not context.read_only:
        with context.catalog.writing() as change:
            if change.objects.place(place.object_key) == where:
                lost = range(max(1, where[1]))
                change.integrity.record_inspection(place, [lost], now_ns=time.time_ns())
    return "it is missing in the bucket"


def _differ(seen: Transaction, place: ByteLocation, found: VerifyResult) -> bool:
    """Return whether recorded checksums differ from those of the bytes read."""
    with suppress(IntegrityError):  # "sums" reports it
        known = seen.integrity.checksums(place)
        return known is not None and known.sums != found.sums
    return False


def _correct_sums(change: Transaction, place: ByteLocation, found: VerifyResult) -> None:
    assert found.sums is not None
    with suppress(IntegrityError):
        known = change.integrity.checksums(place)
        if known is not None and known.sums == found.sums:
            return
    mtime_ns = found.mtime_ns if place.object_key is None else None
    change.integrity.put_checksums(place, found.sums, mtime_ns=mtime_ns)


def _verify(context: StoreContext, place: ByteLocation, digest: str) -> VerifyResult | None:
    """Verify the bytes of a place; return None if there are none to verify.

    That is the case if the file is missing.  It is also the case if a file indexed in place cannot
    be opened or may not be served.  Raises `OSError`.
    """
    if place.link_path is not None:
        try:
            require_linked(place.link_path, context.directory.top)
        except IntegrityError:
            return None
        except OSError as error:
            if error.errno in OF_THE_PROCESS:
                raise
            return None  # "linked" reports it
    known = None
    with context.catalog.reading() as seen, suppress(IntegrityError):
        known = seen.integrity.checksums(place)
    sums = None if known is None else known.sums
    with suppress(FileNotFoundError):
        return verify_stored_file(
            partial(context.whole_file, place), digest, sums, lambda count: None
        )
    return None
