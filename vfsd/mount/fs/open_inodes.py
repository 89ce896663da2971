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
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vfsd.core.model import ByteLocation, FileState, Node
from vfsd.disk.checksummed_file import ChecksummedFile
from vfsd.disk.direct_io import AS_BYTES
from vfsd.disk.external_files import open_linked
from vfsd.disk.store_layout import fsync_path
from vfsd.disk.tempfiles import NewFile, let_go
from vfsd.errors import NotFoundError, VfsdError
from vfsd.mount.fs import attributes
from vfsd.mount.fs.attributes import Attributes, is_private
from vfsd.mount.fs.dentry_cache import DentryCache
from vfsd.mount.fs.syscalls import copy_start, failure
from vfsd.storage.context import StoreContext


class PassthroughFile(NamedTuple):
    """The file of an inode, and a descriptor of it that is the file system's."""

    ino: int
    fd: int | None  #: of a file with these very bytes, which nobody changes; None: there is none
    version: str | None = None  #: of its bytes, where an inode may have others at another time


_log = logging.getLogger(__name__)

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOMENT_SECONDS = 1.0
_REMEMBERED = 1000

CAPABILITIES = b"security.capability"
"""The extended attribute of what a program may, whoever starts it; see capabilities(7)."""


class BackingKind(Enum):
    """What holds the bytes of an inode that is open."""

    OBJECT = "object"  #: written by the store itself, and changed by nobody
    LINKED = "linked"  #: a file indexed in place, which is read compared or not at all
    PRIVATE = "private"  #: the inode's own file, which may be written


class OpenInode:
    """The bytes of one inode, while somebody has it open.

    `fd` may be read without a lock: a descriptor that was replaced is closed only with the last
    handle.  Everything else is changed under `lock`.
    """

    __slots__ = (
        "backing",
        "dirty",
        "fd",
        "flushed",
        "grants",
        "handles",
        "ino",
        "last_known",
        "lock",
        "pins",
        "retired",
        "setid",
        "shown_ctime",
        "stamp",
        "summed",
        "synced",
        "writers",
    )

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.lock = threading.RLock()
        self.fd = -1
        self.retired: list[int] = []
        self.pins = 0  #: handles, and whoever else needs this object to stay
        self.handles = 0
        self.writers = 0  #: handles that may write
        self.backing = BackingKind.OBJECT  #: what `fd` is
        self.dirty = False  #: the row says that the bytes are being changed; just write
        self.setid = False  #: the mode has set-user-ID or set-group-ID, which a write takes away
        self.grants = False  #: it has file capabilities, which every write takes away
        self.synced = False  #: the private file's name survives a power cut
        self.shown_ctime: int | None = None  #: instead of the file's, which gets another name
        self.stamp = 0  #: another one after each write
        self.flushed = 0  #: the stamp at the last flush
        self.last_known: Node | None = None
        self.summed: ChecksummedFile | None = None  #: of a video: reads `fd`, and compares

    @property
    def is_immutable(self) -> bool:
        """Whether `fd` is an object."""
        return self.backing is BackingKind.OBJECT

    @property
    def is_private(self) -> bool:
        """Whether `fd` is the inode's own file: it may be written, once the row says so."""
        return self.backing is BackingKind.PRIVATE

    @property
    def is_about_to_be_released(self) -> bool:
        """Whether all that was written has been flushed: the writers are closing, as a rule."""
        return self.writers > 0 and self.dirty and self.flushed == self.stamp


