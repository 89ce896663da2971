"""Maps errors of SQLite and of database servers (by SQLSTATE) to vfsd errors."""

from __future__ import annotations

import errno
import mmap
import os
import re
import sqlite3
from tempfile import TemporaryFile

from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, ProgrammingError

from vfsd.errors import (
    BusyError,
    IntegrityError,
    NoSpaceError,
    ReadOnlyError,
    StoreError,
    UnreachableError,
)

SERVER_RECOVERY_HINT = (
    "restore the database from a dump made with its own tools (`pg_dump`, `pg_restore`); "
    "the videos themselves are whole files below objects/, and are not lost"
)
"""Hint for a catalog on a server that is damaged or missing."""

SERVER_GONE_HINT = (
    "check that the server runs; open stores and mounts continue when it is available again"
)
"""Hint for a server that no longer answers."""
_UNREACHABLE_HINT = (
    "check that the server runs and accepts connections, that the database and the user exist, "
    "and that the password is right: ~/.pgpass of the user that runs vfsd may hold it"
)
_RETRY_HINT = "try again"
_NO_CONNECTIONS_LEFT = re.compile(
    r"FATAL:\s+(sorry, too many clients already|remaining connection slots are reserved for "
    r'[^"]*|too many connections for (role|database) "[^"]*")$'
)
"""Matches the message of an English-language server that has no connection left.  There is no
SQLSTATE before a connection is made.  In other languages the server counts as unreachable.
"""


def server_error(error: DBAPIError, patience: float) -> StoreError | ReadOnlyError | None:
    """Return the vfsd error for an error of a database server; None for a bug in vfsd.

    `patience` is the time in seconds that was waited for locks.
    """
    text = str(error.orig).strip()
    code = _sqlstate(error)
    if code is None:
        return _without_code(error, text)
    if code == "55P03":
        return locked_error("another process", patience)
    found = _error_of_sqlstate(code, text)
    if found is not None:
        return found
    if isinstance(error, OperationalError):
        return StoreError(f"the catalog's server reported an error: {text}", hint=SERVER_GONE_HINT)
    return None


def _error_of_sqlstate(code: str, text: str) -> StoreError | ReadOnlyError | None:
    for start, (make, message, hint) in _MEANINGS.items():
        if code.startswith(start):
            return make(f"{message}: {text}", hint=hint)
    return None


def _sqlstate(error: DBAPIError) -> str | None:
    for name in ("sqlstate", "pgcode"):  # psycopg and others; psycopg2
        found = getattr(error.orig, name, None)
        if isinstance(found, str):
            return found
    return None


def _without_code(error: DBAPIError, text: str) -> StoreError | ReadOnlyError | None:
    """Map errors without an SQLSTATE: failed connections and servers that do not answer."""
    if error.connection_invalidated:
        return UnreachableError(f"the catalog's server is gone: {text}", hint=SERVER_GONE_HINT)
    is_connecting = error.statement is None
    if is_connecting and isinstance(error, ProgrammingError):
        return StoreError(
            f"the catalog's URL has options that its driver does not accept: {text}",
            hint="use options of libpq; the URL of a store is in its vfsd-store.json",
        )
    if isinstance(error, OperationalError):
        if is_connecting and _NO_CONNECTIONS_LEFT.search(text):
            return _error_of_sqlstate("53300", text)
        if is_connecting:
            return UnreachableError(
                f"the catalog's database cannot be reached: {text}", hint=_UNREACHABLE_HINT
            )
        return StoreError(f"the catalog's server reported an error: {text}", hint=SERVER_GONE_HINT)
    return None


_MEANINGS: dict[str, tuple[type[StoreError] | type[ReadOnlyError], str, str]] = {
    "08": (UnreachableError, "the catalog's server is gone", SERVER_GONE_HINT),
    "57P0": (UnreachableError, "the catalog's server is gone", SERVER_GONE_HINT),
    "25P03": (UnreachableError, "the catalog's server closed a connection", SERVER_GONE_HINT),
    "25006": (
        ReadOnlyError,
        "the catalog's database is read-only",
        "use the primary server of this replica",
    ),
    "28": (
        UnreachableError,
        "the catalog's server rejects the user name or password",
        _UNREACHABLE_HINT,
    ),
    "3D000": (UnreachableError, "the catalog's database does not exist", SERVER_RECOVERY_HINT),
    "42501": (
        ReadOnlyError,
        "the database user lacks a privilege on the catalog",
        "GRANT it SELECT, INSERT, UPDATE and DELETE on the tables, and USAGE on the sequences, "
        "including those of a newer version; only the owner of the tables can upgrade a catalog",
    ),
    "53100": (
        NoSpaceError,
        "the disk that holds the catalog is full",
        "free some space on the database server",
    ),
    "53300": (
        BusyError,
        "the catalog's server has no connection left",
        "try again, or raise max_connections: a process of vfsd uses up to 8",
    ),
    "53": (StoreError, "the catalog's server is out of resources", "see the log of the server"),
    "40001": (BusyError, "another process changed the catalog at the same time", _RETRY_HINT),
    "40P01": (BusyError, "another process was changing the catalog at the same time", _RETRY_HINT),
    "57014": (
        BusyError,
        "the catalog's server cancelled the statement",
        "try again; see its timeouts",
    ),
    "58": (StoreError, "the catalog cannot be read or written", "see the log of the server"),
    "XX": (IntegrityError, "the catalog is damaged", SERVER_RECOVERY_HINT),
}
"""Errors by SQLSTATE prefix; the first match counts."""


