"""The first schema."""

import os
import time
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v1"
down_revision = None

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: Any, comment: str, **rest: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, comment=comment, **rest)


_required = partial(_column, nullable=False)
_optional = partial(_column, nullable=True)

_NEXT = "[89ab][0-9a-f]"
_LETTERS = "|".join(
    (
        "[0-7][0-9a-f]",
        f"(c[2-9a-f]|d[0-9a-f]){_NEXT}",
        f"e0[ab][0-9a-f]{_NEXT}",
        f"e[1-9a-cef]({_NEXT}){{2}}",
        f"ed[89][0-9a-f]{_NEXT}",
        f"f0[9ab][0-9a-f]({_NEXT}){{2}}",
        f"f[1-3]({_NEXT}){{3}}",
        f"f48[0-9a-f]({_NEXT}){{2}}",
    )
)
"""UTF-8 in hexadecimal digits.  PostgreSQL refuses to convert anything else."""

_NAME_OF_SQLITE = "CAST(entries.name AS TEXT)"
_NAME_OF_POSTGRESQL = (
    f"CASE WHEN encode(entries.name, 'hex') ~ '^({_LETTERS})*$' "
    "THEN convert_from(entries.name, 'UTF8') ELSE encode(entries.name, 'escape') END"
)

# Read-only views for people who use SQL.
_FILES = """
CREATE VIEW v_files AS
WITH RECURSIVE walk(ino, path) AS (
    SELECT CAST(1 AS BIGINT), {root}
    UNION ALL
    SELECT entries.ino, CASE WHEN walk.path = '' THEN {name}
                             ELSE walk.path || '/' || {name} END
    FROM walk JOIN entries ON entries.parent = walk.ino
)
SELECT walk.path AS path, nodes.ino AS ino, nodes.mode AS mode, nodes.size AS size,
       nodes.mtime_ns AS mtime_ns, nodes.state AS state, nodes.reason AS reason,
       nodes.object_key AS object_key
FROM walk JOIN nodes ON nodes.ino = walk.ino
WHERE walk.path <> ''
"""

_VIEWS = (
    """
CREATE VIEW v_videos AS
SELECT v_files.path AS name, videos.id AS id, physical_videos.codec AS codec,
       physical_videos.container AS container, physical_videos.width AS width,
       physical_videos.height AS height, physical_videos.frames AS frames,
       1.0 * (physical_videos.end_pts - physical_videos.first_pts)
           * physical_videos.time_base_num / physical_videos.time_base_den AS seconds,
       v_files.size AS size, v_files.mtime_ns AS mtime_ns, videos.digest AS digest,
       videos.metadata AS metadata, videos.created_ns AS created_ns,
       videos.captured_ns AS captured_ns, videos.captured_clock AS captured_clock
FROM videos
JOIN v_files ON v_files.ino = videos.ino
JOIN physical_videos ON physical_videos.video_id = videos.id
                    AND physical_videos.role = 'original'
""",
    """
CREATE VIEW v_detections AS
SELECT v_files.path AS name, detections.video_id AS video_id, detections.frame AS frame,
       labels.name AS label, detections.x1 AS x1, detections.y1 AS y1, detections.x2 AS x2,
       detections.y2 AS y2, detections.confidence AS confidence, detections.track AS track,
       sources.name AS source, sources.model AS model, sources.version AS version,
       detections.attributes AS attributes
FROM detections
JOIN videos ON videos.id = detections.video_id
JOIN v_files ON v_files.ino = videos.ino AND v_files.state = 'video'
JOIN labels ON labels.id = detections.label_id
JOIN sources ON sources.id = detections.source_id
""",
    """
CREATE VIEW v_reads AS
SELECT v_files.path AS name, reads.video_id AS video_id, reads.at_ns AS at_ns,
       reads.kind AS kind, reads.first_frame AS first_frame, reads.end_frame AS end_frame,
       reads.frames AS frames, reads.x1 AS x1, reads.y1 AS y1, reads.x2 AS x2, reads.y2 AS y2,
       reads.width AS width, reads.height AS height, reads.labels AS labels,
       reads.pixels AS pixels, reads.untiled_pixels AS untiled_pixels,
       reads.predicted AS predicted, reads.untiled_predicted AS untiled_predicted,
       reads.seconds AS seconds, reads.segments AS segments, reads.tiles AS tiles,
       reads.original_frames AS original_frames
FROM reads
JOIN videos ON videos.id = reads.video_id
JOIN v_files ON v_files.ino = videos.ino AND v_files.state = 'video'
""",
    """
CREATE VIEW v_decisions AS
SELECT v_files.path AS name, decisions.id AS id, decisions.video_id AS video_id,
       decisions.segment_id AS segment_id, decisions.at_ns AS at_ns, decisions.maker AS maker,
       decisions.first_frame AS first_frame, decisions.end_frame AS end_frame,
       decisions.layout AS layout, decisions.tiles AS tiles, decisions.profile AS profile,
       decisions.reasons AS reasons, decisions.reads AS reads,
       decisions.predicted_seconds AS predicted_seconds,
       decisions.predicted_saved AS predicted_saved,
       decisions.predicted_bytes AS predicted_bytes, decisions.seconds AS seconds,
       decisions.bytes AS bytes, decisions.undone_ns AS undone_ns
FROM decisions
JOIN videos ON videos.id = decisions.video_id
JOIN v_files ON v_files.ino = videos.ino AND v_files.state = 'video'
""",
    """
CREATE VIEW v_evictions AS
SELECT v_files.path AS name, evictions.id AS id, evictions.video_id AS video_id,
       evictions.at_ns AS at_ns, evictions.why AS why, evictions.role AS role,
       evictions.first_frame AS first_frame, evictions.end_frame AS end_frame,
       evictions.width AS width, evictions.height AS height, evictions.layout AS layout,
       evictions.profile AS profile, evictions.bytes AS bytes, evictions.retired AS retired,
       evictions.created_ns AS created_ns, evictions.used_ns AS used_ns, evictions.uses AS uses,
       evictions.saved AS saved
FROM evictions
JOIN videos ON videos.id = evictions.video_id
JOIN v_files ON v_files.ino = videos.ino AND v_files.state = 'video'
""",
    """
CREATE VIEW v_original_log AS
SELECT id, at_ns, action, video_id, name, reason, digest, size, new_digest, new_size, psnr, details
FROM original_log
""",
)


def upgrade() -> None:
    for create in (
        _create_identity,
        _create_stored,
        _create_tree,
        _create_encodings,
        _create_tiles,
        _create_readlog,
        _create_limits,
        _create_originals,
        _create_semantic,
        _create_homes,
        _create_server,
        _create_work,
        _create_bucket,
        _create_vectors,
        _create_label_counts,
        _create_layers,
        _create_browser_renditions,
    ):
        create()
    _create_views()
    _create_root()


def _create_identity() -> None:
    """The store that owns the catalog."""
    op.create_table(
        "store_identity",
        _required("one", sa.Integer(), "always 1: there is only one row", autoincrement=False),
        _required("id", sa.Text(), "id in the marker file of the store"),
        _optional("bucket", sa.Text(), "URL of the bucket with copies of the objects; null: none"),
        _optional("bucket_options", sa.Text(), "options of its server as JSON, without secrets"),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_store_identity")),
        sa.CheckConstraint("one = 1", name=op.f("ck_store_identity_one")),
        comment=("The store that owns the catalog. Empty until a store has opened it for writing."),
    )


