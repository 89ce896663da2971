"""Room that a store keeps for the day when its disk is full.

SQLite needs some to open a catalog, and more to take rows away.  Without any, nobody could look
into a store on a full disk, or delete something there.  So a file lies beside the catalog that
holds nothing: it shrinks, a little at a time, when the disk is full and somebody opens the store or
takes something away, and is made again by whoever next opens the store while there is room.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from vfsd.errors import NoSpaceError, OverBudgetError
from vfsd.storedir import StoreDirectory

RESERVE_BYTES = 2 << 20
"""Some hundred pages of SQLite's log, for each of several transactions."""

_STEP_BYTES = 1 << 18
"""Opening a catalog takes less, so that a few looks do not use all of the reserve up."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


def keep_reserve(directory: StoreDirectory) -> None:
    """Make the reserve where it is missing and there is room; no error where it cannot be made."""
    path = directory.reserve
    with suppress(OSError):
        if path.exists() and path.stat().st_size >= RESERVE_BYTES:
            return
        found = os.statvfs(directory.root)
        if found.f_bavail * found.f_frsize < 2 * RESERVE_BYTES:
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def with_reserve(directory: StoreDirectory, action: Callable[[], T]) -> T:
    """Do something that leads to more room, or takes little; with the reserve if it has to be.

    For actions that change nothing when they fail.  Raises what `action` raises.
    """
    while True:
        try:
            return action()
        except OverBudgetError:
            raise  # that is no matter of the disk
        except (OSError, NoSpaceError) as error:
            if error.errno not in _NO_SPACE or not _shrink(directory):
                raise


def _shrink(directory: StoreDirectory) -> bool:
    """Give a step of the reserve up; whether there was one."""
    path = directory.reserve
    try:
        left = path.stat().st_size - _STEP_BYTES
        if left > 0:
            os.truncate(path, left)
        else:
            path.unlink()
    except OSError:
        return False
    return True
