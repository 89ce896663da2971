"""Opens a catalog, upgrades its schema and runs transactions.

A `Transaction` provides one repository for each subject, created at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.audio_tracks import AudioTracks
from vfsd.catalog.clock_history import ClockHistory
from vfsd.catalog.database_url import redacted_url
from vfsd.catalog.derived_usage import DerivedUsage, EvictionLog
from vfsd.catalog.detections import Detections
from vfsd.catalog.engine import ChangeWatch, Database, current_revision
from vfsd.catalog.error_mapping import RECOVERY_HINT, SERVER_RECOVERY_HINT
from vfsd.catalog.integrity import IntegrityLog
from vfsd.catalog.read_history import LoggedReads, TilingDecisions
from vfsd.catalog.retention import OriginalPolicies
from vfsd.catalog.schema import store_identity
from vfsd.catalog.segments import MeasuredCosts, Segments
from vfsd.catalog.tree import Tree
from vfsd.catalog.videos import Objects, Videos
from vfsd.core.process_control import lazy
from vfsd.errors import ExistsError, NoStoreError, StoreError, StoreVersionError

REVISIONS = ("v1",)
"""Every revision in `vfsd.catalog.migrations.versions`, in order; a test compares them."""
_SCRIPTS = "vfsd.catalog:migrations"
"""Alembic's directory with the revisions."""


def newest_revision() -> str:
    """Return the revision that this version of vfsd uses."""
    return REVISIONS[-1]


