"""The connection by which a process writes to an SQLite file: one, kept, whatever becomes of it.

Ctrl-C may come at any moment.  It is heeded when a call ends: after a lock was taken, after a
transaction was begun, in the midst of a statement, whereupon SQLAlchemy closes the connection.
Nothing of that may be left behind, as nobody could write any more.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vfsd.core.atfork import Origin
from vfsd.errors import BusyError


class OneWriter:
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
        origin = Origin()
        try:
            try:
                self._take_turn(patience)
                connection = self._connected()
                driver: Any = connection.connection.driver_connection
                self._begin(driver, patience)
                yield connection
                origin.require_own("a transaction")
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
            raise busy("another thread of this process", patience)

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

    def _end(self, origin: Origin) -> None:
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


def busy(who: str, seconds: float) -> BusyError:
    """What to raise when `who` has kept the catalog locked for so long."""
    return BusyError(
        f"{who} has been writing to the catalog for {seconds:g} seconds",
        hint="try again; `vfsd doctor` shows who has the store open",
    )
