"""Answers to the kernel, completed on their way.

libfuse lets a program see its answers, by the hook for custom input and output.  That is how
libfuse 3.14 to 3.16, which Debian 12 and Ubuntu 24.04 have, can say what only later ones know of:
that the kernel reads a file itself.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_ssize_t, c_uint32, c_void_p
from typing import Any

# linux/fuse.h
_OPEN_PASSTHROUGH = 1 << 7
_INIT_EXT = 1 << 30
_INIT2_PASSTHROUGH = 1 << 5
_HEADER_ERROR = 4
_INIT_FLAGS, _INIT_FLAGS2, _INIT_STACK_DEPTH = 12, 32, 36
_OPEN_FLAGS, _OPEN_BACKING_ID = 8, 12


_Writev = CFUNCTYPE(c_ssize_t, c_int, c_void_p, c_int, c_void_p, use_errno=True)
_SECOND = ctypes.sizeof(c_void_p) * 2  # of two parts, each an address and a length


class _CustomIo(ctypes.Structure):
    """``struct fuse_custom_io``."""

    _fields_ = (
        ("writev", _Writev),
        ("read", c_void_p),
        ("splice_receive", c_void_p),
        ("splice_send", c_void_p),
    )


class Wire:
    """Completes the answer to INIT, and those answers to OPEN of which it is told."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._thread = threading.local()
        self._is_greeted = False
        self._answer = _Writev(self._answering())  # libfuse keeps no reference
        self._io = _CustomIo(self._answer, ctypes.cast(self._libc.read, c_void_p), None, None)

    def start(self, library: Any, session: int, device: int) -> None:
        """To be called while libfuse handles INIT."""
        library.fuse_session_custom_io.argtypes = [c_void_p, POINTER(_CustomIo), c_int]
        if library.fuse_session_custom_io(session, ctypes.byref(self._io), device) != 0:
            raise OSError(errno.ENOTSUP, "libfuse does not let its answers be completed")

    def announce(self, backing: int) -> None:
        """The answer to OPEN that this thread gives next says that the kernel reads that file."""
        self._thread.backing = backing

    # -- inside

    def _answering(self) -> Callable[[int, int, int, int | None], int]:
        """What is done instead of writev(2), with each answer: so it is short."""
        write = _prototype(self._libc.writev)
        # Answers without bytes take no time, others may copy a megabyte while Python goes on.
        write_short = _prototype(ctypes.PyDLL(None, use_errno=True).writev)
        thread, address, code = self._thread, c_void_p.from_address, c_int32.from_address

        def answer(device: int, parts: int, count: int, _userdata: int | None) -> int:
            backing = getattr(thread, "backing", 0)
            if not backing and self._is_greeted:
                return int((write if count > 1 else write_short)(device, parts, count))
            thread.backing = 0
            header = address(parts).value
            if header and count > 1 and not code(header + _HEADER_ERROR).value:
                self._complete(address(parts + _SECOND).value, backing)
            return int(write_short(device, parts, count))

        return answer

    def _complete(self, answer: int | None, backing: int) -> None:
        assert answer is not None
        if backing:
            c_uint32.from_address(answer + _OPEN_FLAGS).value |= _OPEN_PASSTHROUGH
            c_int32.from_address(answer + _OPEN_BACKING_ID).value = backing
            return
        self._is_greeted = True
        c_uint32.from_address(answer + _INIT_FLAGS).value |= _INIT_EXT
        c_uint32.from_address(answer + _INIT_FLAGS2).value |= _INIT2_PASSTHROUGH
        c_uint32.from_address(answer + _INIT_STACK_DEPTH).value = 1


def _prototype(writev: Any) -> Any:
    writev.restype = c_ssize_t
    writev.argtypes = [c_int, c_void_p, c_int]
    return writev
