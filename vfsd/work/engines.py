"""Runs the units of an order in processes of this machine, or as tasks of Dask or Ray.

    local:N             each process runs ``vfsd work run ORDER --part I/N``; one that is killed is
                        started again
    dask://HOST:PORT
    ray, ray://HOST:PORT

Dask and Ray place the units, and run those of lost workers again.  They decide nothing else.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from vfsd.core.process_control import available_cores
from vfsd.errors import BusyError, ExtraMissingError, UnreachableError, UsageError, VfsdError
from vfsd.read.shared_store import StoreAddress
from vfsd.work.perform import TRANSIENT, perform_at
from vfsd.work.units import LeaveRunning, Unit

_TICK_SECONDS = 0.5
# Exit codes after which another run may succeed.
_AGAIN = (UnreachableError.exit_code, BusyError.exit_code)


def run_on_local(
    units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]
) -> None:
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


_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
_WARN_SECONDS = 30.0
_END_SECONDS = 600.0
"""Clusters may take minutes to start workers, or to replace lost ones."""


class MissingWorkers:
    """Warns when an engine has had no workers for a while, and ends the order later."""

    def __init__(self, engine: str, count: Callable[[], int], hint: str) -> None:
        """`count` returns the number of workers; `hint` says how to get some."""
        self._engine = engine
        self._count = count
        self._hint = hint
        self._seen = time.monotonic()  #: when there were some, or the order began
        self._asked = self._warned = self._seen

    def check(self) -> None:
        """Ask the engine, at most every few seconds.

        Raises `UnreachableError` if there were no workers for ten minutes.
        """
        now = time.monotonic()
        if now - self._asked < _ASK_SECONDS:
            return
        self._asked = now
        if self._count():
            self._seen = self._warned = now
            return
        missing = now - self._seen
        if missing >= _END_SECONDS:
            raise UnreachableError(
                f"{self._engine} has had no workers for {missing:.0f} seconds",
                hint=f"{self._hint}; `vfsd work run` then performs the units that are left",
            )
        if now - self._warned >= _WARN_SECONDS:
            self._warned = now
            _log.warning("%s has no workers; the order waits: %s", self._engine, self._hint)


# Ray retries at once, and a server needs some time to come back.
_PAUSE_SECONDS = 1.0


def run_on_dask(
    units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]
) -> None:
    """Return when Dask has ended all units.  See `vfsd.work.orders.Order.run`."""
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise ExtraMissingError("Dask is not installed", hint="pip install 'vfsd[dask]'") from error
    address = on.partition("//")[2]
    try:
        client = Client(f"tcp://{address}", set_as_default=False)
    except OSError as error:
        raise UnreachableError(f"no Dask scheduler at {on}: {error}") from error
    with client:

        def submit(unit: Unit) -> Any:
            # Not pure: two equal units are two tasks, and results are not reused.
            return client.submit(_perform, home, unit.to_json(), pure=False, retries=0)

        missing = MissingWorkers(
            on,
            lambda: len(client.nthreads()),
            "start workers; a cluster that runs in a process gives up workers that take longer to "
            "restart than distributed.deploy.lost-worker-timeout, 15 seconds",
        )
        running = {unit.number: (unit, submit(unit)) for unit in units}
        failed: BaseException | None = None
        try:
            while running:
                tick()
                missing.check()
                time.sleep(_TICK_SECONDS)
                for number, (unit, future) in list(running.items()):
                    if not future.done():
                        continue
                    lost = future.exception() if future.status == "error" else None
                    # Dask gives a task up after some workers; `perform_at` counts them, too.
                    if isinstance(lost, (*TRANSIENT, KilledWorker)) or future.cancelled():
                        running[number] = unit, submit(unit)
                        continue
                    failed = failed or lost
                    del running[number]
            tick()
        finally:
            client.cancel([future for _, future in running.values()], force=True)
    if failed is not None:
        raise VfsdError(f"Dask could not run all units: {failed}") from failed


def _perform(home: StoreAddress, unit: dict[str, Any]) -> dict[str, Any]:
    try:
        return perform_at(home, unit)
    except TRANSIENT:
        time.sleep(_PAUSE_SECONDS)
        raise


def run_on_ray(
    units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]
) -> None:
    """Return when Ray has ended all units.  See `vfsd.work.orders.Order.run`."""
    try:
        import ray
    except ImportError as error:
        raise ExtraMissingError("Ray is not installed", hint="pip install 'vfsd[ray]'") from error
    was_connected = ray.is_initialized()
    if not was_connected:
        try:
            ray.init(on if "//" in on else "auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise UnreachableError(f"no Ray at {on}: {error}") from error
    # Lost workers do not count as failures.  Errors of videos are not raised.
    task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=list(TRANSIENT))(_perform)
    missing = MissingWorkers(
        on, lambda: int(ray.cluster_resources().get("CPU", 0)), "start nodes that have CPUs"
    )
    refs: list[Any] = [task.remote(home, unit.to_json()) for unit in units]
    failed: Exception | None = None
    try:
        while refs:
            done, refs = ray.wait(refs, num_returns=len(refs), timeout=_TICK_SECONDS)
            for ref in done:
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    failed = failed or error
            tick()
            if refs:
                missing.check()
    finally:
        for ref in refs:  # after Ctrl-C
            with suppress(Exception):
                ray.cancel(ref, force=True)
        if not was_connected:
            ray.shutdown()
    if failed is not None:
        raise VfsdError(f"Ray could not run all units: {failed}") from failed


ENGINES = {"local": run_on_local, "ray": run_on_ray, "dask": run_on_dask}
"""The functions by the first part of an engine's address."""
