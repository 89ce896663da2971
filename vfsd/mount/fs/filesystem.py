"""`Filesystem`: a store with the semantics of a POSIX file system, without FUSE."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck
from vfsd.disk.mount_queries import IDENTITY
from vfsd.disk.store_layout import fsync_path
from vfsd.errors import NotFoundError
from vfsd.mount.fs import unlinked_files
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.directory_ops import DirectoryOperations
from vfsd.mount.fs.handles import Buffer, EnospcRetry, FileHandles, ReadInto
from vfsd.mount.fs.inode_metadata import AttributeChanges, ExtendedAttributes
from vfsd.mount.fs.open_inodes import OpenInodes, PassthroughFile
from vfsd.mount.fs.posix import Attributes, Caller, EntryName, Place, ViewPath, last_name, os_error
from vfsd.mount.fs.unlinked_files import CleanupThread, HiddenName, HiddenNames, RecoveryReport
from vfsd.mount.fs.view_dirs import (
    MARK,
    UploadHandle,
    ViewDirectories,
    ViewHandle,
    ViewSource,
)
from vfsd.storage.context import StoreContext

_P = TypeVar("_P")
_R = TypeVar("_R")

# How long statfs waits for pending deletions.
_CLEAN_SECONDS = 2.0

_ROOT_USER = Caller(0, 0)
_PUBLISHED = (FileState.VIDEO, FileState.STORED)


class ListingEntry(NamedTuple):
    """One name in a directory listing."""

    name: str
    ino: int
    mode: int  #: at least the type


class ContentVersion(NamedTuple):
    """Identifies the bytes of a file for caches: equal versions have equal bytes."""

    ino: int
    generation: int
    stamp: int


class Filesystem:
    """A store as a file system. Thread-safe.

    A `Place` is a path, an inode, a view, or a name in a directory. Paths are absolute and start
    with ``/``. Names are text with surrogateescape for bytes that are not UTF-8. Times are Unix
    time in nanoseconds. A `handle` is a number returned by `open` or `create`. It stays valid when
    its inode loses its last name or another process deletes the inode. All errors are `OSError`, or
    `VfsdError` with an errno. Permissions are not checked here: the kernel checks them.

    Only one `Filesystem` may use a store at a time (see `StoreDirectory.mounted`). Other processes
    may change the same store through its catalog.
    """

    def __init__(
        self,
        context: StoreContext,
        *,
        views: ViewSource | None = None,
        timelines: ViewSource | None = None,
        reports: Mapping[str, Callable[[], str]] = MappingProxyType({}),
        syncs_names: bool = False,
    ) -> None:
        """Start the background threads of the file system.

        Args:
            context: The open store.
            views: Serves the paths below ``NAME@/`` of videos; None disables all ``NAME@/``.
            timelines: Serves those of directories; None disables them.
            reports: Functions that compute extended attributes of the root, by name. They appear in
                no listing.
            syncs_names: Whether each change of a name survives a power failure once it returns.
        """
        self.context = context
        self._syncs_names = syncs_names
        self._names = DentryCache(context)
        self._cleanup = CleanupThread(context)
        self._open_inodes = OpenInodes(context, self._names, self._cleanup.discard_objects)
        self._classifier = Classifier(context, self._names, self._open_inodes)
        self._hidden_names = HiddenNames(
            context, self._names, self._open_inodes, self._classifier, self._cleanup
        )
        self._enospc = EnospcRetry(self._hidden_names, self._cleanup)
        self._namespace = DirectoryOperations(
            context.directory,
            self._names,
            self._open_inodes,
            self._cleanup,
            self._hidden_names,
        )
        self._files = FileHandles(
            context,
            self._names,
            self._namespace,
            self._open_inodes,
            self._classifier,
            self._hidden_names,
            self._enospc,
        )
        self._metadata = AttributeChanges(context, self._names, self._open_inodes)
        self._xattrs = ExtendedAttributes(
            context, self._names, self._open_inodes, self._classifier, reports
        )
        self._views = ViewDirectories(self._names, self._classifier, views, timelines)
        self._directories: dict[int, Node | ViewPath] = {}
        self._numbers = itertools.count(1)

    # -- start and end

    def recover(self) -> RecoveryReport:
        """Remove what a crash left. Must be called before any request is served."""
        found = unlinked_files.recover(self.context)
        for ino in found.unclassified:
            self._classifier.submit(ino)
        return found

    def settle(self, ino: int | None = None, timeout: float = 30.0) -> bool:
        """Wait until a closed file, or every closed file (None), has been classified.

        Return False if that takes longer than `timeout` seconds.
        """
        if ino is not None:
            self._classifier.settle(ino, timeout)
        return self._classifier.wait(ino, timeout)

    def delete_pending(self) -> None:
        """Delete at once what is scheduled for deletion."""
        self._hidden_names.delete_closed()
        self._cleanup.clean_now()

    def close(self, drain: float = 30.0) -> None:
        """Release all handles, classify pending files for up to `drain` seconds, and delete what is
        scheduled for deletion."""
        self._files.release_all()
        self._classifier.close(drain)
        self._cleanup.close()
        self._names.close()

    # -- lookup and listing

    def getattr(self, path: Place | None, handle: int | None = None) -> Attributes:
        """Return the attributes of an open handle, or of a path."""
        if handle is not None:
            return self._files.handle(handle).attributes()
        return _once_more(self._attributes, path)

    def lookup(self, entry: EntryName) -> tuple[int | ViewPath, Attributes]:
        """Return the inode or the view with a name in a directory, and its attributes.

        Raises `OSError`: ENOENT, ENOTDIR, ENAMETOOLONG, and ESTALE where the directory is gone.
        """
        return _once_more(self._lookup, entry)

    def lookup_all(self, directory: int, names: Iterable[str]) -> list[Attributes | None]:
        """Return the attributes of each entry with a name in a directory; None where it is gone.

        None also for the names "." and "..".
        """
        parent = self._names.resolve(directory).ino
        found: list[Attributes | None] = []
        for name in names:
            try:
                node = None if name in (".", "..") else self._names.lookup(parent, name)
                found.append(None if node is None else self._open_inodes.attributes(node))
            except OSError:
                found.append(None)
        return found

    def parent(self, place: int | ViewPath) -> int | ViewPath:
        """Return the directory above a directory; the root is above itself."""
        if isinstance(place, ViewPath) and place.path:
            return ViewPath(place.video, place.path.rpartition("/")[0])
        ino = place.video.ino if isinstance(place, ViewPath) else place
        return self._names.resolve(self._names.path_of(ino).rpartition("/")[0]).ino

    def path_of(self, place: Place) -> str:
        """Return a path of a place, relative to the root. Raises `OSError` ENOENT."""
        if isinstance(place, str):
            return place.strip("/")
        if isinstance(place, int):
            return self._names.path_of(place)
        if isinstance(place, ViewPath):
            below = f"{MARK}/{place.path}" if place.path else MARK
            return self._names.path_of(place.video.ino) + below
        parent = self.path_of(place.parent)
        return f"{parent}/{place.name}" if parent else place.name

    def outside_changes(self) -> int:
        """Return a number that differs when other processes have changed names or files since."""
        return self._names.outside_changes()

    def readlink(self, path: Place) -> str:
        """Return the target of a symbolic link."""
        found = self._find(path)
        if isinstance(found, ViewPath) or found.target is None:
            raise os_error(errno.EINVAL)
        return found.target

    def listdir(self, path: Place) -> list[ListingEntry]:
        """Return all entries of a directory, in the byte order of their names."""
        return self._entries(self._directory(path))

    def opendir(self, path: Place) -> int:
        """Return a handle for `readdir`. It follows the directory when that is renamed."""
        directory = self._directory(path)
        number = next(self._numbers)
        self._directories[number] = directory
        return number

    def readdir(self, directory: int) -> list[ListingEntry]:
        """Return the current entries of an open directory, in the byte order of their names.

        Their attributes are cached: a listing is usually followed by a `getattr` of each entry.
        """
        try:
            return self._entries(self._directories[directory])
        except KeyError:
            raise os_error(errno.EBADF) from None

    def releasedir(self, directory: int) -> None:
        """Close a directory handle."""
        self._directories.pop(directory, None)

    def statfs(self) -> os.statvfs_result:
        """Return the statistics of the disk of the store, after pending deletions.

        Otherwise a recorder that deletes its oldest files until there is room would delete too
        many.
        """
        self._cleanup.wait_until_clean(_CLEAN_SECONDS)
        return os.statvfs(self.context.directory.spool)

    def is_in_use(self, path: str) -> bool:
        """Return whether the real file is open, or was a moment ago."""
        try:
            return self._open_inodes.is_in_use(self._names.resolve(path).ino)
        except OSError:
            return False

    def has_hard_links(self) -> bool:
        """Return whether any file has several names."""
        with self.context.catalog.reading() as seen:
            return seen.tree.has_hard_links()

    # -- names

    def mkdir(self, path: Place, mode: int, caller: Caller) -> None:
        """Create a directory."""
        with self._changing(path):
            self._enospc.run(lambda: self._namespace.mkdir(path, mode, caller))

    def mknod(self, path: Place, mode: int, rdev: int, caller: Caller) -> None:
        """Create a file of any type but a directory."""
        with self._changing(path):
            node = self._enospc.run(lambda: self._namespace.mknod(path, mode, rdev, caller))
        if node.is_file:
            self._classifier.submit(node.ino)

    def symlink(self, path: Place, target: str, caller: Caller) -> None:
        """Create a symbolic link at `path` that points to `target`."""
        with self._changing(path):
            self._enospc.run(lambda: self._namespace.symlink(path, target, caller))

    def link(self, path: Place, new_path: Place) -> None:
        """Add the name `new_path` to the file at `path`."""
        with self._changing(path, new_path):
            self._enospc.run(lambda: self._namespace.link(path, new_path))

    def unlink(self, path: Place) -> None:
        """Remove a name. A file without names is deleted with its last handle."""
        with self._changing(path):
            self.context.with_reserve(lambda: self._namespace.unlink(path))

    def rmdir(self, path: Place) -> None:
        """Remove an empty directory."""
        with self._changing(path):
            self.context.with_reserve(lambda: self._namespace.rmdir(path))

    def rename(
        self, old: Place, new: Place, flags: int = 0, *, hidden: HiddenName | None = None
    ) -> None:
        """Rename `old` to `new`, as in renameat2(2).

        `flags` may be RENAME_NOREPLACE or RENAME_EXCHANGE. `hidden` is the result of `hide` for the
        file at `new`, if that file is to be replaced.
        """
        with self._changing(old, new):
            is_onto_views = last_name(new).endswith(MARK) and self._views.find(new) is not None
            if is_onto_views and self._names.resolve(old).is_dir:
                # The kernel refuses this itself for mkdir, and for files that are renamed.
                raise os_error(errno.ENOTEMPTY)
            if hidden is None:
                self._enospc.run(lambda: self._namespace.rename(old, new, flags))
            else:
                with self._hidden_names.replacing(hidden):
                    self._enospc.run(
                        lambda: self._namespace.rename_over_hidden(old, new, flags, hidden)
                    )

    def hide(self, path: str, alias: str) -> HiddenName:
        """Remove the name of an open file, for adapters that know files only by path.

        `alias` is a name in the same directory. It leads to the file until its last handle is
        released, and no listing shows it. If a rename to `path` receives the result, both steps are
        one atomic replacement. The removal of the name reaches the disk only then.
        """
        with self._outside_views(path):
            return self.context.with_reserve(lambda: self._hidden_names.hide(path, alias))

    # -- attributes; for a writable view, changes of attributes are ignored

    def chmod(self, path: Place | None, mode: int, handle: int | None = None) -> None:
        """Change the permission bits."""
        if not self._is_writable_view(path, handle):
            ino = self._ino(path, handle)
            self._enospc.run(lambda: self._metadata.chmod(ino, mode))

    def chown(
        self, path: Place | None, uid: int | None, gid: int | None, handle: int | None = None
    ) -> None:
        """Change owner and group; None leaves a value unchanged."""
        if not self._is_writable_view(path, handle):
            ino = self._ino(path, handle)
            self._enospc.run(lambda: self._metadata.chown(ino, uid, gid))

    def utimens(
        self,
        path: Place | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        handle: int | None = None,
    ) -> None:
        """Change the times; None leaves a time unchanged."""
        if not self._is_writable_view(path, handle):
            ino = self._ino(path, handle)
            self._enospc.run(lambda: self._metadata.utimens(ino, atime_ns, mtime_ns))

    def getxattr(self, path: Place, name: str) -> bytes:
        """Return the value of an extended attribute."""
        found = self._find(path)
        if name == IDENTITY:
            return self._xattrs.identity(self.path_of(path))
        if isinstance(found, ViewPath):
            raise os_error(errno.ENODATA)
        return self._xattrs.get(found, name)

    def listxattr(self, path: Place, caller: Caller = _ROOT_USER) -> list[str]:
        """Return the names of the extended attributes that the caller may see."""
        found = self._find(path)
        return [] if isinstance(found, ViewPath) else self._xattrs.list(found, caller)

    def setxattr(self, path: Place, name: str, value: bytes, flags: int = 0) -> None:
        """Set an extended attribute. `flags` is 0, `os.XATTR_CREATE` or `os.XATTR_REPLACE`."""
        if self._is_writable_view(path, None):
            raise os_error(errno.EOPNOTSUPP)  # programs that copy attributes continue without them
        node = self._node(path)
        self._enospc.run(lambda: self._xattrs.set(node, name, value, flags))

    def removexattr(self, path: Place, name: str) -> None:
        """Remove an extended attribute."""
        node = self._node(path)
        self._enospc.run(lambda: self._xattrs.remove(node, name))

    # -- open files

    def open(self, path: Place, flags: int, caller: Caller) -> int:
        """Open an existing file.

        Only the access mode, O_TRUNC and O_APPEND of `flags` are used. Use `create` for new files.
        """
        self._names.require_current()  # closed on another host: the bytes must be those of now
        found = self._find(path)
        if isinstance(found, Node):
            if flags & os.O_TRUNC and flags & os.O_ACCMODE == os.O_RDONLY and found.is_file:
                self.truncate(path, 0, caller)  # as Linux file systems do; POSIX leaves it open
                found = self._node(path)
            handle = self._files.open(found, flags, caller)
            if found.nlink == 0:
                self._names.revive_alias(path, found.ino)
            return handle
        if flags & os.O_ACCMODE != os.O_RDONLY:
            if self._is_directory(found):
                raise os_error(errno.EISDIR)
            if flags & os.O_APPEND:
                raise os_error(errno.EINVAL)  # a new view has no data to append to
            upload = self._views.open_upload(found)
            if flags & os.O_TRUNC:
                upload.expect()
            return self._files.add(upload)
        is_timeline = found.video.is_dir  # its source keeps the videos
        kept = ExitStack() if is_timeline else self._files.keep_video(found.video, caller)
        try:
            return self._files.add(self._views.open(found, kept))
        except BaseException as error:
            kept.close()
            if isinstance(error, NotFoundError) and self._is_directory(found):
                raise os_error(errno.EISDIR) from None
            raise

    def create(self, path: Place, mode: int, flags: int, caller: Caller) -> int:
        """Create a file and open it.

        An existing file is opened, unless `flags` has O_EXCL.
        """
        try:
            with ExitStack() as stack:
                with self._changing(path):
                    handle = self._files.create(path, mode, caller)
                    stack.callback(self.release, handle)
                stack.pop_all()  # the name is synced now, if `syncs_names`
                return handle
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        return self.open(path, flags, caller)

    def identity(self, handle: int) -> int | str:
        """Return a value that is equal for handles of the same bytes, whatever is written later."""
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle | UploadHandle):
            return opened.version
        assert opened.inode is not None, "only views are open without an inode"
        return opened.inode.ino

    def content_version(self, handle: int) -> ContentVersion | str | None:
        """Return the version of the bytes that a handle reads.

        Also works after the inode is deleted. None for a view that is being written.
        """
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle):
            return opened.version
        inode = opened.inode
        if inode is None:
            return None
        node = self._names.node_if_any(inode.ino) or inode.last_known
        assert node is not None, "the node was known when the file was opened"
        return ContentVersion(node.ino, node.generation, inode.stamp)

    def video_size(self, handle: int) -> int | None:
        """Return the size in bytes of an open file that other processes may replace; None for
        others."""
        inode = self._files.handle(handle).inode
        node = None if inode is None else self._names.node_if_any(inode.ino)
        return None if node is None or node.state not in _PUBLISHED else node.size

    def passthrough_file(self, handle: int) -> PassthroughFile | None:
        """Return the file that a handle reads; None for a view that is being written."""
        opened = self._files.handle(handle)
        if isinstance(opened, ViewHandle):
            return opened.whole
        inode = opened.inode
        if inode is None:
            return None
        with inode.lock:
            fd = inode.fd if inode.is_immutable else None
            version = None
            if self.context.is_shared and inode.last_known is not None:
                version = f"generation {inode.last_known.generation}"
            return PassthroughFile(inode.ino, fd, version)

    def reader(self, handle: int) -> ReadInto:
        """Return the read function of a handle, to skip the lookup in `readinto`.

        It is valid until the handle is released.
        """
        return self._files.handle(handle).readinto

    def is_work(self, handle: int) -> bool:
        """Return whether reads of a handle need computation.

        Such work would continue for some time after the caller has gone.
        """
        opened = self._files.handle(handle)
        return isinstance(opened, ViewHandle) and opened.is_work

    def is_view(self, handle: int) -> bool:
        """Return whether a handle is open on a view, which may have to be rendered first."""
        return isinstance(self._files.handle(handle), ViewHandle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        buffer = bytearray(size)
        return bytes(buffer[: self._files.readinto(handle, memoryview(buffer), offset)])

    def readinto(
        self, handle: int, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        """Fill a buffer from `offset`; return the number of bytes, fewer only at the end of the
        file.

        While a view is rendered, `cancel_check` is called repeatedly. An `OSError` that it
        raises ends the wait.
        """
        return self._files.readinto(handle, buffer, offset, cancel_check)

    def write(self, handle: int, data: Buffer, offset: int) -> int:
        """Write at `offset`; return the number of bytes written."""
        return self._files.write(handle, data, offset)

    def append(self, handle: int, data: Buffer) -> tuple[int, int]:
        """Write at the current end. Return (offset of the write, number of bytes written)."""
        return self._files.append(handle, data)

    def truncate(
        self, path: Place | None, length: int, caller: Caller, handle: int | None = None
    ) -> None:
        """Set the size of a file in bytes."""
        if length < 0:
            raise os_error(errno.EINVAL)
        if handle is not None:
            self._files.truncate(handle, length)
            return
        found = self._find(path)
        if not length and isinstance(found, ViewPath) and self._is_writable_view(path, None):
            self._files.expect(found.ino)  # libfuse 2 sends O_TRUNC as a truncate after open
            return
        node = self._node(path)
        flags = os.O_WRONLY if length else os.O_WRONLY | os.O_TRUNC
        opened = self._files.open(node, flags, caller)
        try:
            if length:
                self._files.truncate(opened, length)
            self._files.flush(opened)
        finally:
            self._files.release(opened)

    def fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        """Call fallocate(2). Modes that the disk does not support are EOPNOTSUPP."""
        self._files.fallocate(handle, mode, offset, length)

    def seek(self, handle: int, offset: int, whence: int) -> int:
        """Return the offset of the next data (SEEK_DATA) or hole (SEEK_HOLE)."""
        return self._files.seek(handle, offset, whence)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, length: int
    ) -> int:
        """Copy between open files. Return the number of bytes copied, which may be less than
        `length`."""
        return self._files.copy_range(source, source_offset, target, target_offset, length)

    def note_owner(self, handle: int, owner: int) -> None:
        """Record which process has just written, by the kernel's number; 0: it is unknown."""
        self._files.note_owner(handle, owner)

    def flush(self, handle: int, owner: int = 0) -> None:
        """Handle the close of one descriptor, not necessarily the last. All writes are visible
        already. `owner` is the number of the process, as in `note_owner`."""
        self._files.flush(handle, owner)

    def fsync(self, handle: int, *, data_only: bool = False) -> None:
        """Return when the file and its name would survive a power failure."""
        self._files.fsync(handle, data_only=data_only)

    def fsync_names(self) -> None:
        """Return when all changes of names would survive a power failure."""
        if not self.context.read_only:
            self._hidden_names.settle()
            self.context.catalog.sync()

    def release(self, handle: int) -> None:
        """Close a handle."""
        self._files.release(handle)

    # -- internals

    def _find(self, path: Place | None) -> Node | ViewPath:
        """Return the node at a path, or else the view."""
        if path is None:
            raise os_error(errno.ENOENT)
        view = self._views.cached(path)
        if view is not None:
            return view
        try:
            return self._names.resolve(path)
        except OSError as error:
            found = self._views.find(path)
            if found is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return found

    def _lookup(self, entry: EntryName) -> tuple[int | ViewPath, Attributes]:
        found = self._find(entry)
        if isinstance(found, ViewPath):
            return found, self._views.attributes(found)
        return found.ino, self._open_inodes.attributes(found)

    def _attributes(self, path: Place | None) -> Attributes:
        try:
            found = self._find(path)
        except OSError as error:
            opened = None
            if isinstance(path, int) and error.errno == errno.ESTALE:
                opened = self._open_inodes.attributes_if_open(path)  # another process deleted it
            if opened is None:
                raise
            return opened
        if isinstance(found, Node):
            return self._open_inodes.attributes(found)
        return self._views.attributes(found)

    def _node(self, path: Place | None) -> Node:
        """Return the node at a path that is to be changed. Raises EROFS for views."""
        found = self._find(path)
        if isinstance(found, ViewPath):
            raise os_error(errno.EROFS)
        return found

    def _ino(self, path: Place | None, handle: int | None) -> int:
        if handle is None:
            return self._node(path).ino
        inode = self._files.handle(handle).inode
        if inode is None:
            raise os_error(errno.EROFS)
        return inode.ino

    def _directory(self, path: Place) -> Node | ViewPath:
        found = self._find(path)
        if not (found.is_dir if isinstance(found, Node) else self._is_directory(found)):
            raise os_error(errno.ENOTDIR)
        return found

    def _entries(self, directory: Node | ViewPath) -> list[ListingEntry]:
        if isinstance(directory, ViewPath):
            return [ListingEntry(*entry) for entry in self._views.list(directory)]
        children = self._names.children(directory.ino)
        return [ListingEntry(name, node.ino, node.mode) for name, node in children]

    def _is_writable_view(self, path: Place | None, handle: int | None) -> bool:
        """Return whether the path, or the open handle, is a view that can be written."""
        if handle is not None:
            return self._files.is_upload(handle)
        found = self._find(path)
        return isinstance(found, ViewPath) and bool(self._views.attributes(found).mode & 0o200)

    def _is_directory(self, view: ViewPath) -> bool:
        return stat.S_ISDIR(self._views.attributes(view).mode)

    @contextmanager
    def _changing(self, *paths: Place) -> Iterator[None]:
        """Wrap a change of names: sync it afterwards, if `syncs_names`."""
        with self._outside_views(*paths):
            yield
        if self._syncs_names:
            # The private file of a new inode has a name there.
            fsync_path(self.context.directory.spool)
            self.context.catalog.sync()

    @contextmanager
    def _outside_views(self, *paths: Place) -> Iterator[None]:
        """Raise EROFS instead of ENOENT or ENOTDIR where a path is in a view directory."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and any(map(self._views.find, paths)):
                raise os_error(errno.EROFS) from error
            raise


def _once_more(find: Callable[[_P], _R], place: _P) -> _R:
    """Return the result for a place, asking again after ESTALE: another file may be there by now.

    Once only, as an inode that is gone stays gone.
    """
    try:
        return find(place)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return find(place)
