"""Metadata and column types shared by all tables; the store that owns the catalog, its homes and
their mounts.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Cast,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    cast,
    text,
)

# Only an INTEGER key is a rowid in SQLite; on servers 32 bits would be too few.
IdType = BigInteger().with_variant(Integer, "sqlite")


class BytesType(LargeBinary):
    """Bytes that are read even if a flipped bit makes SQLite treat them as text."""

    def column_expression(self, column: ColumnElement[Any]) -> Cast[bytes]:
        """Cast the column when it is read."""
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
    """Return the primary key of a table with ids from the database."""
    return Column("id", IdType, primary_key=True, autoincrement=True, comment=comment)


def owner(name: str, key: str, comment: str) -> Column[Any]:
    """Return a foreign key to `key` ("table.column"); this row is deleted with its target."""
    return Column(
        name, IdType, ForeignKey(key, ondelete="CASCADE"), nullable=False, comment=comment
    )


def owner_key(name: str, key: str, comment: str) -> Column[Any]:
    """Like `owner`, for a column that is the primary key or its first part."""
    return Column(
        name,
        IdType,
        ForeignKey(key, ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment=comment,
    )


def only_where(condition: str) -> dict[str, Any]:
    """Return arguments for a partial `Index`; databases without them index all rows."""
    # On PostgreSQL, the migration adds the condition.  Naming it here would import that dialect in
    # every process, which takes a fifth of the import time of SQLAlchemy.
    return {"sqlite_where": text(condition)}


store_identity = Table(
    "store_identity",
    metadata,
    Column(
        "one",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="always 1: there is only one row",
    ),
    Column("id", Text, nullable=False, comment="id in the marker file of the store"),
    Column("bucket", Text, comment="URL of the bucket with copies of the objects; null: none"),
    Column("bucket_options", Text, comment="options of its server as JSON, without secrets"),
    CheckConstraint("one = 1", name="one"),
    comment="The store that owns the catalog. Empty until a store has opened it for writing.",
)

homes = Table(
    "homes",
    metadata,
    Column("id", String(36), primary_key=True, comment="id in its marker file"),
    Column("host", Text, nullable=False, comment="host name, for messages"),
    Column("machine", Text, nullable=False, comment="machine id; empty: unknown"),
    Column("place", Text, nullable=False, comment="absolute path of the directory"),
    Column("directory", Text, nullable=False, comment="its device and inode: DEVICE:INODE"),
    Column("joined", DateTime(timezone=True), nullable=False, comment="when it was added"),
    comment="Store directories that use this catalog. Empty where it is an SQLite file.",
)

mounts = Table(
    "mounts",
    metadata,
    Column("id", String(36), primary_key=True, comment="drawn at each mount"),
    Column(
        "home",
        String(36),
        ForeignKey("homes.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
        comment="the mounted home",
    ),
    Column("host", Text, nullable=False, comment="host name, for messages"),
    Column("machine", Text, nullable=False, comment="machine id; empty: unknown"),
    Column("place", Text, nullable=False, comment="mount point"),
    Column("epoch", BigInteger, nullable=False, comment="counts the mounts of the home"),
    Column(
        "beat",
        DateTime(timezone=True),
        comment="last sign of life, by the clock of the database; null: unmounted",
    ),
    comment="The lease of each home's mount.",
)

catalog_state = Table(
    "catalog_state",
    metadata,
    Column(
        "one",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="always 1: there is only one row",
    ),
    Column(
        "changes",
        BigInteger,
        nullable=False,
        comment="number of transactions that caches must notice; 0 on SQLite, which has its own",
    ),
    CheckConstraint("one = 1", name="one"),
    comment="State of the catalog on a server as a whole.",
)
