"""Homes: the store directories that use one catalog, and the leases of their mounts.

Only a catalog on PostgreSQL can have several.  A home's private files are on its own host, so only
that home may judge, repair or delete them.

A mount holds the lease of its home as long as it changes `mounts.beat` often enough.  All ages are
measured by the clock of the database, since those of hosts differ.  A mount on another host may
take over an expired lease, which increases the epoch.  Each write transaction of a mount first
updates the row of its own epoch: without such a row it fails, however late it comes.

A file is written by one mount: its row in `writers` is valid as long as the lease of that mount.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import homes, mounts, nodes, orphans, writers
from vfsd.catalog.tree import node_from_row
from vfsd.core.model import WAITS_FOR_UPLOAD, FileState, Home, HomeMount, Node
from vfsd.errors import BusyError, StoreError

BEAT_SECONDS = 10.0
"""How often a mount renews its lease."""
LEASE_SECONDS = 60.0
"""A lease that was not renewed for this long may be taken over by another host."""
_FRESH_BEATS = 2
"""A lease is checked before an answer unless it was renewed this many `BEAT_SECONDS` ago."""

_PRIVATE = (FileState.SPOOLED.value, FileState.PLAIN.value)
_NOW: sa.ColumnElement[Any] = sa.func.clock_timestamp()  # now() is when the transaction began
_SILENT = sa.func.extract("epoch", _NOW - mounts.c.beat).label("silent")


class Homes:
    """The register of homes, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[Home]:
        """Return all homes, the first one of the store first, each with its live mount."""
        rows = self._connection.execute(sa.select(homes).order_by(homes.c.joined, homes.c.id)).all()
        held = {mount.home: mount for mount in self._mounts()}
        return [_home(row, held.get(row.id)) for row in rows]

    def find(self, home: str) -> Home | None:
        row = self._connection.execute(sa.select(homes).where(homes.c.id == home)).first()
        return None if row is None else _home(row, None)

    def mount_of(self, home: str) -> HomeMount | None:
        """Return the mount that holds the lease of a home, expired or not."""
        return next((mount for mount in self._mounts() if mount.home == home), None)

    def is_other_mounted(self, home: str) -> bool:
        """Return whether any other home has a mount with a valid lease."""
        return any(one.home != home and one.silent < LEASE_SECONDS for one in self._mounts())

    def put(self, home: Home) -> None:
        """Add a home, or change its host and place."""
        values = {
            "host": home.host,
            "machine": home.machine,
            "place": home.place,
            "directory": home.directory,
        }
        changed = self._connection.execute(
            sa.update(homes).where(homes.c.id == home.id).values(values)
        )
        if not changed.rowcount:
            self._connection.execute(sa.insert(homes).values(id=home.id, joined=_NOW, **values))

    def forget(self, home: str) -> None:
        """Remove a home and its lease; its private files must have been removed before."""
        self._connection.execute(sa.delete(homes).where(homes.c.id == home))

    def private_files(self, home: str) -> list[Node]:
        """Return the files whose only bytes are in a home, with or without a name."""
        query = sa.select(nodes).where(nodes.c.state.in_(_PRIVATE), nodes.c.home == home)
        return [node_from_row(row) for row in self._connection.execute(query.order_by(nodes.c.ino))]

    def forget_all(self) -> None:
        """Make all private files those of the only home, in a copy of the catalog."""
        self._connection.execute(sa.update(nodes).values(home=None))
        self._connection.execute(sa.update(orphans).values(home=None))

    def counts(self) -> dict[str, int]:
        """Return the number of private files of each home that has any."""
        query = (
            sa.select(nodes.c.home, sa.func.count())
            .where(nodes.c.state.in_(_PRIVATE), nodes.c.home.is_not(None))
            .group_by(nodes.c.home)
        )
        return {str(home): int(count) for home, count in self._connection.execute(query)}

    def waiting(self) -> dict[str, int]:
        """Return the number of files of each home that wait for their upload, if it has any."""
        query = (
            sa.select(nodes.c.home, sa.func.count())
            .where(
                nodes.c.state == FileState.SPOOLED.value,
                nodes.c.reason.startswith(WAITS_FOR_UPLOAD),
            )
            .group_by(nodes.c.home)
        )
        return {str(home): int(count) for home, count in self._connection.execute(query)}

    def is_live(self, home: str | None) -> bool:
        """Return whether a mount of that home has a valid lease."""
        return any(one.home == home and one.silent < LEASE_SECONDS for one in self._mounts())

    def take_file(self, ino: int, mount: str) -> bool:
        """Make a mount the only writer of a file, until `free_file` or the end of its lease.

        Return False if another mount with a valid lease writes it.  Only for PostgreSQL.
        """
        from sqlalchemy.dialects.postgresql import insert  # slow, and SQLite needs none

        row = insert(writers).values(ino=ino, mount=mount)
        age = sa.func.extract("epoch", _NOW - mounts.c.beat)
        valid = sa.exists().where(mounts.c.id == writers.c.mount, age < LEASE_SECONDS)
        taken = row.on_conflict_do_update(
            index_elements=[writers.c.ino],
            set_={"mount": row.excluded.mount},
            where=sa.or_(writers.c.mount == row.excluded.mount, ~valid),
        )
        return self._connection.execute(taken.returning(writers.c.ino)).first() is not None

    def free_file(self, ino: int, mount: str) -> None:
        """Let other mounts write a file that `take_file` has taken."""
        mine = (writers.c.ino == ino, writers.c.mount == mount)
        self._connection.execute(sa.delete(writers).where(*mine))

    def take_lease(self, home: Home, place: str) -> HomeMount:
        """Make a mount of this home the only one that may change the catalog.

        The caller has locked the directory.  Raises `BusyError` where another host holds the lease.
        """
        before = self.mount_of(home.id)
        # A mount on this machine would hold the lock of the directory, so that one has ended.
        is_dead = before is not None and bool(home.machine) and before.machine == home.machine
        if before is not None and before.silent < LEASE_SECONDS and not is_dead:
            left = max(1, round(LEASE_SECONDS - before.silent))
            raise BusyError(
                f"{home.place} is mounted at {before.place} on {before.host}, which was last heard "
                f"from {before.silent:.0f} s ago",
                hint=f"unmount it there; if {before.host} is gone, try again in {left} s",
            )
        known = self._connection.execute(
            sa.select(mounts.c.epoch).where(mounts.c.home == home.id)
        ).scalar()
        mount = HomeMount(
            str(uuid4()), home.id, home.host, home.machine, place, (known or 0) + 1, 0.0
        )
        values = {
            "id": mount.id,
            "home": mount.home,
            "host": mount.host,
            "machine": mount.machine,
            "place": mount.place,
            "epoch": mount.epoch,
            "beat": _NOW,
        }
        if known is None:
            self._connection.execute(sa.insert(mounts).values(values))
        else:
            mine = mounts.c.home == home.id
            self._connection.execute(sa.update(mounts).where(mine).values(values))
        # Of mounts that have ended.
        ended = writers.c.mount.not_in(sa.select(mounts.c.id))
        self._connection.execute(sa.delete(writers).where(ended))
        return mount

    def _mounts(self) -> list[HomeMount]:
        query = sa.select(mounts, _SILENT).where(mounts.c.beat.is_not(None))
        return [
            HomeMount(
                row.id, row.home, row.host, row.machine, row.place, row.epoch, float(row.silent)
            )
            for row in self._connection.execute(query)
        ]


