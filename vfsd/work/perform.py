"""Performs a unit.  It may be performed any number of times, also at once.

The transaction that publishes a result compares it with the catalog, so a second run of a unit
costs time and changes nothing.  Engines may lose, repeat and double units.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from vfsd.api.store import Store
from vfsd.catalog.work_log import AGAIN, BEGUN, RETRY, WorkResult
from vfsd.core.process_control import host_name
from vfsd.errors import BusyError, IntegrityError, OutdatedError, UnreachableError, VfsdError
from vfsd.read.shared_store import StoreAddress
from vfsd.work.units import CANCELLED, FAILED, OUTDATED, REFUSED, OnProgress, Outcome, Unit
from vfsd.work.verbs import run_verb

TRANSIENT = (UnreachableError, BusyError)
"""Errors after which the same unit may succeed: engines retry it."""

_MOST_ENDED_WORKERS = 3
# How often a running unit asks whether its order was cancelled.
_CANCEL_SECONDS = 1.0

_stores: dict[str | StoreAddress, Store] = {}
_guard = threading.Lock()
# Rows that could not be added while the server was away.
_unsent: list[tuple[str, WorkResult]] = []


class _CancelledError(Exception):
    """The order was cancelled."""


def perform(store: Store, unit: Unit, *, on_progress: OnProgress | None = None) -> Outcome:
    """Perform a unit, and publish what is missing.

    Errors of the video are in the outcome.  Raises `UnreachableError` and `BusyError`: a later run
    may succeed.
    """
    began = time.process_time()
    try:
        done = run_verb(store, unit, on_progress or _ignore)
    except OutdatedError as error:
        return Outcome(OUTDATED, error=str(error), exit_code=error.exit_code)
    except TRANSIENT:
        raise
    except VfsdError as error:
        done = Outcome(FAILED, error=str(error), exit_code=error.exit_code)
    except OSError as error:
        done = Outcome(FAILED, error=str(error), exit_code=VfsdError.exit_code)
    return replace(done, cpu_seconds=round(time.process_time() - began, 3))


def perform_at(home: str | StoreAddress, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Perform a unit of `Unit.to_json` on the store at `home`; for workers of task engines.

    `home` is a directory, or the URL of a catalog as for `Store.open`.  A `StoreAddress` has both:
    a worker without that directory joins the store by the URL.  The process keeps the store open.
    The result is `Outcome.to_json`, and is added to the log of the order.  Raises
    `UnreachableError` and `BusyError`, after which the engine should retry.
    """
    given = Unit.from_json(unit)
    store = _store_at(home)
    if not given.order:
        return perform(store, given).to_json()
    log = store.catalog.work
    _send_unsent(store)
    if log.is_cancelled(given.order):
        return Outcome(CANCELLED).to_json()
    attempt, host = uuid4().hex, f"{host_name()}:{os.getpid()}"
    if _ended_workers(log.results(given.order, given.number)) >= _MOST_ENDED_WORKERS:
        done = Outcome(
            REFUSED,
            error=f"{_MOST_ENDED_WORKERS} workers ended while they performed the unit",
            exit_code=IntegrityError.exit_code,
        )
        _record(store, given, WorkResult(given.number, attempt, REFUSED, host, 0), done)
        return done.to_json()
    row = WorkResult(given.number, attempt, BEGUN, host, time.time_ns())
    log.append(given.order, [row])
    try:
        done = perform(store, given, on_progress=_stop_if_cancelled(store, given.order))
    except _CancelledError:
        done = Outcome(CANCELLED)
    except TRANSIENT as error:
        _record(store, given, row, Outcome(AGAIN, error=str(error), exit_code=error.exit_code))
        raise
    except Exception as error:
        # Not foreseen, so not to be hidden, but the worker has not ended.
        _record(store, given, row, Outcome(FAILED, error=repr(error), exit_code=1))
        raise
    _record(store, given, row, done)
    return done.to_json()


def _ended_workers(log: list[WorkResult]) -> int:
    """Return how many attempts since the last retry have begun and not ended."""
    open_ones: set[str] = set()
    for one in log:
        if one.outcome == RETRY:
            open_ones.clear()
        elif one.outcome == BEGUN:
            open_ones.add(one.attempt)
        else:
            open_ones.discard(one.attempt)
    return len(open_ones)


def _record(store: Store, unit: Unit, begun: WorkResult, done: Outcome) -> None:
    """Add the result to the log; later, if the catalog cannot be reached."""
    row = replace(
        begun,
        outcome=done.outcome,
        at_ns=time.time_ns(),
        cpu=done.cpu_seconds,
        frames=done.frames,
        made=done.made,
        bytes_read=done.bytes_read,
        bytes_written=done.bytes_written,
        error=done.error,
        exit_code=done.exit_code,
    )
    # Kept until it is sent: a worker that is alive must not count as ended.
    _unsent.append((unit.order, row))
    with suppress(*TRANSIENT) if done.outcome == AGAIN else nullcontext():
        _send_unsent(store)


def _send_unsent(store: Store) -> None:
    while _unsent:
        order, row = _unsent[0]
        store.catalog.work.append(order, [row])
        _unsent.pop(0)


def _stop_if_cancelled(store: Store, order: str) -> OnProgress:
    due = time.monotonic() + _CANCEL_SECONDS

    def on_progress(done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _CANCEL_SECONDS
        if store.catalog.work.is_cancelled(order):
            raise _CancelledError

    return on_progress


def _store_at(home: str | StoreAddress) -> Store:
    """Return the store of this process at `home`, opened at its first unit."""
    with _guard:
        if home not in _stores:
            # The engine runs one unit on each core.
            if isinstance(home, str):
                _stores[home] = Store.open(home, threads=1)
            else:
                _stores[home] = Store.at_address(replace(home, threads=1))
        return _stores[home]


@atexit.register
def _close_stores() -> None:
    for store in _stores.values():
        store.close()
    _stores.clear()


def _ignore(done: int, total: int) -> None:
    """Ignore progress."""
