"""A catalog that may only be looked at, in a directory in which nothing can be made.

SQLite needs shared memory beside a database with a log, also for reading.  Where it is not there
and cannot be made, as on a read-only disk, the file is opened as one that nobody changes: it is
then not locked, and nothing of it is looked at twice.  Whether that was so is asked after each
transaction.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any
from urllib.parse import quote

from vfsd.errors import BusyError


class UnwrittenFile:
    """An SQLite file that nobody has open for writing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found = self._look()

    @classmethod
    def at(cls, path: str) -> UnwrittenFile | None:
        """None where SQLite can do with it as usual."""
        if os.access(os.path.dirname(path) or ".", os.W_OK) or not os.access(path, os.R_OK):
            return None
        return None if _is_in_use(path) else cls(path)

    def connect(self, **arguments: Any) -> sqlite3.Connection:
        """`arguments` are those of `sqlite3.connect`."""
        address = f"file:{quote(os.path.abspath(self._path))}?immutable=1"
        connection: sqlite3.Connection = sqlite3.connect(address, uri=True, **arguments)
        return connection

    def require(self) -> None:
        """Raises `BusyError` where it was written since, so that what was read may be wrong."""
        if _is_in_use(self._path) or self._look() != self._found:
            raise BusyError(
                f"the catalog {self._path} was written while it was read", hint="open it again"
            )

    def _look(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_size, found.st_mtime_ns


def _is_in_use(path: str) -> bool:
    """By who writes it, or by a writer that was killed, of whom it still has a log."""
    try:
        return os.path.exists(f"{path}-shm") or os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False
