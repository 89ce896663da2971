"""Objects: those that are recorded, no others, and as they were stored."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.core.model import ByteLocation, Segment
from vfsd.disk import view_cache_dir
from vfsd.disk.direct_io import open_stored
from vfsd.disk.object_store import digest, is_key
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import NoSpaceError, NotFoundError, ReadOnlyError
from vfsd.maintenance.fsck import checksums as stored
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.read.damage_fallback import drop_segments
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_unpublished, reclaim
from vfsd.write.crash_recovery import delete_leftover, find_leftovers
from vfsd.write.partial_files import unfinished_recordings

_TURN_SECONDS = 0.25
"""In which who waits to write notices that it is his turn: SQLite asks ten times a second."""


def objects(run: CheckRun) -> Iterator[Finding]:
    with run.parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        packs = _pack_sizes(seen.segments.all())
    for key, size in sorted(recorded.items()):
        if not is_key(key):
            yield Finding("objects", f"an object's name must be its hash, got {key[:80]!r}")
            continue
        path = run.parts.objects.path(key)
        fault = _fault(path, size)
        if key in packs and (fault is None or _fault(path, packs[key])):
            continue  # see "tiles"
        if fault is not None and _is_recorded(run.parts, key):  # still, and was all the time
            told = f"object {key}, {_use(run.parts, key)}, {fault}"
            # What nothing refers to is let go, as when who was about to do so was killed.
            done = run.repair and (
                key in reclaim(run.parts, keys=[key]) or _correct_size(run.parts, key)
            )
            yield Finding("objects", told, repaired=done)
    yield from _unrecorded(run, packs)


def _unrecorded(run: CheckRun, packs: Collection[str]) -> Iterator[Finding]:
    """What is referred to, and whose own row has gone astray."""
    with run.parts.catalog.reading() as seen:
        lost = seen.objects.needed().keys() - seen.objects.sizes().keys()
    for key in sorted(lost):
        is_there = run.parts.objects.exists(key)
        if key in packs and not is_there:
            continue  # see "tiles"
        use = "which holds tiles" if key in packs else _use(run.parts, key)
        done = run.repair and is_there and _record(run.parts, key)
        if done or _is_astray(run.parts, key):
            is_gone = "" if is_there else ", and missing"
            told = f"object {key[:80]}, {use}, is not recorded{is_gone}"
            yield Finding("objects", told, repaired=done)


def _pack_sizes(segments: list[Segment]) -> dict[str, int]:
    """The bytes of packs, as their segments have it; two that are joined share one."""
    sizes: dict[str, int] = {}
    for one in segments:
        before = sizes.get(one.object_key, 0) if one.is_joined else 0
        sizes[one.object_key] = before + one.size
    return sizes


def _correct_size(parts: StoreContext, key: str) -> bool:
    """Believe a file that hashes to its name, and not the catalog; whether it does."""
    size = _proven_size(parts, key)
    if size is None:
        return False
    with parts.catalog.writing() as change:
        change.objects.correct_size(key, size)
    return True


def _record(parts: StoreContext, key: str) -> bool:
    """Give an object that hashes to its name a row again; whether it does, and has none."""
    size = _proven_size(parts, key)
    if size is None:
        return False
    with parts.catalog.writing() as change:
        return change.objects.record_missing(key, size, now_ns=time.time_ns())


def _proven_size(parts: StoreContext, key: str) -> int | None:
    """Bytes of a file that hashes to its name; None where it does not, or cannot be read."""
    try:
        fd = open_stored(parts.objects.path(key))
    except OSError:
        return None
    try:
        found = digest(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    return found.size if found.key == key else None


def _is_astray(parts: StoreContext, key: str) -> bool:
    """Whether an object is still referred to, and not recorded."""
    with parts.catalog.reading() as seen:
        return not seen.objects.is_recorded(key) and seen.objects.is_needed(key)


def _is_recorded(parts: StoreContext, key: str) -> bool:
    with parts.catalog.reading() as seen:
        return seen.objects.is_recorded(key)


def _fault(path: Path, size: int) -> str | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"is missing ({size} bytes)"
    if not stat.S_ISREG(found.st_mode):
        return f"must be a file of {size} bytes, got a directory, link or device"
    return None if found.st_size == size else f"has {found.st_size} bytes, not {size}"


def _use(parts: StoreContext, key: str) -> str:
    """What an object is to people: the names of its videos."""
    with parts.catalog.reading() as seen:
        names = []
        for number in seen.integrity.videos_of(ByteLocation(key, None)):
            with suppress(NotFoundError):  # it is just being written, or removed
                names.append(seen.videos.get(number).name)
    return f"which holds {' and '.join(names)}" if names else "which no video needs"


def garbage(run: CheckRun) -> Iterator[Finding]:
    parts = run.parts
    if run.mounted:
        return  # it may be on its way into the catalog
    for key in _strays(parts):
        told = f"object {key} is not in the catalog"
        yield from _gone(run, told, partial(discard_unpublished, parts, key))
    for path in find_leftovers(parts):
        told = f"{path.name} was left on its way"
        yield from _gone(run, told, partial(delete_leftover, parts, path))
    for path in parts.objects.misnamed():
        yield from _gone(run, f"{path.name} was left on its way", partial(_remove, path))
    yield from _views(run)


def _strays(parts: StoreContext) -> list[str]:
    """Objects that nothing has recorded, and nobody who is about to: their bytes come first, and
    then they wait for their turn to write."""
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
    found = [key for key in parts.objects.all_keys() if key not in recorded]
    strays, before = _unneeded(parts, found), len(found) + 1
    # As long as others come to be recorded, who is not may still be waiting.
    while strays and len(strays) < before:
        before = len(strays)
        _let_others_write(parts)
        strays = _unneeded(parts, strays)
    return strays


def _unneeded(parts: StoreContext, keys: list[str]) -> list[str]:
    with parts.catalog.reading() as seen:
        return [
            key
            for key in keys
            if not (seen.objects.is_recorded(key) or seen.objects.is_needed(key))
        ]


def _let_others_write(parts: StoreContext) -> None:
    """Wait for who writes now, and for one of those who wait for their turn.

    Raises `BusyError` where it takes them too long.
    """
    for pause in (_TURN_SECONDS, 0):
        with suppress(ReadOnlyError, NoSpaceError), parts.catalog.writing():
            pass
        time.sleep(pause)


def _views(run: CheckRun) -> Iterator[Finding]:
    """What was rendered of videos that have gone, by the folder that it is in."""
    cache = run.parts.directory.cache
    with run.parts.catalog.reading() as seen:
        known = seen.videos.digests()
    found: dict[Path, list[Path]] = {}
    for path in view_cache_dir.stray_files(cache, known):
        found.setdefault(path.parent, []).append(path)
    for folder, files in found.items():
        if run.repair:
            view_cache_dir.delete(cache, files)
        yield Finding(
            "garbage",
            f"{len(files)} rendered parts of views in {folder} are of no video",
            repaired=run.repair and not any(map(os.path.lexists, files)),
        )


def _gone(run: CheckRun, told: str, delete: Callable[[], bool]) -> Iterator[Finding]:
    """The finding that something is garbage, which is deleted where that is asked for; none where
    it turns out to be somebody's."""
    if not run.repair:
        yield Finding("garbage", told)
        return
    try:
        if delete():
            yield Finding("garbage", told, repaired=True)
    except STAYS as error:
        yield Finding("garbage", f"{told}: {error}")


