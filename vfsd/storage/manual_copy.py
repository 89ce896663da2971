"""Backups that are copied back by hand, as by `cp -a`, over a store whose last process was killed.

That store still has SQLite's log of what was done last.  SQLite would play it into whatever catalog
it finds beside it, and what comes out is neither: the old one, or a malformed one.  So a backup has
a log of its own beside its catalog, an empty one, which a copy puts in the place of the other.
SQLite takes it away whenever the last who has the backup open closes it; then it is laid again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vfsd.disk.store_layout import StoreDirectory

_HOW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def lay_log(directory: StoreDirectory) -> None:
    """Give a backup its empty log, if it has none; nothing for other stores.

    A log that is there stays as it is: others may have the backup open, or were killed.  No error
    where nothing can be written: SQLite could not take it away either.
    """
    if not directory.backup_sign.exists():
        return
    log, _ = directory.beside_catalog()
    with suppress(OSError):
        os.close(os.open(log, _HOW, 0o600))


@contextmanager
def with_log(directory: StoreDirectory) -> Iterator[None]:
    """For a block that opens the catalog, and closes it."""
    try:
        yield
    finally:
        lay_log(directory)
