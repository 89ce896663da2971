"""Layers of videos, and their indexes."""

import sqlalchemy as sa
from alembic import op

revision = "v16"
down_revision = "v15"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "layers",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="row id, never reused"),
        sa.Column("video_id", _Id, nullable=False, comment="the video that it is about"),
        sa.Column(
            "name", sa.String(255), nullable=False, comment="name among the layers of the video"
        ),
        sa.Column(
            "file_id",
            _Id,
            nullable=False,
            comment="the video with its maps, in the order of `frames`",
        ),
        sa.Column(
            "frames",
            sa.LargeBinary(),
            comment="frames of the video that have a map, see vfsd.core.layers; null: all",
        ),
        sa.Column(
            "scale", sa.Double(), nullable=False, comment="a sample means zero + scale * sample"
        ),
        sa.Column("zero", sa.Double(), nullable=False, comment="goes with scale"),
        sa.Column("unit", sa.String(32), nullable=False, comment="unit of the values; empty: none"),
        sa.Column("source_id", _Id, comment="source of the maps"),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was added"),
        sa.CheckConstraint("scale > 0", name=op.f("ck_layers_scale")),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_layers_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["videos.id"], name=op.f("fk_layers_file_id_videos"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_layers_source_id_sources")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_layers")),
        sa.UniqueConstraint("file_id", name=op.f("uq_layers_file_id")),
        sa.UniqueConstraint("video_id", "name", name=op.f("uq_layers_video_id_name")),
        comment="Layers: videos of one channel with a map for frames of another video.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "layer_indexes",
        sa.Column(
            "physical_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the original of the layer's file",
        ),
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="the object, see vfsd.core.cell_index",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes of the object"),
        sa.Column("cell", sa.Integer(), nullable=False, comment="side of a cell in pixels"),
        sa.Column("bins", sa.Integer(), nullable=False, comment="number of ranges of values"),
        sa.Column("built_ns", sa.BigInteger(), nullable=False, comment="when it was made"),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_layer_indexes_physical_id_physical_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_layer_indexes_object_key_objects")
        ),
        sa.PrimaryKeyConstraint("physical_id", name=op.f("pk_layer_indexes")),
        comment="Indexes of layers: numbers of pixels by cell and range of values.",
    )
    op.create_index(op.f("ix_layer_indexes_object_key"), "layer_indexes", ["object_key"])
