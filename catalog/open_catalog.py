"""Opens and creates catalogs: checks the owner, and upgrades the schema.

`Catalog` has the public form of these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.database_url import is_shareable, redacted_url
from vfsd.catalog.engine import DEFAULT_STALENESS, Database, current_revision
from vfsd.catalog.error_mapping import RECOVERY_HINT, SERVER_RECOVERY_HINT
from vfsd.catalog.schema import store_identity
from vfsd.errors import ExistsError, NoStoreError, StoreError, StoreVersionError

REVISIONS = ("v1",)
"""Every revision in `vfsd.catalog.migrations.versions`, in order; a test compares them."""
_SCRIPTS = "vfsd.catalog:migrations"
"""Alembic's directory with the revisions."""


def open_database(
    url: str,
    *,
    read_only: bool = False,
    store_id: str | None = None,
    staleness: float | None = DEFAULT_STALENESS,
    home: str | None = None,
    require_in_place: Callable[[], None] = lambda: None,
) -> Database:
    """Open an existing catalog; see `Catalog.open`."""
    database = Database(
        url, read_only=read_only, staleness=staleness, require_in_place=require_in_place
    )
    if database.is_postgresql:
        database.home = home
    try:
        with database.reading() as connection:
            revision, owner = current_revision(connection), _read_owner(connection)
            if database.is_postgresql and home is not None and revision == newest_revision():
                from vfsd.catalog.homes import Homes  # SQLite catalogs have none

                database.known_home = Homes(connection).find(home)
        _require_known_revision(revision)
        _require_there(database, revision)
        if not database.is_sqlite:
            database.server.note_catalog()
        if read_only and revision != newest_revision():
            raise StoreVersionError(
                f"the catalog is at revision {revision} and must be upgraded to "
                f"{newest_revision()} first",
                hint="open the store for writing once, for example with `vfsd ls`",
            )
        _require_owner(database, owner, store_id)
        is_unowned = owner is None and store_id is not None
        if not read_only and (revision != newest_revision() or is_unowned):
            with database.writing() as connection:
                if revision != newest_revision():
                    _upgrade_schema(connection)
                _claim_database(database, connection, store_id)
    except BaseException:
        database.close()
        raise
    return database


def create_database(url: str, store_id: str | None) -> Database:
    """Open a catalog, and create it if the database is empty; see `Catalog.create`."""
    database = Database(url)
    try:
        with database.writing() as connection:
            revision = current_revision(connection)
            _require_known_revision(revision)
            if revision is not None and store_id not in (None, _read_owner(connection)):
                raise database_taken_error(url)
            if revision != newest_revision():
                _upgrade_schema(connection)
            _claim_database(database, connection, store_id)
    except BaseException:
        database.close()
        raise
    return database


def is_catalog(url: str) -> bool:
    """Return whether there is a catalog; see `Catalog.is_at`."""
    with closing(Database(url, read_only=True)) as database:
        if database.path and not Path(database.path).exists():
            return False
        with database.reading() as connection:
            if current_revision(connection) is not None:
                return True
            # A database on a server may have other tables; a file must have only these.
            if database.path and sa.inspect(connection).get_table_names():
                raise ExistsError(
                    f"{database.path} is a database of another program",
                    hint="give the path of a new file: every store has its own",
                )
    return False


def owner_of(url: str) -> str | None:
    """Return the id of the store that owns the catalog; None if it is not set."""
    with closing(Database(url, read_only=True)) as database, database.reading() as connection:
        return _read_owner(connection)


def copy_database(url: str, path: Path, patience: float | None) -> None:
    """Copy a catalog of any revision; see `Catalog.copy_at`."""
    with closing(Database(url, read_only=True, patience=patience)) as database:
        with database.reading() as connection:
            _require_there(database, current_revision(connection))
        database.copy_to(path)


def newest_revision() -> str:
    """Return the revision that this version of vfsd uses."""
    return REVISIONS[-1]


def database_taken_error(url: str) -> ExistsError:
    """Return the error for creating a catalog where another store has its own."""
    hint = "give another database: every store has its own"
    if is_shareable(url):
        hint += "; `vfsd join` makes another directory for the store that has this one"
    return ExistsError(f"there is already a catalog at {redacted_url(url)}", hint=hint)


def _require_known_revision(revision: str | None) -> None:
    """Raises `StoreVersionError` for a catalog of an unknown, usually newer, revision."""
    if revision is not None and revision not in REVISIONS:
        raise StoreVersionError(
            f"the catalog is at revision {revision}, this vfsd supports up to {newest_revision()}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )


def _require_there(database: Database, revision: str | None) -> None:
    """Raises `NoStoreError` for a database without a catalog."""
    if revision is None:
        raise NoStoreError(
            f"no catalog found at {redacted_url(database.url)}",
            hint=RECOVERY_HINT if database.is_sqlite else SERVER_RECOVERY_HINT,
        )


def _upgrade_schema(connection: Connection) -> None:
    """Run the missing migrations, inside the transaction of `connection`."""
    from alembic import command  # slow to import, and only needed here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _claim_database(database: Database, connection: Connection, store_id: str | None) -> None:
    """Set the owner, unless there is one.  Raises `StoreError` if it is another store."""
    owner = _read_owner(connection)
    _require_owner(database, owner, store_id)
    if owner is None and store_id is not None:
        _write_owner(connection, store_id)


def _read_owner(connection: Connection) -> str | None:
    """Return the id of the store that owns the catalog; None if it is not set, or without a
    catalog.
    """
    if not sa.inspect(connection).has_table(store_identity.name):
        return None
    found = connection.execute(sa.select(store_identity.c.id)).scalar()
    return None if found is None else str(found)


def _write_owner(connection: Connection, store_id: str) -> None:
    """Set the owner of a catalog that has none."""
    connection.execute(sa.insert(store_identity).values(one=1, id=store_id))


def _require_owner(database: Database, owner: str | None, store_id: str | None) -> None:
    if None not in (owner, store_id) and owner != store_id:
        raise StoreError(
            f"the catalog at {redacted_url(database.url)} belongs to another store: its owner is "
            f"{owner!r}, and this store is {store_id!r}",
            hint='set "catalog" in vfsd-store.json to the catalog of this store; if the marker '
            'file was lost or overwritten, set "id" there to the owner above',
        )
