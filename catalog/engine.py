"""Connections and transactions: many readers, one writer, several processes.

On SQLite the catalog runs in WAL mode: readers never wait, writers take turns.  A writer asks for
its turn at the start (BEGIN IMMEDIATE), so that it never fails half-way, and waits for up to
`BUSY_SECONDS`.  A process writes through one connection that it keeps: as a rule nobody else
writes, and what that connection has read of the file stays good.  On a database server readers have
a snapshot too (REPEATABLE READ), and writers take turns by locking the one row of Alembic's table,
for which they wait as long.

SQLite's `user_version` counts the transactions that others should notice, so that notes (see
`Database.record_decoding`), which come every second while somebody reads, make nobody ask anew.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from vfsd.catalog.database_url import parsed_url, require_database, sqlite_files
from vfsd.catalog.error_mapping import (
    RECOVERY_HINT,
    SERVER_GONE_HINT,
    is_encoding_error,
    mapped_error,
)
from vfsd.catalog.row_mapping import mistyped_values, parsed_json
from vfsd.catalog.schema import entries
from vfsd.catalog.sqlite_connections import (
    ForkGate,
    MovableConnection,
    ReadOnlyDatabase,
    WriterConnection,
    locked_error,
)
from vfsd.core.atfork import leak, prepare_before_fork, reset_after_fork
from vfsd.disk.safe_open import require_regular
from vfsd.errors import (
    BusyError,
    ClosedError,
    IntegrityError,
    ReadOnlyError,
    UnreachableError,
)

_log = logging.getLogger(__name__)

BUSY_SECONDS = 60
_NOTE_SECONDS = 1
"""As long as a note waits for its turn."""
_REWIND_SECONDS = 1
"""As long as the log waits for those who read from it."""
LOG_BYTES = 16 << 20
"""What the log may keep of the disk when it begins anew: SQLite fills 4 MiB of it, and more only
while somebody looks at one state for long, or in one large change."""
_FORK_SECONDS = 2
"""As long a fork waits for transactions of other threads."""
_MOST_CHANGES = 1 << 31
"""`user_version` has 31 bits."""

_EXPLICIT_BEGIN = {"vfsd_begin": None}
_LOCK_CATALOG = "SELECT version_num FROM alembic_version FOR UPDATE"
_LOCK_EMPTY_DATABASE = "SELECT pg_advisory_xact_lock(7813594)"
"""While there is no row to lock; the number is PostgreSQL's name for that turn, and any would do.
Elsewhere the second who makes the tables fails."""
_LIBPQ_DRIVERS = ("psycopg", "psycopg2")
"""The drivers that hand what is connected with to PostgreSQL's own library."""
_CONNECT_OPTIONS: dict[str, int] = {
    "connect_timeout": BUSY_SECONDS,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": BUSY_SECONDS * 1000,
}
"""After a minute a server that says nothing is taken for gone, as by a cable that was pulled: it is
told so to who waits, and not hours later.  What the URL says of these goes before."""