def require_known_revision(revision: str | None) -> None:
    """Raises `StoreVersionError` for a catalog of an unknown, usually newer, revision."""
    if revision is not None and revision not in REVISIONS:
        raise StoreVersionError(
            f"the catalog is at revision {revision}, this vfsd supports up to {newest_revision()}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )


def upgrade_schema(connection: Connection) -> None:
    """Run the missing migrations, inside the transaction of `connection`."""
    from alembic import command  # slow to import, and only needed here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def read_owner(connection: Connection) -> str | None:
    """Return the id of the store that owns the catalog; None if it is not set, or without a
    catalog.
    """
    if not sa.inspect(connection).has_table(store_identity.name):
        return None
    found = connection.execute(sa.select(store_identity.c.id)).scalar()
    return None if found is None else str(found)


def write_owner(connection: Connection, store_id: str) -> None:
    """Set the owner of a catalog that has none."""
    connection.execute(sa.insert(store_identity).values(one=1, id=store_id))


class Transaction:
    """One consistent view of the catalog, or one change that is committed as a whole.

    Repositories are created at first use: most transactions need two or three.  Their modules are
    imported before, because a child forked during another thread's import could never import that
    module.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @lazy
    def tree(self) -> Tree:
        return Tree(self._connection)

    @lazy
    def videos(self) -> Videos:
        return Videos(self._connection)

    @lazy
    def objects(self) -> Objects:
        return Objects(self._connection)

    @lazy
    def segments(self) -> Segments:
        return Segments(self._connection)

    @lazy
    def costs(self) -> MeasuredCosts:
        return MeasuredCosts(self._connection)

    @lazy
    def detections(self) -> Detections:
        return Detections(self._connection)

    @lazy
    def read_log(self) -> LoggedReads:
        return LoggedReads(self._connection)

    @lazy
    def tiling_decisions(self) -> TilingDecisions:
        return TilingDecisions(self._connection)

    @lazy
    def derived_usage(self) -> DerivedUsage:
        return DerivedUsage(self._connection)

    @lazy
    def evictions(self) -> EvictionLog:
        return EvictionLog(self._connection)

    @lazy
    def audio_tracks(self) -> AudioTracks:
        return AudioTracks(self._connection)

    @lazy
    def retention(self) -> OriginalPolicies:
        return OriginalPolicies(self._connection)

    @lazy
    def clock_history(self) -> ClockHistory:
        return ClockHistory(self._connection)

    @lazy
    def integrity(self) -> IntegrityLog:
        return IntegrityLog(self._connection)


class CatalogDatabase:
    """A database with a schema.  Thread-safe, and safe to use after a fork."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(
        cls,
        url: str,
        *,
        read_only: bool = False,
        store_id: str | None = None,
        require_in_place: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open an existing catalog, and upgrade its schema unless `read_only`.

        Raises `NoStoreError`, `StoreVersionError` (a newer vfsd wrote it), `StoreError` for the
        catalog of another store, and `BusyError`.

        Args:
            url: The database URL.
            read_only: Refuse to write.
            store_id: The id of the store that must own the catalog.  Unless `read_only`, it is
                set if the catalog has no owner yet.
            require_in_place: Called after each connection and before each change; raises if another
                store has replaced this one.
        """
        database = Database(url, read_only=read_only, require_in_place=require_in_place)
        try:
            with database.reading() as connection:
                revision, owner = current_revision(connection), read_owner(connection)
            require_known_revision(revision)
            _require_there(database, revision)
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
                        upgrade_schema(connection)
                    _claim_database(database, connection, store_id)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @classmethod
    def create(cls, url: str, *, store_id: str | None = None) -> Self:
        """Open a catalog, and create it if the database is empty.

        With `store_id`, it is created for that store.  Raises `ExistsError` for an existing catalog
        of another or unknown owner, without changing it.
        """
        database = Database(url)
        try:
            with database.writing() as connection:
                revision = current_revision(connection)
                require_known_revision(revision)
                if revision is not None and store_id not in (None, read_owner(connection)):
                    raise database_taken_error(url)
                if revision != newest_revision():
                    upgrade_schema(connection)
                _claim_database(database, connection, store_id)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @classmethod
    def is_at(cls, url: str) -> bool:
        """Return whether there is a catalog.  Creates nothing.

        Raises `ExistsError` for an SQLite file with other tables.
        """
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

    @classmethod
    def owner_at(cls, url: str) -> str | None:
        """Return the id of the store that owns the catalog; None if it is not set."""
        with closing(Database(url, read_only=True)) as database, database.reading() as connection:
            return read_owner(connection)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalog {redacted_url(self._database.url)}>"

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Yield a transaction for several reads of the same state.

        Raises `BusyError` if other threads of this process keep all connections for a minute.
        """
        with self._database.reading() as connection:
            yield Transaction(connection)

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[Transaction]:
        """Yield a transaction for changes, committed together at the end or rolled back on an
        error.

        Raises `BusyError` if another process keeps writing for `patience` seconds (default:
        `BUSY_SECONDS`), `NoSpaceError`, and `ReadOnlyError`.
        """
        with self._database.writing(patience) as connection:
            yield Transaction(connection)

    @property
    def path(self) -> str | None:
        """The SQLite file; None on a server."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        return self._database.read_only

    @classmethod
    def copy_at(cls, url: str, path: Path, *, patience: float | None = None) -> None:
        """Copy a catalog of any revision, as `copy_to` does.

        It is opened read-only and not upgraded.  Raises `NoStoreError` if there is none,
        `BusyError` if another process keeps it locked for `patience` seconds (default:
        `BUSY_SECONDS`), and as `copy_to`.
        """
        with closing(Database(url, read_only=True, patience=patience)) as database:
            with database.reading() as connection:
                _require_there(database, current_revision(connection))
            database.copy_to(path)

    def copy_to(self, path: Path) -> None:
        """Copy a consistent snapshot of an SQLite catalog to a new file.

        Raises `IntegrityError` if the catalog is damaged, so that a bad copy never replaces a good
        one, and `sqlite3.Error`.
        """
        self._database.copy_to(path)

    def sync(self) -> None:
        """Return when every committed transaction would survive a power cut."""
        self._database.sync()

    def log_bytes(self) -> int:
        """Return the size of SQLite's log on disk; 0 without one."""
        return self._database.log_bytes()

    def restart_log(self) -> bool:
        """Make room in SQLite's log for more changes, on a full disk.

        False if that is impossible: other connections keep reading, the database file would have to
        grow, or there is no log.
        """
        return self._database.restart_log()

    def damage(self) -> list[str]:
        """Return descriptions of damage that the database finds in its file; empty if there is
        none.
        """
        return self._database.damage()

    def watch(self) -> ChangeWatch:
        """Return an object that cheaply detects changes of the catalog."""
        return self._database.watch()


def database_taken_error(url: str) -> ExistsError:
    """Return the error for creating a catalog where another store has its own."""
    return ExistsError(
        f"there is already a catalog at {redacted_url(url)}",
        hint="give another database: every store has its own",
    )


def _require_there(database: Database, revision: str | None) -> None:
    """Raises `NoStoreError` for a database without a catalog."""
    if revision is None:
        raise NoStoreError(
            f"no catalog found at {redacted_url(database.url)}",
            hint=RECOVERY_HINT if database.is_sqlite else SERVER_RECOVERY_HINT,
        )


def _claim_database(database: Database, connection: Connection, store_id: str | None) -> None:
    """Set the owner, unless there is one.  Raises `StoreError` if it is another store."""
    owner = read_owner(connection)
    _require_owner(database, owner, store_id)
    if owner is None and store_id is not None:
        write_owner(connection, store_id)


def _require_owner(database: Database, owner: str | None, store_id: str | None) -> None:
    if None not in (owner, store_id) and owner != store_id:
        raise StoreError(
            f"the catalog at {redacted_url(database.url)} belongs to another store: its owner is "
            f"{owner!r}, and this store is {store_id!r}",
            hint='set "catalog" in vfsd-store.json to the catalog of this store; if the marker '
            'file was lost or overwritten, set "id" there to the owner above',
        )
