"""Saved searches: names and arguments, within one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import reads_row
from vfsd.catalog.schema import searches
from vfsd.errors import ExistsError, NotFoundError

BOXES, EVENTS = "boxes", "events"


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """A search that a user has saved."""

    name: str
    kind: str  #: "boxes" or "events"
    arguments: Mapping[str, Any]  #: values that JSON can hold: `vfsd.api.searches`
    saved_ns: int  #: Unix time


class SavedSearches:
    """The searches of a store, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[SavedSearch]:
        """Return all searches, by name."""
        rows = self._connection.execute(sa.select(searches).order_by(searches.c.name))
        return sorted(map(_search_from_row, rows), key=lambda one: one.name)

    def get(self, name: str) -> SavedSearch:
        """Return the search with that name.  Raises `NotFoundError`."""
        row = self._connection.execute(sa.select(searches).where(searches.c.name == name)).first()
        if row is None:
            raise missing_search(name)
        return _search_from_row(row)

    def put(self, search: SavedSearch, *, replace: bool) -> None:
        """Save a search.  Raises `ExistsError` for a name that is taken, unless `replace`."""
        mine = searches.c.name == search.name
        if replace:
            self._connection.execute(sa.delete(searches).where(mine))
        elif self._connection.execute(sa.select(searches.c.name).where(mine)).first():
            raise ExistsError(
                f"a search {search.name!r} is saved already",
                hint="give another name, or replace=True",
                command_hint="give another name, or remove it with `vfsd searches rm`",
            )
        self._connection.execute(
            sa.insert(searches).values(
                name=search.name,
                kind=search.kind,
                arguments=dict(search.arguments),
                saved_ns=search.saved_ns,
            )
        )

    def remove(self, name: str) -> None:
        """Remove a search.  Raises `NotFoundError`."""
        done = self._connection.execute(sa.delete(searches).where(searches.c.name == name))
        if not done.rowcount:
            raise missing_search(name)


def missing_search(name: str) -> NotFoundError:
    return NotFoundError(
        f"no search {name!r} is saved", hint="`vfsd searches ls` lists the saved searches"
    )


@reads_row(searches)
def _search_from_row(row: Row[Any]) -> SavedSearch:
    return SavedSearch(row.name, row.kind, dict(row.arguments), row.saved_ns)
