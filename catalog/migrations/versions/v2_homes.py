"""Homes and mounts of a catalog that several directories share."""

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"

_HOME = "the home with the private file; null: the only one"
_OPEN_HOME = "the home that has it open; null: the only one"


def upgrade() -> None:
    op.create_table(
        "homes",
        sa.Column("id", sa.String(length=36), nullable=False, comment="id in its marker file"),
        sa.Column("host", sa.Text(), nullable=False, comment="host name, for messages"),
        sa.Column("machine", sa.Text(), nullable=False, comment="machine id; empty: unknown"),
        sa.Column("place", sa.Text(), nullable=False, comment="absolute path of the directory"),
        sa.Column(
            "directory", sa.Text(), nullable=False, comment="its device and inode: DEVICE:INODE"
        ),
        sa.Column(
            "joined", sa.DateTime(timezone=True), nullable=False, comment="when it was added"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_homes")),
        comment="Store directories that use this catalog. Empty where it is an SQLite file.",
    )
    op.create_table(
        "mounts",
        sa.Column("id", sa.String(length=36), nullable=False, comment="drawn at each mount"),
        sa.Column("home", sa.String(length=36), nullable=False, comment="the mounted home"),
        sa.Column("host", sa.Text(), nullable=False, comment="host name, for messages"),
        sa.Column("machine", sa.Text(), nullable=False, comment="machine id; empty: unknown"),
        sa.Column("place", sa.Text(), nullable=False, comment="mount point"),
        sa.Column(
            "epoch", sa.BigInteger(), nullable=False, comment="counts the mounts of the home"
        ),
        sa.Column(
            "beat",
            sa.DateTime(timezone=True),
            comment="last sign of life, by the clock of the database; null: unmounted",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mounts")),
        sa.UniqueConstraint("home", name=op.f("uq_mounts_home")),
        sa.ForeignKeyConstraint(
            ["home"], ["homes.id"], name=op.f("fk_mounts_home"), ondelete="CASCADE"
        ),
        comment="The lease of each home's mount.",
    )
    op.add_column("nodes", sa.Column("home", sa.String(length=36), comment=_HOME))
    op.add_column("orphans", sa.Column("home", sa.String(length=36), comment=_OPEN_HOME))
    if op.get_bind().dialect.name == "postgresql":
        # The first home has the id of the store.
        owner = "(SELECT id FROM store_identity)"
        op.execute(f"UPDATE nodes SET home = {owner} WHERE state IN ('spooled', 'plain')")
        op.execute(f"UPDATE orphans SET home = {owner}")
