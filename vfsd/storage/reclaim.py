"""Taking away bytes that nothing in the catalog refers to any more, and views of what has gone.

Rows go first, and durably; the files follow.  Files are deleted inside write transactions, since
whoever publishes an object looks for its bytes inside one too: so nobody can come to rely on an
object between the last look and the deletion.  Many files are many transactions: a slow disk needs
longer for them than others wait for their turn.

What was rendered of a video is found by the digest of that, which is the key of its object, and
goes before these: nobody relies on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from vfsd.catalog import BUSY_SECONDS, Transaction
from vfsd.disk import view_cache_dir
from vfsd.disk.disk_reserve import keep_reserve
from vfsd.disk.safe_open import STAYS, remove
from vfsd.errors import NotFoundError, StoreError
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room_in_store

_AT_ONCE = 100
_AT_ONCE_SECONDS = 0.5
"""Files that are deleted in one transaction, and after how long it is ended in any case."""
_REST_SECONDS = 0.1
"""SQLite asks as often whether it is its turn: who waits gets it between two transactions."""

_log = logging.getLogger(__name__)


class TransactionPacer:
    """Lets others write between many transactions that follow each other at once."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def rest(self) -> None:
        """To be called before each of them, outside of it; where they have gone on for a while who
        waits has his turn."""
        if time.monotonic() - self._began > _AT_ONCE_SECONDS:
            time.sleep(_REST_SECONDS)
            self._began = time.monotonic()


def reclaim(
    parts: StoreContext, *, keys: Iterable[str] | None = None, inodes: Iterable[int] = ()
) -> list[str]:
    """Delete the recorded objects (among `keys`) that nothing refers to; returns their keys.

    With them go the private files of those `inodes` that exist no longer, what was rendered of
    videos that no file has any more, what the budget of the store has no room for since originals
    have gone, and what was joined with their pictures.  Files that may not be deleted stay as
    garbage.
    """
    if keys is not None:
        keys = set(keys)
    drop_stray_views(parts, keys)
    found = parts.with_reserve(lambda: _forget(parts, keys))
    gone = list(inodes)
    if not found and not gone:
        return []
    parts.catalog.sync()
    _in_batches(
        parts,
        [
            *(partial(_delete_published, parts, key) for key in found),
            *(partial(_delete_private, parts, ino) for ino in gone),
        ],
    )
    keep_reserve(parts.directory)
    return found


def clear_away(parts: StoreContext, *, keys: Iterable[str], inodes: Iterable[int] = ()) -> None:
    """`reclaim` after something else, which is done whatever becomes of the old bytes.

    It takes as long as these `keys` need, however much is stored, and a microsecond for each file
    that is indexed in place.  What cannot be deleted now is left for `vfsd gc` and the next mount.
    """
    try:
        reclaim(parts, keys=keys, inodes=inodes)
    except (OSError, StoreError) as error:
        _log.warning("old bytes could not be deleted, `vfsd gc` does it: %s", error)


def drop_stray_views(parts: StoreContext, digests: Iterable[str] | None = None) -> None:
    """Delete what was rendered of videos, of these `digests` or all, that no file has any more.

    What is rendered meanwhile for somebody who has one open is deleted by who puts it there.
    """
    cache = parts.directory.cache
    try:
        if digests is None:
            with parts.catalog.reading() as seen:
                known = seen.videos.digests()
            view_cache_dir.delete(cache, view_cache_dir.stray_files(cache, known))
            return
        kept = [digest for digest in digests if view_cache_dir.may_be_kept(cache, digest)]
        if not kept:
            return
        with parts.catalog.reading() as seen:
            known = seen.videos.digests(kept)
        for digest in kept:
            if digest not in known:
                view_cache_dir.drop(cache, digest)
    except OSError as error:
        _log.warning("rendered views could not be deleted, `vfsd gc` does it: %s", error)


def _forget(parts: StoreContext, keys: Iterable[str] | None) -> list[str]:
    with parts.catalog.writing() as change:
        evicted = make_room_in_store(change, now_ns=time.time_ns())
        widowed = change.segments.widowed()
        change.segments.delete(one.id for one in widowed)
        if keys is not None:
            keys = {*keys, *(one.object_key for one in evicted)}
            keys.update(one.object_key for one in widowed)
        return change.objects.forget_unreferenced(keys)


def discard_unpublished(parts: StoreContext, key: str, patience: float = BUSY_SECONDS) -> bool:
    """Delete an object that was put in place for a publication that did not happen; whether it is
    gone, or somebody has published it meanwhile.

    Raises `BusyError` where others write for longer than `patience` seconds.
    """
    with parts.catalog.writing(patience) as change:
        return _delete_object(parts, key, change)


def discard_strays(parts: StoreContext, keys: Iterable[str]) -> None:
    """Delete objects that nothing has recorded, unless somebody publishes them meanwhile.

    Those that may not be deleted stay.
    """
    _in_batches(parts, [partial(_delete_object, parts, key) for key in keys])


def discard_failed(parts: StoreContext, key: str, patience: float = BUSY_SECONDS) -> None:
    """`discard_unpublished` while the error is on its way because of which nothing was published.

    That error is what counts: what cannot be deleted now is left for `vfsd gc`.
    """
    try:
        discard_unpublished(parts, key, patience)
    except (OSError, StoreError) as error:
        _log.warning("object %s could not be deleted, `vfsd gc` does it: %s", key, error)


def _in_batches(parts: StoreContext, deletions: Sequence[Callable[[Transaction], object]]) -> None:
    done = 0
    while done < len(deletions):
        with parts.catalog.writing() as change:
            began = time.monotonic()
            for delete in deletions[done : done + _AT_ONCE]:
                try:
                    delete(change)
                except STAYS as error:
                    _log.warning("%s", error)
                done += 1
                if time.monotonic() - began > _AT_ONCE_SECONDS:
                    break
        if done < len(deletions):
            time.sleep(min(_REST_SECONDS, time.monotonic() - began))


def _delete_object(parts: StoreContext, key: str, change: Transaction) -> bool:
    """Unless somebody has published it meanwhile; whether it was deleted."""
    if change.objects.is_needed(key):
        return False
    parts.objects.delete(key)
    return True


def _delete_published(parts: StoreContext, key: str, change: Transaction) -> None:
    """As `_delete_object`, where it was published before: what comes of a recording goes for good.

    Of one that never was, the name on its way is what is left of it.
    """
    if not change.objects.is_needed(key):
        parts.objects.drop_other_names(key)
        parts.objects.delete(key)


def _delete_private(parts: StoreContext, ino: int, change: Transaction) -> None:
    if not _exists(change, ino):
        remove(parts.directory.spool_file(ino))


def _exists(change: Transaction, ino: int) -> bool:
    try:
        change.tree.node(ino)
    except NotFoundError:
        return False
    return True
