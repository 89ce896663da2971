"""Whether the index of a video's sound is whole, and making it again; tiles stay what they are."""

from __future__ import annotations

from vfsd.catalog import Transaction
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.making.ingest import put_sound
from vfsd.model import PhysicalVideo
from vfsd.parts import Parts


def fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    """What is wrong, for people; None: nothing."""
    sound = seen.sounds.of(original.id)
    if sound is None:
        return None
    packets = 0
    for page in seen.sounds.page_bounds(original.id):
        if page.first_packet != packets:
            return "has a gap in the index of its sound"
        packets += page.packets
    if packets != sound.packets:
        return f"has an index of {packets} packets of sound, not {sound.packets}"
    return None


def index_again(parts: Parts, original: PhysicalVideo) -> bool | None:
    """False where the file does not let itself be read; None where it is no original any more."""
    try:
        parts.require_whole(original)
        found = parts.examiner.examine(parts.bytes_of(original))
    except (OSError, IntegrityError, RefusedMediaError):
        return False
    with parts.catalog.writing() as change:
        try:
            change.videos.require_there(original.id)
        except NotFoundError:
            return None
        put_sound(change, original, found)
    return True
