"""Publishes closed files in a store that several hosts share: uploads them, then changes the row.

The close of the last writer waits for it, so that other hosts see all bytes when it returns.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from vfsd.core.model import FileState, Node
from vfsd.errors import LeaseLostError, UnreachableError, VfsdError
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.open_inodes import OpenInode, OpenInodes
from vfsd.mount.fs.posix import os_error
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import classify_file, reject_by_header
from vfsd.write.shared_files import (
    SentFile,
    discard_sent,
    keep_unpublished,
    may_be_small,
    record_sent,
    remove_stray,
    send_file,
)

# How long uploads fail at once after one found that the bucket does not answer.
_SILENT_SECONDS = 5.0
_ATTEMPTS = 3


class Publisher:
    """Publishes private files of open inodes. Thread-safe."""

    def __init__(self, context: StoreContext, names: DentryCache, open_inodes: OpenInodes) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes
        self._silent_until = 0.0  # by `time.monotonic`

    def send(self, inode: OpenInode) -> None:
        """Publish a file, unless it has a writer, for instance one that has continued since.

        Raises `OSError` (EIO) if another host has taken the file over.
        """
        assert inode.sending is not None
        with inode.sending:
            for attempt in range(_ATTEMPTS):
                node = self._names.node_if_any(inode.ino)
                if node is None or not node.nlink:
                    return
                if inode.dirty and self._is_taken(inode, node):
                    self._lose(inode, node)
                if inode.closing < inode.writers:
                    return
                if not self._is_new(node):
                    self._drop_private(inode)
                    return
                try:
                    self._send_once(inode, node)
                except LeaseLostError:
                    if attempt + 1 == _ATTEMPTS:
                        raise
                else:
                    return

    def _send_once(self, inode: OpenInode, node: Node) -> None:
        path = self._context.directory.spool_file(node.ino)
        self._open_inodes.open(inode)  # its descriptor outlives the name
        stamp = inode.stamp
        verdict = reject_by_header(path) or classify_file(self._context, path)
        if time.monotonic() < self._silent_until and not may_be_small(path, verdict):
            raise UnreachableError("the bucket has just not answered another upload")
        try:
            sent = send_file(self._context, path, verdict)
        except UnreachableError:
            self._silent_until = time.monotonic() + _SILENT_SECONDS
            raise
        is_recorded = False
        try:
            with inode.lock:
                if inode.stamp == stamp and inode.closing >= inode.writers:
                    is_recorded = self._record_sent(inode, node, path, sent)
        finally:
            if not is_recorded:
                discard_sent(sent)

    def _drop_private(self, inode: OpenInode) -> None:
        """Delete the private file of a published file, if it is still there."""
        path = self._context.directory.spool_file(inode.ino)
        if not inode.dirty and path.exists():
            with inode.lock:
                if not inode.dirty:
                    remove_stray(self._context, inode.ino, path)

    def _record_sent(self, inode: OpenInode, node: Node, path: Path, sent: SentFile) -> bool:
        """Publish a file that was sent, and delete its private file.

        Return False if it was removed. Raises EIO if another host has taken it over.
        """
        lease = self._context.catalog.lease
        found = os.stat(path)
        try:
            with self._names.changing() as change:
                change.touch(node.ino)
                now = change.tree.nodes([node.ino]).get(node.ino)
                is_taken = now is not None and (
                    now.generation != node.generation or not self._is_new(now)
                )
                if now is not None and not is_taken:
                    change.tree.alter(
                        node.ino,
                        size=found.st_size,
                        mtime_ns=found.st_mtime_ns,
                        ctime_ns=max(now.ctime_ns, found.st_ctime_ns),
                    )
                    record_sent(change.transaction, now, sent)
                    if lease is not None and inode.is_reserved:
                        change.transaction.homes.free_file(node.ino, lease.mount)
        except UnreachableError:
            # It may have been recorded. The next write looks, and copies the bytes if so.
            inode.dirty = False
            raise
        if now is None:
            return False
        if is_taken:
            self._lose(inode, now)
        self._open_inodes.published(inode)
        path.unlink(missing_ok=True)
        return True

    def _is_taken(self, inode: OpenInode, node: Node) -> bool:
        """Return whether another host has changed a file since this one began to write it."""
        known = inode.last_known
        return (known is not None and known.generation != node.generation) or (
            self._context.is_elsewhere(node)
        )

    def _lose(self, inode: OpenInode, node: Node) -> NoReturn:
        """Keep the bytes of a file that another host has taken over. Always raises `OSError`."""
        with inode.lock:
            inode.is_lost, inode.dirty, inode.is_reserved = True, False, False
            path = self._context.directory.spool_file(inode.ino)
            with suppress(OSError, VfsdError):
                keep_unpublished(self._context, node, path)
        raise os_error(errno.EIO)

    def _is_new(self, node: Node) -> bool:
        """Return whether a file of this home is to be published."""
        is_new = node.state is FileState.SPOOLED and node.nlink > 0
        return is_new and not self._context.is_elsewhere(node)
