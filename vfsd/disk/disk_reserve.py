"""Disk space that a store reserves for a full disk.

SQLite needs space to open a catalog, and more to delete rows. Without a reserve, a store on a full
disk could not be opened, and nothing could be deleted. So the file ``reserve`` holds preallocated
space. It shrinks step by step when the disk is full and a store is opened or something is deleted.
Freed space refills it first: after deletions and when the store is opened. A mount refuses writes
until it is full again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from vfsd.disk.safe_open import open_own
from vfsd.disk.store_layout import StoreDirectory
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.errors import NoSpaceError, OverBudgetError, StoreError

RESERVE_BYTES = 2 << 20
"""A few hundred pages of SQLite's log, for several transactions."""

# More than opening a catalog takes, so that opening it a few times does not use up the reserve.
_STEP_BYTES = 1 << 18

# The allocation unit of most disks; smaller steps are not worth trying.
_MIN_STEP_BYTES = 1 << 12

T = TypeVar("T")


def keep_reserve(directory: StoreDirectory) -> bool:
    """Fill the reserve as far as there is space; return False if it is not full.

    Other failures, such as a read-only disk, return True. Raises `StoreError` if the path is not a
    regular file.
    """
    try:
        fd = open_own(directory.reserve, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        return error.errno not in NO_SPACE
    try:
        return _grow(fd)
    finally:
        os.close(fd)


def require_reserve(directory: StoreDirectory) -> None:
    """Raise `NoSpaceError` if the reserve is not full. Call it before any write that needs space.

    Takes a microsecond if the reserve is full. Also raises as `keep_reserve`.
    """
    with suppress(FileNotFoundError):
        if os.stat(directory.reserve).st_size >= RESERVE_BYTES:
            return
    if not keep_reserve(directory):
        raise NoSpaceError(
            "the disk is full, and the rest is reserved for deletions",
            hint="delete files in the store, or free space on its disk",
        )


def with_reserve(
    directory: StoreDirectory,
    action: Callable[[], T],
    *,
    rewind: Callable[[], bool] = lambda: False,
) -> T:
    """Call `action`, and on a full disk again with space from the reserve.

    `action` frees space or needs little, and changes nothing when it fails. `rewind` is
    `Catalog.restart_log`: a log that can be reused needs no reserve. Raises what `action` raises.
    """
    is_rewound = False
    while True:
        try:
            return action()
        except OverBudgetError:
            raise  # unrelated to the disk
        except (OSError, NoSpaceError) as error:
            if error.errno not in NO_SPACE:
                raise
            # First the space that costs nothing: a log that was written to the catalog already.
            if not is_rewound and rewind():
                is_rewound = True
            elif not _shrink(directory):
                raise


def _grow(fd: int) -> bool:
    """Extend the file as far as there is space; return whether it is full."""
    step = RESERVE_BYTES
    while True:
        size = os.fstat(fd).st_size
        if size >= RESERVE_BYTES:
            return True
        try:
            # A sparse file would reserve nothing.
            os.posix_fallocate(fd, size, min(step, RESERVE_BYTES - size))
        except OSError as error:
            if error.errno not in NO_SPACE:
                return True
            # A nearly full disk may still have room for a smaller step.
            step //= 2
            if step < _MIN_STEP_BYTES:
                return False


def _shrink(directory: StoreDirectory) -> bool:
    """Free one step of the reserve; return False if it is empty."""
    try:
        fd = open_own(directory.reserve, os.O_WRONLY)
    except (OSError, StoreError):
        return False
    try:
        # Step by step: the rest stays reserved for the next failure.
        left = os.fstat(fd).st_size - _STEP_BYTES
        if left > 0:
            os.ftruncate(fd, left)
        else:
            directory.reserve.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
