"""Parses and checks database URLs in the syntax of SQLAlchemy."""

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
"""Driver options that contain a password, or the path to one."""
_URL_HINT = "for example sqlite:////DIR/FILE or postgresql+psycopg://USER@HOST/DATABASE"

_ESCAPE_HINT = "write @ in a password as %40"


def parsed_url(url: str) -> sa.URL:
    """Parse a URL.  A question mark starts the options, unless it is part of an existing directory.

    Raises `UsageError`.
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
    except (ArgumentError, ValueError):  # whose text may quote a part of a password
        raise UsageError(
            "the catalog's URL cannot be parsed", hint=f"{_URL_HINT}; {_ESCAPE_HINT}"
        ) from None
    if "@" in (parsed.host or ""):
        raise UsageError(
            "the catalog's URL must not have more than one @ before its host", hint=_ESCAPE_HINT
        )
    return parsed


def redacted_url(url: str | sa.URL) -> str:
    """Return a URL without its passwords, for logs and messages.  Raises as `parsed_url`."""
    parsed = parsed_url(url) if isinstance(url, str) else url
    hidden = {name: _HIDDEN for name in parsed.query if name.lower() in _SECRETS}
    # Options are percent-encoded, so the stars are, too.
    return str(parsed.update_query_dict(hidden)).replace(quote(_HIDDEN), _HIDDEN)


def has_password(url: str) -> bool:
    """Return whether a URL contains a secret.  Raises as `parsed_url`."""
    parsed = parsed_url(url)
    return parsed.password is not None or any(name.lower() in _SECRETS for name in parsed.query)


def without_password(url: str) -> str:
    """Return a URL without any secret, for a host that has its own.  Raises as `parsed_url`."""
    parsed = parsed_url(url)
    kept = {name: value for name, value in parsed.query.items() if name.lower() not in _SECRETS}
    public = sa.URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database, kept
    )
    return public.render_as_string(hide_password=False)


def is_shareable(url: str) -> bool:
    """Return whether several store directories can use one catalog at this URL."""
    return parsed_url(url).get_backend_name() == "postgresql"


def require_database(url: str) -> None:
    """Check that a URL could be that of a catalog, without opening anything.

    Raises `UsageError` for an invalid URL or an unknown kind of database, and `ExtraMissingError`
    if the driver is not installed.
    """
    try:
        parsed_url(url).get_dialect().import_dbapi()
    except ArgumentError as error:
        raise UsageError(
            f"the catalog's URL must name a kind of database: {error}", hint=_URL_HINT
        ) from error
    except ImportError as error:
        raise ExtraMissingError(
            f"the database driver is not installed: {error}",
            hint="pip install 'vfsd[postgresql]' for postgresql+psycopg://, or install the driver",
        ) from error


def absolute_url(url: str) -> str:
    """Return a URL that does not depend on the working directory.

    Raises `UsageError` for a database in memory, and as `require_database`.
    """
    require_database(url)
    parsed = parsed_url(url)
    if parsed.get_backend_name() != "sqlite":
        return url
    path = parsed.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise UsageError(
            f"the catalog must be a file, not a database in memory, got {url}",
            hint=_URL_HINT,
        )
    if os.path.isabs(path):
        return url
    return parsed.set(database=os.path.abspath(path)).render_as_string(hide_password=False)


def sqlite_files(path: str) -> list[Path]:
    """Return the paths of an SQLite file and of its log, shared memory and journal."""
    return [Path(f"{path}{side}") for side in ("", "-wal", "-shm", "-journal")]
