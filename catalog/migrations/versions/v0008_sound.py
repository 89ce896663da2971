"""The sound of videos: what it is, and where its packets lie."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "sounds",
        sa.Column(
            "physical_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="the original whose sound it is",
        ),
        sa.Column("codec", sa.String(32), nullable=False, comment="FFmpeg's name: aac, opus ..."),
        sa.Column(
            "stream_index", sa.Integer(), nullable=False, comment="in the file; -1: not known"
        ),
        _number("time_base_num", "seconds per tick, numerator"),
        _number("time_base_den", "seconds per tick, denominator"),
        sa.Column("sample_rate", sa.Integer(), nullable=False, comment="Hz"),
        sa.Column("channels", sa.Integer(), nullable=False, comment="number of channels"),
        sa.Column("bit_depth", sa.Integer(), nullable=False, comment="of PCM, else 0"),
        sa.Column(
            "configuration",
            sa.LargeBinary(),
            nullable=False,
            comment="what decoders are told first",
        ),
        _number("packets", "coded packets"),
        _number("first_pts", "ticks: the first packet sounds"),
        _number("end_pts", "ticks: the last one has sounded"),
        sa.Column("language", sa.String(16), nullable=True, comment="as the file tells it"),
        sa.Column(
            "reason", sa.Text(), nullable=True, comment="why views do not carry it; null: they do"
        ),
        sa.CheckConstraint("time_base_num > 0 AND time_base_den > 0", name=op.f("ck_sounds_time")),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["physical_videos.id"],
            name=op.f("fk_sounds_physical_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("physical_id", name=op.f("pk_sounds")),
        comment="The sound of videos that have an audio stream; a video without a row has none, "
        "or was indexed before there was this table.",
    )
    op.create_table(
        "sound_pages",
        sa.Column(
            "physical_id",
            _Id,
            autoincrement=False,
            nullable=False,
            comment="whose packets they are",
        ),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="0, 1, 2 ... without gaps"),
        _number("first_packet", "counted from 0"),
        sa.Column("packets", sa.Integer(), nullable=False, comment="in this page"),
        _number("first_pts", "lowest in the page, ticks"),
        _number("last_pts", "highest in the page, ticks"),
        sa.Column(
            "data", sa.LargeBinary(), nullable=False, comment="see vfsd.framepages.FramePage"
        ),
        sa.ForeignKeyConstraint(
            ["physical_id"],
            ["sounds.physical_id"],
            name=op.f("fk_sound_pages_physical_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("physical_id", "ordinal", name=op.f("pk_sound_pages")),
        comment="Packets of sound, cut into pages of about 2048.",
    )


def downgrade() -> None:
    op.drop_table("sound_pages")
    op.drop_table("sounds")


def _number(name: str, comment: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, comment=comment)
