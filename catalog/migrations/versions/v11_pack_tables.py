"""Copies of the tables of packs, for those in a bucket."""

import sqlalchemy as sa
from alembic import op

revision = "v11"
down_revision = "v10"


def upgrade() -> None:
    op.create_table(
        "pack_tables",
        sa.Column(
            "object_key",
            sa.String(64),
            nullable=False,
            comment="an object in the bucket of the store",
        ),
        sa.Column(
            "pack_at",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="position of a pack in the object",
        ),
        sa.Column(
            "packed",
            sa.LargeBinary(),
            nullable=False,
            comment="CRC-32 of the table of contents at the start of the pack, and the table, "
            "deflated",
        ),
        sa.ForeignKeyConstraint(
            ["object_key"],
            ["objects.key"],
            name=op.f("fk_pack_tables_object_key_objects"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("object_key", "pack_at", name=op.f("pk_pack_tables")),
        comment="Copies of the tables of packs in a bucket, so that a read fetches its packets at "
        "once. Packs without a row are read as well.",
        sqlite_with_rowid=False,
    )
