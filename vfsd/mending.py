"""Doing without what is damaged: packs whose bytes have changed on disk.

Whatever they held can be made again from the original, which readers have instead meanwhile.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from vfsd.blocksums import Place
from vfsd.errors import DamagedPackError, VfsdError
from vfsd.model import Segment
from vfsd.objects import digest
from vfsd.parts import Parts
from vfsd.reclaim import clear_away

_log = logging.getLogger(__name__)


class Mender:
    """Told of what readers run into.  Thread-safe."""

    def __init__(self, parts: Parts) -> None:
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


def drop_if_damaged(parts: Parts, object_key: str) -> list[Segment]:
    """Take away the segments of a pack that does not hash to its name; gives which.

    A disk that fails to read is no proof of damage.  Raises `OSError`.
    """
    with suppress(FileNotFoundError):
        fd = os.open(parts.objects.path(object_key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = digest(fd).key
        finally:
            os.close(fd)
        if found == object_key:
            return []
    with parts.catalog.reading() as seen:
        mine = [one for one in seen.segments.all() if one.object_key == object_key]
    drop_segments(parts, mine)
    return mine


def heal(parts: Parts, object_key: str, path: Path) -> None:
    """Let the bytes of `path`, which hash to `object_key`, take the place of that object where it
    is known to be damaged: somebody has put them into the store again.

    Raises `NoSpaceError`, `IntegrityError`, `OSError`.
    """
    place = Place(object_key, None)
    with parts.catalog.reading() as seen:
        known = seen.integrity.inspection(place)
    if known is None or not known.damage:
        return
    temporary = parts.objects.put_back(path, object_key)
    try:
        with parts.catalog.writing() as change:
            if change.integrity.is_there(place):
                parts.objects.exchange(temporary, object_key)
                change.integrity.forget_inspection(place)
    finally:
        temporary.unlink(missing_ok=True)


def drop_segments(parts: Parts, segments: list[Segment]) -> None:
    """Take them away, with their bytes; reads decode the original then."""
    with parts.catalog.writing() as change:
        change.segments.delete(segment.id for segment in segments)
    clear_away(parts, keys={segment.object_key for segment in segments})
