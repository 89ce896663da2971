"""Connections and transactions: many readers, one writer, several processes.

SQLite runs in WAL mode: readers never wait, writers take turns.  A write transaction begins with
BEGIN IMMEDIATE, so it never fails half-way, and waits for up to `BUSY_SECONDS`.  A process keeps
one connection for writing: usually no other process writes, so its page cache stays valid.  On a
database server, readers have a snapshot, too (REPEATABLE READ), and writers take turns by locking
the only row of Alembic's table.

SQLite's `user_version`, or `catalog_state` on a server, counts the transactions that other
processes should notice.  The frequent ones of `Database.unwatched_writing` do not count, so caches
stay valid while reads are logged.
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
from typing import TYPE_CHECKING, Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from vfsd.catalog.database_url import parsed_url, require_database, sqlite_files
from vfsd.catalog.error_mapping import (
    SERVER_GONE_HINT,
    is_encoding_error,
    locked_error,
    mapped_error,
)
from vfsd.catalog.rows import mistyped_values, parsed_json
from vfsd.catalog.schema import entries
from vfsd.catalog.sqlite_connections import (
    ReadOnlyDatabase,
    WriterConnection,
    copy_snapshot,
    sync_log,
)
from vfsd.core.process_control import (
    ForkGate,
    lazy,
    leak,
    prepare_before_fork,
    reset_after_fork,
)
from vfsd.disk.safe_open import require_regular
from vfsd.errors import (
    BusyError,
    ClosedError,
    IntegrityError,
    ReadOnlyError,
    StoreError,
    UnreachableError,
)

if TYPE_CHECKING:
    from vfsd.catalog.homes import Lease
    from vfsd.catalog.server_connections import Server
    from vfsd.core.model import Home

_log = logging.getLogger(__name__)

BUSY_SECONDS = 60
_NOTE_SECONDS = 1
"""How long a transaction of `unwatched_writing` waits for the write lock."""
_CHECKPOINT_SECONDS = 1
"""How long a checkpoint waits for readers of the log."""
LOG_BYTES = 16 << 20
"""Limit for the size of the log when it restarts.  SQLite usually fills 4 MiB; only a long reader
or a large transaction takes more.
"""
_FORK_SECONDS = 2
"""How long a fork waits for transactions of other threads."""
DEFAULT_STALENESS = 1.0
_MOST_CHANGES = 1 << 31
"""`user_version` has 31 bits."""

_EXPLICIT_BEGIN = {"vfsd_begin": None}


class MovableConnection(sqlite3.Connection):
    """A connection that knows the path and identity of its file.

    SQLite deletes the log of a path at the last close, which would be another file's after a move.
    """

    _name: str | None = None
    _found: tuple[int, int] | None = None

    def note_path(self, path: str) -> None:
        """Record the file that SQLite opened as `path`; does nothing for a database in memory.

        Directories in `path` may be links.  Raises `StoreError` if `path` now leads to another
        file.
        """
        (name,) = [row[2] for row in self.execute("PRAGMA database_list") if row[1] == "main"]
        if not name:
            return
        self._name, self._found = name, _identity(name)
        if self._found is None or self._found != _identity(path):
            raise StoreError(
                f"the catalog {path} was moved while it was opened", hint="open the store again"
            )

    def close(self) -> None:
        """Close the connection, unless its file was moved: then leave it open."""
        if self._name is None or _identity(self._name) == self._found:
            super().close()
            return
        with suppress(sqlite3.Error):
            self.rollback()
        leak(self)

    def __del__(self) -> None:
        # Stores need not be closed, but Python 3.13 warns of unclosed connections.
        with suppress(sqlite3.Error):
            self.close()


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode number; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Database:
    """A SQLAlchemy engine that survives a fork and raises vfsd errors."""

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        patience: float | None = None,
        staleness: float | None = DEFAULT_STALENESS,
        require_in_place: Callable[[], None] = lambda: None,
    ) -> None:
        """Open nothing yet.  Raises as `require_database` and `require_regular` do.

        Args:
            url: The database URL.
            read_only: Refuse to write.
            patience: Seconds that readers wait for a locked SQLite file (default: `BUSY_SECONDS`).
            staleness: Seconds that a `ChangeWatch` on a server may miss changes of other
                processes; None: it never notices them.
            require_in_place: Called after each connection and before each change; raises if another
                store has replaced the one with this catalog.
        """
        require_database(url)
        self.url = parsed_url(url)
        if self.path:
            require_regular(*sqlite_files(self.path))
        self.read_only = read_only
        self._require_in_place = require_in_place
        self._patience = BUSY_SECONDS if patience is None else patience
        self._immutable = ReadOnlyDatabase.at(self.path) if read_only and self.path else None
        self._is_closed = False
        self.staleness = staleness
        self._is_unreachable = False  #: at the last access
        self._watches: weakref.WeakSet[ChangeWatch] = weakref.WeakSet()
        self.home: str | None = None  #: id of the home of this process, if there may be several
        self.known_home: Home | None = None
        self.lease: Lease | None = None  #: that this process holds as a mount
        self._begin_unconnected()
        reset_after_fork(self)
        prepare_before_fork(self)

    def __reduce__(self) -> NoReturn:
        # Connections and locks belong to this process; queries and catalogs refer to them.
        raise TypeError(
            "a catalog cannot be pickled: send the store or a video, "
            "or open the store again in the other process"
        )

    def _begin_unconnected(self) -> None:
        self.gate = ForkGate()  #: entered for every use of the file
        self._guard = threading.Lock()
        self._engine: Engine | None = None
        self._writing = threading.local()
        self._writer = WriterConnection(self._connect_writer, BUSY_SECONDS)

    def after_fork(self) -> None:
        """Drop all connections in a forked child; see `vfsd.core.process_control`."""
        # Connections remain if the fork did not wait for all threads, or happened inside a
        # transaction.  A connection must not be used in both processes, nor closed in the child.
        leak(self._engine)
        leak(self._writer.connection)
        self._begin_unconnected()

    def before_fork(self) -> None:
        """Close unused connections to the file; see `MovableConnection`."""
        if not self.is_sqlite:
            return
        self.gate.close(_FORK_SECONDS)
        with self._guard:
            watches, engine = list(self._watches), self._engine
        for watch in watches:
            watch.disconnect()
        self._writer.disconnect()
        if engine is not None:
            engine.dispose()

    def after_fork_in_parent(self) -> None:
        """Let threads use the file again; see `vfsd.core.process_control`."""
        if self.is_sqlite:
            self.gate.open()

    def watch(self) -> ChangeWatch:
        """Return an object that cheaply detects changes of the catalog."""
        watch = ChangeWatch(self)
        with self._guard:
            self._watches.add(watch)
        return watch

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def path(self) -> str | None:
        """The database file; None on a server."""
        return self.url.database if self.is_sqlite else None

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, created at first use.  Raises `ClosedError`."""
        with self._guard:
            if self._is_closed:
                raise ClosedError
            if self._engine is None:
                self._engine = self._make_engine()
            return self._engine

    def close(self) -> None:
        with self.gate.entered():
            with self._guard:
                self._is_closed = True
                engine, self._engine = self._engine, None
            self._writer.close()
            if engine is not None:
                engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with one snapshot of the catalog.

        Raises `BusyError` if other threads keep all connections for `BUSY_SECONDS`.
        """
        with (
            self._mapped_errors(self._patience),
            self.gate.entered(),
            self.engine.connect() as connection,
            connection.begin(),
        ):
            yield connection
        if self._immutable is not None:
            self._immutable.require_unchanged()

    @property
    def is_postgresql(self) -> bool:
        return self.url.get_backend_name() == "postgresql"

    @contextmanager
    def querying(self) -> Iterator[Connection]:
        """Like `reading`, but on a server each statement sees a state of its own.

        That saves the round trips for the begin and the end of a transaction.
        """
        if self.is_sqlite:
            with self.reading() as connection:
                yield connection
            return
        with (
            self._mapped_errors(self._patience),
            self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            yield connection

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[Connection]:
        """Yield a connection for one transaction, committed at the end or rolled back on an error.

        Waits up to `patience` seconds for other writers (default: `BUSY_SECONDS`).
        """
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if self._is_writing:
            raise AssertionError("a nested write transaction would deadlock")
        seconds = BUSY_SECONDS if patience is None else patience
        with self._mapped_errors(seconds):
            if not self.is_sqlite:
                server = self.server
                with self._transaction(seconds) as connection:
                    if self.lease is not None:
                        self.lease.renew(connection)
                    with server.counted(connection) as numbers:
                        yield connection
                for number in numbers:
                    server.counter.note_own(number)
                return
            with self._transaction(seconds) as connection:
                driver: Any = connection.connection.driver_connection
                before = driver.total_changes
                yield connection
                if driver.total_changes != before:
                    _count_change(driver)

    @lazy
    def server(self) -> Server:
        """The database server; only for catalogs on one."""
        from vfsd.catalog.server_connections import Server

        return Server(self.url, self._ask_changes, self.staleness)

    def _ask_changes(self) -> int:
        from vfsd.catalog.server_connections import read_changes

        with self.querying() as connection:
            return read_changes(connection)

    @contextmanager
    def unwatched_writing(self) -> Iterator[Connection]:
        """Yield a connection for a minor change, which no `ChangeWatch` reports.

        Raises `BusyError` after `_NOTE_SECONDS` of waiting for other writers.
        """
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if self._is_writing:
            raise locked_error("this thread", 0)
        # On a server, too, it takes the write lock.  Otherwise two writers could deadlock on rows,
        # and rows found here could be deleted before they are updated.
        with self._mapped_errors(_NOTE_SECONDS), self._transaction(_NOTE_SECONDS) as connection:
            yield connection

    @contextmanager
    def rarely_writing(self, is_due: Callable[[Connection], bool]) -> Iterator[Connection | None]:
        """Like `unwatched_writing`, but yield None, without the write lock, unless `is_due`.

        Only for PostgreSQL.
        """
        with self._mapped_errors(_NOTE_SECONDS):
            connected = self.engine.connect().execution_options(isolation_level="READ COMMITTED")
            with connected as connection, connection.begin():
                if not is_due(connection):
                    yield None
                    return
                self.server.lock(connection, _NOTE_SECONDS)
                yield connection

    @contextmanager
    def appending(self) -> Iterator[Connection]:
        """Yield a connection for a transaction that only adds rows to a log.

        No `ChangeWatch` reports it.  On a server it does not wait for other writers; on SQLite, it
        waits up to `BUSY_SECONDS`.
        """
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if self._is_writing:
            raise AssertionError("a nested write transaction would deadlock")
        with self._mapped_errors(BUSY_SECONDS):
            if self.is_sqlite:
                with self._transaction(BUSY_SECONDS) as connection:
                    yield connection
                return
            connected = self.engine.connect().execution_options(isolation_level="READ COMMITTED")
            with connected as connection, connection.begin():
                yield connection

    @property
    def _is_writing(self) -> bool:
        """Whether the current thread is in a write transaction."""
        return getattr(self._writing, "active", False)

    @contextmanager
    def _mapped_errors(self, patience: float) -> Iterator[None]:
        """Convert database errors to vfsd errors; `patience` is the time that was
        waited for locks.
        """
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            self._require_in_place()  # a moved store explains the error better
            meant = mapped_error(error, self.path, patience)
            if meant is None:
                raise
            if isinstance(meant, UnreachableError):
                self._is_unreachable = True
            raise meant from error
        except NoConnectionError as error:
            raise BusyError(
                "the catalog has no free connection: other threads of this process hold them all",
                hint="read from fewer threads, and do not keep reads open for long",
            ) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                self._is_unreachable = True
                raise UnreachableError(
                    f"the catalog's server is gone: {error.orig}", hint=SERVER_GONE_HINT
                ) from error
            raise
        except StatementError as error:
            # An exception from elsewhere, such as a signal handler, is not about the statement.
            if error.orig is None:
                raise
            raise error.orig from None
        else:
            if self._is_unreachable:
                self._is_unreachable = False
                _log.info("the catalog's server answers again")

    @contextmanager
    def _transaction(self, patience: float) -> Iterator[Connection]:
        """Begin a write transaction, after waiting up to `patience` seconds for other writers."""
        self._require_in_place()
        try:
            self._writing.active = True
            if self.is_sqlite:
                with self.gate.entered(), self._writer.transaction(patience) as connection:
                    yield connection
                return
            with self.server.transaction(self.engine, patience) as connection:
                yield connection
        finally:
            self._writing.active = False

    def _connect_writer(self) -> Connection:
        return self.engine.connect().execution_options(**_EXPLICIT_BEGIN)

    def sync(self) -> None:
        """Return when every committed transaction would survive a power cut."""
        if self.path is not None:  # a commit on a server is durable when it returns
            sync_log(self.path)

    def log_bytes(self) -> int:
        """Return the size of the log on disk; 0 without a log."""
        try:
            return os.stat(f"{self.path}-wal").st_size if self.path is not None else 0
        except FileNotFoundError:
            return 0

    def restart_log(self) -> bool:
        """Checkpoint the log, so that SQLite writes it from the start again, over its existing
        bytes.

        The database file grows by its new pages.  Returns False if that is impossible: other
        connections read or write, the disk is full, or there is no log.
        """
        if not self.is_sqlite or self.read_only:
            return False
        try:
            with self.gate.entered(), closing(self.engine.raw_connection()) as connection:
                driver: Any = connection.driver_connection
                with _busy_timeout(driver, _CHECKPOINT_SECONDS):
                    is_busy, *_ = driver.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except (DatabaseError, NoConnectionError, sqlite3.Error):
            return False
        return not is_busy

    def copy_to(self, path: Path) -> None:
        """Copy a consistent snapshot to a new SQLite file.

        Raises `IntegrityError` if its pages are not a valid database, and `sqlite3.Error`.
        """
        if self.is_postgresql:
            from vfsd.catalog.server_queries import copy_server  # files need no rows copied

            copy_server(self, path)
            return
        with self.gate.entered(), closing(self.engine.raw_connection()) as connection:
            driver: Any = connection.driver_connection
            copy_snapshot(driver, path, self.path)

    def damage(self) -> list[str]:
        """Return descriptions of damage that SQLite finds in the file and its references.

        Servers check their own files.  Names without an inode are left to the check of the tree.
        """
        if not self.is_sqlite:
            return []
        with self.reading() as connection:
            found = list(connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars())
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        mistyped: list[str] = []
        with (
            suppress(IntegrityError),
            self.reading() as connection,
        ):  # reported by the integrity check
            mistyped = mistyped_values(connection)
        wrong = [str(line) for line in found if line != "ok"] + mistyped
        return wrong + [
            f"a row of {row[0]} refers to a missing {row[2]}"
            for row in broken
            if row[0] != entries.name
        ]

    def _make_engine(self) -> Engine:
        options: dict[str, Any] = {
            "pool_timeout": BUSY_SECONDS,
            "json_deserializer": parsed_json,
        }
        if not self.is_sqlite:
            return self.server.make_engine(**options)
        options |= {"pool_size": 8, "max_overflow": 56}
        arguments: dict[str, Any] = {
            "check_same_thread": False,
            "timeout": self._patience,
            "factory": MovableConnection,
        }
        more: dict[str, Any] = {}
        if self._immutable is not None:
            more["creator"] = partial(self._immutable.connect, **arguments)
        engine = sa.create_engine(self.url, connect_args=arguments, **options, **more)
        read_only, path = self.read_only, self.path
        require_in_place = self._require_in_place

        @event.listens_for(engine, "connect")
        def check_location(connection: MovableConnection, _record: object) -> None:
            # Before any read: SQLite opens the log with the first statement that reads.
            try:
                if path:
                    connection.note_path(path)
                require_in_place()
            except BaseException:
                connection.close()
                raise

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            connection.isolation_level = None  # BEGIN is issued explicitly
            cursor = connection.cursor()
            if read_only:
                cursor.execute("PRAGMA query_only = ON")
            else:
                cursor.execute("PRAGMA journal_mode = WAL")
            # A commit survives a crash of the process at once, and a power cut after `sync`.  A
            # power cut may lose the last transactions, but never a part of one.
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
        def map_encoding_error(context: ExceptionContext) -> BaseException | None:
            # The error concerns one row of many: a loop over all rows continues with the next.
            error = context.original_exception
            if isinstance(error, sqlite3.DatabaseError) and is_encoding_error(error):
                return mapped_error(error, path, 0)
            return None

        @event.listens_for(engine, "handle_error")
        def keep_connection(context: ExceptionContext) -> None:
            # On Ctrl-C, SQLAlchemy would drop the connection.  SQLite would keep its transaction
            # and locks as long as a cursor exists, for example in a traceback.
            if not isinstance(context.original_exception, Exception):
                context.is_disconnect = False

        return engine


def current_revision(connection: Connection) -> str | None:
    """Return the schema revision of the catalog; None for an empty database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(
        sa.text("SELECT version_num FROM alembic_version")
    ).scalar()
    return found