_SHARED_BYTES = 1 << 16
"""SQLite needs 32 KiB of shared memory at first, and at least a page of log."""

RECOVERY_HINT = (
    "restore it from a backup (`vfsd restore`), or see `.recover` of sqlite3; the videos "
    "themselves are whole files below objects/, and are not lost"
)
"""Hint for a catalog file that is damaged or missing."""


_NO_MAPPING = "SQLITE_IOERR_SHMMAP"
_NOT_UTF8 = "decode to UTF-8"


def is_encoding_error(error: sqlite3.DatabaseError) -> bool:
    """Return whether the error is about a text value that is not UTF-8."""
    return _NOT_UTF8 in str(error)


def _is_full(path: str) -> bool:
    """Return whether the disk has no room for SQLite's shared memory, its first allocation."""
    found = os.statvfs(os.path.dirname(path) or ".")
    return found.f_bavail * found.f_frsize < _SHARED_BYTES


def _is_read_only(path: str) -> bool:
    """Return whether the disk became read-only, for example after an I/O error."""
    folder = os.path.dirname(path) or "."
    try:
        # After an I/O error the mount flag may not be set yet, but fsync(2) fails already.
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
    """Return whether files in that directory can be mapped as shared memory.

    Many network and FUSE file systems do not support it.
    """
    try:
        with TemporaryFile(dir=os.path.dirname(path) or ".") as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_SHARED).close()
    except OSError as error:
        return error.errno != errno.ENODEV
    return True


def _sqlite_code(error: DatabaseError | sqlite3.DatabaseError) -> str | None:
    """Return SQLite's name of the extended result code."""
    cause = error.orig if isinstance(error, DatabaseError) else error
    return getattr(cause, "sqlite_errorname", None)


def mapped_error(
    error: DatabaseError | sqlite3.DatabaseError, path: str | None, patience: float
) -> StoreError | ReadOnlyError | None:
    """Return the vfsd error for a database error; None for a bug in vfsd.

    `path` is the file of the database, if it is one.  `patience` is the time in seconds that was
    waited for locks.
    """
    if isinstance(error, DatabaseError) and not isinstance(error.orig, sqlite3.Error):
        return server_error(error, patience)
    text = str(error.orig) if isinstance(error, DatabaseError) else str(error)
    # SQLite reports every problem with the files next to the database with the same message.
    failed = "disk I/O error" in text or "unable to open" in text
    if "locked" in text or "busy" in text:
        return locked_error("another process", patience)
    if "full" in text or (failed and path is not None and _is_full(path)):
        return NoSpaceError("the disk that holds the catalog is full", hint="free some space")
    if failed and path is not None and _is_read_only(path):
        return ReadOnlyError(
            "the catalog cannot be written: its disk is read-only",
            hint="a failing disk becomes read-only: see `dmesg`, then run `vfsd fsck`",
        )
    if (
        failed
        and path is not None
        and _sqlite_code(error) == _NO_MAPPING
        and not _is_mappable(path)
    ):
        return StoreError(
            f"the catalog {path} cannot be used: its file system does not support shared memory "
            "mappings, which SQLite needs",
            hint="put the catalog on a local disk, or on a server: `vfsd init --catalog URL`",
        )
    if failed:
        return StoreError(
            f"the catalog {path or ''} cannot be read or written: {text}",
            hint="check permissions, quotas, the limit of open files, and the kernel log for the "
            "disk; then run `vfsd fsck`",
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
        return StoreError(f"the catalog reported an error: {text}")
    return None


def locked_error(who: str, seconds: float) -> BusyError:
    """Return the error for a catalog that `who` kept locked for `seconds`."""
    return BusyError(
        f"{who} has been writing to the catalog for {seconds:g} seconds",
        hint="try again; `vfsd doctor` shows the processes that have the store open",
    )
