"""Tables of the file tree, stored objects, checksums, retention policies and holds."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import IdType, metadata, owner_key, row_id

nodes = Table(
    "nodes",
    metadata,
    Column(
        "ino", IdType, primary_key=True, autoincrement=True, comment="inode number; 1 is the root"
    ),
    Column("mode", Integer, nullable=False, comment="file type and permission bits, as in stat"),
    Column("uid", BigInteger, nullable=False, comment="owner"),
    Column("gid", BigInteger, nullable=False, comment="group"),
    Column("nlink", Integer, nullable=False, comment="names; of a directory 2 + subdirectories"),
    Column(
        "size",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="bytes; of spooled and plain files the private file knows better",
    ),
    Column("atime_ns", BigInteger, nullable=False, comment="last access, as set by utimens"),
    Column("mtime_ns", BigInteger, nullable=False, comment="last change of content"),
    Column("ctime_ns", BigInteger, nullable=False, comment="last change of anything"),
    Column("rdev", BigInteger, nullable=False, server_default="0", comment="device files only"),
    Column("target", LargeBinary, comment="symbolic links only: where it points"),
    Column(
        "state",
        String(8),
        comment="regular files only: spooled (private file, not yet judged), plain (private file, "
        "no video), video (object or linked file)",
    ),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        comment="videos only: the object that holds the bytes; null for one indexed in place",
    ),
    Column(
        "link_path", LargeBinary, comment="videos indexed in place only: absolute path of the file"
    ),
    Column("reason", Text, comment="why a file is no video, or was not examined yet"),
    Column(
        "generation",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="counts changes of content; what was cached of another generation is stale",
    ),
    CheckConstraint(
        "state IS NULL OR state IN ('spooled', 'plain', 'video')",
        name="state",
    ),
    CheckConstraint(
        "(object_key IS NULL AND link_path IS NULL) OR state = 'video'",
        name="bytes",
    ),
    CheckConstraint("nlink >= 0", name="nlink"),
    Index(None, "object_key"),
    Index(None, "state"),
    comment="Inodes of the tree that the mount shows.",
    sqlite_autoincrement=True,
)

entries = Table(
    "entries",
    metadata,
    Column(
        "parent",
        IdType,
        ForeignKey("nodes.ino"),
        primary_key=True,
        autoincrement=False,
        comment="the directory",
    ),
    Column("name", LargeBinary(255), primary_key=True, comment="one path component, no slash"),
    Column("ino", IdType, ForeignKey("nodes.ino"), nullable=False, comment="what it names"),
    Index(None, "ino"),
    comment="Names. A file with hard links has several.",
    sqlite_with_rowid=False,
)

xattrs = Table(
    "xattrs",
    metadata,
    owner_key("ino", "nodes.ino", "whose attribute it is"),
    Column("name", LargeBinary(255), primary_key=True, comment="with its namespace: user.x"),
    Column("value", LargeBinary, nullable=False, comment="up to 64 KiB"),
    comment="Extended attributes as users set them; user.vfsd.* are computed and not stored.",
    sqlite_with_rowid=False,
)

orphans = Table(
    "orphans",
    metadata,
    owner_key("ino", "nodes.ino", "a file without a name that some process still has open"),
    Column(
        "former_parent",
        IdType,
        comment="set while the name was taken only to let a rename over it follow: where it was",
    ),
    Column("former_name", LargeBinary(255), comment="goes with former_parent"),
    Column("since_ns", BigInteger, nullable=False, comment="when it lost its name"),
    comment="Unlinked while open. Deleted at the last close, or when the store is next mounted; "
    "one with a former name gets it back then, if the name is still free.",
)


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
        IdType,
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
    Column("video_id", IdType, nullable=False, comment="the video, which may be gone"),
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
