"""Metadata and column types shared by all tables, and the table with the id of the store that owns
the catalog.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Cast,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    cast,
    text,
)

# SQLite gives a row number only to an INTEGER key; elsewhere 32 bits would be too few.
IdType = BigInteger().with_variant(Integer, "sqlite")


class BytesType(LargeBinary):
    """Bytes, also where a flipped bit has SQLite take them for text: they are the same ones."""

    def column_expression(self, column: ColumnElement[Any]) -> Cast[bytes]:
        """How it is read."""
        return cast(column, LargeBinary)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def row_id(comment: str) -> Column[Any]:
    """The key of a table whose rows are numbered by the database."""
    return Column("id", IdType, primary_key=True, autoincrement=True, comment=comment)


def owner(name: str, key: str, comment: str) -> Column[Any]:
    """The row of another table, found by its `key` ("table.column"), with which this row goes."""
    return Column(
        name, IdType, ForeignKey(key, ondelete="CASCADE"), nullable=False, comment=comment
    )


def owner_key(name: str, key: str, comment: str) -> Column[Any]:
    """As `owner`, where this column is the table's key, or the first part of it."""
    return Column(
        name,
        IdType,
        ForeignKey(key, ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment=comment,
    )


def only_where(condition: str) -> dict[str, Any]:
    """Arguments for an `Index` of those rows alone; databases without such have all in it."""
    # PostgreSQL has the condition, too, by its migration.  To name it here would import the dialect
    # of PostgreSQL in every process, which takes a fifth of what SQLAlchemy takes.
    return {"sqlite_where": text(condition)}


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
