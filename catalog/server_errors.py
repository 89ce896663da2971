"""What it means to users when a database server fails, told by its codes (SQLSTATE).

Its texts are in any language, and have names of databases, users and tables in them.
"""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from vfsd.catalog.writer_connection import busy
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NoSpaceError,
    ReadOnlyError,
    StoreError,
    UnreachableError,
)

LOST_ON_SERVER = (
    "put back a dump of the database that was made with its own tools (`pg_dump`, `pg_restore`); "
    "all bytes of videos are whole files below objects/, and are not lost with it"
)
"""What to do where a catalog on a server is damaged or gone."""

GONE = "see that the server runs; what is open, a mount as well, goes on when it is there again"
"""What to do where a server does not answer any more."""
_REACH = (
    "see that the server runs and takes more connections, that the database and the user are "
    "there, and that the password is right: ~/.pgpass of who runs vfsd may hold it"
)
_AGAIN = "try again"
_NONE_LEFT = re.compile(
    r"FATAL:\s+(sorry, too many clients already|remaining connection slots are reserved for "
    r'[^"]*|too many connections for (role|database) "[^"]*")$'
)
"""How a server that speaks English ends what it tells of there being no connection left, which has
no code before one is made.  In other languages it is told as not to be reached."""


def error_of_server(error: DBAPIError, patience: float) -> StoreError | ReadOnlyError | None:
    """What a server's error means; None for a mistake of ours.

    `patience` is how many seconds others were waited for at most.
    """
    text = str(error.orig).strip()
    code = _code(error)
    if code is None:
        return _without_code(error, text)
    if code == "55P03":
        return busy("somebody else", patience)
    found = _meant(code, text)
    if found is not None:
        return found
    if isinstance(error, OperationalError):
        return StoreError(f"the catalog's server answered: {text}", hint=GONE)
    return None


def _meant(code: str, text: str) -> StoreError | ReadOnlyError | None:
    for start, (make, message, hint) in _MEANINGS.items():
        if code.startswith(start):
            return make(f"{message}: {text}", hint=hint)
    return None


def _code(error: DBAPIError) -> str | None:
    for name in ("sqlstate", "pgcode"):  # of psycopg and others, and of psycopg2
        found = getattr(error.orig, name, None)
        if isinstance(found, str):
            return found
    return None


def _without_code(error: DBAPIError, text: str) -> StoreError | ReadOnlyError | None:
    """Drivers have none where they were not let in, nor where nobody answers."""
    if error.connection_invalidated:
        return UnreachableError(f"the catalog's server has gone: {text}", hint=GONE)
    is_connecting = error.statement is None
    if is_connecting and isinstance(error, ProgrammingError):
        return StoreError(
            f"the catalog's URL has options that its driver does not take: {text}",
            hint="take those that libpq has; the URL of a store is in its vfsd-store.json",
        )
    if isinstance(error, OperationalError):
        if is_connecting and _NONE_LEFT.search(text):
            return _meant("53300", text)
        if is_connecting:
            return UnreachableError(
                f"the catalog's database cannot be reached: {text}", hint=_REACH
            )
        return StoreError(f"the catalog's server answered: {text}", hint=GONE)
    return None


_MEANINGS: dict[str, tuple[type[StoreError] | type[ReadOnlyError], str, str]] = {
    "08": (UnreachableError, "the catalog's server has gone", GONE),
    "57P0": (UnreachableError, "the catalog's server has gone", GONE),
    "25P03": (UnreachableError, "the catalog's server has ended a connection", GONE),
    "25006": (
        ReadOnlyError,
        "the catalog's database may only be read",
        "write by way of the server that it is a copy of",
    ),
    "28": (
        UnreachableError,
        "the catalog's server lets nobody in by that name and password",
        _REACH,
    ),
    "3D000": (UnreachableError, "the catalog's database is not there", LOST_ON_SERVER),
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
    "40001": (BusyError, "others have changed the catalog at the same time", _AGAIN),
    "40P01": (BusyError, "others were changing the catalog at the same time", _AGAIN),
    "57014": (BusyError, "the catalog's server has given up on it", "try again; see its timeouts"),
    "58": (StoreError, "the catalog cannot be read or written", "see the log of the server"),
    "XX": (IntegrityError, "the catalog is damaged", LOST_ON_SERVER),
}
"""By the beginning of a code: the first that fits."""