class ChangeWatch:
    """Detects whether any process has changed the catalog since the last call.

    On SQLite, it owns a connection and checks its `data_version`, which takes microseconds.  If
    that has changed, the count of noticeable changes decides.  On a server, the `ChangeCounter` of
    the database decides.
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
        """Drop the connection in a forked child; see `vfsd.core.process_control`."""
        leak(self._connection)
        self._begin_unconnected()

    @property
    def may_lag(self) -> bool:
        """Whether changes by other processes may be noticed later."""
        return not self._database.is_sqlite and self._database.server.counter.may_lag

    @property
    def sees_all(self) -> bool:
        """Whether `changed` never takes a change of another process for one of its own."""
        return not self._database.is_sqlite and not self._database.server.counter.is_away

    def changed(self, *, now: bool = False) -> bool:
        """Return whether the catalog may have changed.

        On SQLite, True also on errors, which the next read reports.  False while a server is
        unreachable.  With `now`, a server is asked in any case, and its errors are raised.
        """
        if not self._database.is_sqlite:
            number = self._database.server.counter.number(now=now)
            with self._guard:
                before, self._seen = self._seen, number
            return number is None or number != before
        with self._database.gate.entered(), self._guard:
            try:
                return self._has_new_version()
            except (sqlite3.Error, SQLAlchemyError):
                if self._connection is not None:
                    self._connection.invalidate()  # its cached pages may be wrong
                self._disconnect()
                return True

    def number_now(self) -> int | None:
        """Return the number of changes on a server, which is asked.  Raises its errors."""
        return self._database.server.counter.number(now=True)

    def _has_new_version(self) -> bool:
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
        driver = self._connection.driver_connection
        (version,) = driver.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return False
        self._version = version
        seen, self._seen = self._seen, _change_count(driver)
        return seen != self._seen

    def disconnect(self) -> None:
        """Close the connection until the next call, unless a call is in progress."""
        if self._guard.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._guard.release()

    def close(self) -> None:
        with self._database.gate.entered(), self._guard:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        # The versions of different connections are not comparable.
        self._version = None
        if connection is not None:
            connection.close()


def _change_count(driver: Any) -> int:
    """Return the number of noticeable transactions."""
    (count,) = driver.execute("PRAGMA user_version").fetchone()
    return int(count)


def _count_change(driver: Any) -> None:
    driver.execute(f"PRAGMA user_version = {(_change_count(driver) + 1) % _MOST_CHANGES}")


@contextmanager
def _busy_timeout(driver: Any, seconds: float) -> Iterator[None]:
    """Wait this long for locks, instead of `BUSY_SECONDS`."""
    driver.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
