"""Whether anybody has an SQLite file open, so that another may take its place."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

_LOCKS_AT = 0x40000000
_LOCKS = 512
"""The bytes of the file on which SQLite's processes hold locks while they have it open."""


def come_to_rest(path: Path) -> bool:
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
