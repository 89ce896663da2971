"""Processes that are killed while a store is open."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_INGEST = """
import os, signal, sys
from vfsd.api.store import Store

store = Store.open(sys.argv[1])
for name in sys.argv[3:]:
    store.ingest(sys.argv[2], name)
os.kill(os.getpid(), signal.SIGKILL)
"""

_FORK = multiprocessing.get_context("fork")


def ingest_and_die(store: Path, video: Path, *names: str) -> None:
    """Put a video into a store under these names, in a process that is killed afterwards.  Its
    changes are then in the catalog's log."""
    done = subprocess.run([sys.executable, "-c", _INGEST, store, video, *names], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (store / "catalog.sqlite3-wal").stat().st_size > 0


def killed_at_rename(number: int, work: Callable[[Callable[[], None]], None]) -> bool:
    """Do `work` in a child that is killed at its rename `number` (from 0); return whether it was.

    Renames count from the moment when `work` calls its argument.
    """

    def run() -> None:
        left = number

        def count(event: str, _: object) -> None:
            nonlocal left
            if event == "os.rename":
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        work(lambda: sys.addaudithook(count))
        os._exit(0)

    child = _FORK.Process(target=run)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0
