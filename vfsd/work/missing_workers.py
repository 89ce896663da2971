"""Notices that a task engine has no workers left, where its tasks would wait in silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from vfsd.errors import UnreachableError

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
