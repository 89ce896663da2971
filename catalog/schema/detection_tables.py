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
    row_id("what boxes refer to"),
    Column("name", String(255), nullable=False, unique=True, comment="a class or a property"),
    comment="The words that boxes are labelled with, each once for all videos.",
)

sources = Table(
    "sources",
    metadata,
    row_id("what boxes refer to"),
    Column("name", String(255), nullable=False, comment="what it is called"),
    Column("model", String(255), nullable=False, comment="which model; empty: not said"),
    Column("version", String(255), nullable=False, comment="of the model; empty: not said"),
    Column("parameters", Text, nullable=False, comment="a JSON object, keys sorted, no spaces"),
    UniqueConstraint("name", "model", "version", "parameters"),
    comment="Who says what boxes say: models with their settings, and people.",
)

detections = Table(
    "detections",
    metadata,
    owner_key("video_id", "videos.id", "the logical video, whatever it is encoded as"),
    Column(
        "label_id",
        IdType,
        ForeignKey("labels.id"),
        primary_key=True,
        autoincrement=False,
        comment="what it is labelled",
    ),
    Column(
        "frame",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="in display order, from 0",
    ),
    Column(
        "seq",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="0, 1, 2 ... in the order of arrival among all boxes of the frame; may have gaps",
    ),
    Column("x1", Double, nullable=False, comment="pixels, first column"),
    Column("y1", Double, nullable=False, comment="pixels, first row"),
    Column("x2", Double, nullable=False, comment="pixels, exclusive"),
    Column("y2", Double, nullable=False, comment="pixels, exclusive"),
    Column("confidence", Double, comment="as the source gave it; null: none"),
    Column("track", BigInteger, comment="number of the object, within its source; null: none"),
    Column(
        "source_id", IdType, ForeignKey("sources.id"), nullable=False, comment="who says that it is"
    ),
    Column(
        "cell",
        Integer,
        nullable=False,
        comment="coarse place and size: vfsd.catalog.box_grid.cells",
    ),
    Column(
        "bounds",
        BigInteger,
        nullable=False,
        comment="the box, rounded, in one number: vfsd.catalog.box_grid.bounds",
    ),
    Column("attributes", JSON(none_as_null=True), comment="a JSON object of what else is known"),
    CheckConstraint("frame >= 0", name="frame"),
    CheckConstraint("x1 < x2 AND y1 < y2", name="area"),
    # Answers for a region in a long time without looking at the boxes elsewhere.  `bounds` is in
    # it so that a neighbour in the same cell is passed over without its row being read.
    Index(None, "video_id", "label_id", "cell", "frame", "bounds"),
    comment="Labelled boxes. Rows lie in the order of video, label and frame.",
    sqlite_with_rowid=False,
)

examined = Table(
    "examined",
    metadata,
    owner_key("video_id", "videos.id", "whose frames they are"),
    Column(
        "source_id",
        IdType,
        ForeignKey("sources.id"),
        primary_key=True,
        autoincrement=False,
        comment="who has looked at them",
    ),
    Column(
        "first_frame", BigInteger, primary_key=True, autoincrement=False, comment="from this one on"
    ),
    Column("end_frame", BigInteger, nullable=False, comment="up to this one, exclusive"),
    CheckConstraint("0 <= first_frame AND first_frame < end_frame", name="range"),
    comment="Frames that a source has looked at, whether it found anything or not. The ranges of "
    "one source neither overlap nor touch.",
    sqlite_with_rowid=False,
)
