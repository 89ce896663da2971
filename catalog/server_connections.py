"""Connections to a catalog on a database server, and the number of changes made there.

No connection keeps state of a session, so a pooler such as PgBouncer may give each transaction
another one.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import select
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.engine.interfaces import ExecutionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import Pool

from vfsd.catalog.engine import current_revision
from vfsd.catalog.error_mapping import SERVER_GONE_HINT, locked_error
from vfsd.catalog.schema import catalog_state
from vfsd.core.process_control import reset_after_fork
from vfsd.errors import BusyError, UnreachableError

if TYPE_CHECKING:
    from vfsd.catalog.bounded_connection import Silence

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 8
"""Connections that a process opens at most."""
_KEPT_CONNECTIONS = 2
_IDLE_SECONDS = 60
"""The connections that are kept are closed when a process has used none for this long."""
_AWAY_SECONDS = 1.0
"""How often an unreachable server is asked at most."""
_ANSWER_SECONDS = 2.0
"""How long a read waits for the number of changes."""
_LOG_SECONDS = 60
_EARLIEST = 0.8
"""The share of the staleness after which a process of a host asks again at the earliest."""
_ANSWER = struct.Struct("<dqI")
_CHECKSUM_BYTES = 4

_CONNECT_OPTIONS: dict[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A host that does not answer for a minute, for example after a network failure, counts as gone.
The defaults take hours.  Options in the URL take precedence.  `BoundedConnection` finds a stopped
server earlier.
"""
_LIBPQ_DRIVERS = ("psycopg", "psycopg2")
"""Drivers that pass connection options to libpq."""

_CHANGED = "vfsd_changed"
"""Key in `Connection.info`: the current transaction has changed a row."""
_LOCK_CATALOG = "SELECT version_num FROM alembic_version FOR UPDATE"
_LOCK_EMPTY_DATABASE = "SELECT pg_advisory_xact_lock(7813594)"
"""For an empty database, which has no row to lock.  The number is an arbitrary key of PostgreSQL's
advisory locks.  On other servers, the second process to create the tables fails.
"""
_COUNT_CHANGE = "UPDATE catalog_state SET changes = changes + 1"
_CHANGES = sa.select(catalog_state.c.changes)
_UNCHANGING = ("SELECT", "BEGIN", "SET", "SHOW")
"""First words of textual statements that change no row."""


