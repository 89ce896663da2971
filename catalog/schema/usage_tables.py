"""Tables of logged reads and tiling decisions, budgets, pins and evictions."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
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

from vfsd.catalog.schema.columns import IdType, metadata, owner, row_id

reads = Table(
    "reads",
    metadata,
    row_id("by order of arrival"),
    owner("video_id", "videos.id", "the logical video, whatever it is encoded as"),
    Column("at_ns", BigInteger, nullable=False, comment="when it began"),
    Column("kind", String(16), nullable=False, comment="through what: api, scan, view or detect"),
    Column("first_frame", BigInteger, nullable=False, comment="the lowest, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the highest"),
    Column("frames", BigInteger, nullable=False, comment="pictures of the result"),
    Column("x1", Integer, nullable=False, comment="left edge, pixels of the displayed frame"),
    Column("y1", Integer, nullable=False, comment="upper edge"),
    Column("x2", Integer, nullable=False, comment="one past the last column"),
    Column("y2", Integer, nullable=False, comment="one past the last row"),
    Column("width", Integer, comment="pixels of a picture of the result; null: of each its own"),
    Column("height", Integer, comment="goes with width"),
    Column(
        "labels",
        JSON(none_as_null=True),
        comment="of boxes that it was for: a list of lists of labels, an AND of ORs",
    ),
    Column("pixels", BigInteger, nullable=False, comment="to be decoded, by the plan"),
    Column(
        "untiled_pixels",
        BigInteger,
        nullable=False,
        comment="to be decoded if all came from the original",
    ),
    Column("predicted", Float, nullable=False, comment="CPU seconds of decoding, by the plan"),
    Column(
        "untiled_predicted",
        Float,
        nullable=False,
        comment="CPU seconds of decoding if all came from the original",
    ),
    Column("seconds", Float, nullable=False, comment="that it took its reader, measured"),
    Column("segments", Integer, nullable=False, comment="of tiles that were used"),
    Column("tiles", Integer, nullable=False, comment="of these that were decoded, all together"),
    Column(
        "original_frames",
        BigInteger,
        nullable=False,
        comment="different frames that came from the original; 0: all from tiles",
    ),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame AND frames > 0", name="frames"),
    CheckConstraint("x1 < x2 AND y1 < y2", name="area"),
    CheckConstraint("(width IS NULL) = (height IS NULL)", name="size"),
    Index(None, "video_id"),
    comment="What was read of videos, and what that took. Only the newest rows are kept, as many "
    "as the setting remembered_reads says.",
    sqlite_autoincrement=True,
)

decisions = Table(
    "decisions",
    metadata,
    row_id("by order of making"),
    owner("video_id", "videos.id", "whose tiles it was about"),
    Column(
        "segment_id",
        IdType,
        ForeignKey("segments.id", ondelete="SET NULL"),
        unique=True,
        comment="what was made; null: it is there no longer",
    ),
    Column("at_ns", BigInteger, nullable=False, comment="when its segment was published"),
    Column("maker", String(16), nullable=False, comment="who made it: tune or background"),
    Column("first_frame", BigInteger, nullable=False, comment="of the segment, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last"),
    Column("layout", Text, nullable=False, comment="of the segment, see vfsd.tiling.TileLayout"),
    Column(
        "tiles",
        JSON(none_as_null=True),
        comment="those of the layout that were made: a list of numbers; null: all",
    ),
    Column("profile", String(32), nullable=False, comment="the tile codec: fast, small ..."),
    Column(
        "reasons",
        JSON,
        nullable=False,
        comment="what was read there: a list of objects with reads (how often) and one of "
        "label (an expression), region (x1, y1, x2, y2 of the stored picture) and size",
    ),
    Column("reads", BigInteger, nullable=False, comment="remembered reads that it makes cheaper"),
    Column(
        "predicted_seconds", Float, nullable=False, comment="CPU seconds that making it would take"
    ),
    Column(
        "predicted_saved",
        Float,
        nullable=False,
        comment="CPU seconds of decoding that the reads would have taken less",
    ),
    Column("predicted_bytes", BigInteger, nullable=False, comment="that it would have"),
    Column("seconds", Float, nullable=False, comment="that making it took, measured"),
    Column("bytes", BigInteger, nullable=False, comment="that it has"),
    Column("undone_ns", BigInteger, comment="when somebody took it back; null: nobody did"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="frames"),
    Index(None, "video_id"),
    comment="Segments of tiles that were made because of what had been read, and why.",
    sqlite_autoincrement=True,
)


budgets = Table(
    "budgets",
    metadata,
    row_id("a number"),
    Column(
        "video_id",
        IdType,
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