class Database:
    """An engine that survives a fork and speaks our errors."""

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        patience: float | None = None,
        require_in_place: Callable[[], None] = lambda: None,
    ) -> None:
        """Who reads waits for an SQLite file for `patience` seconds (default: `BUSY_SECONDS`).

        `require_in_place` is called after each connection and before each change; it raises where
        another store has taken the place of the one that has this catalog.  Raises as
        `require_database` and `require_regular` do.
        """
        require_database(url)
        self.url = parsed_url(url)
        if self.path:
            require_regular(*sqlite_files(self.path))
        self.read_only = read_only
        self._require_in_place = require_in_place
        self._patience = BUSY_SECONDS if patience is None else patience
        self._unwritten = ReadOnlyDatabase.at(self.path) if read_only and self.path else None
        self._is_closed = False
        self._is_out_of_reach = False  #: when it was last asked
        self._watches: weakref.WeakSet[ChangeWatch] = weakref.WeakSet()
        self._begin_unconnected()
        reset_after_fork(self)
        prepare_before_fork(self)

    def __reduce__(self) -> NoReturn:
        # Of all that cannot be pickled with a store this alone is in everything that it hands out.
        raise TypeError(
            "a store and its videos stay in their process: open the store again in the other one"
        )

    def _begin_unconnected(self) -> None:
        self.gate = ForkGate()  #: everybody passes it who uses the file
        self._guard = threading.Lock()
        self._engine: Engine | None = None
        self._writing = threading.local()
        self._writer = WriterConnection(self._connect_writer, BUSY_SECONDS)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        # There are some where a fork did not wait for all who used them, or is within their use.
        # A connection must not be used on both sides of it, nor closed on the other.
        leak(self._engine)
        leak(self._writer.connection)
        self._begin_unconnected()

    def before_fork(self) -> None:
        """Close the file, as far as nobody uses it: see `vfsd.catalog.sqlite_connections`."""
        if not self.is_sqlite:
            return
        self.gate.shut(_FORK_SECONDS)
        with self._guard:
            watches, engine = list(self._watches), self._engine
        for watch in watches:
            watch.rest()
        self._writer.rest()
        if engine is not None:
            engine.dispose()

    def after_fork_in_parent(self) -> None:
        """See `vfsd.core.atfork`."""
        if self.is_sqlite:
            self.gate.open()

    def watch(self) -> ChangeWatch:
        """Tells cheaply whether anybody has changed the catalog."""
        watch = ChangeWatch(self)
        with self._guard:
            self._watches.add(watch)
        return watch

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def path(self) -> str | None:
        """The database file, where it is one."""
        return self.url.database if self.is_sqlite else None

    @property
    def engine(self) -> Engine:
        """Raises `ClosedError`."""
        with self._guard:
            if self._is_closed:
                raise ClosedError
            if self._engine is None:
                self._engine = self._make_engine()
            return self._engine

    def close(self) -> None:
        with self.gate.passed():
            with self._guard:
                self._is_closed = True
                engine, self._engine = self._engine, None
            self._writer.close()
            if engine is not None:
                engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot of the catalog.

        Raises `BusyError` where other threads keep all connections for `BUSY_SECONDS`.
        """
        with (
            self._our_errors(self._patience),
            self.gate.passed(),
            self.engine.connect() as connection,
            connection.begin(),
        ):
            yield connection
        if self._unwritten is not None:
            self._unwritten.require()

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[Connection]:
        """One transaction: all of it is published at the end, or nothing of it.

        Waits for other processes for `patience` seconds (default: `BUSY_SECONDS`).
        """
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if self._is_writing:
            raise AssertionError("a write transaction inside a write transaction would deadlock")
        seconds = BUSY_SECONDS if patience is None else patience
        with self._our_errors(seconds), self._transaction(seconds) as connection:
            if not self.is_sqlite:
                self._take_turn(connection)
                yield connection
                return
            driver: Any = connection.connection.driver_connection
            before = driver.total_changes
            yield connection
            if driver.total_changes != before:
                _count_change(driver)

    def _take_turn(self, connection: Connection) -> None:
        """On a server: wait for whoever writes."""
        if current_revision(connection) is None:
            if connection.dialect.name != "postgresql":
                return
            connection.exec_driver_sql(_LOCK_EMPTY_DATABASE)
            if current_revision(connection) is None:
                return
        connection.exec_driver_sql(_LOCK_CATALOG)

    @contextmanager
    def record_decoding(self) -> Iterator[Connection]:
        """A transaction for what nobody waits for, and no `ChangeWatch` tells of.

        Raises `BusyError` soon when others write.
        """
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if self._is_writing:
            raise locked_error("this very thread", 0)
        with self._our_errors(_NOTE_SECONDS), self._transaction(_NOTE_SECONDS) as connection:
            if not self.is_sqlite:
                # Beside a writer two could wait for rows of each other, and the server ends either;
                # and what was just found may go before it is noted.
                self._take_turn(connection)
            yield connection

    @property
    def _is_writing(self) -> bool:
        """Whether the thread is in a transaction that writes."""
        return getattr(self._writing, "active", False)

    @contextmanager
    def _our_errors(self, patience: float) -> Iterator[None]:
        """`patience` is how many seconds others are waited for at most."""
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            self._require_in_place()  # that the store was moved says more than what SQLite met
            meant = mapped_error(error, self.path, patience)
            if meant is None:
                raise
            if isinstance(meant, UnreachableError):
                self._is_out_of_reach = True
            raise meant from error
        except NoConnectionError as error:
            raise BusyError(
                "the catalog has no connection left: other threads of this process keep theirs",
                hint="read from fewer threads at a time, and take no long pauses while reading",
            ) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                self._is_out_of_reach = True
                raise UnreachableError(
                    f"the catalog's server has gone: {error.orig}", hint=SERVER_GONE_HINT
                ) from error
            raise
        except StatementError as error:
            # What came in the middle of a statement, out of a signal handler say, is not about it.
            if error.orig is None:
                raise
            raise error.orig from None
        else:
            if self._is_out_of_reach:
                self._is_out_of_reach = False
                _log.info("the catalog's server answers again")

    @contextmanager
    def _transaction(self, patience: float) -> Iterator[Connection]:
        """Write, after waiting for others for so many seconds at most."""
        self._require_in_place()
        try:
            self._writing.active = True
            if self.is_sqlite:
                with self.gate.passed(), self._writer.transaction(patience) as connection:
                    yield connection
                return
            connected = self.engine.connect().execution_options(isolation_level="READ COMMITTED")
            with connected as connection, connection.begin():
                if self.url.get_backend_name() == "postgresql":
                    # It would wait for ever; and 0 stands for that.
                    milliseconds = max(1, int(patience * 1000))
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
                yield connection
        finally:
            self._writing.active = False

    def _connect_writer(self) -> Connection:
        return self.engine.connect().execution_options(**_EXPLICIT_BEGIN)

    def sync(self) -> None:
        """Return when every committed transaction would survive a power cut."""
        if self.path is None:
            return  # a server's commit is durable when it returns
        # What is no longer in the log was synced by the checkpoint that moved it.  The database
        # file itself must not be touched: closing it would drop SQLite's locks on it, and another
        # process would take the log away from under us.
        for name in (self.path + "-wal", os.path.dirname(self.path) or "."):
            try:
                fd = os.open(name, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def log_bytes(self) -> int:
        """How large the log is on the disk; 0 where there is none of ours."""
        try:
            return os.stat(f"{self.path}-wal").st_size if self.path is not None else 0
        except FileNotFoundError:
            return 0

    def rewind_log(self) -> bool:
        """Have SQLite write its log from the beginning again, over what it has of it on the disk.

        What is in the log moves to the database, which grows by pages that are new.  False where
        that cannot be: others are reading or writing, there is no room for it, or no such log.
        """
        if not self.is_sqlite or self.read_only:
            return False
        try:
            with self.gate.passed(), closing(self.engine.raw_connection()) as connection:
                driver: Any = connection.driver_connection
                with _busy_timeout(driver, _REWIND_SECONDS):
                    is_busy, *_ = driver.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except (DatabaseError, NoConnectionError, sqlite3.Error):
            return False
        return not is_busy

    def copy_to(self, path: Path) -> None:
        """Copy the file as it is at one moment.

        Raises `IntegrityError` where its pages do not make a database, `sqlite3.Error`.
        """
        with self.gate.passed(), closing(self.engine.raw_connection()) as connection:
            driver: Any = connection.driver_connection
            with closing(sqlite3.connect(path)) as copy:
                driver.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
                _require_intact(copy, self.path)

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the file and its references; other servers see to theirs.

        Names that lead nowhere are left to who looks at the tree that names make.
        """
        if not self.is_sqlite:
            return []
        with self.reading() as connection:
            found = list(connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars())
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        strange: list[str] = []
        with suppress(IntegrityError), self.reading() as connection:  # that was just told
            strange = mistyped_values(connection)
        wrong = [str(line) for line in found if line != "ok"] + strange
        return wrong + [
            f"a row of {row[0]} refers to a missing {row[2]}"
            for row in broken
            if row[0] != entries.name
        ]

    def _make_engine(self) -> Engine:
        pool: dict[str, Any] = {
            "pool_size": 8,
            "max_overflow": 56,
            "pool_timeout": BUSY_SECONDS,
            "json_deserializer": parsed_json,
        }
        if not self.is_sqlite:
            given = self.url.query
            is_libpq = self.url.get_dialect().driver in _LIBPQ_DRIVERS
            return sa.create_engine(
                self.url,
                pool_pre_ping=True,
                isolation_level="REPEATABLE READ",
                connect_args={
                    name: value
                    for name, value in _CONNECT_OPTIONS.items()
                    if is_libpq and name not in given
                },
                **pool,
            )
        arguments: dict[str, Any] = {
            "check_same_thread": False,
            "timeout": self._patience,
            "factory": MovableConnection,
        }
        more: dict[str, Any] = {}
        if self._unwritten is not None:
            more["creator"] = partial(self._unwritten.connect, **arguments)
        engine = sa.create_engine(self.url, connect_args=arguments, **pool, **more)
        read_only, path = self.read_only, self.path
        require_in_place = self._require_in_place

        @event.listens_for(engine, "connect")
        def be_in_place(connection: MovableConnection, _record: object) -> None:
            # Before anything is read: SQLite opens the log with the first statement that does.
            try:
                if path:
                    connection.note_place(path)
                require_in_place()
            except BaseException:
                connection.close()
                raise

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            connection.isolation_level = None  # we say BEGIN ourselves
            cursor = connection.cursor()
            if read_only:
                cursor.execute("PRAGMA query_only = ON")
            else:
                cursor.execute("PRAGMA journal_mode = WAL")
            # A commit survives a crash of the process at once, and a power cut after `sync`.
            # A power cut may lose the last transactions, never a part of one. fsync(2) syncs the
            # log.
            cursor.execute("PRAGMA synchronous = NORMAL")
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.execute("PRAGMA cache_size = -4096")
            cursor.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            cursor.close()

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            how = connection.get_execution_options().get("vfsd_begin", "BEGIN")
            if how is not None:
                connection.exec_driver_sql(how)

        @event.listens_for(engine, "handle_error")
        def tell_at_once(context: ExceptionContext) -> BaseException | None:
            # It is one row of many: whoever looks at all of them goes on with the next.
            error = context.original_exception
            if isinstance(error, sqlite3.DatabaseError) and is_encoding_error(error):
                return mapped_error(error, path, 0)
            return None

        @event.listens_for(engine, "handle_error")
        def stay_connected(context: ExceptionContext) -> None:
            # SQLAlchemy would close the connection at Ctrl-C, whose transaction SQLite goes on
            # with, and its locks, as long as anybody has a cursor: a traceback does.
            if not isinstance(context.original_exception, Exception):
                context.is_disconnect = False

        return engine


