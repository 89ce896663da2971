"""Files that crashed processes while they were decoded."""

import sqlalchemy as sa
from alembic import op

revision = "v8"
down_revision = "v7"


def upgrade() -> None:
    op.create_table(
        "suspects",
        sa.Column(
            "key",
            sa.Text(),
            nullable=False,
            comment="the object, or the path of a file indexed in place",
        ),
        sa.Column("crashes", sa.Integer(), nullable=False, comment="number of crashed processes"),
        sa.Column("at", sa.Float(), nullable=False, comment="Unix time of the last crash"),
        sa.Column("how", sa.Text(), nullable=False, comment="reason of the last crash"),
        sa.Column(
            "barred", sa.Boolean(), nullable=False, comment="whether no process may decode it"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_suspects")),
        comment="Files that crashed processes while they were decoded. Only on a server; other "
        "stores have suspects.json.",
    )
