"""Disks and quotas that are full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from vfsd.errors import NoSpaceError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raises `NoSpaceError` where there is no room for what the block writes."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"no room for {what}: {error.strerror}") from error
        raise


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all of it, or fail: what is not buffered takes as much as there is room for."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
