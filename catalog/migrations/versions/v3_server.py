"""The number of changes of a catalog on a server, and a log of reads that takes no lock there."""

import sqlalchemy as sa
from alembic import op

revision = "v3"
down_revision = "v2"


def upgrade() -> None:
    state = op.create_table(
        "catalog_state",
        sa.Column(
            "one",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="always 1: there is only one row",
        ),
        sa.Column(
            "changes",
            sa.BigInteger(),
            nullable=False,
            comment=(
                "number of transactions that caches must notice; 0 on SQLite, which has its own"
            ),
        ),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_catalog_state")),
        sa.CheckConstraint("one = 1", name=op.f("ck_catalog_state_one")),
        comment="State of the catalog on a server as a whole.",
    )
    op.bulk_insert(state, [{"one": 1, "changes": 0}])
    op.create_table(
        "read_notes",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="ascending, with gaps",
        ),
        sa.Column(
            "digest", sa.String(64), nullable=False, comment="digest of the bytes that were read"
        ),
        sa.Column(
            "read", sa.JSON(), nullable=False, comment="the columns of reads, and the segments used"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_read_notes")),
        comment="Reads on a server that are not in reads yet: adding them takes no lock.",
        sqlite_autoincrement=True,
    )
