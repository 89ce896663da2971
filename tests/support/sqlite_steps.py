"""The work of SQLite in virtual machine instructions, which does not depend on the load."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection

_AT_ONCE = 100
"""The progress handler is called after this number of instructions."""


class Steps:
    """The number of SQLite instructions that were run."""

    def __init__(self) -> None:
        self.count = 0

    def _add(self) -> None:
        self.count += _AT_ONCE


@contextmanager
def counted(connection: Connection) -> Iterator[Steps]:
    """Count the instructions that the block runs on this connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    steps = Steps()
    driver.set_progress_handler(steps._add, _AT_ONCE)
    try:
        yield steps
    finally:
        driver.set_progress_handler(None, 0)
