"""Connections to an SQLite file.

`WriterConnection` is the one connection that writes; `ForkGate` keeps threads out of SQLite during
a fork; `MovableConnection` and `ReadOnlyDatabase` handle moved and read-only directories.
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

from vfsd.core.atfork import OwnerProcess, leak
from vfsd.errors import BusyError, StoreError


class ForkGate:
    """Knows who is inside, and can be shut, by several at once: it opens with the last of them."""

    def __init__(self) -> None:
        # The lock itself is taken, and not by way of the condition, which does so in Python, where
        # Ctrl-C may come before it could be given back.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._inside: dict[object, int] = {}  # the thread, by entry
        self._times_shut = 0

    @contextmanager
    def passed(self) -> Iterator[None]:
        """To be inside; waits while it is shut, unless the thread is inside already."""
        me, entry = threading.get_ident(), object()
        try:
            with self._guard:
                while self._times_shut and me not in self._inside.values():
                    self._changed.wait()
                self._inside[entry] = me
            yield
        finally:
            with self._guard:
                self._inside.pop(entry, None)
                if self._times_shut:
                    self._changed.notify_all()

    def shut(self, seconds: float) -> None:
        """Let nobody in, and wait for so long at most until no other thread is inside."""
        mine = {threading.get_ident()}
        with self._guard:
            self._times_shut += 1
            self._changed.wait_for(lambda: mine.issuperset(self._inside.values()), seconds)

    def open(self) -> None:
        """Take a `shut` back; nothing where Ctrl-C came before there was one."""
        with self._guard:
            self._times_shut = max(0, self._times_shut - 1)
            self._changed.notify_all()


class MovableConnection(sqlite3.Connection):
    """A connection that knows at which name its file was opened."""

    _name: str | None = None
    _found: tuple[int, int] | None = None

    def note_place(self, path: str) -> None:
        """Remember where SQLite found the file `path`, whose directories may be links; nothing of
        a database in memory.

        Raises `StoreError` where `path` leads to another file by now.
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
        """Close it, unless its file has been moved."""
        if self._name is None or _identity(self._name) == self._found:
            super().close()
            return
        with suppress(sqlite3.Error):
            self.rollback()
        leak(self)

    def __del__(self) -> None:
        # Stores need not be closed; from Python 3.13 on a connection that is not closed warns.
        with suppress(sqlite3.Error):
            self.close()


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode number; None where nothing is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class ReadOnlyDatabase:
    """An SQLite file that nobody has open for writing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found = self._look()

    @classmethod
    def at(cls, path: str) -> ReadOnlyDatabase | None:
        """None where SQLite can do with it as usual."""
        if os.access(os.path.dirname(path) or ".", os.W_OK) or not os.access(path, os.R_OK):
            return None
        return None if _has_writer(path) else cls(path)

    def connect(self, **arguments: Any) -> sqlite3.Connection:
        """`arguments` are those of `sqlite3.connect`."""
        address = f"file:{quote(os.path.abspath(self._path))}?immutable=1"
        connection: sqlite3.Connection = sqlite3.connect(address, uri=True, **arguments)
        return connection

    def require(self) -> None:
        """Raises `BusyError` where it was written since, so that what was read may be wrong."""
        if _has_writer(self._path) or self._look() != self._found:
            raise BusyError(
                f"the catalog {self._path} was written while it was read", hint="open it again"
            )

    def _look(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_size, found.st_mtime_ns


def _has_writer(path: str) -> bool:
    """By who writes it, or by a writer that was killed, of whom it still has a log."""
    try:
        return os.path.exists(f"{path}-shm") or os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


class WriterConnection:
    """Threads take turns with it."""

    def __init__(self, connect: Callable[[], Connection], patience: float) -> None:
        """`connect` makes a connection that waits for other processes for `patience` seconds."""
        self._connect = connect
        self._patience = patience
        # A lock of which its owner can tell that he has it.
        self._turn = threading.RLock()
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self, patience: float) -> Iterator[Connection]:
        """Write, after waiting for others for so many seconds at most; not for use inside itself.

        All of it is undone where the block raises anything.  Raises `BusyError`, what SQLite
        raises, and `UsageError` in a child that was forked in the block.
        """
        origin = OwnerProcess()
        try:
            try:
                self._take_turn(patience)
                connection = self._connected()
                driver: Any = connection.connection.driver_connection
                self._begin(driver, patience)
                yield connection
                origin.require_same_process("a transaction")
                driver.execute("COMMIT")
            finally:
                self._end(origin)
        except BaseException:
            self._end(origin)  # it may have been interrupted itself; it may be done twice
            raise

    def close(self) -> None:
        """Waits for whoever writes."""
        with self._turn:
            self._drop()

    def rest(self) -> None:
        """Have no connection until somebody writes, unless somebody does."""
        if self._turn.acquire(blocking=False):
            try:
                driver: Any = self._connection and self._connection.connection.driver_connection
                if driver is not None and not driver.in_transaction:
                    self._drop()
            finally:
                self._turn.release()

    @property
    def connection(self) -> Connection | None:
        """What there is at the moment."""
        return self._connection

    def _take_turn(self, patience: float) -> None:
        if not self._turn.acquire(timeout=patience):
            raise locked_error("another thread of this process", patience)

    def _connected(self) -> Connection:
        """Ready to begin, whatever was interrupted before."""
        self._undo()
        if self._connection is None:
            self._connection = self._connect()
            # To SQLAlchemy all that is ever written is one transaction.  Beginning and ending
            # ours by way of it would take longer than what is done in between.
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
        """Undo what was not committed, and let others have their turn; nothing where it is not this
        thread's, or where all of it is the parent's."""
        if origin.is_parent or not self._turn.acquire(blocking=False):
            return
        try:
            self._undo()
        finally:
            with suppress(RuntimeError):  # it is not this thread's any more
                while True:
                    self._turn.release()

    def _undo(self) -> None:
        """Roll back what is under way; forget a connection that is good for nothing any more."""
        if self._connection is None:
            return
        try:
            if not self._connection.invalidated and self._connection.in_transaction():
                driver: Any = self._connection.connection.driver_connection
                if driver.in_transaction:  # SQLite may have ended it itself, as on a full disk
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
                connection.invalidate()  # which closes it, and so ends what it has begun
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.close()


def locked_error(who: str, seconds: float) -> BusyError:
    """What to raise when `who` has kept the catalog locked for so long."""
    return BusyError(
        f"{who} has been writing to the catalog for {seconds:g} seconds",
        hint="try again; `vfsd doctor` shows who has the store open",
    )


_LOCKS_AT = 0x40000000
_LOCKS = 512
"""The bytes of the file on which SQLite's processes hold locks while they have it open."""


def checkpoint_if_closed(path: Path) -> bool:
    """Move the log of an SQLite file into the file; False where anybody has it open, in any
    process.

    True, too, where there is no file, or one that SQLite can do nothing with.
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
