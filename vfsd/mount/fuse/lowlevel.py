"""libfuse's low-level interface: its table of operations, its session, requests and replies.

The replies have the kernel's own format (linux/fuse.h), packed here, since a call of
``fuse_reply_buf`` with bytes is cheaper than filling the structures of libfuse.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import partial
from pathlib import Path
from typing import Any

from vfsd.mount.fs import Attributes, Caller, OperationCounters, os_error
from vfsd.mount.fuse.callback_context import CallbackThreads, errno_of
from vfsd.mount.fuse.libfuse import Binding
from vfsd.mount.fuse.open_paths import Read

# The members of ``struct fuse_lowlevel_ops``, up to those that libfuse 3.10 has.
_NAME = [c_void_p, c_uint64, c_char_p]
_OPEN = [c_void_p, c_uint64, c_void_p]
ARGUMENTS: dict[str, list[Any] | None] = {
    "init": [c_void_p, c_void_p],
    "destroy": None,
    "lookup": _NAME,
    "forget": [c_void_p, c_uint64, c_uint64],
    "getattr": _OPEN,
    "setattr": [c_void_p, c_uint64, c_void_p, c_int, c_void_p],
    "readlink": [c_void_p, c_uint64],
    "mknod": [*_NAME, c_uint, c_uint64],
    "mkdir": [*_NAME, c_uint],
    "unlink": _NAME,
    "rmdir": _NAME,
    "symlink": [c_void_p, c_char_p, c_uint64, c_char_p],
    "rename": [*_NAME, c_uint64, c_char_p, c_uint],
    "link": [c_void_p, c_uint64, c_uint64, c_char_p],
    "open": _OPEN,
    "read": [c_void_p, c_uint64, c_size_t, c_int64, c_void_p],
    "write": [c_void_p, c_uint64, c_void_p, c_size_t, c_int64, c_void_p],
    "flush": _OPEN,
    "release": _OPEN,
    "fsync": [c_void_p, c_uint64, c_int, c_void_p],
    "opendir": _OPEN,
    "readdir": [c_void_p, c_uint64, c_size_t, c_int64, c_void_p],
    "releasedir": _OPEN,
    "fsyncdir": [c_void_p, c_uint64, c_int, c_void_p],
    "statfs": [c_void_p, c_uint64],
    "setxattr": [*_NAME, c_void_p, c_size_t, c_int],
    "getxattr": [*_NAME, c_size_t],
    "listxattr": [c_void_p, c_uint64, c_size_t],
    "removexattr": _NAME,
    "access": None,
    "create": [*_NAME, c_uint, c_void_p],
    "getlk": None,
    "setlk": None,
    "bmap": None,
    "ioctl": None,
    "poll": None,
    "write_buf": None,
    "retrieve_reply": None,
    "forget_multi": [c_void_p, c_size_t, c_void_p],
    "flock": None,
    "fallocate": [c_void_p, c_uint64, c_int, c_int64, c_int64, c_void_p],
    "readdirplus": [c_void_p, c_uint64, c_size_t, c_int64, c_void_p],
    "copy_file_range": [
        *(c_void_p, c_uint64, c_int64, c_void_p),
        *(c_uint64, c_int64, c_void_p, c_size_t, c_int),
    ],
    "lseek": [c_void_p, c_uint64, c_int64, c_int, c_void_p],
}
"""The arguments of each operation; None for those that the kernel or libfuse serves."""

# linux/fuse.h
_FIELDS = "QQQqqqIIIIIIIIII"  # of ``struct fuse_attr``
_ATTR_OUT = struct.Struct("<QII" + _FIELDS)  # lifetime
# Node, generation, lifetimes of the name and its attributes.
_ENTRY = struct.Struct("<QQQQII" + _FIELDS)
_DIRENT = struct.Struct("<QQII")
_STATFS = struct.Struct("<QQQQQIIII24x")
OPEN = struct.Struct("<QIi")  # handle, flags, backing id
COUNT = struct.Struct("<II")  # fuse_write_out and fuse_getxattr_out
OFFSET = struct.Struct("<Q")  # fuse_lseek_out
CALLER = struct.Struct("<IIi")  # uid, gid and pid of ``struct fuse_ctx``
FORGET = struct.Struct("<QQ")  # node and number of lookups
ENTRY_BYTES = _ENTRY.size
_NO_ENTRY = bytes(ENTRY_BYTES)
_NOTIFY_EPOCH = struct.pack("<IiQ", 16, 8, 0)  # FUSE_NOTIFY_INC_EPOCH
_NANO = 1_000_000_000

FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FOPEN_PASSTHROUGH = 1, 2, 1 << 5, 1 << 7

Answer = bytes | int | tuple[bytes, Callable[[], None]] | None
"""The reply to a request: bytes, a number of bytes, or nothing.  The function takes back what the
reply gives to the kernel; it runs if the kernel has given up the request."""

_FIRST_BUFFER = 1 << 17


class Table(Structure):
    """``struct fuse_lowlevel_ops``."""

    _fields_ = tuple((name, c_void_p) for name in ARGUMENTS)


class _Args(Structure):
    """``struct fuse_args``."""

    _fields_ = (("argc", c_int), ("argv", POINTER(c_char_p)), ("allocated", c_int))


class _OldLoop(Structure):
    """``struct fuse_loop_config`` before libfuse 3.12."""

    _fields_ = (("clone_fd", c_int), ("max_idle_threads", c_uint))


class _Version(Structure):
    """``struct libfuse_version``."""

    _fields_ = (("number", c_uint32 * 4),)


class Packer:
    """Packs what the kernel may cache: attributes and names, with their lifetimes in seconds."""

    def __init__(
        self,
        *,
        attr_timeout: float,
        entry_timeout: float,
        negative_timeout: float,
        block_size: int,
        owner: tuple[int | None, int | None],
        umask: int | None,
    ) -> None:
        """Create it for one mount.

        Args:
            attr_timeout: The lifetime of attributes.
            entry_timeout: The lifetime of names.
            negative_timeout: The lifetime of missing names.
            block_size: ``st_blksize``.
            owner: uid and gid to show instead of those of the files; None for those of the files.
            umask: Show all permissions but these; None: those of the files.
        """
        self._attr = _split(attr_timeout)
        self._entry = _split(entry_timeout)
        self._block_size = block_size
        self._uid, self._gid = owner
        self._umask = umask
        missing = _split(negative_timeout)
        self.missing = (
            _ENTRY.pack(0, 0, missing[0], 0, missing[1], *[0] * 17) if any(missing) else None
        )
        """``struct fuse_entry_out`` of a missing name; None if the kernel may not cache it."""

    def attr(self, found: Attributes, *, is_cached: bool) -> bytes:
        """Return ``struct fuse_attr_out``."""
        seconds, nanoseconds = self._attr if is_cached else (0, 0)
        return _ATTR_OUT.pack(seconds, nanoseconds, 0, *self._attributes(found))

    def entry(self, node: int, generation: int, found: Attributes, *, is_cached: bool) -> bytes:
        """Return ``struct fuse_entry_out``."""
        seconds, nanoseconds = self._attr if is_cached else (0, 0)
        valid, valid_nano = self._entry
        return _ENTRY.pack(
            *(node, generation, valid, seconds, valid_nano, nanoseconds),
            *self._attributes(found),
        )

    def _attributes(self, found: Attributes) -> tuple[int, ...]:
        ino, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime = found
        if self._umask is not None:
            mode = mode & ~0o777 | 0o777 & ~self._umask
        a, a_nano = divmod(atime, _NANO)
        m, m_nano = divmod(mtime, _NANO)
        c, c_nano = divmod(ctime, _NANO)
        return (
            *(ino, size, blocks, a, m, c, a_nano, m_nano, c_nano, mode, nlink),
            uid if self._uid is None else self._uid,
            gid if self._gid is None else self._gid,
            *(rdev & 0xFFFFFFFF, self._block_size, 0),
        )


def _split(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * _NANO)


def dirent(ino: int, offset: int, mode: int, name: bytes) -> bytes:
    """Return ``struct fuse_dirent``. `offset` is that of the next entry."""
    padding = -len(name) % 8
    return _DIRENT.pack(ino, offset, len(name), mode >> 12 & 15) + name + bytes(padding)


def direntplus(entry: bytes | None, after: bytes) -> bytes:
    """Return ``struct fuse_direntplus``; without `entry`, the kernel looks up the name itself."""
    return (entry or _NO_ENTRY) + after


def statfs(found: os.statvfs_result) -> bytes:
    """Return ``struct fuse_statfs_out``."""
    return _STATFS.pack(
        *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
        *(found.f_bsize, found.f_namemax, found.f_frsize, 0),
    )


class Replies:
    """The functions of libfuse that answer a request, or tell about it.

    A reply releases the interpreter lock: it wakes the program, whose next request goes to another
    thread, and that thread would wait for the lock.
    """

    def __init__(self, library: Any) -> None:
        keeping = ctypes.PyDLL(None, handle=library._handle)
        self.error = _function(library, "fuse_reply_err", [c_void_p, c_int])
        self.data = _function(library, "fuse_reply_buf", [c_void_p, c_char_p, c_size_t])
        """Sends bytes. Returns not 0 if the kernel has given up the request."""
        self.memory = _function(library, "fuse_reply_buf", [c_void_p, c_void_p, c_size_t])
        """Sends bytes at an address."""
        self.none = _function(keeping, "fuse_reply_none", [c_void_p])
        self.none.restype = None
        self.context = _function(keeping, "fuse_req_ctx", [c_void_p])
        self.context.restype = c_void_p
        self.interrupted = _function(keeping, "fuse_req_interrupted", [c_void_p])


def _function(library: Any, name: str, arguments: Sequence[Any]) -> Any:
    found = library[name]  # a new object at each access, with its own prototype
    found.argtypes, found.restype = list(arguments), c_int
    return found


class Requests:
    """Makes callbacks that count and answer requests, and tells who made them. Thread-safe."""

    def __init__(
        self,
        library: Any,
        counters: OperationCounters,
        *,
        handle_at: int,
        path_of: Callable[[tuple[Any, ...]], str | None],
    ) -> None:
        """Create it for one mount.

        Args:
            library: libfuse 3.
            counters: Statistics of the operations.
            handle_at: The offset of the handle in ``struct fuse_file_info``.
            path_of: Returns the path for the arguments of a request, for a log.
        """
        self._reply = Replies(library)
        self._counters = counters
        self._threads = CallbackThreads(counters)
        self._handle_at = handle_at
        self._path_of = path_of
        self._local = threading.local()  # .request, .buffer

    def callback(self, name: str, method: Callable[..., Answer]) -> Callable[..., None]:
        thread_counts, clock = self._threads.counts, time.perf_counter_ns
        send, send_error = self._reply.data, self._reply.error

        def answer(request: int, *arguments: Any) -> None:
            counts = thread_counts()
            began = clock()
            result = 0
            try:
                reply = method(request, *arguments)
            except BaseException as error:
                result = errno_of(error, name, partial(self._path_of, arguments))
                counts[name].note(clock() - began, -result)
                send_error(request, result)
                return
            if isinstance(reply, int):
                result, reply = reply, COUNT.pack(reply, 0)
            counts[name].note(clock() - began, result)
            if reply is None:
                send_error(request, 0)
            elif isinstance(reply, bytes):
                send(request, reply, len(reply))
            else:
                data, take_back = reply
                if send(request, data, len(data)):
                    take_back()

        return answer

    def read_callback(
        self, files: Mapping[int, Read], views: Mapping[int, Read]
    ) -> Callable[..., None]:
        """Return the callback for read, by far the most frequent operation.

        It does the same as `_callback` with a method, without the inner calls.
        """
        thread_counts, clock = self._threads.counts, time.perf_counter_ns
        at, fh_at = c_uint64.from_address, self._handle_at
        local = self._local
        counters, new_buffer = self._counters, self._new_buffer
        send, send_error = self._reply.memory, self._reply.error

        def answer(request: int, node: int, size: int, offset: int, info: int) -> None:
            counts = thread_counts()
            began = clock()
            try:
                handle = at(info + fh_at).value
                read = files.get(handle)
                if read is not None:
                    counters.file_read_ns = began
                else:
                    read = views.get(handle)
                    local.request = request
                if read is None:
                    raise os_error(errno.EBADF)
                try:
                    address, memory = local.buffer
                except AttributeError:
                    address, memory = new_buffer(size)
                if size > len(memory):
                    address, memory = new_buffer(size)
                result = read(memory[:size], offset)
            except BaseException as error:
                result = errno_of(error, "read", partial(self._path_of, (node,)))
                counts["read"].note(clock() - began, -result)
                send_error(request, result)
                return
            counts["read"].note(clock() - began, result)
            send(request, address, result)

        return answer

    def forget(self, request: int, forget: Callable[[], None]) -> None:
        """Answer a request to forget nodes, which has no reply, by calling `forget`."""
        try:
            counts, began = self._threads.counts(), time.perf_counter_ns()
            forget()
            counts["forget"].note(time.perf_counter_ns() - began, 0)
        except BaseException as error:
            errno_of(error, "forget", None)
        finally:
            self._reply.none(request)

    # -- the request that this thread answers

    def begin(self, request: int) -> None:
        """Set the request for `thread` and `is_interrupted`."""
        self._local.request = request

    def thread(self) -> int:
        """Return the id of the thread that made the request; 0 in another pid namespace."""
        return self._context(self._local.request)[2]

    def is_interrupted(self) -> int:
        return int(self._reply.interrupted(self._local.request))

    def caller(self, request: int) -> Caller:
        """Return the user and the group that made a request."""
        uid, gid, _ = self._context(request)
        return Caller(uid, gid)

    def _context(self, request: int) -> tuple[int, int, int]:
        data = ctypes.string_at(self._reply.context(request), CALLER.size)
        uid, gid, thread = CALLER.unpack(data)
        return uid, gid, thread

    def _new_buffer(self, size: int) -> tuple[int, memoryview]:
        """Return the address and the memory of a larger read buffer of this thread."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(
            -1, max(size, _FIRST_BUFFER), private
        )  # takes no memory before it is used
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._local.buffer = address, memoryview(memory)
        found: tuple[int, memoryview] = self._local.buffer
        return found


