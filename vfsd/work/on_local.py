"""Runs the units of an order in processes of this machine: ``local:N``.

Each process runs ``vfsd work run ORDER --part I/N``.  One that is killed is started again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO

from vfsd.core.process_control import available_cores
from vfsd.errors import BusyError, UnreachableError, UsageError, VfsdError
from vfsd.read.shared_store import StoreAddress
from vfsd.work.units import LeaveRunning, Unit

_TICK_SECONDS = 0.5
# Exit codes after which another run may succeed.
_AGAIN = (UnreachableError.exit_code, BusyError.exit_code)


def run(units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]) -> None:
    """Return when the processes have ended.  See `vfsd.work.orders.Order.run`."""
    count = min(_processes(on), len(units))
    order = units[0].order
    # Units that end their worker are refused after some attempts, so restarts come to an end.
    restarts = 4 * len(units) + count
    messages: dict[int, IO[bytes]] = {}
    with ExitStack() as stack:

        def start(part: int) -> subprocess.Popen[bytes]:
            # Not a pipe: processes that are left running may still write.
            messages[part] = stack.enter_context(tempfile.TemporaryFile())
            command = [
                sys.executable,
                "-m",
                "vfsd",
                "-s",
                home.root,
                "--json",
                "work",
                "run",
                order,
            ]
            command += ["--part", f"{part}/{count}"]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages[part],
                start_new_session=True,  # a Ctrl-C is for this process
            )
            stack.callback(_end, process)
            return process

        running = {part: start(part) for part in range(count)}
        while running:
            try:
                tick()
            except LeaveRunning:
                stack.pop_all()
                raise
            for part, process in list(running.items()):
                try:
                    process.wait(_TICK_SECONDS / len(running))
                except subprocess.TimeoutExpired:
                    continue
                del running[part]
                if process.returncode < 0 or process.returncode in _AGAIN:
                    restarts -= 1
                    if restarts < 0:
                        raise VfsdError(f"process {part} of {on} ended too often")
                    if process.returncode > 0:
                        time.sleep(_TICK_SECONDS)
                    running[part] = start(part)
                elif process.returncode == 1:
                    messages[part].seek(0)
                    text = messages[part].read().decode(errors="replace").strip()
                    raise VfsdError(f"process {part} of {on}: {text}")
        tick()


def _processes(on: str) -> int:
    _, _, count = on.partition(":")
    if not count:
        return available_cores()
    if not count.isdecimal() or not int(count):
        raise UsageError(f"local:N needs a number of processes, got {on!r}")
    return int(count)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
