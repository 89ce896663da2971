"""Maps errors of SQLite and of database servers (by SQLSTATE) to vfsd errors."""

from __future__ import annotations

import errno
import mmap
import os
import re
import sqlite3
from tempfile import TemporaryFile

from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, ProgrammingError

from vfsd.catalog.sqlite_connections import locked_error
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NoSpaceError,
    ReadOnlyError,
    StoreError,
    UnreachableError,
)

SERVER_RECOVERY_HINT = (
    "put back a dump of the database that was made with its own tools (`pg_dump`, `pg_restore`); "
    "all bytes of videos are whole files below objects/, and are not lost with it"
)
"""What to do where a catalog on a server is damaged or gone."""

SERVER_GONE_HINT = (
    "see that the server runs; what is open, a mount as well, goes on when it is there again"
)
"""What to do where a server does not answer any more."""
_UNREACHABLE_HINT = (
    "see that the server runs and takes more connections, that the database and the user are "
    "there, and that the password is right: ~/.pgpass of who runs vfsd may hold it"
)
_RETRY_HINT = "try again"
_NO_CONNECTIONS_LEFT = re.compile(
    r"FATAL:\s+(sorry, too many clients already|remaining connection slots are reserved for "
    r'[^"]*|too many connections for (role|database) "[^"]*")$'
)
"""How a server that speaks English ends what it tells of there being no connection left, which has
no code before one is made.  In other languages it is told as not to be reached."""


def server_error(error: DBAPIError, patience: float) -> StoreError | ReadOnlyError | None:
    """What a server's error means; None for a mistake of ours.

    `patience` is how many seconds others were waited for at most.
    """
    text = str(error.orig).strip()
    code = _sqlstate(error)
    if code is None:
        return _without_code(error, text)
    if code == "55P03":
        return locked_error("somebody else", patience)
    found = _error_of_sqlstate(code, text)
    if found is not None:
        return found
    if isinstance(error, OperationalError):
        return StoreError(f"the catalog's server answered: {text}", hint=SERVER_GONE_HINT)
    return None


def _error_of_sqlstate(code: str, text: str) -> StoreError | ReadOnlyError | None:
    for start, (make, message, hint) in _MEANINGS.items():
        if code.startswith(start):
            return make(f"{message}: {text}", hint=hint)
    return None


def _sqlstate(error: DBAPIError) -> str | None:
    for name in ("sqlstate", "pgcode"):  # of psycopg and others, and of psycopg2
        found = getattr(error.orig, name, None)
        if isinstance(found, str):
            return found
    return None


def _without_code(error: DBAPIError, text: str) -> StoreError | ReadOnlyError | None:
    """Drivers have none where they were not let in, nor where nobody answers."""
    if error.connection_invalidated:
        return UnreachableError(f"the catalog's server has gone: {text}", hint=SERVER_GONE_HINT)
    is_connecting = error.statement is None
    if is_connecting and isinstance(error, ProgrammingError):
        return StoreError(
            f"the catalog's URL has options that its driver does not take: {text}",
            hint="take those that libpq has; the URL of a store is in its vfsd-store.json",
        )
    if isinstance(error, OperationalError):
        if is_connecting and _NO_CONNECTIONS_LEFT.search(text):
            return _error_of_sqlstate("53300", text)
        if is_connecting:
            return UnreachableError(
                f"the catalog's database cannot be reached: {text}", hint=_UNREACHABLE_HINT
            )
        return StoreError(f"the catalog's server answered: {text}", hint=SERVER_GONE_HINT)
    return None


