"""Tiled encodings: segments and their cells; and what decoding costs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_BYTES_BEFORE = "(object_key IS NULL) <> (link_path IS NULL)"
_BYTES = (
    "role = 'tiled' AND object_key IS NULL AND link_path IS NULL "
    "OR role <> 'tiled' AND (object_key IS NULL) <> (link_path IS NULL)"
)


def upgrade() -> None:
    _let_tiled_encodings_have_no_object()
    op.add_column(
        "physical_videos",
        sa.Column(
            "cost_factor",
            sa.Float(),
            nullable=True,
            comment="decoding takes as many times what the codec's rule says; null: not measured",
        ),
    )
    op.create_table(
        "segments",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="never used again"),
        sa.Column(
            "physical_id", _Id, nullable=False, comment="the tiled encoding that it belongs to"
        ),
        sa.Column(
            "original_id",
            _Id,
            nullable=False,
            comment="the original by whose frame table its frames are counted",
        ),
        sa.Column(
            "first_frame",
            sa.BigInteger(),
            nullable=False,
            comment="of the video, in display order",
        ),
        sa.Column("end_frame", sa.BigInteger(), nullable=False, comment="one past the last"),
        sa.Column("layout", sa.Text(), nullable=False, comment="see vfsd.tiling.TileLayout"),
        sa.Column(
            "profile",
            sa.String(length=32),
            nullable=False,
            comment="the tile codec: fast, small ...",
        ),
        sa.Column(
            "object_key",
            sa.String(length=64),
            nullable=False,
            comment="the pack that holds its cells",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes of the pack"),
        sa.Column("psnr", sa.Float(), nullable=False, comment="dB, of the worst cell"),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was published"),
        sa.Column(
            "retired_ns",
            sa.BigInteger(),
            nullable=True,
            comment="when another layout took its place; null while reads may use it",
        ),
        sa.CheckConstraint(
            "0 <= first_frame AND first_frame < end_frame", name=op.f("ck_segments_frames")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_segments_object_key")
        ),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_segments_physical_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["original_id"],
            ["physical_videos.id"],
            name=op.f("fk_segments_original_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        comment="Runs of frames that share one layout of tiles.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_segments_object_key"), "segments", ["object_key"], unique=False)
    op.create_index(op.f("ix_segments_physical_id"), "segments", ["physical_id"], unique=False)
    op.create_index(
        op.f("ix_segments_original_id_first_frame"),
        "segments",
        ["original_id", "first_frame"],
        unique=False,
    )
    op.create_table(
        "cells",
        sa.Column(
            "segment_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the segment that it is a tile of",
        ),
        sa.Column("tile", sa.Integer(), nullable=False, comment="0, 1, 2 ... row by row"),
        sa.Column(
            "x1", sa.Integer(), nullable=False, comment="left edge, pixels of the stored picture"
        ),
        sa.Column("y1", sa.Integer(), nullable=False, comment="upper edge"),
        sa.Column("x2", sa.Integer(), nullable=False, comment="one past the last column"),
        sa.Column("y2", sa.Integer(), nullable=False, comment="one past the last row"),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="byte offset in the pack"),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.Column(
            "quality",
            sa.Integer(),
            nullable=False,
            comment="rate factor that it was encoded with",
        ),
        sa.Column(
            "psnr",
            sa.Float(),
            nullable=False,
            comment="dB of luma against the source, measured",
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_cells_segment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("segment_id", "tile", name=op.f("pk_cells")),
        comment="Tiles of a segment: each a stream that decodes alone.",
        sqlite_with_rowid=False,
    )

    op.create_table(
        "costs",
        sa.Column("host", sa.String(length=255), nullable=False, comment="where it was measured"),
        sa.Column(
            "name",
            sa.String(length=32),
            nullable=False,
            comment="a codec as FFmpeg calls it, or a tile codec",
        ),
        sa.Column(
            "start", sa.Float(), nullable=False, comment="CPU seconds to start at a key picture"
        ),
        sa.Column("picture", sa.Float(), nullable=False, comment="CPU seconds for each picture"),
        sa.Column("pixel", sa.Float(), nullable=False, comment="CPU seconds for each pixel"),
        sa.Column("byte", sa.Float(), nullable=False, comment="CPU seconds for each byte"),
        sa.Column(
            "encode_pixel",
            sa.Float(),
            nullable=True,
            comment="CPU seconds to encode a pixel; tile codecs only",
        ),
        sa.Column(
            "r2", sa.Float(), nullable=False, comment="share of the variance that these explain"
        ),
        sa.Column("samples", sa.Integer(), nullable=False, comment="decodes that were timed"),
        sa.Column(
            "software",
            sa.String(length=255),
            nullable=False,
            comment="versions that it was measured with",
        ),
        sa.Column("measured_ns", sa.BigInteger(), nullable=False, comment="when"),
        sa.PrimaryKeyConstraint("host", "name", name=op.f("pk_costs")),
        comment="What decoding costs, by host: measured, not guessed.",
        sqlite_with_rowid=False,
    )


def _let_tiled_encodings_have_no_object() -> None:
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_physical_videos_bytes"), "physical_videos")
        op.create_check_constraint(op.f("ck_physical_videos_bytes"), "physical_videos", _BYTES)
        return
    # SQLite's way to change a constraint that all rows keep (https://sqlite.org/lang_altertable.html,
    # section 7).  To copy the table would take what refers to it along when the old one goes.
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema = ON")
    bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'physical_videos'",
        (_BYTES_BEFORE, _BYTES),
    )
    bind.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema = OFF")
