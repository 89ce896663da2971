"""Where a catalog is: URLs of databases, as SQLAlchemy has them."""

from __future__ import annotations

import os
from pathlib import Path
from reprlib import repr as shown
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from vfsd.errors import ExtraMissingError, UsageError

_FILE = "sqlite:///"
_HIDDEN = "***"
_SECRETS = frozenset({"password", "passwd", "passfile", "sslpassword", "odbc_connect"})
"""Options of drivers that hold a password, or say where one is."""
_URL_HINT = "write sqlite:////DIR/FILE, or postgresql+psycopg://USER@HOST/DATABASE"

_ESCAPE_HINT = "write @ in a password as %40"


def parsed_url(url: str) -> sa.URL:
    """The parts of a URL.  A question mark begins options, unless it is in a directory's name.

    Raises `UsageError` for what is no URL.
    """
    if not isinstance(url, str):
        raise UsageError(
            f"the catalog must be the URL of a database, got {shown(url)}", hint=_URL_HINT
        )
    path = url.removeprefix(_FILE)
    folder = os.path.dirname(path)
    if path != url and "?" in folder and os.path.isdir(folder):
        return sa.URL.create("sqlite", database=path)
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):  # which may have quoted a part of a password
        raise UsageError(
            "the catalog's URL cannot be parsed", hint=f"{_URL_HINT}; {_ESCAPE_HINT}"
        ) from None
    if "@" in (parsed.host or ""):
        raise UsageError("the catalog's URL has more than one @ before its host", hint=_ESCAPE_HINT)
    return parsed


def redacted_url(url: str | sa.URL) -> str:
    """A URL as it may be told to anybody: without its passwords.  Raises as `parsed_url`."""
    parsed = parsed_url(url) if isinstance(url, str) else url
    hidden = {name: _HIDDEN for name in parsed.query if name.lower() in _SECRETS}
    # In options stars are written by their numbers.
    return str(parsed.update_query_dict(hidden)).replace(quote(_HIDDEN), _HIDDEN)


def has_password(url: str) -> bool:
    """Whether a URL holds what is for its owner alone.  Raises as `parsed_url`."""
    parsed = parsed_url(url)
    return parsed.password is not None or any(name.lower() in _SECRETS for name in parsed.query)


def require_database(url: str) -> None:
    """Whether there could be a catalog at a URL; nothing is opened.

    Raises `UsageError` for what is no URL of a database, or of a kind of which SQLAlchemy knows
    nothing, and `ExtraMissingError` where that kind's driver is not installed.
    """
    try:
        parsed_url(url).get_dialect().import_dbapi()
    except ArgumentError as error:
        raise UsageError(
            f"the catalog's URL names no kind of database: {error}", hint=_URL_HINT
        ) from error
    except ImportError as error:
        raise ExtraMissingError(
            f"the driver of that database is not installed: {error}",
            hint="pip install 'vfsd[postgresql]' for postgresql+psycopg://, else that driver",
        ) from error


def absolute_url(url: str) -> str:
    """A URL that leads to the same database whatever the working directory is.

    Raises `UsageError` for a database in memory, which nobody would find again, and as
    `require_database`.
    """
    require_database(url)
    parsed = parsed_url(url)
    if parsed.get_backend_name() != "sqlite":
        return url
    path = parsed.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise UsageError(
            f"the catalog must be a file, which lasts longer than this process, got {url}",
            hint=_URL_HINT,
        )
    if os.path.isabs(path):
        return url
    return parsed.set(database=os.path.abspath(path)).render_as_string(hide_password=False)


def sqlite_files(path: str) -> list[Path]:
    """An SQLite file, and what SQLite has beside it: its log, shared memory and journal."""
    return [Path(f"{path}{side}") for side in ("", "-wal", "-shm", "-journal")]
