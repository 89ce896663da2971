"""Shared by both libfuse adapters: errno mapping, thread state and hidden names.

`HiddenPaths` recognises how libfuse hides open files before unlink and rename: it renames them.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import threading
from collections.abc import Callable
from ctypes import c_int, c_uint, c_void_p
from typing import Any

from vfsd.errors import StoreError, VfsdError
from vfsd.mount.fs import HiddenName, OperationCounters
from vfsd.mount.fs.mount_stats import ThreadCounters

_log = logging.getLogger(__name__)

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
_HIDDEN = re.compile(rb"\.fuse_hidden[0-9a-f]{8}([0-9a-f]{8})")
_NUMBERS = 1 << 32
# How far a number may be ahead of the last one. libfuse hides several files at once, and skips
# numbers.
_AHEAD = 4096
_HAS_HIDDEN = 1 << 31  # a bit that no umask uses


def errno_of(error: BaseException, operation: str, path: object) -> int:
    """Return the errno for an exception. Unusual ones are logged, with the path.

    `path` may be a function that returns the path.

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
    if callable(path):
        path = path()
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


class _Context(ctypes.Structure):
    """``struct fuse_context``. The bindings define only a part of it."""

    _fields_ = (
        ("fuse", c_void_p),
        ("uid", c_uint),
        ("gid", c_uint),
        ("pid", c_int),
        ("private_data", c_void_p),
        ("umask", c_uint),
    )


class HideRequests:
    """Connects the two steps of a rename over an open file. Thread-safe.

    libfuse splits such a rename into hiding the target and renaming onto it. Both happen in one
    request with one ``fuse_context``. A bit set there in the first step is still set in the second,
    which distinguishes it from an unlink and a later rename.
    """

    def __init__(self, library: Any) -> None:
        self._context = library.fuse_get_context
        self._thread = threading.local()

    def begin(self, hidden: HiddenName) -> None:
        self._thread.hidden = hidden
        self._request().umask |= _HAS_HIDDEN

    def taken(self) -> HiddenName | None:
        """Return what this request has hidden, once."""
        request = self._request()
        if not request.umask & _HAS_HIDDEN:
            return None
        request.umask &= ~_HAS_HIDDEN
        found: HiddenName = self._thread.hidden
        return found

    def _request(self) -> _Context:
        return ctypes.cast(self._context(), ctypes.POINTER(_Context)).contents


class HiddenPaths:
    """The hidden names that libfuse generates for one mount. Thread-safe."""

    def __init__(self, start: int | None) -> None:
        """libfuse numbers the names from `start` + 1. None: unknown; all matching names count."""
        self._start = start
        self._seen = 0  # highest position in the sequence so far

    def has(self, path: bytes) -> bool:
        """Return whether libfuse has generated a name, or may be about to."""
        return self._count(path) is not None

    @property
    def are_certain(self) -> bool:
        """Whether matching names surely are from libfuse, since the start number is known."""
        return self._start is not None

    def alias(self, old: bytes, new: bytes) -> str | None:
        """Return the hidden name if libfuse makes this rename to hide a file, else None."""
        count = self._count(new)
        folder, _, name = new.rpartition(b"/")
        if count is None or old.rpartition(b"/")[0] != folder:
            return None
        self._seen = max(self._seen, count)
        return os.fsdecode(name)

    def _count(self, path: bytes) -> int | None:
        """Return the position of a name in libfuse's sequence; None for other names."""
        if b"/.fuse_hidden" not in path:
            return None
        found = _HIDDEN.fullmatch(path.rpartition(b"/")[2])
        if found is None:
            return None
        if self._start is None:
            return 0
        count = (int(found[1], 16) - self._start) % _NUMBERS
        return count if 0 < count <= self._seen + _AHEAD else None
