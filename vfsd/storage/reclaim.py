"""Deletes bytes that the catalog no longer refers to, rendered views of deleted videos, and
damaged packs. Rows are deleted first and synced; the files follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from vfsd.catalog import BUSY_SECONDS, Transaction
from vfsd.core.model import ByteLocation, Segment
from vfsd.disk import view_cache_dir
from vfsd.disk.disk_reserve import keep_reserve
from vfsd.disk.object_store import digest
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import DamagedPackError, NotFoundError, StoreError, VfsdError
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room_in_store

_BATCH_FILES = 100
_BATCH_SECONDS = 0.5
"""A transaction ends after `_BATCH_FILES` deletions or this time."""
_PAUSE_SECONDS = 0.1
"""The interval at which SQLite retries a lock: a waiting writer gets it between transactions."""

_log = logging.getLogger(__name__)


class TransactionPacer:
    """Lets other writers in between many consecutive transactions."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def pause(self) -> None:
        """Sleep briefly if the transactions have run for a while. Call it before each, outside of
        it."""
        if time.monotonic() - self._began > _BATCH_SECONDS:
            time.sleep(_PAUSE_SECONDS)
            self._began = time.monotonic()


def reclaim(
    context: StoreContext, *, keys: Iterable[str] | None = None, inodes: Iterable[int] = ()
) -> list[str]:
    """Delete recorded objects (among `keys`) without references; return their keys.

    Also deletes the private files of those `inodes` that no longer exist and rendered views of
    deleted videos. Deleted originals can shrink the budget: derived data above it is evicted, as is
    data joined with deleted frames. Files that cannot be deleted stay as garbage.
    """
    if keys is not None:
        keys = set(keys)
    drop_stray_views(context, keys)
    found = context.with_reserve(lambda: _forget(context, keys))
    gone = list(inodes)
    if not found and not gone:
        return []
    context.catalog.sync()
    _in_batches(
        context,
        [
            *(partial(_delete_published, context, key) for key in found),
            *(partial(_delete_private, context, ino) for ino in gone),
        ],
    )
    keep_reserve(context.directory)
    return found


def reclaim_or_log(
    context: StoreContext, *, keys: Iterable[str], inodes: Iterable[int] = ()
) -> None:
    """Run `reclaim` after another operation, and only log its errors.

    The cost depends on the number of `keys`, not on the size of the store, plus a microsecond for
    each file indexed in place. The rest is left for `vfsd gc` and the next mount.
    """
    try:
        reclaim(context, keys=keys, inodes=inodes)
    except (OSError, StoreError) as error:
        _log.warning("old bytes could not be deleted; run `vfsd gc`: %s", error)


def drop_stray_views(context: StoreContext, digests: Iterable[str] | None = None) -> None:
    """Delete rendered views of videos that no longer exist: those with these `digests`, or all.

    A view that is being rendered is deleted by `FileCache.put`.
    """
    cache = context.directory.cache
    try:
        if digests is None:
            with context.catalog.reading() as seen:
                known = seen.videos.digests()
            view_cache_dir.delete(cache, view_cache_dir.stray_files(cache, known))
            return
        kept = [digest for digest in digests if view_cache_dir.may_be_kept(cache, digest)]
        if not kept:
            return
        with context.catalog.reading() as seen:
            known = seen.videos.digests(kept)
        for digest in kept:
            if digest not in known:
                view_cache_dir.drop(cache, digest)
    except OSError as error:
        _log.warning("rendered views could not be deleted; run `vfsd gc`: %s", error)


def _forget(context: StoreContext, keys: Iterable[str] | None) -> list[str]:
    with context.catalog.writing() as change:
        evicted = make_room_in_store(change, now_ns=time.time_ns())
        widowed = change.segments.without_partner()
        change.segments.delete(one.id for one in widowed)
        if keys is not None:
            keys = {*keys, *change.segments.released, *(one.object_key for one in evicted)}
            keys.update(one.object_key for one in widowed)
        return change.objects.forget_unreferenced(keys)


def discard_unpublished(
    context: StoreContext, key: str, wait_seconds: float = BUSY_SECONDS
) -> bool:
    """Delete an object whose publication did not happen.

    Return False if it was published by another writer. Raises `BusyError` if other writers hold the
    catalog for longer than `wait_seconds`.
    """
    with context.catalog.writing(wait_seconds) as change:
        return _delete_object(context, key, change)


def discard_strays(context: StoreContext, keys: Iterable[str]) -> None:
    """Delete objects without a row, unless they are published in the meantime.

    Files that cannot be deleted stay.
    """
    _in_batches(context, [partial(_delete_object, context, key) for key in keys])


def discard_failed(context: StoreContext, key: str, wait_seconds: float = BUSY_SECONDS) -> None:
    """Run `discard_unpublished` while another exception is propagating, and only log its errors.

    The rest is left for `vfsd gc`.
    """
    try:
        discard_unpublished(context, key, wait_seconds)
    except (OSError, StoreError) as error:
        _log.warning("object %s could not be deleted; run `vfsd gc`: %s", key, error)


