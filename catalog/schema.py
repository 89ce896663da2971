"""The tables.  This file is the reference of what is stored and what each column means.

Names of files, targets of links and extended attributes are bytes, as they are to the kernel.
Times that end in ``_ns`` are Unix time in nanoseconds.  A change here needs a migration.
"""

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
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

# SQLite gives a row number only to an INTEGER key; elsewhere 32 bits would be too few.
_Id = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="a number"),
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="a number"),
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="by order of time"),
    Column("what", Text, nullable=False, comment="the names that it is about; empty: everything"),
    Column("begun_ns", BigInteger, nullable=False, comment="when it began"),
    Column("ended_ns", BigInteger, comment="when it was through; null: it was interrupted"),
    comment="Runs of `vfsd scrub`. Only the newest rows are kept.",
    sqlite_autoincrement=True,
)

nodes = Table(
    "nodes",
    metadata,
    Column("ino", _Id, primary_key=True, autoincrement=True, comment="inode number; 1 is the root"),
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
    Column("reason", Text, comment="plain files only: why it is no video"),
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
        _Id,
        ForeignKey("nodes.ino"),
        primary_key=True,
        autoincrement=False,
        comment="the directory",
    ),
    Column("name", LargeBinary(255), primary_key=True, comment="one path component, no slash"),
    Column("ino", _Id, ForeignKey("nodes.ino"), nullable=False, comment="what it names"),
    Index(None, "ino"),
    comment="Names. A file with hard links has several.",
    sqlite_with_rowid=False,
)

xattrs = Table(
    "xattrs",
    metadata,
    Column(
        "ino",
        _Id,
        ForeignKey("nodes.ino", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="whose attribute it is",
    ),
    Column("name", LargeBinary(255), primary_key=True, comment="with its namespace: user.x"),
    Column("value", LargeBinary, nullable=False, comment="up to 64 KiB"),
    comment="Extended attributes as users set them; user.vfsd.* are computed and not stored.",
    sqlite_with_rowid=False,
)

orphans = Table(
    "orphans",
    metadata,
    Column(
        "ino",
        _Id,
        ForeignKey("nodes.ino", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="a file without a name that some process still has open",
    ),
    Column(
        "former_parent",
        _Id,
        comment="set while the name was taken only to let a rename over it follow: where it was",
    ),
    Column("former_name", LargeBinary(255), comment="goes with former_parent"),
    Column("since_ns", BigInteger, nullable=False, comment="when it lost its name"),
    comment="Unlinked while open. Deleted at the last close, or when the store is next mounted; "
    "one with a former name gets it back then, if the name is still free.",
)

videos = Table(
    "videos",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True, comment="never used again"),
    Column(
        "ino",
        _Id,
        ForeignKey("nodes.ino", ondelete="CASCADE"),
        nullable=False,
        unique=True,
        comment="the file that it is",
    ),
    Column("digest", String(64), nullable=False, comment="blake3 of the logical file"),
    Column("created_ns", BigInteger, nullable=False, comment="when it became a video"),
    Column("metadata", JSON, nullable=False, comment="what users attach: a JSON object"),
    Index(None, "digest"),
    comment="Logical videos: files of the tree that are understood as video.",
    sqlite_autoincrement=True,
)

tags = Table(
    "tags",
    metadata,
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="whose tag it is",
    ),
    Column("tag", String(255), primary_key=True, comment="a word"),
    Index(None, "tag"),
    comment="Tags that users give to videos.",
    sqlite_with_rowid=False,
)

