"""The table of whose catalog it is."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, Table, Text

from vfsd.catalog.schema.columns import metadata

store_identity = Table(
    "store_identity",
    metadata,
    Column(
        "one", Integer, primary_key=True, autoincrement=False, comment="1: there is one row only"
    ),
    Column("id", Text, nullable=False, comment="the id in the marker of the store's directory"),
    CheckConstraint("one = 1", name="one"),
    comment="The store whose catalog it is. Empty until a store has opened it for writing.",
)
