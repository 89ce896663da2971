"""What the file system asks of the one below it, where Python's `os` has no word for it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_FICLONE = 0x40049409
_CHUNK = 1 << 20
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EBADF)


def failure(code: int) -> OSError:
    """The exception that stands for an errno."""
    return OSError(code, os.strerror(code))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Reserve, punch, zero, collapse: see fallocate(2).  Raises `OSError`."""
    if _LIBC.fallocate(fd, mode, offset, length) != 0:
        raise failure(ctypes.get_errno())


def copy_start(source: int, target: int, length: int) -> None:
    """Make an empty file hold the first `length` bytes of another, sharing blocks if possible.

    A shorter source is copied as it is.
    """
    if length == os.fstat(source).st_size:
        try:
            fcntl.ioctl(target, _FICLONE, source)
            return
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    at = _copy_in_kernel(source, target, length)
    while at < length:
        chunk = os.pread(source, min(_CHUNK, length - at), at)
        if not chunk:
            return
        view = memoryview(chunk)
        while view:
            written = os.pwrite(target, view, at)
            view, at = view[written:], at + written


def _copy_in_kernel(source: int, target: int, length: int) -> int:
    """How much could be copied without passing through this process."""
    at = 0
    try:
        while at < length:
            copied = os.copy_file_range(source, target, min(1 << 30, length - at), at, at)
            if copied == 0:
                break
            at += copied
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    return at