def _in_batches(
    context: StoreContext, deletions: Sequence[Callable[[Transaction], object]]
) -> None:
    done = 0
    while done < len(deletions):
        with context.catalog.writing() as change:
            began = time.monotonic()
            for delete in deletions[done : done + _BATCH_FILES]:
                try:
                    delete(change)
                except STAYS as error:
                    _log.warning("%s", error)
                done += 1
                if time.monotonic() - began > _BATCH_SECONDS:
                    break
        if done < len(deletions):
            time.sleep(min(_PAUSE_SECONDS, time.monotonic() - began))


def _delete_object(context: StoreContext, key: str, change: Transaction) -> bool:
    """Delete an object unless it was published; return whether it was deleted."""
    if change.objects.is_needed(key):
        return False
    context.objects.delete(key)
    return True


def _delete_published(context: StoreContext, key: str, change: Transaction) -> None:
    """Delete an object that was published before, with its temporary names.

    An unpublished object keeps those: they are all that is left of a recording.
    """
    if not change.objects.is_needed(key):
        context.objects.delete_temporary_names(key)
        context.objects.delete(key)


def _delete_private(context: StoreContext, ino: int, change: Transaction) -> None:
    if not _exists(change, ino):
        remove(context.directory.spool_file(ino))


def _exists(change: Transaction, ino: int) -> bool:
    try:
        change.tree.node(ino)
    except NotFoundError:
        return False
    return True


def drop_damaged_tiles(parts: StoreContext, error: Exception) -> None:
    """Drop the tiles of the pack that `error` is about if the pack is damaged.

    Other errors are ignored, and so are all errors of a read-only store.  Never raises.
    """
    if not isinstance(error, DamagedPackError) or parts.read_only:
        return
    with suppress(VfsdError, OSError):
        for segment in _drop_if_damaged(parts, error.object_key):
            _log.warning(
                "tiles of frames %d to %d were damaged on disk and were dropped: %s",
                segment.first_frame,
                segment.end_frame - 1,
                error,
            )


def _drop_if_damaged(parts: StoreContext, object_key: str) -> list[Segment]:
    """Delete and return the segments of a pack with bytes that do not match its name.

    A failed read of the disk does not prove damage.  Raises `OSError`.
    """
    parts.objects.refresh(object_key)
    with suppress(FileNotFoundError), closing(parts.objects.open(object_key)) as file:
        if digest(file.descriptor()).key == object_key:
            return []
    with parts.catalog.reading() as seen:
        mine = seen.segments.of_pack(object_key)
    drop_segments(parts, mine)
    drop_index(parts, object_key)
    return mine


def restore_object(
    parts: StoreContext, object_key: str, path: Path, *, is_damaged: bool = False
) -> bool:
    """Replace a missing or damaged object by the bytes of `path`; return whether it was replaced.

    `is_damaged` adds the caller's knowledge to that of the catalog.  Raises `IntegrityError` if the
    bytes do not hash to `object_key`, `NoSpaceError`, `OSError`.
    """
    place = ByteLocation(object_key, None)
    with parts.catalog.reading() as seen:
        known = seen.integrity.inspection(place)
        size = seen.objects.size(object_key)
    is_damaged = is_damaged or bool(known and known.damage)
    there = parts.objects.size(object_key)
    if not is_damaged and there is not None and size in (None, there):
        return False
    with parts.objects.verified_copy(path, object_key) as copy:
        put_back(parts, object_key, copy)
    return True


def put_back(parts: StoreContext, object_key: str, copy: Path) -> bool:
    """Replace an object by a temporary file with its bytes; return False if nothing needs it.

    An object in the bucket gets a new place there, and the old one becomes garbage: requests that
    are under way must not meet other bytes.  Raises `NoSpaceError`, `UnreachableError`, `OSError`.
    """
    size = copy.stat().st_size
    with parts.catalog.reading() as seen:
        is_placed = seen.objects.place(object_key) is not None
    if not is_placed:
        with parts.catalog.writing() as change:
            if not change.objects.is_needed(object_key):
                return False
            parts.objects.exchange(copy, object_key)
            change.objects.record(object_key, size, now_ns=time.time_ns())
        return True
    parts.objects.exchange(copy, object_key)
    place = parts.objects.upload(object_key, size)
    try:
        with parts.catalog.writing() as change:
            is_needed = change.objects.is_needed(object_key)
            if is_needed:
                # Only a damaged object gets a new place.
                change.integrity.record_inspection(
                    ByteLocation(object_key, None), [range(max(1, size))], now_ns=time.time_ns()
                )
                change.objects.record_upload(object_key, size, place, now_ns=time.time_ns())
    except BaseException:
        parts.objects.abandon(place)
        raise
    parts.objects.refresh(object_key)
    if is_needed:
        parts.objects.release(object_key)
    else:
        parts.objects.abandon(place)
        discard_failed(parts, object_key)
    return is_needed


def drop_index(parts: StoreContext, object_key: str) -> None:
    """Delete the index of a layer in an object; queries then make it again."""
    with parts.catalog.writing() as change:
        change.layer_indexes.delete([object_key])
    reclaim_or_log(parts, keys={object_key})


def drop_segments(parts: StoreContext, segments: list[Segment]) -> None:
    """Delete segments and their bytes; reads then decode the original."""
    with parts.catalog.writing() as change:
        change.segments.delete(segment.id for segment in segments)
    reclaim_or_log(parts, keys={segment.object_key for segment in segments})
