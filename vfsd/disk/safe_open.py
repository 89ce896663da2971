"""Opens and deletes regular files without following symbolic links.

`DirectoryHandle` refers to a directory by descriptor, so that it may be moved.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from typing import Self

from vfsd.errors import IntegrityError, StoreError


class DirectoryHandle:
    """Refers to one directory by descriptor, even if it is moved."""

    def __init__(self, fd: int) -> None:
        """`fd` is a descriptor of the directory, which this object closes."""
        self.fd = fd
        # At exit other threads may still use the descriptor; the kernel closes it.
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a directory. Raises `OSError`."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        """Close the descriptor."""
        self._close()

    @property
    def path(self) -> Path | None:
        """A path to the directory in this process and its forks; None without /proc."""
        path = Path(f"/proc/self/fd/{self.fd}")
        return path if self.is_at(path) else None

    def is_at(self, path: Path) -> bool:
        """Return whether a path leads to this directory."""
        if not self._close.alive:
            return False
        try:
            return os.path.samestat(os.stat(path), os.fstat(self.fd))
        except OSError:
            return False

    def location(self) -> Path | None:
        """Return the current path in the mount namespace of this process; None if unknown."""
        try:
            found = Path(os.readlink(f"/proc/self/fd/{self.fd}"))
        except OSError:
            return None
        return found if self.is_at(found) else None


STAYS = (IntegrityError, PermissionError)
"""Errors of `remove` for a name that cannot be deleted, while others can."""

_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def require_regular(*paths: Path) -> None:
    """Raise `StoreError` unless each path is missing, a regular file, or a link to one.

    A dangling link is refused: its target may be on a disk that is not mounted, and a new file
    would be created there.
    """
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise StoreError(
                f"{path} is a dangling symbolic link",
                hint="mount the disk that it leads to, or move the link away",
            )
        if not is_regular_or_missing(path):
            raise _not_regular(path)


def require_same_process(*paths: Path) -> None:
    """As `require_regular`, of files that are written where they are: no links either.  Raises
    `StoreError`."""
    for path in paths:
        if path.is_symlink():
            raise _is_link(path)
    require_regular(*paths)


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a file that is written in place; `flags` are those of open(2).

    Raises `StoreError` if the path is a link or not a regular file, `OSError`.
    """
    try:
        fd = os.open(path, flags | _OPEN_FLAGS, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return fd


def is_regular_or_missing(path: Path) -> bool:
    """Return whether a path is missing or a regular file; links are followed. Raises `OSError`."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def is_full_directory(path: Path) -> bool:
    """Return whether `remove` would refuse a path."""
    return path.is_dir() and not path.is_symlink() and any(path.iterdir())


def remove(path: Path) -> None:
    """Delete a path of the store, if it exists.

    Raises `IntegrityError` for a directory that is not empty: its files are not the store's;
    `OSError`.
    """
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        remove_directory(path)


def remove_directory(path: Path) -> None:
    """Delete a path that is known to be a directory; see `remove`."""
    try:
        path.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise IntegrityError(
            f"{path} must be a file of the store, got a directory with files in it",
            hint="move it away",
        ) from error


def _not_regular(path: Path) -> StoreError:
    return StoreError(f"{path} must be a regular file", hint="move it away and try again")


def _is_link(path: Path) -> StoreError:
    return StoreError(
        f"{path} is a link: its target would be overwritten",
        hint="move the link away and try again: the store creates its own file there",
    )
