"""Opens a catalog, upgrades its schema and runs transactions.

A `Transaction` gives access to one repository for each subject; each is made at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
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
from vfsd.errors import ExistsError, NoStoreError, StoreError, StoreVersionError

REVISIONS = ("v1",)
"""Every step in `vfsd.catalog.migrations.versions`, in order; a test compares them."""
_SCRIPTS = "vfsd.catalog:migrations"
"""Alembic's folder with the steps."""


def newest_revision() -> str:
    """The revision that this version of vfsd works with."""
    return REVISIONS[-1]


def require_known_revision(revision: str | None) -> None:
    """Raises `StoreVersionError` for a catalog that another version of vfsd has written."""
    if revision is not None and revision not in REVISIONS:
        raise StoreVersionError(
            f"the catalog is at revision {revision}, this vfsd knows up to {newest_revision()}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )


def upgrade_schema(connection: Connection) -> None:
    """Run the missing steps, inside the transaction of `connection`."""
    from alembic import command  # slow to import, and only needed here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def read_owner(connection: Connection) -> str | None:
    """The id of the store; None where nobody has written it down, or there is no catalog."""
    if not sa.inspect(connection).has_table(store_identity.name):
        return None
    found = connection.execute(sa.select(store_identity.c.id)).scalar()
    return None if found is None else str(found)


def write_owner(connection: Connection, store_id: str) -> None:
    """For one that has none yet."""
    connection.execute(sa.insert(store_identity).values(one=1, id=store_id))


class Transaction:
    """One consistent view of the catalog, or one change that is published as a whole.

    Each repository is made when it is first used: most transactions need two or three of them.
    Their modules are loaded before: a child that is forked during another thread's import could
    never import that module.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def tree(self) -> Tree:
        return Tree(self._connection)

    @cached_property
    def videos(self) -> Videos:
        return Videos(self._connection)

    @cached_property
    def objects(self) -> Objects:
        return Objects(self._connection)

    @cached_property
    def segments(self) -> Segments:
        return Segments(self._connection)

    @cached_property
    def costs(self) -> MeasuredCosts:
        return MeasuredCosts(self._connection)

    @cached_property
    def detections(self) -> Detections:
        return Detections(self._connection)

    @cached_property
    def reads(self) -> LoggedReads:
        return LoggedReads(self._connection)

    @cached_property
    def decisions(self) -> TilingDecisions:
        return TilingDecisions(self._connection)

    @cached_property
    def holdings(self) -> DerivedUsage:
        return DerivedUsage(self._connection)

    @cached_property
    def evictions(self) -> EvictionLog:
        return EvictionLog(self._connection)

    @cached_property
    def sounds(self) -> AudioTracks:
        return AudioTracks(self._connection)

    @cached_property
    def originals(self) -> OriginalPolicies:
        return OriginalPolicies(self._connection)

    @cached_property
    def clock(self) -> ClockHistory:
        return ClockHistory(self._connection)

    @cached_property
    def integrity(self) -> IntegrityLog:
        return IntegrityLog(self._connection)


class CatalogDatabase:
    """A database with a schema.  Safe to use from several threads, and after a fork."""

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
        """Open an existing catalog, bringing its schema up to date unless `read_only`.

        With `store_id` it is opened for the store that has this id; where nobody's is written down
        yet, it is, unless `read_only`.  `require_in_place` is called after each connection and
        before each change, and raises where the store is another one by then.  Raises
        `NoStoreError`, `StoreVersionError` (a newer vfsd wrote it), `StoreError` for the catalog of
        another store, `BusyError`.
        """
        database = Database(url, read_only=read_only, require_in_place=require_in_place)
        try:
            with database.reading() as connection:
                revision, owner = current_revision(connection), read_owner(connection)
            require_known_revision(revision)
            _require_there(database, revision)
            if read_only and revision != newest_revision():
                raise StoreVersionError(
                    f"the catalog is at revision {revision} and has to be brought to "
                    f"{newest_revision()} first",
                    hint="open the store for writing once, for instance with `vfsd ls`",
                )
            _require_owner(database, owner, store_id)
            is_nobodys = owner is None and store_id is not None
            if not read_only and (revision != newest_revision() or is_nobodys):
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
        """Open a catalog, making it where the database is empty.

        With `store_id` it is made for the store that has this id.  Raises `ExistsError` then for a
        catalog that was there before, unless it was made for that very store; nothing is changed.
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
        """Whether there is a catalog.  Makes nothing.

        Raises `ExistsError` for a file that is the database of something else.
        """
        with closing(Database(url, read_only=True)) as database:
            if database.path and not Path(database.path).exists():
                return False
            with database.reading() as connection:
                if current_revision(connection) is not None:
                    return True
                # Many share a server; a file is somebody's alone.
                if database.path and sa.inspect(connection).get_table_names():
                    raise ExistsError(
                        f"{database.path} is a database of something else",
                        hint="each store has a file of its own: name another one",
                    )
        return False

    @classmethod
    def owner_at(cls, url: str) -> str | None:
        """The id of the store whose catalog is there; None where nobody has written it down."""
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

    # -- transactions

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Several looks at the same state.

        Raises `BusyError` where other threads of this process keep all connections for a minute.
        """
        with self._database.reading() as connection:
            yield Transaction(connection)

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[Transaction]:
        """Changes that become visible together when the block ends, or not at all.

        Raises `BusyError` when another process keeps writing for `patience` seconds (default:
        `BUSY_SECONDS`), `NoSpaceError`, `ReadOnlyError`.
        """
        with self._database.writing(patience) as connection:
            yield Transaction(connection)

    @property
    def path(self) -> str | None:
        """The file that it is; None where it is on a server."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        return self._database.read_only

    @classmethod
    def copy_at(cls, url: str, path: Path, *, patience: float | None = None) -> None:
        """Copy the catalog that is there, of whatever revision, as `copy_to` does.

        It is opened for reading only, and stays of that revision.  Raises `NoStoreError` where
        there is none, `BusyError` where another process keeps it for `patience` seconds (default:
        `BUSY_SECONDS`), and as `copy_to`.
        """
        with closing(Database(url, read_only=True, patience=patience)) as database:
            with database.reading() as connection:
                _require_there(database, current_revision(connection))
            database.copy_to(path)

    def copy_to(self, path: Path) -> None:
        """Copy it as it is at one moment to a file that is not there yet.

        Only where it is a file itself.  Raises `IntegrityError` where that is damaged, so that the
        copy takes nobody's place, `sqlite3.Error`.
        """
        self._database.copy_to(path)

    def sync(self) -> None:
        """Return when every finished transaction would survive a power cut."""
        self._database.sync()

    def log_bytes(self) -> int:
        """What the log of changes takes of the disk; 0 where there is no log of ours."""
        return self._database.log_bytes()

    def rewind_log(self) -> bool:
        """Make room for changes in the log of what was changed, where the disk has none.

        False where that cannot be: others keep reading, the database itself has to grow for it, or
        there is no log of ours.
        """
        return self._database.rewind_log()

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file; empty when all is well."""
        return self._database.damage()

    def watch(self) -> ChangeWatch:
        """Tells cheaply whether anybody has changed the catalog."""
        return self._database.watch()


def database_taken_error(url: str) -> ExistsError:
    """What to raise instead of making a catalog where another store has its own."""
    return ExistsError(
        f"there is a catalog at {redacted_url(url)} already",
        hint="each store has one of its own: name another database",
    )


def _require_there(database: Database, revision: str | None) -> None:
    """Raises `NoStoreError` for a database without a catalog."""
    if revision is None:
        raise NoStoreError(
            f"no catalog found at {redacted_url(database.url)}",
            hint=RECOVERY_HINT if database.is_sqlite else SERVER_RECOVERY_HINT,
        )


def _claim_database(database: Database, connection: Connection, store_id: str | None) -> None:
    """Write down whose it is, unless somebody has.  Raises `StoreError` for another store's."""
    owner = read_owner(connection)
    _require_owner(database, owner, store_id)
    if owner is None and store_id is not None:
        write_owner(connection, store_id)


def _require_owner(database: Database, owner: str | None, store_id: str | None) -> None:
    if None not in (owner, store_id) and owner != store_id:
        raise StoreError(
            f"the catalog at {redacted_url(database.url)} is another store's: it was made for "
            f"{owner!r}, and this store is {store_id!r}",
            hint='name this store\'s own as "catalog" in its vfsd-store.json; if this is it, and '
            'the file was lost or is another\'s, write the former id there as "id"',
        )
