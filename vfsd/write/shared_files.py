"""Publishes private files for other hosts, in stores with a bucket and a catalog on a server.

Such a store has an object in the bucket for each file, video or not; files of up to `SMALL_BYTES`
that are not videos are in the catalog.  `send_file` uploads and needs no lock; `record_sent` is
part of a transaction.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vfsd.catalog import Transaction
from vfsd.core.model import ByteLocation, FileState, Node
from vfsd.disk.checksums import BlockChecksums
from vfsd.disk.object_store import digest_file
from vfsd.disk.safe_open import remove
from vfsd.disk.store_layout import fsync_path
from vfsd.errors import VfsdError
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import (
    AcceptedVideo,
    PendingObject,
    RejectedFile,
    Verdict,
    publish_verdict,
)

SMALL_BYTES = 1 << 14
"""Larger files are objects: a request for a small one costs more than its bytes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that other hosts can read once it is recorded."""

    verdict: Verdict
    data: bytes | None = None  #: all bytes of a small file
    sums: BlockChecksums | None = None  #: of an object
    arrival: PendingObject | None = None  #: that object, in the bucket by now


def may_be_small(path: Path, verdict: Verdict) -> bool:
    """Return whether the bytes of a file go to the catalog."""
    return isinstance(verdict, RejectedFile) and path.stat().st_size <= SMALL_BYTES


def send_file(parts: StoreContext, path: Path, verdict: Verdict) -> SentFile:
    """Upload a file that is not written, unless its bytes are there.

    Raises `UnreachableError`, `OSError`.
    """
    if may_be_small(path, verdict):
        return SentFile(verdict, path.read_bytes())
    if isinstance(verdict, AcceptedVideo):
        key, size, sums = verdict.digest, verdict.size, verdict.sums
    else:
        key, size, sums = digest_file(path)
    # Not by a second name among the objects: a program may write the file in the meantime.
    arrival = PendingObject(parts, key, size, lambda: None, source=path)
    arrival.upload()
    return SentFile(verdict, None, sums, arrival)


def record_sent(change: Transaction, node: Node, sent: SentFile) -> None:
    """Make a spooled file that was sent a video, or a stored file.

    Raises `LeaseLostError`: send it again.
    """
    if isinstance(sent.verdict, AcceptedVideo):
        publish_verdict(change, node, sent.verdict, sent.arrival)
        return
    if sent.arrival is not None and sent.sums is not None:
        sent.arrival.record(change)
        change.integrity.put_checksums(ByteLocation(sent.arrival.key, None), sent.sums)
    change.videos.remove(node.ino)  # the file may have been a video before it was written
    change.tree.put_small_file(node.ino, sent.data)
    change.tree.alter(
        node.ino,
        state=FileState.STORED,
        object_key=None if sent.arrival is None else sent.arrival.key,
        reason=sent.verdict.reason,
    )


def discard_sent(sent: SentFile) -> None:
    """Count as garbage what was uploaded, unless it is recorded after all.  Never fails."""
    if sent.arrival is not None:
        with suppress(VfsdError, OSError):  # the end of its lease does the same
            sent.arrival.withdraw()


def open_small(parts: StoreContext, node: Node) -> int:
    """Return a descriptor of a copy, in memory, of a stored file without an object.

    Raises `FileNotFoundError` if it was written or removed since `node` was read.
    """
    with parts.catalog.reading() as seen:
        data = seen.tree.small_file(node.ino)
    if len(data) != node.size:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"inode {node.ino}")
    fd = os.memfd_create(f"vfsd-{node.ino}", os.MFD_CLOEXEC)
    while data:
        data = data[os.write(fd, data) :]
    return fd


def publish_spooled(parts: StoreContext, node: Node, verdict: Verdict) -> Node | None:
    """Publish a spooled file without a writer, in a store that is not mounted.

    Return the updated node, or None if it was changed in the meantime.
    """
    path = parts.directory.spool_file(node.ino)
    sent = send_file(parts, path, verdict)
    try:
        settled = _record_spooled(parts, node, path, sent)
    except BaseException:
        discard_sent(sent)
        raise
    if settled is None:
        discard_sent(sent)
    else:
        path.unlink(missing_ok=True)
    return settled


def _record_spooled(parts: StoreContext, node: Node, path: Path, sent: SentFile) -> Node | None:
    with parts.catalog.writing() as change:
        now = change.tree.nodes([node.ino]).get(node.ino)
        if now is None or (now.state, now.generation, now.home) != (
            FileState.SPOOLED,
            node.generation,
            node.home,
        ):
            return None
        found = path.stat()
        change.tree.alter(node.ino, size=found.st_size, mtime_ns=found.st_mtime_ns)
        record_sent(change, now, sent)
        return change.tree.node(node.ino)


def remove_stray(parts: StoreContext, ino: int, path: Path) -> bool:
    """Remove a private file that its inode does not need, and return whether it was deleted.

    Where another host has taken the file over, these bytes were never published: they are kept.
    Raises as `vfsd.disk.safe_open.remove`.
    """
    if parts.catalog.home is not None:
        with parts.catalog.reading() as seen:
            node = seen.tree.nodes([ino]).get(ino)
            small = seen.tree.small_file(ino) if node is not None and not node.object_key else b""
        if node is not None and not _has_bytes(node, path, small):
            keep_unpublished(parts, node, path)
            return False
    remove(path)
    return True


def _has_bytes(node: Node, path: Path, small: bytes) -> bool:
    """Return whether a file has the bytes that are published, or none."""
    size = path.stat().st_size
    if not size:
        return True
    if node.object_key is not None:
        return node.size == size and digest_file(path).key == node.object_key
    return node.state is FileState.STORED and size == len(small) and path.read_bytes() == small


def keep_unpublished(parts: StoreContext, node: Node, path: Path) -> Path | None:
    """Move bytes that cannot be published any more to the folder `kept` of the home.

    Return the new path, or None if the file is gone.
    """
    with parts.catalog.reading() as seen:
        name = os.path.basename(seen.tree.display_path(node.ino))
    folder = parts.directory.kept
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / f"{node.ino}-{secrets.token_hex(4)}-{name[:150]}"
    try:
        path.rename(kept)
    except FileNotFoundError:
        return None
    fsync_path(folder)
    _log.error("another host has taken over %r: the bytes of this one are in %s", name, kept)
    return kept
