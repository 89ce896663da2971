"""Connections to an SQLite file whose directory may be moved while it is open.

SQLite opens the log of a database by name, and the last connection that closes deletes the log by
that name.  Where the directory was moved and another store took its path, that name belongs to the
other store's log.  A connection whose file is no longer at its name is therefore not closed: it
stays open until the process ends, and SQLite plays the log in when the store is opened next.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from vfsd.core.atfork import keep_for_good
from vfsd.errors import StoreError


class PlacedConnection(sqlite3.Connection):
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
        keep_for_good(self)

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
