"""The first schema: objects, the tree, videos, their stored encodings and frame tables."""

import os
import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Read-only pictures for people who like SQL: every name of every file, and every video.
_PATHS = """
CREATE VIEW v_files AS
WITH RECURSIVE walk(ino, path) AS (
    SELECT CAST(1 AS BIGINT), {empty}
    UNION ALL
    SELECT entries.ino, CASE WHEN walk.path = {empty} THEN {name}
                             ELSE walk.path || '/' || {name} END
    FROM walk JOIN entries ON entries.parent = walk.ino
)
SELECT walk.path AS path, nodes.ino AS ino, nodes.mode AS mode, nodes.size AS size,
       nodes.mtime_ns AS mtime_ns, nodes.state AS state, nodes.reason AS reason,
       nodes.object_key AS object_key
FROM walk JOIN nodes ON nodes.ino = walk.ino
WHERE walk.path <> {empty}
"""

_VIDEOS = """
CREATE VIEW v_videos AS
SELECT v_files.path AS name, videos.id AS id, physical_videos.codec AS codec,
       physical_videos.container AS container, physical_videos.width AS width,
       physical_videos.height AS height, physical_videos.frames AS frames,
       1.0 * (physical_videos.end_pts - physical_videos.first_pts)
           * physical_videos.time_base_num / physical_videos.time_base_den AS seconds,
       v_files.size AS size, v_files.mtime_ns AS mtime_ns, videos.digest AS digest,
       videos.metadata AS metadata, videos.created_ns AS created_ns
FROM videos
JOIN v_files ON v_files.ino = videos.ino
JOIN physical_videos ON physical_videos.video_id = videos.id
                    AND physical_videos.role = 'original'
"""


