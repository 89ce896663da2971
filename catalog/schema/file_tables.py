"""Tables of the file tree, stored objects, checksums, retention policies and holds."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    func,
    literal_column,
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
    Column(
        "nlink",
        Integer,
        nullable=False,
        comment="number of names; for a directory 2 + subdirectories",
    ),
    Column(
        "size",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="bytes; for spooled and plain files, see the private file instead",
    ),
    Column("atime_ns", BigInteger, nullable=False, comment="last access, as set by utimens"),
    Column("mtime_ns", BigInteger, nullable=False, comment="last change of content"),
    Column("ctime_ns", BigInteger, nullable=False, comment="last change of anything"),
    Column("rdev", BigInteger, nullable=False, server_default="0", comment="device files only"),
    Column("target", LargeBinary, comment="symbolic links only: the target"),
    Column(
        "state",
        String(8),
        comment="regular files only: spooled (private file, not yet classified), plain "
        "(private file, not a video), stored (the same as an object or in small_files), video "
        "(object or linked file)",
    ),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        comment="the object that holds the bytes; null for files indexed in place or in "
        "small_files",
    ),
    Column(
        "link_path", LargeBinary, comment="videos indexed in place only: absolute path of the file"
    ),
    Column("reason", Text, comment="why a file is not a video, or is not examined yet"),
    Column(
        "generation",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="counts changes of content; caches of other generations are stale",
    ),
    Column("home", String(36), comment="the home with the private file; null: the only one"),
    CheckConstraint(
        "state IS NULL OR state IN ('spooled', 'plain', 'video', 'stored')",
        name="state",
    ),
    CheckConstraint(
        "(object_key IS NULL AND link_path IS NULL) OR state IN ('video', 'stored')",
        name="bytes",
    ),
    CheckConstraint("nlink >= 0", name="nlink"),
    Index(None, "object_key"),
    Index(None, "state"),
    comment="Inodes of the tree that the mount shows.",
    sqlite_autoincrement=True,
)

ROOT = 1
"""The inode number of the root directory."""
IS_ROOT = nodes.c.ino == literal_column(str(ROOT))

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
    Column("ino", IdType, ForeignKey("nodes.ino"), nullable=False, comment="the named inode"),
    Index(None, "ino"),
    comment="Names. A file with hard links has several.",
    sqlite_with_rowid=False,
)

xattrs = Table(
    "xattrs",
    metadata,
    owner_key("ino", "nodes.ino", "the inode with the attribute"),
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
        comment="set while a rename over the name is expected: directory of the former name",
    ),
    Column("former_name", LargeBinary(255), comment="goes with former_parent"),
    Column("since_ns", BigInteger, nullable=False, comment="when it lost its last name"),
    Column("home", String(36), comment="the home that has it open; null: the only one"),
    comment="Files that were unlinked while open. Deleted at the last close, or when "
    "the store is next mounted. One with a former name then gets it back, if "
    "the name is free.",
)

small_files = Table(
    "small_files",
    metadata,
    owner_key("ino", "nodes.ino", "a stored file"),
    Column("data", LargeBinary, nullable=False, comment="all of its bytes"),
    comment="Bytes of small files that are not videos, in stores with a bucket and several homes. "
    "An object for each would cost more than its bytes.",
)

writers = Table(
    "writers",
    metadata,
    owner_key("ino", "nodes.ino", "a file that is open for writing"),
    Column("mount", String(36), nullable=False, comment="id of the mount; see mounts"),
    comment="The mount that may write a file. A row of a mount that has lost its lease is void.",
)


objects = Table(
    "objects",
    metadata,
    Column("key", String(64), primary_key=True, comment="blake3 of the bytes, hexadecimal"),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was first published"),
    Column("place", Text, comment="name in the bucket of the store; null: a file of a home"),
    CheckConstraint("size >= 0", name="size"),
    comment="Immutable objects. A row is written only after the bytes are durable; bytes without "
    "a row are garbage.",
)

pack_tables = Table(
    "pack_tables",
    metadata,
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key", ondelete="CASCADE"),
        primary_key=True,
        comment="an object in the bucket of the store",
    ),
    Column(
        "pack_at",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="position of a pack in the object",
    ),
    Column(
        "packed",
        LargeBinary,
        nullable=False,
        comment="CRC-32 of the table of contents at the start of the pack, and the table, deflated",
    ),
    comment="Copies of the tables of packs in a bucket, so that a read fetches its packets at "
    "once. Packs without a row are read as well.",
    sqlite_with_rowid=False,
)

uploads = Table(
    "uploads",
    metadata,
    Column("place", Text, primary_key=True, comment="name in the bucket, never used before"),
    Column("key", String(64), nullable=False, comment="the object that is being uploaded"),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    Column(
        "began",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
        comment="when it was begun, by the clock of the database",
    ),
    Column(
        "expires",
        DateTime(timezone=True),
        nullable=False,
        comment="end of its lease, by the clock of the database",
    ),
    Column("home", String(36), comment="the home that uploads it; null: the only one"),
    comment="Leases of uploads to the bucket. The transaction that records the object deletes the "
    "row; after the lease, the bytes are garbage.",
)

garbage = Table(
    "garbage",
    metadata,
    Column("place", Text, primary_key=True, comment="name in the bucket"),
    Column(
        "since",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
        comment="when it was last needed, by the clock of the database",
    ),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    comment="Files of the bucket that nothing refers to. Deleted after a grace period.",
)

block_sums = Table(
    "block_sums",
    metadata,
    row_id("row id"),
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
        comment="files indexed in place only: their mtime; the checksums hold only for this mtime",
    ),
    Column("block", Integer, nullable=False, comment="bytes of a block; the last may be shorter"),
    Column(
        "sums", LargeBinary, nullable=False, comment="the first 8 bytes of the blake3 of each block"
    ),
    CheckConstraint("(object_key IS NULL) <> (link_path IS NULL)", name="place"),
    CheckConstraint("size >= 0 AND block > 0", name="size"),
    comment="Block checksums of originals, to verify reads.",
)

inspections = Table(
    "inspections",
    metadata,
    row_id("row id"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key", ondelete="CASCADE"),
        unique=True,
        comment="the object; null for a file indexed in place",
    ),
    Column("link_path", LargeBinary, unique=True, comment="the file indexed in place"),
    Column("looked_ns", BigInteger, comment="last complete inspection; null: never"),
    Column(
        "damage",
        JSON(none_as_null=True),
        comment="damaged byte ranges: a list of [first, end]; null: none",
    ),
    Column("found_ns", BigInteger, comment="when damage was found; goes with damage"),
    CheckConstraint("(object_key IS NULL) <> (link_path IS NULL)", name="place"),
    comment="Results of inspecting stored bytes.",
)

scrubs = Table(
    "scrubs",
    metadata,
    row_id("ascending in time"),
    Column("what", Text, nullable=False, comment="the selected names; empty: everything"),
    Column("begun_ns", BigInteger, nullable=False, comment="when it began"),
    Column("ended_ns", BigInteger, comment="when it was complete; null: interrupted or running"),
    comment="Runs of `vfsd scrub`. Only the newest rows are kept.",
    sqlite_autoincrement=True,
)


policies = Table(
    "policies",
    metadata,
    owner_key(
        "ino",
        "nodes.ino",
        "the video, or the directory, which covers everything below without a policy of its own",
    ),
    Column("original", String(16), nullable=False, comment="keep or replaceable"),
    Column(
        "psnr",
        Float,
        nullable=False,
        comment="minimum dB of a replacement against the first original",
    ),
    Column(
        "codec",
        String(16),
        nullable=False,
        comment="codec of replacements by age: h264, hevc or av1",
    ),
    Column("replace_after", BigInteger, comment="age in seconds for replacement; null: never"),
    Column("decay_after", BigInteger, comment="age in seconds; null: never"),
    Column("keep", Text, comment="labels of areas that keep their quality when the video decays"),
    Column("delete_after", BigInteger, comment="age in seconds; null: never"),
    Column(
        "delete_below", BigInteger, comment="bytes: delete the oldest while less disk space is free"
    ),
    Column(
        "reads",
        Float,
        comment="minimum luma dB of tiles for reads that request none; null: default of the store",
    ),
    Column(
        "delete_above",
        BigInteger,
        comment="bytes: delete the oldest while the videos under this policy take more",
    ),
    Column(
        "clock",
        String(16),
        nullable=False,
        server_default="latest",
        comment="time from which ages count: latest or recording",
    ),
    Column(
        "browser",
        Integer,
        comment="greatest width of the rendition that is made for browsers; null: none is made",
    ),
    CheckConstraint("original IN ('keep', 'replaceable')", name="original"),
    comment="Retention policies that were set on files and directories.",
)

# Without a cascade on the foreign key, no code path can delete a video under a hold.
holds = Table(
    "holds",
    metadata,
    row_id("row id, never reused"),
    Column(
        "video_id",
        IdType,
        ForeignKey("videos.id"),
        nullable=False,
        comment="the video, which cannot be changed or deleted while this row exists",
    ),
    Column("reason", Text, nullable=False, comment="reason given by the user"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was set"),
    Index(None, "video_id"),
    comment="Holds, which protect videos from changes and removal.",
    sqlite_autoincrement=True,
)

original_log = Table(
    "original_log",
    metadata,
    row_id("ascending in time"),
    Column("at_ns", BigInteger, nullable=False, comment="time of the action"),
    Column(
        "action",
        String(16),
        nullable=False,
        comment="replaced, decayed, deleted, left, held or released; believed: the clock "
        "was trusted",
    ),
    Column("video_id", IdType, nullable=False, comment="the video, which may no longer exist"),
    Column("name", Text, nullable=False, comment="its path at that time"),
    Column("reason", Text, nullable=False, comment="reason of the action"),
    Column("digest", String(64), nullable=False, comment="blake3 of the file before"),
    Column("size", BigInteger, nullable=False, comment="size of the file before, bytes"),
    Column(
        "new_digest",
        String(64),
        comment="blake3 of the file afterwards; null: no file, or unchanged",
    ),
    Column("new_size", BigInteger, comment="goes with new_digest"),
    Column(
        "psnr",
        Float,
        comment="minimum dB of its pictures against the first original; null: unknown",
    ),
    Column("details", JSON, nullable=False, comment="measurements, and settings of the encoder"),
    Index(None, "video_id"),
    comment="Log of actions on originals, and of trust in the clock. Never truncated.",
    sqlite_autoincrement=True,
)
