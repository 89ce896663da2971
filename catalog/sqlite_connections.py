"""Connections to an SQLite file.

`WriterConnection` is the only connection that writes.  `ReadOnlyDatabase` handles read-only
directories.  The functions check, copy and sync files.
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

from vfsd.catalog.error_mapping import RECOVERY_HINT, locked_error, mapped_error
from vfsd.core.process_control import OwnerProcess
from vfsd.errors import BusyError, IntegrityError


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


def sync_log(path: str) -> None:
    """Sync the log of an SQLite file."""
    # Anything no longer in the log was synced by the checkpoint that moved it.  The database file
    # must not be opened here: closing it would drop SQLite's locks on it, and another process
    # could remove the log that is still in use.
    for name in (path + "-wal", os.path.dirname(path) or "."):
        try:
            fd = os.open(name, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def copy_snapshot(source: sqlite3.Connection, path: Path, source_path: str | None) -> None:
    """Copy a consistent snapshot of a database to a new file.

    Raises `IntegrityError` if its pages are not a valid database, and `sqlite3.Error`.
    """
    with closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        _require_intact(copy, source_path)


def _require_intact(copy: sqlite3.Connection, path: str | None) -> None:
    """Raises `IntegrityError` unless the copied pages are a valid database.

    SQLite copies pages without checking them.  The values in rows are not checked.
    """
    copy.execute("PRAGMA ignore_check_constraints = ON")
    try:
        reported = [str(line) for (line,) in copy.execute("PRAGMA integrity_check(20)")]
    except sqlite3.DatabaseError as error:
        found = mapped_error(error, path, 0)
        raise found or error from error
    wrong = [line for line in reported if line != "ok" and not line.startswith("NULL value in")]
    if wrong:
        raise IntegrityError(f"the catalog {path or ''} is damaged: {wrong[0]}", hint=RECOVERY_HINT)
