"""Open file handles and the operations on them.

`FileHandles` maps numbers to handles; `EnospcRetry` repeats a write after pending deletes have
freed space.

Writes land where the kernel sees them:

- For O_APPEND the kernel sends the offset that it believes to be the end, which is wrong after a
  rename or a write through another name. Such writes use RWF_APPEND, and if the bytes land
  elsewhere, the kernel drops its pages. Without this, 94 of 6,000 lines appended under two names
  were torn.
- After an asynchronous O_DIRECT write, the kernel keeps pages that other readers put into its cache
  before. So the mount does not ask for ``FUSE_CAP_ASYNC_DIO``: direct I/O completes before
  ``io_submit`` returns, and 4 KiB direct reads at queue depth 16 reach 5,700 a second instead of
  21,500. Invalidation by the daemon could deadlock.
- The daemon syncs writes that bypass the cache for O_SYNC, RWF_DSYNC and ``-o sync``, because the
  kernel does not.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck
from vfsd.disk.checksums import ChecksummedFile
from vfsd.disk.disk_reserve import require_reserve
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.errors import NoSpaceError, UnreachableError, VfsdError
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.directory_ops import DirectoryOperations
from vfsd.mount.fs.open_inodes import CAPABILITIES, OpenInode, OpenInodes
from vfsd.mount.fs.posix import Attributes, Caller, Place, fallocate, os_error
from vfsd.mount.fs.unlinked_files import CleanupThread, HiddenNames
from vfsd.mount.fs.view_dirs import Closeable, UploadHandle
from vfsd.storage.context import StoreContext

_log = logging.getLogger(__name__)

T = TypeVar("T")
_COPY_AT_ONCE = 1 << 26
# FALLOC_FL_PUNCH_HOLE and FALLOC_FL_COLLAPSE_RANGE of fallocate(2): these need no free space.
_FREES = 0x02 | 0x08
_MAY_WRITE = (os.O_WRONLY, os.O_RDWR)
# How long reads of a video fail at once after its bucket did not answer.
_SILENT_SECONDS = 1.0


class EnospcRetry:
    """Frees space when the disk is full, and repeats the failed operation."""

    def __init__(self, hidden_names: HiddenNames, cleanup: CleanupThread) -> None:
        self._hidden_names = hidden_names
        self._cleanup = cleanup

    @property
    def frees(self) -> int:
        """How many times space has been freed so far."""
        return self._cleanup.cleanups

    def run(self, action: Callable[[], T]) -> T:
        """Call `action`, and again if it failed for lack of space and some could be freed.

        `action` must change nothing when it fails.
        """
        frees = self.frees
        try:
            return action()
        except (OSError, NoSpaceError) as error:
            if not self.can_retry(error, frees):
                raise
        return action()

    def can_retry(self, error: OSError | NoSpaceError, frees: int) -> bool:
        """Free space after `error`; return whether another attempt may succeed.

        `frees` is the count before the failed attempt.
        """
        if error.errno not in NO_SPACE:
            return False
        if self._hidden_names.delete_closed():
            self._cleanup.clean_now()
        return self.frees != frees


Buffer = bytes | bytearray | memoryview


class ReadInto(Protocol):
    """Fills a buffer from an offset; see `Filesystem.readinto`."""

    def __call__(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None, /
    ) -> int: ...


class Handle(Protocol):
    """An open file of the tree or an open view."""

    @property
    def inode(self) -> OpenInode | None: ...

    @property
    def writable(self) -> bool: ...

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int: ...

    def attributes(self) -> Attributes: ...

    def seek(self, offset: int, whence: int) -> int: ...

    def close(self) -> None: ...


class FileHandle:
    """An open file of the tree."""

    __slots__ = ("_files", "inode", "is_closing", "is_privileged", "owners", "writable")

    def __init__(
        self, files: FileHandles, inode: OpenInode, *, writable: bool, is_privileged: bool
    ) -> None:
        self._files = files
        self.inode = inode
        self.writable = writable
        self.is_privileged = is_privileged
        self.is_closing = False  #: one of `OpenInode.closing`
        #: The processes that have written, if shared, by the kernel's numbers; None: unknown.
        self.owners: set[int] | None = set()

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        checksums = self.inode.checksums
        if checksums is None:
            fd = self.inode.fd
            if self.inode.checksums is None:
                return os.preadv(fd, (buffer,), offset)
            checksums = self.inode.checksums  # an open has replaced both: see `OpenInodes.open`
        if self.inode.is_remote:
            return self._read_remote(checksums, buffer, offset)
        return checksums.readinto(buffer, offset)

    def _read_remote(self, checksums: ChecksummedFile, buffer: memoryview, offset: int) -> int:
        if time.monotonic() < self.inode.silent_until:
            raise os_error(errno.EIO)
        try:
            return checksums.readinto(buffer, offset)
        except UnreachableError:
            # The kernel repeats a failed readahead at once, page by page: the program would wait
            # for each of them.
            self.inode.silent_until = time.monotonic() + _SILENT_SECONDS
            raise

    def attributes(self) -> Attributes:
        return self._files.attributes(self.inode)

    def seek(self, offset: int, whence: int) -> int:
        checksums = self.inode.checksums
        if self.inode.is_remote and checksums is not None:
            # Objects in a bucket have no holes.
            if not 0 <= offset < checksums.size:
                raise os_error(errno.ENXIO)
            return offset if whence == os.SEEK_DATA else checksums.size
        return os.lseek(self.inode.fd, offset, whence)

    def close(self) -> None:
        self._files.close(self)


class FileHandles:
    """All open files by handle number. An unknown number is EBADF.

    Reads take no lock. Writes take one only for the first write to an inode.
    """

    def __init__(
        self,
        context: StoreContext,
        names: DentryCache,
        namespace: DirectoryOperations,
        open_inodes: OpenInodes,
        classifier: Classifier,
        hidden_names: HiddenNames,
        enospc: EnospcRetry,
    ) -> None:
        self._context = context
        self._names = names
        self._namespace = namespace
        self._open_inodes = open_inodes
        self._classifier = classifier
        self._hidden_names = hidden_names
        self._enospc = enospc
        self._is_shared = context.is_shared
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)

    # -- opening and closing

    def open(self, node: Node, flags: int, caller: Caller) -> int:
        """Open a node and return its handle number.

        Raises `OSError`: EISDIR, ELOOP, EROFS, ENOENT when it was just deleted, EIO when its bytes
        are missing or in another home, EBUSY for writing the latter. Raises `HeldError` for writing
        to a video with a hold.
        """
        if node.is_dir:
            raise os_error(errno.EISDIR)
        if not node.is_file:
            raise os_error(errno.ELOOP if node.is_symlink else errno.ENXIO)
        writable = flags & os.O_ACCMODE in _MAY_WRITE
        if (writable or flags & os.O_TRUNC) and self._context.read_only:
            raise os_error(errno.EROFS)
        is_changed = writable or bool(flags & os.O_TRUNC)
        is_elsewhere = is_changed and self._context.is_elsewhere(node)
        if is_elsewhere and not flags & os.O_TRUNC:
            raise os_error(errno.EBUSY)
        if (writable or flags & os.O_TRUNC) and node.state is FileState.VIDEO:
            with self._context.catalog.reading() as seen:
                seen.retention.require_free(node.ino)
        opened = self._open_handle(node, caller, writable=writable, takes_over=is_elsewhere)
        number = self.add(opened)
        if flags & os.O_TRUNC and writable:
            try:
                self.truncate(number, 0)
            except BaseException:
                self.release(number)
                raise
            opened.owners = set()
        return number

    def create(self, path: Place, mode: int, caller: Caller) -> int:
        """Create a file, open for reading and writing. Raises `FileExistsError`."""
        node, fd = self._enospc.run(lambda: self._namespace.create(path, mode, caller))
        inode = self._open_inodes.pin(node.ino)
        self._open_inodes.attach_new(inode, node, fd)
        return self.add(self._new_handle(inode, caller, writable=True))

    def keep_video(self, video: Node, caller: Caller) -> Closeable:
        """Keep a video while a view of it is open, even after its last name is removed.

        The caller closes the result. The bytes are not opened: the renderer opens them when it
        needs them.
        """
        return self._new_handle(self._open_inodes.pin(video.ino), caller, writable=False)

    def add(self, handle: Handle) -> int:
        """Register a handle and return its number."""
        number = next(self._numbers)
        self._handles[number] = handle
        return number

    def handle(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise os_error(errno.EBADF) from None

    def is_upload(self, number: int) -> bool:
        """Return whether a handle is open on a view that is being written."""
        return isinstance(self._handles.get(number), UploadHandle)

    def expect(self, ino: int) -> None:
        """Tell open uploads of the view `ino` that it was truncated, so data must follow."""
        for handle in list(self._handles.values()):
            if isinstance(handle, UploadHandle) and handle.ino == ino:
                handle.expect()

    def note_owner(self, number: int, owner: int) -> None:
        """Record which process has just written, by the kernel's number; 0: it is unknown."""
        handle = self._handles.get(number)
        if isinstance(handle, FileHandle) and handle.owners is not None:
            if owner:
                handle.owners.add(owner)
            else:
                handle.owners = None

    def flush(self, number: int, owner: int = 0) -> None:
        """Record that the writer may be about to close. All writes are visible already.

        For a view that is being written, validate it; raises the error.  In a shared store, publish
        the bytes, unless the process `owner` has written none of them: it is a child of the writer,
        which may go on.  Raises EIO if they cannot be published.
        """
        handle = self.handle(number)
        if isinstance(handle, UploadHandle):
            handle.commit()
        elif handle.inode is not None:
            if handle.writable:
                self._context.catalog.require_lease()
            handle.inode.flushed = handle.inode.stamp
            if self._is_shared and isinstance(handle, FileHandle):
                has_written = not (owner and handle.owners) or owner in handle.owners
                if handle.writable and has_written:
                    self._publish(handle)

    # RELEASE counts among the kernel's 1024 background requests. If it waits for name changes,
    # reads wait behind it.
    def release(self, number: int) -> None:
        """Close a handle."""
        handle = self._handles.pop(number, None)
        if handle is None:
            raise os_error(errno.EBADF)
        handle.close()

    def release_all(self) -> None:
        """Close every handle at the end of the mount."""
        for number in list(self._handles):
            try:
                self.release(number)
            except (OSError, VfsdError):
                pass  # released by another thread, or left to the next mount
            except Exception:
                _log.exception("an open file could not be closed")

    # -- bytes

    def readinto(
        self, number: int, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        try:
            return self._handles[number].readinto(buffer, offset, cancel_check)
        except KeyError:
            raise os_error(errno.EBADF) from None

    def write(self, number: int, data: Buffer, offset: int) -> int:
        """Write at `offset`; return the number of bytes written, fewer only if the disk is full."""
        upload = self._handles.get(number)
        if isinstance(upload, UploadHandle):
            return upload.write(data, offset)
        handle = self._writer(number)
        frees = self._enospc.frees
        with handle.inode.guard:
            inode = self._made_writable(handle)
            try:
                require_reserve(self._context.directory)
                count = os.pwrite(inode.fd, data, offset)
            except (OSError, NoSpaceError) as error:
                if not self._enospc.can_retry(error, frees):
                    raise
                require_reserve(self._context.directory)
                count = os.pwrite(inode.fd, data, offset)
            self._open_inodes.mark_written(inode)
        return count

    def append(self, number: int, data: Buffer) -> tuple[int, int]:
        """Write at the end. Return (offset of the write, number of bytes written)."""
        upload = self._handles.get(number)
        if isinstance(upload, UploadHandle):
            end = upload.attributes().size
            return end, upload.write(data, end)
        handle = self._writer(number)
        with handle.inode.guard:
            inode = self._made_writable(handle)

            def put() -> tuple[int, int]:
                require_reserve(self._context.directory)
                # With RWF_APPEND the disk's file system finds the end atomically. Stacked ones
                # (overlayfs before Linux 6.8) ignore the flag and use this offset.
                end = os.fstat(inode.fd).st_size
                return end, os.pwritev(inode.fd, (data,), end, os.RWF_APPEND)

            end, count = self._enospc.run(put)
            self._open_inodes.mark_written(inode)
        return end, count

    def truncate(self, number: int, length: int) -> None:
        upload = self._handles.get(number)
        if isinstance(upload, UploadHandle):
            upload.truncate(length)
            return
        handle = self._writer(number)
        with handle.inode.guard:
            inode = self._made_writable(handle, keep_bytes=length)
            handle.owners = None
            os.ftruncate(inode.fd, length)
            self._open_inodes.mark_written(inode)

    def fallocate(self, number: int, mode: int, offset: int, length: int) -> None:
        handle = self._writer(number)
        with handle.inode.guard:
            inode = self._made_writable(handle)
            handle.owners = None

            def allocate() -> None:
                if not mode & _FREES:
                    require_reserve(self._context.directory)
                fallocate(inode.fd, mode, offset, length)

            self._enospc.run(allocate)
            self._open_inodes.mark_written(inode)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, length: int
    ) -> int:
        """Copy between open files. Return the number of bytes copied, maybe less than `length`."""
        reading = self.handle(source).inode
        # The kernel then reads and writes.
        if reading is None or reading.is_remote or isinstance(self.handle(target), UploadHandle):
            raise os_error(errno.EOPNOTSUPP)
        handle = self._writer(target)
        length = min(length, _COPY_AT_ONCE)
        with handle.inode.guard:
            inode = self._made_writable(handle)
            handle.owners = None
            checksums, source_fd = reading.checksums, reading.fd
            if checksums is not None:
                length = checksums.known(source_offset, length)
                checksums.require(source_offset, length)

            def copy() -> int:
                require_reserve(self._context.directory)
                return os.copy_file_range(source_fd, inode.fd, length, source_offset, target_offset)

            count = self._enospc.run(copy)
            self._open_inodes.mark_written(inode)
        return count

    def seek(self, number: int, offset: int, whence: int) -> int:
        """Return the offset of the next data (SEEK_DATA) or hole (SEEK_HOLE)."""
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise os_error(errno.EINVAL)
        return self.handle(number).seek(offset, whence)

    def fsync(self, number: int, *, data_only: bool) -> None:
        """Return when the bytes and their catalog row would survive a power failure."""
        handle = self.handle(number)
        if isinstance(handle, UploadHandle):
            handle.commit()
        inode = handle.inode
        if inode is None or self._context.read_only:
            return
        self._open_inodes.sync(inode, data_only=data_only)
        self._context.catalog.sync()

    # -- for handles

    def attributes(self, inode: OpenInode) -> Attributes:
        return self._open_inodes.attributes_of_open(inode)

    def close(self, handle: FileHandle) -> None:
        """Close a file. Classify it after its last writer; delete it if it has no name."""
        inode = handle.inode
        try:
            is_last, was_writer = self._open_inodes.remove_handle(
                inode, writing=handle.writable, closing=handle.is_closing
            )
            if is_last:
                self._open_inodes.drop_aliases(inode.ino)
            if was_writer and self._is_shared:
                self._classifier.submit(inode.ino)  # if the close could not publish it
            if was_writer and inode.is_reserved:
                with suppress(VfsdError):  # it ends with the lease
                    self._open_inodes.unreserve(inode)
            node = self._names.node_if_any(inode.ino)
            if node is None:
                return
            if node.nlink == 0:
                if is_last:
                    self._hidden_names.delete_unless_open(node.ino)
            # Only the last writer: others may still change the bytes.
            elif was_writer and node.state is FileState.SPOOLED:
                self._classifier.submit(node.ino)
        finally:
            self._open_inodes.unpin(inode)

    # -- internals

    def _open_handle(
        self, node: Node, caller: Caller, *, writable: bool, takes_over: bool
    ) -> FileHandle:
        inode = self._open_inodes.pin(node.ino)
        try:
            if takes_over:
                self._open_inodes.take_over(inode, node)
            elif writable:
                self._open_inodes.reserve(inode)
            self._open_inodes.open(inode)
        except BaseException:
            if inode.is_reserved:
                with suppress(VfsdError):
                    self._open_inodes.unreserve(inode)
            self._open_inodes.unpin(inode)
            raise
        return self._new_handle(inode, caller, writable=writable)

    def _new_handle(self, inode: OpenInode, caller: Caller, *, writable: bool) -> FileHandle:
        """Return a new handle of a pinned inode."""
        self._open_inodes.add_handle(inode, writing=writable)
        return FileHandle(self, inode, writable=writable, is_privileged=caller.is_privileged)

    def _writer(self, number: int) -> FileHandle:
        """Return a handle that may write."""
        handle = self._handles.get(number)
        if not isinstance(handle, FileHandle) or not handle.writable:
            raise os_error(errno.EBADF)
        return handle

    def _made_writable(self, handle: FileHandle, keep_bytes: int | None = None) -> OpenInode:
        """Return the inode of a handle, ready for a change of bytes. The caller has its guard."""
        inode = handle.inode
        if handle.is_closing:
            handle.is_closing = False
            inode.closing -= 1
        # The row must say that the bytes change before any of them do.
        if not inode.dirty:
            self._enospc.run(lambda: self._open_inodes.make_writable(inode, keep_bytes=keep_bytes))
        if inode.setid and not handle.is_privileged:
            self._drop_setid(inode)
        if inode.has_capabilities:
            self._drop_capabilities(inode)
        return inode

    def _publish(self, handle: FileHandle) -> None:
        """Upload the bytes of a file whose writers are all closing, so that other hosts see them.

        Raises EIO if that fails; the classifier then tries it again and again.
        """
        inode = handle.inode
        with inode.lock:
            if not handle.is_closing:
                handle.is_closing = True
                inode.closing += 1
            if inode.closing < inode.writers:
                return
        self._classifier.publish(inode)
        if inode.is_reserved:
            with suppress(VfsdError):  # it ends with the lease
                self._open_inodes.unreserve(inode)

    def _drop_setid(self, inode: OpenInode) -> None:
        with self._names.changing() as change:
            change.touch(inode.ino)
            node = change.tree.nodes([inode.ino]).get(inode.ino)
            if node is not None:
                change.tree.update(inode.ino, mode=without_setid(node.mode))
        inode.setid = False

    def _drop_capabilities(self, inode: OpenInode) -> None:
        """Remove file capabilities, for writers with any user ID."""
        # Writers bypass the kernel's cache, so the kernel does not drop capabilities for them.
        with self._names.changing() as change:
            change.remove_xattr(inode.ino, CAPABILITIES)
        inode.has_capabilities = False


def without_setid(mode: int) -> int:
    """Return the mode that is left after a change by an unprivileged user."""
    if mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID
    return mode & ~stat.S_ISUID
