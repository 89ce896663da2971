"""The adapter to libfuse's low-level interface, where the kernel names files by inode."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ctypes import c_int, c_uint64, c_void_p
from functools import partial
from typing import Any, NoReturn

from vfsd.mount.fs import (
    Attributes,
    Caller,
    EntryName,
    Filesystem,
    ListingEntry,
    OperationCounters,
    ViewPath,
    os_error,
)
from vfsd.mount.fuse import lowlevel
from vfsd.mount.fuse.invalidation import is_appended_directly
from vfsd.mount.fuse.kernel_nodes import KernelNodes, ViewNode
from vfsd.mount.fuse.libfuse import Binding
from vfsd.mount.fuse.libfuse3 import (
    ASYNC_DIO,
    BLOCK_SIZE,
    CHANGING_FLAGS,
    HANDLE_KILLPRIV_V2,
    MAX_BACKGROUND,
    READABLE_MEMORY,
    SPLICE,
    memory_at,
)
from vfsd.mount.fuse.lowlevel import Answer, Requests
from vfsd.mount.fuse.open_paths import ReadDispatch, ViewReaders
from vfsd.mount.fuse.passthrough import Passthrough

_log = logging.getLogger(__name__)

_EXPORT_SUPPORT = 1 << 4
_CACHE_SYMLINKS = 1 << 23
# FUSE_SET_ATTR_...
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME = (1 << bit for bit in range(6))
_ATIME_NOW, _MTIME_NOW = 1 << 7, 1 << 8
_UNKNOWN_INO = 0xFFFFFFFF
# A retry after ESTALE arrives at once, or never if the caller may not open the name any more.
_RETRY_SECONDS = 1.0
_MOST_RETRIES = 10_000


class InodeAdapter:
    """Translates requests of the kernel into calls of a `Filesystem`.

    Methods without underscores are callbacks, named as in ``struct fuse_lowlevel_ops``. Their
    result is the reply, and an exception becomes an errno.
    """

    def __init__(
        self,
        binding: Binding,
        filesystem: Filesystem,
        *,
        given: Callable[[str], str | None],
        keeps_views: bool,
        bypass: bool,
        passthrough: Passthrough | None,
        counters: OperationCounters,
        on_init: Callable[[], None],
    ) -> None:
        """Create it for one mount.

        Args:
            binding: The Python binding of libfuse 3.
            filesystem: Serves the requests.
            given: Returns a mount option by name, or None; options override the defaults here.
            keeps_views: Whether file handles of views stay valid.
            bypass: Whether writers may bypass the kernel's cache.
            passthrough: Lets the kernel read stored files directly; None: never.
            counters: Statistics of the operations.
            on_init: Called when the mount is up.
        """
        module = binding.module
        self._binding = binding
        self._fs = filesystem
        self._given = given
        self._bypass = bypass
        self._passthrough = passthrough
        self._on_init = on_init
        self._file_info = module.fuse_file_info
        self._stat = module.c_stat
        self._fh_at: int = module.fuse_file_info.fh.offset
        self._lock_owner_at: int = module.fuse_file_info.lock_owner.offset
        self._requests = Requests(
            module._libfuse, counters, handle_at=self._fh_at, path_of=self._shown
        )
        self._packer = lowlevel.Packer(
            attr_timeout=float(given("attr_timeout") or 1.0),
            entry_timeout=float(given("entry_timeout") or 1.0),
            negative_timeout=float(given("negative_timeout") or 0.0),
            block_size=BLOCK_SIZE,
            owner=(_number(given("uid")), _number(given("gid"))),
            umask=_number(given("umask"), 8),
        )
        self._nodes = KernelNodes(keeps_views=keeps_views)
        counters.known_inodes = self._nodes.__len__
        self._view_readers = ViewReaders(self._requests.is_interrupted, self._requests.thread)
        self._readers = ReadDispatch(filesystem, self._view_readers)
        self._listings: dict[int, list[ListingEntry]] = {}  # by handle
        self._direct: set[int] = set()  # handles with direct I/O, whatever their flags are now
        self._retries: dict[int, float] = {}  # threads that got ESTALE, until when a retry may come
        self._outside_changes = filesystem.outside_changes()
        self._notes_owners = filesystem.context.is_shared
        self._notifier = ThreadPoolExecutor(1, thread_name_prefix="vfsd-notifier")
        self._session: lowlevel.KernelSession | None = None
        self._callbacks: list[Any] = []  # libfuse keeps no reference

    def session(self, words: list[str]) -> lowlevel.KernelSession:
        """Return the session of this mount, with these options for libfuse and the kernel."""
        table = lowlevel.Table()
        special: dict[str, Callable[..., None]] = {
            "init": self.init,
            "forget": self.forget,
            "forget_multi": self.forget_multi,
            "read": self._requests.read_callback(self._readers.files, self._readers.views),
        }
        for name, arguments in lowlevel.ARGUMENTS.items():
            if arguments is None:
                continue
            answer = special.get(name) or self._requests.callback(name, getattr(self, name))
            callback = ctypes.CFUNCTYPE(None, *arguments)(answer)
            self._callbacks.append(callback)
            setattr(table, name, ctypes.cast(callback, c_void_p).value)
        self._session = lowlevel.KernelSession(self._binding, table, words)
        return self._session

    def close(self) -> None:
        """Release resources. Call it after the session has ended."""
        self._notifier.shutdown(wait=False, cancel_futures=True)
        if self._passthrough is not None:
            self._passthrough.close()

    # -- life

    def init(self, _userdata: int, connection_at: int) -> None:
        connection = self._binding.module.fuse_conn_info.from_address(connection_at)
        # Splicing is slower than copying here, for reads and for writes.
        connection.want &= ~SPLICE
        # The kernel does not invalidate its cache after an asynchronous direct write.
        connection.want &= ~ASYNC_DIO
        connection.want |= connection.capable & (_EXPORT_SUPPORT | _CACHE_SYMLINKS)
        if (self._binding.major, self._binding.minor) >= (3, 17):
            # Otherwise the kernel asks for security.capability before every write.
            connection.want |= connection.capable & HANDLE_KILLPRIV_V2
        connection.max_background = int(self._given("max_background") or MAX_BACKGROUND)
        # The kernel takes this from mount(2), libfuse from here. The mount fails unless they agree.
        connection.max_read = int(self._given("max_read") or 0)
        if self._passthrough is not None and self._session is not None:
            self._passthrough.start_session(self._session.address or 0, connection)
        self._on_init()

    # -- looking

    def lookup(self, request: int, parent: int, name: bytes) -> Answer:
        self._notice_changes()
        place = self._place(parent)
        try:
            if name == b".":
                return self._entry(place, self._fs.getattr(place))
            if name == b"..":
                place = self._fs.parent(place)
                return self._entry(place, self._fs.getattr(place))
            return self._entry(*self._fs.lookup(EntryName(place, os.fsdecode(name))))
        except FileNotFoundError:
            missing = self._packer.missing
            if missing is None:
                raise
            return missing

    def forget(self, request: int, node: int, count: int) -> None:
        self._requests.forget(request, partial(self._nodes.forget, node, count))

    def forget_multi(self, request: int, count: int, forgets_at: int) -> None:
        data = ctypes.string_at(forgets_at, count * lowlevel.FORGET.size)

        def forget() -> None:
            for node, lookups in lowlevel.FORGET.iter_unpack(data):
                self._nodes.forget(node, lookups)

        self._requests.forget(request, forget)

    def getattr(self, request: int, node: int, info: int | None) -> Answer:
        found, is_cached = self._attributes(node, self._handle(info) if info else None)
        return self._packer.attr(found, is_cached=is_cached)

    def readlink(self, request: int, node: int) -> Answer:
        return os.fsencode(self._fs.readlink(self._place(node)))

    def statfs(self, request: int, node: int) -> Answer:
        return lowlevel.statfs(self._fs.statfs())

    def opendir(self, request: int, node: int, info: int) -> Answer:
        handle = self._fs.opendir(self._place(node))
        return lowlevel.OPEN.pack(handle, 0, 0), partial(self._fs.releasedir, handle)

    def readdir(self, request: int, node: int, size: int, offset: int, info: int) -> Answer:
        parts: list[bytes] = []
        for number, entry in self._listed(node, self._handle(info), offset):
            part = lowlevel.dirent(entry.ino, number, entry.mode, os.fsencode(entry.name))
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
        return b"".join(parts)

    def readdirplus(self, request: int, node: int, size: int, offset: int, info: int) -> Answer:
        place, parts, names = self._place(node), list[bytes](), list[str]()
        for number, listed in self._listed(node, self._handle(info), offset):
            part = lowlevel.dirent(listed.ino, number, listed.mode, os.fsencode(listed.name))
            size -= len(part) + lowlevel.ENTRY_BYTES
            if size < 0:
                break
            parts.append(part)
            names.append(listed.name)
        changes = self._nodes.changes
        # The attributes of a view cost as much as a lookup of it.
        found = self._fs.lookup_all(place, names) if isinstance(place, int) else [None] * len(names)
        entries = [None if each is None else self._packed_entry(each.ino, each) for each in found]
        looked_up = [each.ino for each in found if each is not None]
        self._nodes.looked_up_files(looked_up, changes)
        reply = b"".join(map(lowlevel.direntplus, entries, parts))
        return reply, partial(self._forget_nodes, looked_up)

    def releasedir(self, request: int, node: int, info: int) -> None:
        handle = self._handle(info)
        self._listings.pop(handle, None)
        self._fs.releasedir(handle)

    def fsyncdir(self, request: int, node: int, data_only: int, info: int) -> None:
        self._fs.fsync_names()

    # -- names

    def mknod(self, request: int, parent: int, name: bytes, mode: int, device: int) -> Answer:
        entry = self._name(parent, name)
        self._fs.mknod(entry, mode, device, self._requests.caller(request))
        return self._entry(*self._fs.lookup(entry))

    def mkdir(self, request: int, parent: int, name: bytes, mode: int) -> Answer:
        entry = self._name(parent, name)
        self._fs.mkdir(entry, mode, self._requests.caller(request))
        return self._entry(*self._fs.lookup(entry))

    def unlink(self, request: int, parent: int, name: bytes) -> None:
        self._fs.unlink(self._name(parent, name))

    def rmdir(self, request: int, parent: int, name: bytes) -> None:
        self._fs.rmdir(self._name(parent, name))

    def symlink(self, request: int, target: bytes, parent: int, name: bytes) -> Answer:
        entry = self._name(parent, name)
        self._fs.symlink(entry, os.fsdecode(target), self._requests.caller(request))
        return self._entry(*self._fs.lookup(entry))

    def link(self, request: int, node: int, parent: int, name: bytes) -> Answer:
        place = self._place(node)
        self._fs.link(place, self._name(parent, name))
        return self._entry(place, self._fs.getattr(place))

    def rename(
        self, request: int, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        self._fs.rename(self._name(parent, name), self._name(new_parent, new_name), flags)

    # -- attributes

    def setattr(
        self, request: int, node: int, stat_at: int, changed: int, info: int | None
    ) -> Answer:
        handle = self._handle(info) if info else None
        place = None if handle is not None else self._place(node)
        given = self._stat.from_address(stat_at)
        if changed & _MODE:
            self._fs.chmod(place, given.st_mode, handle)
        if changed & (_UID | _GID):
            uid = given.st_uid if changed & _UID else None
            self._fs.chown(place, uid, given.st_gid if changed & _GID else None, handle)
        if changed & _SIZE:
            if self._passthrough is not None and handle is None:
                self._passthrough.require_idle(node)
            self._fs.truncate(place, given.st_size, self._requests.caller(request), handle)
        if changed & (_ATIME | _MTIME):
            now = time.time_ns()
            atime = now if changed & _ATIME_NOW else _nanoseconds(given.st_atimespec)
            mtime = now if changed & _MTIME_NOW else _nanoseconds(given.st_mtimespec)
            self._fs.utimens(
                place,
                atime if changed & _ATIME else None,
                mtime if changed & _MTIME else None,
                handle,
            )
        found, is_cached = self._attributes(node, handle)
        return self._packer.attr(found, is_cached=is_cached)

    def setxattr(
        self, request: int, node: int, name: bytes, value_at: int, size: int, flags: int
    ) -> None:
        value = ctypes.string_at(value_at, size) if size else b""
        self._fs.setxattr(self._place(node), os.fsdecode(name), value, flags)

    def getxattr(self, request: int, node: int, name: bytes, size: int) -> Answer:
        return _value(self._fs.getxattr(self._place(node), os.fsdecode(name)), size)

    def listxattr(self, request: int, node: int, size: int) -> Answer:
        names = self._fs.listxattr(self._place(node), self._requests.caller(request))
        return _value(b"".join(os.fsencode(name) + b"\0" for name in names), size)

    def removexattr(self, request: int, node: int, name: bytes) -> None:
        self._fs.removexattr(self._place(node), os.fsdecode(name))

    # -- open files

    def open(self, request: int, node: int, info_at: int) -> Answer:
        flags = c_int.from_address(info_at).value
        self._requests.begin(request)
        is_retry = self._is_retry()
        self._notice_changes()
        view = self._nodes.view(node)
        is_writing_view = view is not None and flags & os.O_ACCMODE != os.O_RDONLY
        if not is_retry and not self._nodes.is_fresh(node):
            self._send_back()
        if view is not None and (view.is_outdated or (is_writing_view and view.handles)):
            self._nodes.outdate(view)
            self._send_back()
        is_changing = bool(flags & CHANGING_FLAGS)
        try:
            caller = self._requests.caller(request)
            handle = self._open(node, flags, caller, is_changing=is_changing)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            if is_retry:
                raise os_error(errno.ENOENT) from error
            self._send_back()  # the kernel creates the file if the caller asked for that
        with self._released_on_error(node, handle):
            if view is not None:
                self._enter_view(view, handle, is_writing=is_writing_view)
            self._readers.enter(handle)
            backing = 0 if is_changing else self._backing(node, handle)
            answer = lowlevel.OPEN.pack(handle, *self._choose(node, handle, flags, backing))
        return answer, partial(self._release, node, handle)

    def create(self, request: int, parent: int, name: bytes, mode: int, info_at: int) -> Answer:
        flags = c_int.from_address(info_at).value
        entry = self._name(parent, name)
        handle = self._fs.create(entry, mode, flags, self._requests.caller(request))
        found = self._fs.getattr(None, handle)
        place = self._fs.lookup(entry)[0] if found.is_view else found.ino
        node = self._nodes.looked_up(place, found)
        try:
            with self._released_on_error(node, handle):
                view = self._nodes.view(node)
                if view is not None:
                    is_writing = flags & os.O_ACCMODE != os.O_RDONLY
                    self._enter_view(view, handle, is_writing=is_writing)
                self._readers.enter(handle)
                if self._passthrough is not None and view is None:
                    self._passthrough.reserve(node)
                    self._passthrough.opened(handle, node)
                opened = lowlevel.OPEN.pack(handle, *self._choose(node, handle, flags, 0))
        except BaseException:
            self._nodes.forget(node, 1)
            raise

        def take_back() -> None:
            self._release(node, handle)
            self._nodes.forget(node, 1)

        return self._packed_entry(node, found) + opened, take_back

    def write(
        self, request: int, node: int, buffer: int, size: int, offset: int, info: int
    ) -> Answer:
        handle = c_uint64.from_address(info + self._fh_at).value
        taken = 0
        try:
            taken = self._fs.write(handle, memory_at(buffer, size, READABLE_MEMORY), offset)
            if self._notes_owners:
                self._fs.note_owner(handle, c_uint64.from_address(info + self._lock_owner_at).value)
            flags = c_int.from_address(info).value
            if flags & os.O_DSYNC and handle in self._direct:
                # Set by O_DSYNC, RWF_DSYNC or the mount. For cached writes the kernel sends FSYNC.
                self._fs.fsync(handle, data_only=flags & os.O_SYNC != os.O_SYNC)
        finally:
            # The kernel caches the bytes of a shared mapping before it sends them, and keeps them
            # when the write fails. It drops them only after the reply.
            if taken < size:
                self._invalidate(node)
        return taken

    def flush(self, request: int, node: int, info: int) -> None:
        handle = self._handle(info)
        self._requests.begin(request)
        self._view_readers.flushed(handle)
        self._fs.flush(handle, c_uint64.from_address(info + self._lock_owner_at).value)

    def release(self, request: int, node: int, info: int) -> None:
        self._release(node, self._handle(info))

    def fsync(self, request: int, node: int, data_only: int, info: int) -> None:
        self._fs.fsync(self._handle(info), data_only=bool(data_only))

    def fallocate(
        self, request: int, node: int, mode: int, offset: int, length: int, info: int
    ) -> None:
        self._fs.fallocate(self._handle(info), mode, offset, length)

    def copy_file_range(
        self,
        request: int,
        _source_node: int,
        source_offset: int,
        source: int,
        _target_node: int,
        target_offset: int,
        target: int,
        length: int,
        _flags: int,
    ) -> int:
        read, written = self._handle(source), self._handle(target)
        return self._fs.copy_range(read, source_offset, written, target_offset, length)

    def lseek(self, request: int, node: int, offset: int, whence: int, info: int) -> Answer:
        return lowlevel.OFFSET.pack(self._fs.seek(self._handle(info), offset, whence))

    # -- inside: names and attributes

    def _place(self, node: int) -> int | ViewPath:
        place = self._nodes.place(node)
        if place is None:
            raise os_error(errno.ESTALE)
        return place

    def _name(self, parent: int, name: bytes) -> EntryName:
        return EntryName(self._place(parent), os.fsdecode(name))

    def _entry(self, place: int | ViewPath, found: Attributes) -> tuple[bytes, Callable[[], None]]:
        node = self._nodes.looked_up(place, found)
        return self._packed_entry(node, found), partial(self._nodes.forget, node, 1)

    def _packed_entry(self, node: int, found: Attributes) -> bytes:
        generation = self._nodes.generation(node)
        return self._packer.entry(node, generation, found, is_cached=_may_cache(found))

    def _attributes(self, node: int, handle: int | None) -> tuple[Attributes, bool]:
        """Return the attributes of a node, and whether the kernel may cache them.

        While a view is read, its handles have the size: it may be rendered in another size since,
        or its video may be gone.
        """
        view = self._nodes.view(node)
        found = None
        if handle is not None:
            found = self._fs.getattr(None, handle)
        elif view is not None and not view.is_written:
            for each in tuple(view.handles):
                with suppress(OSError):  # it was closed just now
                    found = self._fs.getattr(None, each)
                    break
        if found is None:
            found = self._fs.getattr(self._place(node))
        return found, _may_cache(found) and not (view is not None and view.is_written)

    def _listed(self, node: int, handle: int, offset: int) -> Iterator[tuple[int, ListingEntry]]:
        """Yield the entries of an open directory from an offset, each with the next offset."""
        if offset == 0 or handle not in self._listings:
            place = self._place(node)
            ino = place if isinstance(place, int) else place.ino
            self._listings[handle] = [
                ListingEntry(".", ino, stat.S_IFDIR),
                ListingEntry("..", _UNKNOWN_INO, stat.S_IFDIR),
                *self._fs.readdir(handle),
            ]
        entries = self._listings[handle]
        for number in range(offset, len(entries)):
            yield number + 1, entries[number]

    def _forget_nodes(self, nodes: list[int]) -> None:
        for node in nodes:
            self._nodes.forget(node, 1)

    def _notice_changes(self) -> None:
        """Have the kernel look up names again after a change by another process."""
        changes = self._fs.outside_changes()
        if changes == self._outside_changes:
            return
        self._outside_changes = changes
        self._nodes.names_changed()
        if self._session is not None:
            self._session.expire_names()

    # -- inside: open files

    def _send_back(self) -> NoReturn:
        """Make the kernel look up and open the name again.

        This works once: after a second ESTALE the kernel fails the open.
        """
        if len(self._retries) >= _MOST_RETRIES:
            self._retries.clear()
        self._retries[self._requests.thread()] = time.monotonic() + _RETRY_SECONDS
        raise os_error(errno.ESTALE)

    def _is_retry(self) -> bool:
        """Return whether this thread has got ESTALE just before."""
        until = self._retries.pop(self._requests.thread(), None) if self._retries else None
        return until is not None and time.monotonic() < until

    def _open(self, node: int, flags: int, caller: Caller, *, is_changing: bool) -> int:
        place = self._place(node)
        if self._passthrough is None or not is_changing:
            return self._fs.open(place, flags, caller)
        self._passthrough.reserve(node)
        try:
            handle = self._fs.open(place, flags, caller)
        except BaseException:
            self._passthrough.cancel(node)
            raise
        self._passthrough.opened(handle, node)
        return handle

    def _enter_view(self, view: ViewNode, handle: int, *, is_writing: bool) -> None:
        version = self._fs.identity(handle)
        found = None if is_writing else self._fs.getattr(None, handle)
        if not self._nodes.opened(view, handle, version, found):
            self._send_back()

    def _choose(self, node: int, handle: int, flags: int, backing: int) -> tuple[int, int]:
        """Return the flags for the reply to an open, and the backing id."""
        if backing:
            return lowlevel.FOPEN_PASSTHROUGH | lowlevel.FOPEN_NOFLUSH, backing
        access = flags & os.O_ACCMODE
        chosen = 0
        if access == os.O_RDONLY and not self._fs.is_work(handle):
            chosen |= lowlevel.FOPEN_NOFLUSH  # closing a handle that only reads has no effect
        # With O_DSYNC the kernel syncs once per write, and the mount once per part of it.
        is_direct = access == os.O_WRONLY and not flags & os.O_DSYNC
        if self._bypass and (is_direct or is_appended_directly(flags)):
            self._direct.add(handle)
            return chosen | lowlevel.FOPEN_DIRECT_IO, 0
        version = self._fs.content_version(handle)
        if version is not None and self._nodes.swap_version(node, version) == version:
            chosen |= lowlevel.FOPEN_KEEP_CACHE
        return chosen, 0

    def _backing(self, node: int, handle: int) -> int:
        """Return the backing id of a file that the kernel reads itself; 0: requests come here."""
        if self._passthrough is None:
            return 0
        whole = self._fs.passthrough_file(handle)
        if whole is None:
            return 0
        return self._passthrough.open_for_reading(handle, whole._replace(ino=node))

    @contextmanager
    def _released_on_error(self, node: int, handle: int) -> Iterator[None]:
        """Release the handle if the open fails, since the kernel will not release it then."""
        try:
            yield
        except BaseException:
            self._release(node, handle)
            raise

    def _release(self, node: int, handle: int) -> None:
        self._nodes.released(node, handle)
        try:
            self._fs.release(handle)
        finally:
            self._direct.discard(handle)
            self._readers.leave(handle)
            if self._passthrough is not None:
                self._passthrough.released(handle)

    def _invalidate(self, node: int) -> None:
        """Drop the kernel's cache of a node, by another thread, since this one has yet to reply."""
        self._nodes.swap_version(node, None)
        if self._session is not None:
            with suppress(RuntimeError):  # the mount ends, and the kernel's cache with it
                self._notifier.submit(self._session.invalidate, node)

    # -- inside: the request

    def _handle(self, info: int) -> int:
        return c_uint64.from_address(info + self._fh_at).value

    def _shown(self, arguments: tuple[Any, ...]) -> str | None:
        """Return the path that a request refers to, for a log."""
        nodes = [each for each in arguments if isinstance(each, int)]
        names = [each for each in arguments if isinstance(each, bytes)]
        try:
            place = self._place(nodes[0])
            return self._fs.path_of(EntryName(place, os.fsdecode(names[-1])) if names else place)
        except Exception:
            return f"inode {nodes[0]}" if nodes else None


def _may_cache(found: Attributes) -> bool:
    """Return whether the kernel may cache attributes.

    The file system clears set-ID bits at a write, unseen by the kernel.
    """
    return not (stat.S_ISREG(found.mode) and found.mode & (stat.S_ISUID | stat.S_ISGID))


def _nanoseconds(given: Any) -> int:
    return int(given.tv_sec) * 1_000_000_000 + int(given.tv_nsec)


def _number(text: str | None, base: int = 10) -> int | None:
    return None if text is None else int(text, base)


def _value(value: bytes, size: int) -> bytes:
    """Return a value; with `size` 0, only its size. Raises `OSError` (ERANGE) if it is larger."""
    if not size:
        return lowlevel.COUNT.pack(len(value), 0)
    if len(value) > size:
        raise os_error(errno.ERANGE)
    return value