_MEANINGS: dict[str, tuple[type[StoreError] | type[ReadOnlyError], str, str]] = {
    "08": (UnreachableError, "the catalog's server has gone", SERVER_GONE_HINT),
    "57P0": (UnreachableError, "the catalog's server has gone", SERVER_GONE_HINT),
    "25P03": (UnreachableError, "the catalog's server has ended a connection", SERVER_GONE_HINT),
    "25006": (
        ReadOnlyError,
        "the catalog's database may only be read",
        "write by way of the server that it is a copy of",
    ),
    "28": (
        UnreachableError,
        "the catalog's server lets nobody in by that name and password",
        _UNREACHABLE_HINT,
    ),
    "3D000": (UnreachableError, "the catalog's database is not there", SERVER_RECOVERY_HINT),
    "42501": (
        ReadOnlyError,
        "the database user may not do this to the catalog",
        "GRANT it SELECT, INSERT, UPDATE and DELETE on its tables and USAGE on its sequences, also "
        "on those that a new version has made; only the owner of the tables can bring a catalog to "
        "a new version",
    ),
    "53100": (
        NoSpaceError,
        "the disk that holds the catalog is full",
        "make room on the database server",
    ),
    "53300": (
        BusyError,
        "the catalog's server takes no more connections",
        "try again; or raise its max_connections: a process of vfsd takes up to 64",
    ),
    "53": (StoreError, "the catalog's server lacks what it needs", "see the log of the server"),
    "40001": (BusyError, "others have changed the catalog at the same time", _RETRY_HINT),
    "40P01": (BusyError, "others were changing the catalog at the same time", _RETRY_HINT),
    "57014": (BusyError, "the catalog's server has given up on it", "try again; see its timeouts"),
    "58": (StoreError, "the catalog cannot be read or written", "see the log of the server"),
    "XX": (IntegrityError, "the catalog is damaged", SERVER_RECOVERY_HINT),
}
"""By the beginning of a code: the first that fits."""


_SHARED_BYTES = 1 << 16
"""SQLite's shared memory takes 32 KiB at first, and its log at least a page."""

RECOVERY_HINT = (
    "put it back from a backup (`vfsd restore`), or see `.recover` of sqlite3; all bytes of videos "
    "are whole files below objects/, and are not lost with it"
)
"""What to do where the catalog is damaged or gone."""


_NO_MAPPING = "SQLITE_IOERR_SHMMAP"
_NOT_UTF8 = "decode to UTF-8"


def is_encoding_error(error: sqlite3.DatabaseError) -> bool:
    """Whether it is about a value: text that is none."""
    return _NOT_UTF8 in str(error)


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


def _sqlite_code(error: DatabaseError | sqlite3.DatabaseError) -> str | None:
    """SQLite's name of its extended result code."""
    cause = error.orig if isinstance(error, DatabaseError) else error
    return getattr(cause, "sqlite_errorname", None)


def mapped_error(
    error: DatabaseError | sqlite3.DatabaseError, path: str | None, patience: float
) -> StoreError | ReadOnlyError | None:
    """What the database's error means; None for a mistake of ours.

    `path` is the database's file, if it is one, and `patience` how many seconds others were waited
    for at most.
    """
    if isinstance(error, DatabaseError) and not isinstance(error.orig, sqlite3.Error):
        return server_error(error, patience)
    text = str(error.orig) if isinstance(error, DatabaseError) else str(error)
    # SQLite has one answer to everything that goes wrong with the files next to the database.
    failed = "disk I/O error" in text or "unable to open" in text
    if "locked" in text or "busy" in text:
        return locked_error("another process", patience)
    if "full" in text or (failed and path is not None and _is_full(path)):
        return NoSpaceError(
            "the disk that holds the catalog is full", hint="delete something, or make room on it"
        )
    if failed and path is not None and _is_read_only(path):
        return ReadOnlyError(
            "the catalog cannot be written: its disk is read-only",
            hint="a disk that fails becomes read-only: `dmesg` says more; then run `vfsd fsck`",
        )
    if (
        failed
        and path is not None
        and _sqlite_code(error) == _NO_MAPPING
        and not _is_mappable(path)
    ):
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
    if _NOT_UTF8 in text:
        return IntegrityError(
            f"the catalog {path or ''} has text that cannot be decoded: {text}", hint=RECOVERY_HINT
        )
    if "malformed" in text or "not a database" in text:
        return IntegrityError(f"the catalog {path or ''} is damaged: {text}", hint=RECOVERY_HINT)
    if "readonly" in text or "read-only" in text:
        return ReadOnlyError("the catalog cannot be written: no permission, or a read-only disk")
    if type(error) in (OperationalError, sqlite3.OperationalError):
        return StoreError(f"the catalog answered: {text}")
    return None
