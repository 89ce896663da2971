"""What it means to users when the database fails."""

from __future__ import annotations

import errno
import mmap
import os
import sqlite3
from tempfile import TemporaryFile

from sqlalchemy.exc import DatabaseError, OperationalError

from vfsd.catalog.server_errors import error_of_server
from vfsd.catalog.writer_connection import busy
from vfsd.errors import IntegrityError, NoSpaceError, ReadOnlyError, StoreError

_SHARED_BYTES = 1 << 16
"""SQLite's shared memory takes 32 KiB at first, and its log at least a page."""

LOST = (
    "put it back from a backup (`vfsd restore`), or see `.recover` of sqlite3; all bytes of videos "
    "are whole files below objects/, and are not lost with it"
)
"""What to do where the catalog is damaged or gone."""


_NO_MAPPING = "SQLITE_IOERR_SHMMAP"
_NO_TEXT = "decode to UTF-8"


def is_of_text(error: sqlite3.DatabaseError) -> bool:
    """Whether it is about a value: text that is none."""
    return _NO_TEXT in str(error)


def _is_full(path: str) -> bool:
    """Whether the disk has no room for SQLite's shared memory, the first that it asks for."""
    found = os.statvfs(os.path.dirname(path) or ".")
    return found.f_bavail * found.f_frsize < _SHARED_BYTES


def _is_read_only(path: str) -> bool:
    """Whether the disk became read-only, as after an error; the kernel tells it in two ways."""
    folder = os.path.dirname(path) or "."
    try:
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return True
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def _is_mappable(path: str) -> bool:
    """Whether files of that folder can be mapped to be shared, as many network disks and FUSE file
    systems do not allow."""
    try:
        with TemporaryFile(dir=os.path.dirname(path) or ".") as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_SHARED).close()
    except OSError as error:
        return error.errno != errno.ENODEV
    return True


def _code(error: DatabaseError | sqlite3.DatabaseError) -> str | None:
    """SQLite's name of its extended result code."""
    cause = error.orig if isinstance(error, DatabaseError) else error
    return getattr(cause, "sqlite_errorname", None)


def error_for_users(
    error: DatabaseError | sqlite3.DatabaseError, path: str | None, patience: float
) -> StoreError | ReadOnlyError | None:
    """What the database's error means; None for a mistake of ours.

    `path` is the database's file, if it is one, and `patience` how many seconds others were waited
    for at most.
    """
    if isinstance(error, DatabaseError) and not isinstance(error.orig, sqlite3.Error):
        return error_of_server(error, patience)
    text = str(error.orig) if isinstance(error, DatabaseError) else str(error)
    # SQLite has one answer to everything that goes wrong with the files next to the database.
    failed = "disk I/O error" in text or "unable to open" in text
    if "locked" in text or "busy" in text:
        return busy("another process", patience)
    if "full" in text or (failed and path is not None and _is_full(path)):
        return NoSpaceError(
            "the disk that holds the catalog is full", hint="delete something, or make room on it"
        )
    if failed and path is not None and _is_read_only(path):
        return ReadOnlyError(
            "the catalog cannot be written: its disk is read-only",
            hint="a disk that fails becomes read-only: `dmesg` says more; then run `vfsd fsck`",
        )
    if failed and path is not None and _code(error) == _NO_MAPPING and not _is_mappable(path):
        return StoreError(
            f"the catalog {path} cannot be used: its disk has no shared mappings of files, "
            "which SQLite needs",
            hint="keep the catalog on a local disk, or on a server: `vfsd init --catalog URL`",
        )
    if failed:
        return StoreError(
            f"the catalog {path or ''} cannot be read or written: {text}",
            hint="look at permissions, quotas, the limit of open files, and what the kernel says "
            "of the disk; then run `vfsd fsck`",
        )
    if _NO_TEXT in text:
        return IntegrityError(
            f"the catalog {path or ''} has text that cannot be decoded: {text}", hint=LOST
        )
    if "malformed" in text or "not a database" in text:
        return IntegrityError(f"the catalog {path or ''} is damaged: {text}", hint=LOST)
    if "readonly" in text or "read-only" in text:
        return ReadOnlyError("the catalog cannot be written: no permission, or a read-only disk")
    if type(error) in (OperationalError, sqlite3.OperationalError):
        return StoreError(f"the catalog answered: {text}")
    return None
