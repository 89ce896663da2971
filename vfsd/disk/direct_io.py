"""Reading a file from the disk, rather than what the kernel remembers of it."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from vfsd.errors import IntegrityError

CHUNK = 1 << 20
"""Bytes that are read at a time; places are multiples of it."""

AS_BYTES = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""How files of a store are opened: who made it may have put links and pipes there, which are
neither followed nor waited for."""

UNREADABLE = frozenset(
    {
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.ENXIO,
        # What file systems and disks say of sums that do not fit, and of bad sectors.
        errno.EBADMSG,
        errno.EILSEQ,
        errno.ENODATA,
        errno.EREMOTEIO,
        errno.EUCLEAN,
    }
)
"""With these the disk says that it does not give the bytes of a stored file, or that there is
nothing which could have any.  Others are about this process, or the machine, and will pass."""

OF_THE_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says nothing of the file that was to be opened, and would be said of the next one, too."""


def open_stored(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor of a file of a store, to be read.  `flags` are others of open(2).

    Raises `OSError`: EIO for what is no regular file, ELOOP for a symbolic link.
    """
    fd = os.open(path, os.O_RDONLY | AS_BYTES | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EIO, "it is not a regular file", os.fspath(path))
    return fd


def stored_chunks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The bytes of a file of a store, piece by piece.

    Raises `FileNotFoundError`, and `IntegrityError` where the disk does not give them.
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


class DirectFile:
    """A file that is read past the page cache where the file system lets us.

    Who reads a whole store so pushes nothing out of the memory of others.  Not thread-safe;
    a context manager.  Raises `OSError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._buffer = mmap.mmap(-1, CHUNK)  # which begins at a page, as direct reads want it
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

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def read(self, position: int, size: int = CHUNK) -> bytes:
        """Up to `size` bytes, a part of the chunk at `position`; fewer only at the end."""
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
        """Some bytes of a chunk, on their own; None where the disk does not give them."""
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
    """As many bytes as direct reads want, which are whole pages."""
    return -(-len(own) // mmap.PAGESIZE) * mmap.PAGESIZE
