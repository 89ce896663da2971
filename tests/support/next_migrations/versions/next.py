"""The step of the program ahead: a column and a table, filled from existing rows."""

import sqlalchemy as sa
from alembic import op

from tests.support import next_revision as nextrevision

revision = nextrevision.NEXT
down_revision = nextrevision.FIRST


def upgrade() -> None:
    rating = sa.Column("rating", sa.Integer(), nullable=False, server_default="3")
    op.add_column("videos", rating)
    op.execute("UPDATE videos SET rating = 5 WHERE id IN (SELECT video_id FROM tags)")
    nextrevision.midway()
    op.create_table(
        "lengths",
        sa.Column("video_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("frames", sa.BigInteger(), nullable=False),
    )
    op.execute(
        "INSERT INTO lengths SELECT video_id, frames FROM physical_videos WHERE role = 'original'"
    )
