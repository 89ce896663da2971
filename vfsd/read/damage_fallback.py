"""Drops the segments of packs with bytes that no longer match the hash, so that reads decode the
original.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from vfsd.core.model import ByteLocation, Segment
from vfsd.disk.direct_io import open_stored
from vfsd.disk.object_store import digest
from vfsd.errors import DamagedPackError, VfsdError
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim_or_log

_log = logging.getLogger(__name__)


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
    with suppress(FileNotFoundError):
        fd = open_stored(parts.objects.path(object_key))
        try:
            found = digest(fd).key
        finally:
            os.close(fd)
        if found == object_key:
            return []
    with parts.catalog.reading() as seen:
        mine = seen.segments.of_pack(object_key)
    drop_segments(parts, mine)
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
    if not is_damaged and _has_size(parts.objects.path(object_key), size):
        return False
    with parts.objects.verified_copy(path, object_key) as copy, parts.catalog.writing() as change:
        if change.objects.is_needed(object_key):
            size = copy.stat().st_size
            parts.objects.exchange(copy, object_key)
            change.objects.record(object_key, size, now_ns=time.time_ns())
    return True


def _has_size(path: Path, size: int | None) -> bool:
    """Return whether a file of `size` bytes exists; of any size if `size` is None."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and size in (None, found.st_size)


def drop_segments(parts: StoreContext, segments: list[Segment]) -> None:
    """Delete segments and their bytes; reads then decode the original."""
    with parts.catalog.writing() as change:
        change.segments.delete(segment.id for segment in segments)
    reclaim_or_log(parts, keys={segment.object_key for segment in segments})
