"""Work orders, their units and results."""

import sqlalchemy as sa
from alembic import op

revision = "v5"
down_revision = "v4"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "work_orders",
        sa.Column("id", sa.String(8), nullable=False, comment="drawn at random, hexadecimal"),
        sa.Column(
            "verb", sa.String(16), nullable=False, comment="the command: retile, detect, ..."
        ),
        sa.Column("spec", sa.JSON(), nullable=False, comment="its arguments, for people"),
        sa.Column("units", sa.Integer(), nullable=False, comment="number of units"),
        sa.Column("cost", sa.Float(), nullable=False, comment="expected CPU seconds"),
        sa.Column("created_ns", sa.BigInteger(), nullable=False, comment="when it was planned"),
        sa.Column(
            "cancelled_ns", sa.BigInteger(), comment="when it was cancelled; null: it was not"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_work_orders")),
        comment="Work that is planned in units, which any process may perform.",
    )
    op.create_table(
        "work_units",
        sa.Column("order_id", sa.String(8), nullable=False, comment="the order"),
        sa.Column("number", sa.Integer(), nullable=False, comment="from 0"),
        sa.Column("unit", sa.JSON(), nullable=False, comment="the work: see vfsd.work.units"),
        sa.PrimaryKeyConstraint("order_id", "number", name=op.f("pk_work_units")),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["work_orders.id"],
            name=op.f("fk_work_units_order_id"),
            ondelete="CASCADE",
        ),
        comment="Units of orders. They are stored, since a plan made later could differ.",
    )
    op.create_table(
        "work_results",
        sa.Column(
            "id", _Id, autoincrement=True, nullable=False, comment="ascending in order of arrival"
        ),
        sa.Column("order_id", sa.String(8), nullable=False, comment="the order"),
        sa.Column("number", sa.Integer(), comment="of the unit; null: of all units"),
        sa.Column(
            "attempt",
            sa.String(32),
            nullable=False,
            comment="drawn when a process began the unit",
        ),
        sa.Column(
            "outcome",
            sa.String(16),
            nullable=False,
            comment="begun, made, skipped, outdated, failed, refused, cancelled, again or retry",
        ),
        sa.Column("host", sa.Text(), nullable=False, comment="name of the machine"),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it was added"),
        sa.Column("cpu", sa.Float(), comment="CPU seconds"),
        sa.Column("frames", sa.BigInteger(), comment="number of frames of the unit"),
        sa.Column("made", sa.Integer(), comment="number of new segments, boxes or videos"),
        sa.Column("bytes_read", sa.BigInteger(), comment="approximate bytes of originals"),
        sa.Column("bytes_written", sa.BigInteger(), comment="bytes of new data"),
        sa.Column("error", sa.Text(), comment="the message, if it failed"),
        sa.Column("exit_code", sa.Integer(), comment="goes with error"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_work_results")),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["work_orders.id"],
            name=op.f("fk_work_results_order_id"),
            ondelete="CASCADE",
        ),
        comment="Log of the units of orders. Rows are only added.",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_work_results_order_id_number"), "work_results", ["order_id", "number"])
