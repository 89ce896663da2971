"""The bytes of open files: one descriptor per open inode, shared by its handles.

`PassthroughFile` is a descriptor that the kernel may read directly.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vfsd.core.model import ByteLocation, FileState, Node
from vfsd.disk.checksums import ChecksummedFile
from vfsd.disk.external_files import open_linked
from vfsd.disk.safe_open import STORED_FLAGS
from vfsd.disk.store_layout import fsync_path
from vfsd.disk.tempfiles import NewFile, unlock
from vfsd.errors import NotFoundError, VfsdError
from vfsd.mount.fs import posix
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction
from vfsd.mount.fs.posix import Attributes, copy_start, is_private, os_error
from vfsd.storage.context import StoreContext

_log = logging.getLogger(__name__)

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# How long a closed file counts as in use.
_RECENT_SECONDS = 1.0
_MAX_CLOSED = 1000
_COPY_BYTES = 1 << 20
_NO_GUARD = nullcontext()
CAPABILITIES = b"security.capability"
"""The extended attribute with the capabilities of a program; see capabilities(7)."""


class PassthroughFile(NamedTuple):
    """An inode and a descriptor that the kernel may read directly."""

    ino: int
    fd: int | None  #: of an immutable file with these bytes; None: there is none
    version: str | None = None  #: of the bytes, for an inode that may have others later


class BackingKind(Enum):
    """Where the bytes of an open inode are."""

    OBJECT = "object"  #: an object of the store, never changed
    REMOTE = "remote"  #: an object in a bucket; `fd` has no bytes
    LINKED = "linked"  #: a file indexed in place, always compared with its checksums
    CATALOG = "catalog"  #: bytes in the catalog; `fd` is a copy in memory
    PRIVATE = "private"  #: the inode's private file, may be written


class OpenInode:
    """The bytes of one inode while it is open.

    `fd` may be read without a lock: replaced descriptors are closed only with the last handle. All
    other attributes change under `lock`.
    """

    __slots__ = (
        "backing",
        "checksums",
        "closing",
        "dirty",
        "fd",
        "flushed",
        "guard",
        "handles",
        "has_capabilities",
        "ino",
        "is_lost",
        "is_reserved",
        "last_known",
        "lock",
        "pins",
        "replaced_fds",
        "sending",
        "setid",
        "shown_ctime",
        "silent_until",
        "stamp",
        "synced",
        "writers",
    )

    def __init__(self, ino: int, *, is_shared: bool = False) -> None:
        """`is_shared`: other hosts can read the file after its close."""
        self.ino = ino
        self.lock = threading.RLock()
        #: Held during each write, since a close publishes the bytes while handles are open.
        self.guard: AbstractContextManager[object] = self.lock if is_shared else _NO_GUARD
        self.sending = threading.Lock() if is_shared else None  #: held while it is published
        self.fd = -1
        self.replaced_fds: list[int] = []
        self.pins = 0  #: handles and other users that need this object
        self.handles = 0
        self.writers = 0  #: handles that may write
        self.closing = 0  #: those of them without a write since their last flush, if shared
        self.is_reserved = False  #: this mount is its only writer; see `vfsd.catalog.homes`
        self.is_lost = False  #: another host has taken it over: what was written is not published
        self.backing = BackingKind.OBJECT  #: the kind of file behind `fd`
        self.dirty = False  #: the row says that the bytes change; writes need no more steps
        self.setid = False  #: the mode has set-user-ID or set-group-ID; a write clears them
        self.has_capabilities = False  #: it has file capabilities; every write removes them
        self.synced = False  #: the private file's name survives a power cut
        self.shown_ctime: int | None = (
            None  #: shown instead of the ctime that linking into the store sets
        )
        self.stamp = 0  #: changes with each write
        self.flushed = 0  #: the stamp at the last flush
        self.last_known: Node | None = None
        self.checksums: ChecksummedFile | None = None  #: of a video: reads `fd` and compares
        self.silent_until = 0.0  #: by `time.monotonic`: until then, reads of a bucket fail at once

    @property
    def is_immutable(self) -> bool:
        """Whether `fd` is an object of the store."""
        return self.backing is BackingKind.OBJECT

    @property
    def is_remote(self) -> bool:
        """Whether the bytes are in a bucket, and are read through `checksums` only."""
        return self.backing is BackingKind.REMOTE

    @property
    def is_private(self) -> bool:
        """Whether `fd` is the inode's private file, which may be written once the row says so."""
        return self.backing is BackingKind.PRIVATE

    @property
    def is_about_to_be_released(self) -> bool:
        """Whether all writes have been flushed. Usually the writers are closing then."""
        return self.writers > 0 and self.dirty and self.flushed == self.stamp


