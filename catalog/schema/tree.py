"""Tables of the tree that the mount shows: inodes, their names and extended attributes."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import Id, metadata, owner_key

nodes = Table(
    "nodes",
    metadata,
    Column("ino", Id, primary_key=True, autoincrement=True, comment="inode number; 1 is the root"),
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
        Id,
        ForeignKey("nodes.ino"),
        primary_key=True,
        autoincrement=False,
        comment="the directory",
    ),
    Column("name", LargeBinary(255), primary_key=True, comment="one path component, no slash"),
    Column("ino", Id, ForeignKey("nodes.ino"), nullable=False, comment="what it names"),
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
        Id,
        comment="set while the name was taken only to let a rename over it follow: where it was",
    ),
    Column("former_name", LargeBinary(255), comment="goes with former_parent"),
    Column("since_ns", BigInteger, nullable=False, comment="when it lost its name"),
    comment="Unlinked while open. Deleted at the last close, or when the store is next mounted; "
    "one with a former name gets it back then, if the name is still free.",
)
