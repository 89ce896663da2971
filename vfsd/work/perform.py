"""Performs a unit.  It may be performed any number of times, also at once.

The transaction that publishes a result compares it with the catalog, so a second run of a unit
costs time and changes nothing.  Engines may lose, repeat and double units.

Notes of the units that processes of a home perform outlive the process.  A crash leaves the reason,
written by `faulthandler`, and a killed process leaves none.  The next process of the home finds the
notes.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
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
from vfsd.work.units import CANCELLED, FAILED, OUTDATED, REFUSED, OnProgress, Outcome, Unit
from vfsd.work.verbs import run_verb

_NOTE, _TRACE = ".json", ".trace"
_MAX_TRACE = 4096


@dataclass(frozen=True, slots=True)
class Attempt:
    """A unit that a process has begun."""

    order: str
    number: int
    attempt: str
    host: str
    video: int | None


@dataclass(frozen=True, slots=True)
class DeadAttempt:
    """An attempt that did not outlive its process."""

    attempt: Attempt
    how: str | None  #: the reason of the crash; None: it was killed


class AttemptNotes:
    """The notes of this process in a folder, and those of dead ones.  Thread-safe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._trace = folder / f"{uuid4().hex}{_TRACE}"
        self._file = _locked_file(self._trace)
        self._was_enabled = faulthandler.is_enabled()
        # All threads of the process share one trace.
        faulthandler.enable(self._file, all_threads=True)

    @contextmanager
    def kept(self, attempt: Attempt) -> Iterator[None]:
        """Keep a note while an attempt runs."""
        path = self._folder / f"{attempt.attempt}{_NOTE}"
        with _locked_file(path) as file:
            file.write(json.dumps({"trace": self._trace.name, **asdict(attempt)}).encode())
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def of_dead_workers(self) -> Iterator[DeadAttempt]:
        """Yield the attempts of processes that have ended.

        A note is deleted after the caller has continued, so it is yielded again after an error.
        """
        paths = list(self._folder.iterdir())
        for path in paths:
            if path.suffix == _NOTE:
                with _dead_file(path) as text:
                    dead = None if text is None else self._dead_attempt(text)
                    if dead is not None:
                        yield dead
        # Notes refer to traces, so these go last.
        if not any(path.suffix == _NOTE and path.exists() for path in paths):
            for path in paths:
                if path.suffix == _TRACE and path != self._trace:
                    with _dead_file(path):
                        pass

    def _dead_attempt(self, text: bytes) -> DeadAttempt | None:
        try:
            values = json.loads(text)
            trace = self._folder / str(values.pop("trace"))
            return DeadAttempt(Attempt(**values), _reason_in(trace))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # it was killed while it wrote

    def close(self) -> None:
        """Delete the files of this process."""
        if self._was_enabled and sys.__stderr__ is not None:
            faulthandler.enable(sys.__stderr__)
        else:
            faulthandler.disable()
        self._trace.unlink(missing_ok=True)
        self._file.close()


def _locked_file(path: Path) -> IO[bytes]:
    while True:
        file = open(path, "xb", buffering=0)  # noqa: SIM115  the lock lasts while it is open
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process took it for one of a dead process before it was locked


@contextmanager
def _dead_file(path: Path) -> Iterator[bytes | None]:
    """Yield the content of a file of a process that has ended, and delete it; None for others."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a process has the lock, or has deleted the file
            yield None
            return
        # Another process may have deleted it before this one had the lock.
        if not os.fstat(file.fileno()).st_nlink:
            yield None
            return
        yield file.read()
        path.unlink(missing_ok=True)


def _reason_in(path: Path) -> str | None:
    """Return the first line that the fault handler wrote, or None."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_TRACE).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    lines = text.splitlines()
    return lines[0].removeprefix("Fatal Python error: ") if lines else None


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