class OpenInodes:
    """All open inodes, by number. Thread-safe."""

    def __init__(
        self,
        context: StoreContext,
        names: DentryCache,
        discard_objects: Callable[[Collection[str]], None],
    ) -> None:
        self._context = context
        self._names = names
        self._discard_objects = discard_objects
        self._spool = os.fspath(context.directory.spool)
        self._is_shared = context.is_shared
        self._open: dict[int, OpenInode] = {}
        self._closed: dict[int, float] = {}
        self._guard = threading.Lock()
        self._stamps = itertools.count(1)

    # -- open handles

    def is_open(self, ino: int) -> bool:
        inode = self._open.get(ino)
        return inode is not None and inode.handles > 0

    def is_in_use(self, ino: int) -> bool:
        """Return whether the inode is open, or was within the last second."""
        closed = self._closed.get(ino)
        return self.is_open(ino) or (
            closed is not None and time.monotonic() - closed < _RECENT_SECONDS
        )

    def peek(self, ino: int) -> OpenInode | None:
        """Return the inode if it is open. It may be closed at any moment."""
        return self._open.get(ino)

    def pin(self, ino: int) -> OpenInode:
        """Return the inode, open or not. The caller must `unpin` it."""
        with self._guard:
            inode = self._open.get(ino)
            if inode is None:
                inode = self._open[ino] = OpenInode(ino, is_shared=self._is_shared)
            inode.pins += 1
        return inode

    def unpin(self, inode: OpenInode) -> None:
        """Undo `pin`. The last one closes the descriptors."""
        with self._guard:
            inode.pins -= 1
            if inode.pins:
                return
            del self._open[inode.ino]
        if inode.is_remote and inode.checksums is not None:
            inode.checksums.close()
        for fd in (inode.fd, *inode.replaced_fds):
            if fd >= 0:
                os.close(fd)

    def drop_aliases(self, ino: int) -> None:
        """Expire the aliases of a file, unless it is open: the last handle needs them."""
        with self._guard:
            if not self.is_open(ino):
                self._names.drop_aliases(ino)

    def add_handle(self, inode: OpenInode, *, writing: bool) -> None:
        """Count one more handle."""
        if writing:
            with inode.lock:  # no file with writers is published
                inode.writers += 1
        with self._guard:
            inode.handles += 1

    def remove_handle(
        self, inode: OpenInode, *, writing: bool, closing: bool = False
    ) -> tuple[bool, bool]:
        """Count one handle less. Return (was the last handle, was the last writer).

        `closing`: the handle is one of `OpenInode.closing`.

        The tree must not change while the last handle goes: an unlink sees the file either open or
        closed. Other handles take no lock of the tree. The kernel does not wait for RELEASE either,
        and blocked releases would pile up where many files are read and names change often.
        """
        if not writing and self._removed_unless_last(inode):
            return False, False
        with inode.lock:
            if writing:
                inode.writers -= 1
            inode.closing -= closing
            was_writer = writing and inode.writers == 0
            if was_writer:
                inode.dirty = False
            with self._names.hold_changes(), self._guard:
                inode.handles -= 1
                if inode.handles == 0:
                    self._record_closed(inode.ino)
                return inode.handles == 0, was_writer

    def _removed_unless_last(self, inode: OpenInode) -> bool:
        """Count a closed handle out if others remain; return whether that was so."""
        with self._guard:
            if inode.handles == 1:
                return False
            inode.handles -= 1
            return True

    @contextmanager
    def pinned(self, ino: int) -> Iterator[OpenInode]:
        inode = self.pin(ino)
        try:
            yield inode
        finally:
            self.unpin(inode)

    # -- bytes

    def open(self, inode: OpenInode) -> None:
        """Open the descriptor of a pinned inode.

        Raises `OSError`: ENOENT when the inode is gone, EIO when its bytes are missing.
        """
        if inode.fd >= 0 and not self._is_outdated(inode):
            return
        with inode.lock:
            if inode.fd >= 0 and not self._is_outdated(inode):
                return
            node = self._names.node_if_any(inode.ino)
            if node is not None and self._context.is_elsewhere(node):
                node = self._names.reread(inode.ino)  # it may just have become a video
            try:
                fd, checksums, backing = self._open_node(node)
            except FileNotFoundError:
                # It may just have become a video, or ceased to be one.
                node = self._names.reread(inode.ino)
                try:
                    fd, checksums, backing = self._open_node(node)
                except FileNotFoundError as error:
                    if node is None:
                        raise
                    _log.error(
                        "the bytes of %s are missing: %s does not exist; run `vfsd fsck`",
                        self._names.log_name(node.ino),
                        error.filename,
                    )
                    raise os_error(errno.EIO) from error
            assert node is not None
            inode.backing = backing
            inode.setid = bool(node.mode & 0o6000)
            inode.last_known = node
            if inode.fd >= 0:
                inode.replaced_fds.append(inode.fd)
            # In this order: readers that find no checksums read `fd`, and look again.
            inode.checksums = checksums
            inode.fd = fd

    def _is_outdated(self, inode: OpenInode) -> bool:
        """Return whether another host has changed the bytes since `fd` was opened."""
        if not self._is_shared or inode.dirty:
            return False
        node, known = self._names.node_if_any(inode.ino), inode.last_known
        return node is not None and known is not None and node.generation != known.generation

    def reserve(self, inode: OpenInode) -> None:
        """Make this mount the only writer of a pinned inode, until `unreserve`.

        Raises EBUSY if another host writes it, and the errors of the catalog.
        """
        lease = self._context.catalog.lease
        if lease is None:
            return
        with inode.lock:
            if inode.is_reserved or inode.dirty:
                return
            if not lease.take_file(inode.ino):
                raise os_error(errno.EBUSY)
            inode.is_reserved = True
        self._names.require_current()  # another host may have written it just before

    def unreserve(self, inode: OpenInode) -> None:
        """Let other hosts write an inode if all writers are closing."""
        lease = self._context.catalog.lease
        with inode.lock:
            if lease is None or not inode.is_reserved or inode.closing < inode.writers:
                return
            inode.is_reserved = False
            lease.free_file(inode.ino)

    def take_over(self, inode: OpenInode, node: Node) -> None:
        """Replace the bytes of a file by none that a mount was writing which is gone.

        Raises EBUSY if it is not, and for a file that was published.
        """
        with self._context.catalog.reading() as seen:
            if node.state is not FileState.SPOOLED or seen.homes.is_live(node.home):
                raise os_error(errno.EBUSY)
        with inode.lock:
            self._copy(inode, node, 0)
            inode.dirty = True
            inode.is_lost = False
            inode.setid = bool(node.mode & 0o6000)
            inode.last_known = self._names.node_if_any(inode.ino) or node

    def published(self, inode: OpenInode) -> None:
        """Record that the bytes that `fd` has are those of the row. The caller has the lock."""
        inode.dirty = False
        inode.is_reserved = False
        inode.backing = BackingKind.OBJECT
        inode.last_known = self._names.node_if_any(inode.ino) or inode.last_known

    def create_private(self, ino: int) -> int:
        """Create and open the private file of a new inode. Call it before the row is committed."""
        path = f"{self._spool}/{ino}"
        try:
            return os.open(path, _CREATE, 0o600)
        except FileExistsError:  # left by an inode that was never committed
            os.unlink(path)
            return os.open(path, _CREATE, 0o600)

    def attach_new(self, inode: OpenInode, node: Node, fd: int) -> None:
        """Give a pinned inode the descriptor of `create_private`.

        Another thread may have opened the new name before; then `fd` is closed.
        """
        with inode.lock:
            if inode.fd < 0:
                inode.fd = fd
            else:
                os.close(fd)
            inode.backing = BackingKind.PRIVATE
            inode.dirty = True
            inode.setid = bool(node.mode & 0o6000)
            inode.last_known = node
            self.mark_written(inode)

    def mark_written(self, inode: OpenInode) -> None:
        """Record a change of the bytes. Call it after every write."""
        inode.stamp = next(self._stamps)

    def make_writable(self, inode: OpenInode, *, keep_bytes: int | None = None) -> None:
        """Make `fd` writable, and update the row first.

        The first `keep_bytes` of a video are copied; None copies all. Raises `OSError`: ESTALE
        where another process has deleted the video or replaced its original since it was opened.
        Written bytes would be lost.
        """
        with inode.lock:
            if inode.dirty:
                return
            if inode.is_lost:
                raise os_error(errno.EIO)
            node = self._names.node_if_any(inode.ino)
            if self._is_outdated(inode) and keep_bytes != 0:
                raise os_error(errno.ESTALE)
            found = os.fstat(inode.fd)
            is_own = inode.is_private and self._is_own(inode, node, found)
            if is_own and not _may_be_written(inode.fd):
                self._reopen(inode, found)
            if not is_own or (node is not None and not self._mark_changing(inode, node, None)):
                keeps_all = inode.is_private or keep_bytes is None
                size = found.st_size
                if inode.is_remote and inode.checksums is not None:
                    size = inode.checksums.size
                self._copy(inode, node, size if keeps_all else min(keep_bytes or 0, size))
            inode.dirty = True
            if self._is_shared and node is not None:
                inode.last_known = self._names.node_if_any(inode.ino) or inode.last_known
            inode.has_capabilities = node is not None and CAPABILITIES in self._names.xattrs(
                node.ino
            )
            inode.synced = False
            inode.shown_ctime = None

    def sync(self, inode: OpenInode, *, data_only: bool) -> None:
        """Sync the bytes, and the name of the private file, to the disk."""
        if not inode.is_remote:
            (os.fdatasync if data_only else os.fsync)(inode.fd)
        if inode.is_private and not inode.synced:
            fsync_path(self._context.directory.spool)
            inode.synced = True

    # -- attributes

    def attributes(self, node: Node) -> Attributes:
        """Return the attributes of a node of any type, open or not. Raises ESTALE if it is gone."""
        if not is_private(node) or self._context.is_elsewhere(node):
            return posix.from_row(node)
        try:
            # Not pathlib: a listing calls this thousands of times.
            found = os.stat(f"{self._spool}/{node.ino}")
        except FileNotFoundError:
            now = self._names.reread(node.ino)  # it may just have become a video
            if now is None:
                raise os_error(errno.ESTALE) from None
            return posix.from_row(now)
        inode = self._open.get(node.ino)
        shown = None if inode is None else inode.shown_ctime
        return posix.from_private(node, found, shown)

    def attributes_if_open(self, ino: int) -> Attributes | None:
        """Return the attributes of an inode that is open; None if it is not."""
        if not self.is_open(ino):
            return None
        with self.pinned(ino) as inode:
            return self.attributes_of_open(inode) if inode.fd >= 0 else None

    def attributes_of_open(self, inode: OpenInode) -> Attributes:
        """Return the attributes of an open inode, even if another process deleted it."""
        node = self._names.node_if_any(inode.ino)
        if node is not None and not is_private(node):
            return posix.from_row(node)
        if node is None:
            assert inode.last_known is not None
            node = replace(inode.last_known, nlink=0)
            if inode.is_remote:
                return posix.from_row(node)
        found = os.fstat(inode.fd)
        return posix.from_private(node, found, inode.shown_ctime)

    # -- internals

    def _record_closed(self, ino: int) -> None:
        now = time.monotonic()
        if len(self._closed) >= _MAX_CLOSED:
            self._closed = {
                each: at for each, at in self._closed.items() if now - at < _RECENT_SECONDS
            }
        self._closed[ino] = now

    def _open_node(self, node: Node | None) -> tuple[int, ChecksummedFile | None, BackingKind]:
        """Return a descriptor of the bytes, for videos their checksums, and where the bytes are."""
        if node is None:
            raise os_error(errno.ENOENT)
        if self._context.is_elsewhere(node):
            raise os_error(errno.EIO)
        if is_private(node):
            path = f"{self._spool}/{node.ino}"  # pathlib would take as long as open(2)
            if not self._context.read_only:
                try:
                    return os.open(path, os.O_RDWR | STORED_FLAGS), None, BackingKind.PRIVATE
                except OSError as error:
                    if error.errno != errno.EROFS:
                        raise
            return os.open(path, os.O_RDONLY | STORED_FLAGS), None, BackingKind.PRIVATE
        if node.state is FileState.STORED and node.object_key is None:
            from vfsd.write.shared_files import open_small  # most stores have none

            return open_small(self._context, node), None, BackingKind.CATALOG
        location = ByteLocation(node.object_key, node.link_path)
        originals = self._context.originals
        if not self._context.objects.is_local and originals.is_remote(location):
            checksums = originals.open_at(location)
            # A descriptor says that the inode is open; this one has no bytes.
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), checksums, BackingKind.REMOTE
        stored = originals.path_at(location)
        if node.link_path is not None:
            fd, backing = open_linked(stored, self._context.directory.top), BackingKind.LINKED
        else:
            fd, backing = os.open(stored, os.O_RDONLY | STORED_FLAGS), BackingKind.OBJECT
        return fd, originals.opened(location, fd), backing

    def _reopen(self, inode: OpenInode, found: os.stat_result) -> None:
        """Reopen a private file for writing that was opened while its disk was read-only.

        Raises `OSError`: EROFS where it still is, ESTALE for another file.
        """
        fd = os.open(f"{self._spool}/{inode.ino}", os.O_RDWR | STORED_FLAGS)
        if not os.path.samestat(os.fstat(fd), found):
            os.close(fd)
            raise os_error(errno.ESTALE)
        inode.replaced_fds.append(inode.fd)
        inode.fd = fd

    def _is_own(self, inode: OpenInode, node: Node | None, found: os.stat_result) -> bool:
        """Return whether only this inode uses the bytes of its private file.

        A second hard link means that the file is, or was about to become, an object. The same holds
        where a copy has replaced the file and the row was not updated.
        """
        if found.st_nlink > 1 or (node is not None and not is_private(node)):
            return False
        try:
            return os.path.samestat(found, os.stat(f"{self._spool}/{inode.ino}"))
        except FileNotFoundError:
            return node is None  # with a row: it has just become an object

    def _copy(self, inode: OpenInode, node: Node | None, length: int) -> None:
        """Replace bytes that must not be written by a private copy.

        The copy is synced before the row changes. After that nothing references the source, and
        garbage collection may delete it.
        """
        if node is None:
            raise os_error(errno.ESTALE)
        with NewFile(partial(self._context.directory.new_spool_copy, inode.ino), mode=0o600) as new:
            fd = os.dup(new.file.fileno())
            try:
                if inode.checksums is not None:
                    length = inode.checksums.known(0, length)
                    # Damaged bytes must not get new checksums as if they were written.
                    inode.checksums.require(0, length)
                if inode.is_remote and inode.checksums is not None:
                    _copy_fetched(inode.checksums, fd, length)
                elif length:
                    copy_start(inode.fd, fd, length)
                before = self.attributes(node)
                os.utime(fd, ns=(before.atime_ns, before.mtime_ns))
                if length:  # an empty file has nothing to lose
                    os.fsync(fd)
                self._mark_changing(inode, node, str(new.path), is_kept=length > 0)
            except BaseException:
                os.close(fd)
                self._discard_private(inode.ino, self._context.directory.spool_file(inode.ino))
                raise
        unlock(fd)
        inode.replaced_fds.append(inode.fd)
        inode.fd = fd
        inode.checksums = None
        inode.backing = BackingKind.PRIVATE

    def _discard_private(self, ino: int, private: Path) -> None:
        """Delete a private file that the row does not reference, since its write failed."""
        with suppress(VfsdError, OSError):  # left to the next mount or `vfsd gc`
            node = self._names.reread(ino)
            if node is not None and not is_private(node):
                private.unlink(missing_ok=True)

    def _mark_changing(
        self, inode: OpenInode, node: Node, copy: str | None, *, is_kept: bool = False
    ) -> bool:
        """Record in the row that the bytes change.

        `copy` becomes the private file in the same transaction, and is synced if `is_kept`. Without
        a copy, return False and change nothing if the file has become a video.
        """
        with self._names.changing() as change:
            change.touch(node.ino)
            try:
                now = change.tree.node(node.ino)
            except NotFoundError:
                if copy is not None:
                    raise os_error(errno.ESTALE) from None
                return True  # deleted by another process; writes are lost with the handles
            is_reserved = self._may_write(change, inode, now, keeps=copy is None or is_kept)
            if copy is None and not is_private(now):
                return False
            change.transaction.retention.require_free(node.ino)
            if copy is not None:
                os.replace(copy, self._context.directory.spool_file(node.ino))
                if is_kept:
                    fsync_path(self._context.directory.spool)
            keys = change.objects_of(now)
            change.tree.update(
                node.ino,
                state=FileState.SPOOLED,
                generation=now.generation + 1,
                object_key=None,
                link_path=None,
                reason=None,
            )
            if now.state is FileState.VIDEO:
                change.transaction.videos.drop_physicals(node.ino)
            elif now.state is FileState.STORED:
                change.tree.put_small_file(node.ino, None)
        inode.is_reserved = is_reserved
        self._discard_objects(keys)
        return True

    def _may_write(
        self, change: TreeTransaction, inode: OpenInode, now: Node, *, keeps: bool
    ) -> bool:
        """Reserve an inode for this mount, if there may be others, in the transaction of its first
        write. Return whether it is reserved after the commit.

        Raises EBUSY if another host writes it, or has its only bytes, and ESTALE if it has other
        bytes than those that are open, unless none of them are kept (`keeps`).
        """
        if self._context.is_elsewhere(now):
            if keeps or now.state is not FileState.SPOOLED:
                raise os_error(errno.EBUSY)
            if change.transaction.homes.is_live(now.home):
                raise os_error(errno.EBUSY)
        lease = self._context.catalog.lease
        if lease is None:
            return False
        if not inode.is_reserved and not change.transaction.homes.take_file(now.ino, lease.mount):
            raise os_error(errno.EBUSY)
        known = inode.last_known
        if self._is_shared and keeps and known and known.generation != now.generation:
            raise os_error(errno.ESTALE)
        return True


def _copy_fetched(source: ChecksummedFile, fd: int, length: int) -> None:
    buffer = memoryview(bytearray(min(length, _COPY_BYTES)))
    at = 0
    while at < length:
        part = buffer[: source.readinto(buffer[: length - at], at)]
        while part:
            count = os.pwrite(fd, part, at)
            part, at = part[count:], at + count


def _may_be_written(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
