"""Tables of videos: logical ones, their stored encodings, frame tables and sound."""

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
    String,
    Table,
    Text,
)

from vfsd.catalog.schema.columns import (
    Bytes,
    Id,
    metadata,
    only_where,
    owner,
    owner_key,
    row_id,
)

videos = Table(
    "videos",
    metadata,
    row_id("never used again"),
    Column(
        "ino",
        Id,
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
    owner_key("video_id", "videos.id", "whose tag it is"),
    Column("tag", String(255), primary_key=True, comment="a word"),
    Index(None, "tag"),
    comment="Tags that users give to videos.",
    sqlite_with_rowid=False,
)

physical_videos = Table(
    "physical_videos",
    metadata,
    row_id("never used again"),
    owner("video_id", "videos.id", "the logical video that it stores"),
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
        Id,
        ForeignKey("physical_videos.id", ondelete="SET NULL"),
        comment="what it was made from; null for an original",
    ),
    Column("parameters", JSON, nullable=False, comment="what it was made with"),
    Column("software", String(255), nullable=False, comment="versions that made or indexed it"),
    Column("created_ns", BigInteger, nullable=False, comment="when it was made"),
    Column("media", JSON, nullable=False, comment="the rest of what the file says of its stream"),
    Column("extradata", Bytes, nullable=False, comment="codec configuration"),
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
        "see vfsd.core.psnr; 0: it is the first",
    ),
    Column(
        "damage",
        JSON(none_as_null=True),
        comment="of originals: frames that show damage, as [first, end] pairs; null: no full "
        "decode has examined it for that",
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
    # Of the few that are linked, or joined: both are asked for whenever anything is taken away.
    Index(None, "link_path", **only_where("link_path IS NOT NULL")),
    Index("ix_physical_videos_joined", "role", **only_where("role = 'joined'")),
    comment="Stored encodings of logical videos. Each video has exactly one original.",
    sqlite_autoincrement=True,
)

frame_pages = Table(
    "frame_pages",
    metadata,
    owner_key("physical_id", "physical_videos.id", "whose frames they are"),
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
    Column("data", Bytes, nullable=False, comment="see vfsd.core.frame_table_pages.FramePage"),
    comment="Frame tables, cut into pages of about 2048 packets.",
)

sounds = Table(
    "sounds",
    metadata,
    owner_key("physical_id", "physical_videos.id", "the original whose sound it is"),
    Column("codec", String(32), nullable=False, comment="FFmpeg's name: aac, opus ..."),
    Column("stream_index", Integer, nullable=False, comment="in the file; -1: not known"),
    Column("time_base_num", BigInteger, nullable=False, comment="seconds per tick, numerator"),
    Column("time_base_den", BigInteger, nullable=False, comment="seconds per tick, denominator"),
    Column("sample_rate", Integer, nullable=False, comment="Hz"),
    Column("channels", Integer, nullable=False, comment="number of channels"),
    Column("bit_depth", Integer, nullable=False, comment="of PCM, else 0"),
    Column("configuration", Bytes, nullable=False, comment="what decoders are told first"),
    Column("packets", BigInteger, nullable=False, comment="coded packets"),
    Column("first_pts", BigInteger, nullable=False, comment="ticks: the first packet sounds"),
    Column("end_pts", BigInteger, nullable=False, comment="ticks: the last one has sounded"),
    Column("language", String(16), comment="as the file tells it"),
    Column("reason", Text, comment="why views do not carry it; null: they do"),
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
        comment="CodecID in Matroska; empty: see vfsd.codecs.containers.audio_entries",
    ),
    Column("matroska_private", Bytes, comment="CodecPrivate in Matroska"),
    Column("mp4_entry", Bytes, comment="sample entry in MP4, as a whole box"),
    CheckConstraint("time_base_num > 0 AND time_base_den > 0", name="time"),
    comment="The sound of videos that have an audio stream; a video without a row has none, or was "
    "indexed before there was this table.",
)

sound_pages = Table(
    "sound_pages",
    metadata,
    owner_key("physical_id", "sounds.physical_id", "whose packets they are"),
    Column("ordinal", Integer, primary_key=True, comment="0, 1, 2 ... without gaps"),
    Column("first_packet", BigInteger, nullable=False, comment="counted from 0"),
    Column("packets", Integer, nullable=False, comment="in this page"),
    Column("first_pts", BigInteger, nullable=False, comment="lowest in the page, ticks"),
    Column("last_pts", BigInteger, nullable=False, comment="highest in the page, ticks"),
    Column("data", Bytes, nullable=False, comment="see vfsd.core.frame_table_pages.FramePage"),
    comment="Packets of sound, cut into pages of about 2048.",
)
