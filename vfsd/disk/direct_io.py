"""Opens stored files safely, and reads them from the disk instead of the page cache."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from vfsd.errors import IntegrityError

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

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

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
