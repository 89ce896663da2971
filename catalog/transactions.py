"""Looking at a catalog and changing it: the part of `Catalog` that knows no videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.audio import Sounds
from vfsd.catalog.clock_history import ClockNotes
from vfsd.catalog.costs import MeasuredCosts
from vfsd.catalog.database_url import shown_url
from vfsd.catalog.detections import Detections
from vfsd.catalog.engine import ChangeWatch, Database, current_revision
from vfsd.catalog.error_mapping import LOST
from vfsd.catalog.evictions import Evictions
from vfsd.catalog.integrity import Integrity
from vfsd.catalog.migrate import newest, require_known, upgrade
from vfsd.catalog.policies import Originals
from vfsd.catalog.reads import Reads
from vfsd.catalog.segments import Segments
from vfsd.catalog.server_errors import LOST_ON_SERVER
from vfsd.catalog.store_identity import owner_of, write_owner
from vfsd.catalog.tree import Tree
from vfsd.catalog.tuning_log import Decisions
from vfsd.catalog.usage import Holdings
from vfsd.catalog.videos import Objects, Videos
from vfsd.errors import ExistsError, NoStoreError, StoreError, StoreVersionError


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
    def reads(self) -> Reads:
        return Reads(self._connection)

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(self._connection)

    @cached_property
    def holdings(self) -> Holdings:
        return Holdings(self._connection)

    @cached_property
    def evictions(self) -> Evictions:
        return Evictions(self._connection)

    @cached_property
    def sounds(self) -> Sounds:
        return Sounds(self._connection)

    @cached_property
    def originals(self) -> Originals:
        return Originals(self._connection)

    @cached_property
    def clock(self) -> ClockNotes:
        return ClockNotes(self._connection)

    @cached_property
    def integrity(self) -> Integrity:
        return Integrity(self._connection)


class CatalogTransactions:
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
                revision, owner = current_revision(connection), owner_of(connection)
            require_known(revision)
            _require_there(database, revision)
            if read_only and revision != newest():
                raise StoreVersionError(
                    f"the catalog is at revision {revision} and has to be brought to "
                    f"{newest()} first",
                    hint="open the store for writing once, for instance with `vfsd ls`",
                )
            _require_owner(database, owner, store_id)
            is_nobodys = owner is None and store_id is not None
            if not read_only and (revision != newest() or is_nobodys):
                with database.writing() as connection:
                    if revision != newest():
                        upgrade(connection)
                    _take(database, connection, store_id)
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
                require_known(revision)
                if revision is not None and store_id not in (None, owner_of(connection)):
                    raise another_is_there(url)
                if revision != newest():
                    upgrade(connection)
                _take(database, connection, store_id)
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
            return owner_of(connection)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalog {shown_url(self._database.url)}>"

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


def another_is_there(url: str) -> ExistsError:
    """What to raise instead of making a catalog where another store has its own."""
    return ExistsError(
        f"there is a catalog at {shown_url(url)} already",
        hint="each store has one of its own: name another database",
    )


def _require_there(database: Database, revision: str | None) -> None:
    """Raises `NoStoreError` for a database without a catalog."""
    if revision is None:
        raise NoStoreError(
            f"no catalog found at {shown_url(database.url)}",
            hint=LOST if database.is_sqlite else LOST_ON_SERVER,
        )


def _take(database: Database, connection: Connection, store_id: str | None) -> None:
    """Write down whose it is, unless somebody has.  Raises `StoreError` for another store's."""
    owner = owner_of(connection)
    _require_owner(database, owner, store_id)
    if owner is None and store_id is not None:
        write_owner(connection, store_id)


def _require_owner(database: Database, owner: str | None, store_id: str | None) -> None:
    if None not in (owner, store_id) and owner != store_id:
        raise StoreError(
            f"the catalog at {shown_url(database.url)} is another store's: it was made for "
            f"{owner!r}, and this store is {store_id!r}",
            hint='name this store\'s own as "catalog" in its vfsd-store.json; if this is it, and '
            'the file was lost or is another\'s, write the former id there as "id"',
        )
