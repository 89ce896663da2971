"""FUSE passthrough: the kernel reads a whole stored file itself and asks nobody.

Kernels have it since 6.9, libfuse since 3.17.  With 3.14 to 3.16, which Debian 12 and Ubuntu 24.04
have, the answers to INIT and OPEN are completed on their way to the kernel, by the hook that
libfuse has for custom input and output.

The kernel does not let one inode be open in both ways at a time: as long as it reads a file itself,
opening that file for writing is ETXTBSY, and as long as somebody has it open in the ordinary way,
everybody has.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import struct
import threading
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_size_t, c_ssize_t, c_uint32, c_void_p
from typing import Any

from vfsd.errors import MountError
from vfsd.fs import WholeFile
from vfsd.fuse.binding import Binding

_log = logging.getLogger(__name__)

KERNEL = (6, 9)
_LIBFUSE_FROM, _LIBFUSE_TO = (3, 14), (3, 17)

# The kernel tells us that a file is closed some time after close(2): who has read a file and then
# writes it must not find it busy.
_RELEASE_SECONDS = 0.5

# The same, for who reads a view again that has only just become a file.
_HANDOVER_SECONDS = 0.002

# linux/fuse.h
_BACKING_OPEN, _BACKING_CLOSE = 0x4010E501, 0x4004E502
_BACKING_MAP = struct.Struct("<iIQ")  # descriptor, flags, padding
_OPEN_PASSTHROUGH = 1 << 7
_INIT_EXT = 1 << 30
_INIT2_PASSTHROUGH = 1 << 5
_HEADER_ERROR = 4
_INIT_FLAGS, _INIT_FLAGS2, _INIT_STACK_DEPTH = 12, 32, 36
_OPEN_FLAGS, _OPEN_BACKING_ID = 8, 12


class _Part(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", c_void_p), ("length", c_size_t))


_Writev = CFUNCTYPE(c_ssize_t, c_int, POINTER(_Part), c_int, c_void_p, use_errno=True)


class _CustomIo(ctypes.Structure):
    """``struct fuse_custom_io``."""

    _fields_ = (
        ("writev", _Writev),
        ("read", c_void_p),
        ("splice_receive", c_void_p),
        ("splice_send", c_void_p),
    )


class _Use:
    """How an inode is open."""

    def __init__(self) -> None:
        self.handles = 0
        self.backing = 0  #: what the kernel calls the file that it reads; 0: it asks us
        self.version: str | None = None  #: of the bytes of that file


def require_passthrough(binding: Binding, kernel: tuple[int, int]) -> None:
    """Find out before mounting why it would not work.  Raises `MountError`."""
    version = (binding.major, binding.minor)
    if kernel < KERNEL:
        raise MountError(f"passthrough needs Linux {KERNEL[0]}.{KERNEL[1]}, leave it out here")
    if not _LIBFUSE_FROM <= version < _LIBFUSE_TO:
        raise MountError(
            f"passthrough works with libfuse 3.14 to 3.16, not with {version[0]}.{version[1]}",
            hint="leave it out",
        )
    if os.geteuid() != 0:
        raise MountError("passthrough is for root only", hint="leave it out, or mount as root")


class Passthrough:
    """Which files the kernel reads by itself.  Thread-safe."""

    def __init__(self, binding: Binding) -> None:
        self._libfuse = binding.module._libfuse
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.writev.restype = c_ssize_t
        self._libc.writev.argtypes = [c_int, POINTER(_Part), c_int]
        self._io = _CustomIo(
            _Writev(self._answer), ctypes.cast(self._libc.read, c_void_p), None, None
        )
        self._thread = threading.local()
        self._is_greeted = False
        self._device = -1
        self._uses: dict[int, _Use] = {}  # by inode
        self._inodes: dict[int, int] = {}  # by handle
        self._guard = threading.Condition()

    def start(self, fuse: int) -> None:
        """To be called while libfuse handles INIT."""
        library = self._libfuse
        library.fuse_get_session.restype = c_void_p
        library.fuse_get_session.argtypes = [c_void_p]
        library.fuse_session_fd.argtypes = [c_void_p]
        library.fuse_session_custom_io.argtypes = [c_void_p, POINTER(_CustomIo), c_int]
        session = library.fuse_get_session(fuse)
        self._device = library.fuse_session_fd(session)
        if library.fuse_session_custom_io(session, ctypes.byref(self._io), self._device) != 0:
            raise OSError(errno.ENOTSUP, "libfuse does not let its answers be completed")

    def reserve(self, ino: int) -> None:
        """Somebody is about to open an inode in the ordinary way; ends with `opened` or `cancel`.

        Raises `OSError`: ETXTBSY while the kernel reads it.
        """
        with self._guard:
            self._wait_for_kernel(ino)
            self._uses.setdefault(ino, _Use()).handles += 1

    def cancel(self, ino: int) -> None:
        with self._guard:
            self._leave(ino)

    def opened(self, handle: int, ino: int) -> None:
        """What was reserved has become a handle."""
        with self._guard:
            self._inodes[handle] = ino

    def open_for_reading(self, handle: int, whole: WholeFile) -> bool:
        """Whether the kernel reads by itself what was opened for reading only.

        To be called by the thread that then answers OPEN.  Raises `OSError` (ETXTBSY) where the
        inode has other bytes by now than those that the kernel reads for others.
        """
        ino = whole.ino
        with self._guard:
            if not self._is_read_by_kernel(whole):
                self._wait_for_kernel(ino)
            if whole.fd is not None and whole.version is not None:
                self._guard.wait_for(lambda: self._may_begin(ino), _HANDOVER_SECONDS)
            use = self._uses.setdefault(ino, _Use())
            if whole.fd is not None and not use.handles:
                use.backing, use.version = self._register(whole.fd), whole.version
            use.handles += 1
            self._inodes[handle] = ino
            self._thread.backing = use.backing
            return bool(use.backing)

    def require_idle(self, ino: int) -> None:
        """Raises `OSError`: ETXTBSY while the kernel reads an inode."""
        with self._guard:
            self._wait_for_kernel(ino)

    def released(self, handle: int) -> None:
        with self._guard:
            ino = self._inodes.pop(handle, None)
            if ino is not None:
                self._leave(ino)

    # -- inside

    def _is_read_by_kernel(self, whole: WholeFile) -> bool:
        """Whether that is what it reads, or may read once nobody has the inode open."""
        use = self._uses.get(whole.ino)
        if use is None or not use.backing or whole.version is None:
            return whole.fd is not None
        return use.version == whole.version

    def _may_begin(self, ino: int) -> bool:
        use = self._uses.get(ino)
        return use is None or bool(use.backing)

    def _wait_for_kernel(self, ino: int) -> None:
        def is_idle() -> bool:
            use = self._uses.get(ino)
            return use is None or not use.backing

        if not self._guard.wait_for(is_idle, _RELEASE_SECONDS):
            raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))

    def _leave(self, ino: int) -> None:
        use = self._uses[ino]
        use.handles -= 1
        if use.handles:
            return
        del self._uses[ino]
        if use.backing:
            fcntl.ioctl(self._device, _BACKING_CLOSE, struct.pack("<I", use.backing))
        self._guard.notify_all()

    def _register(self, fd: int) -> int:
        try:
            request = bytearray(_BACKING_MAP.pack(fd, 0, 0))
            return int(fcntl.ioctl(self._device, _BACKING_OPEN, request, True))
        except OSError as error:
            # Not on this kernel, or not for files of that file system.
            _log.warning("a file is not passed through: %s", error.strerror)
            return 0

    def _answer(self, device: int, parts: Any, count: int, _userdata: int | None) -> int:
        """Instead of writev(2): an answer on its way to the kernel."""
        backing = getattr(self._thread, "backing", 0)
        if backing or not self._is_greeted:
            self._thread.backing = 0
            if count > 1 and not c_int32.from_address(parts[0].base + _HEADER_ERROR).value:
                self._complete(parts[1].base, backing)
        return int(self._libc.writev(device, parts, count))

    def _complete(self, answer: int, backing: int) -> None:
        if backing:
            c_uint32.from_address(answer + _OPEN_FLAGS).value |= _OPEN_PASSTHROUGH
            c_int32.from_address(answer + _OPEN_BACKING_ID).value = backing
            return
        self._is_greeted = True
        c_uint32.from_address(answer + _INIT_FLAGS).value |= _INIT_EXT
        c_uint32.from_address(answer + _INIT_FLAGS2).value |= _INIT2_PASSTHROUGH
        c_uint32.from_address(answer + _INIT_STACK_DEPTH).value = 1
