"""Vectors that models gave runs of frames."""

import sqlalchemy as sa
from alembic import op

revision = "v13"
down_revision = "v12"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "vectors",
        sa.Column(
            "id",
            _Id,
            autoincrement=True,
            nullable=False,
            comment="a block of vectors that were stored together",
        ),
        sa.Column("video_id", _Id, nullable=False, comment="the logical video"),
        sa.Column("source_id", _Id, nullable=False, comment="the model or person"),
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="the object with the numbers: vfsd.core.vectors",
        ),
        sa.Column("dimension", sa.Integer(), nullable=False, comment="numbers in a vector"),
        sa.Column("dtype", sa.String(8), nullable=False, comment="float16 or float32"),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="vectors in the object"),
        sa.Column(
            "lost",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="rows whose frames a corrected frame table does not have",
        ),
        sa.Column(
            "frames",
            sa.LargeBinary(),
            nullable=False,
            comment="the run of frames of each row: vfsd.core.vectors.pack_runs",
        ),
        sa.CheckConstraint("rows > 0 AND dimension > 0", name=op.f("ck_vectors_size")),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_vectors_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_vectors_source_id_sources")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"], ["objects.key"], name=op.f("fk_vectors_object_key_objects")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vectors")),
        comment="Vectors that models gave runs of frames. They are kept like originals.",
        sqlite_autoincrement=True,
    )
    for columns in (["video_id", "source_id"], ["source_id"], ["object_key"]):
        op.create_index(op.f(f"ix_vectors_{'_'.join(columns)}"), "vectors", columns)
