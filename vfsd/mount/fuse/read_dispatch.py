"""Selects the read function of each open handle.

Reads of views are cancelled when the requesting process is interrupted or has ended.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from ctypes import c_int
from functools import partial
from typing import Any

from vfsd.mount.fs import Filesystem, ReadInto

Read = Callable[[memoryview, int], int]
"""Fills a buffer from an offset on, and tells how many bytes that were."""

_ENDED = (b"Z", b"X")
"""States of proc(5): nothing is executed any more."""


class ViewReaders:
    """Knows which handles are views, and who has closed them.  Thread-safe."""

    def __init__(self, library: Any, context: Callable[[], Any]) -> None:
        """`library` is libfuse 3, `context` its ``fuse_get_context``."""
        self._interrupted: Callable[[], int] = library.fuse_interrupted
        library.fuse_interrupted.restype = c_int
        library.fuse_interrupted.argtypes = []
        self._context = context
        self._closings: dict[int, dict[int, float]] = {}  # of views: when by which thread

    def asking(self, handle: int, read: ReadInto) -> Read:
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


class ReadDispatch:
    """Of all handles that are open.  Thread-safe."""

    def __init__(self, filesystem: Filesystem, askers: ViewReaders) -> None:
        self._fs = filesystem
        self._askers = askers
        self._guard = threading.Lock()
        self.files: dict[int, Read] = {}  #: by handle, of what is no view
        self.views: dict[int, Read] = {}
        self.past_cache: set[int] = set()
        """By which nothing is to get into the kernel's cache: something else has that."""

    def enter(self, handle: int) -> None:
        """From now on it can be read."""
        read = self._fs.reader(handle)
        if self._fs.is_view(handle):
            self.views[handle] = self._askers.asking(handle, read)
        else:
            self.files[handle] = read

    def leave(self, handle: int) -> None:
        with self._guard:
            self.files.pop(handle, None)
            self.views.pop(handle, None)
            self.past_cache.discard(handle)
        self._askers.released(handle)

    def cut(self, handle: int) -> None:
        """The kernel is about to take it for longer than it is.

        What it does not get up to there it takes for zeros.  So whatever reaches behind the end is
        an error from now on: ESTALE.  Even where the kernel knows better by then: it might be told
        otherwise again before the reader has looked.  The end is where it is by then, since who
        reads may be the one who writes it.
        """
        with self._guard:
            readers = self.views if handle in self.views else self.files
            read = readers.get(handle)
            if read is not None and not isinstance(read, _UpToEnd):
                readers[handle] = _UpToEnd(read, lambda: self._fs.getattr(None, handle).size)


class _UpToEnd:
    def __init__(self, read: Read, end: Callable[[], int]) -> None:
        self._read = read
        self._end = end

    def __call__(self, buffer: memoryview, offset: int) -> int:
        if offset + len(buffer) > self._end():
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._read(buffer, offset)
