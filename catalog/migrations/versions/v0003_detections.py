"""The semantic index: labels, sources, boxes and the frames that were examined."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A read-only picture for people who like SQL: every box of every video, under each of its names.
_VIEW = """
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
"""


def upgrade() -> None:
    op.create_table(
        "labels",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="what boxes refer to"),
        sa.Column("name", sa.String(length=255), nullable=False, comment="a class or a property"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
        sa.UniqueConstraint("name", name=op.f("uq_labels_name")),
        comment="The words that boxes are labelled with, each once for all videos.",
    )
    op.create_table(
        "sources",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="what boxes refer to"),
        sa.Column("name", sa.String(length=255), nullable=False, comment="what it is called"),
        sa.Column(
            "model", sa.String(length=255), nullable=False, comment="which model; empty: not said"
        ),
        sa.Column(
            "version",
            sa.String(length=255),
            nullable=False,
            comment="of the model; empty: not said",
        ),
        sa.Column(
            "parameters",
            sa.Text(),
            nullable=False,
            comment="a JSON object, keys sorted, no spaces",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
        sa.UniqueConstraint(
            "name",
            "model",
            "version",
            "parameters",
            name=op.f("uq_sources_name_model_version_parameters"),
        ),
        comment="Who says what boxes say: models with their settings, and people.",
    )
    op.create_table(
        "detections",
        sa.Column(
            "video_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the logical video, whatever it is encoded as",
        ),
        sa.Column(
            "label_id", _Id, autoincrement=False, nullable=False, comment="what it is labelled"
        ),
        sa.Column(
            "frame",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="in display order, from 0",
        ),
        sa.Column(
            "seq",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="0, 1, 2 ... in the order of arrival among all boxes of the frame; may have "
            "gaps",
        ),
        sa.Column("x1", sa.Double(), nullable=False, comment="pixels, first column"),
        sa.Column("y1", sa.Double(), nullable=False, comment="pixels, first row"),
        sa.Column("x2", sa.Double(), nullable=False, comment="pixels, exclusive"),
        sa.Column("y2", sa.Double(), nullable=False, comment="pixels, exclusive"),
        sa.Column(
            "confidence", sa.Double(), nullable=True, comment="as the source gave it; null: none"
        ),
        sa.Column(
            "track",
            sa.BigInteger(),
            nullable=True,
            comment="number of the object, within its source; null: none",
        ),
        sa.Column("source_id", _Id, nullable=False, comment="who says that it is"),
        sa.Column(
            "cell",
            sa.Integer(),
            nullable=False,
            comment="coarse place and size: vfsd.catalog.places.cells",
        ),
        sa.Column(
            "bounds",
            sa.BigInteger(),
            nullable=False,
            comment="the box, rounded, in one number: vfsd.catalog.places.bounds",
        ),
        sa.Column(
            "attributes",
            sa.JSON(none_as_null=True),
            nullable=True,
            comment="a JSON object of what else is known",
        ),
        sa.CheckConstraint("frame >= 0", name=op.f("ck_detections_frame")),
        sa.CheckConstraint("x1 < x2 AND y1 < y2", name=op.f("ck_detections_area")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_detections_video_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_detections_label_id")),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_detections_source_id")
        ),
        sa.PrimaryKeyConstraint("video_id", "label_id", "frame", "seq", name=op.f("pk_detections")),
        comment="Labelled boxes. Rows lie in the order of video, label and frame.",
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
        sa.Column(
            "video_id", _Id, autoincrement=False, nullable=False, comment="whose frames they are"
        ),
        sa.Column(
            "source_id", _Id, autoincrement=False, nullable=False, comment="who has looked at them"
        ),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="from this one on",
        ),
        sa.Column(
            "end_frame",
            sa.BigInteger(),
            nullable=False,
            comment="up to this one, exclusive",
        ),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_examined_range")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_examined_video_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name=op.f("fk_examined_source_id")),
        sa.PrimaryKeyConstraint("video_id", "source_id", "first_frame", name=op.f("pk_examined")),
        comment="Frames that a source has looked at, whether it found anything or not. The ranges "
        "of one source neither overlap nor touch.",
        sqlite_with_rowid=False,
    )
    op.execute(_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW v_detections")
    for table in ("examined", "detections", "sources", "labels"):
        op.drop_table(table)
