"""By what open files are read."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from vfsd.mount.fs import Filesystem
from vfsd.mount.fuse.interrupts import Askers, Read


class Readers:
    """Of all handles that are open.  Thread-safe."""

    def __init__(self, filesystem: Filesystem, askers: Askers) -> None:
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
