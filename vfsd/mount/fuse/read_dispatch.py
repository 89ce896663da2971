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
"""Fills a buffer from an offset; returns the number of bytes."""

_ENDED = (b"Z", b"X")
"""States in proc(5) of processes that have ended."""


class ViewReaders:
    """Tracks open views and the threads that closed them, to cancel reads. Thread-safe."""

    def __init__(self, library: Any, context: Callable[[], Any]) -> None:
        """`library` is libfuse 3, `context` its ``fuse_get_context``."""
        self._interrupted: Callable[[], int] = library.fuse_interrupted
        library.fuse_interrupted.restype = c_int
        library.fuse_interrupted.argtypes = []
        self._context = context
        self._closings: dict[int, dict[int, float]] = {}  # by view handle: time by thread

    def read_function(self, handle: int, read: ReadInto) -> Read:
        """Return the read function of a view. It raises EINTR when the reader is gone."""
        self._closings[handle] = {}

        def read_for_thread(buffer: memoryview, offset: int) -> int:
            return read(buffer, offset, partial(self._require_interest, handle, time.monotonic()))

        return read_for_thread

    def flushed(self, handle: int) -> None:
        """Record that the calling thread has closed a descriptor of the file."""
        closings = self._closings.get(handle)
        if closings is not None:
            closings[int(self._context().contents.pid)] = time.monotonic()

    def released(self, handle: int) -> None:
        self._closings.pop(handle, None)

    def _require_interest(self, handle: int, since: float) -> None:
        """Raise EINTR if the reader was interrupted or is gone. Call it in the thread of the
        request."""
        if self._interrupted():
            raise _interrupted()
        thread = int(self._context().contents.pid)
        if not thread:
            return  # the thread is in another pid namespace
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
    """The read functions of all open handles. Thread-safe."""

    def __init__(self, filesystem: Filesystem, view_readers: ViewReaders) -> None:
        self._fs = filesystem
        self._view_readers = view_readers
        self._guard = threading.Lock()
        self.files: dict[int, Read] = {}  #: by handle, for files that are not views
        self.views: dict[int, Read] = {}
        self.past_cache: set[int] = set()
        """Handles that must not fill the kernel's cache, since it holds another file's bytes."""

    def enter(self, handle: int) -> None:
        """Add a handle."""
        read = self._fs.reader(handle)
        if self._fs.is_view(handle):
            self.views[handle] = self._view_readers.read_function(handle, read)
        else:
            self.files[handle] = read

    def leave(self, handle: int) -> None:
        with self._guard:
            self.files.pop(handle, None)
            self.views.pop(handle, None)
            self.past_cache.discard(handle)
        self._view_readers.released(handle)

    def cut(self, handle: int) -> None:
        """Make reads beyond the end of the file fail with ESTALE.

        The kernel is about to use a size larger than the file, and would fill the rest with zeros.
        The error stays even if the kernel learns the right size, since that may change again before
        the reader looks. The end is evaluated at each read: the reader may be the writer as well.
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
