"""Tables of stored bytes: objects, and what is known of their content and of linked files'."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import metadata, row_id

objects = Table(
    "objects",
    metadata,
    Column("key", String(64), primary_key=True, comment="blake3 of the bytes, hexadecimal"),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was first published"),
    CheckConstraint("size >= 0", name="size"),
    comment="Immutable objects. A row is written only after the bytes are durable; bytes without "
    "a row are garbage.",
)

block_sums = Table(
    "block_sums",
    metadata,
    row_id("a number"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key", ondelete="CASCADE"),
        unique=True,
        comment="the object; null for a file indexed in place",
    ),
    Column("link_path", LargeBinary, unique=True, comment="the file indexed in place"),
    Column("size", BigInteger, nullable=False, comment="bytes of the file"),
    Column(
        "mtime_ns",
        BigInteger,
        comment="files indexed in place only: their mtime; with another one the sums say nothing",
    ),
    Column("block", Integer, nullable=False, comment="bytes of a block; the last may be shorter"),
    Column(
        "sums", LargeBinary, nullable=False, comment="the first 8 bytes of the blake3 of each block"
    ),
    CheckConstraint("(object_key IS NULL) <> (link_path IS NULL)", name="place"),
    CheckConstraint("size >= 0 AND block > 0", name="size"),
    comment="Sums of the blocks of originals, by which what is read of them is compared.",
)

inspections = Table(
    "inspections",
    metadata,
    row_id("a number"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key", ondelete="CASCADE"),
        unique=True,
        comment="the object; null for a file indexed in place",
    ),
    Column("link_path", LargeBinary, unique=True, comment="the file indexed in place"),
    Column("looked_ns", BigInteger, comment="when all of it was last looked at; null: never"),
    Column(
        "damage",
        JSON(none_as_null=True),
        comment="the bytes that are not those that were stored: a list of [first, end]; null: none",
    ),
    Column("found_ns", BigInteger, comment="when that was found; goes with damage"),
    CheckConstraint("(object_key IS NULL) <> (link_path IS NULL)", name="place"),
    comment="What was found by looking at stored bytes.",
)

scrubs = Table(
    "scrubs",
    metadata,
    row_id("by order of time"),
    Column("what", Text, nullable=False, comment="the names that it is about; empty: everything"),
    Column("begun_ns", BigInteger, nullable=False, comment="when it began"),
    Column("ended_ns", BigInteger, comment="when it was through; null: it was interrupted"),
    comment="Runs of `vfsd scrub`. Only the newest rows are kept.",
    sqlite_autoincrement=True,
)
