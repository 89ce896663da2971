"""Tables of logged reads and tiling decisions, budgets, pins, evictions and work orders."""

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

from vfsd.catalog.schema.columns import IdType, metadata, owner, owner_key, row_id

reads = Table(
    "reads",
    metadata,
    row_id("ascending in order of arrival"),
    owner("video_id", "videos.id", "the logical video"),
    Column("at_ns", BigInteger, nullable=False, comment="when it began"),
    Column("kind", String(16), nullable=False, comment="api, scan, view or detect"),
    Column("first_frame", BigInteger, nullable=False, comment="lowest frame, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the highest frame"),
    Column("frames", BigInteger, nullable=False, comment="number of pictures in the result"),
    Column("x1", Integer, nullable=False, comment="left edge, pixels of the displayed frame"),
    Column("y1", Integer, nullable=False, comment="upper edge"),
    Column("x2", Integer, nullable=False, comment="one past the last column"),
    Column("y2", Integer, nullable=False, comment="one past the last row"),
    Column("width", Integer, comment="pixels of a picture in the result; null: sizes differ"),
    Column("height", Integer, comment="goes with width"),
    Column(
        "labels",
        JSON(none_as_null=True),
        comment="labels of the requested boxes: a list of lists of labels, an AND of ORs",
    ),
    Column("pixels", BigInteger, nullable=False, comment="pixels to decode, by the plan"),
    Column(
        "untiled_pixels",
        BigInteger,
        nullable=False,
        comment="pixels to decode if everything came from the original",
    ),
    Column("predicted", Float, nullable=False, comment="CPU seconds of decoding, by the plan"),
    Column(
        "untiled_predicted",
        Float,
        nullable=False,
        comment="CPU seconds of decoding if everything came from the original",
    ),
    Column("seconds", Float, nullable=False, comment="measured elapsed time"),
    Column("segments", Integer, nullable=False, comment="number of tiled segments used"),
    Column("tiles", Integer, nullable=False, comment="number of tiles decoded in these segments"),
    Column(
        "original_frames",
        BigInteger,
        nullable=False,
        comment="number of distinct frames from the original; 0: all from tiles",
    ),
    Column(
        "runs",
        JSON(none_as_null=True),
        comment="frames: a list of first, end and step; null: one run, or too many",
    ),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame AND frames > 0", name="frames"),
    CheckConstraint("x1 < x2 AND y1 < y2", name="area"),
    CheckConstraint("(width IS NULL) = (height IS NULL)", name="size"),
    Index(None, "video_id"),
    comment="Log of reads and their cost. Only the newest rows are kept: see the "
    "setting remembered_reads.",
    sqlite_autoincrement=True,
)

read_notes = Table(
    "read_notes",
    metadata,
    row_id("ascending, with gaps"),
    Column("digest", String(64), nullable=False, comment="digest of the bytes that were read"),
    Column("read", JSON, nullable=False, comment="the columns of reads, and the segments used"),
    comment="Reads on a server that are not in reads yet: adding them takes no lock.",
    sqlite_autoincrement=True,
)

decisions = Table(
    "decisions",
    metadata,
    row_id("ascending in order of making"),
    owner("video_id", "videos.id", "the logical video"),
    Column(
        "segment_id",
        IdType,
        ForeignKey("segments.id", ondelete="SET NULL"),
        unique=True,
        comment="the segment that was made; null: it no longer exists",
    ),
    Column("at_ns", BigInteger, nullable=False, comment="when its segment was published"),
    Column("maker", String(16), nullable=False, comment="made by: tune or background"),
    Column(
        "first_frame",
        BigInteger,
        nullable=False,
        comment="first frame of the segment, in display order",
    ),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last frame"),
    Column(
        "layout", Text, nullable=False, comment="layout of the segment, see vfsd.tiling.TileLayout"
    ),
    Column(
        "tiles",
        JSON(none_as_null=True),
        comment="tiles of the layout that were made: a list of numbers; null: all",
    ),
    Column("profile", String(32), nullable=False, comment="the tile codec: fast, small ..."),
    Column("gop", Integer, comment="frames between key pictures, as in segments"),
    Column(
        "reasons",
        JSON,
        nullable=False,
        comment="targets of reads: a list of objects with reads (their number) and one "
        "of label (an expression), region (x1, y1, x2, y2 of the stored picture) "
        "and size",
    ),
    Column(
        "reads", BigInteger, nullable=False, comment="number of logged reads that it makes cheaper"
    ),
    Column(
        "predicted_seconds", Float, nullable=False, comment="predicted CPU seconds for making it"
    ),
    Column(
        "predicted_saved",
        Float,
        nullable=False,
        comment="predicted CPU seconds of decoding saved in these reads",
    ),
    Column("predicted_bytes", BigInteger, nullable=False, comment="predicted bytes"),
    Column("seconds", Float, nullable=False, comment="measured time of making it"),
    Column("bytes", BigInteger, nullable=False, comment="bytes of the segment"),
    Column("undone_ns", BigInteger, comment="when it was undone; null: it was not"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="frames"),
    Index(None, "video_id"),
    comment="Tiling decisions: segments that were made because of past reads, and why.",
    sqlite_autoincrement=True,
)


budgets = Table(
    "budgets",
    metadata,
    row_id("row id"),
    Column(
        "video_id",
        IdType,
        ForeignKey("videos.id", ondelete="CASCADE"),
        unique=True,
        comment="the logical video; null: the whole store, in one row",
    ),
    Column("bytes", BigInteger, comment="limit in bytes; null: see times"),
    Column(
        "times",
        Float,
        comment="limit as a multiple of the originals' bytes; null, like bytes: no limit",
    ),
    CheckConstraint("bytes IS NULL OR times IS NULL", name="one"),
    CheckConstraint("bytes >= 0 AND times >= 0", name="positive"),
    comment="Budgets of tiles and renditions that were set.",
    sqlite_autoincrement=True,
)

