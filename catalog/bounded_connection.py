"""Connections of psycopg whose waits end, also if the server is stopped.

TCP finds hosts that are gone, but the kernel of a host answers for a process that is stopped or
hangs.  So a connection without an answer asks over a second one whether the server still works on
its statement.  Slow statements and waits for locks go on.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

import psycopg

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_QUIET_SECONDS = 5.0
"""A server that sends nothing for so long is asked over a second connection, and then again."""
_PROBE_SECONDS = 4
"""How long that connection may take, and then the answer."""
_LONGEST_SECONDS = 600.0
"""No statement may take longer.  Waits for locks end earlier, by a timeout of the server."""
_PAUSE_SECONDS = 1.0
"""A server that was silent is not asked again for so long."""
_HURRY_SECONDS, _HURRIED_CONNECT = 30.0, 2
"""A server that was silent in the last half minute has two seconds to accept a connection."""

# An unknown process is that of another session: a pooler has its own numbers.
_IS_BUSY = "SELECT coalesce((SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s), true)"
_FLAGS = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}
"""Events that the generators of psycopg wait for: 1 to read, 2 to write."""


class Silence:
    """When a server was last found silent, on the monotonic clock.  Shared by all connections."""

    def __init__(self) -> None:
        self.noted = -_HURRY_SECONDS

    @property
    def seconds(self) -> float:
        """The time since then."""
        return time.monotonic() - self.noted

    def note(self) -> None:
        """Record that the server is silent."""
        self.noted = time.monotonic()


class BoundedConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # may be not installed
    """Closes itself and raises `psycopg.OperationalError` when the server is silent."""

    _silence: Silence | None = None
    _probe: Callable[[], BoundedConnection] | None = None
    _limit: float = _LONGEST_SECONDS

    # Versions of psycopg differ in further parameters, which are intervals for polling.
    def wait(self, gen: Generator[Any, Any, _T], *_: Any, **__: Any) -> _T:
        """Run a generator of psycopg until it returns."""
        poll = select.poll()
        began = heard = time.monotonic()
        idle = 0
        try:
            wanted = next(gen)
            poll.register(self.pgconn.socket, _FLAGS[wanted])
            while True:
                now = time.monotonic()
                until = min(heard + _QUIET_SECONDS, began + self._limit)
                found = poll.poll(max(0.0, until - now) * 1000)
                if found:
                    heard, idle = time.monotonic(), 0
                    flags = found[0][1]
                    ready = (flags & ~select.POLLOUT != 0) | (flags & select.POLLOUT != 0) << 1
                    wanted = gen.send(ready)
                    poll.modify(self.pgconn.socket, _FLAGS[wanted])
                    continue
                # A server that does not know of the statement will never answer.  It may have
                # finished a moment ago, so the question is asked twice.
                idle = 0 if self._is_busy() else idle + 1
                heard = time.monotonic()
                if idle > 1 or heard - began >= self._limit:
                    raise self._silent_error(heard - began)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        except BaseException:
            # Also after Ctrl-C: an answer that arrives later must not be taken for another one's.
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise

    def _is_busy(self) -> bool:
        """Return whether the server works on the statement of this connection, or sends its result.

        Raises `psycopg.OperationalError` if it does not answer.
        """
        if self._probe is None:
            return True
        began = time.monotonic()
        try:
            with closing(self._probe()) as other, other.cursor() as cursor:
                cursor.execute(_IS_BUSY, (self.info.backend_pid,))
                (is_busy,) = cursor.fetchone() or (True,)
        except psycopg.OperationalError as error:
            seconds = time.monotonic() - began
            if seconds < _PROBE_SECONDS - 1:
                return True  # a refusal, as where all connections are in use, is an answer
            raise self._silent_error(_QUIET_SECONDS + seconds) from error
        return bool(is_busy)

    def _silent_error(self, seconds: float) -> psycopg.OperationalError:
        if self._silence is not None:
            self._silence.note()
            _log.warning("the catalog's server has sent nothing for %.0f seconds", seconds)
        return psycopg.OperationalError(f"the server has sent nothing for {seconds:.0f} seconds")


def connect(silence: Silence, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return a connection; the arguments are those of `psycopg.connect`.

    Raises `psycopg.OperationalError`.
    """
    if silence.seconds < _PAUSE_SECONDS:
        raise psycopg.OperationalError("the server was silent a moment ago")
    began = time.monotonic()
    if silence.seconds < _HURRY_SECONDS:
        options = options | {"connect_timeout": _HURRIED_CONNECT}

    def probe() -> BoundedConnection:
        hurried = options | {"connect_timeout": _PROBE_SECONDS, "autocommit": True}
        made: BoundedConnection = BoundedConnection.connect(*arguments, **hurried)
        made._limit = _PROBE_SECONDS
        return made

    try:
        connection = BoundedConnection.connect(*arguments, **options)
    except psycopg.OperationalError:
        if time.monotonic() - began > _PAUSE_SECONDS:
            silence.note()
        raise
    connection._silence, connection._probe = silence, probe
    return connection