class KernelSession:
    """A session of libfuse: mounts, and serves requests until it is unmounted."""

    def __init__(self, binding: Binding, table: Table, words: Sequence[str]) -> None:
        """`words` are options of the mount for libfuse and the kernel.

        Raises `OSError` if libfuse refuses them.
        """
        self._library = library = binding.module._libfuse
        self._has_versions = (binding.major, binding.minor) >= (3, 17)
        self._has_loop_settings = (binding.major, binding.minor) >= (3, 12)
        values = [b"vfsd", b"-o", os.fsencode(",".join(words))]
        self._arguments = _Args(len(values), (c_char_p * len(values))(*values), 0)
        size = ctypes.sizeof(table)
        if self._has_versions:
            new = library.fuse_session_new_versioned
            new.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]
            version = _Version((c_uint32 * 4)(binding.major, binding.minor, 0, 0))
            more: list[Any] = [ctypes.byref(version), None]
        else:
            new = library.fuse_session_new
            new.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p]
            more = [None]
        new.restype = c_void_p
        self.address: int | None = new(
            ctypes.byref(self._arguments), ctypes.byref(table), size, *more
        )
        for name in (
            "fuse_session_unmount",
            "fuse_session_destroy",
            "fuse_set_signal_handlers",
            "fuse_remove_signal_handlers",
            "fuse_session_fd",
        ):
            _prototype(library, name, [c_void_p])
        _prototype(library, "fuse_session_mount", [c_void_p, c_char_p])
        _prototype(library, "fuse_session_loop_mt", [c_void_p, c_void_p])
        _prototype(
            library, "fuse_lowlevel_notify_inval_inode", [c_void_p, c_uint64, c_int64, c_int64]
        )

    def run(self, place: Path, *, threads: int, idle: int, clone_fd: bool) -> int:
        """Mount at `place` and serve. Return the exit code that ``fuse_main`` has.

        Args:
            place: The mount point.
            threads: How many requests are served at a time, with libfuse 3.12 or newer.
            idle: How many threads stay without a request.
            clone_fd: Whether each thread has its own channel to the kernel.
        """
        library, session = self._library, self.address
        if session is None:
            return 1
        try:
            if library.fuse_set_signal_handlers(session) != 0:
                return 6
            try:
                if library.fuse_session_mount(session, os.fsencode(place)) != 0:
                    return 4
                try:
                    os.chdir("/")  # keep no directory busy
                    code = self._loop(session, threads, idle, clone_fd)
                finally:
                    library.fuse_session_unmount(session)
            finally:
                library.fuse_remove_signal_handlers(session)
        finally:
            self.address = None
            library.fuse_session_destroy(session)
        if code == 0:
            return 0
        return 8 if code > 0 else 7

    def device(self) -> int:
        """Return the descriptor of the connection to the kernel."""
        return int(self._library.fuse_session_fd(self.address))

    def invalidate(self, node: int) -> int:
        """Make the kernel drop all cached pages and attributes of a node. May wait for requests.

        Return 0, or a negative errno, as when the kernel does not know the node.
        """
        if self.address is None:
            return 0
        return int(self._library.fuse_lowlevel_notify_inval_inode(self.address, node, 0, 0))

    def expire_names(self) -> bool:
        """Make the kernel look up every name again; return False before Linux 6.16."""
        try:
            os.write(self.device(), _NOTIFY_EPOCH)
        except OSError:
            return False
        return True

    def _loop(self, session: int, threads: int, idle: int, clone_fd: bool) -> int:
        library = self._library
        if not self._has_loop_settings:
            old = _OldLoop(int(clone_fd), idle)
            return int(library.fuse_session_loop_mt(session, ctypes.byref(old)))
        library.fuse_loop_cfg_create.restype = c_void_p
        settings = library.fuse_loop_cfg_create()
        try:
            for name, value in (
                ("max_threads", threads),
                ("idle_threads", idle),
                ("clone_fd", int(clone_fd)),
            ):
                set_value = library[f"fuse_loop_cfg_set_{name}"]
                set_value.argtypes, set_value.restype = [c_void_p, c_uint], None
                set_value(settings, value)
            return int(library.fuse_session_loop_mt(session, settings))
        finally:
            library.fuse_loop_cfg_destroy.argtypes = [c_void_p]
            library.fuse_loop_cfg_destroy.restype = None
            library.fuse_loop_cfg_destroy(settings)


def _prototype(library: Any, name: str, arguments: Sequence[Any]) -> None:
    function = getattr(library, name)
    function.argtypes, function.restype = list(arguments), c_int