class Lease:
    """The lease that this process's mount holds.  Thread-safe."""

    def __init__(
        self, mount: HomeMount, updating: Callable[[], AbstractContextManager[Connection]]
    ) -> None:
        """`updating` returns a context with a connection for one update, outside of the order of
        writers."""
        self._mount = mount
        self._updating = updating
        self._renewed = _clock()
        self._is_lost = False
        mine = (mounts.c.id == mount.id, mounts.c.epoch == mount.epoch)
        self._renew = sa.update(mounts).where(*mine).values(beat=_NOW)
        self._end = sa.update(mounts).where(*mine).values(beat=None)

    @property
    def mount(self) -> str:
        """The id of the mount, drawn when it was mounted."""
        return self._mount.id

    def take_file(self, ino: int) -> bool:
        """See `Homes.take_file`.  Raises the errors of the catalog, and as `require`."""
        self.require()
        with self._updating() as connection:
            return Homes(connection).take_file(ino, self.mount)

    def free_file(self, ino: int) -> None:
        """See `Homes.free_file`."""
        with self._updating() as connection:
            Homes(connection).free_file(ino, self.mount)

    def renew(self, connection: Connection) -> None:
        """Renew the lease in a transaction, which then keeps other hosts from taking it over until
        the commit.

        Raises `StoreError` if another mount has taken it over.
        """
        began = _clock()
        if self._is_lost or connection.execute(self._renew).rowcount != 1:
            self._is_lost = True
            raise self._lost_error()
        self._renewed = began

    def beat(self) -> None:
        """Renew the lease on its own.  Raises as `renew`, and the errors of the catalog."""
        with self._updating() as connection:
            self.renew(connection)

    def require(self) -> None:
        """Raise `StoreError` if another mount has taken the lease over, which is checked after a
        pause of this process.
        """
        if self._is_lost:
            raise self._lost_error()
        if _clock() - self._renewed > _FRESH_BEATS * BEAT_SECONDS:
            self.beat()

    def release(self) -> None:
        """End the lease, if it is still held."""
        with self._updating() as connection:
            connection.execute(self._end)

    def _lost_error(self) -> StoreError:
        return StoreError(
            f"another host has taken over the mount at {self._mount.place}",
            hint="unmount it: what was not saved is in the spool of its home",
        )


def _clock() -> float:
    # Unlike CLOCK_MONOTONIC, it runs on while the machine sleeps.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _home(row: sa.Row[Any], mount: HomeMount | None) -> Home:
    live = mount if mount is not None and mount.silent < LEASE_SECONDS else None
    return Home(row.id, row.host, row.machine, row.place, row.directory, live)