def _remove(path: Path) -> bool:
    remove(path)
    return True


def unfinished(run: CheckRun) -> Iterator[Finding]:
    """Recordings whose writers have died: to be made videos of, and for nobody to throw away."""
    return (Finding("recordings", str(one)) for one in unfinished_recordings(run.parts))


def content(run: CheckRun) -> Iterator[Finding]:
    packs: dict[str, list[Segment]] = {}
    with run.parts.catalog.reading() as seen:
        for segment in seen.segments.all():
            packs.setdefault(segment.object_key, []).append(segment)
    for key in list(run.parts.objects.all_keys()):
        tiles = packs.get(key, [])
        try:
            message, sums = stored.faults_of_object(run.parts, key, repair=run.repair)
        except PermissionError:  # which says nothing of its bytes
            use = "which holds tiles" if tiles else _use(run.parts, key)
            yield Finding(
                "permissions", f"object {key}, {use}, may not be read by who runs this check"
            )
            continue
        if sums is not None:
            yield Finding("sums", sums, repaired=run.repair)
        if message is None:
            continue
        if tiles and run.repair:
            drop_segments(run.parts, tiles)
        yield Finding(
            "content",
            f"{'pack' if tiles else 'object'} {key} is damaged: {message}",
            repaired=bool(tiles) and run.repair,
        )
