"""Cleans up after processes that died: classifies spooled files, deletes orphaned inodes and
leftover temporary files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import FileState, Node
from vfsd.disk.safe_open import STAYS
from vfsd.disk.store_layout import fsync_path
from vfsd.disk.tempfiles import delete_file as take_file_away
from vfsd.disk.tempfiles import is_locked
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import AcceptedVideo, classify_file, file_version, publish_verdict
from vfsd.write.partial_files import UnfinishedRecording, unfinished_recordings
from vfsd.write.pending_object import pending_own_file

_log = logging.getLogger(__name__)


def classify_spooled_file(parts: StoreContext, node: Node) -> Node | None:
    """Classify a spooled file that has no writer, and publish the verdict.

    Returns the updated node, or None if the file was changed in the meantime.
    """
    spool = parts.directory.spool_file(node.ino)
    before = spool.stat()
    verdict = classify_file(parts, spool)
    if isinstance(verdict, AcceptedVideo):
        fsync_path(spool)  # the catalog is not locked yet, so this may take a while
    with ExitStack() as arriving, parts.catalog.writing() as change:
        now = change.tree.nodes([node.ino]).get(node.ino)
        if now is None or (now.state, now.generation) != (FileState.SPOOLED, node.generation):
            return None
        found = spool.stat()
        if file_version(found) != file_version(before):
            return None
        if isinstance(verdict, AcceptedVideo):
            # Only now is it certain that these are the bytes that were hashed.
            own = pending_own_file(parts, spool, verdict.digest, verdict.size)
            arriving.enter_context(own).ensure_stored()
        change.tree.update(node.ino, size=found.st_size, mtime_ns=found.st_mtime_ns)
        publish_verdict(change, node, verdict)
        settled = change.tree.node(node.ino)
    if settled.state is FileState.VIDEO:
        parts.catalog.sync()  # the private name must not go before the new one is durable
        with parts.catalog.writing() as change:
            now = change.tree.nodes([node.ino]).get(node.ino)
            if now is None or now.state is FileState.VIDEO:  # otherwise it has a new writer
                spool.unlink(missing_ok=True)
    return settled


def delete_orphans(change: Transaction) -> int:
    """Delete files that lost their name while they were open, and return their number.

    Only for a store that is not mounted.  A file whose name was taken for a rename over it gets its
    name back if the rename never came and the directory still exists.  A file under a hold must not
    be deleted and gets a name at the top of the store.
    """
    now = time.time_ns()
    orphans = change.tree.orphans()
    parents = change.tree.nodes(former[0] for _, former in orphans if former is not None)
    for ino, former in orphans:
        if former is not None and former[0] in parents and change.tree.lookup(*former) is None:
            change.tree.adopt_orphan(ino, *former, now_ns=now)
        elif change.retention.is_held(ino):
            name = unused_name(change, ROOT, f"held-{ino}")
            change.tree.adopt_orphan(ino, ROOT, name, now_ns=now)
        else:
            change.tree.delete(ino)
    return len(orphans)


def unused_name(seen: Transaction, directory: int, wanted: str) -> str:
    """Return a name that is unused in a directory: `wanted`, or one of `numbered_names`."""
    return next(
        name for name in numbered_names(wanted) if seen.tree.lookup(directory, name) is None
    )


def numbered_names(name: str) -> Iterator[str]:
    """Yield a name, then the same name with `.1`, `.2` and so on."""
    yield name
    for number in count(1):
        yield f"{name}.{number}"


def find_leftovers(
    parts: StoreContext, *, but: Sequence[UnfinishedRecording] | None = None
) -> list[Path]:
    """Return files without a writer or an owner.

    These are objects, files next to the catalog, and copies by a mount or a backup.  The files of
    recordings are excluded: those of `but`, by default of all recordings.
    """
    kept = {one.path for one in (unfinished_recordings(parts) if but is None else but)}
    own = [path for path in parts.objects.leftovers() if parts.objects.main_file(path) not in kept]
    beside = [*parts.directory.temporary_files(), *parts.directory.spool_copies()]
    return [*own, *(path for path in beside if not is_locked(path))]


def delete_leftover(parts: StoreContext, path: Path) -> bool:
    """Delete a leftover file; return False if it is in use by now.

    Raises `IntegrityError` for a directory that is not empty, `OSError`.
    """
    if path.parent == parts.directory.objects_tmp:
        return parts.objects.delete_temporary(path)
    return take_file_away(path)


def delete_leftovers(parts: StoreContext, left: Sequence[Path]) -> list[Path]:
    """Delete leftover files and return the deleted ones; others are in use or cannot be deleted."""
    gone = []
    for path in left:
        try:
            if delete_leftover(parts, path):
                gone.append(path)
        except STAYS as error:
            _log.warning("%s", error)
    return gone
