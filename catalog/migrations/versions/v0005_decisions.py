"""Which tiles were made because of what had been read, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A read-only picture for people who like SQL: every decision, under each name of its video.
_VIEW = """
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
"""


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="by order of making"),
        sa.Column("video_id", _Id, nullable=False, comment="whose tiles it was about"),
        sa.Column(
            "segment_id",
            _Id,
            nullable=True,
            comment="what was made; null: it is there no longer",
        ),
        sa.Column(
            "at_ns", sa.BigInteger(), nullable=False, comment="when its segment was published"
        ),
        sa.Column(
            "maker",
            sa.String(length=16),
            nullable=False,
            comment="who made it: tune or background",
        ),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            nullable=False,
            comment="of the segment, in display order",
        ),
        sa.Column("end_frame", sa.BigInteger(), nullable=False, comment="one past the last"),
        sa.Column(
            "layout",
            sa.Text(),
            nullable=False,
            comment="of the segment, see vfsd.tiling.TileLayout",
        ),
        sa.Column(
            "tiles",
            sa.JSON(none_as_null=True),
            nullable=True,
            comment="those of the layout that were made: a list of numbers; null: all",
        ),
        sa.Column(
            "profile",
            sa.String(length=32),
            nullable=False,
            comment="the tile codec: fast, small ...",
        ),
        sa.Column(
            "reasons",
            sa.JSON(),
            nullable=False,
            comment="what was read there: a list of objects with reads (how often) and one of "
            "label (an expression), region (x1, y1, x2, y2 of the stored picture) and size",
        ),
        sa.Column(
            "reads",
            sa.BigInteger(),
            nullable=False,
            comment="remembered reads that it makes cheaper",
        ),
        sa.Column(
            "predicted_seconds",
            sa.Float(),
            nullable=False,
            comment="CPU seconds that making it would take",
        ),
        sa.Column(
            "predicted_saved",
            sa.Float(),
            nullable=False,
            comment="CPU seconds of decoding that the reads would have taken less",
        ),
        sa.Column("predicted_bytes", sa.BigInteger(), nullable=False, comment="that it would have"),
        sa.Column("seconds", sa.Float(), nullable=False, comment="that making it took, measured"),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="that it has"),
        sa.Column(
            "undone_ns",
            sa.BigInteger(),
            nullable=True,
            comment="when somebody took it back; null: nobody did",
        ),
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
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_decisions_video_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("segment_id", name=op.f("uq_decisions_segment_id")),
        comment="Segments of tiles that were made because of what had been read, and why.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_video_id"), "decisions", ["video_id"], unique=False)
    op.execute(_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW v_decisions")
    op.drop_table("decisions")