def _create_stored() -> None:
    """Objects, and what is known of their bytes."""
    op.create_table(
        "objects",
        _required("key", sa.String(length=64), "blake3 of the bytes, hexadecimal"),
        _required("size", sa.BigInteger(), "bytes"),
        _required("created_ns", sa.BigInteger(), "when it was first published"),
        _optional("place", sa.Text(), "name in the bucket of the store; null: a file of a home"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_objects")),
        sa.CheckConstraint("size >= 0", name=op.f("ck_objects_size")),
        comment=(
            "Immutable objects. A row is written only after the bytes are durable; "
            "bytes without a row are garbage."
        ),
    )
    op.create_table(
        "scrubs",
        _required("id", _Id, "ascending in time"),
        _required("what", sa.Text(), "the selected names; empty: everything"),
        _required("begun_ns", sa.BigInteger(), "when it began"),
        _optional(
            "ended_ns", sa.BigInteger(), "when it was complete; null: interrupted or running"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scrubs")),
        comment="Runs of `vfsd scrub`. Only the newest rows are kept.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "block_sums",
        _required("id", _Id, "row id"),
        _optional(
            "object_key", sa.String(length=64), "the object; null for a file indexed in place"
        ),
        _optional("link_path", sa.LargeBinary(), "the file indexed in place"),
        _required("size", sa.BigInteger(), "bytes of the file"),
        _optional(
            "mtime_ns",
            sa.BigInteger(),
            ("files indexed in place only: their mtime; the checksums hold only for this mtime"),
        ),
        _required("block", sa.Integer(), "bytes of a block; the last may be shorter"),
        _required("sums", sa.LargeBinary(), "the first 8 bytes of the blake3 of each block"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_block_sums")),
        sa.CheckConstraint(
            "(object_key IS NULL) <> (link_path IS NULL)", name=op.f("ck_block_sums_place")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"],
            ["objects.key"],
            name=op.f("fk_block_sums_object_key"),
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("object_key", name=op.f("uq_block_sums_object_key")),
        sa.UniqueConstraint("link_path", name=op.f("uq_block_sums_link_path")),
        sa.CheckConstraint("size >= 0 AND block > 0", name=op.f("ck_block_sums_size")),
        comment=("Block checksums of originals, to verify reads."),
    )
    op.create_table(
        "inspections",
        _required("id", _Id, "row id"),
        _optional(
            "object_key", sa.String(length=64), "the object; null for a file indexed in place"
        ),
        _optional("link_path", sa.LargeBinary(), "the file indexed in place"),
        _optional("looked_ns", sa.BigInteger(), "last complete inspection; null: never"),
        _optional(
            "damage",
            sa.JSON(none_as_null=True),
            ("damaged byte ranges: a list of [first, end]; null: none"),
        ),
        _optional("found_ns", sa.BigInteger(), "when damage was found; goes with damage"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inspections")),
        sa.CheckConstraint(
            "(object_key IS NULL) <> (link_path IS NULL)", name=op.f("ck_inspections_place")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"],
            ["objects.key"],
            name=op.f("fk_inspections_object_key"),
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("object_key", name=op.f("uq_inspections_object_key")),
        sa.UniqueConstraint("link_path", name=op.f("uq_inspections_link_path")),
        comment="Results of inspecting stored bytes.",
    )


def _create_tree() -> None:
    """Inodes, names and extended attributes."""
    op.create_table(
        "nodes",
        _required("ino", _Id, "inode number; 1 is the root"),
        _required("mode", sa.Integer(), "file type and permission bits, as in stat"),
        _required("uid", sa.BigInteger(), "owner"),
        _required("gid", sa.BigInteger(), "group"),
        _required("nlink", sa.Integer(), "number of names; for a directory 2 + subdirectories"),
        _required(
            "size",
            sa.BigInteger(),
            "bytes; for spooled and plain files, see the private file instead",
            server_default="0",
        ),
        _required("atime_ns", sa.BigInteger(), "last access, as set by utimens"),
        _required("mtime_ns", sa.BigInteger(), "last change of content"),
        _required("ctime_ns", sa.BigInteger(), "last change of anything"),
        _required("rdev", sa.BigInteger(), "device files only", server_default="0"),
        _optional("target", sa.LargeBinary(), "symbolic links only: the target"),
        _optional(
            "state",
            sa.String(length=8),
            "regular files only: spooled (private file, not yet classified), plain (private file, "
            "not a video), stored (the same as an object or in small_files), video (object or "
            "linked file)",
        ),
        _optional(
            "object_key",
            sa.String(length=64),
            "the object that holds the bytes; null for files indexed in place or in small_files",
        ),
        _optional(
            "link_path", sa.LargeBinary(), "videos indexed in place only: absolute path of the file"
        ),
        _optional("reason", sa.Text(), "why a file is not a video, or is not examined yet"),
        _required(
            "generation",
            sa.BigInteger(),
            ("counts changes of content; caches of other generations are stale"),
            server_default="0",
        ),
        _optional(
            "home",
            sa.String(length=36),
            "the home with the private file; null: the only one",
        ),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_nodes")),
        sa.CheckConstraint(
            "(object_key IS NULL AND link_path IS NULL) OR state IN ('video', 'stored')",
            name=op.f("ck_nodes_bytes"),
        ),
        sa.CheckConstraint(
            "state IS NULL OR state IN ('spooled', 'plain', 'video', 'stored')",
            name=op.f("ck_nodes_state"),
        ),
        sa.CheckConstraint("nlink >= 0", name=op.f("ck_nodes_nlink")),
        sa.ForeignKeyConstraint(["object_key"], ["objects.key"], name=op.f("fk_nodes_object_key")),
        comment="Inodes of the tree that the mount shows.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_nodes_object_key"), "nodes", ["object_key"], unique=False)
    op.create_index(op.f("ix_nodes_state"), "nodes", ["state"], unique=False)
    op.create_table(
        "entries",
        _required("parent", _Id, "the directory", autoincrement=False),
        _required("name", sa.LargeBinary(length=255), "one path component, no slash"),
        _required("ino", _Id, "the named inode"),
        sa.PrimaryKeyConstraint("parent", "name", name=op.f("pk_entries")),
        sa.ForeignKeyConstraint(["ino"], ["nodes.ino"], name=op.f("fk_entries_ino")),
        sa.ForeignKeyConstraint(["parent"], ["nodes.ino"], name=op.f("fk_entries_parent")),
        comment="Names. A file with hard links has several.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_entries_ino"), "entries", ["ino"], unique=False)
    op.create_table(
        "orphans",
        _required(
            "ino",
            _Id,
            "a file without a name that some process still has open",
            autoincrement=False,
        ),
        _optional(
            "former_parent",
            _Id,
            ("set while a rename over the name is expected: directory of the former name"),
        ),
        _optional("former_name", sa.LargeBinary(length=255), "goes with former_parent"),
        _required("since_ns", sa.BigInteger(), "when it lost its last name"),
        _optional("home", sa.String(length=36), "the home that has it open; null: the only one"),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_orphans")),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_orphans_ino"), ondelete="CASCADE"
        ),
        comment=(
            "Files that were unlinked while open. Deleted at the last close, or when "
            "the store is next mounted. One with a former name then gets it back, if "
            "the name is free."
        ),
    )
    op.create_table(
        "xattrs",
        _required("ino", _Id, "the inode with the attribute", autoincrement=False),
        _required("name", sa.LargeBinary(length=255), "with its namespace: user.x"),
        _required("value", sa.LargeBinary(), "up to 64 KiB"),
        sa.PrimaryKeyConstraint("ino", "name", name=op.f("pk_xattrs")),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_xattrs_ino"), ondelete="CASCADE"
        ),
        comment=("Extended attributes as users set them; user.vfsd.* are computed and not stored."),
        sqlite_with_rowid=False,
    )


def _create_encodings() -> None:
    """Videos, their stored encodings, frame tables and sound."""
    op.create_table(
        "videos",
        _required("id", _Id, "row id, never reused"),
        _required("ino", _Id, "inode of the file"),
        _required("digest", sa.String(length=64), "blake3 of the logical file"),
        _required("created_ns", sa.BigInteger(), "when it became a video"),
        _required("metadata", sa.JSON(), "metadata set by users: a JSON object"),
        _optional(
            "captured_ns", sa.BigInteger(), "when its first frame was recorded; null: unknown"
        ),
        _optional(
            "captured_clock",
            sa.String(length=16),
            "source of captured_ns: given, name, arrival or container",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_videos")),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_videos_ino"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("ino", name=op.f("uq_videos_ino")),
        comment="Logical videos: files of the tree that are indexed as videos.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_videos_digest"), "videos", ["digest"], unique=False)
    op.create_index(op.f("ix_videos_captured_ns"), "videos", ["captured_ns"])
    op.create_table(
        "physical_videos",
        _required("id", _Id, "row id, never reused"),
        _required("video_id", _Id, "the logical video"),
        _required("role", sa.String(length=16), "original, tiled, rendition or joined"),
        _required("container", sa.String(length=16), "mp4, matroska, avi, mpegts ..."),
        _required("codec", sa.String(length=32), "FFmpeg's name: h264, hevc, av1 ..."),
        _required("width", sa.Integer(), "pixels of the displayed frame"),
        _required("height", sa.Integer(), "pixels of the displayed frame"),
        _required("frames", sa.BigInteger(), "displayed frames"),
        _required("packets", sa.BigInteger(), "coded packets"),
        _required("first_pts", sa.BigInteger(), "start of the first frame, in ticks"),
        _required("end_pts", sa.BigInteger(), "end of the last frame, in ticks"),
        _required("time_base_num", sa.BigInteger(), "seconds per tick, numerator"),
        _required("time_base_den", sa.BigInteger(), "seconds per tick, denominator"),
        _required("access", sa.String(length=16), "extent, demux or sequential"),
        _optional(
            "object_key",
            sa.String(length=64),
            ("the object; null for a file indexed in place, and for encodings in packs"),
        ),
        _optional("link_path", sa.LargeBinary(), "the file indexed in place"),
        _required("size", sa.BigInteger(), "bytes of the object or linked file"),
        _required("verified", sa.Boolean(), "a full decode has verified the frame table"),
        _optional("parent_id", _Id, "the encoding that it was made from; null for an original"),
        _required("parameters", sa.JSON(), "settings of the encoder"),
        _required("software", sa.String(length=255), "software that made or indexed it"),
        _required("created_ns", sa.BigInteger(), "when it was made"),
        _required("media", sa.JSON(), "other properties of the video stream"),
        _required("extradata", sa.LargeBinary(), "codec configuration"),
        _required("notes", sa.JSON(), "list of irregularities found while indexing"),
        _optional(
            "cost_factor",
            sa.Float(),
            ("measured decoding time relative to the codec's cost model; null: not measured"),
        ),
        _required(
            "error",
            sa.Float(),
            (
                "originals only: upper bound for the worst picture against the first "
                "original, see vfsd.core.model; 0: it is the first"
            ),
            server_default="0",
        ),
        _optional(
            "damage",
            sa.JSON(none_as_null=True),
            (
                "originals only: frames that show damage, as [first, end] pairs; null: "
                "not examined by a full decode"
            ),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_physical_videos")),
        sa.CheckConstraint(
            "access IN ('extent', 'demux', 'sequential')", name=op.f("ck_physical_videos_access")
        ),
        sa.CheckConstraint(
            "role IN ('original', 'tiled', 'rendition', 'joined')",
            name=op.f("ck_physical_videos_role"),
        ),
        sa.CheckConstraint(
            (
                "role <> 'original' AND object_key IS NULL AND link_path IS NULL OR "
                "role = 'original' AND (object_key IS NULL) <> (link_path IS NULL)"
            ),
            name=op.f("ck_physical_videos_bytes"),
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
        comment=("Stored encodings of logical videos. Each video has exactly one original."),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_physical_videos_codec"), "physical_videos", ["codec"], unique=False)
    op.create_index(
        "ix_physical_videos_joined",
        "physical_videos",
        ["role"],
        unique=False,
        sqlite_where=sa.text("role = 'joined'"),
        postgresql_where=sa.text("role = 'joined'"),
    )
    op.create_index(
        op.f("ix_physical_videos_link_path"),
        "physical_videos",
        ["link_path"],
        unique=False,
        sqlite_where=sa.text("link_path IS NOT NULL"),
        postgresql_where=sa.text("link_path IS NOT NULL"),
    )
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
        _required("video_id", _Id, "the logical video", autoincrement=False),
        _required("tag", sa.String(length=255), "a word"),
        sa.PrimaryKeyConstraint("video_id", "tag", name=op.f("pk_tags")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_tags_video_id"), ondelete="CASCADE"
        ),
        comment="Tags that users give to videos.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_tags_tag"), "tags", ["tag"], unique=False)
    op.create_table(
        "frame_pages",
        _required("physical_id", _Id, "the encoding of these frames", autoincrement=False),
        _required("ordinal", sa.Integer(), "0, 1, 2 ... without gaps"),
        _required("first_packet", sa.BigInteger(), "first packet, in decode order"),
        _required("packets", sa.Integer(), "number in this page"),
        _required("first_frame", sa.BigInteger(), "first frame, in display order"),
        _required("frames", sa.Integer(), "number in this page"),
        _required("first_pts", sa.BigInteger(), "lowest pts in the page, ticks"),
        _required("last_pts", sa.BigInteger(), "highest pts in the page, ticks"),
        _required(
            "key_packet",
            sa.BigInteger(),
            "key packet from which the page's first packet is decoded; -1: none",
        ),
        _required("data", sa.LargeBinary(), "see vfsd.core.frame_table_pages.FramePage"),
        sa.PrimaryKeyConstraint("physical_id", "ordinal", name=op.f("pk_frame_pages")),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_frame_pages_physical_id"),
            ondelete="CASCADE",
        ),
        comment="Frame tables, cut into pages of about 2048 packets.",
    )
    op.create_table(
        "sounds",
        _required("physical_id", _Id, "the original", autoincrement=False),
        _required("codec", sa.String(length=32), "FFmpeg's name: aac, opus ..."),
        _required("stream_index", sa.Integer(), "index of the stream in the file; -1: unknown"),
        _required("time_base_num", sa.BigInteger(), "seconds per tick, numerator"),
        _required("time_base_den", sa.BigInteger(), "seconds per tick, denominator"),
        _required("sample_rate", sa.Integer(), "Hz"),
        _required("channels", sa.Integer(), "number of channels"),
        _required("bit_depth", sa.Integer(), "bit depth of PCM, else 0"),
        _required("configuration", sa.LargeBinary(), "codec configuration"),
        _required("packets", sa.BigInteger(), "coded packets"),
        _required("first_pts", sa.BigInteger(), "start of the first packet, in ticks"),
        _required("end_pts", sa.BigInteger(), "end of the last packet, in ticks"),
        _optional("language", sa.String(length=16), "language tag of the file"),
        _optional("reason", sa.Text(), "why views do not carry it; null: they carry it"),
        _required(
            "access",
            sa.String(length=16),
            "how packets are read: extent or demux",
            server_default="extent",
        ),
        _required(
            "matroska_codec",
            sa.String(length=64),
            "CodecID in Matroska; empty: see vfsd.codecs.containers.tracks",
            server_default="",
        ),
        _optional("matroska_private", sa.LargeBinary(), "CodecPrivate in Matroska"),
        _optional("mp4_entry", sa.LargeBinary(), "sample entry in MP4, as a whole box"),
        sa.PrimaryKeyConstraint("physical_id", name=op.f("pk_sounds")),
        sa.CheckConstraint("time_base_num > 0 AND time_base_den > 0", name=op.f("ck_sounds_time")),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_sounds_physical_id"),
            ondelete="CASCADE",
        ),
        comment=(
            "Audio tracks of originals. A video without a row has none, or was "
            "indexed without looking for one."
        ),
    )
    op.create_table(
        "sound_pages",
        _required("physical_id", _Id, "the original", autoincrement=False),
        _required("ordinal", sa.Integer(), "0, 1, 2 ... without gaps"),
        _required("first_packet", sa.BigInteger(), "first packet, from 0"),
        _required("packets", sa.Integer(), "number in this page"),
        _required("first_pts", sa.BigInteger(), "lowest pts in the page, ticks"),
        _required("last_pts", sa.BigInteger(), "highest pts in the page, ticks"),
        _required("data", sa.LargeBinary(), "see vfsd.core.frame_table_pages.FramePage"),
        sa.PrimaryKeyConstraint("physical_id", "ordinal", name=op.f("pk_sound_pages")),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["sounds.physical_id"],
            name=op.f("fk_sound_pages_physical_id"),
            ondelete="CASCADE",
        ),
        comment="Packet tables of audio tracks, cut into pages of about 2048 packets.",
    )