class Server:
    """The database server of a catalog, as far as it differs from a file of SQLite."""

    def __init__(self, url: URL, ask: Callable[[], int], staleness: float | None) -> None:
        """`ask` returns the number of changes; see `ChangeCounter`."""
        self._url = url
        self._driver = url.get_dialect().driver
        self._is_catalog = False
        self._turn = threading.Lock()
        self._silence: Silence | None = None
        reset_after_fork(self)
        self.counter = ChangeCounter(ask, staleness)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._turn = threading.Lock()

    def note_catalog(self) -> None:
        """Remember that the database has the tables of a catalog."""
        self._is_catalog = True

    def make_engine(self, **options: Any) -> Engine:
        """Return an engine; `options` are those of `sqlalchemy.create_engine`."""
        is_libpq = self._driver in _LIBPQ_DRIVERS
        arguments: dict[str, Any] = {}
        if is_libpq:
            given = self._url.query
            arguments |= {key: value for key, value in _CONNECT_OPTIONS.items() if key not in given}
        if self._driver == "psycopg":
            # A pooler may run the next transaction on a connection without the prepared statement,
            # or with another one of the same name.
            arguments["prepare_threshold"] = None
        engine = sa.create_engine(
            self._url,
            isolation_level="REPEATABLE READ",
            pool_pre_ping=not is_libpq,
            pool_size=_KEPT_CONNECTIONS,
            max_overflow=MAX_CONNECTIONS - _KEPT_CONNECTIONS,
            connect_args=arguments,
            **options,
        )
        if is_libpq:
            event.listen(engine, "checkout", _require_connected)
        if self._driver == "psycopg":
            from vfsd.catalog import bounded_connection  # needs the driver

            silence = self._silence = bounded_connection.Silence()
            event.listen(
                engine,
                "do_connect",
                lambda _dialect, _record, given, options: bounded_connection.connect(
                    silence, tuple(given), options
                ),
            )
        event.listen(engine, "after_cursor_execute", _note_change)
        closer = _IdleCloser(engine.pool)
        event.listen(engine, "checkin", closer.note_use)
        event.listen(engine, "engine_disposed", closer.stop)
        return engine

    @contextmanager
    def transaction(self, engine: Engine, patience: float) -> Iterator[Connection]:
        """Begin a write transaction, after waiting up to `patience` seconds for other writers."""
        # The usual case needs one round trip: psycopg then leaves the BEGIN to `_begin`.
        is_merged = self._is_catalog and self._driver == "psycopg"
        level = "AUTOCOMMIT" if is_merged else "READ COMMITTED"
        began = time.monotonic()
        # Threads that wait must not hold all connections: the writer may need one more, to read.
        turn = self._turn
        if not turn.acquire(timeout=patience):
            raise locked_error("another thread", patience)
        try:
            if self._silence is not None and self._silence.noted > began:
                # The thread that had the turn has waited for the server, and so has this one.
                raise UnreachableError("the catalog's server is silent", hint=SERVER_GONE_HINT)
            connected = engine.connect().execution_options(isolation_level=level)
            with connected as connection, connection.begin():
                left = patience - (time.monotonic() - began)
                if is_merged:
                    _begin(connection, left)
                else:
                    self.lock(connection, left)
                yield connection
        finally:
            turn.release()

    @contextmanager
    def counted(self, connection: Connection) -> Iterator[list[int]]:
        """Count the transaction if the block changes anything.

        Yields a list that then holds the new number of changes, for `ChangeCounter.note_own`.
        """
        connection.info.pop(_CHANGED, None)
        is_new = not self._is_catalog
        numbers: list[int] = []
        yield numbers
        if not connection.info.pop(_CHANGED, False):
            return
        # The block may have created the tables, of an older revision in tests.
        if not is_new or sa.inspect(connection).has_table(catalog_state.name):
            numbers.append(_count_change(connection))

    def lock(self, connection: Connection, patience: float) -> None:
        """Wait up to `patience` seconds for other writers, and lock them out."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_milliseconds(patience)}")
        if not self._is_catalog and current_revision(connection) is None:
            if connection.dialect.name != "postgresql":
                return
            connection.exec_driver_sql(_LOCK_EMPTY_DATABASE)
            if current_revision(connection) is None:
                return
        self._is_catalog = True
        connection.exec_driver_sql(_LOCK_CATALOG)


class ServerFacts(NamedTuple):
    """Properties of a PostgreSQL server, for `vfsd doctor`."""

    version: str
    fsync: bool
    synchronous_commit: str
    connections: int  #: in use, by all programs
    max_connections: int
    pooler: str | None  #: "transaction" or "session": the mode of a pooler; None without one


def server_facts(engine: Engine) -> ServerFacts:
    """Return the properties of the server of PostgreSQL."""
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other,
    ):
        row = connection.exec_driver_sql(_FACTS).one()
        driver: Any = connection.connection.driver_connection
        told = getattr(getattr(driver, "info", None), "backend_pid", row.pid)
        pooler = None
        if told != row.pid:  # a pooler draws a number of its own
            # Both clients are connected: one session can only serve both between transactions.
            alike = other.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() == row.pid
            pooler = "transaction" if alike else "session"
    return ServerFacts(row.version, row.fsync == "on", row.commit, row.used, int(row.most), pooler)


_FACTS = """
SELECT pg_backend_pid() AS pid, current_setting('server_version') AS version,
       current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commit,
       current_setting('max_connections') AS most,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used
