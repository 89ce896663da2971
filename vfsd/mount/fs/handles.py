"""Open file handles and the operations on them.

`FileHandles` maps numbers to handles; `EnospcRetry` repeats a write after pending deletes have
freed space.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
from collections.abc import Callable
from typing import Protocol, TypeVar

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck
from vfsd.disk.disk_reserve import require_reserve
from vfsd.disk.enospc import NO_SPACE
from vfsd.errors import NoSpaceError, VfsdError
from vfsd.mount.fs.attributes import Attributes, Caller
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.deferred_cleanup import CleanupThread
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.directory_ops import DirectoryOperations
from vfsd.mount.fs.open_inodes import CAPABILITIES, OpenInode, OpenInodes
from vfsd.mount.fs.silly_rename import HiddenNames
from vfsd.mount.fs.syscalls import failure, fallocate
from vfsd.mount.fs.view_dirs import Closeable, UploadHandle
from vfsd.storage.context import StoreContext

T = TypeVar("T")


class EnospcRetry:
    """What it takes to try again when the disk is full."""

    def __init__(self, hidden_names: HiddenNames, janitor: CleanupThread) -> None:
        self._hidden_names = hidden_names
        self._janitor = janitor

    @property
    def given(self) -> int:
        """How often there has become more of it: see `is_made`."""
        return self._janitor.cleaned

    def having(self, action: Callable[[], T]) -> T:
        """Do something that changes nothing when it fails, and again if there is room then."""
        given = self.given
        try:
            return action()
        except (OSError, NoSpaceError) as error:
            if not self.is_made(error, given):
                raise
        return action()

    def is_made(self, error: OSError | NoSpaceError, given: int) -> bool:
        """Whether it is worth while to try again what has failed, and began with `given`."""
        if error.errno not in NO_SPACE:
            return False
        if self._hidden_names.end_closed():
            self._janitor.clean_now()
        return self.given != given


Buffer = bytes | bytearray | memoryview

_log = logging.getLogger(__name__)

_COPY_AT_ONCE = 1 << 26
_FREES = 0x02 | 0x08
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_COLLAPSE_RANGE of fallocate(2)."""
_MAY_WRITE = (os.O_WRONLY, os.O_RDWR)


class ReadInto(Protocol):
    """Fills a buffer from an offset on; see `Filesystem.readinto`."""

    def __call__(
        self, buffer: memoryview, offset: int, patience: CancelCheck | None = None, /
    ) -> int: ...


class Handle(Protocol):
    """What somebody has open: a file of the tree, or a view."""

    @property
    def content(self) -> OpenInode | None: ...

    @property
    def writable(self) -> bool: ...

    def readinto(
        self, buffer: memoryview, offset: int, patience: CancelCheck | None = None
    ) -> int: ...

    def attributes(self) -> Attributes: ...

    def seek(self, offset: int, whence: int) -> int: ...

    def close(self) -> None: ...


class FileHandle:
    """A file of the tree that somebody has open."""

    __slots__ = ("_files", "content", "is_privileged", "writable")

    def __init__(
        self, files: FileHandles, content: OpenInode, *, writable: bool, is_privileged: bool
    ) -> None:
        self._files = files
        self.content = content
        self.writable = writable
        self.is_privileged = is_privileged

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        summed = self.content.summed
        if summed is not None:
            return summed.readinto(buffer, offset)
        return os.preadv(self.content.fd, (buffer,), offset)

    def attributes(self) -> Attributes:
        return self._files.attributes(self.content)

    def seek(self, offset: int, whence: int) -> int:
        return os.lseek(self.content.fd, offset, whence)

    def close(self) -> None:
        self._files.close(self)


