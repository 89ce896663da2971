"""A directory that is held by a descriptor, wherever it is moved."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Self


class HeldDirectory:
    """Refers to one directory for as long as it lives, whatever its path leads to by then."""

    def __init__(self, fd: int) -> None:
        """`fd` is a descriptor of the directory, and this object closes it."""
        self.fd = fd
        # At the end of the process others may still use the descriptor; the kernel closes it.
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises `OSError`."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        """Refer to nothing any more."""
        self._close()

    @property
    def path(self) -> Path | None:
        """A path that leads there in this process and its forks; None without a /proc."""
        path = Path(f"/proc/self/fd/{self.fd}")
        return path if self.is_at(path) else None

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this directory."""
        if not self._close.alive:
            return False
        try:
            return os.path.samestat(os.stat(path), os.fstat(self.fd))
        except OSError:
            return False

    def location(self) -> Path | None:
        """Where the directory is now, in the mount namespace of this process; None if unknown."""
        try:
            found = Path(os.readlink(f"/proc/self/fd/{self.fd}"))
        except OSError:
            return None
        return found if self.is_at(found) else None
