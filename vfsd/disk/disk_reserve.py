"""Room that a store keeps for the day when its disk is full.

SQLite needs some to open a catalog, and more to take rows away.  Without any, nobody could look
into a store on a full disk, or delete something there.  So a file lies beside the catalog that
holds nothing: it shrinks, a little at a time, when the disk is full and somebody opens the store or
takes something away.  What becomes free goes to it first: it grows again when bytes have been
deleted and when the store is opened, and a mount writes nothing while it is short.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from vfsd.disk.enospc import NO_SPACE
from vfsd.disk.safe_open import open_own
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import NoSpaceError, OverBudgetError, StoreError

RESERVE_BYTES = 2 << 20
"""Some hundred pages of SQLite's log, for each of several transactions."""

_STEP_BYTES = 1 << 18
"""Opening a catalog takes less, so that a few looks do not use all of the reserve up."""

_LEAST_BYTES = 1 << 12
"""Disks give room in pieces of this size: less is not worth having."""

"""What the system says of a disk without room."""
T = TypeVar("T")


def keep_reserve(directory: StoreDirectory) -> bool:
    """Make the reserve, or as much of it as there is room for; False where that is not all.

    No error where it cannot be made for another reason, as where nothing may be written, but
    `StoreError` where something else lies there.
    """
    try:
        fd = open_own(directory.reserve, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        return error.errno not in NO_SPACE
    try:
        return _grown(fd)
    finally:
        os.close(fd)


def require_reserve(directory: StoreDirectory) -> None:
    """To be called before anything is written that may take room, as the reserve comes first.

    Takes a microsecond where nothing is missing.  Raises `NoSpaceError`, and as `keep_reserve`.
    """
    with suppress(FileNotFoundError):
        if os.stat(directory.reserve).st_size >= RESERVE_BYTES:
            return
    if not keep_reserve(directory):
        raise NoSpaceError(
            "the disk is full, and what is left of it is for removing something",
            hint="delete something, or make room on the disk",
        )


def with_reserve(
    directory: StoreDirectory,
    action: Callable[[], T],
    *,
    rewind: Callable[[], bool] = lambda: False,
) -> T:
    """Do something that leads to more room, or takes little; with the reserve if it has to be.

    For actions that change nothing when they fail.  `rewind` is `Catalog.rewind_log` where there
    is a catalog: what fits into the log as it is needs nothing of the reserve.  Raises what
    `action` raises.
    """
    is_rewound = False
    while True:
        try:
            return action()
        except OverBudgetError:
            raise  # that is no matter of the disk
        except (OSError, NoSpaceError) as error:
            if error.errno not in NO_SPACE:
                raise
            if not is_rewound and rewind():
                is_rewound = True
            elif not _shrink(directory):
                raise


def _grown(fd: int) -> bool:
    """Whether the file has all of its bytes, after it was given those that there is room for."""
    step = RESERVE_BYTES
    while True:
        size = os.fstat(fd).st_size
        if size >= RESERVE_BYTES:
            return True
        try:
            os.posix_fallocate(fd, size, min(step, RESERVE_BYTES - size))
        except OSError as error:
            if error.errno not in NO_SPACE:
                return True
            step //= 2
            if step < _LEAST_BYTES:
                return False


def _shrink(directory: StoreDirectory) -> bool:
    """Give a step of the reserve up; whether there was one."""
    try:
        fd = open_own(directory.reserve, os.O_WRONLY)
    except (OSError, StoreError):
        return False
    try:
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