def _create_tiles() -> None:
    """Segments of tiles and renditions, and decoding costs."""
    op.create_table(
        "costs",
        _required("host", sa.String(length=255), "host of the measurement"),
        _required("name", sa.String(length=32), "FFmpeg's name of a codec, or a tile codec"),
        _required("start", sa.Float(), "CPU seconds to start at a key picture"),
        _required("picture", sa.Float(), "CPU seconds for each picture"),
        _required("pixel", sa.Float(), "CPU seconds for each pixel"),
        _required("byte", sa.Float(), "CPU seconds for each byte"),
        _optional("encode_pixel", sa.Float(), "CPU seconds to encode a pixel; tile codecs only"),
        _required("r2", sa.Float(), "share of the variance that the model explains"),
        _required("samples", sa.Integer(), "number of timed decodes"),
        _required("software", sa.String(length=255), "software that was measured"),
        _required("measured_ns", sa.BigInteger(), "time of the measurement"),
        sa.PrimaryKeyConstraint("host", "name", name=op.f("pk_costs")),
        comment="Measured decoding costs by host.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "segments",
        _required("id", _Id, "row id, never reused"),
        _required("physical_id", _Id, "the tiled encoding that contains it"),
        _required("original_id", _Id, "the original whose frame table numbers its frames"),
        _required("first_frame", sa.BigInteger(), "first frame, in display order"),
        _required("end_frame", sa.BigInteger(), "one past the last frame"),
        _required("layout", sa.Text(), "see vfsd.tiling.TileLayout"),
        _required(
            "profile",
            sa.String(length=32),
            "the tile codec: fast, small ...; or joined-left, joined-right",
        ),
        _required(
            "object_key", sa.String(length=64), "the object with the pack that holds its cells"
        ),
        _required(
            "size",
            sa.BigInteger(),
            ("bytes of the pack; for a joined segment, its share"),
        ),
        _required("psnr", sa.Float(), "dB, of the worst cell"),
        _optional(
            "gop",
            sa.Integer(),
            "frames from one key picture of a cell to the next; null: only the first is one",
        ),
        _required("created_ns", sa.BigInteger(), "when it was published"),
        _optional(
            "retired_ns",
            sa.BigInteger(),
            "when another layout replaced it; null while reads may use it",
        ),
        _required(
            "made_at_read",
            sa.BigInteger(),
            "number of the newest read at the time of publication",
            server_default="0",
        ),
        _required(
            "expected",
            sa.Float(),
            "CPU seconds that it was expected to save when it was made; 0: unknown",
            server_default="0",
        ),
        _required(
            "gain",
            sa.Float(),
            "CPU seconds that a read of all its frames should save; 0: unknown",
            server_default="0",
        ),
        _optional(
            "used_at_read",
            sa.BigInteger(),
            "number of the last read that used it; null: none",
        ),
        _optional("used_ns", sa.BigInteger(), "when that read began"),
        _required(
            "uses",
            sa.Float(),
            ("number of reads that used it, decayed up to the last, see vfsd.core.budgets.decayed"),
            server_default="0",
        ),
        _required(
            "saved",
            sa.Float(),
            "CPU seconds that it saved them, decayed up to the last",
            server_default="0",
        ),
        _required(
            "pack_at",
            sa.BigInteger(),
            "position of the pack in the object, which may have packs of other segments",
            server_default="0",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_segments_frames")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_segments_object_key")
        ),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_segments_physical_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["original_id"],
            ["physical_videos.id"],
            name=op.f("fk_segments_original_id"),
            ondelete="CASCADE",
        ),
        comment="Runs of frames that share one layout of tiles.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_segments_object_key"), "segments", ["object_key"], unique=False)
    op.create_index(
        op.f("ix_segments_original_id_first_frame"),
        "segments",
        ["original_id", "first_frame"],
        unique=False,
    )
    op.create_index(op.f("ix_segments_physical_id"), "segments", ["physical_id"], unique=False)
    op.create_table(
        "cells",
        _required("segment_id", _Id, "the segment that contains it", autoincrement=False),
        _required("tile", sa.Integer(), "0, 1, 2 ... row by row"),
        _required("x1", sa.Integer(), "left edge, pixels of the stored picture"),
        _required("y1", sa.Integer(), "upper edge"),
        _required("x2", sa.Integer(), "one past the last column"),
        _required("y2", sa.Integer(), "one past the last row"),
        _required("position", sa.BigInteger(), "byte offset in the pack"),
        _required("size", sa.BigInteger(), "bytes"),
        _required("quality", sa.Integer(), "rate factor of the encoder; for lossless, the level"),
        _required("psnr", sa.Float(), "dB of luma against the source, measured"),
        _required(
            "gray",
            sa.Float(),
            "dB of the worst picture read as gray; 0: not measured",
            server_default="0",
        ),
        _required(
            "planes",
            sa.Float(),
            "dB of the worst plane of Y, U and V in the worst picture; 0: not measured",
            server_default="0",
        ),
        _required(
            "colour",
            sa.Float(),
            "dB of the worst channel of R, G and B in the worst picture; 0: not measured",
            server_default="0",
        ),
        sa.PrimaryKeyConstraint("segment_id", "tile", name=op.f("pk_cells")),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_cells_segment_id"), ondelete="CASCADE"
        ),
        comment="Tiles of a segment. Each is a stream that decodes independently.",
        sqlite_with_rowid=False,
    )


