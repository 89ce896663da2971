"""Whether those who ask for parts of views still want to know.

The kernel tells of a signal (INTERRUPT) while somebody waits for one certain answer.  Mostly nobody
does: what is read goes through the kernel's cache, which asks for more than its reader, and his end
is told by nothing but a FLUSH.  So it is looked at whether the thread that has asked is there, and
whether it has closed the file since.  Should others wait for the same pages, the kernel asks for
these again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from ctypes import c_int
from functools import partial
from typing import Any

from vfsd.mount.fs import Reading

Read = Callable[[memoryview, int], int]
"""Fills a buffer from an offset on, and tells how many bytes that were."""

_ENDED = (b"Z", b"X")
"""States of proc(5): nothing is executed any more."""


class Askers:
    """Knows which handles are views, and who has closed them.  Thread-safe."""

    def __init__(self, library: Any, context: Callable[[], Any]) -> None:
        """`library` is libfuse 3, `context` its ``fuse_get_context``."""
        self._interrupted: Callable[[], int] = library.fuse_interrupted
        library.fuse_interrupted.restype = c_int
        library.fuse_interrupted.argtypes = []
        self._context = context
        self._closings: dict[int, dict[int, float]] = {}  # of views: when by which thread

    def asking(self, handle: int, read: Reading) -> Read:
        """How to read a view that was opened: waiting as long as somebody wants to know."""
        self._closings[handle] = {}

        def answer(buffer: memoryview, offset: int) -> int:
            return read(buffer, offset, partial(self._require_interest, handle, time.monotonic()))

        return answer

    def flushed(self, handle: int) -> None:
        """The thread whose request this one handles has closed a descriptor of the file."""
        closings = self._closings.get(handle)
        if closings is not None:
            closings[int(self._context().contents.pid)] = time.monotonic()

    def released(self, handle: int) -> None:
        self._closings.pop(handle, None)

    def _require_interest(self, handle: int, since: float) -> None:
        """Raises `OSError`: EINTR.  To be called by the thread that handles the request."""
        if self._interrupted():
            raise _interrupted()
        thread = int(self._context().contents.pid)
        if not thread:
            return  # it lives where we do not see it
        closed = self._closings.get(handle, {}).get(thread)
        if (closed is not None and closed >= since) or _has_ended(thread):
            raise _interrupted()


def _interrupted() -> OSError:
    return InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


def _has_ended(thread: int) -> bool:
    try:
        with open(f"/proc/{thread}/stat", "rb") as file:
            state = file.read(1024).rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False
    return state in _ENDED
