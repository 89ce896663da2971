"""Connections to an SQLite file.

`WriterConnection` is the only connection that writes.  `ForkGate` keeps threads out of SQLite
during a fork.  `MovableConnection` and `ReadOnlyDatabase` handle moved and read-only directories.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vfsd.core.process_control import OwnerProcess, leak
from vfsd.errors import BusyError, StoreError


class ForkGate:
    """Tracks the threads that use SQLite, and keeps them out while a fork is in progress.

    Several forks may close it at once; it opens with the last of them.
    """

    def __init__(self) -> None:
        # The lock is taken directly.  Condition.__enter__ is Python code, in which Ctrl-C could
        # arrive between taking the lock and the point from which it is released.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._inside: dict[object, int] = {}  # thread id by entry
        self._times_closed = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be inside for the duration; waits while the gate is closed, unless the thread
        is inside.
        """
        me, entry = threading.get_ident(), object()
        try:
            with self._guard:
                while self._times_closed and me not in self._inside.values():
                    self._changed.wait()
                self._inside[entry] = me
            yield
        finally:
            with self._guard:
                self._inside.pop(entry, None)
                if self._times_closed:
                    self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Let no thread in, and wait up to `seconds` until no other thread is inside."""
        mine = {threading.get_ident()}
        with self._guard:
            self._times_closed += 1
            self._changed.wait_for(lambda: mine.issuperset(self._inside.values()), seconds)

    def open(self) -> None:
        """Undo one `close`; does nothing if Ctrl-C prevented it."""
        with self._guard:
            self._times_closed = max(0, self._times_closed - 1)
            self._changed.notify_all()


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


class ReadOnlyDatabase:
    """An SQLite file in a read-only directory without a writer, opened as immutable.

    SQLite's usual mode needs to create files next to the database.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._found = self._stat()

    @classmethod
    def at(cls, path: str) -> ReadOnlyDatabase | None:
        """Return None if SQLite can open the file as usual."""
        if os.access(os.path.dirname(path) or ".", os.W_OK) or not os.access(path, os.R_OK):
            return None
        return None if _has_writer(path) else cls(path)

    def connect(self, **arguments: Any) -> sqlite3.Connection:
        """Connect; `arguments` are those of `sqlite3.connect`."""
        address = f"file:{quote(os.path.abspath(self._path))}?immutable=1"
        connection: sqlite3.Connection = sqlite3.connect(address, uri=True, **arguments)
        return connection

    def require_unchanged(self) -> None:
        """Raises `BusyError` if the file was written since it was opened: reads may be wrong."""
        if _has_writer(self._path) or self._stat() != self._found:
            raise BusyError(
                f"the catalog {self._path} was changed during the read", hint="open it again"
            )

    def _stat(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_size, found.st_mtime_ns


def _has_writer(path: str) -> bool:
    """Return whether a writer has the file open, or was killed and left a log."""
    try:
        return os.path.exists(f"{path}-shm") or os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


class WriterConnection:
    """The connection for writing, which the threads of a process use in turns."""

    def __init__(self, connect: Callable[[], Connection], patience: float) -> None:
        """`connect` opens a connection that waits `patience` seconds for other processes."""
        self._connect = connect
        self._patience = patience
        # An RLock: `_end` must find out whether this thread holds it.
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self, patience: float) -> Iterator[Connection]:
        """Run a write transaction, after waiting up to `patience` seconds for others.  Must not be
        nested.

        Rolls back if the block raises.  Raises `BusyError`, errors of SQLite, and `UsageError` in a
        child that was forked inside the block.
        """
        origin = OwnerProcess()
        try:
            try:
                self._acquire(patience)
                connection = self._ready_connection()
                driver: Any = connection.connection.driver_connection
                self._begin(driver, patience)
                yield connection
                origin.require_same_process("a transaction")
                driver.execute("COMMIT")
            finally:
                self._end(origin)
        except BaseException:
            self._end(origin)  # the first call may have been interrupted; a second one is harmless
            raise

    def close(self) -> None:
        """Close the connection, after the current transaction."""
        with self._lock:
            self._drop()

    def disconnect(self) -> None:
        """Close the connection until the next transaction, unless one is in progress."""
        if self._lock.acquire(blocking=False):
            try:
                driver: Any = self._connection and self._connection.connection.driver_connection
                if driver is not None and not driver.in_transaction:
                    self._drop()
            finally:
                self._lock.release()

    @property
    def connection(self) -> Connection | None:
        """The current connection, if there is one."""
        return self._connection

    def _acquire(self, patience: float) -> None:
        if not self._lock.acquire(timeout=patience):
            raise locked_error("another thread of this process", patience)

    def _ready_connection(self) -> Connection:
        """Return a connection that can begin a transaction, whatever was interrupted before."""
        self._undo()
        if self._connection is None:
            self._connection = self._connect()
            # SQLAlchemy sees one endless transaction.  Its own begin and commit would take longer
            # than the work in between.
            self._connection.begin()
        return self._connection

    def _begin(self, driver: Any, patience: float) -> None:
        if patience != self._patience:
            driver.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        try:
            driver.execute("BEGIN IMMEDIATE")
        finally:
            if patience != self._patience:
                driver.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")

    def _end(self, origin: OwnerProcess) -> None:
        """Roll back what was not committed, and release the lock.

        Does nothing if another thread holds the lock, or if the transaction belongs to the parent
        process.
        """
        if origin.is_parent or not self._lock.acquire(blocking=False):
            return
        try:
            self._undo()
        finally:
            with suppress(RuntimeError):  # released completely
                while True:
                    self._lock.release()

    def _undo(self) -> None:
        """Roll back the current transaction; drop a connection that is no longer usable."""
        if self._connection is None:
            return
        try:
            if not self._connection.invalidated and self._connection.in_transaction():
                driver: Any = self._connection.connection.driver_connection
                if driver.in_transaction:  # SQLite rolls back by itself on a full disk
                    driver.execute("ROLLBACK")
                return
        except (SQLAlchemyError, sqlite3.Error):
            pass
        except BaseException:
            self._drop()
            raise
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.invalidate()  # closes it, which rolls back
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.close()


def locked_error(who: str, seconds: float) -> BusyError:
    """Return the error for a catalog that `who` kept locked for `seconds`."""
    return BusyError(
        f"{who} has been writing to the catalog for {seconds:g} seconds",
        hint="try again; `vfsd doctor` shows the processes that have the store open",
    )


_LOCKS_AT = 0x40000000
_LOCKS = 512
"""The byte range of the file that SQLite's processes lock while they have it open."""


def checkpoint_if_closed(path: Path) -> bool:
    """Move the log of an SQLite file into the file; False if any process has it open.

    True also if there is no file, or one that SQLite cannot use.
    """
    if not path.exists():
        return True
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return False
        return not _is_locked(path)
    return bool(mode == "delete")


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
