"""Letting all others go first: for what is done beside the work."""

from __future__ import annotations

import os

LOWEST_PRIORITY = 19


def stand_back() -> None:
    """Compute, and wait for the disk, only where nobody else wants to; all of this process.

    With SCHED_IDLE the disk's idle class comes by itself (see ioprio_set(2)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