def current_revision(connection: Connection) -> str | None:
    """The catalog's revision; None for an empty database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(
        sa.text("SELECT version_num FROM alembic_version")
    ).scalar()
    return found


class ChangeWatch:
    """Tells whether anybody, in any process, has changed the catalog since the last question.

    On SQLite it owns a connection of its own and asks for its `data_version`, which takes
    microseconds, and when that is another one, whether it was more than notes; elsewhere every
    question is answered with yes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begin_unconnected()
        reset_after_fork(self)

    def _begin_unconnected(self) -> None:
        self._connection: Any = None
        self._version: int | None = None
        self._seen: int | None = None  # changes counted
        self._guard = threading.Lock()

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        leak(self._connection)
        self._begin_unconnected()

    def changed(self) -> bool:
        """Also true where it cannot be told, as the disk fails: who then looks himself is told."""
        if not self._database.is_sqlite:
            return True
        with self._database.gate.passed(), self._guard:
            try:
                return self._is_another_version()
            except (sqlite3.Error, SQLAlchemyError):
                if self._connection is not None:
                    self._connection.invalidate()  # else another has it, and what it has read wrong
                self._disconnect()
                return True

    def _is_another_version(self) -> bool:
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
        driver = self._connection.driver_connection
        (version,) = driver.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return False
        self._version = version
        seen, self._seen = self._seen, _change_count(driver)
        return seen != self._seen

    def rest(self) -> None:
        """Have no connection until the next question, unless one is just being asked."""
        if self._guard.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._guard.release()

    def close(self) -> None:
        with self._database.gate.passed(), self._guard:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        # Another connection counts differently.
        self._version = None
        if connection is not None:
            connection.close()


def _change_count(driver: Any) -> int:
    """Transactions that others should notice, counted."""
    (count,) = driver.execute("PRAGMA user_version").fetchone()
    return int(count)


def _count_change(driver: Any) -> None:
    driver.execute(f"PRAGMA user_version = {(_change_count(driver) + 1) % _MOST_CHANGES}")


@contextmanager
def _busy_timeout(driver: Any, seconds: float) -> Iterator[None]:
    """Wait for others for so long, instead of for `BUSY_SECONDS`."""
    driver.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


def _require_intact(copy: sqlite3.Connection, path: str | None) -> None:
    """Pages are copied as they are, whatever is in them: raises `IntegrityError` where they make
    no database.  What rows say is not looked at."""
    copy.execute("PRAGMA ignore_check_constraints = ON")
    try:
        told = [str(line) for (line,) in copy.execute("PRAGMA integrity_check(20)")]
    except sqlite3.DatabaseError as error:
        found = mapped_error(error, path, BUSY_SECONDS)
        raise found or error from error
    wrong = [line for line in told if line != "ok" and not line.startswith("NULL value in")]
    if wrong:
        raise IntegrityError(f"the catalog {path or ''} is damaged: {wrong[0]}", hint=RECOVERY_HINT)
