"""System calls that Python's `os` does not provide, and a file copy that shares blocks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_FICLONE = 0x40049409
_CHUNK = 1 << 20
_UNSUPPORTED = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENOTTY,
    errno.EBADF,
)


def os_error(code: int) -> OSError:
    """Return the `OSError` for an errno."""
    return OSError(code, os.strerror(code))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2). Raises `OSError`."""
    if _LIBC.fallocate(fd, mode, offset, length) != 0:
        raise os_error(ctypes.get_errno())


def copy_start(source: int, target: int, length: int) -> None:
    """Copy the first `length` bytes of `source` into the empty file `target`.

    Both are descriptors. Blocks are shared where the disk supports it. A shorter source is copied
    completely.
    """
    if length == os.fstat(source).st_size:
        try:
            fcntl.ioctl(target, _FICLONE, source)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
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
    """Copy with copy_file_range(2); return how many bytes it copied, possibly 0."""
    at = 0
    try:
        while at < length:
            copied = os.copy_file_range(source, target, min(1 << 30, length - at), at, at)
            if copied == 0:
                break
            at += copied
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return at
