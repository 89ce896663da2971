"""What both libfuse adapters need around a callback: the errno for an exception, the special
values of utimensat(2), and the Python state of threads that libfuse started.
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
    """The errno for whatever went wrong; what is not an everyday answer is logged.

    A mistake of ours is EIO, never EINVAL, which would blame the caller.
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
    """A path as text, in quotes; of what is asked for by its handle there is none."""
    if path is None:
        return "of an open file"
    return repr(os.fsdecode(path) if isinstance(path, bytes) else path)


def _hint(error: VfsdError) -> str:
    return f"; {error.hint}" if error.hint else ""


_Destructor = ctypes.CFUNCTYPE(None, c_void_p)


class CallbackThreads:
    """Of each thread that answers the kernel its state, and its counts.  Thread-safe.

    To be kept as long as there are such threads.
    """

    def __init__(self, counters: OperationCounters) -> None:
        self._counters = counters
        self._thread = threading.local()
        self._ended = _Destructor(self._end)
        self._at_exit = _at_exit()

    def counts(self) -> ThreadCounters:
        """Those of the thread that asks, which is pinned when it does so for the first time."""
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
        """Called by a thread that is about to end, with the state that it has pinned."""
        self._counters.give_back(self._thread.counts)
        ctypes.pythonapi.PyGILState_Release(self._thread.pinned)


def can_end() -> bool:
    """Whether threads that end leave nothing behind: with glibc."""
    return _at_exit() is not None


def _at_exit() -> Callable[..., int] | None:
    """Has a destructor called when the calling thread ends: (destructor, its argument, an address
    in what must not be unloaded until then)."""
    try:
        found = ctypes.CDLL(None)["__cxa_thread_atexit_impl"]
    except AttributeError:
        return None
    found.restype, found.argtypes = c_int, [_Destructor, c_void_p, c_void_p]
    return found
