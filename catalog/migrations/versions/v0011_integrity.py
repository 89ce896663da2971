"""Sums of the blocks of originals, what was found by looking at stored bytes, and runs of scrub."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "block_sums",
        *_place("block_sums"),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes of the file"),
        sa.Column(
            "mtime_ns",
            sa.BigInteger(),
            comment="files indexed in place only: their mtime; with another one the sums say "
            "nothing",
        ),
        sa.Column(
            "block",
            sa.Integer(),
            nullable=False,
            comment="bytes of a block; the last may be shorter",
        ),
        sa.Column(
            "sums",
            sa.LargeBinary(),
            nullable=False,
            comment="the first 8 bytes of the blake3 of each block",
        ),
        sa.CheckConstraint("size >= 0 AND block > 0", name=op.f("ck_block_sums_size")),
        comment="Sums of the blocks of originals, by which what is read of them is compared.",
    )
    op.create_table(
        "inspections",
        *_place("inspections"),
        sa.Column(
            "looked_ns", sa.BigInteger(), comment="when all of it was last looked at; null: never"
        ),
        sa.Column(
            "damage",
            sa.JSON(none_as_null=True),
            comment="the bytes that are not those that were stored: a list of [first, end]; "
            "null: none",
        ),
        sa.Column("found_ns", sa.BigInteger(), comment="when that was found; goes with damage"),
        comment="What was found by looking at stored bytes.",
    )
    op.create_table(
        "scrubs",
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="by order of time"),
        sa.Column(
            "what",
            sa.Text(),
            nullable=False,
            comment="the names that it is about; empty: everything",
        ),
        sa.Column("begun_ns", sa.BigInteger(), nullable=False, comment="when it began"),
        sa.Column(
            "ended_ns",
            sa.BigInteger(),
            comment="when it was through; null: it was interrupted",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scrubs")),
        comment="Runs of `vfsd scrub`. Only the newest rows are kept.",
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    for table in ("scrubs", "inspections", "block_sums"):
        op.drop_table(table)


def _place(table: str) -> tuple[sa.schema.SchemaItem, ...]:
    """An object or a linked file, which has one row at most."""
    return (
        sa.Column("id", _Id, autoincrement=True, nullable=False, comment="a number"),
        sa.Column(
            "object_key",
            sa.String(64),
            comment="the object; null for a file indexed in place",
        ),
        sa.Column("link_path", sa.LargeBinary(), comment="the file indexed in place"),
        sa.CheckConstraint(
            "(object_key IS NULL) <> (link_path IS NULL)", name=op.f(f"ck_{table}_place")
        ),
        sa.ForeignKeyConstraint(
            ["object_key"],
            ["objects.key"],
            name=op.f(f"fk_{table}_object_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint("object_key", name=op.f(f"uq_{table}_object_key")),
        sa.UniqueConstraint("link_path", name=op.f(f"uq_{table}_link_path")),
    )
