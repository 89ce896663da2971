"""How many bytes the videos of a directory may have together, by its policy."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    comment = "bytes of all videos that go by it, above which the oldest go"
    op.add_column("policies", sa.Column("delete_above", sa.BigInteger(), comment=comment))


def downgrade() -> None:
    op.drop_column("policies", "delete_above")
