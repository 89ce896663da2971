"""Runs the units of an order as tasks of Ray: ``ray`` or ``ray://HOST:PORT``.

Ray places the units, and runs those of lost workers again.  It decides nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from vfsd.errors import ExtraMissingError, UnreachableError, VfsdError
from vfsd.read.shared_store import StoreAddress
from vfsd.work.missing_workers import MissingWorkers
from vfsd.work.perform import TRANSIENT, perform_at
from vfsd.work.units import Unit

_TICK_SECONDS = 0.5
# Ray retries at once, and a server needs some time to come back.
_PAUSE_SECONDS = 1.0


def run(units: Sequence[Unit], home: StoreAddress, on: str, tick: Callable[[], None]) -> None:
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


def _perform(home: StoreAddress, unit: dict[str, Any]) -> dict[str, Any]:
    try:
        return perform_at(home, unit)
    except TRANSIENT:
        time.sleep(_PAUSE_SECONDS)
        raise