def upgrade() -> None:
    op.create_table(
        "objects",
        sa.Column(
            "key", sa.String(length=64), nullable=False, comment="blake3 of the bytes, hexadecimal"
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.Column(
            "created_ns", sa.BigInteger(), nullable=False, comment="when it was first published"
        ),
        sa.CheckConstraint("size >= 0", name=op.f("ck_objects_size")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_objects")),
        comment="Immutable objects. A row is written only after the bytes are durable; bytes "
        "without a row are garbage.",
    )
    op.create_table(
        "nodes",
        sa.Column(
            "ino", _Id, autoincrement=True, nullable=False, comment="inode number; 1 is the root"
        ),
        sa.Column(
            "mode",
            sa.Integer(),
            nullable=False,
            comment="file type and permission bits, as in stat",
        ),
        sa.Column("uid", sa.BigInteger(), nullable=False, comment="owner"),
        sa.Column("gid", sa.BigInteger(), nullable=False, comment="group"),
        sa.Column(
            "nlink",
            sa.Integer(),
            nullable=False,
            comment="names; of a directory 2 + subdirectories",
        ),
        sa.Column(
            "size",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="bytes; of spooled and plain files the private file knows better",
        ),
        sa.Column(
            "atime_ns", sa.BigInteger(), nullable=False, comment="last access, as set by utimens"
        ),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False, comment="last change of content"),
        sa.Column("ctime_ns", sa.BigInteger(), nullable=False, comment="last change of anything"),
        sa.Column(
            "rdev", sa.BigInteger(), server_default="0", nullable=False, comment="device files only"
        ),
        sa.Column(
            "target",
            sa.LargeBinary(),
            nullable=True,
            comment="symbolic links only: where it points",
        ),
        sa.Column(
            "state",
            sa.String(length=8),
            nullable=True,
            comment="regular files only: spooled (private file, not yet judged), plain (private "
            "file, no video), video (object or linked file)",
        ),
        sa.Column(
            "object_key",
            sa.String(length=64),
            nullable=True,
            comment="videos only: the object that holds the bytes; null for one indexed in place",
        ),
        sa.Column(
            "link_path",
            sa.LargeBinary(),
            nullable=True,
            comment="videos indexed in place only: absolute path of the file",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=True,
            comment="why a file is no video, or was not examined yet",
        ),
        sa.Column(
            "generation",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="counts changes of content; what was cached of another generation is stale",
        ),
        sa.CheckConstraint(
            "(object_key IS NULL AND link_path IS NULL) OR state = 'video'",
            name=op.f("ck_nodes_bytes"),
        ),
        sa.CheckConstraint(
            "state IS NULL OR state IN ('spooled', 'plain', 'video')", name=op.f("ck_nodes_state")
        ),
        sa.CheckConstraint("nlink >= 0", name=op.f("ck_nodes_nlink")),
        sa.ForeignKeyConstraint(["object_key"], ["objects.key"], name=op.f("fk_nodes_object_key")),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_nodes")),
        comment="Inodes of the tree that the mount shows.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_nodes_object_key"), "nodes", ["object_key"], unique=False)
    op.create_index(op.f("ix_nodes_state"), "nodes", ["state"], unique=False)
    op.create_table(
        "entries",
        sa.Column("parent", _Id, autoincrement=False, nullable=False, comment="the directory"),
        sa.Column(
            "name",
            sa.LargeBinary(length=255),
            nullable=False,
            comment="one path component, no slash",
        ),
        sa.Column("ino", _Id, nullable=False, comment="what it names"),
        sa.ForeignKeyConstraint(["ino"], ["nodes.ino"], name=op.f("fk_entries_ino")),
        sa.ForeignKeyConstraint(["parent"], ["nodes.ino"], name=op.f("fk_entries_parent")),
        sa.PrimaryKeyConstraint("parent", "name", name=op.f("pk_entries")),
        comment="Names. A file with hard links has several.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_entries_ino"), "entries", ["ino"], unique=False)
    op.create_table(
        "orphans",
        sa.Column(
            "ino",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="a file without a name that some process still has open",
        ),
        sa.Column(
            "former_parent",
            _Id,
            nullable=True,
            comment="set while the name was taken only to let a rename over it follow: where it "
            "was",
        ),
        sa.Column(
            "former_name",
            sa.LargeBinary(length=255),
            nullable=True,
            comment="goes with former_parent",
        ),
        sa.Column("since_ns", sa.BigInteger(), nullable=False, comment="when it lost its name"),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_orphans_ino"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_orphans")),
        comment="Unlinked while open. Deleted at the last close, or when the store is next "
        "mounted; one with a former name gets it back then, if the name is still free.",
    )
    op.create_table(
        "videos",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="never used again"),
        sa.Column("ino", _Id, nullable=False, comment="the file that it is"),
        sa.Column(
            "digest", sa.String(length=64), nullable=False, comment="blake3 of the logical file"
        ),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it became a video"),
        sa.Column(
            "metadata", sa.JSON(), nullable=False, comment="what users attach: a JSON object"
        ),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_videos_ino"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_videos")),
        sa.UniqueConstraint("ino", name=op.f("uq_videos_ino")),
        comment="Logical videos: files of the tree that are understood as video.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_videos_digest"), "videos", ["digest"], unique=False)
    op.create_table(
        "xattrs",
        sa.Column("ino", _Id, autoincrement=False, nullable=False, comment="whose attribute it is"),
        sa.Column(
            "name", sa.LargeBinary(length=255), nullable=False, comment="with its namespace: user.x"
        ),
        sa.Column("value", sa.LargeBinary(), nullable=False, comment="up to 64 KiB"),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_xattrs_ino"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ino", "name", name=op.f("pk_xattrs")),
        comment="Extended attributes as users set them; user.vfsd.* are computed and not stored.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "physical_videos",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="never used again"),
        sa.Column("video_id", _Id, nullable=False, comment="the logical video that it stores"),
        sa.Column(
            "role", sa.String(length=16), nullable=False, comment="original, tiled or rendition"
        ),
        sa.Column(
            "container",
            sa.String(length=16),
            nullable=False,
            comment="mp4, matroska, avi, mpegts ...",
        ),
        sa.Column(
            "codec",
            sa.String(length=32),
            nullable=False,
            comment="FFmpeg's name: h264, hevc, av1 ...",
        ),
        sa.Column("width", sa.Integer(), nullable=False, comment="pixels of the displayed frame"),
        sa.Column("height", sa.Integer(), nullable=False, comment="pixels of the displayed frame"),
        sa.Column("frames", sa.BigInteger(), nullable=False, comment="displayed frames"),
        sa.Column("packets", sa.BigInteger(), nullable=False, comment="coded packets"),
        sa.Column(
            "first_pts", sa.BigInteger(), nullable=False, comment="ticks: first frame appears"
        ),
        sa.Column(
            "end_pts",
            sa.BigInteger(),
            nullable=False,
            comment="ticks: last frame stops being shown",
        ),
        sa.Column(
            "time_base_num", sa.BigInteger(), nullable=False, comment="seconds per tick, numerator"
        ),
        sa.Column(
            "time_base_den",
            sa.BigInteger(),
            nullable=False,
            comment="seconds per tick, denominator",
        ),
        sa.Column(
            "access", sa.String(length=16), nullable=False, comment="extent, demux or sequential"
        ),
        sa.Column(
            "object_key",
            sa.String(length=64),
            nullable=True,
            comment="the object; null for a file indexed in place",
        ),
        sa.Column(
            "link_path", sa.LargeBinary(), nullable=True, comment="the file indexed in place"
        ),
        sa.Column(
            "size", sa.BigInteger(), nullable=False, comment="bytes of the object or linked file"
        ),
        sa.Column(
            "verified", sa.Boolean(), nullable=False, comment="a full decode confirmed the table"
        ),
        sa.Column(
            "parent_id", _Id, nullable=True, comment="what it was made from; null for an original"
        ),
        sa.Column("parameters", sa.JSON(), nullable=False, comment="what it was made with"),
        sa.Column(
            "software",
            sa.String(length=255),
            nullable=False,
            comment="versions that made or indexed it",
        ),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was made"),
        sa.Column(
            "media",
            sa.JSON(),
            nullable=False,
            comment="the rest of what the file says of its stream",
        ),
        sa.Column("extradata", sa.LargeBinary(), nullable=False, comment="codec configuration"),
        sa.Column(
            "notes", sa.JSON(), nullable=False, comment="list of oddities met while indexing"
        ),
        sa.CheckConstraint(
            "access IN ('extent', 'demux', 'sequential')", name=op.f("ck_physical_videos_access")
        ),
        sa.CheckConstraint(
            "role IN ('original', 'tiled', 'rendition')", name=op.f("ck_physical_videos_role")
        ),
        sa.CheckConstraint(
            "(object_key IS NULL) <> (link_path IS NULL)", name=op.f("ck_physical_videos_bytes")
        ),
        sa.CheckConstraint(
            "frames > 0 AND time_base_num > 0 AND time_base_den > 0",
            name=op.f("ck_physical_videos_time"),
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_physical_videos_object_key")
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["physical_videos.id"],
            name=op.f("fk_physical_videos_parent_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_physical_videos_video_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_physical_videos")),
        comment="Stored encodings of logical videos. Each video has exactly one original.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_physical_videos_codec"), "physical_videos", ["codec"], unique=False)
    op.create_index(
        op.f("ix_physical_videos_object_key"), "physical_videos", ["object_key"], unique=False
    )
    op.create_index(
        op.f("ix_physical_videos_video_id_role"),
        "physical_videos",
        ["video_id", "role"],
        unique=False,
    )
    op.create_table(
        "tags",
        sa.Column("video_id", _Id, autoincrement=False, nullable=False, comment="whose tag it is"),
        sa.Column("tag", sa.String(length=255), nullable=False, comment="a word"),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_tags_video_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("video_id", "tag", name=op.f("pk_tags")),
        comment="Tags that users give to videos.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_tags_tag"), "tags", ["tag"], unique=False)
    op.create_table(
        "frame_pages",
        sa.Column(
            "physical_id", _Id, autoincrement=False, nullable=False, comment="whose frames they are"
        ),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="0, 1, 2 ... without gaps"),
        sa.Column("first_packet", sa.BigInteger(), nullable=False, comment="in decode order"),
        sa.Column("packets", sa.Integer(), nullable=False, comment="in this page"),
        sa.Column("first_frame", sa.BigInteger(), nullable=False, comment="in display order"),
        sa.Column("frames", sa.Integer(), nullable=False, comment="in this page"),
        sa.Column(
            "first_pts", sa.BigInteger(), nullable=False, comment="lowest in the page, ticks"
        ),
        sa.Column(
            "last_pts", sa.BigInteger(), nullable=False, comment="highest in the page, ticks"
        ),
        sa.Column(
            "key_packet",
            sa.BigInteger(),
            nullable=False,
            comment="key packet that the page's first packet decodes from; -1: none",
        ),
        sa.Column(
            "data", sa.LargeBinary(), nullable=False, comment="see vfsd.framepages.FramePage"
        ),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_frame_pages_physical_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("physical_id", "ordinal", name=op.f("pk_frame_pages")),
        comment="Frame tables, cut into pages of about 2048 packets.",
    )

    sqlite = op.get_bind().dialect.name == "sqlite"
    name = "CAST(entries.name AS TEXT)" if sqlite else "convert_from(entries.name, 'UTF8')"
    empty = "''" if sqlite else "convert_from(''::bytea, 'UTF8')"
    op.execute(_PATHS.format(name=name, empty=empty))
    op.execute(_VIDEOS)
    now = time.time_ns()
    nodes = sa.table(
        "nodes",
        *map(sa.column, ("mode", "uid", "gid", "nlink", "atime_ns", "mtime_ns", "ctime_ns")),
    )
    op.execute(
        nodes.insert().values(  # the root, which gets number 1
            mode=0o040755,
            uid=os.getuid(),
            gid=os.getgid(),
            nlink=2,
            atime_ns=now,
            mtime_ns=now,
            ctime_ns=now,
        )
    )


def downgrade() -> None:
    raise NotImplementedError("there is nothing before the first version")
