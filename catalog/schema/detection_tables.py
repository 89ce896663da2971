"""Tables of detections, their labels and sources, and the frames that each source examined."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from vfsd.catalog.schema.columns import IdType, metadata, owner_key, row_id

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
