"""Leases of uploads to a bucket, and the files of a bucket that nothing needs any more."""

import sqlalchemy as sa
from alembic import op

revision = "v6"
down_revision = "v5"


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column(
            "place", sa.Text(), nullable=False, comment="name in the bucket, never used before"
        ),
        sa.Column(
            "key", sa.String(64), nullable=False, comment="the object that is being uploaded"
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.Column(
            "began",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when it was begun, by the clock of the database",
        ),
        sa.Column(
            "expires",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="end of its lease, by the clock of the database",
        ),
        sa.Column("home", sa.String(36), comment="the home that uploads it; null: the only one"),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_uploads")),
        comment="Leases of uploads to the bucket. The transaction that records the object deletes "
        "the row; after the lease, the bytes are garbage.",
    )
    op.create_table(
        "garbage",
        sa.Column("place", sa.Text(), nullable=False, comment="name in the bucket"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when it was last needed, by the clock of the database",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes"),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_garbage")),
        comment="Files of the bucket that nothing refers to. Deleted after a grace period.",
    )
