"""What a store's owner has done to it while others read: tiles, renditions, budgets, checks."""

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
    _INTERRUPTED,
    BusyError.exit_code,
    OverBudgetError.exit_code,
    NotFoundError.exit_code,
)
"""Somebody else is at it, there is no room, or a video has just gone: that is no failure."""


class Chores:
    """One command after the other, round and round, until the block ends."""

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
        """How often each was done."""
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
        has_scrub = not self._vfsd("scrub", "--help")
        for number in itertools.count():
            name = self._names[number % len(self._names)]
            rows = 2 + number % 2
            commands = [
                ["retile", name, "--layout", f"uniform:{rows}x2", "--span", "0:2"],
                ["render", name, "--size", "320x0", "--span", "0:2"],
                ["retile", name, "--layout", "uniform:2x2", "--span", "0:1", "--codec", "lossless"],
                ["compress", name],
                ["budget", "set", ("3M", "30M")[number % 2]],
                ["gc"],
                *([["scrub"]] if has_scrub else []),
            ]
            for command in commands:
                if self._end.is_set():
                    return
                code = self._vfsd(*command)
                self._count[command[0]] += 1
                is_ended = self._end.is_set() and code == -signal.SIGINT  # before it had begun
                if code not in _MAY_END and not is_ended:
                    self.failed.append(f"{' '.join(command)} ended with {code}")

    def _vfsd(self, *words: str) -> int:
        command = [sys.executable, "-m", "vfsd", "-s", str(self._store), "-q", *words]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as self._running:
            return self._running.wait()
