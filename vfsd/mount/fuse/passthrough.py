"""FUSE passthrough: the kernel reads stored files itself.

`ReplyHook` adds the fields that libfuse does not set, `BackingIds` registers files with the kernel,
and `Passthrough` decides which files qualify.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_ssize_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any

from vfsd.errors import MountError
from vfsd.mount.fs import PassthroughFile, os_error
from vfsd.mount.fs.mount_stats import OperationCounters
from vfsd.mount.fuse.libfuse import Binding

_log = logging.getLogger(__name__)

# linux/fuse.h
_OPEN_PASSTHROUGH = 1 << 7
_INIT_EXT = 1 << 30
_INIT2_PASSTHROUGH = 1 << 5
_HEADER_ERROR = 4
_INIT_FLAGS, _INIT_FLAGS2, _INIT_STACK_DEPTH = 12, 32, 36
_OPEN_FLAGS, _OPEN_BACKING_ID = 8, 12
_SECOND = ctypes.sizeof(c_void_p) * 2  # offset of the second ``struct iovec``
# linux/fuse.h
_BACKING_OPEN, _BACKING_CLOSE = 0x4010E501, 0x4004E502
_MAP = struct.Struct("<iIQ")  # descriptor, flags, padding
# Registering takes a system call without the interpreter lock. An OPEN and a RELEASE at the same
# time would hand the lock to each other.
_KEPT_SECONDS = 2.0
# Each id keeps a file open in the kernel, without a descriptor of this process.
_MOST_KEPT = 256
KERNEL = (6, 9)
_LIBFUSE, _LIBFUSE_WITH_BACKING_ID = (3, 14), (3, 17)
_CAP_PASSTHROUGH = 1 << 29  # FUSE_CAP_PASSTHROUGH
# RELEASE arrives some time after close(2). A program that reads a file, closes it and then writes
# it must not get ETXTBSY.
_RELEASE_SECONDS = 0.5
# The same, for a second read of a view that has just become a file.
_HANDOVER_SECONDS = 0.002

_Writev = CFUNCTYPE(c_ssize_t, c_int, c_void_p, c_int, c_void_p, use_errno=True)


class _CustomIo(ctypes.Structure):
    """``struct fuse_custom_io``."""

    _fields_ = (
        ("writev", _Writev),
        ("read", c_void_p),
        ("splice_receive", c_void_p),
        ("splice_send", c_void_p),
    )


class ReplyHook:
    """Completes the reply to INIT, and the replies to OPEN that were announced."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._thread = threading.local()
        self._is_init_done = False
        self._answer = _Writev(self._writev_replacement())  # libfuse keeps no reference
        read = ctypes.cast(self._libc.read, c_void_p)
        self._io = _CustomIo(self._answer, read, None, None)
        self._plain_io = _CustomIo(ctypes.cast(self._libc.writev, _Writev), read, None, None)
        self._after_init: Callable[[], object] = bool  # does nothing

    def start(self, library: Any, session: int, device: int) -> None:
        """Install the hook. Call it while libfuse handles INIT.

        Raises `OSError` if libfuse refuses it.
        """
        library.fuse_session_custom_io.argtypes = [c_void_p, POINTER(_CustomIo), c_int]
        if library.fuse_session_custom_io(session, ctypes.byref(self._io), device) != 0:
            raise OSError(errno.ENOTSUP, "libfuse does not support custom I/O functions")

    def start_for_init(self, library: Any, session: int, device: int) -> None:
        """Install the hook as `start` does, and remove it after the reply to INIT."""
        self.start(library, session, device)
        install = library.fuse_session_custom_io
        self._after_init = partial(install, session, ctypes.byref(self._plain_io), device)

    def announce(self, backing: int) -> None:
        """Make the next reply to OPEN of this thread refer to the backing file with this id."""
        self._thread.backing = backing

    # -- inside

    def _writev_replacement(self) -> Callable[[int, int, int, int | None], int]:
        """Return the replacement of writev(2). It runs for each reply, so it is short."""
        write = _prototype(self._libc.writev)
        # Replies without data are short and keep the interpreter lock. Others may copy a megabyte
        # while other threads run.
        write_short = _prototype(ctypes.PyDLL(None, use_errno=True).writev)
        thread, address, code = self._thread, c_void_p.from_address, c_int32.from_address

        def answer(device: int, parts: int, count: int, _userdata: int | None) -> int:
            backing = getattr(thread, "backing", 0)
            if not backing and self._is_init_done:
                return int((write if count > 1 else write_short)(device, parts, count))
            thread.backing = 0
            header = address(parts).value
            if header and count > 1 and not code(header + _HEADER_ERROR).value:
                self._complete(address(parts + _SECOND).value, backing)
            written = int(write_short(device, parts, count))
            if not backing:
                self._after_init()
            return written

        return answer

    def _complete(self, answer: int | None, backing: int) -> None:
        assert answer is not None
        if backing:
            c_uint32.from_address(answer + _OPEN_FLAGS).value |= _OPEN_PASSTHROUGH
            c_int32.from_address(answer + _OPEN_BACKING_ID).value = backing
            return
        self._is_init_done = True
        c_uint32.from_address(answer + _INIT_FLAGS).value |= _INIT_EXT
        c_uint32.from_address(answer + _INIT_FLAGS2).value |= _INIT2_PASSTHROUGH
        c_uint32.from_address(answer + _INIT_STACK_DEPTH).value = 1


