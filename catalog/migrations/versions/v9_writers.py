"""Files that are not videos as objects or in the catalog, and the mounts that write files."""

import sqlalchemy as sa
from alembic import op

revision = "v9"
down_revision = "v8"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATE = (
    "regular files only: spooled (private file, not yet classified), plain (private file, not a "
    "video), stored (the same as an object or in small_files), video (object or linked file)"
)
_OBJECT = "the object that holds the bytes; null for files indexed in place or in small_files"


def upgrade() -> None:
    op.create_table(
        "small_files",
        _ino("a stored file"),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="all of its bytes"),
        *_keys("small_files"),
        comment="Bytes of small files that are not videos, in stores with a bucket and several "
        "homes. An object for each would cost more than its bytes.",
    )
    op.create_table(
        "writers",
        _ino("a file that is open for writing"),
        sa.Column("mount", sa.String(36), nullable=False, comment="id of the mount; see mounts"),
        *_keys("writers"),
        comment="The mount that may write a file. A row of a mount that has lost its lease is "
        "void.",
    )
    if op.get_bind().dialect.name != "postgresql":
        return  # a catalog on SQLite has one home, and no stored files
    op.alter_column("nodes", "state", comment=_STATE)
    op.alter_column("nodes", "object_key", comment=_OBJECT)
    for name, condition in (
        ("state", "state IS NULL OR state IN ('spooled', 'plain', 'video', 'stored')"),
        (
            "bytes",
            "(object_key IS NULL AND link_path IS NULL) OR state IN ('video', 'stored')",
        ),
    ):
        op.drop_constraint(op.f(f"ck_nodes_{name}"), "nodes")
        op.create_check_constraint(op.f(f"ck_nodes_{name}"), "nodes", condition)


def _ino(comment: str) -> sa.Column[int]:
    return sa.Column("ino", _Id, autoincrement=False, nullable=False, comment=comment)


def _keys(table: str) -> tuple[sa.Constraint, sa.Constraint]:
    return (
        sa.PrimaryKeyConstraint("ino", name=op.f(f"pk_{table}")),
        sa.ForeignKeyConstraint(
            ["ino"], ["nodes.ino"], name=op.f(f"fk_{table}_ino"), ondelete="CASCADE"
        ),
    )
