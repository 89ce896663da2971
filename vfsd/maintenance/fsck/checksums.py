"""Whether what is remembered of stored bytes fits them, and whether they are what was stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from vfsd.catalog import Transaction
from vfsd.core.model import ByteLocation
from vfsd.disk.block_checksums import text
from vfsd.disk.direct_io import OF_THE_PROCESS, UNREADABLE
from vfsd.disk.external_files import require_linked
from vfsd.disk.verify_file import VerifyResult, verify_stored_file
from vfsd.errors import IntegrityError
from vfsd.storage.context import StoreContext


def stray_sums(parts: StoreContext, *, repair: bool) -> Iterator[str]:
    """Sums of files that are none of the store's, and those that cannot be right.

    With `repair` they go; `vfsd scrub` makes them again, and so does a deep repair.
    """
    with parts.catalog.reading() as seen:
        strays = seen.integrity.unlinked()
        places = seen.integrity.with_checksums()
        wrong = [one for one in places if _do_not_add_up(parts, seen, one)]
    if strays and repair:
        with parts.catalog.writing() as change:
            change.integrity.forget_unlinked()
    for place in strays:
        yield f"{place} is remembered, and no video is indexed there"
    for place in sorted(set(wrong).difference(strays), key=str):
        if repair:
            with parts.catalog.writing() as change:
                if _do_not_add_up(parts, change, place):
                    change.integrity.drop_checksums(place)
        yield f"the sums of {place} do not add up"


def _do_not_add_up(parts: StoreContext, seen: Transaction, place: ByteLocation) -> bool:
    try:
        known = seen.integrity.checksums(place)
    except IntegrityError:
        return True
    size = seen.objects.size(place.object_key) if place.object_key is not None else None
    if known is None or size is None or known.sums.size == size:
        return False
    with suppress(OSError):
        return parts.path_of(place).lstat().st_size != known.sums.size  # else see "objects"
    return True


def known_damage(parts: StoreContext, *, repair: bool) -> Iterator[tuple[str, bool]]:
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
        if found is not None and is_whole:
            with parts.catalog.writing() as change:
                if change.integrity.is_known(one.place):
                    # By which it may have been called damaged, and would be again.
                    _put_sums_right(change, one.place, found)
                    change.integrity.record_inspection(one.place, (), now_ns=time.time_ns())
        yield str(parts.checksums.damage_error(one.place, one.damage)), is_whole


def faults_of_object(
    parts: StoreContext, key: str, *, repair: bool
) -> tuple[str | None, str | None]:
    """What is wrong with the bytes of an object, and with the sums of one whose bytes are right;
    None: nothing.

    What is damaged of an original is written down, where that may be, unless the disk just did not
    give it.  With `repair` sums are put right, and made where they are missing.  Raises
    `PermissionError` where this process may not look.
    """
    place = ByteLocation(key, None)
    try:
        found = _looked(parts, place, key)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return f"it cannot be read: {error.strerror}", None
    if found is None:
        return None, None
    with parts.catalog.reading() as seen:
        is_original = bool(seen.integrity.videos_of(place))
        are_wrong = is_original and found.is_whole and _are_wrong(seen, place, found)
    if found.is_whole:
        if is_original and repair:
            with parts.catalog.writing() as change:
                if change.integrity.videos_of(place):
                    _put_sums_right(change, place, found)
        return None, f"the sums of {place} are not those of its bytes" if are_wrong else None
    if not is_original:
        return f"its bytes {text(found.damage)} do not hash to its name", None
    if found.is_readable and not parts.read_only:
        with parts.catalog.writing() as change:
            if change.integrity.is_known(place):
                change.integrity.record_inspection(place, found.damage, now_ns=time.time_ns())
    return str(parts.checksums.damage_error(place, found.damage, is_proven=found.is_readable)), None


def _are_wrong(seen: Transaction, place: ByteLocation, found: VerifyResult) -> bool:
    """Whether there are sums, and they are others than those of what was read."""
    with suppress(IntegrityError):  # see "sums"
        known = seen.integrity.checksums(place)
        return known is not None and known.sums != found.sums
    return False


def _put_sums_right(change: Transaction, place: ByteLocation, found: VerifyResult) -> None:
    """Where they are wrong or missing; `found` is whole."""
    assert found.sums is not None
    with suppress(IntegrityError):
        known = change.integrity.checksums(place)
        if known is not None and known.sums == found.sums:
            return
    mtime_ns = found.mtime_ns if place.object_key is None else None
    change.integrity.put_checksums(place, found.sums, mtime_ns=mtime_ns)


def _looked(parts: StoreContext, place: ByteLocation, digest: str) -> VerifyResult | None:
    """None where the file is not there, or is one indexed in place that cannot be opened or is not
    shown.  Raises `OSError`."""
    if place.link_path is not None:
        try:
            require_linked(place.link_path, parts.directory.top)
        except IntegrityError:
            return None
        except OSError as error:
            if error.errno in OF_THE_PROCESS:
                raise
            return None  # see "linked"
    known = None
    with parts.catalog.reading() as seen, suppress(IntegrityError):
        known = seen.integrity.checksums(place)
    sums = None if known is None else known.sums
    with suppress(FileNotFoundError):
        return verify_stored_file(parts.path_of(place), digest, sums, lambda count: None)
    return None
