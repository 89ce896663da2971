"""Saved searches."""

import sqlalchemy as sa
from alembic import op

revision = "v15"
down_revision = "v14"


def upgrade() -> None:
    op.create_table(
        "searches",
        sa.Column("name", sa.String(length=255), nullable=False, comment="name of the search"),
        sa.Column("kind", sa.String(length=16), nullable=False, comment="boxes or events"),
        sa.Column(
            "arguments", sa.JSON(), nullable=False, comment="what it searches, and in which videos"
        ),
        sa.Column("saved_ns", sa.BigInteger(), nullable=False, comment="when it was saved"),
        sa.CheckConstraint("kind IN ('boxes', 'events')", name=op.f("ck_searches_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_searches")),
        comment="Searches that a user has saved.",
    )
