"""Places of objects in a bucket."""

import sqlalchemy as sa
from alembic import op

revision = "v4"
down_revision = "v3"

_PLACE = "name in the bucket of the store; null: a file of a home"
_BUCKET = "URL of the bucket with copies of the objects; null: none"
_OPTIONS = "options of its server as JSON, without secrets"


def upgrade() -> None:
    op.add_column("objects", sa.Column("place", sa.Text(), comment=_PLACE))
    op.add_column("store_identity", sa.Column("bucket", sa.Text(), comment=_BUCKET))
    op.add_column("store_identity", sa.Column("bucket_options", sa.Text(), comment=_OPTIONS))
