"""Checks stored bytes against their digest and block checksums, and these against the catalog."""

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


def check_sums(context: StoreContext, *, repair: bool) -> Iterator[str]:
    """Yield a message for each set of block checksums that is unused or inconsistent.

    With `repair` they are deleted; `vfsd scrub` or a deep repair computes them again.
    """
    with context.catalog.reading() as seen:
        strays = seen.integrity.unlinked()
        places = seen.integrity.with_checksums()
        wrong = [one for one in places if _are_inconsistent(context, seen, one)]
    if strays and repair:
        with context.catalog.writing() as change:
            change.integrity.forget_unlinked()
    for place in strays:
        yield f"{place} has checksums, but no video is indexed there"
    for place in sorted(set(wrong).difference(strays), key=str):
        if repair:
            with context.catalog.writing() as change:
                if _are_inconsistent(context, change, place):
                    change.integrity.drop_checksums(place)
        yield f"the checksums of {place} do not cover its bytes"


def _are_inconsistent(context: StoreContext, seen: Transaction, place: ByteLocation) -> bool:
    try:
        known = seen.integrity.checksums(place)
    except IntegrityError:
        return True
    size = seen.objects.size(place.object_key) if place.object_key is not None else None
    if known is None or size is None or known.sums.size == size:
        return False
    with suppress(OSError):
        return context.path_of(place).lstat().st_size != known.sums.size  # else see "objects"
    return True


def check_known_damage(context: StoreContext, *, repair: bool) -> Iterator[tuple[str, bool]]:
    """Yield (message, whether it is intact again) for each original that is known to be damaged.

    With `repair` each of them is read again, as its bytes may have been replaced.
    """
    with context.catalog.reading() as seen:
        damaged = seen.integrity.damaged()
        originals = seen.integrity.originals()
    for one in damaged:
        digest = originals.get(one.place)
        if digest is None:
            continue
        found = None
        if repair:
            with suppress(PermissionError):  # "content" reports it
                found = _verify(context, one.place, digest)
        is_whole = found is not None and found.is_whole
        if found is not None and is_whole:
            with context.catalog.writing() as change:
                if change.integrity.is_known(one.place):
                    # Wrong sums may be why the bytes were reported as damaged.
                    _correct_sums(change, one.place, found)
                    change.integrity.record_inspection(one.place, (), now_ns=time.time_ns())
        yield str(context.checksums.damage_error(one.place, one.damage)), is_whole


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
        return None, None
    with context.catalog.reading() as seen:
        is_original = bool(seen.integrity.videos_of(place))
        are_wrong = is_original and found.is_whole and _differ(seen, place, found)
    if found.is_whole:
        if is_original and repair:
            with context.catalog.writing() as change:
                if change.integrity.videos_of(place):
                    _correct_sums(change, place, found)
        return None, f"the checksums of {place} do not match its bytes" if are_wrong else None
    if not is_original:
        return f"its bytes {text(found.damage)} do not hash to its name", None
    if found.is_readable and not context.read_only:
        with context.catalog.writing() as change:
            if change.integrity.is_known(place):
                change.integrity.record_inspection(place, found.damage, now_ns=time.time_ns())
    return str(
        context.checksums.damage_error(place, found.damage, is_proven=found.is_readable)
    ), None


def _differ(seen: Transaction, place: ByteLocation, found: VerifyResult) -> bool:
    """Whether recorded checksums differ from those of the bytes read."""
    with suppress(IntegrityError):  # "sums" reports it
        known = seen.integrity.checksums(place)
        return known is not None and known.sums != found.sums
    return False


def _correct_sums(change: Transaction, place: ByteLocation, found: VerifyResult) -> None:
    """Record the checksums of intact bytes, unless they are recorded already."""
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
        return verify_stored_file(context.path_of(place), digest, sums, lambda count: None)
    return None