class OpenInodes:
    """The contents of all open inodes."""

    def __init__(
        self,
        parts: StoreContext,
        names: DentryCache,
        discard_objects: Callable[[Collection[str]], None],
    ) -> None:
        self._parts = parts
        self._names = names
        self._discard_objects = discard_objects
        self._spool = os.fspath(parts.directory.spool)
        self._open: dict[int, OpenInode] = {}
        self._closed: dict[int, float] = {}
        self._guard = threading.Lock()
        self._stamps = itertools.count(1)

    # -- who has what open

    def is_open(self, ino: int) -> bool:
        content = self._open.get(ino)
        return content is not None and content.handles > 0

    def is_in_use(self, ino: int) -> bool:
        """Whether it is open, or was a moment ago."""
        closed = self._closed.get(ino)
        return self.is_open(ino) or (
            closed is not None and time.monotonic() - closed < _MOMENT_SECONDS
        )

    def peek(self, ino: int) -> OpenInode | None:
        """The content of an inode that is open; it may be closed at any moment."""
        return self._open.get(ino)

    def pin(self, ino: int) -> OpenInode:
        """An inode's content, opened or not; has to be given to `unpin` again."""
        with self._guard:
            content = self._open.get(ino)
            if content is None:
                content = self._open[ino] = OpenInode(ino)
            content.pins += 1
        return content

    def unpin(self, content: OpenInode) -> None:
        """The descriptors are closed with the last pin."""
        with self._guard:
            content.pins -= 1
            if content.pins:
                return
            del self._open[content.ino]
        for fd in (content.fd, *content.retired):
            if fd >= 0:
                os.close(fd)

    def drop_aliases(self, ino: int) -> None:
        """Let the aliases of a file lead nowhere, unless it is open: the last handle needs them."""
        with self._guard:
            if not self.is_open(ino):
                self._names.drop_aliases(ino)

    def count_in(self, content: OpenInode, *, writing: bool) -> None:
        """One more handle."""
        if writing:
            with content.lock:  # nobody starts to publish the bytes of a file that has writers
                content.writers += 1
        with self._guard:
            content.handles += 1

    def count_out(self, content: OpenInode, *, writing: bool) -> tuple[bool, bool]:
        """One handle less: whether it was the last one, and whether the last that may write.

        The names stand still while the last one goes: whoever takes one away sees the file open,
        or does not.  Others wait for nobody: the kernel does not wait for them either, and those
        that did would become more and more where many files are read and names change often.
        """
        if not writing and self._is_one_of_several(content):
            return False, False
        with content.lock:
            if writing:
                content.writers -= 1
            was_writer = writing and content.writers == 0
            if was_writer:
                content.dirty = False
            with self._names.standing_still(), self._guard:
                content.handles -= 1
                if content.handles == 0:
                    self._note_closed(content.ino)
                return content.handles == 0, was_writer

    def _is_one_of_several(self, content: OpenInode) -> bool:
        """Whether a handle that has just been closed was not the last; it is counted out then."""
        with self._guard:
            if content.handles == 1:
                return False
            content.handles -= 1
            return True

    @contextmanager
    def pinned(self, ino: int) -> Iterator[OpenInode]:
        content = self.pin(ino)
        try:
            yield content
        finally:
            self.unpin(content)

    # -- bytes

    def open(self, content: OpenInode) -> None:
        """Give a pinned content its descriptor.

        Raises `OSError`: ENOENT when the inode is gone, EIO when its bytes are.
        """
        if content.fd >= 0:
            return
        with content.lock:
            if content.fd >= 0:
                return
            node = self._names.node_if_any(content.ino)
            try:
                fd, summed = self._open_node(node)
            except FileNotFoundError:
                # It may just have become a video, or have ceased to be one.
                node = self._names.reread(content.ino)
                try:
                    fd, summed = self._open_node(node)
                except FileNotFoundError as error:
                    if node is None:
                        raise
                    _log.error(
                        "the bytes of %s are missing: %s does not exist; `vfsd fsck` tells more",
                        self._names.told(node.ino),
                        error.filename,
                    )
                    raise failure(errno.EIO) from error
            assert node is not None
            content.backing = _backing(node)
            content.setid = bool(node.mode & 0o6000)
            content.last_known = node
            content.summed = summed
            content.fd = fd

    def create_private(self, ino: int) -> int:
        """The private file of a new inode, opened; to be called before the row is committed."""
        path = f"{self._spool}/{ino}"
        try:
            return os.open(path, _CREATE, 0o600)
        except FileExistsError:  # of an inode that never came to be, and left its number
            os.unlink(path)
            return os.open(path, _CREATE, 0o600)

    def attach_new(self, content: OpenInode, node: Node, fd: int) -> None:
        """Let a pinned content have the descriptor that `create_private` made.

        Somebody may have opened the new name before, with another one.
        """
        with content.lock:
            if content.fd < 0:
                content.fd = fd
            else:
                os.close(fd)
            content.backing = BackingKind.PRIVATE
            content.dirty = True
            content.setid = bool(node.mode & 0o6000)
            content.last_known = node
            self.written(content)

    def written(self, content: OpenInode) -> None:
        """To be called after every change of the bytes."""
        content.stamp = next(self._stamps)

    def make_writable(self, content: OpenInode, *, keep: int | None = None) -> None:
        """See to it that `fd` may be written, and that the row says so first.

        Of a video's bytes the first `keep` are copied; all of them by default.  Raises `OSError`:
        ESTALE where another process has taken the video away, or put another original in its
        place, since it was opened: nobody would ever see what is written here.
        """
        with content.lock:
            if content.dirty:
                return
            node = self._names.node_if_any(content.ino)
            found = os.fstat(content.fd)
            is_own = content.is_private and self._is_own(content, node, found)
            if is_own and not _may_be_written(content.fd):
                self._reopen(content, found)
            if not is_own or (node is not None and not self._announce(node, None)):
                whole = content.is_private or keep is None
                self._copy(content, node, found.st_size if whole else min(keep or 0, found.st_size))
            content.dirty = True
            content.grants = node is not None and CAPABILITIES in self._names.xattrs(node.ino)
            content.synced = False
            content.shown_ctime = None

    def sync(self, content: OpenInode, *, data_only: bool) -> None:
        """Make the bytes survive a power cut, and the private file's name."""
        (os.fdatasync if data_only else os.fsync)(content.fd)
        if content.is_private and not content.synced:
            fsync_path(self._parts.directory.spool)
            content.synced = True

    # -- attributes

    def attributes(self, node: Node) -> Attributes:
        """Of a node of any kind, open or not.  Raises `OSError`: ESTALE when it is gone."""
        if not is_private(node):
            return attributes.of_row(node)
        try:
            found = os.stat(f"{self._spool}/{node.ino}")  # thousands of times for a listing
        except FileNotFoundError:
            now = self._names.reread(node.ino)  # it may have become a video meanwhile
            if now is None:
                raise failure(errno.ESTALE) from None
            return attributes.of_row(now)
        content = self._open.get(node.ino)
        shown = None if content is None else content.shown_ctime
        return attributes.of_private(node, found, shown)

    def attributes_of_open(self, content: OpenInode) -> Attributes:
        """Also of an inode that another process has taken away."""
        node = self._names.node_if_any(content.ino)
        if node is not None and not is_private(node):
            return attributes.of_row(node)
        found = os.fstat(content.fd)
        if node is None:
            assert content.last_known is not None
            node = replace(content.last_known, nlink=0)
        return attributes.of_private(node, found, content.shown_ctime)

    # -- inside

    def _note_closed(self, ino: int) -> None:
        now = time.monotonic()
        if len(self._closed) >= _REMEMBERED:
            self._closed = {
                each: at for each, at in self._closed.items() if now - at < _MOMENT_SECONDS
            }
        self._closed[ino] = now

    def _open_node(self, node: Node | None) -> tuple[int, ChecksummedFile | None]:
        """A descriptor of its bytes, and how to read them where that is not as they are."""
        if node is None:
            raise failure(errno.ENOENT)
        if is_private(node):
            path = f"{self._spool}/{node.ino}"  # put together by pathlib in the time of an open(2)
            if not self._parts.read_only:
                try:
                    return os.open(path, os.O_RDWR | AS_BYTES), None
                except OSError as error:
                    if error.errno != errno.EROFS:
                        raise
            return os.open(path, os.O_RDONLY | AS_BYTES), None
        place = ByteLocation(node.object_key, node.link_path)
        stored = self._parts.path_of(place)
        if node.link_path is not None:
            fd = open_linked(stored, self._parts.directory.top)
        else:
            fd = os.open(stored, os.O_RDONLY | AS_BYTES)
        return fd, self._parts.summed.opened(stored, place, fd)

    def _reopen(self, content: OpenInode, found: os.stat_result) -> None:
        """Open a private file for writing that was opened while its disk was read-only.

        Raises `OSError`: EROFS where it still is, ESTALE for another file.
        """
        fd = os.open(f"{self._spool}/{content.ino}", os.O_RDWR | AS_BYTES)
        if not os.path.samestat(os.fstat(fd), found):
            os.close(fd)
            raise failure(errno.ESTALE)
        content.retired.append(content.fd)
        content.fd = fd

    def _is_own(self, content: OpenInode, node: Node | None, found: os.stat_result) -> bool:
        """Whether nobody but the inode counts on the bytes of its private file.

        One with a second name has become, or nearly became, an object; and so has one in whose
        place a copy was put, which the row was then not told of.
        """
        if found.st_nlink > 1 or (node is not None and node.state is FileState.VIDEO):
            return False
        try:
            return os.path.samestat(found, os.stat(f"{self._spool}/{content.ino}"))
        except FileNotFoundError:
            return node is None  # with a row it has become an object, which is not known here yet

    def _copy(self, content: OpenInode, node: Node | None, length: int) -> None:
        """Put a private copy in the place of the bytes that must not be written.

        It is on the disk before the row says so: from then on nothing holds the bytes that it was
        made of, and whoever looks for garbage deletes them.
        """
        if node is None:
            raise failure(errno.ESTALE)
        with NewFile(partial(self._parts.directory.new_spool_copy, content.ino), mode=0o600) as new:
            fd = os.dup(new.file.fileno())
            try:
                if content.summed is not None:
                    length = content.summed.known(0, length)
                    content.summed.require(0, length)  # damage is not to become what was written
                copy_start(content.fd, fd, length)
                before = self.attributes(node)
                os.utime(fd, ns=(before.atime_ns, before.mtime_ns))
                if length:  # else there is nothing that could be lost but the name of nothing
                    os.fsync(fd)
                self._announce(node, str(new.path), is_kept=length > 0)
            except BaseException:
                os.close(fd)
                self._withdraw(content.ino, self._parts.directory.spool_file(content.ino))
                raise
        let_go(fd)
        content.retired.append(content.fd)
        content.fd = fd
        content.summed = None
        content.backing = BackingKind.PRIVATE

    def _withdraw(self, ino: int, private: Path) -> None:
        """Take a private file away again that the row knows nothing of, as it was not written."""
        with suppress(VfsdError, OSError):  # the next mount does it, or `vfsd gc`
            node = self._names.reread(ino)
            if node is not None and not is_private(node):
                private.unlink(missing_ok=True)

    def _announce(self, node: Node, copy: str | None, *, is_kept: bool = False) -> bool:
        """Say in the row that the bytes change; `copy` becomes the private file with it, for good
        if `is_kept`.  Without a copy nothing is said, and False, of what has become a video."""
        with self._names.changing() as change:
            change.touch(node.ino)
            try:
                now = change.tree.node(node.ino)
            except NotFoundError:
                if copy is not None:
                    raise failure(errno.ESTALE) from None
                return True  # taken away meanwhile; what is written goes when the handles go
            if copy is None and now.state is FileState.VIDEO:
                return False
            change.transaction.originals.require_free(node.ino)
            if copy is not None:
                os.replace(copy, self._parts.directory.spool_file(node.ino))
                if is_kept:
                    fsync_path(self._parts.directory.spool)
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
        self._discard_objects(keys)
        return True


def _may_be_written(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _backing(node: Node) -> BackingKind:
    if is_private(node):
        return BackingKind.PRIVATE
    return BackingKind.OBJECT if node.link_path is None else BackingKind.LINKED
