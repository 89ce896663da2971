"""What the tables have in common: their metadata, and columns that many of them have."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Cast,
    Column,
    ColumnElement,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    cast,
    text,
)

# SQLite gives a row number only to an INTEGER key; elsewhere 32 bits would be too few.
Id = BigInteger().with_variant(Integer, "sqlite")


class Bytes(LargeBinary):
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
    return Column("id", Id, primary_key=True, autoincrement=True, comment=comment)


def owner(name: str, key: str, comment: str) -> Column[Any]:
    """The row of another table, found by its `key` ("table.column"), with which this row goes."""
    return Column(name, Id, ForeignKey(key, ondelete="CASCADE"), nullable=False, comment=comment)


def owner_key(name: str, key: str, comment: str) -> Column[Any]:
    """As `owner`, where this column is the table's key, or the first part of it."""
    return Column(
        name,
        Id,
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
