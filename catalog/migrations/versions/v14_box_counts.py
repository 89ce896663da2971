"""Numbers of boxes, kept with the boxes."""

import sqlalchemy as sa
from alembic import op

revision = "v14"
down_revision = "v13"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
    op.execute(
        "INSERT INTO box_counts (video_id, label_id, source_id, boxes) "
        "SELECT video_id, label_id, source_id, count(*) FROM detections "
        "GROUP BY video_id, label_id, source_id"
    )
