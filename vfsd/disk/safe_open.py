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


STAYS = (IntegrityError, PermissionError)
"""What `remove` raises of a name that stays, while others can go."""

_HOW = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def require_regular(*paths: Path) -> None:
    """Raises `StoreError` where one of these is neither missing nor a file, nor a link to one.

    A link that leads nowhere is not taken for a file that is missing: a new one would be made where
    it leads to, or what it leads to is only away for now.
    """
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise StoreError(
                f"{path} is a link that leads nowhere",
                hint="where it leads to another disk, mount that; else move the link away",
            )
        if not is_regular_or_missing(path):
            raise _no_file(path)


def require_same_process(*paths: Path) -> None:
    """As `require_regular`, of files that are written where they are: no links either.  Raises
    `StoreError`."""
    for path in paths:
        if path.is_symlink():
            raise _leads_away(path)
    require_regular(*paths)


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a file that is written where it is; `flags` are those of open(2).

    Raises `StoreError` where a link or something else that is no file lies there, `OSError`.
    """
    try:
        fd = os.open(path, flags | _HOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _leads_away(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path)
    return fd


def is_regular_or_missing(path: Path) -> bool:
    """Whether open(2) gives a file, or none; links are followed.  Raises `OSError`."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def is_full_directory(path: Path) -> bool:
    """Whether `remove` would refuse it."""
    return path.is_dir() and not path.is_symlink() and any(path.iterdir())


def remove(path: Path) -> None:
    """Delete what lies under a name of the store, if it is there.

    Raises `IntegrityError` for a directory that is not empty: what is in it is nobody's we know;
    `OSError`.
    """
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        remove_directory(path)


def remove_directory(path: Path) -> None:
    """The same, for what is known to be a directory."""
    try:
        path.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise IntegrityError(
            f"{path} is a directory with files in it, in the place of a file of the store",
            hint="move it away",
        ) from error


def _no_file(path: Path) -> StoreError:
    return StoreError(
        f"{path} must be a regular file", hint="move what lies there away, and try again"
    )


def _leads_away(path: Path) -> StoreError:
    return StoreError(
        f"{path} is a link, and would have what it leads to written over",
        hint="move the link away, and try again: the store makes a file of its own there",
    )
