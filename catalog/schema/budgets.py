"""Tables of what derived data may take: budgets, pins, and what went to make room."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import Id, metadata, owner, row_id

budgets = Table(
    "budgets",
    metadata,
    row_id("a number"),
    Column(
        "video_id",
        Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        unique=True,
        comment="whose derived data is meant; null: that of the whole store, which has one row",
    ),
    Column("bytes", BigInteger, comment="that it may have; null: see times"),
    Column(
        "times",
        Float,
        comment="as many times the bytes of the originals; null as bytes is: there is no limit",
    ),
    CheckConstraint("bytes IS NULL OR times IS NULL", name="one"),
    CheckConstraint("bytes >= 0 AND times >= 0", name="positive"),
    comment="What tiles and renditions may take, where somebody has said so.",
    sqlite_autoincrement=True,
)

pins = Table(
    "pins",
    metadata,
    row_id("never used again"),
    owner("video_id", "videos.id", "whose derived data stays"),
    Column("first_frame", BigInteger, nullable=False, comment="in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last"),
    Column("role", String(16), comment="tiled or rendition; null: both"),
    Column("width", Integer, comment="of a rendition's displayed frame; null: of any size"),
    Column("height", Integer, comment="goes with width"),
    Column("at_ns", BigInteger, nullable=False, comment="when somebody said so"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="frames"),
    CheckConstraint("role IS NULL OR role IN ('tiled', 'rendition')", name="role"),
    CheckConstraint("(width IS NULL) = (height IS NULL)", name="size"),
    CheckConstraint("width IS NULL OR role = 'rendition'", name="of_rendition"),
    Index(None, "video_id"),
    comment="Segments in use that have any of these frames are neither charged nor evicted.",
    sqlite_autoincrement=True,
)

evictions = Table(
    "evictions",
    metadata,
    row_id("by order of time"),
    owner("video_id", "videos.id", "whose segment it was"),
    Column("at_ns", BigInteger, nullable=False, comment="when it went"),
    Column("why", String(32), nullable=False, comment="what was full: video, partner or store"),
    Column("role", String(16), nullable=False, comment="tiled or rendition"),
    Column("first_frame", BigInteger, nullable=False, comment="of the segment, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last"),
    Column("width", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("height", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("layout", Text, nullable=False, comment="see vfsd.tiling.TileLayout"),
    Column("profile", String(32), nullable=False, comment="the tile codec: fast, small ..."),
    Column("bytes", BigInteger, nullable=False, comment="of its pack"),
    Column("retired", Boolean, nullable=False, comment="it was only kept for a step back"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was published"),
    Column("used_ns", BigInteger, comment="when it was last used; null: never"),
    Column("uses", Float, nullable=False, comment="reads that used it, faded up to this moment"),
    Column(
        "saved", Float, nullable=False, comment="CPU seconds that it saved them, faded likewise"
    ),
    Index(None, "video_id"),
    comment="Segments that went to make room. Only the newest rows are kept.",
    sqlite_autoincrement=True,
)
