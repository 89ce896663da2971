"""What libfuse does to open files that are unlinked, and how it is recognised.

Knowing files by path only, libfuse renames an open file to ``.fuse_hidden`` and two numbers
instead of unlinking it or renaming another over it, and unlinks that when it is closed.  It may
do so just after the file was closed, and then it forgets about it.

Whoever copies a tree that once lay in such a mount copies names like that, and means them.  The
second number is a counter, so libfuse is known by where it counts.
"""

from __future__ import annotations

import os
import re

_HIDDEN = re.compile(rb"\.fuse_hidden[0-9a-f]{8}([0-9a-f]{8})")
_NUMBERS = 1 << 32
_AHEAD = 4096
"""As far from the number seen last others may be: several files are hidden at once, and libfuse
passes over numbers."""


class HiddenNames:
    """The names that libfuse has made up for one mount.  Thread-safe."""

    def __init__(self, start: int | None) -> None:
        """The first has the number after `start`; None: nobody knows, and all are taken for its."""
        self._start = start
        self._seen = 0  # from there

    def has(self, path: bytes) -> bool:
        """Whether libfuse has made up that name, or might be about to."""
        return self._count(path) is not None

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