def _create_readlog() -> None:
    """Logged reads, and decisions made from them."""
    op.create_table(
        "reads",
        _required("id", _Id, "ascending in order of arrival"),
        _required("video_id", _Id, "the logical video"),
        _required("at_ns", sa.BigInteger(), "when it began"),
        _required("kind", sa.String(length=16), "api, scan, view or detect"),
        _required("first_frame", sa.BigInteger(), "lowest frame, in display order"),
        _required("end_frame", sa.BigInteger(), "one past the highest frame"),
        _required("frames", sa.BigInteger(), "number of pictures in the result"),
        _required("x1", sa.Integer(), "left edge, pixels of the displayed frame"),
        _required("y1", sa.Integer(), "upper edge"),
        _required("x2", sa.Integer(), "one past the last column"),
        _required("y2", sa.Integer(), "one past the last row"),
        _optional("width", sa.Integer(), "pixels of a picture in the result; null: sizes differ"),
        _optional("height", sa.Integer(), "goes with width"),
        _optional(
            "labels",
            sa.JSON(none_as_null=True),
            "labels of the requested boxes: a list of lists of labels, an AND of ORs",
        ),
        _required("pixels", sa.BigInteger(), "pixels to decode, by the plan"),
        _required(
            "untiled_pixels",
            sa.BigInteger(),
            "pixels to decode if everything came from the original",
        ),
        _required("predicted", sa.Float(), "CPU seconds of decoding, by the plan"),
        _required(
            "untiled_predicted",
            sa.Float(),
            "CPU seconds of decoding if everything came from the original",
        ),
        _required("seconds", sa.Float(), "measured elapsed time"),
        _required("segments", sa.Integer(), "number of tiled segments used"),
        _required("tiles", sa.Integer(), "number of tiles decoded in these segments"),
        _required(
            "original_frames",
            sa.BigInteger(),
            "number of distinct frames from the original; 0: all from tiles",
        ),
        _optional(
            "runs",
            sa.JSON(none_as_null=True),
            "frames: a list of first, end and step; null: one run, or too many",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reads")),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame AND frames > 0",
            name=op.f("ck_reads_frames"),
        ),
        sa.CheckConstraint("x1 < x2 AND y1 < y2", name=op.f("ck_reads_area")),
        sa.CheckConstraint("(width IS NULL) = (height IS NULL)", name=op.f("ck_reads_size")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_reads_video_id"), ondelete="CASCADE"
        ),
        comment=(
            "Log of reads and their cost. Only the newest rows are kept: see the "
            "setting remembered_reads."
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_reads_video_id"), "reads", ["video_id"], unique=False)
    op.create_table(
        "decisions",
        _required("id", _Id, "ascending in order of making"),
        _required("video_id", _Id, "the logical video"),
        _optional("segment_id", _Id, "the segment that was made; null: it no longer exists"),
        _required("at_ns", sa.BigInteger(), "when its segment was published"),
        _required("maker", sa.String(length=16), "made by: tune or background"),
        _required("first_frame", sa.BigInteger(), "first frame of the segment, in display order"),
        _required("end_frame", sa.BigInteger(), "one past the last frame"),
        _required("layout", sa.Text(), "layout of the segment, see vfsd.tiling.TileLayout"),
        _optional(
            "tiles",
            sa.JSON(none_as_null=True),
            "tiles of the layout that were made: a list of numbers; null: all",
        ),
        _required("profile", sa.String(length=32), "the tile codec: fast, small ..."),
        _optional("gop", sa.Integer(), "frames between key pictures, as in segments"),
        _required(
            "reasons",
            sa.JSON(),
            (
                "targets of reads: a list of objects with reads (their number) and one "
                "of label (an expression), region (x1, y1, x2, y2 of the stored picture) "
                "and size"
            ),
        ),
        _required("reads", sa.BigInteger(), "number of logged reads that it makes cheaper"),
        _required("predicted_seconds", sa.Float(), "predicted CPU seconds for making it"),
        _required(
            "predicted_saved",
            sa.Float(),
            "predicted CPU seconds of decoding saved in these reads",
        ),
        _required("predicted_bytes", sa.BigInteger(), "predicted bytes"),
        _required("seconds", sa.Float(), "measured time of making it"),
        _required("bytes", sa.BigInteger(), "bytes of the segment"),
        _optional("undone_ns", sa.BigInteger(), "when it was undone; null: it was not"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_decisions_frames")
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_decisions_segment_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_decisions_video_id"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("segment_id", name=op.f("uq_decisions_segment_id")),
        comment=("Tiling decisions: segments that were made because of past reads, and why."),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_video_id"), "decisions", ["video_id"], unique=False)


def _create_limits() -> None:
    """Budgets, pins and evictions."""
    op.create_table(
        "budgets",
        _required("id", _Id, "row id"),
        _optional(
            "video_id",
            _Id,
            ("the logical video; null: the whole store, in one row"),
        ),
        _optional("bytes", sa.BigInteger(), "limit in bytes; null: see times"),
        _optional(
            "times",
            sa.Float(),
            ("limit as a multiple of the originals' bytes; null, like bytes: no limit"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.CheckConstraint("bytes IS NULL OR times IS NULL", name=op.f("ck_budgets_one")),
        sa.CheckConstraint("bytes >= 0 AND times >= 0", name=op.f("ck_budgets_positive")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_budgets_video_id"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("video_id", name=op.f("uq_budgets_video_id")),
        comment="Budgets of tiles and renditions that were set.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "evictions",
        _required("id", _Id, "ascending in time"),
        _required("video_id", _Id, "the logical video"),
        _required("at_ns", sa.BigInteger(), "when it was evicted"),
        _required("why", sa.String(length=32), "the budget that was full: video, partner or store"),
        _required("role", sa.String(length=16), "tiled or rendition"),
        _required("first_frame", sa.BigInteger(), "first frame of the segment, in display order"),
        _required("end_frame", sa.BigInteger(), "one past the last frame"),
        _required("width", sa.Integer(), "pixels of the displayed frame"),
        _required("height", sa.Integer(), "pixels of the displayed frame"),
        _required("layout", sa.Text(), "see vfsd.tiling.TileLayout"),
        _required("profile", sa.String(length=32), "the tile codec: fast, small ..."),
        _required("bytes", sa.BigInteger(), "bytes of its pack"),
        _required("retired", sa.Boolean(), "it was kept only for undo"),
        _required("created_ns", sa.BigInteger(), "when it was published"),
        _optional("used_ns", sa.BigInteger(), "when it was last used; null: never"),
        _required("uses", sa.Float(), "number of reads that used it, decayed up to the eviction"),
        _required("saved", sa.Float(), "CPU seconds that it saved them, decayed likewise"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evictions")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_evictions_video_id"), ondelete="CASCADE"
        ),
        comment="Log of evicted segments. Only the newest rows are kept.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_evictions_video_id"), "evictions", ["video_id"], unique=False)
    op.create_table(
        "pins",
        _required("id", _Id, "row id, never reused"),
        _required("video_id", _Id, "the logical video"),
        _required("first_frame", sa.BigInteger(), "first frame, in display order"),
        _required("end_frame", sa.BigInteger(), "one past the last frame"),
        _optional("role", sa.String(length=16), "tiled or rendition; null: both"),
        _optional("width", sa.Integer(), "pixels of a rendition's displayed frame; null: any size"),
        _optional("height", sa.Integer(), "goes with width"),
        _required("at_ns", sa.BigInteger(), "when it was pinned"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pins")),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_pins_frames")
        ),
        sa.CheckConstraint(
            "role IS NULL OR role IN ('tiled', 'rendition')", name=op.f("ck_pins_role")
        ),
        sa.CheckConstraint("(width IS NULL) = (height IS NULL)", name=op.f("ck_pins_size")),
        sa.CheckConstraint(
            "width IS NULL OR role = 'rendition'", name=op.f("ck_pins_of_rendition")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_pins_video_id"), ondelete="CASCADE"
        ),
        comment=(
            "Pins: active segments that overlap these frames are neither charged nor evicted."
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_pins_video_id"), "pins", ["video_id"], unique=False)


def _create_originals() -> None:
    """Policies, holds and the log of originals."""
    op.create_table(
        "original_log",
        _required("id", _Id, "ascending in time"),
        _required("at_ns", sa.BigInteger(), "time of the action"),
        _required(
            "action",
            sa.String(length=16),
            ("replaced, decayed, deleted, left, held or released; believed: the clock was trusted"),
        ),
        _required("video_id", _Id, "the video, which may no longer exist"),
        _required("name", sa.Text(), "its path at that time"),
        _required("reason", sa.Text(), "reason of the action"),
        _required("digest", sa.String(length=64), "blake3 of the file before"),
        _required("size", sa.BigInteger(), "size of the file before, bytes"),
        _optional(
            "new_digest",
            sa.String(length=64),
            "blake3 of the file afterwards; null: no file, or unchanged",
        ),
        _optional("new_size", sa.BigInteger(), "goes with new_digest"),
        _optional(
            "psnr",
            sa.Float(),
            ("minimum dB of its pictures against the first original; null: unknown"),
        ),
        _required("details", sa.JSON(), "measurements, and settings of the encoder"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_original_log")),
        comment="Log of actions on originals, and of trust in the clock. Never truncated.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_original_log_video_id"), "original_log", ["video_id"], unique=False)
    op.create_table(
        "policies",
        _required(
            "ino",
            _Id,
            "the video, or the directory, which covers everything below without a "
            "policy of its own",
            autoincrement=False,
        ),
        _required("original", sa.String(length=16), "keep or replaceable"),
        _required(
            "psnr",
            sa.Float(),
            ("minimum dB of a replacement against the first original"),
        ),
        _required("codec", sa.String(length=16), "codec of replacements by age: h264, hevc or av1"),
        _optional("replace_after", sa.BigInteger(), "age in seconds for replacement; null: never"),
        _optional("decay_after", sa.BigInteger(), "age in seconds; null: never"),
        _optional(
            "keep", sa.Text(), "labels of areas that keep their quality when the video decays"
        ),
        _optional("delete_after", sa.BigInteger(), "age in seconds; null: never"),
        _optional(
            "delete_below",
            sa.BigInteger(),
            "bytes: delete the oldest while less disk space is free",
        ),
        _optional(
            "reads",
            sa.Float(),
            ("minimum luma dB of tiles for reads that request none; null: default of the store"),
        ),
        _optional(
            "delete_above",
            sa.BigInteger(),
            "bytes: delete the oldest while the videos under this policy take more",
        ),
        _required(
            "clock",
            sa.String(length=16),
            "time from which ages count: latest or recording",
            server_default="latest",
        ),
        _optional(
            "browser",
            sa.Integer(),
            "greatest width of the rendition that is made for browsers; null: none is made",
        ),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_policies")),
        sa.CheckConstraint(
            "original IN ('keep', 'replaceable')", name=op.f("ck_policies_original")
        ),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_policies_ino"), ondelete="CASCADE"
        ),
        comment="Retention policies that were set on files and directories.",
    )
    op.create_table(
        "holds",
        _required("id", _Id, "row id, never reused"),
        _required(
            "video_id",
            _Id,
            ("the video, which cannot be changed or deleted while this row exists"),
        ),
        _required("reason", sa.Text(), "reason given by the user"),
        _required("at_ns", sa.BigInteger(), "when it was set"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
        sa.ForeignKeyConstraint(["video_id"], ["videos.id"], name=op.f("fk_holds_video_id")),
        comment="Holds, which protect videos from changes and removal.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_holds_video_id"), "holds", ["video_id"], unique=False)


def _create_semantic() -> None:
    """Labelled boxes, their sources, and examined frames."""
    op.create_table(
        "labels",
        _required("id", _Id, "referred to by boxes"),
        _required("name", sa.String(length=255), "a class or a property"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
        sa.UniqueConstraint("name", name=op.f("uq_labels_name")),
        comment="Labels of boxes, shared by all videos.",
    )
    op.create_table(
        "sources",
        _required("id", _Id, "referred to by boxes"),
        _required("name", sa.String(length=255), "name of the source"),
        _required("model", sa.String(length=255), "model; empty: unknown"),
        _required("version", sa.String(length=255), "version of the model; empty: unknown"),
        _required("parameters", sa.Text(), "a JSON object, keys sorted, no spaces"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
        sa.UniqueConstraint(
            "name",
            "model",
            "version",
            "parameters",
            name=op.f("uq_sources_name_model_version_parameters"),
        ),
        comment="Sources of boxes: models with their settings, and people.",
    )
    op.create_table(
        "detections",
        _required("video_id", _Id, "the logical video", autoincrement=False),
        _required("label_id", _Id, "label of the box", autoincrement=False),
        _required(
            "frame", sa.BigInteger(), "frame number in display order, from 0", autoincrement=False
        ),
        _required(
            "seq",
            sa.Integer(),
            ("order of arrival among the boxes of the frame, from 0; may have gaps"),
            autoincrement=False,
        ),
        _required("x1", sa.Double(), "left edge, pixels of the displayed frame"),
        _required("y1", sa.Double(), "upper edge"),
        _required("x2", sa.Double(), "right or lower edge, exclusive"),
        _required("y2", sa.Double(), "right or lower edge, exclusive"),
        _optional("confidence", sa.Double(), "on the scale of the source; null: none"),
        _optional(
            "track", sa.BigInteger(), "number of the tracked object, within its source; null: none"
        ),
        _required("source_id", _Id, "source of the box"),
        _required("cell", sa.Integer(), "coarse position and size: vfsd.catalog.box_grid.cells"),
        _required(
            "bounds",
            sa.BigInteger(),
            "the rounded box as one number: vfsd.catalog.box_grid.bounds",
        ),
        _optional("attributes", sa.JSON(none_as_null=True), "other properties: a JSON object"),
        sa.PrimaryKeyConstraint("video_id", "label_id", "frame", "seq", name=op.f("pk_detections")),
        sa.CheckConstraint("frame >= 0", name=op.f("ck_detections_frame")),
        sa.CheckConstraint("x1 < x2 AND y1 < y2", name=op.f("ck_detections_area")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_detections_video_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_detections_label_id")),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_detections_source_id")
        ),
        comment="Labelled boxes, stored in the order of video, label and frame.",
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_detections_video_id_label_id_cell_frame_bounds"),
        "detections",
        ["video_id", "label_id", "cell", "frame", "bounds"],
        unique=False,
    )
    op.create_table(
        "examined",
        _required("video_id", _Id, "the logical video", autoincrement=False),
        _required("source_id", _Id, "the source that examined them", autoincrement=False),
        _required("first_frame", sa.BigInteger(), "first frame", autoincrement=False),
        _required("end_frame", sa.BigInteger(), "one past the last frame"),
        sa.PrimaryKeyConstraint("video_id", "source_id", "first_frame", name=op.f("pk_examined")),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_examined_range")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_examined_video_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name=op.f("fk_examined_source_id")),
        comment=(
            "Frames that a source has examined, with or without results. The ranges "
            "of one source neither overlap nor touch."
        ),
        sqlite_with_rowid=False,
    )


def _create_homes() -> None:
    """Homes and mounts of a catalog that several directories share."""
    op.create_table(
        "homes",
        sa.Column("id", sa.String(length=36), nullable=False, comment="id in its marker file"),
        sa.Column("host", sa.Text(), nullable=False, comment="host name, for messages"),
        sa.Column("machine", sa.Text(), nullable=False, comment="machine id; empty: unknown"),
        sa.Column("place", sa.Text(), nullable=False, comment="absolute path of the directory"),
        sa.Column(
            "directory", sa.Text(), nullable=False, comment="its device and inode: DEVICE:INODE"
        ),
        sa.Column(
            "joined", sa.DateTime(timezone=True), nullable=False, comment="when it was added"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_homes")),
        comment="Store directories that use this catalog. Empty where it is an SQLite file.",
    )
    op.create_table(
        "mounts",
        sa.Column("id", sa.String(length=36), nullable=False, comment="drawn at each mount"),
        sa.Column("home", sa.String(length=36), nullable=False, comment="the mounted home"),
        sa.Column("host", sa.Text(), nullable=False, comment="host name, for messages"),
        sa.Column("machine", sa.Text(), nullable=False, comment="machine id; empty: unknown"),
        sa.Column("place", sa.Text(), nullable=False, comment="mount point"),
        sa.Column(
            "epoch", sa.BigInteger(), nullable=False, comment="counts the mounts of the home"
        ),
        sa.Column(
            "beat",
            sa.DateTime(timezone=True),
            comment="last sign of life, by the clock of the database; null: unmounted",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mounts")),
        sa.UniqueConstraint("home", name=op.f("uq_mounts_home")),
        sa.ForeignKeyConstraint(
            ["home"], ["homes.id"], name=op.f("fk_mounts_home"), ondelete="CASCADE"
        ),
        comment="The lease of each home's mount.",
    )


def _create_server() -> None:
    """State of a catalog on a server that other stores keep in files and locks."""
    state = op.create_table(
        "catalog_state",
        sa.Column(
            "one",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="always 1: there is only one row",
        ),
        sa.Column(
            "changes",
            sa.BigInteger(),
            nullable=False,
            comment=(
                "number of transactions that caches must notice; 0 on SQLite, which has its own"
            ),
        ),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_catalog_state")),
        sa.CheckConstraint("one = 1", name=op.f("ck_catalog_state_one")),
        comment="State of the catalog on a server as a whole.",
    )
    op.bulk_insert(state, [{"one": 1, "changes": 0}])
    op.create_table(
        "read_notes",
        sa.Column(
            "id",
            _Id,
            autoincrement=True,
            nullable=False,
            comment="ascending, with gaps",
        ),
        sa.Column(
            "digest", sa.String(64), nullable=False, comment="digest of the bytes that were read"
        ),
        sa.Column(
            "read", sa.JSON(), nullable=False, comment="the columns of reads, and the segments used"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_read_notes")),
        comment="Reads on a server that are not in reads yet: adding them takes no lock.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "suspects",
        sa.Column(
            "key",
            sa.Text(),
            nullable=False,
            comment="the object, or the path of a file indexed in place",
        ),
        sa.Column("crashes", sa.Integer(), nullable=False, comment="number of crashed processes"),
        sa.Column("at", sa.Float(), nullable=False, comment="Unix time of the last crash"),
        sa.Column("how", sa.Text(), nullable=False, comment="reason of the last crash"),
        sa.Column(
            "barred", sa.Boolean(), nullable=False, comment="whether no process may decode it"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_suspects")),
        comment="Files that crashed processes while they were decoded. Only on a server; other "
        "stores have suspects.json.",
    )
    op.create_table(
        "small_files",
        _inode("a stored file"),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="all of its bytes"),
        *_inode_keys("small_files"),
        comment="Bytes of small files that are not videos, in stores with a bucket and several "
        "homes. An object for each would cost more than its bytes.",
    )
    op.create_table(
        "writers",
        _inode("a file that is open for writing"),
        sa.Column("mount", sa.String(36), nullable=False, comment="id of the mount; see mounts"),
        *_inode_keys("writers"),
        comment="The mount that may write a file. A row of a mount that has lost its lease is "
        "void.",
    )


def _create_work() -> None:
    """Work orders, their units and results."""
    op.create_table(
        "work_orders",
        sa.Column("id", sa.String(8), nullable=False, comment="drawn at random, hexadecimal"),
        sa.Column(
            "verb", sa.String(16), nullable=False, comment="the command: retile, detect, ..."
        ),
        sa.Column("spec", sa.JSON(), nullable=False, comment="its arguments, for people"),
        sa.Column("units", sa.Integer(), nullable=False, comment="number of units"),
        sa.Column("cost", sa.Float(), nullable=False, comment="expected CPU seconds"),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was planned"),
        sa.Column(
            "cancelled_ns", sa.BigInteger(), comment="when it was cancelled; null: it was not"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_work_orders")),
        comment="Work that is planned in units, which any process may perform.",
    )
    op.create_table(
        "work_units",
        sa.Column("order_id", sa.String(8), nullable=False, comment="the order"),
        sa.Column("number", sa.Integer(), nullable=False, comment="from 0"),
        sa.Column("unit", sa.JSON(), nullable=False, comment="the work: see vfsd.work.units"),
        sa.PrimaryKeyConstraint("order_id", "number", name=op.f("pk_work_units")),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["work_orders.id"],
            name=op.f("fk_work_units_order_id"),
            ondelete="CASCADE",
        ),
        comment="Units of orders. They are stored, since a plan made later could differ.",
    )
    op.create_table(
        "work_results",
        sa.Column(
            "id", _Id, autoincrement=True, nullable=False, comment="ascending in order of arrival"
        ),
        sa.Column("order_id", sa.String(8), nullable=False, comment="the order"),
        sa.Column("number", sa.Integer(), comment="of the unit; null: of all units"),
        sa.Column(
            "attempt",
            sa.String(32),
            nullable=False,
            comment="drawn when a process began the unit",
        ),
        sa.Column(
            "outcome",
            sa.String(16),
            nullable=False,
            comment="begun, made, skipped, outdated, failed, refused, cancelled, again or retry",
        ),
        sa.Column("host", sa.Text(), nullable=False, comment="name of the machine"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it was added"),
        sa.Column("cpu", sa.Float(), comment="CPU seconds"),
        sa.Column("frames", sa.BigInteger(), comment="number of frames of the unit"),
        sa.Column("made", sa.Integer(), comment="number of new segments, boxes or videos"),
        sa.Column("bytes_read", sa.BigInteger(), comment="approximate bytes of originals"),
        sa.Column("bytes_written", sa.BigInteger(), comment="bytes of new data"),
        sa.Column("error", sa.Text(), comment="the message, if it failed"),
        sa.Column("exit_code", sa.Integer(), comment="goes with error"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_work_results")),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["work_orders.id"],
            name=op.f("fk_work_results_order_id"),
            ondelete="CASCADE",
        ),
        comment="Log of the units of orders. Rows are only added.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_work_results_order_id_number"), "work_results", ["order_id", "number"])


def _create_bucket() -> None:
    """Uploads to a bucket, its files without use, and copies of tables."""
    op.create_table(
        "uploads",
        sa.Column(
            "place", sa.Text(), nullable=False, comment="name in the bucket, never used before"
        ),
        sa.Column(
            "key", sa.String(64), nullable=False, comment="the object that is being uploaded"
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.Column(
            "began",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when it was begun, by the clock of the database",
        ),
        sa.Column(
            "expires",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="end of its lease, by the clock of the database",
        ),
        sa.Column("home", sa.String(36), comment="the home that uploads it; null: the only one"),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_uploads")),
        comment="Leases of uploads to the bucket. The transaction that records the object deletes "
        "the row; after the lease, the bytes are garbage.",
    )
    op.create_table(
        "garbage",
        sa.Column("place", sa.Text(), nullable=False, comment="name in the bucket"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when it was last needed, by the clock of the database",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_garbage")),
        comment="Files of the bucket that nothing refers to. Deleted after a grace period.",
    )
    op.create_table(
        "pack_tables",
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="an object in the bucket of the store",
        ),
        sa.Column(
            "pack_at",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="position of a pack in the object",
        ),
        sa.Column(
            "packed",
            sa.LargeBinary(),
            nullable=False,
            comment="CRC-32 of the table of contents at the start of the pack, and the table, "
            "deflated",
        ),
        sa.ForeignKeyConstraint(
            ["object_key"],
            ["objects.key"],
            name=op.f("fk_pack_tables_object_key_objects"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("object_key", "pack_at", name=op.f("pk_pack_tables")),
        comment="Copies of the tables of packs in a bucket, so that a read fetches its packets at "
        "once. Packs without a row are read as well.",
        sqlite_with_rowid=False,
    )


def _create_vectors() -> None:
    """Vectors that models gave runs of frames."""
    op.create_table(
        "vectors",
        sa.Column(
            "id",
            _Id,
            autoincrement=True,
            nullable=False,
            comment="a block of vectors that were stored together",
        ),
        sa.Column("video_id", _Id, nullable=False, comment="the logical video"),
        sa.Column("source_id", _Id, nullable=False, comment="the model or person"),
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="the object with the numbers: vfsd.core.vectors",
        ),
        sa.Column("dimension", sa.Integer(), nullable=False, comment="numbers in a vector"),
        sa.Column("dtype", sa.String(8), nullable=False, comment="float16 or float32"),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="vectors in the object"),
        sa.Column(
            "lost",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="rows whose frames a corrected frame table does not have",
        ),
        sa.Column(
            "frames",
            sa.LargeBinary(),
            nullable=False,
            comment="the run of frames of each row: vfsd.core.vectors.pack_runs",
        ),
        sa.CheckConstraint("rows > 0 AND dimension > 0", name=op.f("ck_vectors_size")),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_vectors_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_vectors_source_id_sources")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_vectors_object_key_objects")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vectors")),
        comment="Vectors that models gave runs of frames. They are kept like originals.",
        sqlite_autoincrement=True,
    )
    for columns in (["video_id", "source_id"], ["source_id"], ["object_key"]):
        op.create_index(op.f(f"ix_vectors_{'_'.join(columns)}"), "vectors", columns)


def _create_label_counts() -> None:
    """Numbers of boxes, labelled runs of frames, and saved searches."""
    op.create_table(
        "box_counts",
        sa.Column(
            "video_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the logical video",
        ),
        sa.Column(
            "label_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="label of the boxes",
        ),
        sa.Column(
            "source_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="source of the boxes",
        ),
        sa.Column("boxes", sa.BigInteger(), nullable=False, comment="their number"),
        sa.CheckConstraint("boxes >= 0", name=op.f("ck_box_counts_boxes")),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_box_counts_label_id")),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_box_counts_source_id")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_box_counts_video_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_id", "label_id", "source_id", name=op.f("pk_box_counts")),
        comment="Numbers of boxes, changed with them in one transaction.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "moments",
        sa.Column(
            "video_id", _Id, autoincrement=False, nullable=False, comment="the logical video"
        ),
        sa.Column(
            "label_id", _Id, autoincrement=False, nullable=False, comment="label of the moment"
        ),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="frame number in display order, from 0",
        ),
        sa.Column(
            "end_frame",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="frame number, exclusive",
        ),
        sa.Column(
            "source_id", _Id, autoincrement=False, nullable=False, comment="source of the moment"
        ),
        sa.Column("confidence", sa.Double(), comment="on the scale of the source; null: none"),
        sa.Column(
            "attributes",
            sa.JSON(none_as_null=True),
            comment="other properties: a JSON object",
        ),
        sa.CheckConstraint(
            "first_frame >= 0 AND first_frame < end_frame", name=op.f("ck_moments_frames")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_moments_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["label_id"], ["labels.id"], name=op.f("fk_moments_label_id_labels")
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_moments_source_id_sources")
        ),
        sa.PrimaryKeyConstraint(
            "video_id",
            "label_id",
            "first_frame",
            "end_frame",
            "source_id",
            name=op.f("pk_moments"),
        ),
        comment="Labelled runs of frames. A source has one of each label and run.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_moments_label_id_video_id"), "moments", ["label_id", "video_id"])
    op.create_table(
        "searches",
        sa.Column("name", sa.String(length=255), nullable=False, comment="name of the search"),
        sa.Column("kind", sa.String(length=16), nullable=False, comment="boxes or events"),
        sa.Column(
            "arguments", sa.JSON(), nullable=False, comment="what it searches, and in which videos"
        ),
        sa.Column("saved_ns", sa.BigInteger(), nullable=False, comment="when it was saved"),
        sa.CheckConstraint("kind IN ('boxes', 'events')", name=op.f("ck_searches_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_searches")),
        comment="Searches that a user has saved.",
    )


def _create_layers() -> None:
    """Layers of videos, and their indexes."""
    op.create_table(
        "layers",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="row id, never reused"),
        sa.Column("video_id", _Id, nullable=False, comment="the video that it is about"),
        sa.Column(
            "name", sa.String(255), nullable=False, comment="name among the layers of the video"
        ),
        sa.Column(
            "file_id",
            _Id,
            nullable=False,
            comment="the video with its maps, in the order of `frames`",
        ),
        sa.Column(
            "frames",
            sa.LargeBinary(),
            comment="frames of the video that have a map, see vfsd.core.layers; null: all",
        ),
        sa.Column(
            "scale", sa.Double(), nullable=False, comment="a sample means zero + scale * sample"
        ),
        sa.Column("zero", sa.Double(), nullable=False, comment="goes with scale"),
        sa.Column("unit", sa.String(32), nullable=False, comment="unit of the values; empty: none"),
        sa.Column("source_id", _Id, comment="source of the maps"),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was added"),
        sa.CheckConstraint("scale > 0", name=op.f("ck_layers_scale")),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_layers_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["videos.id"], name=op.f("fk_layers_file_id_videos"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_layers_source_id_sources")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_layers")),
        sa.UniqueConstraint("file_id", name=op.f("uq_layers_file_id")),
        sa.UniqueConstraint("video_id", "name", name=op.f("uq_layers_video_id_name")),
        comment="Layers: videos of one channel with a map for frames of another video.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "layer_indexes",
        sa.Column(
            "physical_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the original of the layer's file",
        ),
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="the object, see vfsd.core.cell_index",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes of the object"),
        sa.Column("cell", sa.Integer(), nullable=False, comment="side of a cell in pixels"),
        sa.Column("bins", sa.Integer(), nullable=False, comment="number of ranges of values"),
        sa.Column("built_ns", sa.BigInteger(), nullable=False, comment="when it was made"),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_layer_indexes_physical_id_physical_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_layer_indexes_object_key_objects")
        ),
        sa.PrimaryKeyConstraint("physical_id", name=op.f("pk_layer_indexes")),
        comment="Indexes of layers: numbers of pixels by cell and range of values.",
    )
    op.create_index(op.f("ix_layer_indexes_object_key"), "layer_indexes", ["object_key"])


def _create_browser_renditions() -> None:
    """Videos that have had the rendition that a policy asks for."""
    op.create_table(
        "browser_renditions",
        sa.Column(
            "video_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the logical video",
        ),
        sa.Column(
            "digest",
            sa.String(64),
            nullable=False,
            comment="blake3 of the logical file at that time; other bytes are looked at again",
        ),
        sa.Column(
            "width", sa.Integer(), nullable=False, comment="greatest width, as in the policy"
        ),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it was done"),
        sa.Column(
            "refused",
            sa.Text(),
            nullable=True,
            comment="why there can be no rendition; null: it was made, or browsers play the video",
        ),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_browser_renditions_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_id", name=op.f("pk_browser_renditions")),
        comment="Videos that have had the rendition of the rule browser, or need none. A "
        "rendition that the budget evicts is not made again.",
        sqlite_with_rowid=False,
    )


def _inode(comment: str) -> sa.Column[int]:
    return sa.Column("ino", _Id, autoincrement=False, nullable=False, comment=comment)


def _inode_keys(table: str) -> tuple[sa.Constraint, sa.Constraint]:
    return (
        sa.PrimaryKeyConstraint("ino", name=op.f(f"pk_{table}")),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f(f"fk_{table}_ino"), ondelete="CASCADE"
        ),
    )


def _create_views() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    name = _NAME_OF_SQLITE if sqlite else _NAME_OF_POSTGRESQL
    root = "''" if sqlite else "convert_from(''::bytea, 'UTF8')"
    op.execute(_FILES.format(name=name, root=root))
    for view in _VIEWS:
        op.execute(view)


def _create_root() -> None:
    """The root directory, which gets inode number 1."""
    now = time.time_ns()
    nodes = sa.table(
        "nodes",
        *map(sa.column, ("mode", "uid", "gid", "nlink", "atime_ns", "mtime_ns", "ctime_ns")),
    )
    op.execute(
        nodes.insert().values(
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
