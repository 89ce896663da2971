"""The process that makes tiles for a mount, as the mount has hold of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from vfsd.core.hostinfo import cpu_seconds
from vfsd.core.subprocess_entry import command, environment
from vfsd.disk.store_layout import StoreDirectory
from vfsd.mount.tune_protocol import Report

MODULE = "vfsd.mount.tune_worker"

_END_SECONDS = 0.6
"""How long it may take to end by itself."""


class TunerProcess:
    """A running `vfsd.mount.tune_worker`, which waits for its first order.

    `order` may be called by any thread, everything else by one.
    """

    def __init__(self, directory: StoreDirectory, avoid: Sequence[int]) -> None:
        """It leaves the videos with the ids `avoid` alone.  Raises `OSError`."""
        held = [] if directory.anchor is None else [directory.anchor.fd]
        task = {
            "store": str(directory.root),
            "held": held,
            "parent": os.getpid(),
            "avoid": avoid,
        }
        self._process = subprocess.Popen(
            command(MODULE, json.dumps(task)),
            pass_fds=held,
            cwd="/",
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin.fileno()
        self._reports = self._process.stdout.fileno()
        # Readers pause the worker by one byte. SIGSTOP would be quicker, but could stop it while it
        # holds the catalog's write lock.
        os.set_blocking(self._orders, False)
        os.set_blocking(self._reports, False)
        self._guard = threading.Lock()
        self._last = b""
        self._text = b""
        self._used = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess.Popen`; None while it runs."""
        return self._process.poll()

    def order(self, order: bytes) -> None:
        """`GO_ON` or `PAUSE`, unless that was the last one.  Never waits."""
        with self._guard:
            if order != self._last:
                self._last = order
                self._write(order)

    def forget_order(self) -> None:
        """It has done what it was told to; the next order is a new one."""
        with self._guard:
            self._last = b""

    def reports(self) -> list[Report]:
        """What it has told since the last question."""
        while True:
            try:
                more = os.read(self._reports, 65536)
            except BlockingIOError:
                break
            if not more:
                break
            self._text += more
        *lines, self._text = self._text.split(b"\n")
        return [Report.parse(line) for line in lines]

    def used(self) -> float:
        """Core seconds since the last question."""
        before, self._used = self._used, max(self._used, cpu_seconds(self.pid))
        return self._used - before

    def end(self) -> None:
        """Have it end; kill it when it does not.  In less than a second."""
        with self._guard:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._orders = -1
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self, order: bytes) -> None:
        if self._orders >= 0:
            # It may have ended, or obey nothing; whoever looks after it will see.
            with suppress(OSError):
                os.write(self._orders, order)
