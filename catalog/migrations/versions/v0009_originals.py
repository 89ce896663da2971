"""What may become of originals: policies, holds, errors that add up, and the log."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A read-only picture for people who like SQL; names are those of then.
_VIEW = """
CREATE VIEW v_original_log AS
SELECT id, at_ns, action, video_id, name, reason, digest, size, new_digest, new_size, psnr, details
FROM original_log
"""


def upgrade() -> None:
    op.add_column("physical_videos", _error())
    _make_policies()
    _make_holds()
    _make_log()
    op.execute(_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW v_original_log")
    for table in ("original_log", "holds", "policies"):
        op.drop_table(table)
    with op.batch_alter_table("physical_videos") as batch:
        batch.drop_column("error")


def _error() -> sa.Column[object]:
    return sa.Column(
        "error",
        sa.Float(),
        nullable=False,
        server_default="0",
        comment="of originals: that of the worst picture against the very first original, at most, "
        "see vfsd.distortion; 0: it is the first",
    )


def _make_policies() -> None:
    op.create_table(
        "policies",
        sa.Column(
            "ino",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the video, or the directory with all below that have none of their own",
        ),
        sa.Column("original", sa.String(length=16), nullable=False, comment="keep or replaceable"),
        sa.Column(
            "psnr",
            sa.Float(),
            nullable=False,
            comment="dB that what takes an original's place has at least, against the very first",
        ),
        sa.Column(
            "codec",
            sa.String(length=16),
            nullable=False,
            comment="h264, hevc or av1: when it ages",
        ),
        sa.Column("replace_after", sa.BigInteger(), comment="seconds of age; null: not by age"),
        sa.Column("decay_after", sa.BigInteger(), comment="seconds of age; null: never"),
        sa.Column("keep", sa.Text(), comment="labels of what keeps its quality then"),
        sa.Column("delete_after", sa.BigInteger(), comment="seconds of age; null: never"),
        sa.Column(
            "delete_below",
            sa.BigInteger(),
            comment="bytes free on the disk, below which the oldest go",
        ),
        sa.CheckConstraint(
            "original IN ('keep', 'replaceable')", name=op.f("ck_policies_original")
        ),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f("fk_policies_ino"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ino", name=op.f("pk_policies")),
        comment="What may become of originals, where somebody has said so.",
    )


def _make_holds() -> None:
    op.create_table(
        "holds",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="never used again"),
        sa.Column(
            "video_id",
            _Id,
            nullable=False,
            comment="the video that must neither change nor go; it cannot as long as this row is "
            "there",
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="as somebody has put it"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="since when"),
        sa.ForeignKeyConstraint(["video_id"], ["videos.id"], name=op.f("fk_holds_video_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
        comment="Videos that nobody may change or remove.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_holds_video_id"), "holds", ["video_id"], unique=False)


def _make_log() -> None:
    op.create_table(
        "original_log",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="by order of time"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it was done"),
        sa.Column(
            "action",
            sa.String(length=16),
            nullable=False,
            comment="replaced, decayed, deleted, left, held or released",
        ),
        sa.Column("video_id", _Id, nullable=False, comment="the video, which may be gone"),
        sa.Column("name", sa.Text(), nullable=False, comment="its path then"),
        sa.Column("reason", sa.Text(), nullable=False, comment="why"),
        sa.Column(
            "digest", sa.String(length=64), nullable=False, comment="blake3 of the file before"
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="its bytes"),
        sa.Column(
            "new_digest",
            sa.String(length=64),
            comment="blake3 of the file afterwards; null: none, or same",
        ),
        sa.Column("new_size", sa.BigInteger(), comment="goes with new_digest"),
        sa.Column(
            "psnr",
            sa.Float(),
            comment="dB that its pictures have at least against the very first original; null: "
            "not told",
        ),
        sa.Column(
            "details", sa.JSON(), nullable=False, comment="what was measured, and how it was made"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_original_log")),
        comment="What became of originals, and what was said of them. Never shortened.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_original_log_video_id"), "original_log", ["video_id"], unique=False)
