"""Opens files of the store: never through symbolic links, only regular files, and without
blocking. `DirectFile` reads around the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import suppress
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


def is_nonempty_directory(path: Path) -> bool:
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


CHUNK = 1 << 20
"""Bytes per read; positions are multiples of it."""

STORED_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Flags for opening files of a store. A malicious store may contain links and pipes: these are
neither followed nor waited for."""

UNREADABLE = frozenset(
    {
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.ENXIO,
        # Checksum errors of file systems and bad sectors.
        errno.EBADMSG,
        errno.EILSEQ,
        errno.ENODATA,
        errno.EREMOTEIO,
        errno.EUCLEAN,
    }
)
"""Errors that mean the bytes of a stored file cannot be read. Other errors are about the process or
the machine, and temporary."""

OF_THE_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the file, and would occur for the next one as well."""


def open_stored(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Return a descriptor of a file of a store, for reading. `flags` are added to those of open(2).

    Raises `OSError`: EIO if it is not a regular file, ELOOP for a symbolic link.
    """
    fd = os.open(path, os.O_RDONLY | STORED_FLAGS | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EIO, "it is not a regular file", os.fspath(path))
    return fd


def stored_chunks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the bytes of a file of a store in chunks.

    Raises `FileNotFoundError`, and `IntegrityError` if it cannot be read.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_stored) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise IntegrityError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def version_of(found: os.stat_result) -> tuple[int, int, int]:
    """Return the inode, size and mtime of a file, which differ after it was replaced or written
    to."""
    return found.st_ino, found.st_size, found.st_mtime_ns


class DirectFile:
    """A file that is read without the page cache, if the file system supports that.

    Reading a whole store then evicts no pages of other programs. A context manager. Not
    thread-safe. Raises `OSError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._buffer = mmap.mmap(-1, CHUNK)  # page-aligned, as O_DIRECT requires
        self._is_direct = True
        try:
            self._fd = open_stored(path, os.O_DIRECT)
        except OSError as error:
            self._is_direct = False
            try:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._fd = open_stored(path)
            except OSError:
                self._buffer.close()
                raise

    def version(self) -> tuple[int, int, int]:
        """Return a value that changes if the file is replaced or written to."""
        return version_of(os.fstat(self._fd))

    def read(self, position: int, size: int = CHUNK) -> bytes:
        """Return up to `size` bytes of the chunk at `position`; fewer only at the end."""
        start = position // CHUNK * CHUNK
        data = self._chunk(start)
        return data[position - start : position - start + size]

    def _chunk(self, start: int) -> bytes:
        if self._is_direct:
            try:
                return self._buffer[: os.preadv(self._fd, [self._buffer], start)]
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_direct = False
        with suppress(OSError):
            os.posix_fadvise(self._fd, start, CHUNK, os.POSIX_FADV_DONTNEED)
        return os.pread(self._fd, CHUNK, start)

    def block(self, own: range) -> bytes | None:
        """Read some bytes of a chunk separately; None on a read error."""
        with suppress(OSError):
            os.posix_fadvise(self._fd, own.start, len(own), os.POSIX_FADV_DONTNEED)
        if self._is_direct:
            with suppress(OSError):
                count = os.preadv(self._fd, [memoryview(self._buffer)[: _whole(own)]], own.start)
                return self._buffer[: min(count, len(own))]
        try:
            return os.pread(self._fd, len(own), own.start)
        except OSError:
            return None

    def close(self) -> None:
        os.close(self._fd)
        self._buffer.close()

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(own: range) -> int:
    """Return the length rounded up to whole pages, as O_DIRECT requires."""
    return -(-len(own) // mmap.PAGESIZE) * mmap.PAGESIZE
