"""Objects with the packs of several segments."""

import sqlalchemy as sa
from alembic import op

revision = "v10"
down_revision = "v9"

_AT = "position of the pack in the object, which may have packs of other segments"


def upgrade() -> None:
    at = sa.Column("pack_at", sa.BigInteger(), server_default="0", nullable=False, comment=_AT)
    op.add_column("segments", at)
    if op.get_bind().dialect.name == "postgresql":
        key = "the object with the pack that holds its cells"
        op.alter_column("segments", "object_key", existing_type=sa.String(64), comment=key)