def _prototype(writev: Any) -> Any:
    writev.restype = c_ssize_t
    writev.argtypes = [c_int, c_void_p, c_int]
    return writev


@dataclass(slots=True)
class _BackingFile:
    number: int
    users: int = 0
    since: float = 0.0  #: when it became unused


class BackingIds:
    """Files registered with the kernel, by device and inode. Thread-safe."""

    def __init__(self) -> None:
        self._device = -1
        self._known: dict[tuple[int, int], _BackingFile] = {}  # by st_dev and st_ino
        self._keys: dict[int, tuple[int, int]] = {}  # by number
        self._idle: OrderedDict[tuple[int, int], _BackingFile] = OrderedDict()
        self._guard = threading.Lock()
        self._sweeper: threading.Timer | None = None

    def start(self, device: int) -> None:
        """Set the descriptor of the FUSE connection."""
        self._device = device

    def acquire(self, fd: int) -> int:
        """Return the backing id of a file; 0 if the kernel cannot read it directly.

        Call `release` for it later. A registered file stays on the disk, so its inode number is not
        reused in the meantime.
        """
        found = os.fstat(fd)
        key = (found.st_dev, found.st_ino)
        with self._guard:
            backing = self._known.get(key)
            if backing is None:
                number = self._register(fd)
                if not number:
                    return 0
                backing = self._known[key] = _BackingFile(number)
                self._keys[number] = key
            self._idle.pop(key, None)
            backing.users += 1
            return backing.number

    def release(self, number: int) -> None:
        with self._guard:
            key = self._keys[number]
            backing = self._known[key]
            backing.users -= 1
            if backing.users:
                return
            backing.since = time.monotonic()
            self._idle[key] = backing
            if len(self._idle) > _MOST_KEPT:
                self._drop_oldest()
            self._sweep_later()

    def count(self) -> int:
        """Return the number of registered files. They stay registered shortly after the close."""
        with self._guard:
            return len(self._known)

    def close(self) -> None:
        """Forget all files. The kernel drops its ids at the end of the connection."""
        with self._guard:
            self._device = -1
            self._idle.clear()
            if self._sweeper is not None:
                self._sweeper.cancel()

    # -- inside

    def _register(self, fd: int) -> int:
        try:
            request = bytearray(_MAP.pack(fd, 0, 0))
            return int(fcntl.ioctl(self._device, _BACKING_OPEN, request, True))
        except OSError as error:
            # This kernel, or the file system of that file, does not support it.
            _log.warning("cannot register a file for passthrough: %s", error.strerror)
            return 0

    def _drop_oldest(self) -> None:
        key, backing = self._idle.popitem(last=False)
        del self._known[key], self._keys[backing.number]
        try:
            fcntl.ioctl(self._device, _BACKING_CLOSE, struct.pack("<I", backing.number))
        except OSError as error:
            _log.debug("cannot unregister a file from passthrough: %s", error.strerror)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._device >= 0:
            self._sweeper = threading.Timer(_KEPT_SECONDS, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._guard:
            self._sweeper = None
            before = time.monotonic() - _KEPT_SECONDS
            while self._idle and next(iter(self._idle.values())).since <= before:
                self._drop_oldest()
            if self._idle:
                self._sweep_later()


class _InodeUse:
    """The open handles of one inode."""

    def __init__(self) -> None:
        self.handles = 0
        self.backing = (
            0  #: backing id of the file that the kernel reads; 0: requests go to the mount
        )
        self.version: str | None = None  #: content version of that file


def require_passthrough(binding: Binding, kernel: tuple[int, int]) -> None:
    """Raise `MountError` if passthrough would not work, with the reason."""
    if kernel < KERNEL:
        raise MountError(f"passthrough needs Linux {KERNEL[0]}.{KERNEL[1]}", hint="leave it out")
    if (binding.major, binding.minor) < _LIBFUSE:
        raise MountError(
            f"passthrough needs libfuse 3.14, got {binding.major}.{binding.minor}",
            hint="leave it out",
        )
    if os.geteuid() != 0:
        raise MountError("passthrough is for root only", hint="leave it out, or mount as root")


class Passthrough:
    """Decides which files the kernel reads directly. Thread-safe."""

    def __init__(self, binding: Binding, counters: OperationCounters) -> None:
        module = binding.module
        self._libfuse = module._libfuse
        self._reply_hook = (
            ReplyHook() if (binding.major, binding.minor) < _LIBFUSE_WITH_BACKING_ID else None
        )
        # ``backing_id`` follows ``poll_events``, which has twice its real size in the binding.
        self._backing_at: int = module.fuse_file_info.poll_events.offset + 4
        self._backings = BackingIds()
        counters.passed_through = self._backings.count
        self._uses: dict[int, _InodeUse] = {}  # by inode
        self._inodes: dict[int, int] = {}  # by handle
        self._guard = threading.Condition()

    def start(self, fuse: int, connection: Any) -> None:
        """Enable passthrough. Call it while libfuse handles INIT, with its ``fuse_conn_info``."""
        library = self._libfuse
        library.fuse_get_session.restype = c_void_p
        library.fuse_get_session.argtypes = [c_void_p]
        session = library.fuse_get_session(fuse)
        device = self._enable(session, connection)
        if self._reply_hook is not None:
            self._reply_hook.start(library, session, device)

    def start_session(self, session: int, connection: Any) -> None:
        """Enable passthrough for an adapter that packs its replies to OPEN itself.

        `session` is the address of ``struct fuse_session``.
        """
        device = self._enable(session, connection)
        if self._reply_hook is not None:
            self._reply_hook.start_for_init(self._libfuse, session, device)

    def close(self) -> None:
        """Forget all files. Call it after libfuse has ended."""
        self._backings.close()

    def reserve(self, ino: int) -> None:
        """Announce an open without passthrough. Call `opened` or `cancel` afterwards.

        Raises `OSError` (ETXTBSY) while the kernel reads the inode.
        """
        with self._guard:
            self._wait_for_kernel(ino)
            self._uses.setdefault(ino, _InodeUse()).handles += 1

    def cancel(self, ino: int) -> None:
        with self._guard:
            self._leave(ino)

    def opened(self, handle: int, ino: int) -> None:
        """Record the handle of a reserved open."""
        with self._guard:
            self._inodes[handle] = ino

    def open_for_reading(self, handle: int, whole: PassthroughFile) -> int:
        """Record a read-only open, and return the backing id for the reply.

        0: the kernel sends requests. Raises `OSError` (ETXTBSY) if the kernel reads other bytes of
        the inode for other handles.
        """
        ino = whole.ino
        with self._guard:
            if not self._is_read_by_kernel(whole):
                self._wait_for_kernel(ino)
            if whole.fd is not None and whole.version is not None:
                self._guard.wait_for(lambda: self._may_pass_through(ino), _HANDOVER_SECONDS)
            use = self._uses.setdefault(ino, _InodeUse())
            if whole.fd is not None and not use.handles:
                use.backing, use.version = self._backings.acquire(whole.fd), whole.version
            use.handles += 1
            self._inodes[handle] = ino
        return use.backing

    def announce(self, backing: int, info: int) -> None:
        """Put a backing id into the reply to OPEN, which this thread sends next.

        `info` is the address of its ``fuse_file_info``.
        """
        if self._reply_hook is not None:
            self._reply_hook.announce(backing)
        else:
            c_int32.from_address(info + self._backing_at).value = backing

    def require_idle(self, ino: int) -> None:
        """Raise `OSError` (ETXTBSY) while the kernel reads an inode."""
        with self._guard:
            self._wait_for_kernel(ino)

    def require_not_passed_through(self, handles: Iterable[int]) -> None:
        """Raise `OSError` (ETXTBSY) while the kernel reads the inode of one of the handles."""
        with self._guard:
            for ino in {self._inodes[each] for each in handles if each in self._inodes}:
                self._wait_for_kernel(ino)

    def released(self, handle: int) -> None:
        with self._guard:
            ino = self._inodes.pop(handle, None)
            if ino is not None:
                self._leave(ino)

    # -- inside

    def _enable(self, session: int, connection: Any) -> int:
        """Return the descriptor of the connection."""
        self._libfuse.fuse_session_fd.argtypes = [c_void_p]
        device = int(self._libfuse.fuse_session_fd(session))
        self._backings.start(device)
        if self._reply_hook is None:
            connection.want |= connection.capable & _CAP_PASSTHROUGH
        return device

    def _is_read_by_kernel(self, whole: PassthroughFile) -> bool:
        """Return whether the kernel reads that file, or may do so after the last release."""
        use = self._uses.get(whole.ino)
        if use is None or not use.backing or whole.version is None:
            return whole.fd is not None
        return use.version == whole.version

    def _may_pass_through(self, ino: int) -> bool:
        use = self._uses.get(ino)
        return use is None or bool(use.backing)

    def _wait_for_kernel(self, ino: int) -> None:
        def is_idle() -> bool:
            use = self._uses.get(ino)
            return use is None or not use.backing

        if not self._guard.wait_for(is_idle, _RELEASE_SECONDS):
            raise os_error(errno.ETXTBSY)

    def _leave(self, ino: int) -> None:
        use = self._uses[ino]
        use.handles -= 1
        if use.handles:
            return
        del self._uses[ino]
        if use.backing:
            self._backings.release(use.backing)
        self._guard.notify_all()
