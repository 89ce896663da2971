"""Browser renditions that policies ask for, and the videos that have had theirs."""

import sqlalchemy as sa
from alembic import op

revision = "v17"
down_revision = "v16"


def upgrade() -> None:
    op.add_column(
        "policies",
        sa.Column(
            "browser",
            sa.Integer(),
            nullable=True,
            comment="greatest width of the rendition that is made for browsers; null: none is made",
        ),
    )
    op.create_table(
        "browser_renditions",
        sa.Column(
            "video_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
            comment="the logical video",
        ),
        sa.Column(
            "digest",
            sa.String(64),
            nullable=False,
            comment="blake3 of the logical file at that time; other bytes are looked at again",
        ),
        sa.Column(
            "width", sa.Integer(), nullable=False, comment="greatest width, as in the policy"
        ),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="when it was done"),
        sa.Column(
            "refused",
            sa.Text(),
            nullable=True,
            comment="why there can be no rendition; null: it was made, or browsers play the video",
        ),
        sa.ForeignKeyConstraint(
            ["video_id"],
            ["videos.id"],
            name=op.f("fk_browser_renditions_video_id_videos"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_id", name=op.f("pk_browser_renditions")),
        comment="Videos that have had the rendition of the rule browser, or need none. A "
        "rendition that the budget evicts is not made again.",
        sqlite_with_rowid=False,
    )
