"""What Python has for a thread that libfuse has started: kept while it lives, gone when it ends.

Python makes a state for a foreign thread before each callback and destroys it afterwards, which
doubles the latency, so that it is pinned by the first one.  Nobody tells when the thread is to end,
but for the C library, which calls the destructors of what is local to a thread.  Keys of pthreads
would not do: Python's own, by which it finds the state, is emptied first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import c_int, c_void_p

from vfsd.mount.fs import Counters
from vfsd.mount.fs.op_stats import ByOperation

_Destructor = ctypes.CFUNCTYPE(None, c_void_p)


class ServingThreads:
    """Of each thread that answers the kernel its state, and its counts.  Thread-safe.

    To be kept as long as there are such threads.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._thread = threading.local()
        self._ended = _Destructor(self._end)
        self._at_exit = _at_exit()

    def counts(self) -> ByOperation:
        """Those of the thread that asks, which is pinned when it does so for the first time."""
        try:
            found: ByOperation = self._thread.counts
        except AttributeError:
            found = self._begin()
        return found

    def _begin(self) -> ByOperation:
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
