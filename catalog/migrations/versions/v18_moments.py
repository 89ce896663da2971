"""Moments: labelled runs of frames."""

import sqlalchemy as sa
from alembic import op

revision = "v18"
down_revision = "v17"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
