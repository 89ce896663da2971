"""Maintenance of a store while others read: tiles, renditions, budgets, checks."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from vfsd.errors import BusyError, NotFoundError, OverBudgetError

_INTERRUPTED = 130
_MAY_END = (
    0,
    BusyError.exit_code,
    OverBudgetError.exit_code,
    NotFoundError.exit_code,
)
"""Another process holds the lock, the disk is full, or a video was removed: not failures."""


def _round(number: int, name: str) -> list[list[str]]:
    """Commands in an order in which short work comes first; data stored by one command is
    evicted by the next that needs space."""
    rows = 2 + number % 2
    return [
        ["scrub"],
        ["retile", name, "--layout", f"uniform:{rows}x2", "--span", "0-1"],
        ["gc"],
        ["render", name, "--size", "320x0", "--span", "0-1"],
        ["budget", "set", ("1M", "30M")[number % 2]],
        ["retile", name, "--layout", "uniform:2x2", "--span", "0-1", "--codec", "lossless"],
        ["compress", name],
        ["gc"],
    ]


class Chores:
    """Runs one command after the other, in rounds, until the block ends."""

    def __init__(self, store: Path, names: list[str]) -> None:
        self.failed: list[str] = []
        self._count: Counter[str] = Counter()
        self._store = store
        self._names = names
        self._end = threading.Event()
        self._running: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def done(self) -> dict[str, int]:
        """How often each command ran."""
        return dict(self._count)

    def __enter__(self) -> Chores:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._running is not None:
            self._running.send_signal(signal.SIGINT)
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            for command in _round(number, self._names[number % len(self._names)]):
                if self._end.is_set():
                    return
                code = self._vfsd(*command)
                if self._end.is_set() and code in (_INTERRUPTED, -signal.SIGINT):
                    return  # it did not finish, if it had begun at all
                self._count[command[0]] += 1
                if code not in _MAY_END:
                    self.failed.append(f"{' '.join(command)} ended with {code}")

    def _vfsd(self, *words: str) -> int:
        command = [sys.executable, "-m", "vfsd", "-s", str(self._store), "-q", *words]
        # In a session of its own: Linux shares cores among sessions first (see sched(7)), and many
        # readers in the same session would starve a process of low priority.
        with subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as self._running:
            return self._running.wait()
