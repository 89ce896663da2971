"""Whose catalog it is, and indexes for what is looked for whenever something is taken away.

Who opens it for writing next writes down whose it is: the steps do not know the store.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "store_identity",
        sa.Column(
            "one",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="1: it is the only row",
        ),
        sa.Column(
            "id",
            sa.Text(),
            nullable=False,
            comment="the id in the marker of the store's directory",
        ),
        sa.CheckConstraint("one = 1", name=op.f("ck_store_identity_one")),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_store_identity")),
        comment="The store whose catalog it is. Empty until a store has opened it for writing.",
    )


def downgrade() -> None:
    op.drop_table("store_identity")