browser_renditions = Table(
    "browser_renditions",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column(
        "digest",
        String(64),
        nullable=False,
        comment="blake3 of the logical file at that time; other bytes are looked at again",
    ),
    Column("width", Integer, nullable=False, comment="greatest width, as in the policy"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was done"),
    Column(
        "refused",
        Text,
        comment="why there can be no rendition; null: it was made, or browsers play the video",
    ),
    comment="Videos that have had the rendition of the rule browser, or need none. A rendition "
    "that the budget evicts is not made again.",
    sqlite_with_rowid=False,
)

pins = Table(
    "pins",
    metadata,
    row_id("row id, never reused"),
    owner("video_id", "videos.id", "the logical video"),
    Column("first_frame", BigInteger, nullable=False, comment="first frame, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last frame"),
    Column("role", String(16), comment="tiled or rendition; null: both"),
    Column("width", Integer, comment="pixels of a rendition's displayed frame; null: any size"),
    Column("height", Integer, comment="goes with width"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was pinned"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="frames"),
    CheckConstraint("role IS NULL OR role IN ('tiled', 'rendition')", name="role"),
    CheckConstraint("(width IS NULL) = (height IS NULL)", name="size"),
    CheckConstraint("width IS NULL OR role = 'rendition'", name="of_rendition"),
    Index(None, "video_id"),
    comment="Pins: active segments that overlap these frames are neither charged nor evicted.",
    sqlite_autoincrement=True,
)

evictions = Table(
    "evictions",
    metadata,
    row_id("ascending in time"),
    owner("video_id", "videos.id", "the logical video"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was evicted"),
    Column(
        "why",
        String(32),
        nullable=False,
        comment="the budget that was full: video, partner or store",
    ),
    Column("role", String(16), nullable=False, comment="tiled or rendition"),
    Column(
        "first_frame",
        BigInteger,
        nullable=False,
        comment="first frame of the segment, in display order",
    ),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last frame"),
    Column("width", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("height", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("layout", Text, nullable=False, comment="see vfsd.tiling.TileLayout"),
    Column("profile", String(32), nullable=False, comment="the tile codec: fast, small ..."),
    Column("bytes", BigInteger, nullable=False, comment="bytes of its pack"),
    Column("retired", Boolean, nullable=False, comment="it was kept only for undo"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was published"),
    Column("used_ns", BigInteger, comment="when it was last used; null: never"),
    Column(
        "uses",
        Float,
        nullable=False,
        comment="number of reads that used it, decayed up to the eviction",
    ),
    Column(
        "saved", Float, nullable=False, comment="CPU seconds that it saved them, decayed likewise"
    ),
    Index(None, "video_id"),
    comment="Log of evicted segments. Only the newest rows are kept.",
    sqlite_autoincrement=True,
)

work_orders = Table(
    "work_orders",
    metadata,
    Column("id", String(8), primary_key=True, comment="drawn at random, hexadecimal"),
    Column("verb", String(16), nullable=False, comment="the command: retile, detect, ..."),
    Column("spec", JSON, nullable=False, comment="its arguments, for people"),
    Column("units", Integer, nullable=False, comment="number of units"),
    Column("cost", Float, nullable=False, comment="expected CPU seconds"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was planned"),
    Column("cancelled_ns", BigInteger, comment="when it was cancelled; null: it was not"),
    comment="Work that is planned in units, which any process may perform.",
)

work_units = Table(
    "work_units",
    metadata,
    Column(
        "order_id",
        String(8),
        ForeignKey("work_orders.id", ondelete="CASCADE"),
        primary_key=True,
        comment="the order",
    ),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="from 0"),
    Column("unit", JSON, nullable=False, comment="the work: see vfsd.work.units"),
    comment="Units of orders. They are stored, since a plan made later could differ.",
)

work_results = Table(
    "work_results",
    metadata,
    row_id("ascending in order of arrival"),
    Column(
        "order_id",
        String(8),
        ForeignKey("work_orders.id", ondelete="CASCADE"),
        nullable=False,
        comment="the order",
    ),
    Column("number", Integer, comment="of the unit; null: of all units"),
    Column("attempt", String(32), nullable=False, comment="drawn when a process began the unit"),
    Column(
        "outcome",
        String(16),
        nullable=False,
        comment="begun, made, skipped, outdated, failed, refused, cancelled, again or retry",
    ),
    Column("host", Text, nullable=False, comment="name of the machine"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was added"),
    Column("cpu", Float, comment="CPU seconds"),
    Column("frames", BigInteger, comment="number of frames of the unit"),
    Column("made", Integer, comment="number of new segments, boxes or videos"),
    Column("bytes_read", BigInteger, comment="approximate bytes of originals"),
    Column("bytes_written", BigInteger, comment="bytes of new data"),
    Column("error", Text, comment="the message, if it failed"),
    Column("exit_code", Integer, comment="goes with error"),
    Index(None, "order_id", "number"),
    comment="Log of the units of orders. Rows are only added.",
    sqlite_autoincrement=True,
)

suspects = Table(
    "suspects",
    metadata,
    Column(
        "key", Text, primary_key=True, comment="the object, or the path of a file indexed in place"
    ),
    Column("crashes", Integer, nullable=False, comment="number of crashed processes"),
    Column("at", Float, nullable=False, comment="Unix time of the last crash"),
    Column("how", Text, nullable=False, comment="reason of the last crash"),
    Column("barred", Boolean, nullable=False, comment="whether no process may decode it"),
    comment="Files that crashed processes while they were decoded. Only on a server; other stores "
    "have suspects.json.",
)
