"""Budgets of what is derived, pins, what segments are worth, and what went to make room."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A read-only picture for people who like SQL: what went, under each name of its video.
_VIEW = """
CREATE VIEW v_evictions AS
SELECT v_files.path AS name, evictions.id AS id, evictions.video_id AS video_id,
       evictions.at_ns AS at_ns, evictions.why AS why, evictions.role AS role,
       evictions.first_frame AS first_frame, evictions.end_frame AS end_frame,
       evictions.width AS width, evictions.height AS height, evictions.layout AS layout,
       evictions.profile AS profile, evictions.bytes AS bytes, evictions.retired AS retired,
       evictions.created_ns AS created_ns, evictions.used_ns AS used_ns, evictions.uses AS uses,
       evictions.saved AS saved
FROM evictions
JOIN videos ON videos.id = evictions.video_id
JOIN v_files ON v_files.ino = videos.ino AND v_files.state = 'video'
"""


def upgrade() -> None:
    for column in _of_segments():
        op.add_column("segments", column)
    _make_budgets()
    _make_pins()
    _make_evictions()
    op.execute(_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW v_evictions")
    for table in ("evictions", "pins", "budgets"):
        op.drop_table(table)
    with op.batch_alter_table("segments") as batch:
        for column in _of_segments():
            batch.drop_column(column.name)


def _of_segments() -> list[sa.Column[object]]:
    return [
        sa.Column(
            "made_at_read",
            sa.BigInteger(),
            nullable=False,
            server_default="0",
            comment="the number of the newest read when it was published",
        ),
        sa.Column(
            "expected",
            sa.Float(),
            nullable=False,
            server_default="0",
            comment="CPU seconds that whoever had it made expected it to save; 0: not noted",
        ),
        sa.Column(
            "gain",
            sa.Float(),
            nullable=False,
            server_default="0",
            comment="CPU seconds that a read of all its frames should save; 0: not noted",
        ),
        sa.Column(
            "used_at_read",
            sa.BigInteger(),
            nullable=True,
            comment="the number of the last read that used it; null: none has",
        ),
        sa.Column("used_ns", sa.BigInteger(), nullable=True, comment="when that read began"),
        sa.Column(
            "uses",
            sa.Float(),
            nullable=False,
            server_default="0",
            comment="reads that used it; faded up to the last, see vfsd.budget.eviction.faded",
        ),
        sa.Column(
            "saved",
            sa.Float(),
            nullable=False,
            server_default="0",
            comment="CPU seconds that it saved them; faded up to the last",
        ),
    ]


def _make_budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="a number"),
        sa.Column(
            "video_id",
            _Id,
            nullable=True,
            comment="whose derived data is meant; null: that of the whole store, which has one row",
        ),
        sa.Column(
            "bytes", sa.BigInteger(), nullable=True, comment="that it may have; null: see times"
        ),
        sa.Column(
            "times",
            sa.Float(),
            nullable=True,
            comment="as many times the bytes of the originals; null as bytes is: there is no limit",
        ),
        sa.CheckConstraint("bytes IS NULL OR times IS NULL", name=op.f("ck_budgets_one")),
        sa.CheckConstraint("bytes >= 0 AND times >= 0", name=op.f("ck_budgets_positive")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_budgets_video_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.UniqueConstraint("video_id", name=op.f("uq_budgets_video_id")),
        comment="What tiles and renditions may take, where somebody has said so.",
        sqlite_autoincrement=True,
    )


def _make_pins() -> None:
    op.create_table(
        "pins",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="never used again"),
        sa.Column("video_id", _Id, nullable=False, comment="whose derived data stays"),
        sa.Column("first_frame", sa.BigInteger(), nullable=False, comment="in display order"),
        sa.Column("end_frame", sa.BigInteger(), nullable=False, comment="one past the last"),
        sa.Column(
            "role",
            sa.String(length=16),
            nullable=True,
            comment="tiled or rendition; null: both",
        ),
        sa.Column(
            "width",
            sa.Integer(),
            nullable=True,
            comment="of a rendition's displayed frame; null: of any size",
        ),
        sa.Column("height", sa.Integer(), nullable=True, comment="goes with width"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when somebody said so"),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_pins_frames")
        ),
        sa.CheckConstraint(
            "role IS NULL OR role IN ('tiled', 'rendition')", name=op.f("ck_pins_role")
        ),
        sa.CheckConstraint("(width IS NULL) = (height IS NULL)", name=op.f("ck_pins_size")),
        sa.CheckConstraint(
            "width IS NULL OR role = 'rendition'", name=op.f("ck_pins_of_rendition")
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_pins_video_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pins")),
        comment="Segments in use that have any of these frames are neither charged nor evicted.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_pins_video_id"), "pins", ["video_id"], unique=False)


def _make_evictions() -> None:
    op.create_table(
        "evictions",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="by order of time"),
        sa.Column("video_id", _Id, nullable=False, comment="whose segment it was"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it went"),
        sa.Column(
            "why", sa.String(length=32), nullable=False, comment="what was full: video or store"
        ),
        sa.Column("role", sa.String(length=16), nullable=False, comment="tiled or rendition"),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            nullable=False,
            comment="of the segment, in display order",
        ),
        sa.Column("end_frame", sa.BigInteger(), nullable=False, comment="one past the last"),
        sa.Column("width", sa.Integer(), nullable=False, comment="pixels of the displayed frame"),
        sa.Column("height", sa.Integer(), nullable=False, comment="pixels of the displayed frame"),
        sa.Column("layout", sa.Text(), nullable=False, comment="see vfsd.tiling.TileLayout"),
        sa.Column(
            "profile",
            sa.String(length=32),
            nullable=False,
            comment="the tile codec: fast, small ...",
        ),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="of its pack"),
        sa.Column(
            "retired",
            sa.Boolean(),
            nullable=False,
            comment="it was only kept for a step back",
        ),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was published"),
        sa.Column(
            "used_ns", sa.BigInteger(), nullable=True, comment="when it was last used; null: never"
        ),
        sa.Column(
            "uses",
            sa.Float(),
            nullable=False,
            comment="reads that used it, faded up to this moment",
        ),
        sa.Column(
            "saved",
            sa.Float(),
            nullable=False,
            comment="CPU seconds that it saved them, faded likewise",
        ),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_evictions_video_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evictions")),
        comment="Segments that went to make room. Only the newest rows are kept.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_evictions_video_id"), "evictions", ["video_id"], unique=False)
