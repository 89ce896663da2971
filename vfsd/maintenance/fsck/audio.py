"""Making the index of a video's sound again; tiles stay what they are."""

from __future__ import annotations

from vfsd.core.model import PhysicalVideo
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.storage.context import Parts
from vfsd.write.ingest import put_sound


def index_again(parts: Parts, original: PhysicalVideo) -> bool | None:
    """False where the file does not let itself be read; None where it is no original any more."""
    try:
        found = parts.examine(original, name="a video")  # nobody is told why it is refused
    except (OSError, IntegrityError, RefusedMediaError):
        return False
    with parts.catalog.writing() as change:
        try:
            change.videos.require_there(original.id)
        except NotFoundError:
            return None
        put_sound(change, original, found)
    return True
