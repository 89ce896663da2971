"""Runs the units of an order as tasks of Dask: ``dask://HOST:PORT``.

Dask places the units, and runs those of lost workers again.  It decides nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vfsd.errors import ExtraMissingError, UnreachableError, VfsdError
from vfsd.read.shared_store import StoreAddress
from vfsd.work.missing_workers import MissingWorkers
from vfsd.work.perform import TRANSIENT, perform_at
from vfsd.work.units import Unit

_TICK_SECONDS = 0.5
_PAUSE_SECONDS = 1.0


def run(units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]) -> None:
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
