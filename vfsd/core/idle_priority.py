"""Letting all others go first: for what is done beside the work."""

from __future__ import annotations

import os
from contextlib import suppress

LOWEST_PRIORITY = 19
"""See nice(2)."""


def stand_back() -> None:
    """Compute, and wait for the disk, only where nobody else wants to; all of this process.

    With SCHED_IDLE the disk's idle class comes by itself (see ioprio_set(2)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)


def set_share(pid: int, niceness: int) -> bool:
    """Give the session of a process that niceness among other sessions, see sched(7), autogroup.

    False: it has to be said again later, as the kernel takes ten such words a second, and no more
    of those who are not root.  Nothing happens where cores are not shared out like that.
    """
    with suppress(OSError):
        place = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(place, str(niceness).encode("ascii"))
        except BlockingIOError:
            return False
        finally:
            os.close(place)
    return True