"""


def _begin(connection: Connection, patience: float) -> None:
    connection.exec_driver_sql(
        "BEGIN ISOLATION LEVEL READ COMMITTED; "
        f"SET LOCAL lock_timeout = {_milliseconds(patience)}; {_LOCK_CATALOG}"
    )


def _milliseconds(seconds: float) -> int:
    """Return a timeout for a server, where 0 means to wait for ever."""
    return max(1, int(seconds * 1000))


def _count_change(connection: Connection) -> int:
    """Count the current transaction, which has the write lock; return the number of changes."""
    if connection.dialect.name == "postgresql":
        return int(connection.exec_driver_sql(f"{_COUNT_CHANGE} RETURNING changes").scalar_one())
    connection.exec_driver_sql(_COUNT_CHANGE)
    return read_changes(connection)


def read_changes(connection: Connection) -> int:
    """Return the number of transactions that have changed the catalog."""
    return int(connection.execute(_CHANGES).scalar_one())


def _require_connected(connection: Any, _record: object, _proxy: object) -> None:
    """Raises `DisconnectionError`, which makes SQLAlchemy connect again, if the server has closed
    the connection.
    """
    # A server that ends says so, or closes the socket.  Without a request, nothing else arrives,
    # so a look at the socket replaces the round trip of a ping.
    looking = select.poll()
    looking.register(connection.fileno(), select.POLLIN)
    if not looking.poll(0):
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except Exception as error:
        raise DisconnectionError(str(error)) from error


def _note_change(
    connection: Connection,
    cursor: Any,
    statement: str,
    _parameters: object,
    context: ExecutionContext | None,
    _many: bool,
) -> None:
    if cursor.rowcount == 0:
        return
    found: Any = context
    if found is not None and found.compiled is not None and not found.is_text:
        has_changed = found.isinsert or found.isupdate or found.isdelete or found.isddl
    else:
        has_changed = not statement.lstrip().upper().startswith(_UNCHANGING)
    if has_changed:
        connection.info[_CHANGED] = True


class _IdleCloser:
    """Closes the connections of a pool that has not been used for `_IDLE_SECONDS`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = weakref.ref(pool)
        self._used = 0.0
        self._timer: threading.Timer | None = None
        self._is_closing = False

    def note_use(self, _connection: object, _record: object) -> None:
        if self._is_closing:
            return
        self._used = time.monotonic()
        if self._timer is None:
            self._start(_IDLE_SECONDS)

    def stop(self, _engine: object) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _start(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._close_idle)
        timer.daemon = True
        timer.name = "vfsd-idle"
        with suppress(RuntimeError):  # the interpreter is ending
            timer.start()
            self._timer = timer

    def _close_idle(self) -> None:
        self._timer = None
        pool: Any = self._pool()
        if pool is None:
            return
        left = self._used + _IDLE_SECONDS - time.monotonic()
        if left > 0:
            self._start(left)
            return
        self._is_closing = True
        try:
            # Taking a dead connection connects again: where the server is gone, that raises an
            # error of the driver, not of SQLAlchemy, and there is nothing to close.
            with suppress(Exception):
                # Taking them keeps other threads from using them now.
                taken = [pool.connect() for _ in range(pool.checkedin())]
                for one in taken:
                    one.invalidate()
                    one.close()
        finally:
            self._is_closing = False


