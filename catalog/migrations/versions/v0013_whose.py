"""Whose catalog it is, and indexes for what is looked for whenever something is taken away.

Who opens it for writing next writes down whose it is: the steps do not know the store.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_INDEXES = (
    ("ix_physical_videos_link_path", "link_path", "link_path IS NOT NULL"),
    ("ix_physical_videos_joined", "role", "role = 'joined'"),
)


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
    for name, column, condition in _INDEXES:
        some = sa.text(condition)
        op.create_index(name, "physical_videos", [column], sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    for name, _, _ in _INDEXES:
        op.drop_index(name, "physical_videos")
    op.drop_table("store_identity")
