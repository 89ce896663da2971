"""Shared by both libfuse adapters: errno mapping, utimensat(2) constants, and thread state.

`CallbackThreads` keeps the Python state and counters of threads that libfuse started.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from ctypes import c_int, c_void_p

from vfsd.errors import StoreError, VfsdError
from vfsd.mount.fs import OperationCounters
from vfsd.mount.fs.mount_stats import ThreadCounters

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2


_log = logging.getLogger(__name__)


def errno_of(error: BaseException, operation: str, path: object) -> int:
    """Return the errno for an exception. Unusual ones are logged.

    An internal error is EIO, never EINVAL, which would blame the caller.
    """
    if isinstance(error, VfsdError):
        level = logging.ERROR if isinstance(error, StoreError) else logging.INFO
        _log.log(level, "%s %s: %s%s", operation, _shown(path), error, _hint(error))
        return error.errno
    if isinstance(error, OSError) and error.errno:
        if error.errno == errno.EIO:
            _log.error("%s %s: %s", operation, _shown(path), error)
        return error.errno
    _log.error("%s %s failed", operation, _shown(path), exc_info=error)
    return errno.EIO


def _shown(path: object) -> str:
    """Return a path in quotes for a log; requests by handle have none."""
    if path is None:
        return "of an open file"
    return repr(os.fsdecode(path) if isinstance(path, bytes) else path)


def _hint(error: VfsdError) -> str:
    return f"; {error.hint}" if error.hint else ""


_Destructor = ctypes.CFUNCTYPE(None, c_void_p)


class CallbackThreads:
    """State and counters of each thread that serves the kernel. Thread-safe.

    Keep it as long as there are such threads.
    """

    def __init__(self, counters: OperationCounters) -> None:
        self._counters = counters
        self._thread = threading.local()
        self._ended = _Destructor(self._end)
        self._at_exit = _at_exit()

    def counts(self) -> ThreadCounters:
        """Return the counters of the calling thread, whose Python state is pinned at the first
        call."""
        try:
            found: ThreadCounters = self._thread.counts
        except AttributeError:
            found = self._begin()
        return found

    def _begin(self) -> ThreadCounters:
        self._thread.pinned = ctypes.pythonapi.PyGILState_Ensure()
        self._thread.counts = counts = self._counters.of_this_thread()
        if self._at_exit is not None:
            self._at_exit(self._ended, None, self._ended)
        return counts

    def _end(self, _: int | None) -> None:
        """Called by a thread at its end, to release its pinned state."""
        self._counters.give_back(self._thread.counts)
        ctypes.pythonapi.PyGILState_Release(self._thread.pinned)


def can_end() -> bool:
    """Return whether threads can end without leaks, which needs glibc."""
    return _at_exit() is not None


def _at_exit() -> Callable[..., int] | None:
    """Return the function that registers a destructor for the calling thread; None without
    glibc."""
    try:
        found = ctypes.CDLL(None)["__cxa_thread_atexit_impl"]
    except AttributeError:
        return None
    found.restype, found.argtypes = c_int, [_Destructor, c_void_p, c_void_p]
    return found
