"""`Filesystem`: a store with the semantics of a POSIX file system, and no kernel in sight."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import NamedTuple

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck
from vfsd.disk.mount_queries import IDENTITY
from vfsd.disk.store_layout import fsync_path
from vfsd.errors import NotFoundError
from vfsd.mount.fs import deferred_cleanup
from vfsd.mount.fs.attributes import Attributes, Caller
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.deferred_cleanup import CleanupThread, RecoveryReport
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.directory_ops import DirectoryOperations
from vfsd.mount.fs.handles import Buffer, EnospcRetry, FileHandles, ReadInto
from vfsd.mount.fs.inode_metadata import AttributeChanges, ExtendedAttributes
from vfsd.mount.fs.open_inodes import OpenInodes, PassthroughFile
from vfsd.mount.fs.silly_rename import HiddenName, HiddenNames
from vfsd.mount.fs.syscalls import failure
from vfsd.mount.fs.view_dirs import (
    MARK,
    UploadHandle,
    ViewDirectories,
    ViewHandle,
    ViewPath,
    ViewSource,
)
from vfsd.storage.context import StoreContext

_CLEAN_SECONDS = 2.0
"""How long statfs waits for room that is being made."""

_ROOT_USER = Caller(0, 0)


class ListingEntry(NamedTuple):
    """What a listing says of one name."""

    name: str
    ino: int
    mode: int  #: at least the type


class ContentVersion(NamedTuple):
    """Of which bytes a cache holds copies: equal versions mean equal bytes."""

    ino: int
    generation: int
    stamp: int


class Filesystem:
    """A store as a file system.  Safe to use from many threads.

    Paths are absolute and start with ``/``; names are text, surrogateescape for what is not
    UTF-8; times are Unix time in nanoseconds.  `handle` is a number that `open` or `create`
    returned; an inode that has lost its name, or was taken away by another process, is still
    served through it.  Whatever goes wrong is an `OSError`, or a `VfsdError` with an errno.
    Permissions are not checked: the kernel does that.

    One `Filesystem` at a time may work on a store (see `StoreDirectory.mounted`); other processes
    may change the same store through its catalog meanwhile.
    """

    def __init__(
        self,
        parts: StoreContext,
        *,
        views: ViewSource | None = None,
        reports: Mapping[str, Callable[[], str]] = MappingProxyType({}),
        now: Callable[[], int] = time.time_ns,
        syncs_names: bool = False,
    ) -> None:
        """`reports` are attributes of the root that are in no listing, by name; with `syncs_names`
        each change of a name would survive a power cut when it returns."""
        self.parts = parts
        self._syncs_names = syncs_names
        self.now = now
        self._names = DentryCache(parts)
        self._janitor = CleanupThread(parts)
        self._contents = OpenInodes(parts, self._names, self._janitor.discard_objects)
        self._judging = Classifier(parts, self._names, self._contents)
        self._hidden_names = HiddenNames(
            parts, self._names, self._contents, self._judging, self._janitor, now
        )
        self._room = EnospcRetry(self._hidden_names, self._janitor)
        self._namespace = DirectoryOperations(
            parts.directory, self._names, self._contents, self._janitor, self._hidden_names, now
        )
        self._files = FileHandles(
            parts,
            self._names,
            self._namespace,
            self._contents,
            self._judging,
            self._hidden_names,
            self._room,
        )
        self._metadata = AttributeChanges(parts, self._names, self._contents, now)
        self._xattrs = ExtendedAttributes(
            parts, self._names, self._contents, self._judging, reports, now
        )
        self._views = ViewDirectories(self._names, self._judging, views)
        self._directories: dict[int, Node | ViewPath] = {}
        self._numbers = itertools.count(1)

    # -- life

    def recover(self) -> RecoveryReport:
        """Put right what a crash has left.  To be called before anything is served."""
        found = deferred_cleanup.recover(self.parts)
        for ino in found.unjudged:
            self._judging.submit(ino)
        return found

    def settle(self, ino: int | None = None, timeout: float = 30.0) -> bool:
        """Wait until a file, or every file, that was closed is known to be a video or none.

        False when that took longer than `timeout` seconds.
        """
        if ino is not None:
            self._judging.settle(ino, timeout)
        return self._judging.wait(ino, timeout)

    def tidy(self) -> None:
        """Delete at once what is to be deleted; otherwise it happens a little later."""
        self._hidden_names.end_closed()
        self._janitor.clean_now()

    def close(self, drain: float = 30.0) -> None:
        """End all handles; judge what waits to be judged, for `drain` seconds at most; delete what
        is to go."""
        self._files.release_all()
        self._judging.close(drain)
        self._janitor.close()
        self._names.close()

    # -- looking

    def getattr(self, path: str | None, handle: int | None = None) -> Attributes:
        """Of what a handle is open on, or of what a path leads to."""
        if handle is not None:
            return self._files.handle(handle).attributes()
        try:
            return self._attributes(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return self._attributes(path)  # another file may have its name by now

    def readlink(self, path: str) -> str:
        found = self._find(path)
        if isinstance(found, ViewPath) or found.target is None:
            raise failure(errno.EINVAL)
        return found.target

    def listdir(self, path: str) -> list[ListingEntry]:
        """Everything in a directory, in the order of the names' bytes."""
        return self._entries(self._directory(path))

    def opendir(self, path: str) -> int:
        """A handle for `readdir`, which follows the directory wherever it is moved."""
        directory = self._directory(path)
        number = next(self._numbers)
        self._directories[number] = directory
        return number

    def readdir(self, directory: int) -> list[ListingEntry]:
        """What is in an open directory as it is now, in the order of the names' bytes.

        The attributes of all of it are remembered, so that asking for them next is quick.
        """
        try:
            return self._entries(self._directories[directory])
        except KeyError:
            raise failure(errno.EBADF) from None

    def releasedir(self, directory: int) -> None:
        self._directories.pop(directory, None)

    def statfs(self) -> os.statvfs_result:
        """Of the disk that the store lies on, with the room of what was deleted before.

        A recorder that deletes its oldest files until there is room would delete too many else.
        """
        self._janitor.wait_until_clean(_CLEAN_SECONDS)
        return os.statvfs(self.parts.directory.spool)

    def is_in_use(self, path: str) -> bool:
        """Whether somebody has the real file open, or had a moment ago."""
        try:
            return self._contents.is_in_use(self._names.resolve(path).ino)
        except OSError:
            return False

    def has_hard_links(self) -> bool:
        """Whether any file has several names."""
        with self.parts.catalog.reading() as seen:
            return seen.tree.has_hard_links()

    # -- names

    def mkdir(self, path: str, mode: int, caller: Caller) -> None:
        with self._changing(path):
            self._room.having(lambda: self._namespace.mkdir(path, mode, caller))

    def mknod(self, path: str, mode: int, rdev: int, caller: Caller) -> None:
        """Also makes regular files."""
        with self._changing(path):
            node = self._room.having(lambda: self._namespace.mknod(path, mode, rdev, caller))
        if node.is_file:
            self._judging.submit(node.ino)

    def symlink(self, path: str, target: str, caller: Caller) -> None:
        with self._changing(path):
            self._room.having(lambda: self._namespace.symlink(path, target, caller))

    def link(self, path: str, new_path: str) -> None:
        """Give the file at `path` one more name."""
        with self._changing(path, new_path):
            self._room.having(lambda: self._namespace.link(path, new_path))

    def unlink(self, path: str) -> None:
        with self._changing(path):
            self.parts.with_reserve(lambda: self._namespace.unlink(path))

    def rmdir(self, path: str) -> None:
        with self._changing(path):
            self.parts.with_reserve(lambda: self._namespace.rmdir(path))

    def rename(
        self, old: str, new: str, flags: int = 0, *, hidden: HiddenName | None = None
    ) -> None:
        """`flags` as in renameat2(2): RENAME_NOREPLACE or RENAME_EXCHANGE; `hidden` is what `hide`
        has made of what was at `new`, if that is to be replaced."""
        with self._changing(old, new):
            is_onto_views = new.endswith(MARK) and self._views.find(new) is not None
            if is_onto_views and self._names.resolve(old).is_dir:
                # The kernel refuses this itself for mkdir, and for files that are renamed.
                raise failure(errno.ENOTEMPTY)
            if hidden is None:
                self._room.having(lambda: self._namespace.rename(old, new, flags))
            else:
                with self._hidden_names.followed_by(hidden):
                    self._room.having(
                        lambda: self._namespace.rename_over_hidden(old, new, flags, hidden)
                    )

    def hide(self, path: str, alias: str) -> HiddenName:
        """`unlink` of an open file, for callers who know files by path only.

        `alias` is a name in the same directory that leads to the file until its last handle is
        released, and that no listing shows.  A rename to `path` that is given what is returned
        makes the two one atomic replacement; that the name is gone is on the disk only then.
        """
        with self._outside_views(path):
            return self.parts.with_reserve(lambda: self._hidden_names.hide(path, alias))

    # -- attributes; those of a view are what they are, also for who writes it and sets them

    def chmod(self, path: str | None, mode: int, handle: int | None = None) -> None:
        if not self._is_offered(path, handle):
            ino = self._ino(path, handle)
            self._room.having(lambda: self._metadata.chmod(ino, mode))

    def chown(
        self, path: str | None, uid: int | None, gid: int | None, handle: int | None = None
    ) -> None:
        """None leaves the owner or the group as it is."""
        if not self._is_offered(path, handle):
            ino = self._ino(path, handle)
            self._room.having(lambda: self._metadata.chown(ino, uid, gid))

    def utimens(
        self,
        path: str | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        handle: int | None = None,
    ) -> None:
        """None leaves a time as it is."""
        if not self._is_offered(path, handle):
            ino = self._ino(path, handle)
            self._room.having(lambda: self._metadata.utimens(ino, atime_ns, mtime_ns))

    def getxattr(self, path: str, name: str) -> bytes:
        found = self._find(path)
        if name == IDENTITY:
            return self._xattrs.identity(path)
        if isinstance(found, ViewPath):
            raise failure(errno.ENODATA)
        return self._xattrs.get(found, name)

    def listxattr(self, path: str, caller: Caller = _ROOT_USER) -> list[str]:
        """Names that the caller may know of."""
        found = self._find(path)
        return [] if isinstance(found, ViewPath) else self._xattrs.list(found, caller)

    def setxattr(self, path: str, name: str, value: bytes, flags: int = 0) -> None:
        """`flags` is 0, `os.XATTR_CREATE` or `os.XATTR_REPLACE`."""
        if self._is_offered(path, None):
            raise failure(errno.EOPNOTSUPP)  # so that who copies them along goes on without
        node = self._node(path)
        self._room.having(lambda: self._xattrs.set(node, name, value, flags))

    def removexattr(self, path: str, name: str) -> None:
        node = self._node(path)
        self._room.having(lambda: self._xattrs.remove(node, name))

    # -- open files

    def open(self, path: str, flags: int, caller: Caller) -> int:
        """Of `flags` the access mode and O_TRUNC count; who creates calls `create`."""
        found = self._find(path)
        if isinstance(found, Node):
            if flags & os.O_TRUNC and flags & os.O_ACCMODE == os.O_RDONLY and found.is_file:
                self.truncate(path, 0, caller)  # as it is done on disks; POSIX leaves it open
                found = self._node(path)
            handle = self._files.open(found, flags, caller)
            if found.nlink == 0:
                self._names.keep_alias(path, found.ino)
            return handle
        if flags & os.O_ACCMODE != os.O_RDONLY:
            if self._is_directory(found):
                raise failure(errno.EISDIR)
            if flags & os.O_APPEND:
                raise failure(errno.EINVAL)  # there is nothing that it could go on from
            offered = self._views.offer(found)
            if flags & os.O_TRUNC:
                offered.expect()
            return self._files.add(offered)
        kept = self._files.keep(found.video, caller)
        try:
            return self._files.add(self._views.open(found, kept))
        except BaseException as error:
            kept.close()
            if isinstance(error, NotFoundError) and self._is_directory(found):
                raise failure(errno.EISDIR) from None
            raise

    def create(self, path: str, mode: int, flags: int, caller: Caller) -> int:
        """Make a file and open it; one that is there is opened, unless `flags` has O_EXCL."""
        try:
            with ExitStack() as stack:
                with self._changing(path):
                    handle = self._files.create(path, mode, caller)
                    stack.callback(self.release, handle)
                stack.pop_all()  # its name is on the disk, where that was to be
                return handle
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        return self.open(path, flags, caller)

    def identity(self, handle: int) -> int | str:
        """Equal for handles that read the same bytes, whatever is written meanwhile."""
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle | UploadHandle):
            return opened.version
        assert opened.content is not None, "views are all that is open without a content"
        return opened.content.ino

    def content_version(self, handle: int) -> ContentVersion | str | None:
        """Which bytes a handle reads now, also once its inode has gone; None of a view that is
        written."""
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle):
            return opened.version
        content = opened.content
        if content is None:
            return None
        node = self._names.node_if_any(content.ino) or content.last_known
        assert node is not None, "what is open was known when it was opened"
        return ContentVersion(node.ino, node.generation, content.stamp)

    def video_size(self, handle: int) -> int | None:
        """How many bytes the video has that a handle reads; None of any other file."""
        content = self._files.handle(handle).content
        node = None if content is None else self._names.node_if_any(content.ino)
        return None if node is None or node.state is not FileState.VIDEO else node.size

    def whole_file(self, handle: int) -> PassthroughFile | None:
        """What a handle reads from; None for a view that is written."""
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle):
            return opened.whole
        content = opened.content
        if content is None:
            return None
        with content.lock:
            return PassthroughFile(content.ino, content.fd if content.is_immutable else None)

    def reader(self, handle: int) -> ReadInto:
        """How to read a handle until it is released, past looking it up: see `readinto`."""
        return self._files.handle(handle).readinto

    def is_work(self, handle: int) -> bool:
        """Whether something has to be computed for what a handle reads, which would go on, for
        some time, for somebody who has closed it."""
        opened = self._files.handle(handle)
        return isinstance(opened, ViewHandle) and opened.is_work

    def is_view(self, handle: int) -> bool:
        """Whether what a handle reads may have to be made first."""
        return isinstance(self._files.handle(handle), ViewHandle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self._files.readinto(handle, memoryview(buffer), offset)])

    def readinto(
        self, handle: int, buffer: memoryview, offset: int, patience: CancelCheck | None = None
    ) -> int:
        """Fill a buffer from `offset` on; less than all of it only at the end of the file.

        `patience` is called now and then while a view is made; what it raises, an `OSError`, ends
        the waiting.
        """
        return self._files.readinto(handle, buffer, offset, patience)

    def write(self, handle: int, data: Buffer, offset: int) -> int:
        """How much was written."""
        return self._files.write(handle, data, offset)

    def append(self, handle: int, data: Buffer) -> tuple[int, int]:
        """Write at the end, wherever that is by now: where it was, in bytes, and how much was
        written."""
        return self._files.append(handle, data)

    def truncate(
        self, path: str | None, length: int, caller: Caller, handle: int | None = None
    ) -> None:
        if length < 0:
            raise failure(errno.EINVAL)
        if handle is not None:
            self._files.truncate(handle, length)
            return
        found = self._find(path)
        if not length and isinstance(found, ViewPath) and self._is_offered(path, None):
            self._files.expect(found.ino)  # so libfuse 2 tells of O_TRUNC, after opening
            return
        node = self._node(path)
        flags = os.O_WRONLY if length else os.O_WRONLY | os.O_TRUNC
        opened = self._files.open(node, flags, caller)
        try:
            if length:
                self._files.truncate(opened, length)
        finally:
            self._files.release(opened)

    def fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        """See fallocate(2); what the disk below cannot do is EOPNOTSUPP."""
        self._files.fallocate(handle, mode, offset, length)

    def seek(self, handle: int, offset: int, whence: int) -> int:
        """Where the next data (SEEK_DATA) or hole (SEEK_HOLE) begins."""
        return self._files.seek(handle, offset, whence)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, length: int
    ) -> int:
        """Copy between open files; how much was copied, which may be less than asked for."""
        return self._files.copy_range(source, source_offset, target, target_offset, length)

    def flush(self, handle: int) -> None:
        """A descriptor was closed, not necessarily the last one; everything is visible already."""
        self._files.flush(handle)

    def fsync(self, handle: int, *, data_only: bool = False) -> None:
        """Return when the file, its name included, would survive a power cut."""
        self._files.fsync(handle, data_only=data_only)

    def fsync_names(self) -> None:
        """Return when all names, and their absence, would survive a power cut."""
        if not self.parts.read_only:
            self._hidden_names.settle()
            self.parts.catalog.sync()

    def release(self, handle: int) -> None:
        """The end of a handle."""
        self._files.release(handle)

    # -- inside

    def _find(self, path: str | None) -> Node | ViewPath:
        """What a path leads to: something real, if there is, or a view."""
        if path is None:
            raise failure(errno.ENOENT)
        place = self._views.found(path)
        if place is not None:
            return place
        try:
            return self._names.resolve(path)
        except OSError as error:
            found = self._views.find(path)
            if found is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return found

    def _attributes(self, path: str | None) -> Attributes:
        found = self._find(path)
        if isinstance(found, Node):
            return self._contents.attributes(found)
        return self._views.attributes(found)

    def _node(self, path: str | None) -> Node:
        """What a path leads to, when it is to be changed."""
        found = self._find(path)
        if isinstance(found, ViewPath):
            raise failure(errno.EROFS)
        return found

    def _ino(self, path: str | None, handle: int | None) -> int:
        if handle is None:
            return self._node(path).ino
        content = self._files.handle(handle).content
        if content is None:
            raise failure(errno.EROFS)
        return content.ino

    def _directory(self, path: str) -> Node | ViewPath:
        found = self._find(path)
        if not (found.is_dir if isinstance(found, Node) else self._is_directory(found)):
            raise failure(errno.ENOTDIR)
        return found

    def _entries(self, directory: Node | ViewPath) -> list[ListingEntry]:
        if isinstance(directory, ViewPath):
            return [ListingEntry(*entry) for entry in self._views.list(directory)]
        children = self._names.children(directory.ino)
        return [ListingEntry(name, node.ino, node.mode) for name, node in children]

    def _is_offered(self, path: str | None, handle: int | None) -> bool:
        """Whether it is a view that may be written, or is."""
        if handle is not None:
            return self._files.is_offer(handle)
        found = self._find(path)
        return isinstance(found, ViewPath) and bool(self._views.attributes(found).mode & 0o200)

    def _is_directory(self, place: ViewPath) -> bool:
        return stat.S_ISDIR(self._views.attributes(place).mode)

    @contextmanager
    def _changing(self, *paths: str) -> Iterator[None]:
        """Names are, and whoever wanted that to be on the disk finds it there."""
        with self._outside_views(*paths):
            yield
        if self._syncs_names:
            fsync_path(self.parts.directory.spool)  # a new file's bytes have a name there
            self.parts.catalog.sync()

    @contextmanager
    def _outside_views(self, *paths: str) -> Iterator[None]:
        """Nothing can be changed in the folders of views, whatever other reason there is."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and any(map(self._views.find, paths)):
                raise failure(errno.EROFS) from error
            raise
