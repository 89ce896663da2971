"""The process that makes tiles for a mount: ``python -m vfsd.mount.tune_worker JSON``.

It gets its orders by standard input and reports by standard output, see
`vfsd.mount.tune_protocol`; what libraries print goes to standard error.  It runs where nothing
else wants to, and ends with the mount's process however that ends; whenever that is, the store is
whole.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from vfsd.api.store import Store
from vfsd.core.child_lifetime import end_with
from vfsd.core.idle_priority import LOWEST_PRIORITY, set_share, stand_back
from vfsd.disk.held_directory import HeldDirectory
from vfsd.disk.store_layout import StoreDirectory
from vfsd.mount import mount_log
from vfsd.mount.tune_protocol import Orders, Report, StopError
from vfsd.mount.tune_work import Tell, TuneWork
from vfsd.storage.context import Parts


def main(arguments: list[str]) -> None:
    task = json.loads(arguments[0])
    orders, tell = _take_pipes()
    _stand_back()
    _end_with(int(task["parent"]))
    mount_log.set_up("warning")
    avoid = {int(number) for number in task["avoid"]}
    # Where the pipe is broken, nobody is left to report to.
    with (
        suppress(StopError, BrokenPipeError),
        Store(Parts.of(_store_directory(task)), threads=1) as store,
    ):
        work = TuneWork(store, orders.obey, tell, avoid)
        while True:
            orders.await_go()
            work.do()


# --------------------------------------------------------------------------------- the process


def _store_directory(task: dict[str, Any]) -> StoreDirectory:
    """The store through the descriptor of the mount, where that has one."""
    root = Path(task["store"])
    for fd in task["held"]:
        return StoreDirectory.open_held(root, HeldDirectory(int(fd)))
    return StoreDirectory.open_watched(root)


def _take_pipes() -> tuple[Orders, Tell]:
    """Keep both pipes from whatever else reads or prints."""
    orders, reports = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def tell(report: Report) -> None:
        os.write(reports, report.line())

    return Orders(orders), tell


def _stand_back() -> None:
    """Compute, and wait for the disk, only where nobody else wants to.

    Where the system shares out its cores among sessions first, ours is the last (see sched(7),
    autogroup).
    """
    with suppress(OSError):
        os.setsid()
        set_share(os.getpid(), LOWEST_PRIORITY)
    stand_back()


def _end_with(parent: int) -> None:
    """Be killed when the thread that has started us ends, and by signals that are for us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is the mount's to end us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    end_with(parent)
