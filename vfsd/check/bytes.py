"""Whether what is remembered of stored bytes fits them, and whether they are what was stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from vfsd.catalog import Transaction
from vfsd.errors import IntegrityError
from vfsd.integrity.blocksums import Place, text
from vfsd.integrity.byteslook import Looked, look_at
from vfsd.integrity.diskfile import UNREADABLE
from vfsd.integrity.linkedfile import require_linked
from vfsd.parts import Parts


def stray_sums(parts: Parts, *, repair: bool) -> Iterator[str]:
    """Sums of files that are none of the store's, and those that cannot be right.

    With `repair` they go; `vfsd scrub` makes them again.
    """
    with parts.catalog.reading() as seen:
        strays = seen.integrity.unlinked()
        wrong = [one for one in seen.integrity.places_with_sums() if _do_not_add_up(seen, one)]
    if strays and repair:
        with parts.catalog.writing() as change:
            change.integrity.forget_unlinked()
    for place in strays:
        yield f"{place} is remembered, and no video is indexed there"
    for place in sorted(set(wrong).difference(strays), key=str):
        if repair:
            with parts.catalog.writing() as change:
                if _do_not_add_up(change, place):
                    change.integrity.drop_sums(place)
        yield f"the sums of {place} do not add up"


def _do_not_add_up(seen: Transaction, place: Place) -> bool:
    try:
        known = seen.integrity.sums(place)
    except IntegrityError:
        return True
    size = seen.objects.size(place.object_key) if place.object_key is not None else None
    return known is not None and size is not None and known.sums.size != size


def known_damage(parts: Parts, *, repair: bool) -> Iterator[tuple[str, bool]]:
    """Originals that are known to be damaged, and whether they turned out to be right again.

    With `repair` they are looked at once more: somebody may have seen to it.
    """
    with parts.catalog.reading() as seen:
        damaged = seen.integrity.damaged()
        originals = seen.integrity.originals()
    for one in damaged:
        digest = originals.get(one.place)
        if digest is None:
            continue
        found = None
        if repair:
            with suppress(PermissionError):  # see "content"
                found = _looked(parts, one.place, digest)
        is_whole = found is not None and found.is_whole
        if is_whole:
            with parts.catalog.writing() as change:
                if change.integrity.is_there(one.place):
                    change.integrity.note_look(one.place, (), now_ns=time.time_ns())
        yield str(parts.summed.described(one.place, one.damage)), is_whole


def damage_of_object(parts: Parts, key: str) -> str | None:
    """What is wrong with the bytes of an object; None: nothing.

    What is damaged of an original is written down, where that may be, unless the disk just did not
    give it.  Raises `PermissionError` where this process may not look.
    """
    place = Place(key, None)
    try:
        found = _looked(parts, place, key)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return f"it cannot be read: {error.strerror}"
    if found is None or found.is_whole:
        return None
    with parts.catalog.reading() as seen:
        is_original = bool(seen.integrity.videos_of(place))
    if not is_original:
        return f"its bytes {text(found.damage)} do not hash to its name"
    if found.is_readable and not parts.read_only:
        with parts.catalog.writing() as change:
            if change.integrity.is_there(place):
                change.integrity.note_look(place, found.damage, now_ns=time.time_ns())
    return str(parts.summed.described(place, found.damage, is_proven=found.is_readable))


def _looked(parts: Parts, place: Place, digest: str) -> Looked | None:
    """None where the file is not there, or is none that the store shows.  Raises `OSError`."""
    if place.link_path is not None:
        try:
            require_linked(place.link_path, parts.directory.root)
        except (IntegrityError, FileNotFoundError):
            return None
    known = None
    with parts.catalog.reading() as seen, suppress(IntegrityError):
        known = seen.integrity.sums(place)
    sums = None if known is None else known.sums
    with suppress(FileNotFoundError):
        return look_at(parts.path_of(place), digest, sums, lambda count: None)
    return None
