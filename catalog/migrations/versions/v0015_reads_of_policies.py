"""What reads of a video ask for when nothing is said, by its policy."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    comment = "dB of luma that tiles need for reads that ask for none; null: as the store has it"
    op.add_column("policies", sa.Column("reads", sa.Float(), comment=comment))


def downgrade() -> None:
    op.drop_column("policies", "reads")
