"""Tables of what may become of originals, and of what became of them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import Id, metadata, owner_key, row_id

policies = Table(
    "policies",
    metadata,
    owner_key(
        "ino", "nodes.ino", "the video, or the directory with all below that have none of their own"
    ),
    Column("original", String(16), nullable=False, comment="keep or replaceable"),
    Column(
        "psnr",
        Float,
        nullable=False,
        comment="dB that what takes an original's place has at least, against the very first",
    ),
    Column("codec", String(16), nullable=False, comment="h264, hevc or av1: when it ages"),
    Column("replace_after", BigInteger, comment="seconds of age; null: not by age"),
    Column("decay_after", BigInteger, comment="seconds of age; null: never"),
    Column("keep", Text, comment="labels of what keeps its quality then"),
    Column("delete_after", BigInteger, comment="seconds of age; null: never"),
    Column("delete_below", BigInteger, comment="bytes free on the disk, below which the oldest go"),
    Column(
        "reads",
        Float,
        comment="dB of luma that tiles need for reads that ask for none; null: as the store has it",
    ),
    Column(
        "delete_above",
        BigInteger,
        comment="bytes of all videos that go by it, above which the oldest go",
    ),
    CheckConstraint("original IN ('keep', 'replaceable')", name="original"),
    comment="What may become of originals, where somebody has said so.",
)

# The foreign key has no cascade, so a video under a hold cannot be deleted by any code path.
holds = Table(
    "holds",
    metadata,
    row_id("never used again"),
    Column(
        "video_id",
        Id,
        ForeignKey("videos.id"),
        nullable=False,
        comment="the video that must neither change nor go; it cannot as long as this row is there",
    ),
    Column("reason", Text, nullable=False, comment="as somebody has put it"),
    Column("at_ns", BigInteger, nullable=False, comment="since when"),
    Index(None, "video_id"),
    comment="Videos that nobody may change or remove.",
    sqlite_autoincrement=True,
)

original_log = Table(
    "original_log",
    metadata,
    row_id("by order of time"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was done"),
    Column(
        "action",
        String(16),
        nullable=False,
        comment="replaced, decayed, deleted, left, held or released; believed: the clock was",
    ),
    Column("video_id", Id, nullable=False, comment="the video, which may be gone"),
    Column("name", Text, nullable=False, comment="its path then"),
    Column("reason", Text, nullable=False, comment="why"),
    Column("digest", String(64), nullable=False, comment="blake3 of the file before"),
    Column("size", BigInteger, nullable=False, comment="its bytes"),
    Column("new_digest", String(64), comment="blake3 of the file afterwards; null: none, or same"),
    Column("new_size", BigInteger, comment="goes with new_digest"),
    Column(
        "psnr",
        Float,
        comment="dB that its pictures have at least against the very first original; null: not "
        "told",
    ),
    Column("details", JSON, nullable=False, comment="what was measured, and how it was made"),
    Index(None, "video_id"),
    comment="What became of originals, and what was said of them. Never shortened.",
    sqlite_autoincrement=True,
)