class HostChanges:
    """The last answer of the server, in a file that the processes of a home share.

    Processes ask one after the other instead of each for itself.  A file that cannot be used is
    ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, after: float, now: float) -> tuple[float, int] | None:
        """Return (time of the question, number of changes); None without a question in that time.

        Times are those of the monotonic clock, which is the same in all processes.
        """
        with suppress(OSError), self._opened(os.O_RDONLY) as fd:
            data = os.pread(fd, _ANSWER.size, 0)
            if len(data) == _ANSWER.size:
                asked, number, checksum = _ANSWER.unpack(data)
                is_whole = checksum == zlib.crc32(data[:-_CHECKSUM_BYTES])
                if is_whole and after < asked <= now:
                    return asked, number
        return None

    def write(self, asked: float, number: int) -> None:
        """Publish an answer."""
        data = _ANSWER.pack(asked, number, 0)[:-_CHECKSUM_BYTES]
        with suppress(OSError), self._opened(os.O_RDWR | os.O_CREAT) as fd:
            os.pwrite(fd, _ANSWER.pack(asked, number, zlib.crc32(data)), 0)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        fd = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)


class ChangeCounter:
    """The number of changes of a catalog on a server, as far as this process knows.

    Thread-safe.  The server is asked at most once in `staleness` seconds; None: only once.  While
    it is unreachable, the last known number stays.
    """

    host: HostChanges | None = None  #: answers to other processes, too

    def __init__(self, ask: Callable[[], int], staleness: float | None) -> None:
        self._ask = ask
        self.staleness = staleness
        self._number: int | None = None
        self._asked = 0.0  #: when the known number was asked for, on the monotonic clock
        self._due = 0.0  #: on the same clock
        self._away = False
        self._own = 0  #: number of commits of this process
        self._logged = -float(_LOG_SECONDS)
        self._asking = threading.Lock()
        self._asker: threading.Thread | None = None
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._asking = threading.Lock()
        self._asker = None

    @property
    def is_away(self) -> bool:
        """Whether the server was unreachable at the last question."""
        return self._away

    @property
    def may_lag(self) -> bool:
        """Whether an answer may be older than the question."""
        return self.staleness != 0

    def number(self, *, now: bool = False) -> int | None:
        """Return the number of changes; None if the server was never reached.

        With `now`, the server is asked in any case, and its errors are raised.
        """
        if not now and self._is_fresh():
            return self._number
        # Other threads continue with the known number while one of them asks.
        wait = now or not self.may_lag or self._number is None
        if not self._asking.acquire(blocking=wait):
            return self._number
        try:
            if now or not self._is_fresh():
                self._update(now)
        finally:
            self._asking.release()
        return self._number

    def note_own(self, number: int) -> None:
        """Take over the number of changes after a commit of this process."""
        self._own += 1
        self._number = number

    def _ask_briefly(self) -> int:
        """Like `_ask`, but raise `UnreachableError` where a server is silent."""
        if self._number is None or sys.is_finalizing():
            return self._ask()
        answers: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._ask())
            except Exception as error:
                answers.put(error)

        seconds = 0.0  # the last question is still without an answer
        if self._asker is None or not self._asker.is_alive():
            seconds = _ANSWER_SECONDS
            self._asker = threading.Thread(target=ask, name="vfsd-changes", daemon=True)
            self._asker.start()
        try:
            found = answers.get(timeout=seconds)
        except queue.Empty:
            raise UnreachableError("the catalog's server does not answer in time") from None
        if isinstance(found, Exception):
            raise found
        return found

    def _is_fresh(self) -> bool:
        if self.staleness is None and self._number is not None:
            return True
        return time.monotonic() < self._due

    def _update(self, now: bool) -> None:
        began, own = time.monotonic(), self._own
        if not now and self._take_answer_of_host(began, own):
            return
        try:
            # An answer that is needed is waited for, like that of any query.
            found = self._ask() if now or not self.may_lag else self._ask_briefly()
        except (BusyError, UnreachableError) as error:
            # Caches stay valid until the server can be asked; other queries report the error.
            self._due = time.monotonic() + max(self.staleness or 0.0, _AWAY_SECONDS)
            self._away = True
            if now:
                raise
            if began - self._logged >= _LOG_SECONDS:
                self._logged = began
                _log.warning("cannot look for changes of the catalog: %s", error)
            return
        if self.host is not None:
            self.host.write(began, found)
        self._accept(began, found, own)

    def _take_answer_of_host(self, began: float, own: int) -> bool:
        """Accept the answer to another process; return False if there is none that is new."""
        if self.host is None or not self.staleness:
            return False
        answer = self.host.read(max(self._asked, began - self.staleness), began)
        # A lower number is from before the last commit of this process.
        if answer is None or answer[1] < (self._number or 0):
            return False
        self._accept(*answer, own)
        return True

    def _accept(self, asked: float, found: int, own: int) -> None:
        self._away = False
        seconds = self.staleness or 0.0
        if self.host is not None:  # not all processes at the same moment
            seconds *= random.uniform(_EARLIEST, 1.0)
        self._asked, self._due = asked, asked + seconds
        # The answer may be older than a commit of this process, or newer.
        self._number = found if own == self._own else max(found, self._number or 0)
