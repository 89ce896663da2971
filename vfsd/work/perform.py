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
from pathlib import Path
from typing import Any
from uuid import uuid4

from vfsd.api.store import Store
from vfsd.catalog.work_log import AGAIN, BEGUN, CRASHED, KILLED, RETRY, WorkResult
from vfsd.core.process_control import host_name
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    OutdatedError,
    UnreachableError,
    VfsdError,
)
from vfsd.read.shared_store import StoreAddress
from vfsd.work.attempt_notes import Attempt, AttemptNotes, DeadAttempt
from vfsd.work.units import CANCELLED, FAILED, OUTDATED, REFUSED, OnProgress, Outcome, Unit
from vfsd.work.verbs import run_verb

TRANSIENT = (UnreachableError, BusyError)
"""Errors after which the same unit may succeed: engines retry it."""

_MOST_CRASHES = 3
# Workers may be killed by chance, but a unit that needs too much memory is killed each time.
_MOST_ENDS = 10
# How often a running unit asks whether its order was cancelled.
_CANCEL_SECONDS = 1.0

_stores: dict[str | StoreAddress, Store] = {}
_notes: dict[Path, AttemptNotes] = {}
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
    notes = _notes_of(store)
    for dead in notes.of_dead_workers():
        _record_end(store, dead)
    reason = _refusal(log.results(given.order, given.number))
    if reason is not None:
        done = Outcome(REFUSED, error=reason, exit_code=IntegrityError.exit_code)
        _record(store, given, WorkResult(given.number, attempt, REFUSED, host, 0), done)
        return done.to_json()
    row = WorkResult(given.number, attempt, BEGUN, host, time.time_ns())
    # The note comes first: an attempt with a row and no note would never end.
    with notes.kept(Attempt(given.order, given.number, attempt, host, given.video)):
        log.append(given.order, [row])
        return _perform_begun(store, given, row)


def _perform_begun(store: Store, given: Unit, row: WorkResult) -> dict[str, Any]:
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


def _refusal(log: list[WorkResult]) -> str | None:
    """Return why a unit must not begin, by its attempts since the last retry."""
    crashed, killed = set[str](), set[str]()
    for one in log:
        if one.outcome == RETRY:
            crashed, killed = set(), set()
        elif one.outcome == CRASHED:
            crashed.add(one.attempt)
        elif one.outcome in (BEGUN, KILLED):  # a host that is gone reports no end
            killed.add(one.attempt)
        else:
            killed.discard(one.attempt)
    if len(crashed) >= _MOST_CRASHES:
        return f"{len(crashed)} workers crashed while they performed the unit"
    if len(crashed | killed) >= _MOST_ENDS:
        return f"{len(crashed | killed)} workers ended while they performed the unit"
    return None


def _record_end(store: Store, dead: DeadAttempt) -> None:
    """Add the end of an attempt to the log, and count the crash of its file."""
    one = dead.attempt
    outcome = KILLED if dead.how is None else CRASHED
    row = WorkResult(one.number, one.attempt, outcome, one.host, time.time_ns(), error=dead.how)
    with suppress(NotFoundError):  # the order was removed
        store.catalog.work.order(one.order)
        store.catalog.work.append(one.order, [row])
    if dead.how is not None and one.video is not None:
        with suppress(NotFoundError):
            with store.catalog.reading() as seen:
                original = seen.videos.get(one.video).original
            store.parts.quarantine.add_crash(original, dead.how, barred_from=_MOST_CRASHES)


def _notes_of(store: Store) -> AttemptNotes:
    """Return the notes of this process in the home of a store."""
    with _guard:
        folder = store.parts.directory.cache / "work"
        if folder not in _notes:
            _notes[folder] = AttemptNotes(folder)
        return _notes[folder]


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
    for one in _notes.values():
        one.close()
    _stores.clear()
    _notes.clear()


def _ignore(done: int, total: int) -> None:
    """Ignore progress."""
