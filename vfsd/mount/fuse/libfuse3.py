"""The adapter to libfuse 3: one thin C callback for each operation.

mfusepy provides the structures of each libfuse version and starts the session. Its own callbacks
are not used. They drop the flags of rename, the handles of chmod, chown, truncate and utimens, and
the "now" and "omit" of utimens. They lack lseek and copy_file_range, and are slower than the work
itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int, c_ssize_t, c_uint64, c_void_p
from typing import Any

from vfsd.mount.fs import Attributes, Caller, Filesystem, OperationCounters, os_error
from vfsd.mount.fuse.callback_context import (
    UTIME_NOW,
    UTIME_OMIT,
    CallbackThreads,
    HiddenPaths,
    HideRequests,
    errno_of,
)
from vfsd.mount.fuse.invalidation import KernelCacheInvalidator
from vfsd.mount.fuse.libfuse import ARGUMENTS, RESULTS, Binding, Filler, begin_generation
from vfsd.mount.fuse.open_paths import ReadDispatch, ViewReaders
from vfsd.mount.fuse.passthrough import Passthrough

BLOCK_SIZE = 1 << 19
"""Reported as ``st_blksize``: the advised size of reads and writes, in bytes."""

# 192 were too few for 300 readers of views: plain reads waited for renders.
MAX_BACKGROUND = 1024
"""Read-ahead requests of the kernel at a time. With fewer, reads of plain files would wait behind
views that are being rendered. Each reader of such a view has one or two."""

_UNCHANGED_ID = 0xFFFFFFFF  # chown's -1
WRITABLE_MEMORY = 0x200
READABLE_MEMORY = 0x100

SPLICE = 1 << 7 | 1 << 8 | 1 << 9  # write, move, read
ASYNC_DIO = 1 << 15
HANDLE_KILLPRIV_V2 = 1 << 21
CHANGING_FLAGS = os.O_ACCMODE | os.O_TRUNC

memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
memory_at.restype = ctypes.py_object
memory_at.argtypes = [c_void_p, c_ssize_t, c_int]


class Libfuse3Adapter:
    """Translates libfuse's callbacks into calls of a `Filesystem`.

    Methods without underscores are the callbacks, named as in ``struct fuse_operations``. Their
    result is the reply, and an exception becomes a negative errno.
    """

    def __init__(
        self,
        binding: Binding,
        filesystem: Filesystem,
        *,
        given: Callable[[str], str | None],
        bypass: bool,
        passthrough: Passthrough | None,
        counters: OperationCounters,
        on_init: Callable[[], None],
    ) -> None:
        """Create it for one mount.

        Args:
            binding: the Python binding of libfuse 3.
            filesystem: serves the requests.
            given: returns a mount option by name, or None; options override the defaults here.
            bypass: whether writers may bypass the kernel's cache.
            passthrough: lets the kernel read stored files directly; None: never.
            counters: statistics of the operations.
            on_init: called when the mount is up.
        """
        module = binding.module
        self._binding = binding
        self._fs = filesystem
        self._given = given
        self._passthrough = passthrough
        self._threads = CallbackThreads(counters)
        self._on_init = on_init
        self._file_info = module.fuse_file_info
        self._stat = module.c_stat
        self._statvfs = module.c_statvfs
        self._timespecs = module.c_timespec * 2
        self._context = module._libfuse.fuse_get_context
        interrupted = module._libfuse.fuse_interrupted
        interrupted.restype, interrupted.argtypes = c_int, []
        self._view_readers = ViewReaders(interrupted, lambda: int(self._context().contents.pid))
        self._readers = ReadDispatch(filesystem, self._view_readers)
        self._cache = KernelCacheInvalidator(
            module._libfuse, self._context, filesystem, self._readers, bypass=bypass
        )
        self._hidden = HiddenPaths(None)
        self._hiding = HideRequests(module._libfuse)
        self._counters = counters
        self._fh_at: int = module.fuse_file_info.fh.offset
        self._lock_owner_at: int = module.fuse_file_info.lock_owner.offset
        self._notes_owners = filesystem.context.is_shared
        self._can_skip_flush = hasattr(module.fuse_file_info, "noflush")
        self._callbacks: list[Any] = []  # libfuse keeps no reference

    def operations(self) -> Any:
        """Return the filled ``struct fuse_operations``, valid as long as this object lives."""
        table = self._binding.module.fuse_operations()
        for name, arguments in ARGUMENTS.items():
            prototype = ctypes.CFUNCTYPE(RESULTS.get(name, c_int), *arguments)
            answer = self._read_callback() if name == "read" else None
            callback = prototype(answer or self._callback(name, getattr(self, name)))
            self._callbacks.append(callback)
            setattr(table, name, ctypes.cast(callback, type(getattr(table, name))))
        return table

    def _callback(self, name: str, method: Callable[..., int | None]) -> Callable[..., int]:
        thread_counts, clock = self._threads.counts, time.perf_counter_ns

        def answer(*arguments: Any) -> int:
            counts = thread_counts()
            began = clock()
            try:
                result = method(*arguments) or 0
            except BaseException as error:
                result = -errno_of(error, name, arguments[0])
            counts[name].note(clock() - began, result)
            return result

        return answer

    def _read_callback(self) -> Callable[..., int]:
        """Return the callback for read, by far the most frequent operation.

        It does the same as `_callback` with a method, without the inner calls.
        """
        thread_counts, clock = self._threads.counts, time.perf_counter_ns
        at, fh_at = c_uint64.from_address, self._fh_at
        memory, writable, counters = memory_at, WRITABLE_MEMORY, self._counters
        files, views = self._readers.files, self._readers.views
        past_cache = self._readers.past_cache

        def answer(path: int, buffer: int, size: int, offset: int, info: int) -> int:
            counts = thread_counts()
            began = clock()
            try:
                handle = at(info + fh_at).value
                read = files.get(handle)
                if read is not None:
                    counters.file_read_ns = began
                else:
                    read = views.get(handle)
                if past_cache and handle in past_cache:
                    self._require_reader(handle, offset, info)
                if read is None:
                    result = -errno.EBADF
                else:
                    result = read(memory(buffer, size, writable), offset)
            except BaseException as error:
                result = -errno_of(error, "read", path)
            counts["read"].note(clock() - began, result)
            return result

        return answer

    # -- life

    def init(self, connection_at: int, config_at: int) -> None:
        module = self._binding.module
        connection = module.fuse_conn_info.from_address(connection_at)
        config = module.fuse_config.from_address(config_at)
        # Splicing is slower than copying here, for reads and for writes.
        connection.want &= ~SPLICE
        # The kernel does not invalidate its cache after an asynchronous direct write, and may send
        # the parts of a large one in any order. Without this flag, direct I/O is synchronous.
        connection.want &= ~ASYNC_DIO
        if (self._binding.major, self._binding.minor) >= (3, 17):
            # Otherwise the kernel asks for security.capability before every write.
            connection.want |= connection.capable & HANDLE_KILLPRIV_V2
        connection.max_background = int(self._given("max_background") or MAX_BACKGROUND)
        # The kernel takes this from mount(2), libfuse from here. The mount fails unless they agree.
        connection.max_read = int(self._given("max_read") or 0)
        config.use_ino = 1
        config.nullpath_ok = 1
        config.entry_timeout = float(self._given("entry_timeout") or 1.0)
        self._cache.start(config, float(self._given("attr_timeout") or 1.0))
        config.negative_timeout = float(self._given("negative_timeout") or 0.0)
        fuse = self._context().contents.fuse
        self._hidden = HiddenPaths(begin_generation(self._binding.module._libfuse, fuse))
        if self._passthrough is not None:
            self._passthrough.start(fuse, connection)
        self._on_init()

    def close(self) -> None:
        """Release resources. Call it after libfuse has ended."""
        self._cache.close()
        if self._passthrough is not None:
            self._passthrough.close()

    # -- looking

    def getattr(self, path: bytes | None, stat_at: int, info: int | None) -> None:
        handle = self._handle(info) if info else None
        try:
            found = self._fs.getattr(_text(path), handle)
        except FileNotFoundError:
            self._cache.lookup_failed()
            raise
        name = self._cache.path_of(handle) if path is None and handle is not None else path
        if name is not None and found.nlink and self._hidden.has(name):
            found = found._replace(nlink=found.nlink + 1)  # libfuse subtracts its hidden name
        self._fill(stat_at, self._cache.reported_attributes(name, found, handle))

    def readlink(self, path: bytes, buffer: int, size: int) -> None:
        target = os.fsencode(self._fs.readlink(os.fsdecode(path)))[: size - 1] + b"\0"
        ctypes.memmove(buffer, target, len(target))

    def statfs(self, _path: bytes, statvfs_at: int) -> None:
        found = self._fs.statfs()
        answer = self._statvfs.from_address(statvfs_at)
        for field in (
            "f_bsize",
            "f_frsize",
            "f_blocks",
            "f_bfree",
            "f_bavail",
            "f_files",
            "f_ffree",
            "f_favail",
            "f_namemax",
        ):
            setattr(answer, field, getattr(found, field))

    def opendir(self, path: bytes, info: int) -> None:
        self._set_handle(info, self._fs.opendir(os.fsdecode(path)))

    def readdir(
        self, _path: int, buffer: int, filler_at: int, _offset: int, info: int, _flags: int
    ) -> None:
        fill = Filler(filler_at)
        about = self._stat()
        about_at = ctypes.addressof(about)
        for name in (b".", b".."):
            fill(buffer, name, None, 0, 0)
        for entry in self._fs.readdir(self._handle(info)):
            about.st_ino = entry.ino
            about.st_mode = entry.mode
            if fill(buffer, os.fsencode(entry.name), about_at, 0, 0):
                raise os_error(errno.ENOMEM)

    def releasedir(self, _path: int, info: int) -> None:
        self._fs.releasedir(self._handle(info))

    def fsyncdir(self, _path: int, _data_only: int, _info: int) -> None:
        self._fs.fsync_names()

    # -- names

    def mknod(self, path: bytes, mode: int, device: int) -> None:
        self._fs.mknod(os.fsdecode(path), mode, device, self._caller())

    def mkdir(self, path: bytes, mode: int) -> None:
        self._fs.mkdir(os.fsdecode(path), mode, self._caller())

    def unlink(self, path: bytes) -> None:
        self._fs.unlink(os.fsdecode(path))
        self._cache.removed(path)

    def rmdir(self, path: bytes) -> None:
        self._fs.rmdir(os.fsdecode(path))

    def symlink(self, target: bytes, path: bytes) -> None:
        self._fs.symlink(os.fsdecode(path), os.fsdecode(target), self._caller())

    def link(self, path: bytes, new_path: bytes) -> None:
        self._fs.link(os.fsdecode(path), os.fsdecode(new_path))
        self._cache.forget(path)

    def rename(self, old: bytes, new: bytes, flags: int) -> None:
        old_path = os.fsdecode(old)
        alias = None if flags else self._hidden.alias(old, new)
        # By now the file may be closed, or the name may belong to another file.
        if alias is not None and (self._hidden.are_certain or self._fs.is_in_use(old_path)):
            self._hide(old_path, alias)
        else:
            self._fs.rename(old_path, os.fsdecode(new), flags, hidden=self._hiding.taken())
        self._cache.moved(old, new, flags)

    # -- attributes

    def chmod(self, path: bytes | None, mode: int, info: int | None) -> None:
        self._fs.chmod(_text(path), mode, self._handle(info) if info else None)

    def chown(self, path: bytes | None, uid: int, gid: int, info: int | None) -> None:
        self._fs.chown(
            _text(path),
            None if uid == _UNCHANGED_ID else uid,
            None if gid == _UNCHANGED_ID else gid,
            self._handle(info) if info else None,
        )

    def utimens(self, path: bytes | None, times_at: int | None, info: int | None) -> None:
        now = time.time_ns()
        times: list[int | None] = [now, now]
        if times_at:
            times = [self._time(each, now) for each in self._timespecs.from_address(times_at)]
        self._fs.utimens(_text(path), times[0], times[1], self._handle(info) if info else None)

    def setxattr(self, path: bytes, name: bytes, value_at: int, size: int, flags: int) -> None:
        value = ctypes.string_at(value_at, size) if size else b""
        self._fs.setxattr(os.fsdecode(path), os.fsdecode(name), value, flags)

    def getxattr(self, path: bytes, name: bytes, value_at: int | None, size: int) -> int:
        return _reply_value(self._fs.getxattr(os.fsdecode(path), os.fsdecode(name)), value_at, size)

    def listxattr(self, path: bytes, list_at: int | None, size: int) -> int:
        names = self._fs.listxattr(os.fsdecode(path), self._caller())
        return _reply_value(b"".join(os.fsencode(name) + b"\0" for name in names), list_at, size)

    def removexattr(self, path: bytes, name: bytes) -> None:
        self._fs.removexattr(os.fsdecode(path), os.fsdecode(name))

    # -- open files

    def open(self, path: bytes, info_at: int) -> None:
        info = self._file_info.from_address(info_at)
        is_changing = bool(info.flags & CHANGING_FLAGS)
        request = self._cache.opening(path)
        try:
            if info.flags & os.O_TRUNC:
                request.require_only(self._fs.getattr(os.fsdecode(path)))
            if self._passthrough is not None and is_changing:
                handle = self._open_for_change(self._passthrough, os.fsdecode(path), info.flags)
            else:
                handle = self._fs.open(os.fsdecode(path), info.flags, self._caller())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                request.look_again()  # the kernel creates the file if the caller asked for that
            raise
        with self._released_on_error(handle):
            request.require_size_known(self._fs, handle, info.flags)
            self._cache.enter(path, handle)
            if is_changing:
                self._cache.require_own_size(path, handle)
            self._readers.enter(handle)
            info.fh = handle
            if not is_changing and self._is_passed_through(handle, info_at):
                info.noflush = 1
                return
            is_read_only = info.flags & os.O_ACCMODE == os.O_RDONLY
            if self._can_skip_flush and is_read_only and not self._fs.is_work(handle):
                info.noflush = 1  # closing a handle that only reads has no effect
            self._cache.choose(info, handle)

    def create(self, path: bytes, mode: int, info_at: int) -> None:
        info = self._file_info.from_address(info_at)
        self._cache.require_unused(path)
        handle = self._fs.create(os.fsdecode(path), mode, info.flags, self._caller())
        with self._released_on_error(handle):
            self._cache.enter(path, handle)
            self._readers.enter(handle)
            info.fh = handle
            whole = self._fs.passthrough_file(handle)
            if self._passthrough is not None and whole is not None:
                self._passthrough.reserve(whole.ino)
                self._passthrough.opened(handle, whole.ino)
            self._cache.choose(info, handle)

    def write(self, _path: int, buffer: int, size: int, offset: int, info: int) -> int:
        handle = c_uint64.from_address(info + self._fh_at).value
        flags = c_int.from_address(info).value
        data = memory_at(buffer, size, READABLE_MEMORY)
        taken, end = 0, offset
        try:
            if flags & os.O_APPEND and self._is_appended(handle, info):
                end, taken = self._fs.append(handle, data)
            else:
                taken = self._fs.write(handle, data, offset)
            if self._notes_owners:
                self._fs.note_owner(handle, c_uint64.from_address(info + self._lock_owner_at).value)
            if flags & os.O_DSYNC and self._cache.bypasses_cache(handle):
                # Set by O_DSYNC, RWF_DSYNC or the mount. For cached writes the kernel sends FSYNC.
                self._fs.fsync(handle, data_only=flags & os.O_SYNC != os.O_SYNC)
        finally:
            # The kernel caches the bytes of a shared mapping before it sends them, and keeps them
            # when the write fails. It drops them only after the reply.
            if taken < size or end != offset:
                self._cache.invalidate_written(handle)
        return taken

    def truncate(self, path: bytes | None, length: int, info: int | None) -> None:
        if self._passthrough is not None and path is not None and not info:
            self._passthrough.require_idle(self._fs.getattr(os.fsdecode(path)).ino)
        self._fs.truncate(_text(path), length, self._caller(), self._handle(info) if info else None)

    def flush(self, _path: int, info: int) -> None:
        handle = self._handle(info)
        self._view_readers.flushed(handle)
        self._fs.flush(handle, c_uint64.from_address(info + self._lock_owner_at).value)

    def release(self, _path: int, info: int) -> None:
        self._release(self._handle(info))

    def fsync(self, _path: int, data_only: int, info: int) -> None:
        self._fs.fsync(self._handle(info), data_only=bool(data_only))

    def fallocate(self, _path: int, mode: int, offset: int, length: int, info: int) -> None:
        self._fs.fallocate(self._handle(info), mode, offset, length)

    def copy_file_range(
        self,
        _source_path: int,
        source: int,
        source_offset: int,
        _target_path: int,
        target: int,
        target_offset: int,
        length: int,
        _flags: int,
    ) -> int:
        read, written = self._handle(source), self._handle(target)
        if read in self._readers.past_cache and self._fs.is_view(read):
            # The caller then falls back to read and write. The kernel would copy through its cache,
            # which holds another file.
            raise os_error(errno.EINVAL)
        return self._fs.copy_range(read, source_offset, written, target_offset, length)

    def lseek(self, _path: int, offset: int, whence: int, info: int) -> int:
        return self._fs.seek(self._handle(info), offset, whence)

    # -- inside

    @contextmanager
    def _released_on_error(self, handle: int) -> Iterator[None]:
        """Release the handle if the open fails, since the kernel will not release it then."""
        try:
            yield
        except BaseException:
            self._release(handle)
            raise

    def _release(self, handle: int) -> None:
        try:
            self._fs.release(handle)
        finally:
            self._cache.leave(handle)
            self._readers.leave(handle)
            if self._passthrough is not None:
                self._passthrough.released(handle)

    def _handle(self, info: int) -> int:
        return c_uint64.from_address(info + self._fh_at).value

    def _set_handle(self, info: int, handle: int) -> None:
        c_uint64.from_address(info + self._fh_at).value = handle

    def _require_reader(self, handle: int, offset: int, info: int) -> None:
        """Raise `OSError` if this read would fill the kernel's cache, which another file uses.

        Only read(2) bypasses the cache, and such requests have a lock owner. sendfile, splice and
        mappings use the cache in spite of direct I/O. EINVAL makes programs that copy fall back to
        read(2). On the last page and behind it the error is ESTALE: the reader has all the bytes,
        but the size known to the kernel is larger, so it would retry forever.
        """
        is_read = c_uint64.from_address(info + self._lock_owner_at).value != 0
        if is_read or self._cache.is_alone(handle):
            return
        has_more = offset < self._fs.getattr(None, handle).size // mmap.PAGESIZE * mmap.PAGESIZE
        code = errno.EINVAL if has_more else errno.ESTALE
        raise os_error(code)

    def _is_appended(self, handle: int, info: int) -> bool:
        """Return whether a write with O_APPEND goes to the end, instead of the kernel's offset.

        Writes of a shared mapping (`writepage`) go where they were mapped. Parts of a large direct
        write may arrive in any order, so their offsets count if the kernel knows the end.
        """
        about = self._file_info.from_address(info)
        if about.writepage:
            return False
        return not (about.flags & os.O_DIRECT and self._cache.is_end_known(handle))

    def _hide(self, path: str, alias: str) -> None:
        """Hide an open file. A rename over its former name may follow.

        If another process has removed the name before, unseen by libfuse, there is nothing to hide.
        A rename that follows is then an ordinary one.
        """
        try:
            self._hiding.begin(self._fs.hide(path, alias))
        except FileNotFoundError:
            if not self._hidden.are_certain:
                raise

    def _caller(self) -> Caller:
        context = self._context().contents
        return Caller(context.uid, context.gid)

    def _open_for_change(self, passthrough: Passthrough, path: str, flags: int) -> int:
        ino = self._fs.getattr(path).ino
        passthrough.reserve(ino)
        try:
            handle = self._fs.open(path, flags, self._caller())
        except BaseException:
            passthrough.cancel(ino)
            raise
        passthrough.opened(handle, ino)
        return handle

    def _is_passed_through(self, handle: int, info: int) -> bool:
        if self._passthrough is None:
            return False
        whole = self._fs.passthrough_file(handle)
        if whole is None:
            return False
        # To the kernel, all handles of one name are one inode, whatever its reported number.
        self._passthrough.require_not_passed_through(self._cache.others(handle))
        if not self._cache.is_alone(handle):
            return False
        backing = self._passthrough.open_for_reading(handle, whole)
        if backing:
            self._passthrough.announce(backing, info)
        return bool(backing)

    def _fill(self, stat_at: int, found: Attributes) -> None:
        about = self._stat.from_address(stat_at)
        about.st_ino = found.ino
        about.st_mode = found.mode
        about.st_nlink = found.nlink
        about.st_uid = found.uid
        about.st_gid = found.gid
        about.st_rdev = found.rdev
        about.st_size = found.size
        about.st_blocks = found.blocks
        about.st_blksize = BLOCK_SIZE
        for field, time_ns in (
            (about.st_atimespec, found.atime_ns),
            (about.st_mtimespec, found.mtime_ns),
            (about.st_ctimespec, found.ctime_ns),
        ):
            field.tv_sec, field.tv_nsec = divmod(time_ns, 1_000_000_000)

    def _time(self, given: Any, now: int) -> int | None:
        if given.tv_nsec == UTIME_NOW:
            return now
        if given.tv_nsec == UTIME_OMIT:
            return None
        return int(given.tv_sec) * 1_000_000_000 + int(given.tv_nsec)


def _text(path: bytes | None) -> str | None:
    return None if path is None else os.fsdecode(path)


def _reply_value(value: bytes, buffer: int | None, size: int) -> int:
    """Copy a value to the buffer and return its size in bytes; with `size` 0, only return it.

    Raises `OSError` (ERANGE) if the buffer is too small.
    """
    if size and buffer:
        if len(value) > size:
            raise os_error(errno.ERANGE)
        ctypes.memmove(buffer, value, len(value))
    return len(value)
