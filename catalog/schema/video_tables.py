"""Tables of videos: encodings, frame tables, sound, segments of tiles, detections and layers."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from vfsd.catalog.schema.columns import (
    BytesType,
    IdType,
    metadata,
    only_where,
    owner,
    owner_key,
    row_id,
)

videos = Table(
    "videos",
    metadata,
    row_id("row id, never reused"),
    Column(
        "ino",
        IdType,
        ForeignKey("nodes.ino", ondelete="CASCADE"),
        nullable=False,
        unique=True,
        comment="inode of the file",
    ),
    Column("digest", String(64), nullable=False, comment="blake3 of the logical file"),
    Column("created_ns", BigInteger, nullable=False, comment="when it became a video"),
    Column("metadata", JSON, nullable=False, comment="metadata set by users: a JSON object"),
    Column("captured_ns", BigInteger, comment="when its first frame was recorded; null: unknown"),
    Column(
        "captured_clock",
        String(16),
        comment="source of captured_ns: given, name, arrival or container",
    ),
    Index(None, "digest"),
    Index(None, "captured_ns"),
    comment="Logical videos: files of the tree that are indexed as videos.",
    sqlite_autoincrement=True,
)

tags = Table(
    "tags",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column("tag", String(255), primary_key=True, comment="a word"),
    Index(None, "tag"),
    comment="Tags that users give to videos.",
    sqlite_with_rowid=False,
)

physical_videos = Table(
    "physical_videos",
    metadata,
    row_id("row id, never reused"),
    owner("video_id", "videos.id", "the logical video"),
    Column("role", String(16), nullable=False, comment="original, tiled, rendition or joined"),
    Column("container", String(16), nullable=False, comment="mp4, matroska, avi, mpegts ..."),
    Column("codec", String(32), nullable=False, comment="FFmpeg's name: h264, hevc, av1 ..."),
    Column("width", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("height", Integer, nullable=False, comment="pixels of the displayed frame"),
    Column("frames", BigInteger, nullable=False, comment="displayed frames"),
    Column("packets", BigInteger, nullable=False, comment="coded packets"),
    Column("first_pts", BigInteger, nullable=False, comment="start of the first frame, in ticks"),
    Column("end_pts", BigInteger, nullable=False, comment="end of the last frame, in ticks"),
    Column("time_base_num", BigInteger, nullable=False, comment="seconds per tick, numerator"),
    Column("time_base_den", BigInteger, nullable=False, comment="seconds per tick, denominator"),
    Column("access", String(16), nullable=False, comment="extent, demux or sequential"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        comment="the object; null for a file indexed in place, and for encodings in packs",
    ),
    Column("link_path", LargeBinary, comment="the file indexed in place"),
    Column("size", BigInteger, nullable=False, comment="bytes of the object or linked file"),
    Column(
        "verified", Boolean, nullable=False, comment="a full decode has verified the frame table"
    ),
    Column(
        "parent_id",
        IdType,
        ForeignKey("physical_videos.id", ondelete="SET NULL"),
        comment="the encoding that it was made from; null for an original",
    ),
    Column("parameters", JSON, nullable=False, comment="settings of the encoder"),
    Column("software", String(255), nullable=False, comment="software that made or indexed it"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was made"),
    Column("media", JSON, nullable=False, comment="other properties of the video stream"),
    Column("extradata", BytesType, nullable=False, comment="codec configuration"),
    Column("notes", JSON, nullable=False, comment="list of irregularities found while indexing"),
    Column(
        "cost_factor",
        Float,
        comment="measured decoding time relative to the codec's cost model; null: not measured",
    ),
    Column(
        "error",
        Float,
        nullable=False,
        server_default="0",
        comment="originals only: upper bound for the worst picture against the first "
        "original, see vfsd.core.model; 0: it is the first",
    ),
    Column(
        "damage",
        JSON(none_as_null=True),
        comment="originals only: frames that show damage, as [first, end] pairs; null: "
        "not examined by a full decode",
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
    # Few rows are linked or joined, and every deletion queries both.
    Index(None, "link_path", **only_where("link_path IS NOT NULL")),
    Index("ix_physical_videos_joined", "role", **only_where("role = 'joined'")),
    comment="Stored encodings of logical videos. Each video has exactly one original.",
    sqlite_autoincrement=True,
)

frame_pages = Table(
    "frame_pages",
    metadata,
    owner_key("physical_id", "physical_videos.id", "the encoding of these frames"),
    Column("ordinal", Integer, primary_key=True, comment="0, 1, 2 ... without gaps"),
    Column("first_packet", BigInteger, nullable=False, comment="first packet, in decode order"),
    Column("packets", Integer, nullable=False, comment="number in this page"),
    Column("first_frame", BigInteger, nullable=False, comment="first frame, in display order"),
    Column("frames", Integer, nullable=False, comment="number in this page"),
    Column("first_pts", BigInteger, nullable=False, comment="lowest pts in the page, ticks"),
    Column("last_pts", BigInteger, nullable=False, comment="highest pts in the page, ticks"),
    Column(
        "key_packet",
        BigInteger,
        nullable=False,
        comment="key packet from which the page's first packet is decoded; -1: none",
    ),
    Column("data", BytesType, nullable=False, comment="see vfsd.core.frame_table_pages.FramePage"),
    comment="Frame tables, cut into pages of about 2048 packets.",
)

sounds = Table(
    "sounds",
    metadata,
    owner_key("physical_id", "physical_videos.id", "the original"),
    Column("codec", String(32), nullable=False, comment="FFmpeg's name: aac, opus ..."),
    Column(
        "stream_index",
        Integer,
        nullable=False,
        comment="index of the stream in the file; -1: unknown",
    ),
    Column("time_base_num", BigInteger, nullable=False, comment="seconds per tick, numerator"),
    Column("time_base_den", BigInteger, nullable=False, comment="seconds per tick, denominator"),
    Column("sample_rate", Integer, nullable=False, comment="Hz"),
    Column("channels", Integer, nullable=False, comment="number of channels"),
    Column("bit_depth", Integer, nullable=False, comment="bit depth of PCM, else 0"),
    Column("configuration", BytesType, nullable=False, comment="codec configuration"),
    Column("packets", BigInteger, nullable=False, comment="coded packets"),
    Column("first_pts", BigInteger, nullable=False, comment="start of the first packet, in ticks"),
    Column("end_pts", BigInteger, nullable=False, comment="end of the last packet, in ticks"),
    Column("language", String(16), comment="language tag of the file"),
    Column("reason", Text, comment="why views do not carry it; null: they carry it"),
    Column(
        "access",
        String(16),
        nullable=False,
        server_default="extent",
        comment="how packets are read: extent or demux",
    ),
    Column(
        "matroska_codec",
        String(64),
        nullable=False,
        server_default="",
        comment="CodecID in Matroska; empty: see vfsd.codecs.containers.tracks",
    ),
    Column("matroska_private", BytesType, comment="CodecPrivate in Matroska"),
    Column("mp4_entry", BytesType, comment="sample entry in MP4, as a whole box"),
    CheckConstraint("time_base_num > 0 AND time_base_den > 0", name="time"),
    comment="Audio tracks of originals. A video without a row has none, or was "
    "indexed without looking for one.",
)

sound_pages = Table(
    "sound_pages",
    metadata,
    owner_key("physical_id", "sounds.physical_id", "the original"),
    Column("ordinal", Integer, primary_key=True, comment="0, 1, 2 ... without gaps"),
    Column("first_packet", BigInteger, nullable=False, comment="first packet, from 0"),
    Column("packets", Integer, nullable=False, comment="number in this page"),
    Column("first_pts", BigInteger, nullable=False, comment="lowest pts in the page, ticks"),
    Column("last_pts", BigInteger, nullable=False, comment="highest pts in the page, ticks"),
    Column("data", BytesType, nullable=False, comment="see vfsd.core.frame_table_pages.FramePage"),
    comment="Packet tables of audio tracks, cut into pages of about 2048 packets.",
)


segments = Table(
    "segments",
    metadata,
    row_id("row id, never reused"),
    owner("physical_id", "physical_videos.id", "the tiled encoding that contains it"),
    owner(
        "original_id",
        "physical_videos.id",
        "the original whose frame table numbers its frames",
    ),
    Column("first_frame", BigInteger, nullable=False, comment="first frame, in display order"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last frame"),
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
        comment="the object with the pack that holds its cells",
    ),
    Column(
        "pack_at",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="position of the pack in the object, which may have packs of other segments",
    ),
    Column(
        "size",
        BigInteger,
        nullable=False,
        comment="bytes of the pack; for a joined segment, its share",
    ),
    Column("psnr", Float, nullable=False, comment="dB, of the worst cell"),
    Column(
        "gop",
        Integer,
        comment="frames from one key picture of a cell to the next; null: only the first is one",
    ),
    Column("created_ns", BigInteger, nullable=False, comment="when it was published"),
    Column(
        "retired_ns",
        BigInteger,
        comment="when another layout replaced it; null while reads may use it",
    ),
    Column(
        "made_at_read",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="number of the newest read at the time of publication",
    ),
    Column(
        "expected",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that it was expected to save when it was made; 0: unknown",
    ),
    Column(
        "gain",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that a read of all its frames should save; 0: unknown",
    ),
    Column(
        "used_at_read",
        BigInteger,
        comment="number of the last read that used it; null: none",
    ),
    Column("used_ns", BigInteger, comment="when that read began"),
    Column(
        "uses",
        Float,
        nullable=False,
        server_default="0",
        comment="number of reads that used it, decayed up to the last, see "
        "vfsd.core.budgets.decayed",
    ),
    Column(
        "saved",
        Float,
        nullable=False,
        server_default="0",
        comment="CPU seconds that it saved them, decayed up to the last",
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
    owner_key("segment_id", "segments.id", "the segment that contains it"),
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
        comment="rate factor of the encoder; for lossless, the level",
    ),
    Column("psnr", Float, nullable=False, comment="dB of luma against the source, measured"),
    Column(
        "gray",
        Float,
        nullable=False,
        server_default="0",
        comment="dB of the worst picture read as gray; 0: not measured",
    ),
    Column(
        "planes",
        Float,
        nullable=False,
        server_default="0",
        comment="dB of the worst plane of Y, U and V in the worst picture; 0: not measured",
    ),
    Column(
        "colour",
        Float,
        nullable=False,
        server_default="0",
        comment="dB of the worst channel of R, G and B in the worst picture; 0: not measured",
    ),
    comment="Tiles of a segment. Each is a stream that decodes independently.",
    sqlite_with_rowid=False,
)

costs = Table(
    "costs",
    metadata,
    Column("host", String(255), primary_key=True, comment="host of the measurement"),
    Column(
        "name",
        String(32),
        primary_key=True,
        comment="FFmpeg's name of a codec, or a tile codec",
    ),
    Column("start", Float, nullable=False, comment="CPU seconds to start at a key picture"),
    Column("picture", Float, nullable=False, comment="CPU seconds for each picture"),
    Column("pixel", Float, nullable=False, comment="CPU seconds for each pixel"),
    Column("byte", Float, nullable=False, comment="CPU seconds for each byte"),
    Column("encode_pixel", Float, comment="CPU seconds to encode a pixel; tile codecs only"),
    Column("r2", Float, nullable=False, comment="share of the variance that the model explains"),
    Column("samples", Integer, nullable=False, comment="number of timed decodes"),
    Column("software", String(255), nullable=False, comment="software that was measured"),
    Column("measured_ns", BigInteger, nullable=False, comment="time of the measurement"),
    comment="Measured decoding costs by host.",
    sqlite_with_rowid=False,
)


layers = Table(
    "layers",
    metadata,
    row_id("row id, never reused"),
    owner("video_id", "videos.id", "the video that it is about"),
    Column("name", String(255), nullable=False, comment="name among the layers of the video"),
    Column(
        "file_id",
        IdType,
        ForeignKey("videos.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
        comment="the video with its maps, in the order of `frames`",
    ),
    Column(
        "frames",
        BytesType,
        comment="frames of the video that have a map, see vfsd.core.layers; null: all",
    ),
    Column("scale", Double, nullable=False, comment="a sample means zero + scale * sample"),
    Column("zero", Double, nullable=False, comment="goes with scale"),
    Column("unit", String(32), nullable=False, comment="unit of the values; empty: none"),
    Column("source_id", IdType, ForeignKey("sources.id"), comment="source of the maps"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was added"),
    UniqueConstraint("video_id", "name"),
    CheckConstraint("scale > 0", name="scale"),
    comment="Layers: videos of one channel with a map for frames of another video.",
    sqlite_autoincrement=True,
)

layer_indexes = Table(
    "layer_indexes",
    metadata,
    owner_key("physical_id", "physical_videos.id", "the original of the layer's file"),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        nullable=False,
        comment="the object, see vfsd.core.cell_index",
    ),
    Column("size", BigInteger, nullable=False, comment="bytes of the object"),
    Column("cell", Integer, nullable=False, comment="side of a cell in pixels"),
    Column("bins", Integer, nullable=False, comment="number of ranges of values"),
    Column("built_ns", BigInteger, nullable=False, comment="when it was made"),
    Index(None, "object_key"),
    comment="Indexes of layers: numbers of pixels by cell and range of values.",
)

labels = Table(
    "labels",
    metadata,
    row_id("referred to by boxes"),
    Column("name", String(255), nullable=False, unique=True, comment="a class or a property"),
    comment="Labels of boxes, shared by all videos.",
)

sources = Table(
    "sources",
    metadata,
    row_id("referred to by boxes"),
    Column("name", String(255), nullable=False, comment="name of the source"),
    Column("model", String(255), nullable=False, comment="model; empty: unknown"),
    Column("version", String(255), nullable=False, comment="version of the model; empty: unknown"),
    Column("parameters", Text, nullable=False, comment="a JSON object, keys sorted, no spaces"),
    UniqueConstraint("name", "model", "version", "parameters"),
    comment="Sources of boxes: models with their settings, and people.",
)

detections = Table(
    "detections",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column(
        "label_id",
        IdType,
        ForeignKey("labels.id"),
        primary_key=True,
        autoincrement=False,
        comment="label of the box",
    ),
    Column(
        "frame",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="frame number in display order, from 0",
    ),
    Column(
        "seq",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="order of arrival among the boxes of the frame, from 0; may have gaps",
    ),
    Column("x1", Double, nullable=False, comment="left edge, pixels of the displayed frame"),
    Column("y1", Double, nullable=False, comment="upper edge"),
    Column("x2", Double, nullable=False, comment="right or lower edge, exclusive"),
    Column("y2", Double, nullable=False, comment="right or lower edge, exclusive"),
    Column("confidence", Double, comment="on the scale of the source; null: none"),
    Column(
        "track", BigInteger, comment="number of the tracked object, within its source; null: none"
    ),
    Column(
        "source_id", IdType, ForeignKey("sources.id"), nullable=False, comment="source of the box"
    ),
    Column(
        "cell",
        Integer,
        nullable=False,
        comment="coarse position and size: vfsd.catalog.box_grid.cells",
    ),
    Column(
        "bounds",
        BigInteger,
        nullable=False,
        comment="the rounded box as one number: vfsd.catalog.box_grid.bounds",
    ),
    Column("attributes", JSON(none_as_null=True), comment="other properties: a JSON object"),
    CheckConstraint("frame >= 0", name="frame"),
    CheckConstraint("x1 < x2 AND y1 < y2", name="area"),
    # Finds boxes in a region over a long time without reading boxes elsewhere.  With `bounds` in
    # it, other boxes of the same cell are skipped without reading their rows.
    Index(None, "video_id", "label_id", "cell", "frame", "bounds"),
    comment="Labelled boxes, stored in the order of video, label and frame.",
    sqlite_with_rowid=False,
)

examined = Table(
    "examined",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column(
        "source_id",
        IdType,
        ForeignKey("sources.id"),
        primary_key=True,
        autoincrement=False,
        comment="the source that examined them",
    ),
    Column("first_frame", BigInteger, primary_key=True, autoincrement=False, comment="first frame"),
    Column("end_frame", BigInteger, nullable=False, comment="one past the last frame"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="range"),
    comment="Frames that a source has examined, with or without results. The ranges "
    "of one source neither overlap nor touch.",
    sqlite_with_rowid=False,
)

vectors = Table(
    "vectors",
    metadata,
    row_id("a block of vectors that were stored together"),
    owner("video_id", "videos.id", "the logical video"),
    Column(
        "source_id", IdType, ForeignKey("sources.id"), nullable=False, comment="the model or person"
    ),
    Column(
        "object_key",
        String(64),
        ForeignKey("objects.key"),
        nullable=False,
        comment="the object with the numbers: vfsd.core.vectors",
    ),
    Column("dimension", Integer, nullable=False, comment="numbers in a vector"),
    Column("dtype", String(8), nullable=False, comment="float16 or float32"),
    Column("rows", BigInteger, nullable=False, comment="vectors in the object"),
    Column(
        "lost",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="rows whose frames a corrected frame table does not have",
    ),
    Column(
        "frames",
        BytesType,
        nullable=False,
        comment="the run of frames of each row: vfsd.core.vectors.pack_runs",
    ),
    CheckConstraint("rows > 0 AND dimension > 0", name="size"),
    Index(None, "video_id", "source_id"),
    Index(None, "source_id"),
    Index(None, "object_key"),
    comment="Vectors that models gave runs of frames. They are kept like originals.",
    sqlite_autoincrement=True,
)

box_counts = Table(
    "box_counts",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column(
        "label_id",
        IdType,
        ForeignKey("labels.id"),
        primary_key=True,
        autoincrement=False,
        comment="label of the boxes",
    ),
    Column(
        "source_id",
        IdType,
        ForeignKey("sources.id"),
        primary_key=True,
        autoincrement=False,
        comment="source of the boxes",
    ),
    Column("boxes", BigInteger, nullable=False, comment="their number"),
    CheckConstraint("boxes >= 0", name="boxes"),
    comment="Numbers of boxes, changed with them in one transaction.",
    sqlite_with_rowid=False,
)

searches = Table(
    "searches",
    metadata,
    Column("name", String(255), primary_key=True, comment="name of the search"),
    Column("kind", String(16), nullable=False, comment="boxes or events"),
    Column("arguments", JSON, nullable=False, comment="what it searches, and in which videos"),
    Column("saved_ns", BigInteger, nullable=False, comment="when it was saved"),
    CheckConstraint("kind IN ('boxes', 'events')", name="kind"),
    comment="Searches that a user has saved.",
)

moments = Table(
    "moments",
    metadata,
    owner_key("video_id", "videos.id", "the logical video"),
    Column(
        "label_id",
        IdType,
        ForeignKey("labels.id"),
        primary_key=True,
        autoincrement=False,
        comment="label of the moment",
    ),
    Column(
        "first_frame",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="frame number in display order, from 0",
    ),
    Column(
        "end_frame",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="frame number, exclusive",
    ),
    Column(
        "source_id",
        IdType,
        ForeignKey("sources.id"),
        primary_key=True,
        autoincrement=False,
        comment="source of the moment",
    ),
    Column("confidence", Double, comment="on the scale of the source; null: none"),
    Column("attributes", JSON(none_as_null=True), comment="other properties: a JSON object"),
    CheckConstraint("first_frame >= 0 AND first_frame < end_frame", name="frames"),
    Index(None, "label_id", "video_id"),
    comment="Labelled runs of frames. A source has one of each label and run.",
    sqlite_with_rowid=False,
)
