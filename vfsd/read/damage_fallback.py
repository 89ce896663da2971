"""Handles damaged packs.

`DamageHandler` drops the segments of a pack whose bytes no longer match its hash; reads decode the
original from then on.
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
from vfsd.storage.reclaim import clear_away

_log = logging.getLogger(__name__)


class DamageHandler:
    """Told of what readers run into.  Thread-safe."""

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts

    def note(self, error: Exception) -> None:
        """Forget the tiles of the pack that `error` is about, if they are damaged indeed.

        Does nothing about other errors, nor where the store may not be written.  Never raises.
        """
        if not isinstance(error, DamagedPackError) or self._parts.read_only:
            return
        with suppress(VfsdError, OSError):
            for segment in drop_if_damaged(self._parts, error.object_key):
                _log.warning(
                    "tiles of frames %d to %d were damaged on disk, and are gone: %s",
                    segment.first_frame,
                    segment.end_frame - 1,
                    error,
                )


def drop_if_damaged(parts: StoreContext, object_key: str) -> list[Segment]:
    """Take away the segments of a pack that does not hash to its name; gives which.

    A disk that fails to read is no proof of damage.  Raises `OSError`.
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
    """Let the bytes of `path` take the place of an object that is damaged, for all that is known
    (or the caller knows), or not there: somebody has put them into the store again.  Whether that
    was so.

    Raises `IntegrityError` where they do not hash to `object_key`, `NoSpaceError`, `OSError`.
    """
    place = ByteLocation(object_key, None)
    with parts.catalog.reading() as seen:
        known = seen.integrity.inspection(place)
        size = seen.objects.size(object_key)
    is_damaged = is_damaged or bool(known and known.damage)
    if not is_damaged and _has_size(parts.objects.path(object_key), size):
        return False
    with parts.objects.good_copy(path, object_key) as copy, parts.catalog.writing() as change:
        if change.objects.is_needed(object_key):
            size = copy.stat().st_size
            parts.objects.exchange(copy, object_key)
            change.objects.record(object_key, size, now_ns=time.time_ns())
    return True


def _has_size(path: Path, size: int | None) -> bool:
    """Whether there is a file of so many bytes; of any size where none is known."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and size in (None, found.st_size)


def drop_segments(parts: StoreContext, segments: list[Segment]) -> None:
    """Take them away, with their bytes; reads decode the original then."""
    with parts.catalog.writing() as change:
        change.segments.delete(segment.id for segment in segments)
    clear_away(parts, keys={segment.object_key for segment in segments})
