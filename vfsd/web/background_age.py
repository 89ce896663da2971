"""`BackgroundAge` carries out retention policies in idle time: `vfsd serve --age`."""

from __future__ import annotations

import logging
import os
import threading
import time

from vfsd.api.store import Store
from vfsd.core.process_control import LOWEST_PRIORITY
from vfsd.core.timebase import QuietHours
from vfsd.errors import NoSpaceError, OutdatedError, VfsdError
from vfsd.maintenance.age import RetentionExecutor
from vfsd.mount.background_work import ForegroundReads

_log = logging.getLogger(__name__)

# Seconds between two looks at the policies.
_EVERY_SECONDS = 3600.0
_FIRST_SECONDS = 60.0
# No step begins within this time after a read of a view.
_CALM_SECONDS = 10.0
_TICK_SECONDS = 1.0


class _StopError(Exception):
    """The server is shutting down."""


class BackgroundAge:
    """A thread that does what `vfsd age --apply` does, once an hour.

    It has the lowest priority, works in the quiet hours of the store (`tune_quiet_hours`), and
    waits for readers before each step and between pictures.
    """

    def __init__(
        self, store: Store, foreground: ForegroundReads, *, first: float = _FIRST_SECONDS
    ) -> None:
        """Begin after `first` seconds."""
        self._store = store
        self._foreground = foreground
        self._hours = QuietHours.parse(store.settings.tune_quiet_hours)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(first,), name="vfsd-web-age", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop; a step in progress is abandoned."""
        self._stop.set()
        self._thread.join()

    def _run(self, first: float) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        wait = first
        while not self._stop.wait(wait):
            wait = _EVERY_SECONDS
            try:
                self._wait_for_calm()
                self._apply_due()
            except _StopError:
                return
            except (VfsdError, OSError) as error:
                _log.warning("policies were not carried out: %s", error)
            except Exception:
                _log.exception("policies were not carried out")

    def _apply_due(self) -> None:
        executor = RetentionExecutor(self._store.parts, list(self._store.find()))
        plan = executor.plan()
        if not plan.due:
            return
        executor.remember_clock()
        for due in plan.due:
            self._wait_for_calm()
            try:
                entry = executor.apply(due, self._on_progress)
            except OutdatedError:
                continue  # the next run has a new plan
            except NoSpaceError:
                raise  # the next video would fail likewise
            except VfsdError as error:
                _log.warning("%r was left alone: %s", due.candidate.name, error)
                continue
            _log.info("%s %r (%s)", entry.action.value, entry.name, entry.reason)

    def _on_progress(self, step: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StopError
        while self._foreground.calm < _TICK_SECONDS:
            if self._stop.wait(_TICK_SECONDS):
                raise _StopError

    def _wait_for_calm(self) -> None:
        while self._foreground.calm < _CALM_SECONDS or not self._is_quiet_hour():
            if self._stop.wait(_TICK_SECONDS):
                raise _StopError
        if self._stop.is_set():
            raise _StopError

    def _is_quiet_hour(self) -> bool:
        local = time.localtime()
        return self._hours.includes(local.tm_hour * 60 + local.tm_min)