physical_videos = Table(
    "physical_videos",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True, comment="never used again"),
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="the logical video that it stores",
    ),
    Column("role", String(16), nullable=False, comment="original, tiled, rendition or joined"),
    Column("container", String(16), nullable=False, comment="mp4, matroska, avi, mpegts ..."),
    Column("codec", String(32), nullable=False, comment="FFmpeg's name: h264, hevc, av1 ..."),
    Column("width", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("height", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("frames", BigInteger, nullable=False, comment="displayed frames"),
    Column("packets", BigInteger, nullable=False, comment="coded packets"),
    Column("first_pts", BigInteger, nullable=False, comment="ticks: first frame appears"),
    Column("end_pts", BigInteger, nullable=False, comment="ticks: last frame stops being shown"),
    Column("time_base_num", BigInteger, nullable=False, comment="seconds per tick, numerator"),
    Column("time_base_den", BigInteger, nullable=False, comment="seconds per tick, denominator"),
    Column("access", String(16), nullable=False, comment="extent, demux or sequential"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        comment="the object; null for a file indexed in place, and for what is kept in packs",
    ),
    Column("link_path", LargeBinary, comment="the file indexed in place"),
    Column("size", BigInteger, nullable=False, comment="bytes of the object or linked file"),
    Column("verified", Boolean, nullable=False, comment="a full decode confirmed the table"),
    Column(
        "parent_id",
        _Id,
        ForeignKey("physical_videos.id", ondelete="SET NULL"),
        comment="what it was made from; null for an original",
    ),
    Column("parameters", JSON, nullable=False, comment="what it was made with"),
    Column("software", String(255), nullable=False, comment="versions that made or indexed it"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was made"),
    Column("media", JSON, nullable=False, comment="the rest of what the file says of its stream"),
    Column("extradata", LargeBinary, nullable=False, comment="codec configuration"),
    Column("notes", JSON, nullable=False, comment="list of oddities met while indexing"),
    Column(
        "cost_factor",
        Float,
        comment="decoding takes as many times what the codec's rule says; null: not measured",
    ),
    Column(
        "error",
        Float,
        nullable=False,
        server_default="0",
        comment="of originals: that of the worst picture against the very first original, at most, "
        "see vfsd.distortion; 0: it is the first",
    ),
    CheckConstraint("role IN ('original', 'tiled', 'rendition', 'joined')", name="role"),
    CheckConstraint("access IN ('extent', 'demux', 'sequential')", name="access"),
    CheckConstraint(
        "role <> 'original' AND object_key IS NULL AND link_path IS NULL "
        "OR role = 'original' AND (object_key IS NULL) <> (link_path IS NULL)",
        name="bytes",
    ),
    CheckConstraint("frames > 0 AND time_base_num > 0 AND time_base_den > 0", name="time"),
    Index(None, "video_id", "role"),
    Index(None, "object_key"),
    Index(None, "codec"),
    comment="Stored encodings of logical videos. Each video has exactly one original.",
    sqlite_autoincrement=True,
)

frame_pages = Table(
    "frame_pages",
    metadata,
    Column(
        "physical_id",
        _Id,
        ForeignKey("physical_videos.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="whose frames they are",
    ),
    Column("ordinal", Integer, primary_key=True, comment="0, 1, 2 ... without gaps"),
    Column("first_packet", BigInteger, nullable=False, comment="in decode order"),
    Column("packets", Integer, nullable=False, comment="in this page"),
    Column("first_frame", BigInteger, nullable=False, comment="in display order"),
    Column("frames", Integer, nullable=False, comment="in this page"),
    Column("first_pts", BigInteger, nullable=False, comment="lowest in the page, ticks"),
    Column("last_pts", BigInteger, nullable=False, comment="highest in the page, ticks"),
    Column(
        "key_packet",
        BigInteger,
        nullable=False,
        comment="key packet that the page's first packet decodes from; -1: none",
    ),
    Column("data", LargeBinary, nullable=False, comment="see vfsd.framepages.FramePage"),
    comment="Frame tables, cut into pages of about 2048 packets.",
)

sounds = Table(
    "sounds",
    metadata,
    Column(
        "physical_id",
        _Id,
        ForeignKey("physical_videos.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="the original whose sound it is",
    ),
    Column("codec", String(32), nullable=False, comment="FFmpeg's name: aac, opus ..."),
    Column("stream_index", Integer, nullable=False, comment="in the file; -1: not known"),
    Column("time_base_num", BigInteger, nullable=False, comment="seconds per tick, numerator"),
    Column("time_base_den", BigInteger, nullable=False, comment="seconds per tick, denominator"),
    Column("sample_rate", Integer, nullable=False, comment="Hz"),
    Column("channels", Integer, nullable=False, comment="number of channels"),
    Column("bit_depth", Integer, nullable=False, comment="of PCM, else 0"),
    Column("configuration", LargeBinary, nullable=False, comment="what decoders are told first"),
    Column("packets", BigInteger, nullable=False, comment="coded packets"),
    Column("first_pts", BigInteger, nullable=False, comment="ticks: the first packet sounds"),
    Column("end_pts", BigInteger, nullable=False, comment="ticks: the last one has sounded"),
    Column("language", String(16), comment="as the file tells it"),
    Column("reason", Text, comment="why views do not carry it; null: they do"),
    CheckConstraint("time_base_num > 0 AND time_base_den > 0", name="time"),
    comment="The sound of videos that have an audio stream; a video without a row has none, or was "
    "indexed before there was this table.",
)

sound_pages = Table(
    "sound_pages",
    metadata,
    Column(
        "physical_id",
        _Id,
        ForeignKey("sounds.physical_id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="whose packets they are",
    ),
    Column("ordinal", Integer, primary_key=True, comment="0, 1, 2 ... without gaps"),
    Column("first_packet", BigInteger, nullable=False, comment="counted from 0"),
    Column("packets", Integer, nullable=False, comment="in this page"),
    Column("first_pts", BigInteger, nullable=False, comment="lowest in the page, ticks"),
    Column("last_pts", BigInteger, nullable=False, comment="highest in the page, ticks"),
    Column("data", LargeBinary, nullable=False, comment="see vfsd.framepages.FramePage"),
    comment="Packets of sound, cut into pages of about 2048.",
)

segments = Table(
    "segments",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True, comment="never used again"),
    Column(
        "physical_id",
        _Id,
        ForeignKey("physical_videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="the tiled encoding that it belongs to",
    ),
    Column(
        "original_id",
        _Id,
        ForeignKey("physical_videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="the original by whose frame table its frames are counted",
    ),
    Column("first_frame", BigInteger, nullable=False, comment="of the video, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last"),
    Column("layout", Text, nullable=False, comment="see vfsd.tiling.TileLayout"),
    Column(
        "profile",
        String(32),
        nullable=False,
        comment="the tile codec: fast, small ...; or joined-left, joined-right",
    ),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        nullable=False,
        comment="the pack that holds its cells",
    ),
    Column(
        "size",
        BigInteger,
        nullable=False,
        comment="bytes of the pack; of one that two joined segments have, this one's share",
    ),
    Column("psnr", Float, nullable=False, comment="dB, of the worst cell"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was published"),
    Column(
        "retired_ns",
        BigInteger,
        comment="when another layout took its place; null while reads may use it",
    ),
    Column(
        "made_at_read",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="the number of the newest read when it was published",
    ),
    Column(
        "expected",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that whoever had it made expected it to save; 0: not noted",
    ),
    Column(
        "gain",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that a read of all its frames should save; 0: not noted",
    ),
    Column(
        "used_at_read",
        BigInteger,
        comment="the number of the last read that used it; null: none has",
    ),
    Column("used_ns", BigInteger, comment="when that read began"),
    Column(
        "uses",
        Float,
        nullable=False,
        server_default="0",
        comment="reads that used it; faded up to the last, see vfsd.eviction.faded",
    ),
    Column(
        "saved",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that it saved them; faded up to the last",
    ),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="frames"),
    Index(None, "original_id", "first_frame"),
    Index(None, "physical_id"),
    Index(None, "object_key"),
    comment="Runs of frames that share one layout of tiles.",
    sqlite_autoincrement=True,
)

cells = Table(
    "cells",
    metadata,
    Column(
        "segment_id",
        _Id,
        ForeignKey("segments.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="the segment that it is a tile of",
    ),
    Column("tile", Integer, primary_key=True, comment="0, 1, 2 ... row by row"),
    Column("x1", Integer, nullable=False, comment="left edge, pixels of the stored picture"),
    Column("y1", Integer, nullable=False, comment="upper edge"),
    Column("x2", Integer, nullable=False, comment="one past the last column"),
    Column("y2", Integer, nullable=False, comment="one past the last row"),
    Column("position", BigInteger, nullable=False, comment="byte offset in the pack"),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    Column(
        "quality",
        Integer,
        nullable=False,
        comment="rate factor that it was encoded with; of lossless, the level",
    ),
    Column("psnr", Float, nullable=False, comment="dB of luma against the source, measured"),
    Column(
        "gray",
        Float,
        nullable=False,
        server_default="0",
        comment="dB of gray in the worst picture, as reads make it; 0: not measured",
    ),
    Column(
        "planes",
        Float,
        nullable=False,
        server_default="0",
        comment="the same of the worst of Y, U and V",
    ),
    Column(
        "colour",
        Float,
        nullable=False,
        server_default="0",
        comment="the same of the worst of R, G and B",
    ),
    comment="Tiles of a segment: each a stream that decodes alone.",
    sqlite_with_rowid=False,
)

costs = Table(
    "costs",
    metadata,
    Column("host", String(255), primary_key=True, comment="where it was measured"),
    Column(
        "name",
        String(32),
        primary_key=True,
        comment="a codec as FFmpeg calls it, or a tile codec",
    ),
    Column("start", Float, nullable=False, comment="CPU seconds to start at a key picture"),
    Column("picture", Float, nullable=False, comment="CPU seconds for each picture"),
    Column("pixel", Float, nullable=False, comment="CPU seconds for each pixel"),
    Column("byte", Float, nullable=False, comment="CPU seconds for each byte"),
    Column("encode_pixel", Float, comment="CPU seconds to encode a pixel; tile codecs only"),
    Column("r2", Float, nullable=False, comment="share of the variance that these explain"),
    Column("samples", Integer, nullable=False, comment="decodes that were timed"),
    Column("software", String(255), nullable=False, comment="versions that it was measured with"),
    Column("measured_ns", BigInteger, nullable=False, comment="when"),
    comment="What decoding costs, by host: measured, not guessed.",
    sqlite_with_rowid=False,
)

reads = Table(
    "reads",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True, comment="by order of arrival"),
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="the logical video, whatever it is encoded as",
    ),
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="by order of making"),
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="whose tiles it was about",
    ),
    Column(
        "segment_id",
        _Id,
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="a number"),
    Column(
        "video_id",
        _Id,
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="never used again"),
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="whose derived data stays",
    ),
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="by order of time"),
    Column(
        "video_id",
        _Id,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        comment="whose segment it was",
    ),
    Column("at_ns", BigInteger, nullable=False, comment="when it went"),
    Column("why", String(32), nullable=False, comment="what was full: video or store"),
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

policies = Table(
    "policies",
    metadata,
    Column(
        "ino",
        _Id,
        ForeignKey("nodes.ino", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        comment="the video, or the directory with all below that have none of their own",
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
    CheckConstraint("original IN ('keep', 'replaceable')", name="original"),
    comment="What may become of originals, where somebody has said so.",
)

holds = Table(
    "holds",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True, comment="never used again"),
    Column(
        "video_id",
        _Id,
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
    Column("id", _Id, primary_key=True, autoincrement=True, comment="by order of time"),
    Column("at_ns", BigInteger, nullable=False, comment="when it was done"),
    Column(
        "action",
        String(16),
        nullable=False,
        comment="replaced, decayed, deleted, left, held or released",
    ),
    Column("video_id", _Id, nullable=False, comment="the video, which may be gone"),
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
