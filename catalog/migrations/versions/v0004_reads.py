"""What was read of videos, and what that took."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A read-only picture for people who like SQL: every read, under each name of its video.
_VIEW = """
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
"""


def upgrade() -> None:
    op.create_table(
        "reads",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="by order of arrival"),
        sa.Column(
            "video_id",
            _Id,
            nullable=False,
            comment="the logical video, whatever it is encoded as",
        ),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it began"),
        sa.Column(
            "kind",
            sa.String(length=16),
            nullable=False,
            comment="through what: api, scan, view or detect",
        ),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            nullable=False,
            comment="the lowest, in display order",
        ),
        sa.Column("end_frame", sa.BigInteger(), nullable=False, comment="one past the highest"),
        sa.Column("frames", sa.BigInteger(), nullable=False, comment="pictures of the result"),
        sa.Column(
            "x1", sa.Integer(), nullable=False, comment="left edge, pixels of the displayed frame"
        ),
        sa.Column("y1", sa.Integer(), nullable=False, comment="upper edge"),
        sa.Column("x2", sa.Integer(), nullable=False, comment="one past the last column"),
        sa.Column("y2", sa.Integer(), nullable=False, comment="one past the last row"),
        sa.Column(
            "width",
            sa.Integer(),
            nullable=True,
            comment="pixels of a picture of the result; null: of each its own",
        ),
        sa.Column("height", sa.Integer(), nullable=True, comment="goes with width"),
        sa.Column(
            "labels",
            sa.JSON(none_as_null=True),
            nullable=True,
            comment="of boxes that it was for: a list of lists of labels, an AND of ORs",
        ),
        sa.Column("pixels", sa.BigInteger(), nullable=False, comment="to be decoded, by the plan"),
        sa.Column(
            "untiled_pixels",
            sa.BigInteger(),
            nullable=False,
            comment="to be decoded if all came from the original",
        ),
        sa.Column(
            "predicted",
            sa.Float(),
            nullable=False,
            comment="CPU seconds of decoding, by the plan",
        ),
        sa.Column(
            "untiled_predicted",
            sa.Float(),
            nullable=False,
            comment="CPU seconds of decoding if all came from the original",
        ),
        sa.Column(
            "seconds", sa.Float(), nullable=False, comment="that it took its reader, measured"
        ),
        sa.Column("segments", sa.Integer(), nullable=False, comment="of tiles that were used"),
        sa.Column(
            "tiles",
            sa.Integer(),
            nullable=False,
            comment="of these that were decoded, all together",
        ),
        sa.Column(
            "original_frames",
            sa.BigInteger(),
            nullable=False,
            comment="different frames that came from the original; 0: all from tiles",
        ),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame AND frames > 0",
            name=op.f("ck_reads_frames"),
        ),
        sa.CheckConstraint("x1 < x2 AND y1 < y2", name=op.f("ck_reads_area")),
        sa.CheckConstraint("(width IS NULL) = (height IS NULL)", name=op.f("ck_reads_size")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_reads_video_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reads")),
        comment="What was read of videos, and what that took. Only the newest rows are kept, as "
        "many as the setting remembered_reads says.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_reads_video_id"), "reads", ["video_id"], unique=False)
    op.execute(_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW v_reads")
    op.drop_table("reads")
