"""Whose catalog it is, within one transaction.

Of two stores with one catalog each takes away the originals that the other removes.  So it knows
the id of its store, and no other opens it.  A copy of a store has the same id as the store: that
the two do not share a database is for who copies to see to.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import store_identity


def owner_of(connection: Connection) -> str | None:
    """The id of the store; None where nobody has written it down, or there is no catalog."""
    if not sa.inspect(connection).has_table(store_identity.name):
        return None
    found = connection.execute(sa.select(store_identity.c.id)).scalar()
    return None if found is None else str(found)


def write_owner(connection: Connection, store_id: str) -> None:
    """For one that has none yet."""
    connection.execute(sa.insert(store_identity).values(one=1, id=store_id))
