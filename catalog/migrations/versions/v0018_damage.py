"""Which frames of an original show damage."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    comment = (
        "of originals: frames that show damage, as [first, end] pairs; null: no full decode has "
        "examined it for that"
    )
    op.add_column("physical_videos", sa.Column("damage", sa.JSON(), comment=comment))


def downgrade() -> None:
    op.drop_column("physical_videos", "damage")
