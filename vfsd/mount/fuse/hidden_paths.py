"""Recognises the renames by which libfuse hides open files that are unlinked or replaced."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from ctypes import c_int, c_uint, c_void_p
from typing import Any

from vfsd.mount.fs import HiddenName

_HIDDEN = re.compile(rb"\.fuse_hidden[0-9a-f]{8}([0-9a-f]{8})")
_NUMBERS = 1 << 32
_AHEAD = 4096
"""As far from the number seen last others may be: several files are hidden at once, and libfuse
passes over numbers."""


class _Context(ctypes.Structure):
    """``struct fuse_context``, of which each of the bindings knows as much as it needs."""

    _fields_ = (
        ("fuse", c_void_p),
        ("uid", c_uint),
        ("gid", c_uint),
        ("pid", c_int),
        ("private_data", c_void_p),
        ("umask", c_uint),
    )


_HAS_HIDDEN = 1 << 31  # no umask has that


class HideRequests:
    """What the request that a thread answers has hidden.  Thread-safe.

    A rename over an open file, which libfuse makes two of, is told from an unlink and a rename that
    came after it: libfuse tells anew with each request whose it is, so that what is written there
    in the first call is still there in the second, however much later that comes.
    """

    def __init__(self, library: Any) -> None:
        self._context = library.fuse_get_context
        self._thread = threading.local()

    def begin(self, hidden: HiddenName) -> None:
        self._thread.hidden = hidden
        self._request().umask |= _HAS_HIDDEN

    def taken(self) -> HiddenName | None:
        """What was hidden, once."""
        request = self._request()
        if not request.umask & _HAS_HIDDEN:
            return None
        request.umask &= ~_HAS_HIDDEN
        found: HiddenName = self._thread.hidden
        return found

    def _request(self) -> _Context:
        return ctypes.cast(self._context(), ctypes.POINTER(_Context)).contents


class HiddenPaths:
    """The names that libfuse has made up for one mount.  Thread-safe."""

    def __init__(self, start: int | None) -> None:
        """The first has the number after `start`; None: nobody knows, and all are taken for its."""
        self._start = start
        self._seen = 0  # from there

    def has(self, path: bytes) -> bool:
        """Whether libfuse has made up that name, or might be about to."""
        return self._count(path) is not None

    @property
    def are_certain(self) -> bool:
        """Whether a name that might be libfuse's is: nobody else counts from where it began."""
        return self._start is not None

    def alias(self, old: bytes, new: bytes) -> str | None:
        """The name under which libfuse hides a file, if that is what a rename is for."""
        count = self._count(new)
        folder, _, name = new.rpartition(b"/")
        if count is None or old.rpartition(b"/")[0] != folder:
            return None
        self._seen = max(self._seen, count)
        return os.fsdecode(name)

    def _count(self, path: bytes) -> int | None:
        """Which of its names that may be; None: it is somebody else's."""
        if b"/.fuse_hidden" not in path:
            return None
        found = _HIDDEN.fullmatch(path.rpartition(b"/")[2])
        if found is None:
            return None
        if self._start is None:
            return 0
        count = (int(found[1], 16) - self._start) % _NUMBERS
        return count if 0 < count <= self._seen + _AHEAD else None
