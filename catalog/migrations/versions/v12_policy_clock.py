"""The time from which the ages of a policy count."""

import sqlalchemy as sa
from alembic import op

revision = "v12"
down_revision = "v11"


def upgrade() -> None:
    op.add_column(
        "policies",
        sa.Column(
            "clock",
            sa.String(16),
            nullable=False,
            server_default="latest",
            comment="time from which ages count: latest or recording",
        ),
    )