class FileHandles:
    """All open files.  Handles are numbers; one that is not open is EBADF.

    Reading takes no lock, and neither does writing after the first time.
    """

    def __init__(
        self,
        parts: StoreContext,
        names: DentryCache,
        namespace: DirectoryOperations,
        contents: OpenInodes,
        judging: Classifier,
        hidden_names: HiddenNames,
        room: EnospcRetry,
    ) -> None:
        self._parts = parts
        self._names = names
        self._namespace = namespace
        self._contents = contents
        self._judging = judging
        self._hidden_names = hidden_names
        self._room = room
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)

    # -- opening and closing

    def open(self, node: Node, flags: int, caller: Caller) -> int:
        """Raises `OSError`: EISDIR, ELOOP, EROFS, ENOENT when it has just gone, EIO; and
        `HeldError` for writing into a video that has a hold."""
        if node.is_dir:
            raise failure(errno.EISDIR)
        if not node.is_file:
            raise failure(errno.ELOOP if node.is_symlink else errno.ENXIO)
        writable = flags & os.O_ACCMODE in _MAY_WRITE
        if (writable or flags & os.O_TRUNC) and self._parts.read_only:
            raise failure(errno.EROFS)
        if (writable or flags & os.O_TRUNC) and node.state is FileState.VIDEO:
            with self._parts.catalog.reading() as seen:
                seen.originals.require_free(node.ino)
        number = self.add(self._opened(node, caller, writable=writable))
        if flags & os.O_TRUNC and writable:
            try:
                self.truncate(number, 0)
            except BaseException:
                self.release(number)
                raise
        return number

    def create(self, path: str, mode: int, caller: Caller) -> int:
        """A new file, open for reading and writing.  Raises `FileExistsError`."""
        node, fd = self._room.having(lambda: self._namespace.create(path, mode, caller))
        content = self._contents.pin(node.ino)
        self._contents.attach_new(content, node, fd)
        return self.add(self._counted_in(content, caller, writable=True))

    def keep(self, video: Node, caller: Caller) -> Closeable:
        """What keeps a video while a view of it is open, though its last name goes; to be closed.

        Its bytes are not opened: whoever makes the view does that where they are needed.
        """
        return self._counted_in(self._contents.pin(video.ino), caller, writable=False)

    def add(self, handle: Handle) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        return number

    def handle(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise failure(errno.EBADF) from None

    def is_offer(self, number: int) -> bool:
        """Whether a handle is that of a view which somebody writes."""
        return isinstance(self._handles.get(number), UploadHandle)

    def expect(self, ino: int) -> None:
        """Whoever writes the view of that number has emptied it in order to."""
        for handle in list(self._handles.values()):
            if isinstance(handle, UploadHandle) and handle.ino == ino:
                handle.expect()

    def flush(self, number: int) -> None:
        """Everything is visible already; it is noted that the writer may be about to close.

        Of a view that is written it is seen whether it is taken; raises what is wrong with it.
        """
        handle = self.handle(number)
        if isinstance(handle, UploadHandle):
            handle.commit()
        elif handle.content is not None:
            handle.content.flushed = handle.content.stamp

    # RELEASE counts among the kernel's 1024 background requests. If it waits for name changes,
    # reads wait behind it.
    def release(self, number: int) -> None:
        handle = self._handles.pop(number, None)
        if handle is None:
            raise failure(errno.EBADF)
        handle.close()

    def release_all(self) -> None:
        """The end of every handle: nobody is left who could use one."""
        for number in list(self._handles):
            try:
                self.release(number)
            except (OSError, VfsdError):
                pass  # somebody is faster, or the next mount does it
            except Exception:
                _log.exception("an open file could not be closed")

    # -- bytes

    def readinto(
        self, number: int, buffer: memoryview, offset: int, patience: CancelCheck | None = None
    ) -> int:
        try:
            return self._handles[number].readinto(buffer, offset, patience)
        except KeyError:
            raise failure(errno.EBADF) from None

    def write(self, number: int, data: Buffer, offset: int) -> int:
        """How much was written, which is less than asked for only when the disk is full."""
        offered = self._handles.get(number)
        if isinstance(offered, UploadHandle):
            return offered.write(data, offset)
        content = self._writable(number).content
        given = self._room.given
        try:
            require_reserve(self._parts.directory)
            count = os.pwrite(content.fd, data, offset)
        except (OSError, NoSpaceError) as error:
            if not self._room.is_made(error, given):
                raise
            require_reserve(self._parts.directory)
            count = os.pwrite(content.fd, data, offset)
        self._contents.written(content)
        return count

    def append(self, number: int, data: Buffer) -> tuple[int, int]:
        """Where the end was, and how much was written there."""
        offered = self._handles.get(number)
        if isinstance(offered, UploadHandle):
            end = offered.attributes().size
            return end, offered.write(data, end)
        content = self._writable(number).content

        def put() -> tuple[int, int]:
            require_reserve(self._parts.directory)
            # The disk's own file system looks for the end once more, and lets nobody in between.
            # Some that lie upon others (overlayfs before Linux 6.8) do not, and go by this one.
            end = os.fstat(content.fd).st_size
            return end, os.pwritev(content.fd, (data,), end, os.RWF_APPEND)

        end, count = self._room.having(put)
        self._contents.written(content)
        return end, count

    def truncate(self, number: int, length: int) -> None:
        offered = self._handles.get(number)
        if isinstance(offered, UploadHandle):
            offered.truncate(length)
            return
        content = self._writable(number, keep=length).content
        os.ftruncate(content.fd, length)
        self._contents.written(content)

    def fallocate(self, number: int, mode: int, offset: int, length: int) -> None:
        content = self._writable(number).content

        def allocate() -> None:
            if not mode & _FREES:
                require_reserve(self._parts.directory)
            fallocate(content.fd, mode, offset, length)

        self._room.having(allocate)
        self._contents.written(content)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, length: int
    ) -> int:
        """How much was copied; less than asked for at the end, and when it is much."""
        reading = self.handle(source).content
        if reading is None or isinstance(self.handle(target), UploadHandle):
            raise failure(errno.EOPNOTSUPP)
        content = self._writable(target).content
        length = min(length, _COPY_AT_ONCE)
        if reading.summed is not None:
            length = reading.summed.known(source_offset, length)
            reading.summed.require(source_offset, length)
        source_fd = reading.fd

        def copy() -> int:
            require_reserve(self._parts.directory)
            return os.copy_file_range(source_fd, content.fd, length, source_offset, target_offset)

        count = self._room.having(copy)
        self._contents.written(content)
        return count

    def seek(self, number: int, offset: int, whence: int) -> int:
        """Where the next data or hole begins: `whence` is SEEK_DATA or SEEK_HOLE."""
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise failure(errno.EINVAL)
        return self.handle(number).seek(offset, whence)

    def fsync(self, number: int, *, data_only: bool) -> None:
        """Return when the bytes, and what the catalog says of them, would survive a power cut."""
        handle = self.handle(number)
        if isinstance(handle, UploadHandle):
            handle.commit()
        content = handle.content
        if content is None or self._parts.read_only:
            return
        self._contents.sync(content, data_only=data_only)
        self._parts.catalog.sync()

    # -- for handles

    def attributes(self, content: OpenInode) -> Attributes:
        return self._contents.attributes_of_open(content)

    def close(self, handle: FileHandle) -> None:
        """The end of a handle: with it goes what only waited for it."""
        content = handle.content
        try:
            is_last, was_writer = self._contents.count_out(content, writing=handle.writable)
            if is_last:
                self._contents.drop_aliases(content.ino)
            node = self._names.node_if_any(content.ino)
            if node is None:
                return
            if node.nlink == 0:
                if is_last:
                    self._hidden_names.end(node.ino)
            elif was_writer and node.state is FileState.SPOOLED:
                self._judging.submit(node.ino)
        finally:
            self._contents.unpin(content)

    # -- inside

    def _opened(self, node: Node, caller: Caller, *, writable: bool) -> FileHandle:
        content = self._contents.pin(node.ino)
        try:
            self._contents.open(content)
        except BaseException:
            self._contents.unpin(content)
            raise
        return self._counted_in(content, caller, writable=writable)

    def _counted_in(self, content: OpenInode, caller: Caller, *, writable: bool) -> FileHandle:
        """A handle of a pinned content."""
        self._contents.count_in(content, writing=writable)
        return FileHandle(self, content, writable=writable, is_privileged=caller.is_privileged)

    def _writable(self, number: int, keep: int | None = None) -> FileHandle:
        """A handle whose bytes may be changed now."""
        handle = self._handles.get(number)
        if not isinstance(handle, FileHandle) or not handle.writable:
            raise failure(errno.EBADF)
        content = handle.content
        if not content.dirty:
            self._room.having(lambda: self._contents.make_writable(content, keep=keep))
        if content.setid and not handle.is_privileged:
            self._drop_setid(content)
        if content.grants:
            self._drop_capabilities(content)
        return handle

    def _drop_setid(self, content: OpenInode) -> None:
        with self._names.changing() as change:
            change.touch(content.ino)
            node = change.tree.nodes([content.ino]).get(content.ino)
            if node is not None:
                change.tree.update(content.ino, mode=without_setid(node.mode))
        content.setid = False

    def _drop_capabilities(self, content: OpenInode) -> None:
        """Whoever writes, root too.  The kernel does so itself only for what goes by its cache."""
        # Writers bypass the kernel's cache, so the kernel does not drop capabilities for them.
        with self._names.changing() as change:
            change.remove_xattr(content.ino, CAPABILITIES)
        content.grants = False


def without_setid(mode: int) -> int:
    """What a change by somebody unprivileged leaves of a file's mode."""
    if mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID
    return mode & ~stat.S_ISUID
