"""Errors of full disks and quotas."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from vfsd.errors import NoSpaceError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raise `NoSpaceError` with the name `what` if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"no room for {what}: {error.strerror}") from error
        raise


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all of `data`. Unbuffered files may otherwise write only a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
